#!/usr/bin/env bash
# Packs the program with its manual pages, completions and documentation for any distribution, and for krew:
# dist.sh PROGRAM VERSION OUTPUT
# PROGRAM.debug, its debug information, is for the Debian package as well, and becomes a file of its own.
set -euo pipefail
umask 022
cd "$(dirname "$0")/../.."
program=$(realpath "$1") version=$2 output=$3
name=$(basename "$output" .tar.gz)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make --no-print-directory -s install FERROUTE="$program" PREFIX="/$name" DESTDIR="$work"
deploy/release/documents.sh "$work/$name"
install -m 644 LICENSE "$work/$name"
install -D -m 644 -t "$work/$name/systemd" deploy/systemd/*
install -D -m 644 -t "$work/$name/apparmor" deploy/apparmor/*
mkdir -p "$(dirname "$output")"
# The same contents make the same archive, up to the compiler.
date=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
tar --sort=name --mtime="@$date" --owner=0 --group=0 --numeric-owner -C "$work" -c "$name" | gzip -9n >"$output"
install -m 644 "$program.debug" "${output%.tar.gz}.debug"
echo "$output: version $version"
