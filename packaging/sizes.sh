#!/usr/bin/env bash
# What each cargo feature costs: size of the stripped release binary, crates in the build, and time of a cold build.
# usage: packaging/sizes.sh [FEATURES…]      default: every set of docs/install.md; each is built from nothing, so this takes long
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(mktemp -d "${TMPDIR:-/tmp}/sparkgate-sizes.XXXXXX")
trap 'rm -rf "$target"' EXIT
cargo fetch --locked
sets=("$@")
[ ${#sets[@]} -gt 0 ] || sets=("" top cold demo cold,top cold,demo,top cold,demo,otlp,top cold,demo,rumqttd,top)
printf '%-24s %12s %8s %10s\n' features "MB" crates "cold build"
for features in "${sets[@]}"; do
  rm -rf "$target"/*
  options=(--no-default-features)
  [ -z "$features" ] || options+=(--features "$features")
  crates=$(cargo tree --locked -p sparkgate -e normal,build --prefix none --no-dedupe "${options[@]}" | sort -u | grep -c .)
  before=$SECONDS
  CARGO_TARGET_DIR=$target CARGO_INCREMENTAL=0 cargo build --quiet --release --locked --offline -p sparkgate --bin sparkgate "${options[@]}"
  printf '%-24s %12s %8s %9ss\n' "${features:-none}" \
    "$(stat -c %s "$target/release/sparkgate" | awk '{ printf "%.1f", $1 / 1e6 }')" "$crates" "$((SECONDS - before))"
done
