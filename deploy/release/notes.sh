#!/usr/bin/env bash
# Prints the notes of a release, which are the section of its version in the changelog: notes.sh VERSION
set -euo pipefail
cd "$(dirname "$0")/../.."
notes=$(awk -v heading="## $1" '/^## /{ is_own = $0 == heading; next } is_own' CHANGELOG.md)
[ -n "$notes" ] || { echo "CHANGELOG.md has no section \"## $1\"" >&2; exit 1; }
printf '%s\n' "$notes"
