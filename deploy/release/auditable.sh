#!/usr/bin/env bash
# Runs a command of Cargo so that the programs list their dependencies, for scanners of vulnerabilities: auditable.sh build FLAGS...
# Installs cargo-auditable unless it is installed. Without a command, that is all.
set -euo pipefail
# The flags of the program are not for the tool: it could not load procedural macros if they were linked statically.
command -v cargo-auditable >/dev/null || env -u RUSTFLAGS cargo install -q --locked cargo-auditable@0.7.7
[ $# = 0 ] || exec cargo auditable "$@"
