#!/usr/bin/env bash
# Plays scenarios in a lab of its own, so that several can run at the same time: run.sh CHECK-ARGUMENT...
# The arguments are those of check.py. The lab has its own network and processes; when this ends, for whatever reason, nothing
# of it is left. Requires root.
set -euo pipefail
LAB_DIR=$(mktemp -d "${TMPDIR:-/tmp}/lab.XXXXXX")
export LAB_DIR
trap 'rm -rf "$LAB_DIR"' EXIT
# `ip netns` keeps its names in this directory, which must exist to be replaced.
mkdir -p /run/netns
unshare --net --mount --pid --fork --kill-child --mount-proc bash -euc '
mount -t tmpfs none /run/netns
ip link set lo up
python3 "$@"' bash "$(dirname "$0")/check.py" "$@"
