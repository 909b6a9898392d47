#!/usr/bin/env bash
# Installs, upgrades, removes and purges the package: test.sh PACKAGE NEWER_PACKAGE, as root.
#
# This happens in a copy of this system whose changes are kept in memory (overlayfs), in a chroot, with a network of its own, and
# with a program that records the calls of systemctl. The exit status is 77 where the kernel does not permit that.
set -euo pipefail
if [ "${1:-}" != inside ]; then
    old=$(realpath "$1") new=$(realpath "$2") deploy=$(realpath "$(dirname "$0")/..")
    unshare --mount --net --propagation private true || exit 77
    exec unshare --mount --net --propagation private "$0" inside "$old" "$new" "$deploy/../examples/nginx.yaml" "$deploy/release/links.sh"
fi
old=$2 new=$3 manifest=$4 links=$5
work=$(mktemp -d)
mount -t tmpfs tmpfs "$work"
servers=
# shellcheck disable=SC2086
trap 'kill $servers 2>/dev/null || true; umount -l "$work" && rmdir "$work"' EXIT
mkdir "$work"/{upper,work,root}
mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/work" "$work/root" || exit 77
root=$work/root
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs tmpfs "$root/tmp"
mount --bind /dev "$root/dev"
mkdir -p "$root/run/systemd/system"
cp "$old" "$root/tmp/old.deb"
cp "$new" "$root/tmp/new.deb"
cp "$manifest" "$root/tmp/nginx.yaml"
# `is-active` says yes once /tmp/active exists.
cat >"$root/tmp/systemctl" <<'END'
#!/bin/sh
echo "$*" >>/tmp/calls
case "$*" in *is-active*) [ -e /tmp/active ] ;; esac
END
chmod 755 "$root/tmp/systemctl"
systemctl=$(chroot "$root" sh -c 'command -v systemctl || echo /usr/bin/systemctl')
[ -e "$root$systemctl" ] || touch "$root$systemctl"
mount --bind "$root/tmp/systemctl" "$root$systemctl"

in_root() { chroot "$root" "$@"; }
fail() { echo "test.sh: $*" >&2; exit 1; }
calls() { cat "$root/tmp/calls" 2>/dev/null || true; rm -f "$root/tmp/calls"; }
version() { in_root dpkg-query -W -f '${Status} ${Version}' ferroute; }
export DEBIAN_FRONTEND=noninteractive

echo "== install"
in_root dpkg -i /tmp/old.deb >/dev/null
[ "$(calls)" = daemon-reload ] || fail "the unit was started or enabled"
in_root ferroute --version
in_root kubectl-ferroute status --help >/dev/null
in_root kubectl_complete-ferroute wa | grep -q ^wait
for file in /etc/ferroute/config.yaml /usr/lib/systemd/system/ferroute.service /usr/share/man/man1/ferroute-run.1.gz \
    /etc/apparmor.d/ferroute /usr/share/bash-completion/completions/ferroute /usr/share/doc/ferroute/copyright /usr/share/doc/ferroute/docs/deploy.md; do
    [ -s "$root$file" ] || fail "$file is missing"
done
program=$(sed -n 's/^ExecStart=\([^ ]*\).*/\1/p' "$root/usr/lib/systemd/system/ferroute.service")
[ -x "$root$program" ] || fail "the unit runs $program, which does not exist"
in_root dpkg --verify ferroute
broken=$("$links" "$root/usr/share/doc/ferroute")
[ -z "$broken" ] || fail "links of the documentation lead nowhere: $broken"
man=$root/usr/share/man/man1
missing=$(zcat "$man"/ferroute*.1.gz | sed -n '/^.SH "SEE ALSO"/,$p' | grep -oE '\\fB[a-z_\\-]+\\fR\(1\)' | sed 's/^\\fB//; s/\\fR(1)//; s/\\//g' | sort -u |
    while read -r page; do [ -e "$man/$page.1.gz" ] || echo "$page"; done)
[ -z "$missing" ] || fail "manual pages refer to others that are missing: $missing"

echo "== example"
# As the unit would, without systemd: the package's configuration, and the example as the only manifest.
example=$root/usr/share/doc/ferroute/examples/host.yaml
cp "$example" "$root/etc/ferroute/manifests/"
ip link set lo up
ip address add 192.0.2.80/32 dev lo
ip link add uplink type veth peer name other
ip link set other up
ip address add 198.51.100.1/24 dev uplink
ip link set uplink up
ip route add default via 198.51.100.2
for port in 8081 8082; do
    mkdir "$work/$port"
    echo "$port" >"$work/$port/index.html"
    python3 -m http.server --bind 192.0.2.80 --directory "$work/$port" "$port" >/dev/null 2>&1 &
    servers="$servers $!"
done
chroot "$root" ferroute run --config /etc/ferroute/config.yaml --manifests /etc/ferroute/manifests >"$work/log" 2>&1 &
servers="$servers $!"
answers() { for _ in $(seq "$2"); do curl -sf --max-time 2 "$1" || true; done | sort -u | tr '\n' ' '; }
for _ in $(seq 100); do
    [ -z "$(answers http://10.96.0.80/ 1)" ] || break
    sleep 0.1
done
# Forty requests reach the same one of two endpoints once in 2^39 runs.
for address in http://10.96.0.80/ http://198.51.100.1:30080/; do
    [ "$(answers "$address" 40)" = "8081 8082 " ] || fail "$address: $(answers "$address" 40) $(cat "$work/log")"
done
# shellcheck disable=SC2086
kill $servers
# shellcheck disable=SC2086
wait $servers 2>/dev/null || true
servers=
in_root ferroute run --cleanup >/dev/null 2>&1
rm "$root/etc/ferroute/manifests/host.yaml"

echo "== upgrade"
echo '# edited' >>"$root/etc/ferroute/config.yaml"
cp "$manifest" "$root/etc/ferroute/manifests/"
before=$(version)
in_root dpkg -i /tmp/new.deb >/dev/null
[ "$(version)" != "$before" ] || fail "the version is still $before"
grep -q '^# edited' "$root/etc/ferroute/config.yaml" || fail "the upgrade has replaced the configuration"
calls | grep -qx 'try-restart ferroute.service' || fail "the upgrade has not restarted the unit"

echo "== remove while the unit is not active"
rules() { in_root ferroute render --manifests /tmp/nginx.yaml --proxy-mode nftables | in_root nft -f -; }
tables() { in_root nft list tables | grep -c ferroute || true; }
rules
[ "$(tables)" != 0 ] || fail "there are no rules"
in_root dpkg -r ferroute >/dev/null
calls | grep -qx 'disable --now ferroute.service' || fail "the unit is still enabled"
[ "$(tables)" != 0 ] || fail "rules of another Ferroute are removed"
[ ! -e "$root/usr/bin/ferroute" ] && [ ! -L "$root/usr/bin/kubectl-ferroute" ] || fail "the program remains"
[ -e "$root/etc/ferroute/config.yaml" ] || fail "the configuration is removed"

echo "== remove while the unit is active"
in_root dpkg -i /tmp/new.deb >/dev/null
touch "$root/tmp/active"
in_root dpkg -r ferroute >/dev/null
[ "$(tables)" = 0 ] || fail "the rules of the unit remain"

echo "== purge"
in_root dpkg -P ferroute >/dev/null 2>&1
[ ! -e "$root/etc/ferroute/config.yaml" ] || fail "the configuration remains"
[ -e "$root/etc/ferroute/manifests/nginx.yaml" ] || fail "a file of the administrator is removed"
rm -r "$root/etc/ferroute"
left=$(cd "$work/upper" && find . ! -type d ! -type c | grep -vE '^\./(var/(lib/(dpkg|systemd)|log|cache)|etc/ld\.so\.cache|usr/share/info/dir)' || true)
left=$(printf '%s\n' "$left" | grep -i ferroute || true)
[ -z "$left" ] || fail "files remain: $left"
echo "the package installs, upgrades and removes cleanly"
