# Runs in a virtual machine (boot.sh) and tests the migration from kube-proxy's ipvs mode, with real virtual servers.
#
# The machine is a node with three pods and a client. The Service `web` is implemented by virtual servers like those of
# kube-proxy; rules, sets, addresses and virtual servers of other programs must not be changed.
set -eu # No pipefail: grep -q exits before reading all input.
. /files/cluster.sh

add_ipvs_rules() {
    ip link add kube-ipvs0 type dummy
    ip address add 10.96.0.1/32 dev kube-ipvs0
    ip address add fd00:96::1/128 dev kube-ipvs0 nodad
    ipset restore </files/kube-proxy-sets.txt
    iptables-restore --noflush </files/kube-proxy-rules.txt
    sed -e 's/--match-set KUBE-/&6-/' -e "s/10.244.0.0\/16/fd00:10:244::\/64/" </files/kube-proxy-rules.txt |
        ip6tables-restore --noflush
    for address in 10.96.0.1:80 192.0.2.1:80 192.0.2.1:30080 ${POD_NET}1:30080; do
        add_server -t $address ${POD_NET}{2,3,4}:8080
    done
    for address in [fd00:96::1]:80 [2001:db8::1]:80 [2001:db8::1]:30080 [${POD_NET6}1]:30080; do
        add_server -t $address [${POD_NET6}{2,3,4}]:8080
    done
    add_server -u 10.96.0.1:53 ${POD_NET}{2,3,4}:5353
    add_server -u 192.0.2.1:30053 ${POD_NET}{2,3,4}:5353
    add_server -u [fd00:96::1]:53 [${POD_NET6}{2,3,4}]:5353
}

add_server() {
    local kind=$1 address=$2
    shift 2
    ipvsadm -A $kind $address -s rr
    for real in "$@"; do ipvsadm -a $kind $address -r $real -m; done
}

check_cleanup() {
    echo "== kube-proxy --cleanup"
    add_ipvs_rules
    check_flows "kube-proxy's rules"
    ./kube-proxy --cleanup >cleanup.log 2>&1 || fail "kube-proxy --cleanup: $(cat cleanup.log)"
    check_clean "after the cleanup"
    ./kube-proxy --cleanup 2>&1 | grep -q "nothing to clean up" || fail "a second cleanup finds leftovers"
}

check_takeover() {
    echo "== ferroute takes over, mode $1"
    add_ipvs_rules
    /files/ferroute preflight --proxy-mode "$1" --hostname-override node-1 --manifests manifests >preflight.log 2>&1 ||
        fail "preflight exits with status $?"
    grep -q "switch from ipvs to $1 mode" preflight.log || fail "preflight: $(cat preflight.log)"
    open_connection service 10.96.0.1:80
    open_connection service6 fd00:96::1:80
    open_connection node-port 192.0.2.1:30080
    start_traffic
    start_proxy "$1"
    wait_for "removal of kube-proxy's rules" eval "! iptables-save | grep -q KUBE-IPVS-FILTER"
    wait_for "removal of virtual servers without connections" has_no_server 10.96.0.1:53
    end_traffic
    for name in service service6 node-port; do send_line $name "still here"; done
    for address in 10.96.0.1:80 [fd00:96::1]:80 192.0.2.1:30080; do
        has_no_server "$address" && fail "virtual server $address is removed although a connection is open"
    done
    ip link show kube-ipvs0 >/dev/null || fail "kube-ipvs0 is removed although connections are open"
    # Everything is removed once they are closed and their entries have expired, which takes two minutes.
    for name in service service6 node-port; do close_connection $name; done
    wait_for "end of all connections through virtual servers" eval "! ipvsadm -Ln | awk '\$1 == \"->\" && \$5 + \$6 > 0' | grep -q ."
    end_proxy
    start_proxy "$1"
    wait_for "removal of kube-ipvs0" eval "! ip link show kube-ipvs0"
    wait_for "removal of the sets" eval "! ipset list -n | grep -q KUBE-"
    check_flows "mode $1"
    dump_state | grep -e '^-A -[tuf] ' -e kube-ipvs0 -e theirs >after
    grep -e '^-A -[tuf] ' -e theirs before | diff - after || fail "objects of other programs have changed"
    /files/ferroute doctor --config config.yaml --manifests manifests --hostname-override node-1 >doctor.log 2>&1 ||
        fail "doctor: $(cat doctor.log)"
    end_proxy
    /files/ferroute run --cleanup >cleanup.log 2>&1 || fail "ferroute run --cleanup: $(cat cleanup.log)"
    check_clean "after mode $1"
}
ln -s /files/ferroute kube-proxy
mkdir manifests
cp /files/web.yaml manifests/
make_network
add_foreign_objects
dump_state >before
check_cleanup
check_takeover iptables
check_takeover nftables
echo "== $failures failures, $(cut -d. -f1 /proc/uptime) s"
[ $failures = 0 ]
