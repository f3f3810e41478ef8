#!/usr/bin/env bash
# Holds alert rules, dashboard and, of a running gateway, the metrics themselves to Prometheus' own checker.
# usage: docs/check-telemetry.sh [URL]      such as http://127.0.0.1:8780; needs promtool (Debian: prometheus) and python3
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
promtool check rules "$here/alerts.yml"
(cd "$here" && promtool test rules alerts.test.yml)
# Each query of the dashboard as a rule of its own, so that the checker reads it.
python3 - "$here/grafana-dashboard.json" >"$work/dashboard.yml" <<'PY'
import json, re, sys
board = json.load(open(sys.argv[1]))
ids = [panel["id"] for panel in board["panels"]]
assert len(ids) == len(set(ids)), "two panels of one id"
variables = {"$" + one["name"] for one in board["templating"]["list"]} | {"${" + one["name"] + "}" for one in board["templating"]["list"]}
rules = []
for panel in board["panels"]:
    where = panel["gridPos"]
    assert where["x"] + where["w"] <= 24, f'panel {panel["title"]} is wider than the board'
    assert panel["targets"], f'panel {panel["title"]} asks nothing'
    for target in panel["targets"]:
        for used in re.findall(r"\$\w+|\$\{\w+\}", target["expr"]):
            assert used in variables, f'{used} is no variable of the board'
        rules.append({"record": f'panel:{panel["id"]}_{target["refId"]}', "expr": target["expr"]})
json.dump({"groups": [{"name": "dashboard", "rules": rules}]}, sys.stdout)
PY
promtool check rules "$work/dashboard.yml"
[ $# = 0 ] || { curl -fsS "$1/metrics" | promtool check metrics && echo "metrics: names, kinds and helps are as Prometheus wants them"; }
