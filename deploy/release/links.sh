#!/usr/bin/env bash
# Prints the links and pictures of the pages below DIRECTORY that lead to no file: links.sh DIRECTORY
set -euo pipefail
cd "$1"
grep -roHE --include='*.md' '(\]\(|src(set)?=")[^])"#< ]+' . | sed -E 's/\]\(|src(set)?="//' | { grep -vE '^[^:]*:[a-z]+:' || true; } |
    while IFS=: read -r file link; do [ -e "${file%/*}/$link" ] || echo "${file#./}: $link"; done
