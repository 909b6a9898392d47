#!/usr/bin/env bash
# Tests the files of a release: test.sh PROGRAM VERSION PACKAGE ARCHIVE, which `make deb` and `make dist` have built of PROGRAM.
#
# The same program makes the same bytes, in another directory, at another time, with another umask. The archive has
# the files that are installed. If `make helm-package` has packed the chart beside the archive, it is the chart of deploy/helm.
set -euo pipefail
cd "$(dirname "$0")/../.."
program=$1 version=$2 package=$3 archive=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "test.sh: $*" >&2; exit 1; }

echo "== the same bytes again"
umask 077
deploy/debian/build.sh "$program" "$version" "$work/package.deb" >/dev/null
cmp "$package" "$work/package.deb" || fail "the Debian package is not reproducible"
name=$(basename "$archive")
deploy/release/dist.sh "$program" "$version" "$work/again/$name" >/dev/null
cmp "$archive" "$work/again/$name" || fail "the archive is not reproducible"
cmp "$program.debug" "$work/again/${name%.tar.gz}.debug" || fail "the archive has other debug information than the program"

echo "== size of the program in the documentation"
documented=$(sed -n 's/.*the program (\([0-9]*\) MB on x86-64 .*/\1/p' docs/deploy.md)
size=$((($(stat -c %s "$program") + 500000) / 1000000))
# Other compilers make programs of other sizes.
[ "$(uname -m)" != x86_64 ] || { [ $((size - documented)) -ge -1 ] && [ $((size - documented)) -le 1 ]; } ||
    fail "docs/deploy.md says $documented MB, and the program has $size MB"

echo "== the oldest glibc in README.md"
documented=$(sed -n 's/.* glibc \([0-9.]*\) or newer.*/\1/p' README.md)
needed=$(readelf --version-info "$program" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -n 1)
# Releases are built on this version of Debian; others may have other symbols.
[ "$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" != bookworm ] || [ "$needed" = "GLIBC_$documented" ] ||
    fail "README.md says glibc $documented, and the program needs $needed"

echo "== contents of the archive"
tar -xzf "$archive" -C "$work"
root=$work/${name%.tar.gz}
[ "$("$root/bin/ferroute" --version)" = "$("$program" --version)" ] || fail "the archive has another program"
for file in bin/kubectl-ferroute LICENSE README.md CHANGELOG.md systemd/ferroute.service apparmor/ferroute share/man/man1/ferroute.1 \
    share/bash-completion/completions/ferroute docs/deploy.md examples/host.yaml; do
    [ -s "$root/$file" ] || fail "the archive has no $file"
done
broken=$(deploy/release/links.sh "$root")
[ -z "$broken" ] || fail "links of the documentation lead nowhere: $broken"

chart=$(dirname "$archive")/ferroute-$version.tgz
[ ! -e "$chart" ] || {
    echo "== contents of the chart's package"
    tar -xzf "$chart" -C "$work"
    # helm writes Chart.yaml again, and leaves out what .helmignore names.
    diff -r --exclude Chart.yaml --exclude test --exclude .helmignore deploy/helm "$work/ferroute" || fail "the package has another chart"
    grep -qx "version: $version" "$work/ferroute/Chart.yaml" || fail "the chart's package has another version"
}
echo "the files of a release are reproducible and complete"
