#!/usr/bin/env bash
# Makes sparkgate-VERSION-ARCH.tar.gz: the binary with unit, example, packs, models, completions and man pages, to be unpacked
# over / or into a prefix.
# usage: packaging/tarball.sh PATH-OF-SPARKGATE-BINARY [ARCH] [OUTPUT-FOLDER]
# The binary must run here, since completions and man pages come from it; for another ARCH set SPARKGATE_GENERATOR to one that does.
set -euo pipefail
binary=$(realpath "${1:?path of the sparkgate binary}")
arch=${2:-$(uname -m)}
out=$(realpath "${3:-.}")
here=$(cd "$(dirname "$0")/.." && pwd)
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/Cargo.toml" | head -n 1)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
"$here/packaging/stage.sh" "${SPARKGATE_GENERATOR:-$binary}" "$root"
install -D -m 755 "$binary" "$root/usr/bin/sparkgate"
# The same input gives the same bytes.
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-0}" -C "$root" -cf - . |
  gzip -9n >"$out/sparkgate-$version-$arch.tar.gz"
echo "$out/sparkgate-$version-$arch.tar.gz"
