#!/usr/bin/env bash
# Starts the service for real, under systemd as process 1 of a container, and looks at it as an operator would:
# ready, reload, watchdog's status line, backup, clean stop, restart after a kill, refusal of a wrong configuration.
# usage: systemd/try.sh PATH-OF-SPARKGATE-BINARY [FOLDER]      as root; needs debootstrap, systemd-container
# TRY_STALL=1 with a debug build: also lets the pipeline stand still, and expects the watchdog to end that.
# FOLDER keeps the container's root file system between runs (default: a temporary one).
set -euo pipefail
binary=$(realpath "${1:?path of the sparkgate binary}")
here=$(cd "$(dirname "$0")" && pwd)
root=${2:-$(mktemp -d)}
[ $# -gt 1 ] || trap 'rm -rf "$root"' EXIT
# shellcheck source=systemd/container.sh
. "$here/container.sh"
container_make "$root"
install -m 755 "$binary" "$root/usr/bin/sparkgate"
install -D -m 644 "$here/sparkgate.service" "$root/usr/lib/systemd/system/sparkgate.service"
install -D -m 644 "$here/tmpfiles.conf" "$root/usr/lib/tmpfiles.d/sparkgate.conf"
install -D -m 644 "$here/sysusers.conf" "$root/usr/lib/sysusers.d/sparkgate.conf"
mkdir -p "$root/etc/sparkgate/conf.d" "$root/etc/sparkgate/rules.d"
printf '[gateway]\nid = "try"\n[rules]\nuse_shipped = ["press-cooling"]\n' >"$root/etc/sparkgate/sparkgate.toml"
# A package that was removed leaves its unit masked.
rm -rf "$root/etc/systemd/system/sparkgate.service" "$root/stall" "$root/var/lib/private/sparkgate" "$root/etc/systemd/system/sparkgate.service.d"
[ -z "${TRY_STALL:-}" ] || touch "$root/stall"
container_run "$root" <<'CHECKS'
check "starts and says ready" systemctl start sparkgate
check "runs as its own user" bash -c '[ "$(stat -c %U /proc/$(systemctl show -p MainPID --value sparkgate))" = sparkgate ]'
check "status over the admin socket" sparkgate status
wait_for bash -c 'systemctl show -p StatusText --value sparkgate | grep -q received'
check "a status line for systemctl" bash -c 'systemctl show -p StatusText --value sparkgate | grep received'
before=$(main_pid)
check "reload keeps the process" bash -c "systemctl reload sparkgate && [ \$(systemctl show -p MainPID --value sparkgate) = $before ]"
check "backup while it runs" sparkgate backup /root/b.tar.gz
kill -9 "$before"
check "restarts after a kill" wait_for bash -c "systemctl is-active -q sparkgate && [ \$(systemctl show -p MainPID --value sparkgate) != $before ] && sparkgate status"
started=$(date +%s%N)
check "stops" systemctl stop sparkgate
took=$((($(date +%s%N) - started) / 1000000)); echo "        in $took ms"
check "stops within 5 s" [ "$took" -lt 5000 ]
check "left cleanly" bash -c '[ "$(systemctl show -p Result --value sparkgate)" = success ]'
check "data survives" bash -c 'grep -q sparkgate-data /var/lib/private/sparkgate/format'
echo '[mqtt]
max_packt = "1MiB"' >/etc/sparkgate/conf.d/wrong.toml
systemctl start sparkgate >/dev/null 2>&1
check "a wrong configuration is not retried" bash -c 'sleep 3; [ "$(systemctl show -p ExecMainStatus --value sparkgate)" = 78 ] && [ "$(systemctl is-active sparkgate)" = failed ]'
check "and is explained in the journal" bash -c 'journalctl -u sparkgate | grep "did you mean .max_packet"'
rm /etc/sparkgate/conf.d/wrong.toml
check "starts again" systemctl restart sparkgate
check "hardening at most 1.5" systemd-analyze security --threshold=15 sparkgate
if [ -e /stall ]; then
  mkdir -p /etc/systemd/system/sparkgate.service.d
  printf '[Service]\nWatchdogSec=3s\nEnvironment=SPARKGATE_TEST_STALL=/var/lib/sparkgate/stall\n' >/etc/systemd/system/sparkgate.service.d/stall.conf
  systemctl daemon-reload
  systemctl restart sparkgate
  before=$(main_pid)
  touch /var/lib/private/sparkgate/stall
  check "a stuck pipeline is ended by the watchdog" wait_for bash -c 'journalctl -u sparkgate | grep -i "watchdog timeout"'
  rm /var/lib/private/sparkgate/stall
  check "and started anew" wait_for bash -c "systemctl is-active -q sparkgate && [ \$(systemctl show -p MainPID --value sparkgate) != $before ] && sparkgate status"
fi
CHECKS
