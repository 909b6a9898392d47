#!/usr/bin/env bash
# Finishes a release: finish.sh DIRECTORY VERSION URL HOMEPAGE
#
# DIRECTORY has the archives and packages of all architectures, which will be at URL. Adds the manifest for krew and SHA256SUMS.
set -euo pipefail
directory=$1 version=$2 url=$3 homepage=$4
manifest=$(dirname "$0")/../krew/ferroute.yaml
sum() {
    file=$directory/ferroute-$version-linux-$1.tar.gz
    [ -s "$file" ] && [ -s "$directory/ferroute_${version}_$1.deb" ] || { echo "files of $1 are missing" >&2; exit 1; }
    sha256sum "$file" | cut -d' ' -f1
}
amd64=$(sum amd64)
arm64=$(sum arm64)
sed "s|@VERSION@|$version|; s|@URL@|$url|; s|@HOMEPAGE@|$homepage|; s|@SHA256_AMD64@|$amd64|; s|@SHA256_ARM64@|$arm64|; /^#/d" \
    "$manifest" | sed "s|@VERSION@|$version|" >"$directory/krew-ferroute.yaml"
! grep -n '@[A-Z0-9_]*@' "$directory/krew-ferroute.yaml" || { echo "the manifest for krew is incomplete" >&2; exit 1; }
cd "$directory"
rm -f SHA256SUMS
sha256sum -- * >SHA256SUMS
cat SHA256SUMS
