#!/usr/bin/env bash
# Builds the program of the image without the iptables programs, without shared libraries: static.sh OUTPUT
# Its debug information is written to OUTPUT.debug.
set -euo pipefail
cd "$(dirname "$0")/../.."
output=$1
# The C library is linked statically: since version 2.34, glibc's looks up names in files and by DNS without further libraries.
# Compact relocations are read by the C library that is linked; linkers that cannot write them ignore the option with a warning.
export RUSTFLAGS="-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs"
# With a target, these apply to the program only, and not to procedural macros, which the compiler loads as libraries.
target=$(rustc -vV | sed -n 's/^host: //p')
deploy/release/auditable.sh build --release --locked --bin ferroute --target "$target"
deploy/release/split.sh "${CARGO_TARGET_DIR:-target}/$target/release/ferroute" "$output"
