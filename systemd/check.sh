#!/usr/bin/env bash
# Checks the unit without a running systemd: syntax and hardening score, in a temporary root.
# usage: systemd/check.sh PATH-OF-SPARKGATE-BINARY
set -euo pipefail
binary=${1:?path of the sparkgate binary}
here=$(cd "$(dirname "$0")" && pwd)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root/usr/bin" "$root/usr/lib/systemd/system" "$root/etc/systemd/system" "$root/bin"
install -m 755 "$binary" "$root/usr/bin/sparkgate"
install -m 755 /bin/sh "$root/bin/sh"
install -m 644 "$here/sparkgate.service" "$root/usr/lib/systemd/system/"
# The unit names stock targets and slices: give the root the distribution's own.
for unit in basic.target sysinit.target shutdown.target multi-user.target local-fs.target time-set.target \
  -.slice system.slice -.mount; do
  for folder in /usr/lib/systemd/system /lib/systemd/system; do
    [ -e "$folder/$unit" ] && cp -L "$folder/$unit" "$root/usr/lib/systemd/system/" && break
  done || true
done
systemd-analyze --root="$root" --man=no --recursive-errors=no verify sparkgate.service
systemd-analyze --root="$root" --offline=true --threshold=15 --no-pager security sparkgate.service | tail -n 1
mkdir -p "$root/etc/systemd/system/sparkgate.service.d"
cp "$here/sparkgate.service.d/jetson.conf.example" "$root/etc/systemd/system/sparkgate.service.d/jetson.conf"
systemd-analyze --root="$root" --offline=true --threshold=20 --no-pager security sparkgate.service | tail -n 1
