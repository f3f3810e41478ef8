#!/usr/bin/env bash
# The operator's page in headless Chromium: a gateway with rules, models and a fleet, a person's hashed token, and
# `drive.mjs`, which does what an operator does and fails where that is not possible; then `story.mjs` with DEVICES (5000)
# real devices more (0: without).
# usage: tests/page/run.sh [FOLDER-WITH-sparkgate-AND-firmware-sim] [FOLDER-FOR-SCREENSHOTS]     default: target/release, none
# Needs chromium (CHROMIUM names another one) and npm. SPARKGATE_TEXT_MODEL: a folder made by models/make/build_text.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=$(realpath "${1:-${CARGO_TARGET_DIR:-target}/release}")
shots=${2:+$(realpath -m "$2")}
work=$(mktemp -d)
pids=()
stop() { for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done; wait 2>/dev/null || true; rm -rf "$work"; }
trap stop EXIT
[ -z "$shots" ] || mkdir -p "$shots"
cp "$here"/*.mjs "$work"
(cd "$work" && npm install --silent --no-audit --no-fund playwright-core@1.65.1 >/dev/null)
texts=
[ -z "${SPARKGATE_TEXT_MODEL:-}" ] || texts="\"$(realpath "$SPARKGATE_TEXT_MODEL")\""
# The shipped packs, live: one of them writes to the presses.
cat >"$work/sparkgate.toml" <<TOML
[gateway]
id = "site-a"
data_dir = "$work/data"
[mqtt]
listen = ["127.0.0.1:21885"]
[admin]
listen = "127.0.0.1:28785"
token_file = "$work/tokens"
[rules]
use_shipped = ["*"]
[models]
use_shipped = ["*"]
paths = [$texts]
TOML
echo "anna's own token" >"$work/token"
"$bin/sparkgate" passwd "$work/tokens" anna <"$work/token"
"$bin/sparkgate" run -c "$work/sparkgate.toml" >"$work/log" 2>&1 &
gateway=$!
pids+=("$gateway")
for _ in $(seq 600); do "$bin/sparkgate" status -c "$work/sparkgate.toml" >/dev/null 2>&1 && break; sleep 0.2; done
"$bin/firmware-sim" run --broker mqtt://127.0.0.1:21885 --nodes 6 --devices 8 --metrics 20 --rate 2 >/dev/null 2>&1 &
pids+=("$!")
cat >"$work/reload" <<RELOAD
printf '[writes]\nmax_per_second = 21\n[buffer]\nhot = { ttl = "59s", max = "64MiB" }\n' >>"$work/sparkgate.toml"
kill -HUP $gateway
RELOAD
cd "$work"
node drive.mjs http://127.0.0.1:28785 "$work/token" "$shots" "$(cat "$work/reload")" || { tail -n 20 "$work/log" >&2; exit 1; }
devices=${DEVICES:-5000}
[ "$devices" != 0 ] || exit 0
"$bin/firmware-sim" run --broker mqtt://127.0.0.1:21885 --group plantB --nodes 100 --devices $((devices / 100)) --metrics 10 --rate 0.1 >/dev/null 2>&1 &
pids+=("$!")
for _ in $(seq 120); do
  online=$("$bin/sparkgate" status -c "$work/sparkgate.toml" -o json | sed -n 's/.*"devices_online": \([0-9]*\).*/\1/p' || true)
  [ "${online:-0}" -ge $((devices / 100 * 100)) ] && break
  sleep 1
done
mkdir -p "${shots:-$work}/many"
node story.mjs http://127.0.0.1:28785 "$(cat "$work/token")" "${CHROMIUM:-/usr/bin/chromium}" "${shots:-$work}/many"
