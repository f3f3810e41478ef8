#!/usr/bin/env bash
# Drives the operator's page in headless Chromium against a gateway with a simulated fleet, and leaves screenshots to look at.
# usage: tests/page/run.sh PATH-OF-SPARKGATE-BINARY PATH-OF-FIRMWARE-SIM [DEVICES] [FOLDER]      needs chromium, Node.js with npm
set -euo pipefail
gateway=$(realpath "${1:?sparkgate binary}")
sim=$(realpath "${2:?firmware-sim binary}")
devices=${3:-5000}
out=$(realpath -m "${4:-page-shots}")
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$out"
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT
cp "$here/story.mjs" "$work/"
(cd "$work" && npm install --no-audit --no-fund --silent playwright-core@1.65.1)
echo 0123456789abcdef0123456789abcdef >"$work/token"
cat >"$work/gateway.toml" <<TOML
[gateway]
id = "site-a"
data_dir = "$work/data"
[mqtt]
listen = ["127.0.0.1:21883"]
[rules]
use_shipped = ["*"]
[models]
use_shipped = ["*"]
[admin]
listen = "127.0.0.1:28780"
token_file = "$work/token"
TOML
"$gateway" run -c "$work/gateway.toml" 2>"$out/gateway.log" &
"$sim" run --broker mqtt://127.0.0.1:21883 --nodes 100 --devices $((devices / 100)) --metrics 5 --rate 0.1 --seconds 900 >"$out/simulator.log" 2>&1 &
for _ in $(seq 120); do
  online=$("$gateway" status -c "$work/gateway.toml" -o json 2>/dev/null | sed -n 's/.*"devices_online": \([0-9]*\).*/\1/p' || true)
  [ "${online:-0}" -ge $((devices / 100 * 100)) ] && break
  sleep 1
done
node "$work/story.mjs" http://127.0.0.1:28780 "$(cat "$work/token")" "${CHROMIUM:-$(command -v chromium)}" "$out"
