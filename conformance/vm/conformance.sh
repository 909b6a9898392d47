# Runs in a virtual machine (boot.sh) and plays scenarios in ipvs mode against the release build:
#
#     /files: ferroute, the directory conformance without vm, and cases, a list of scenarios
set -eu

export LAB_DIR=/tmp/lab LAB_SLOWNESS=${LAB_SLOWNESS:-3} PYTHONDONTWRITEBYTECODE=1
modprobe dummy numdummies=0
modprobe -a ip_vs br_netfilter nf_conntrack_netlink
ln -s "$(cd /usr/sbin && echo python3.*)" /usr/sbin/python3
cd /files/conformance
python3 check.py --mode ipvs --source files \
    --proxy-cmd "/files/ferroute run --config {config} --manifests {manifests}" $(cat /files/cases)
