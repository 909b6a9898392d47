#!/usr/bin/env bash
# Builds the Debian package with Debian's own tools: build.sh PROGRAM VERSION OUTPUT
#
# cargo-deb would have to be compiled first, which takes longer than the package, and would list the files of `make install` again.
set -euo pipefail
umask 022
cd "$(dirname "$0")/../.."
program=$(realpath "$1") version=$2 output=$3
# The time of the files in the package: the same program makes the same package.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root

# kube-proxy is a name of other packages, and the link is for containers.
make --no-print-directory -s install FERROUTE="$program" PREFIX=/usr DESTDIR="$root" NAMES=ferroute \
    LINKS="kubectl-ferroute kubectl_complete-ferroute"
rm "$root/usr/share/man/man1/kube-proxy.1"
sed -Ei 's/\\fBkube\\-proxy\\fR\(1\), |, \\fBkube\\-proxy\\fR\(1\)//' "$root"/usr/share/man/man1/*.1
gzip -9n "$root"/usr/share/man/man1/*.1
install -D -m 644 deploy/systemd/config.yaml "$root/etc/ferroute/config.yaml"
install -d -m 755 "$root/etc/ferroute/manifests"
install -D -m 644 deploy/apparmor/ferroute "$root/etc/apparmor.d/ferroute"
mkdir -p "$root/usr/lib/systemd/system" "$root/DEBIAN" "$work/debian"
sed 's|/usr/local/bin/|/usr/bin/|' deploy/systemd/ferroute.service >"$root/usr/lib/systemd/system/ferroute.service"
install -D -m 644 LICENSE "$root/usr/share/doc/ferroute/copyright"
gzip -9nc CHANGELOG.md >"$root/usr/share/doc/ferroute/changelog.gz"
deploy/release/documents.sh "$root/usr/share/doc/ferroute"
ln -s copyright "$root/usr/share/doc/ferroute/LICENSE"

# The libraries that the program is linked with, in the versions that have its symbols.
printf 'Source: ferroute\n\nPackage: ferroute\nArchitecture: any\n' >"$work/debian/control"
depends=$(cd "$work" && dpkg-shlibdeps -O "$root/usr/bin/ferroute" 2>/dev/null | sed -n 's/^shlibs:Depends=//p')
sed "s|@VERSION@|$version|; s|@ARCHITECTURE@|$(dpkg --print-architecture)|; s|@DEPENDS@|$depends|" \
    deploy/debian/control >"$root/DEBIAN/control"
printf "%s\n" /etc/ferroute/config.yaml /etc/apparmor.d/ferroute >"$root/DEBIAN/conffiles"
install -m 755 deploy/debian/postinst deploy/debian/prerm deploy/debian/postrm "$root/DEBIAN"
(cd "$root" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum >DEBIAN/md5sums)
mkdir -p "$(dirname "$output")"
dpkg-deb --root-owner-group --build "$root" "$output"
