#!/usr/bin/env bash
# Builds the program of the image without the iptables programs, as small as it gets and without shared libraries: static.sh OUTPUT
set -euo pipefail
cd "$(dirname "$0")/../.."
output=$1
# The C library is linked statically: since version 2.34, glibc's looks up names in files and by DNS without further libraries.
# No tables for unwinding are written, since a panic aborts; those of the standard library are left out by the linker anyway.
# Compact relocations are read by the C library that is linked; linkers that cannot write them ignore the option with a warning.
export RUSTFLAGS="-C target-feature=+crt-static -C force-unwind-tables=no -C link-arg=-Wl,-z,pack-relative-relocs"
# With a target, these apply to the program only, and not to procedural macros, which the compiler loads as libraries.
target=$(rustc -vV | sed -n 's/^host: //p')
cargo build --release --locked --bin ferroute --target "$target"
install -D -m 755 "${CARGO_TARGET_DIR:-target}/$target/release/ferroute" "$output"
