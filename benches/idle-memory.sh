#!/usr/bin/env bash
# Resident memory of an idle gateway with 50 nodes of 20 devices of 20 metrics each, all online, after their births and one
# message of each device: from nothing switched on to everything, beside what the gateway takes without any device.
# usage: benches/idle-memory.sh [FOLDER-WITH-sparkgate-AND-firmware-sim] [MOST-MB]     default: target/release, no limit
# The gateway gets the environment of systemd/sparkgate.service; PLAIN=1 leaves that out.
# With a nats-server on PATH (or NATS_SERVER) also with a bridge that delivers. MOST-MB: fails where a line is above it.
set -euo pipefail
bin=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/release}")
most=${2:-}
nats=${NATS_SERVER:-$(command -v nats-server || true)}
unit=$(dirname "$(realpath "$0")")/../systemd/sparkgate.service
environment=()
[ -n "${PLAIN:-}" ] || read -ra environment < <(sed -n 's/^Environment=//p' "$unit")
work=$(mktemp -d)
pids=()
stop() { for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done; wait 2>/dev/null || true; pids=(); }
trap 'stop; rm -rf "$work"' EXIT
status() { "$bin/sparkgate" status -o json -c "$work/gw.toml" 2>/dev/null; }
of() { python3 -c 'import json, sys; s = json.load(sys.stdin); print(eval(sys.argv[1], {"s": s}))' "$1"; }
until_true() { # what, command…
  local what=$1; shift
  for _ in $(seq 600); do "$@" && return; sleep 0.2; done
  echo "not within two minutes: $what" >&2; tail "$work/log" >&2; exit 1
}
settled() { [ "$(status | of 's["host"]["devices_online"] >= 1000 and s["received"] >= 3050' || true)" = True ]; }
answers() { status >/dev/null; }
memory() { awk '/^RssAnon|^RssFile|^VmRSS/ { printf "%s %d\n", $1, $2 / 1000 }' "/proc/$1/status"; }

worst=0
line() { # name, more configuration
  rm -rf "$work/data"
  cat >"$work/gw.toml" <<TOML
[gateway]
id = "idle-$RANDOM"
data_dir = "$work/data"
[mqtt]
listen = ["127.0.0.1:21883"]
[admin]
listen = "127.0.0.1:28780"
$2
TOML
  env "${environment[@]}" "$bin/sparkgate" run -c "$work/gw.toml" >"$work/log" 2>&1 &
  local gateway=$!
  pids+=("$gateway")
  until_true "the gateway answers" answers
  local empty
  empty=$(memory "$gateway" | awk '/VmRSS/ { print $2 }')
  "$bin/firmware-sim" run --broker mqtt://127.0.0.1:21883 --nodes 50 --devices 20 --metrics 20 --rate 0.02 >/dev/null 2>&1 &
  pids+=("$!")
  until_true "every device is born and has sent once" settled
  sleep "${SETTLE_S:-70}" # the newest records leave memory after [buffer] hot.ttl
  local rss anon file
  read -r rss anon file < <(memory "$gateway" | awk '{ m[$1] = $2 } END { print m["VmRSS:"], m["RssAnon:"], m["RssFile:"] }')
  printf '%-44s %8s %8s %8s %8s\n' "$1" "$empty" "$rss" "$anon" "$file"
  [ "$rss" -le "$worst" ] || worst=$rss
  stop
}

rules='[rules]
use_shipped = ["*"]'
models='[models]
use_shipped = ["*"]'
printf '%-44s %8s %8s %8s %8s\n' "MB" "empty" "1000 x 20" "own" "of files"
line "as installed" ""
line "all shipped rules" "$rules"
line "all shipped models" "$models"
if [ -n "$nats" ]; then
  "$nats" -js -sd "$work/js" -a 127.0.0.1 -p 24222 >/dev/null 2>&1 &
  server=$!
  bridge='[bridge]
urls = ["nats://127.0.0.1:24222"]'
  line "a bridge" "$bridge"
  line "rules and a bridge" "$rules
$bridge"
  line "rules, models and a bridge" "$rules
$models
$bridge"
  kill "$server"
else
  line "rules and models" "$rules
$models"
fi
[ -z "$most" ] || [ "$worst" -le "$most" ] || { echo "$worst MB is more than $most MB" >&2; exit 1; }
