#!/usr/bin/env bash
# Makes the Debian package. usage: packaging/deb.sh PATH-OF-SPARKGATE-BINARY [TARGET-TRIPLE]
# Needs cargo-deb (`cargo install cargo-deb`). For another architecture set SPARKGATE_GENERATOR to a sparkgate that runs here.
set -euo pipefail
binary=$(realpath "${1:?path of the sparkgate binary}")
triple=${2:-}
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-target}
stage=$target/package
rm -rf "$stage"
mkdir -p "$stage"
packaging/stage.sh "${SPARKGATE_GENERATOR:-$binary}" "$stage"
# cargo-deb takes the binary from where cargo puts one, and the staged files by the same folder's name.
folder=$target${triple:+/$triple}/release
mkdir -p "$folder"
[ "$binary" -ef "$folder/sparkgate" ] || install -m 755 "$binary" "$folder/sparkgate"
[ "$stage" = target/package ] || { mkdir -p target && ln -sfn "$(realpath "$stage")" target/package; }
cargo deb --no-build --no-strip ${triple:+--target "$triple"}
