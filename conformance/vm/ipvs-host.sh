# Runs in a virtual machine (boot.sh) and tests ipvs mode on a node whose sysctls, routes, addresses, firewall and sets other
# programs change: /files has ferroute, cluster.sh, ipvs-differences.sh and web.yaml, and parts, which names the parts to run; `large-`
# before a name runs the part while sets of both IP families have more than 65,536 entries.
set -eu # No pipefail: grep -q exits before reading all input.
. /files/cluster.sh
. /files/ipvs-differences.sh

FLOWS="$FLOWS pod-5,10.96.0.1:80 pod-5,fd00:96::1:80"

is_active() { has_server "10.96.0.1:80 -r" && has_server "[fd00:96::1]:80 -r"; }
# Whether sets have more entries than kube-proxy creates them for.
LARGE=
LARGE_SETS="KUBE-LOAD-BALANCER-SOURCE-CIDR KUBE-6-LOAD-BALANCER-SOURCE-CID"
# Adds a Service with 70,001 source ranges of each IP family, the client's network among them.
add_large() {
    {
        printf '  loadBalancerSourceRanges:\n  - 192.0.2.0/24\n  - "2001:db8::/64"\n'
        awk 'BEGIN { for (i = 0; i < 70000; i++) printf "  - 100.%d.%d.%d/32\n  - \"2001:db8:%x::%x/128\"\n", 64 + i / 65536, i / 256 % 256, i % 256, i / 65536 + 256, i % 65536 }'
    } >ranges
    service large 40 LoadBalancer node-1 "$(cat ranges)" 'status: {loadBalancer: {ingress: [{ip: 203.0.113.40}, {ip: "2001:db8:5::40"}]}}'
}
has_large() {
    local set
    for set in $LARGE_SETS; do [ "$(ipset list -t $set | sed -n 's/^Number of entries: //p')" -ge 70001 ] || return; done
}
check_large() {
    local address
    wait_for "all entries of $LARGE_SETS" has_large
    for address in 203.0.113.40:80 2001:db8:5::40:80; do
        case $(inside client bash -c "request $address" || true) in pod-*) ;; *) fail "$1: no answer at $address" ;; esac
    done
    ! grep -q "is full" proxy.log || fail "$1: a set is full"
}
# launch [LINE...]: starts the proxy with these lines of configuration.
launch() {
    settings ipvs "$@"
    [ -z "$LARGE" ] || add_large
    run_proxy
}
# start [LINE...]: launches the proxy and waits for its first sync.
start() {
    launch "$@"
    # The objects of an earlier proxy may be there already.
    wait_for "the first sync" eval "is_active && /files/ferroute status"
    [ -z "$LARGE" ] || check_large "start"
}
# Ends the proxy, removes everything of it, and checks that.
finish() {
    [ -z "$LARGE" ] || check_large "$1"
    end_proxy
    rm -f manifests/*.yaml
    cp /files/web.yaml manifests/
    /files/ferroute run --cleanup >cleanup.log 2>&1 || fail "ferroute run --cleanup: $(cat cleanup.log)"
    check_clean "$1"
}
has_sysctl() { [ "$(sysctl -n "$1")" = "$2" ]; }
has_address() { ip -o address show dev kube-ipvs0 | grep -qF " $1/"; }
# has_local_route ADDRESS: reports whether the host accepts packets to it.
has_local_route() {
    local version=-4
    case $1 in *:*) version=-6 ;; esac
    ip $version route show table local | grep -q "^local $1 "
}
lacks() { ! "$@"; }

# Writes a Service: name, number, type, more lines of its specification. Its endpoints are those of `web`, or all on node $POD.
# service NAME NUMBER TYPE NODE [LINE...]
service() {
    local name=$1 number=$2 type=$3 node=$4 family address
    shift 4
    {
        printf '%s\n' "apiVersion: v1" "kind: Service" "metadata: {name: $name, annotations: {${ANNOTATIONS:-}}}" "spec:" \
            "  type: $type" "  clusterIP: 10.96.0.$number" "  clusterIPs: [10.96.0.$number, \"fd00:96::$number\"]" \
            "  ipFamilies: [IPv4, IPv6]" "  ports: [{name: tcp, port: 80, nodePort: 301$number}]" "$@"
        for family in 4 6; do
            address=$POD_NET
            [ $family = 4 ] || address=$POD_NET6
            printf '%s\n' "---" "apiVersion: discovery.k8s.io/v1" "kind: EndpointSlice" \
                "metadata: {name: $name-$family, labels: {kubernetes.io/service-name: $name}, annotations: {${WEIGHTS:-}}}" \
                "addressType: IPv$family" "ports: [{name: tcp, port: 8080}]" \
                "endpoints: [{addresses: [\"${address}2\"], nodeName: $node}, {addresses: [\"${address}3\"], nodeName: $node}]"
        done
    } >$name.new
    mv $name.new manifests/$name.yaml
}

# findings CONDITION: the codes of what `doctor` finds, of findings of which the condition holds, an expression of Python.
findings() {
    /files/ferroute doctor -o json >doctor.json 2>doctor.log || true
    python3 - "$1" <<'PYTHON' || echo "no findings: $(cat doctor.log)"
import json, sys
print(*[finding["code"] for finding in json.load(open("doctor.json"))["findings"] if eval(sys.argv[1])])
PYTHON
}

# The commands without flags are about the running proxy.
part_commands() {
    echo "== commands without flags"
    start
    local command
    /files/ferroute explain service default/web >explain.log 2>&1 || fail "explain: $(cat explain.log)"
    grep -q 'ipvs  -a -t 10.96.0.1:80 -r 10.244.0.2:8080 -m -w 1' explain.log || fail "explain: $(cat explain.log)"
    /files/ferroute trace --from 10.244.0.5 --to service/web:tcp >trace.log 2>&1 || fail "trace: $(cat trace.log)"
    /files/ferroute trace --from 10.244.0.5 --to service/web:tcp --kernel >trace-kernel.log 2>&1 || fail "trace --kernel: $(cat trace-kernel.log)"
    grep -q 10.244.0.4:8080 trace.log && grep -q 10.244.0.4:8080 trace-kernel.log || fail "trace: $(cat trace.log trace-kernel.log)"
    for command in diff status doctor "top --once --interval 1s" preflight; do
        /files/ferroute $command >command.log 2>&1 || fail "$command: $(cat command.log)"
        grep -q 'ipvs' command.log || fail "$command is not about ipvs mode: $(cat command.log)"
    done
    finish commands
}

part_repair() {
    echo "== repair of sysctls, addresses and routes"
    local name address
    start "ipvs: {strictARP: true, tcpTimeout: 801s}" "conntrack: {tcpBeLiberal: true}"
    ipvsadm --set 100 50 60
    wait_for "the repair of timeouts" eval '[ "$(ipvsadm -L --timeout)" = "Timeout (tcp tcpfin udp): 801 50 60" ]'
    sysctl -qw net.netfilter.nf_conntrack_tcp_be_liberal=0
    wait_for "the repair of a sysctl of the configuration" has_sysctl net.netfilter.nf_conntrack_tcp_be_liberal 1
    sysctl -qw net.ipv4.vs.conntrack=0 net.ipv4.vs.expire_nodest_conn=0 net.ipv4.conf.all.arp_ignore=0
    for name in vs.conntrack vs.expire_nodest_conn conf.all.arp_ignore; do
        wait_for "the repair of $name" has_sysctl net.ipv4.$name 1
    done
    ip route flush table local dev kube-ipvs0
    ip -6 route flush table local dev kube-ipvs0
    for address in 10.96.0.1 fd00:96::1; do wait_for "the repair of the route to $address" has_local_route $address; done
    check_flows "repaired routes"
    ip address delete 10.96.0.1/32 dev kube-ipvs0
    ip address delete fd00:96::1/128 dev kube-ipvs0
    for address in 10.96.0.1 fd00:96::1; do
        wait_for "the repair of $address" has_address $address
        has_local_route $address || fail "no route to $address"
    done
    check_flows "repaired addresses"
    sysctl -qw net.ipv6.conf.kube-ipvs0.disable_ipv6=1
    wait_for "IPv6 on the device" has_sysctl net.ipv6.conf.kube-ipvs0.disable_ipv6 0
    wait_for "the repair of IPv6 addresses" has_address fd00:96::1
    check_flows "IPv6 that was disabled"

    echo "== repair of limits, masks and exceptions"
    service sticky 60 LoadBalancer node-1 "  sessionAffinity: ClientIP" "  loadBalancerSourceRanges: [192.0.2.0/24]" \
        "status: {loadBalancer: {ingress: [{ip: 203.0.113.60}]}}"
    wait_for "virtual servers with affinity" has_server "203.0.113.60:80 -r"
    ipvsadm -E -t 10.96.0.60:80 -s rr -p 10800 -M 255.255.255.0
    ipvsadm -e -t 10.96.0.60:80 -r ${POD_NET}2:8080 -m -w 1 -x 5 -y 2
    ipset -exist add KUBE-LOAD-BALANCER-SOURCE-CIDR 203.0.113.60,tcp:80,192.0.2.0/24 nomatch
    wait_for "the repair of the mask" eval "ipvsadm -Sn | grep -qxF -- '-A -t 10.96.0.60:80 -s rr -p 10800'"
    wait_for "the repair of limits" lacks eval "ipvsadm -Ln --thresholds | grep -q '${POD_NET}2:8080 *5 '"
    wait_for "the repair of a source range" lacks eval "ipset list KUBE-LOAD-BALANCER-SOURCE-CIDR | grep -q nomatch"
    case $(inside client bash -c "request 203.0.113.60:80" || true) in pod-*) ;; *) fail "no answer to a permitted source" ;; esac
    echo "== virtual servers that another program replaces"
    local server
    local -A servers
    is_restored() { [ "$(ipvsadm -Sn | grep -F -- " -t $server ")" = "${servers[$server]}" ]; }
    replace() {
        ipvsadm -D -t $server
        ipvsadm -A -t $server -s wlc -p 77
        case $server in
            *]*) ipvsadm -a -t $server -r [2001:db8::2]:80 -g && ipvsadm -a -t $server -r [${POD_NET6}2]:8080 -g ;;
            *) ipvsadm -a -t $server -r 192.0.2.2:80 -g && ipvsadm -a -t $server -r ${POD_NET}2:8080 -i ;;
        esac
    }
    for server in 10.96.0.60:80 [fd00:96::60]:80 192.0.2.1:30160; do
        servers[$server]=$(ipvsadm -Sn | grep -F -- " -t $server ")
        replace
        wait_for "the repair of $server" is_restored
    done
    end_proxy
    for server in "${!servers[@]}"; do replace; done
    /files/ferroute diff --config config.yaml --manifests manifests --hostname-override node-1 >diff.log 2>&1 || true
    for server in 10.96.0.60:80/tcp "node port 30160/tcp" "[fd00:96::60]:80/tcp"; do
        grep -qF "$server: missing endpoints" diff.log || fail "diff, $server: $(cat diff.log)"
    done
    start "ipvs: {strictARP: true}"
    for server in "${!servers[@]}"; do wait_for "the repair of $server by a restart" is_restored; done
    rm manifests/sticky.yaml
    wait_for "the removal of a Service" lacks has_server 203.0.113.60:80

    echo "== the device is deleted while no proxy runs"
    end_proxy
    ip link delete kube-ipvs0
    /files/ferroute run --cleanup >cleanup.log 2>&1 || fail "ferroute run --cleanup: $(cat cleanup.log)"
    sysctl -qw net.ipv4.conf.all.arp_ignore=0 net.ipv4.conf.all.arp_announce=0
    check_clean "cleanup without the device"
    start
    end_proxy
    ip link delete kube-ipvs0
    settings iptables
    run_proxy
    wait_for "the removal of virtual servers without the device" lacks eval "has_server 10.96.0.1:80 || has_server [fd00:96::1]:80"
    check_foreign_servers "a switch without the device"
    end_proxy
    start "ipvs: {strictARP: true}"

    echo "== the end of strict ARP"
    # The former values outlive the device, and stand beside the text of another program.
    ip link delete kube-ipvs0
    wait_for "the device with an alias" eval "ip link show dev kube-ipvs0 | grep -q 'arp_ignore and arp_announce were 0 0'"
    wait_for "the addresses of a new device" has_address 10.96.0.1
    settings ipvs
    wait_for "the former arp_ignore" has_sysctl net.ipv4.conf.all.arp_ignore 0
    wait_for "the former arp_announce" has_sysctl net.ipv4.conf.all.arp_announce 0
    # Other former values, and restarts.
    sysctl -qw net.ipv4.conf.all.arp_announce=1
    ip link set dev kube-ipvs0 alias theirs
    settings ipvs "ipvs: {strictARP: true}"
    wait_for "strict ARP" has_sysctl net.ipv4.conf.all.arp_announce 2
    end_proxy
    start "ipvs: {strictARP: true}"
    sysctl_is net.ipv4.conf.all.arp_ignore 1
    end_proxy
    start
    sysctl_is net.ipv4.conf.all.arp_ignore 0
    sysctl_is net.ipv4.conf.all.arp_announce 1
    ip link show dev kube-ipvs0 | grep -q 'alias theirs$' || fail "alias: $(ip link show dev kube-ipvs0)"
    settings ipvs "ipvs: {strictARP: true}"
    wait_for "strict ARP" has_sysctl net.ipv4.conf.all.arp_announce 2
    finish repair
    sysctl_is net.ipv4.conf.all.arp_ignore 0
    sysctl_is net.ipv4.conf.all.arp_announce 1
    # The administrator's own strict ARP stays.
    sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2
    start "ipvs: {strictARP: true}"
    end_proxy
    start
    finish "strict ARP of the administrator"
    sysctl_is net.ipv4.conf.all.arp_ignore 1
    sysctl -qw net.ipv4.conf.all.arp_ignore=0 net.ipv4.conf.all.arp_announce=0
}

# Addresses of other hosts become addresses of this node, on all ports, if a Service has them: they are refused.
part_reserved() {
    echo "== external IPs that other hosts have"
    local address
    inside client ip address add 192.0.2.3/24 dev eth0
    inside client ip address add 192.0.2.4/24 dev eth0
    inside client ip address add 2001:db8::3/64 dev eth0 nodad
    # The other ends of tunnels.
    inside client ip address add 192.0.2.8/24 dev eth0
    inside client ip address add 192.0.2.9/24 dev eth0
    inside client ip address add 2001:db8::8/64 dev eth0 nodad
    modprobe -a ipip ip_gre ip6_tunnel
    ip link add ends-ipip type ipip local 192.0.2.1 remote 192.0.2.8
    ip link add ends-gre type gre local 192.0.2.1 remote 192.0.2.9
    ip link add ends-v6 type ip6tnl local 2001:db8::1 remote 2001:db8::8
    cat >manifests/nodes.yaml <<'YAML'
apiVersion: v1
kind: Node
metadata: {name: node-2}
status: {addresses: [{type: InternalIP, address: 192.0.2.3}, {type: InternalIP, address: "2001:db8::3"}]}
---
apiVersion: v1
kind: Service
metadata: {name: kubernetes, namespace: default}
spec: {clusterIP: 10.96.0.10, ports: [{name: https, port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes, namespace: default, labels: {kubernetes.io/service-name: kubernetes}}
addressType: IPv4
ports: [{name: https, port: 6443}]
endpoints: [{addresses: [192.0.2.4]}]
YAML
    # The default gateway, and an address of nobody else; then another node, and the host of the API server.
    service taken 20 LoadBalancer node-1 '  externalIPs: [192.0.2.2, "2001:db8::2", 192.0.2.8, 192.0.2.9, "2001:db8::8", 203.0.113.50, "2001:db8:5::50"]' \
        'status: {loadBalancer: {ingress: [{ip: 192.0.2.3}, {ip: "2001:db8::3"}, {ip: 192.0.2.4}]}}'
    start
    wait_for "the other external IPs" eval "has_address 203.0.113.50 && has_address 2001:db8:5::50"
    local others="192.0.2.2 192.0.2.3 192.0.2.4 192.0.2.8 192.0.2.9 2001:db8::2 2001:db8::3 2001:db8::8"
    for address in $others; do
        ! has_address $address || fail "$address of another host is an address of the node"
        has_no_server "$address:80" || fail "virtual server at $address of another host"
        busybox ping -c 1 -W 10 $address >/dev/null || fail "$address cannot be reached"
    done
    for address in 203.0.113.50:80 2001:db8:5::50:80; do
        case $(inside client bash -c "request $address" || true) in pod-*) ;; *) fail "no answer at $address" ;; esac
    done
    /files/ferroute explain service default/taken -o json >explain.log 2>&1 || fail "explain: $(cat explain.log)"
    ! /files/ferroute check --proxy-mode ipvs --hostname-override node-1 manifests >check.log 2>&1 || fail "check: $(cat check.log)"
    for address in $others; do
        grep -qF "$address" check.log || fail "check says nothing about $address: $(cat check.log)"
    done
    ! grep -qE "203.0.113.50|2001:db8:5::50" check.log || fail "check: $(cat check.log)"
    [ "$(grep -c '"reserved": "otherHost"' explain.log)" = 8 ] || fail "explain: $(cat explain.log)"
    # An address that becomes another host's later.
    service taken 20 LoadBalancer node-1 '  externalIPs: [192.0.2.6]'
    wait_for "an external IP" has_address 192.0.2.6
    sed -e 's/192\.0\.2\.3/192.0.2.6/; s/2001:db8::3/2001:db8::6/; s/node-2/node-3/; /^---/,$d' manifests/nodes.yaml >node.new
    mv node.new manifests/node-3.yaml
    wait_for "the removal of an external IP that is a node's now" lacks has_address 192.0.2.6
    for address in ends-ipip ends-gre ends-v6; do ip link delete $address; done
    for address in 192.0.2.3/24 192.0.2.4/24 192.0.2.8/24 192.0.2.9/24 2001:db8::3/64 2001:db8::8/64; do inside client ip address delete $address dev eth0; done
    finish reserved
}

part_firewall() {
    echo "== firewalls in INPUT"
    local iptables flow findings
    busybox nc -ll -p 9999 -e busybox echo process &
    local listener=$!
    for iptables in iptables ip6tables; do
        $iptables -P INPUT DROP
        $iptables -A INPUT -i lo -j ACCEPT
        $iptables -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    done
    ip6tables -A INPUT -p ipv6-icmp -j ACCEPT
    start
    check_flows "INPUT with policy DROP"
    for flow in 192.0.2.1:9999 10.96.0.1:9999 2001:db8::1:9999; do
        [ "$(inside client timeout 5 bash -c "request $flow" 2>&1)" != process ] || fail "the firewall lets packets to $flow pass"
    done
    # The kernel's counters of the conntrack table, which another part moves, cannot be set to 0.
    findings=$(findings 'finding["severity"] != "note" and finding["check"] != "conntrack-table"')
    [ -z "$findings" ] || fail "doctor: $findings: $(cat doctor.json)"
    echo "== translations of other programs"
    nft "table ip theirs { chain late { type nat hook postrouting priority 110; ip saddr 198.51.100.0/24 masquerade; }; }"
    findings=$(findings 'finding["check"] == "earlier-translation"')
    [ -z "$findings" ] || fail "doctor: $findings: $(cat doctor.json)"
    nft "table ip theirs { chain early { type nat hook prerouting priority -110; tcp dport 30080 dnat to 198.51.100.1; }; }"
    findings=$(findings 'finding["check"] == "earlier-translation" and "30080 dnat to" in str(finding)')
    [ -n "$findings" ] || fail "doctor finds no earlier translation: $(cat doctor.json)"
    nft delete table ip theirs
    echo "== a last rule that rejects"
    for iptables in iptables ip6tables; do
        $iptables -P INPUT ACCEPT
        $iptables -A INPUT -j REJECT
    done
    check_flows "INPUT with REJECT"
    # A firewall that starts after the proxy, and replaces all rules of INPUT.
    for iptables in iptables ip6tables; do
        $iptables -F INPUT
        $iptables -A INPUT -i lo -j ACCEPT
        $iptables -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
        [ $iptables = iptables ] || $iptables -A INPUT -p ipv6-icmp -j ACCEPT
        $iptables -A INPUT -j REJECT
    done
    for iptables in iptables ip6tables; do
        wait_for "the jump to KUBE-IPVS-ACCEPT" eval "$iptables -S INPUT | grep -q KUBE-IPVS-ACCEPT"
    done
    check_flows "a firewall that was reloaded"
    kill $listener
    for iptables in iptables ip6tables; do $iptables -F INPUT; done
    echo "== a firewall in OUTPUT"
    # All packets that ipvs forwards pass it, with the address of the endpoint.
    local network answer
    brief_request() { timeout 5 bash -c "request $1"; }
    export -f brief_request
    for iptables in iptables ip6tables; do
        $iptables -P OUTPUT DROP
        $iptables -A OUTPUT -o lo -j ACCEPT
        $iptables -A OUTPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
        [ $iptables = iptables ] || $iptables -A OUTPUT -p ipv6-icmp -j ACCEPT
    done
    for flow in client,10.96.0.1:80 client,2001:db8::1:30080 pod-5,fd00:96::1:80 node,10.96.0.1:80; do
        answer=$(from $flow brief_request 2>&1 || true)
        case $answer in pod-*) fail "the firewall lets packets of $flow pass" ;; esac
    done
    findings=$(findings 'finding["check"] == "firewall-tables"')
    [ "$findings" = "firewall-tables.node firewall-tables.node firewall-tables.others firewall-tables.others" ] ||
        fail "doctor, OUTPUT: $findings: $(cat doctor.json)"
    for network in ${POD_NET}0/24 ${POD_NET6}/64; do
        iptables=iptables
        [ $network = ${POD_NET}0/24 ] || iptables=ip6tables
        $iptables -A OUTPUT -d $network -j ACCEPT
    done
    check_flows "a firewall in OUTPUT that accepts packets to pods"
    findings=$(findings 'finding["check"] == "firewall-tables"')
    [ -z "$findings" ] || fail "doctor, OUTPUT: $findings: $(cat doctor.json)"
    for iptables in iptables ip6tables; do
        $iptables -P OUTPUT ACCEPT
        $iptables -F OUTPUT
        $iptables -A OUTPUT -j KUBE-FIREWALL
    done
    for iptables in iptables ip6tables; do
        $iptables -A INPUT -j THEIRS
        $iptables -A INPUT -j KUBE-FIREWALL
    done
    finish firewall
}

# Node ports at addresses that come and go. Virtual servers of other programs stay.
part_addresses() {
    echo "== addresses that leave the host"
    local address server
    ipvsadm -A -t 192.0.2.77:8888 -s rr
    ipvsadm -A -t [2001:db8::77]:8888 -s rr
    come() {
        inside client ip address delete 192.0.2.77/24 dev eth0 2>/dev/null || true
        inside client ip address delete 2001:db8::77/64 dev eth0 2>/dev/null || true
        ip address add 192.0.2.77/24 dev lan
        ip address add 2001:db8::77/64 dev lan nodad
    }
    # They move to another host, the client.
    go() {
        ip address delete 192.0.2.77/24 dev lan
        ip address delete 2001:db8::77/64 dev lan
        inside client ip address add 192.0.2.77/24 dev eth0
        inside client ip address add 2001:db8::77/64 dev eth0 nodad
    }
    has_node_ports() { for server in -t\ 192.0.2.77:30080 -t\ [2001:db8::77]:30080 -u\ 192.0.2.77:30053; do has_server "$server -r" || return; done; }
    has_no_node_ports() { for server in 192.0.2.77:30080 [2001:db8::77]:30080 192.0.2.77:30053; do has_no_server "$server" || return; done; }
    others_stay() {
        for server in 192.0.2.77:8888 [2001:db8::77]:8888; do has_server "$server" || fail "$1: virtual server $server is gone"; done
        check_foreign_servers "$1"
    }
    inside client busybox nc -ll -p 30080 -e busybox echo elsewhere &
    local listener=$!
    start
    come
    wait_for "node ports at a new address" has_node_ports
    go
    wait_for "the removal of node ports with their address" has_no_node_ports
    others_stay "after an address left"
    for address in 192.0.2.77:30080 2001:db8::77:30080; do
        [ "$(timeout 15 bash -c "request $address")" = elsewhere ] || fail "$address is not the other host's"
    done
    echo "== addresses that leave and return"
    come
    wait_for "node ports at a new address" has_node_ports
    open_connection returns 192.0.2.77:30080
    open_connection returns6 2001:db8::77:30080
    local left returned
    left=$(cut -d. -f1 /proc/uptime)
    ip address delete 192.0.2.77/24 dev lan
    ip address delete 2001:db8::77/64 dev lan
    sleep 3
    come
    returned=$(cut -d. -f1 /proc/uptime)
    # The machine may have been paused for longer than node ports stay.
    if [ $((returned - left)) -lt 8 ]; then
        send_line returns "after the address returned"
        send_line returns6 "after the address returned"
    fi
    close_connection returns
    close_connection returns6
    go
    echo "== addresses that leave while no proxy runs"
    come
    wait_for "node ports at a new address" has_node_ports
    end_proxy
    go
    start
    wait_for "the removal of node ports by the next start" has_no_node_ports
    others_stay "after a restart"
    echo "== cleanup after an address left"
    come
    wait_for "node ports at a new address" has_node_ports
    end_proxy
    go
    /files/ferroute run --cleanup >cleanup.log 2>&1 || fail "ferroute run --cleanup: $(cat cleanup.log)"
    has_no_node_ports || fail "node ports after the cleanup: $(ipvsadm -Sn)"
    others_stay "after the cleanup"
    kill $listener
    inside client ip address delete 192.0.2.77/24 dev eth0
    inside client ip address delete 2001:db8::77/64 dev eth0
    ipvsadm -D -t 192.0.2.77:8888
    ipvsadm -D -t [2001:db8::77]:8888
    start
    finish addresses
}

# type_of SET: prints its type and header.
type_of() { ipset list -t "$1" | sed -n 's/^\(Type\|Header\): //p' | tr '\n' ' '; }
is_type() { case $(type_of "$1") in $2*) ;; *) return 1 ;; esac; }
check_sets() {
    local set
    for set in KUBE-CLUSTER-IP "KUBE-EXTERNAL-IP"; do is_type $set "hash:ip,port family inet hashsize" || fail "$1: $set is $(type_of $set)"; done
    is_type KUBE-6-CLUSTER-IP "hash:ip,port family inet6" || fail "$1: KUBE-6-CLUSTER-IP is $(type_of KUBE-6-CLUSTER-IP)"
    is_type KUBE-LOOP-BACK "hash:ip,port,ip family inet hashsize 1024 maxelem 65536" || fail "$1: KUBE-LOOP-BACK is $(type_of KUBE-LOOP-BACK)"
    is_type KUBE-NODE-PORT-TCP "bitmap:port range 0-65535" || fail "$1: KUBE-NODE-PORT-TCP is $(type_of KUBE-NODE-PORT-TCP)"
    ! type_of KUBE-EXTERNAL-IP | grep -qE "timeout|comment|counters" || fail "$1: KUBE-EXTERNAL-IP is $(type_of KUBE-EXTERNAL-IP)"
}

part_sets() {
    echo "== sets of another type, family, size or extension"
    local set
    ipset create KUBE-CLUSTER-IP hash:net
    ipset create KUBE-6-CLUSTER-IP hash:ip,port
    ipset create KUBE-NODE-PORT-TCP hash:ip family inet6
    ipset create KUBE-LOOP-BACK hash:ip,port,ip maxelem 10
    ipset create KUBE-EXTERNAL-IP hash:ip,port timeout 600 comment counters
    ipset create KUBE-LOAD-BALANCER-SOURCE-CIDR hash:ip,port,net maxelem 10
    ipset create KUBE-6-LOAD-BALANCER-SOURCE-CID hash:net
    start
    check_sets "replaced sets"
    check_flows "replaced sets"
    # While they are in use; swaps by other programs.
    ipset create theirs-2 hash:ip,port timeout 600
    ipset swap theirs-2 KUBE-EXTERNAL-IP
    wait_for "the repair of a set that was swapped" eval "ipset list KUBE-EXTERNAL-IP | grep -q '^192.0.2.1,tcp:80'"
    wait_for "the type of a set that was swapped" lacks eval "type_of KUBE-EXTERNAL-IP | grep -q timeout"
    wait_for "the release of the other set" ipset destroy theirs-2
    if [ -n "$LARGE" ]; then
        for set in $LARGE_SETS; do
            case $set in *-6-*) ipset create theirs-2 hash:ip,port,net family inet6 ;; *) ipset create theirs-2 hash:ip,port,net ;; esac
            ipset swap theirs-2 $set
            wait_for "the repair of $set" has_large
            wait_for "the release of the other set" ipset destroy theirs-2
        done
    fi
    check_flows "swapped sets"
    finish sets
    # The other IP family is served.
    local iptables family other
    for iptables in iptables ip6tables; do
        set=KUBE-CLUSTER-IP family=inet other="[fd00:96::1]:80"
        [ $iptables = iptables ] || set=KUBE-6-CLUSTER-IP family=inet6 other=10.96.0.1:80
        echo "== $set that rules of another program use"
        ipset create $set hash:net family $family
        $iptables -A THEIRS -m set --match-set $set dst
        : >proxy.log
        launch
        wait_for "Services of the other IP family" has_server "$other -r"
        wait_for "the cause" grep -q "ipset $set" proxy.log
        other=${other#[}
        case $(inside client bash -c "request ${other/]/}" || true) in pod-*) ;; *) fail "$set: no answer at $other" ;; esac
        $iptables -F THEIRS
        wait_for "the destruction of the set" eval "ipset destroy $set || is_type $set hash:ip,port"
        wait_for "Services of both IP families" is_active
        check_flows "the family without its set"
        finish "sets of rules"
    done
}

# Another program removes what the mode consists of, or has objects with any bytes in their names.
part_hostile() {
    echo "== objects of other programs with any bytes in their names"
    local set name=$'B\xfcro'
    start
    ipset create "$name" hash:ip
    ipset create "KUBE-$name" hash:ip,port
    ip link add "$name" type dummy
    ip address add 203.0.113.77/32 dev "$name"
    iptables -N "$name"
    ipvsadm -A -t 203.0.113.77:80 -s rr
    service added 70 NodePort node-1
    wait_for "a Service beside them" has_server "10.96.0.70:80 -r"
    end_proxy
    start
    check_flows "names of any bytes"
    ipset list "KUBE-$name" >/dev/null || fail "the set of another program has gone"
    ipvsadm -D -t 203.0.113.77:80
    iptables -X "$name"
    ip link delete "$name"
    ipset destroy "KUBE-$name"
    ipset destroy "$name"

    echo "== what the mode consists of is removed"
    ipvsadm -Sn >servers
    ipvsadm -C
    wait_for "virtual servers that were cleared" is_active
    # Those of other programs, which nobody else restores.
    ipvsadm -R <servers 2>/dev/null || true
    check_flows "cleared virtual servers"
    for set in $(ipset list -n | grep ^KUBE-); do ipset flush $set; done
    wait_for "entries of sets" eval "ipset list KUBE-CLUSTER-IP | grep -q '^10.96.0.1,tcp:80'"
    wait_for "entries of node ports" eval "ipset list KUBE-NODE-PORT-TCP | grep -q '^30080'"
    check_flows "emptied sets"
    iptables -t nat -F KUBE-SERVICES
    ip6tables -t nat -F KUBE-SERVICES
    wait_for "rules" eval "iptables -t nat -S KUBE-SERVICES | grep -q KUBE-CLUSTER-IP && ip6tables -t nat -S KUBE-SERVICES | grep -q KUBE-6-CLUSTER-IP"
    check_flows "emptied chains"
    ip link set kube-ipvs0 name elsewhere
    wait_for "addresses of a device that was renamed" has_address 10.96.0.1
    ip link delete elsewhere 2>/dev/null || true
    wait_for "routes to the new device" has_local_route 10.96.0.1
    check_flows "a renamed device"
    finish hostile
}

# The node's own connections with policy Local, where only other nodes have endpoints.
part_remote() {
    echo "== policy Local without endpoints on the node"
    local address pod
    # Endpoints on another node send replies to a load balancer IP elsewhere.
    for pod in 2 3; do
        inside pod-$pod ip route add blackhole 203.0.113.0/24
        inside pod-$pod ip -6 route add blackhole 2001:db8:5::/48
    done
    service remote 30 LoadBalancer node-2 '  externalTrafficPolicy: Local' '  externalIPs: [203.0.113.31, "2001:db8:5::31"]' \
        'status: {loadBalancer: {ingress: [{ip: 203.0.113.30}, {ip: "2001:db8:5::30"}]}}'
    start
    wait_for "virtual servers with policy Local" has_server "[2001:db8:5::30]:80 -r"
    for address in 203.0.113.30:80 203.0.113.31:80 192.0.2.1:30130 10.96.0.30:80 2001:db8:5::30:80 2001:db8:5::31:80 2001:db8::1:30130; do
        case $(timeout 15 bash -c "request $address" 2>&1) in pod-*) ;; *) fail "no answer at $address" ;; esac
    done
    for pod in 2 3; do
        inside pod-$pod ip route delete blackhole 203.0.113.0/24
        inside pod-$pod ip -6 route delete blackhole 2001:db8:5::/48
    done
    finish remote
}

# Methods and weights as schedulers of virtual servers.
part_methods() {
    echo "== load balancing"
    local method
    for method in round-robin:50:wrr source-hash:51:mh source-port-hash:52:mh least-connections:53:wlc random:54:rr; do
        IFS=: read -r name number scheduler <<<"$method"
        ANNOTATIONS="ferroute.io/load-balancing: $name" WEIGHTS="ferroute.io/weight: \"10.244.0.2=3 fd00:10:244::2=3\"" \
            service $name $number NodePort node-1
    done
    start
    for method in round-robin:50:wrr source-hash:51:mh source-port-hash:52:"mh -b mh-port" least-connections:53:wlc random:54:wrr; do
        IFS=: read -r name number scheduler <<<"$method"
        for address in 10.96.0.$number:80 [fd00:96::$number]:80 192.0.2.1:301$number; do
            wait_for "$name at $address" eval "ipvsadm -Sn | grep -qxF -- '-A -t $address -s $scheduler'"
        done
        ipvsadm -Sn | grep -qF -- "-a -t 10.96.0.$number:80 -r 10.244.0.2:8080 -m -w 3" || fail "weight for $name: $(ipvsadm -Sn)"
        ipvsadm -Sn | grep -qF -- "-a -t [fd00:96::$number]:80 -r [fd00:10:244::2]:8080 -m -w 3" || fail "weight for $name: $(ipvsadm -Sn)"
    done
    finish methods
}

# Each counter of the conntrack table has its own meaning for `doctor`.
part_counters() {
    echo "== counters of the conntrack table"
    start
    # check_kinds WANTED: the kinds of findings about the table are these.
    check_kinds() {
        local kinds
        kinds=$(findings 'finding["check"] == "conntrack-table"')
        [ "$kinds" = "$1" ] || fail "doctor finds '$kinds', and not '$1': $(cat doctor.log /proc/net/stat/nf_conntrack)"
    }
    check_kinds ""

    # Two connections of a client to a pod have the same addresses and ports for the pod, one of them by translation. A queue holds the first
    # packet of the other, after source NAT would have seen that, until the entry of the translated one exists.
    cat >queue.py <<'PYTHON'
import os, socket, struct, time
NETFILTER, QUEUE, NUMBER = 12, 3, 7
VERDICT, CONFIG = 1, 2
netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETFILTER)
netlink.bind((0, 0))
def send(kind, attribute, value):
    data = struct.pack("!BBH", 0, 0, NUMBER) + struct.pack("HH", 4 + len(value), attribute) + value + bytes(-len(value) % 4)
    netlink.send(struct.pack("IHHII", 16 + len(data), QUEUE << 8 | kind, 1, 0, 0) + data)
send(CONFIG, 1, struct.pack("!BBH", 1, 0, socket.AF_INET))
send(CONFIG, 2, struct.pack("!IB", 0xffff, 1))
print("ready", flush=True)
netlink.recv(65536)
print("held", flush=True)
while not os.path.exists("connected"):
    time.sleep(0.1)
send(VERDICT, 2, struct.pack("!II", 1, 1))
PYTHON
    cat >connect.py <<'PYTHON'
import os, socket, time
def client():
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    client.bind(("192.0.2.2", 5555))
    return client
first, second = client(), client()
first.setblocking(False)
first.connect_ex(("10.244.0.2", 8080))
while "held" not in open("queue.log").read():
    time.sleep(0.1)
second.connect(("192.0.2.1", 9999))
os.mknod("connected")
PYTHON
    python3 queue.py >queue.log 2>&1 &
    local queue=$!
    wait_for "the queue" grep -q ready queue.log
    nft "table ip hold { chain late { type filter hook postrouting priority 200; tcp sport 5555 ct original ip daddr ${POD_NET}2 queue to 7; }; }"
    iptables -t nat -I PREROUTING -p tcp -s 192.0.2.2 --dport 9999 -j DNAT --to-destination ${POD_NET}2:8080
    inside client timeout 60 python3 connect.py || fail "connections with the same translated addresses"
    wait $queue || fail "the queue: $(cat queue.log)"
    nft delete table ip hold
    iptables -t nat -D PREROUTING 1
    check_kinds conntrack-table.races

    # More flows than the table has entries. A packet that finds no flow without a reply in a few chains is dropped.
    local max buckets
    max=$(sysctl -n net.netfilter.nf_conntrack_max) buckets=$(sysctl -n net.netfilter.nf_conntrack_buckets)
    cat >flood.py <<'PYTHON'
import socket
for _ in range(400):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.sendto(b"x", ("10.244.0.2", 9))
PYTHON
    sysctl -qw net.netfilter.nf_conntrack_buckets=32 net.netfilter.nf_conntrack_max=40
    inside client python3 flood.py
    check_kinds "conntrack-table.full conntrack-table.evicted conntrack-table.dropped conntrack-table.races"
    sysctl -qw net.netfilter.nf_conntrack_buckets=$buckets net.netfilter.nf_conntrack_max=$max
    finish counters
}

# What `flows` reports equals what clients counted.
part_flows() {
    echo "== flows"
    local flow number
    service empty 55 NodePort node-1
    sed -i 's/^endpoints: .*/endpoints: []/' manifests/empty.yaml
    start
    wait_for "a Service without endpoints" has_server "[fd00:96::55]:80"
    /files/ferroute flows -o json >flows.json 2>flows.log &
    local reader=$!
    wait_for "the reader of flows" grep -q '"start"' flows.json
    : >seen
    for number in 1 2 3 4 5; do
        for flow in $FLOWS; do echo "${flow%%,*} ${flow#*,} $(from $flow request || true)" >>seen; done
        for flow in client,10.96.0.55:80 pod-5,fd00:96::55:80 node,10.96.0.55:80 client,192.0.2.1:30155; do
            case $(from $flow request 2>/dev/null || true) in pod-*) fail "$flow is not refused" ;; esac
            echo "${flow%%,*} ${flow#*,} rejected" >>seen
        done
    done
    cat >compare.py <<'PYTHON'
import collections, json, re
flows, edges = {}, 0
for line in open("flows.json"):
    line = json.loads(line)
    assert "lost" not in line, line
    if flow := line.get("flow"):
        flows[flow["id"]] = flow
def result(flow):
    if flow["state"] == "closed":
        return "pod-" + re.split("[.:]", flow["endpoint"]["address"])[-1]
    return flow["state"]
kinds = {"client": "outside", "node": "node", "pod-5": "pod"}
seen = collections.Counter((kinds[name], to, got) for name, to, got in map(str.split, open("seen")))
counted = collections.Counter((flow["client"]["kind"], flow["destination"].replace("[", "").replace("]", ""), result(flow))
                              for flow in flows.values())
assert seen == counted, f"clients: {seen - counted}, flows: {counted - seen}"
assert all(flow.get("reason") == "noEndpoints" for flow in flows.values() if flow["state"] == "rejected"), flows
PYTHON
    WAIT=100 wait_for "flows as clients counted them" python3 compare.py
    python3 compare.py || fail "flows are not what clients counted"
    kill $reader
    finish flows
}

mkdir manifests
cp /files/web.yaml manifests/
ln -s "$(cd /usr/sbin && echo python3.*)" /usr/sbin/python3
make_network
join_pod 5
add_foreign_objects
dump_state >before
ipvsadm -Sn >foreign
for part in $(cat /files/parts); do
    started=$(cut -d. -f1 /proc/uptime)
    LARGE=
    case $part in large-*) LARGE=1 ;; esac
    part_${part#large-}
    echo "== $part: $(($(cut -d. -f1 /proc/uptime) - started)) s"
done
echo "== $failures failures, $(cut -d. -f1 /proc/uptime) s"
[ $failures = 0 ]
