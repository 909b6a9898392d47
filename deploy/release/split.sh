#!/usr/bin/env bash
# Writes a release build without debug information to OUTPUT, and its debug information to OUTPUT.debug: split.sh PROGRAM OUTPUT
#
# OUTPUT has the names of functions, which are enough for the backtrace of a panic. Debuggers and the program itself find lines
# in OUTPUT.debug, in the same directory or in /usr/lib/debug. `addr2line -e OUTPUT.debug` finds them for the addresses in a log.
set -euo pipefail
program=$(realpath "$1") output=$2
mkdir -p "$(dirname "$output")"
work=$(mktemp -d "$output.XXXXXX")
trap 'rm -rf "$work"' EXIT
name=$(basename "$output")
objcopy --only-keep-debug --compress-debug-sections=zlib "$program" "$work/$name.debug"
chmod 644 "$work/$name.debug"
(cd "$work" && objcopy --strip-debug --add-gnu-debuglink="$name.debug" "$program" "$name")
mv "$work/$name.debug" "$work/$name" "$(dirname "$output")"
