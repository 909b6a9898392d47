#!/usr/bin/env bash
# Copies the documentation and what its pages link to, for the Debian package and the archive: documents.sh DIRECTORY
#
# The pages link to each other and to files whose places relative to them stay the same.
set -euo pipefail
cd "$(dirname "$0")/../.."
for file in *.md conformance/README.md e2e/README.md $(find docs deploy/monitoring deploy/kubernetes -type f); do
    install -D -m 644 "$file" "$1/$file"
done
install -D -m 644 -t "$1/examples" examples/*.yaml
