#!/usr/bin/env bash
# Lays out everything of a package but the binary.
# usage: packaging/stage.sh PATH-OF-SPARKGATE-BINARY FOLDER
set -euo pipefail
binary=${1:?path of a sparkgate binary that runs here}
root=${2:?folder}
here=$(cd "$(dirname "$0")/.." && pwd)
put() { install -D -m 644 "$1" "$root/$2"; }
put "$here/systemd/sparkgate.service" usr/lib/systemd/system/sparkgate.service
put "$here/systemd/sparkgate.service.d/jetson.conf.example" usr/share/doc/sparkgate/examples/jetson.conf
put "$here/systemd/sysusers.conf" usr/lib/sysusers.d/sparkgate.conf
put "$here/systemd/tmpfiles.conf" usr/lib/tmpfiles.d/sparkgate.conf
put "$here/examples/sparkgate.toml" usr/share/doc/sparkgate/examples/sparkgate.toml
put "$here/README.md" usr/share/doc/sparkgate/README.md
put "$here/CHANGELOG.md" usr/share/doc/sparkgate/CHANGELOG.md
# The book with what its links lead to, in the same places.
(cd "$here" && find docs rules/README.md models/README.md -type f -print0) |
  while IFS= read -r -d '' file; do put "$here/$file" "usr/share/doc/sparkgate/$file"; done
# What makes the text model, which is too large to be carried.
for file in "$here"/models/make/*; do put "$file" "usr/share/sparkgate/make/$(basename "$file")"; done
put "$here/packaging/sparkgate.toml" etc/sparkgate/sparkgate.toml
for pack in "$here"/rules/packs/*/; do
  for file in "$pack"*.toml; do put "$file" "usr/share/sparkgate/packs/$(basename "$pack")/$(basename "$file")"; done
done
for model in "$here"/models/artifacts/*/; do
  for file in "$model"*; do [ -f "$file" ] && put "$file" "usr/share/sparkgate/models/$(basename "$model")/$(basename "$file")"; done
done
mkdir -p "$root/usr/share/man/man1"
"$binary" man "$root/usr/share/man/man1"
gzip -9nf "$root"/usr/share/man/man1/*.1
for shell in bash:bash-completion/completions/sparkgate zsh:zsh/vendor-completions/_sparkgate fish:fish/vendor_completions.d/sparkgate.fish; do
  file=$root/usr/share/${shell#*:}
  mkdir -p "$(dirname "$file")"
  "$binary" completion "${shell%%:*}" >"$file"
done
