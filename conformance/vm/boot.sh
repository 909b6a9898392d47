#!/usr/bin/env bash
# Runs a script in a virtual machine with a Debian kernel, for features that the host's kernel may lack, such as ipvs:
#
#     [KERNEL_PACKAGE=NAME] conformance/vm/boot.sh STATE_DIR SCRIPT [FILE|DIRECTORY...]
#
# The bash script runs as root in an initramfs with busybox, the tools listed below, the kernel's network modules, and the
# files and directories in /files. Prints the script's output and exits with its status. Keeps the kernel and the initramfs
# in STATE_DIR. KERNEL_PACKAGE is a package that depends on the newest kernel of a series, or NAME@SUITE for that of another
# suite of Debian; the default is the distribution's own kernel. The machine is emulated, so neither root nor /dev/kvm is required; programs are about ten times slower. Exits with
# status 77 if no machine can be started here: on another architecture, without qemu, ipvsadm or iptables, or without Debian's
# packages.
#
# Other variables: VM_ACCEL=kvm, to use /dev/kvm; MORE_TOOLS, programs to add; MORE_TREES, directories to add at the same place, such as the library of an
# interpreter; VM_MEMORY in MiB; VM_TIMEOUT in seconds.
set -euo pipefail

TOOLS="bash ip ipset ipvsadm nft xtables-nft-multi xtables-legacy-multi ${MORE_TOOLS:-}"
KERNEL_PACKAGE=${KERNEL_PACKAGE:-linux-image-cloud-amd64}
# In seconds. Booting takes three seconds and a script a few minutes, on an idle machine.
TIMEOUT=${VM_TIMEOUT:-1200}

state=$1 script=$2
shift 2
export PATH="$PATH:/usr/sbin:/sbin"
unable() { echo "no virtual machine: $*" >&2; exit 77; }
[ "$(uname -m)" = x86_64 ] || unable "it requires an x86_64 host"
for program in qemu-system-x86_64 busybox ipvsadm xtables-nft-multi; do
    type -P $program >/dev/null || unable "$program is missing"
done
mkdir -p "$state"

# Uses the kernel of an earlier run, or else the newest package, because older ones disappear from Debian's servers. The
# package is only unpacked: installing it would install boot loaders and the like.
kernel_dir=$state/$KERNEL_PACKAGE
if [ ! -d "$kernel_dir" ]; then
    apt=()
    # The lists of another suite are apart from those of this system.
    case $KERNEL_PACKAGE in *@*)
        lists=$state/apt
        mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -n 1)
        [ -n "$mirror" ] || unable "apt knows no repository of Debian (run apt-get update?)"
        mkdir -p "$lists"/{lists,cache/archives}/partial
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror ${KERNEL_PACKAGE#*@} main" >"$lists/sources"
        apt=(-o "Dir::Etc::SourceList=$lists/sources" -o Dir::Etc::SourceParts=/dev/null -o "Dir::State::Lists=$lists/lists"
            -o "Dir::Cache=$lists/cache")
        apt-get "${apt[@]}" update -q || unable "cannot read the packages of ${KERNEL_PACKAGE#*@}"
    esac
    # Newer packages of kernels have their files in others.
    depends() { apt-cache "${apt[@]}" depends "$1" 2>/dev/null | awk "/ Depends: linux-($2)-/ {print \$2}"; }
    find_package() { depends "${KERNEL_PACKAGE%@*}" image; }
    package=$(find_package || true)
    if [ -z "$package" ] && [ "$(id -u)" = 0 ]; then
        apt-get update -q || true
        package=$(find_package || true)
    fi
    [ -n "$package" ] || unable "apt does not find $KERNEL_PACKAGE, which is a package of Debian (run apt-get update?)"
    rm -rf "$state/unpacked" "$state/packages"
    mkdir "$state/packages"
    (cd "$state/packages" && apt-get "${apt[@]}" download -q "$package" $(depends "$package" 'base|binary|modules')) ||
        unable "cannot download $package"
    for file in "$state"/packages/*.deb; do dpkg -x "$file" "$state/unpacked"; done
    rm -r "$state/packages"
    mv "$state/unpacked" "$kernel_dir"
fi
[ -e "$kernel_dir/lib" ] || ln -s usr/lib "$kernel_dir/lib"
kernel=$(find "$kernel_dir" -name 'vmlinuz*' | head -n 1)
release=$(ls "$kernel_dir/lib/modules")

root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mkdir -p "$root"/{bin,dev,etc,files,proc,run,sbin,sys,tmp,usr/sbin,var}
ln -s ../run "$root/var/run"
cp "$(command -v busybox)" "$root/bin/busybox"
ln -s ../bin/busybox "$root/sbin/modprobe"
cp /etc/protocols /etc/services "$root/etc/"
cp "$script" "$root/files/script"
[ $# = 0 ] || cp -r "$@" "$root/files/"
for tool in $TOOLS; do
    cp "$(type -P "$tool")" "$root/usr/sbin/${tool##*/}"
done
for tree in ${MORE_TREES:-}; do
    mkdir -p "$root${tree%/*}"
    tar -C / -c --exclude=__pycache__ --exclude=test --exclude='config-*' "${tree#/}" | tar -C "$root" -x
done
for backend in nft legacy; do
    for name in iptables ip6tables; do
        for verb in "" -save -restore; do
            ln -s xtables-$backend-multi "$root/usr/sbin/$name-$backend$verb"
            [ $backend = legacy ] || ln -s xtables-nft-multi "$root/usr/sbin/$name$verb"
        done
    done
done
extensions=$(ls -d /usr/lib/*/xtables)
{ find "$root" -type f ! -name '*.ko' ! -name '*.py'; ls "$extensions"/*.so; } | while read -r file; do
    ldd "$file" 2>/dev/null | grep -o '/[^ ]*' || true
done | sort -u | while read -r library; do
    [ -e "$library" ] && cp -L --parents "$library" "$root"
done
cp -r --parents "$extensions" "$root"

modules=lib/modules/$release
for part in net lib crypto arch/x86/crypto drivers/net/dummy.ko* drivers/net/veth.ko*; do
    (cd "$kernel_dir" && cp -r --parents "$modules"/kernel/$part "$root")
done
# Modules of newer kernels are compressed.
find "$root/$modules" -name '*.ko.xz' -exec busybox unxz {} +
cp "$kernel_dir/$modules"/modules.{builtin,order} "$root/$modules/"
busybox depmod -b "$root" "$release"

cat > "$root/init" <<'END'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/usr/sbin:/sbin:/bin HOME=/tmp
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs run /run
ip link set lo up
cd /tmp
bash /files/script
echo "script: status $?"
poweroff -f
END
chmod +x "$root/init"
(cd "$root" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) > "$state/initramfs.gz"

timeout "$TIMEOUT" qemu-system-x86_64 -accel "${VM_ACCEL:-tcg,thread=multi}" -cpu max -smp 1 -m "${VM_MEMORY:-512}" -nodefaults -no-user-config \
    -display none -no-reboot -serial stdio -monitor none -kernel "$kernel" -initrd "$state/initramfs.gz" \
    -append "console=ttyS0 quiet loglevel=4 panic=-1 mitigations=off random.trust_cpu=on tsc=reliable no_timer_check" </dev/null |
    sed -u 's/\r//g' | tee "$state/log"
status=$(sed -n 's/^script: status //p' "$state/log")
# Without a status, the machine did not reach the end of the script.
exit "${status:-1}"
