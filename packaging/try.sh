#!/usr/bin/env bash
# Installs the Debian package in a real Debian under systemd, as an operator would: nothing starts by itself, the gateway
# gets its name, runs; an upgrade keeps process, configuration and data, and the new version takes the data over.
# usage: packaging/try.sh PACKAGE.deb [FOLDER]      as root; needs debootstrap, systemd-container
# FOLDER keeps the container's root file system between runs (default: a temporary one).
set -euo pipefail
package=$(realpath "${1:?path of the package}")
here=$(cd "$(dirname "$0")" && pwd)
root=${2:-$(mktemp -d)}
newer=$(mktemp -d)
trap 'rm -rf "$newer"; [ -n "${2:-}" ] || rm -rf "$root"' EXIT
# shellcheck source=systemd/container.sh
. "$here/../systemd/container.sh"
container_make "$root"
chroot "$root" dpkg --purge sparkgate >/dev/null 2>&1 || true
rm -rf "$root/var/lib/private/sparkgate" "$root/etc/sparkgate" "$root/etc/systemd/system/sparkgate.service.d"
install -m 644 "$package" "$root/one.deb"
# The same with a higher version.
dpkg-deb -R "$package" "$newer"
sed -i 's/^Version: .*/Version: 99.0.0-1/' "$newer/DEBIAN/control"
dpkg-deb -Zgzip -z1 --root-owner-group -b "$newer" "$root/two.deb" >/dev/null
container_run "$root" <<'CHECKS'
check "installs" dpkg -i /one.deb
check "is neither enabled nor started" bash -c '! systemctl is-enabled -q sparkgate && ! systemctl is-active -q sparkgate'
check "brings the unit, man page, completions, packs, models and what makes them" ls /lib/systemd/system/sparkgate.service \
  /usr/share/man/man1/sparkgate.1.gz /usr/share/bash-completion/completions/sparkgate /usr/share/sparkgate/packs/press-cooling/pack.toml \
  /usr/share/sparkgate/models/vibration-ae/manifest.toml /usr/share/sparkgate/make/build_text.sh /usr/share/doc/sparkgate/docs/install.md
check "the configuration is a conffile" bash -c 'dpkg-query -W -f "\${Conffiles}" sparkgate | grep /etc/sparkgate/sparkgate.toml'
sed -i 's/^id = .*/id = "try"/' /etc/sparkgate/sparkgate.toml
printf '[rules]\nuse_shipped = ["press-cooling"]\n' >/etc/sparkgate/conf.d/10-rules.toml 2>/dev/null || { mkdir -p /etc/sparkgate/conf.d; printf '[rules]\nuse_shipped = ["press-cooling"]\n' >/etc/sparkgate/conf.d/10-rules.toml; }
check "what is installed is valid" sparkgate validate
check "runs" systemctl enable --now sparkgate
check "status over the admin socket" wait_for sparkgate status
before=$(main_pid)
epoch=$(sparkgate buffer stat -o json | grep '"epoch"')
check "an upgrade installs" dpkg -i /two.deb
check "and leaves the running process alone" [ "$(main_pid)" = "$before" ]
check "and the configuration" grep -q 'id = "try"' /etc/sparkgate/sparkgate.toml
check "restarts when asked" systemctl restart sparkgate
check "status after the upgrade" wait_for sparkgate status
check "with the same journal" [ "$(sparkgate buffer stat -o json | grep '"epoch"')" = "$epoch" ]
check "removal stops it" bash -c 'dpkg -r sparkgate && ! systemctl is-active -q sparkgate'
check "and keeps data and configuration" ls /var/lib/private/sparkgate/format /etc/sparkgate/sparkgate.toml
CHECKS
