# To be sourced: a Debian with systemd as process 1, in a folder, that runs one script once everything is up.

# Makes the root file system where there is none yet. usage: container_make ROOT
container_make() {
  local need=()
  command -v debootstrap >/dev/null || need+=(debootstrap)
  command -v systemd-nspawn >/dev/null || need+=(systemd-container)
  [ ${#need[@]} = 0 ] || apt-get install -y -qq --no-install-recommends "${need[@]}"
  if [ ! -e "$1/etc/debian_version" ]; then
    debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,ca-certificates bookworm "$1" >/dev/null
  fi
}

# Boots it without a network and runs the checks on standard input, a bash script with the verbs `check WHAT COMMAND…` and
# `wait_for COMMAND…`; prints what they found. usage: container_run ROOT <<'CHECKS' … CHECKS
container_run() {
  local root=$1
  rm -rf "$root/result" "$root/result.log" "$root/report"
  {
    cat <<'HEAD'
#!/bin/bash
set -uo pipefail
exec >/report 2>&1
failed=0
check() { # what, command…
  local what=$1; shift
  if "$@" >/tmp/out 2>&1; then echo "ok      $what"; else echo "FAILED  $what"; sed 's/^/        /' /tmp/out | tail -n 12; failed=1; fi
}
wait_for() { for _ in $(seq 100); do "$@" >/dev/null 2>&1 && return 0; sleep 0.2; done; "$@"; }
main_pid() { systemctl show -p MainPID --value sparkgate; }
HEAD
    cat
    cat <<'TAIL'
journalctl -b -u sparkgate --no-pager -n 60 >/result.log 2>&1
echo "$failed" >/result
systemctl poweroff
TAIL
  } >"$root/usr/bin/look"
  chmod 755 "$root/usr/bin/look"
  printf '[Unit]\nAfter=multi-user.target\n[Service]\nType=oneshot\nExecStart=/usr/bin/look\n' >"$root/etc/systemd/system/look.service"
  mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
  ln -sf /etc/systemd/system/look.service "$root/etc/systemd/system/multi-user.target.wants/look.service"
  # shellcheck disable=SC2086 # several arguments
  timeout "${TRY_SECONDS:-300}" systemd-nspawn --quiet --register=no --keep-unit --machine="sparkgate-try-$$" --private-network --directory="$root" --boot \
    ${NSPAWN_ARGS:-} </dev/null >"$root/boot.log" 2>&1 || true
  cat "$root/report" || tail -n 20 "$root/boot.log"
  [ -e "$root/result" ] || { echo "the container did not come to an end"; return 1; }
  [ "$(cat "$root/result")" = 0 ] || { cat "$root/result.log"; return 1; }
}
