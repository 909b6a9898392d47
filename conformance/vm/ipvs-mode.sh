# Runs in a virtual machine (boot.sh) and tests ipvs mode: /files has ferroute, cluster.sh, load.py and web.yaml. With a file
# /files/full, it switches between all pairs of modes, and waits until a terminated endpoint is removed, which takes minutes.
set -eu # No pipefail: grep -q exits before reading all input.
. /files/cluster.sh

has_no_tables() { ! nft list tables | grep -q ferroute; }
# rules_are WANTED UNWANTED: reports whether the iptables rules of each family match the first pattern, and not the second.
rules_are() {
    local save rules
    for save in iptables-save ip6tables-save; do
        rules=$($save)
        grep -qEe "$1" <<<"$rules" && ! grep -qEe "$2" <<<"$rules" || return
    done
}
# Reports whether the rules of a mode are the only ones.
is_active() {
    case $1 in
        ipvs)
            has_server "10.96.0.1:80 -r" && has_server "[fd00:96::1]:80 -r" && has_no_tables &&
                rules_are KUBE-IPVS-FILTER "KUBE-SVC-|KUBE-PORTALS"
            ;;
        nftables) nft get element ip6 ferroute cluster-ips { fd00:96::1 } && rules_are "" "KUBE-SERVICES|KUBE-PORTALS" ;;
        iptables) has_no_tables && rules_are KUBE-SVC- "KUBE-IPVS-FILTER|KUBE-PORTALS" ;;
        userspace) has_no_tables && rules_are "-A KUBE-PORTALS-CONTAINER" KUBE-SERVICES ;;
    esac
}

# endpoints POD...: replaces the endpoints of `web`.
endpoints() {
    local pod pattern=
    for pod in "$@"; do pattern="$pattern|[.:]$pod\"?\\]"; done
    awk -v keep="${pattern#|}" '/^endpoints:/ {
        line = "endpoints: ["
        while (match($0, /\{addresses: \[[^]]*\]\}/)) {
            one = substr($0, RSTART, RLENGTH)
            $0 = substr($0, RSTART + RLENGTH)
            if (one ~ keep) line = line one ", "
        }
        print line "]"
        next
    } { print }' /files/web.yaml | cat - sticky.yaml >services.new
    mv services.new manifests/web.yaml
}

weight() { ipvsadm -Sn | sed -n "s/^-a -t 10.96.0.1:80 -r $POD_NET$1:8080 .*-w //p"; }
has_weight() { [ "$(weight "$1")" = "$2" ]; }

check_first_sync() {
    echo "== first sync"
    settings ipvs "ipvs: {strictARP: true, scheduler: wrr, tcpTimeout: 701s, tcpFinTimeout: 21s, udpTimeout: 31s}"
    run_proxy
    wait_for "the first sync" is_active ipvs
    [ "$(grep -c 'using ipvs .*by netlink: no iptables programs are installed' proxy.log)" = 2 ] || fail "$(cat proxy.log)"
    wait_for "IPv6 rules" eval "ip6tables-save | grep -q KUBE-6-CLUSTER-IP"
    check_flows "first sync"
    ipvsadm -Sn | grep -qF -- "-A -t 10.96.0.1:80 -s wrr" || fail "scheduler: $(ipvsadm -Sn)"
    [ "$(ipvsadm -L --timeout)" = "Timeout (tcp tcpfin udp): 701 21 31" ] || fail "$(ipvsadm -L --timeout)"
    sysctl_is net.ipv4.conf.all.arp_ignore 1
    sysctl_is net.ipv4.conf.all.arp_announce 2
    sysctl_is net.ipv4.vs.conntrack 1
    sysctl_is net.ipv4.vs.expire_nodest_conn 1
    check_foreign_servers "first sync"
    ! inside client busybox arping -c 2 -w 2 -I eth0 10.96.0.1 || fail "the node answers ARP requests for 10.96.0.1"
    inside client busybox arping -c 1 -w 5 -I eth0 192.0.2.1 >/dev/null || fail "no answer to an ARP request"
}

# The rules by netlink are those of the programs.
check_programs() {
    echo "== rules with and without the iptables programs"
    # The node is outside of the source ranges, so rules match the virtual servers of its own connections.
    cat >manifests/ranges.yaml <<'YAML'
apiVersion: v1
kind: Service
metadata: {name: ranges}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.4
  clusterIPs: [10.96.0.4, "fd00:96::4"]
  ipFamilies: [IPv4, IPv6]
  loadBalancerSourceRanges: [192.0.2.2/32, "2001:db8::2/128"]
  ports: [{name: tcp, port: 80, targetPort: 8080, nodePort: 30083}]
status: {loadBalancer: {ingress: [{ip: 203.0.113.5}, {ip: "2001:db8:5::5"}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: ranges-4, labels: {kubernetes.io/service-name: ranges}}
addressType: IPv4
ports: [{name: tcp, port: 8080}]
endpoints: [{addresses: [10.244.0.2]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: ranges-6, labels: {kubernetes.io/service-name: ranges}}
addressType: IPv6
ports: [{name: tcp, port: 8080}]
endpoints: [{addresses: ["fd00:10:244::2"]}]
YAML
    settings ipvs
    for way in netlink programs; do
        end_proxy
        /files/ferroute run --cleanup >cleanup.log 2>&1 || fail "ferroute run --cleanup: $(cat cleanup.log)"
        run_proxy $([ $way = netlink ] || echo --iptables-programs)
        wait_for "ipvs mode" is_active ipvs
        wait_for "virtual servers with source ranges" has_server "[2001:db8:5::5]:80 -r"
        check_flows "rules by $way"
        [ "$(inside client bash -c "request 203.0.113.5:80")" = pod-2 ] || fail "rules by $way: no answer to a permitted source"
        [ "$(timeout 5 bash -c "request 203.0.113.5:80")" != pod-2 ] || fail "rules by $way: the node is not permitted"
        for save in iptables-save ip6tables-save; do
            $save | sed -e '/^#/d' -e 's/ \[[0-9].*//'
        done >rules-by-$way
    done
    diff rules-by-netlink rules-by-programs || fail "other rules by netlink than by the programs"
    [ "$(grep -c -- '-m ipvs --vproto' rules-by-netlink)" = 2 ] || fail "rules for virtual servers: $(cat rules-by-netlink)"
    rm manifests/ranges.yaml
}

# SCTP, which the kernels of most build machines lack; the tests of the crates cover the rest.
check_held_ports() {
    echo "== held node ports"
    ! bind_sctp 30100 || fail "SCTP node port 30100 is not held"
    bind_sctp 30101 || fail "SCTP port 30101 is not free"
}
bind_sctp() {
    python3 -c "import socket; socket.socket(socket.AF_INET, socket.SOCK_STREAM, 132).bind(('0.0.0.0', $1))" 2>/dev/null
}

check_affinity() {
    echo "== affinity"
    local first again
    first=$(inside client bash -c "request 10.96.0.2:80")
    for again in 1 2 3 4 5 6; do
        [ "$(inside client bash -c "request 10.96.0.2:80")" = "$first" ] || fail "session affinity"
    done
    ipvsadm -Sn | grep -qF -- "-A -t 10.96.0.2:80 -s wrr -p 600" || fail "persistence: $(ipvsadm -Sn)"
}

check_commands() {
    echo "== commands without flags"
    local call log
    # They answer for the running proxy.
    for call in "explain service default/web" diff "trace --from 10.244.0.5 --to default/web:80" doctor render preflight \
        "trace --from 10.244.0.5 --to default/web:80 --kernel"; do
        log=${call%% *}.log
        /files/ferroute $call >$log 2>&1 || fail "$call: $(cat $log)"
        grep -q 'running proxy: node node-1, ipvs mode$' $log || fail "$call: $(cat $log)"
    done
    grep -q 'ipvs  -a -t 10.96.0.1:80 -r 10.244.0.2:8080 -m -w 1' explain.log &&
        grep -q 'ipset KUBE-CLUSTER-IP  10.96.0.1,tcp:80' explain.log || fail "explain: $(cat explain.log)"
    grep -q "^no differences" preflight.log || fail "preflight: $(cat preflight.log)"
    grep -q "delivered to one of these 3 " trace.log || fail "trace: $(cat trace.log)"
    ipvsadm -d -t 10.96.0.1:80 -r ${POD_NET}2:8080
    # The proxy repairs it at the same time.
    wait_for "the repair of a real server" has_weight 2 1
    ipvsadm -D -t 10.96.0.1:80
    wait_for "the repair of a virtual server" has_weight 3 1
    ip address delete 10.96.0.1/32 dev kube-ipvs0
    wait_for "the repair of an address" eval "ip -o address show dev kube-ipvs0 | grep -q 10.96.0.1/32"
    (while [ ! -e stop ]; do inside client bash -c "request 10.96.0.1:80; request 10.96.0.1:80" >>answers; done) &
    local traffic=$!
    rm -f stop
    /files/ferroute top --once --interval 5s >top.log 2>&1 || fail "top: $(cat top.log)"
    touch stop
    wait $traffic
    awk '$2 == "10.96.0.1:80/tcp" && $1 > 0 && /10.244.0.4:8080 3[0-9] %/ { found = 1 } END { exit !found }' top.log || fail "top: $(cat top.log)"
}

# Leaves connection `held` open, to an endpoint with weight 0.
start_graceful_termination() {
    echo "== graceful termination"
    open_connection held 10.96.0.1:80
    local pod
    pod=$(sed -n 's/^pod-//p;1q' out-held)
    held_pod=$pod
    endpoints $(echo 2 3 4 | sed "s/$pod//")
    wait_for "weight 0 of pod-$pod" has_weight "$pod" 0
    send_line held "after removal"
    local answer number
    for number in 1 2 3 4 5 6; do
        answer=$(inside client bash -c "request 10.96.0.1:80")
        [ "$answer" != "pod-$pod" ] && [ "${answer#pod-}" != "$answer" ] || fail "'$answer' after the removal of pod-$pod"
    done
    endpoints 2 3 4
    wait_for "the return of pod-$pod" has_weight "$pod" 1
    send_line held "after return"
    # It stays across a restart of the proxy.
    endpoints $(echo 2 3 4 | sed "s/$pod//")
    wait_for "weight 0 of pod-$pod" has_weight "$pod" 0
    end_proxy
    run_proxy
    sleep 5
    has_weight "$pod" 0 || fail "weight $(weight $pod) of pod-$pod after a restart"
    send_line held "after restart"
}

# Switches through all modes under load: no request fails, and each connection lasts.
check_switches() {
    echo "== live switches under load"
    start_traffic
    local mode switch=0
    for mode in nftables ipvs iptables ipvs; do
        switch=$((switch + 1))
        open_connection "$switch" 10.96.0.1:80
        open_connection "$switch-ipv6" fd00:96::1:80
        open_connection "$switch-node-port" 192.0.2.1:30080
        settings $mode
        wait_for "mode $mode" is_active $mode
        for name in "${!connections[@]}"; do send_line "$name" "in $mode"; done
    done
    end_traffic
    check_foreign_servers switches
    ipvsadm -Sn | grep -qF -- "-A -t 10.96.0.1:80 -s rr" || fail "scheduler: $(ipvsadm -Sn)"
    for name in "${!connections[@]}"; do
        [ "$name" = held ] || close_connection "$name"
    done
}

# Switches from each of the four modes to each other one under more load: no request fails, and each connection lasts. The clients
# are another host, the node itself, and a pod that is no endpoint.
check_all_switches() {
    echo "== live switches between all pairs of modes"
    local modes="nftables ipvs iptables ipvs userspace nftables iptables nftables userspace iptables userspace ipvs"
    local mode previous=ipvs flows= client
    for client in client node pod-5; do
        flows="$flows $client,tcp,10.96.0.3:80 $client,tcp,fd00:96::3:80 $client,tcp,192.0.2.1:30082"
        flows="$flows $client,udp,10.96.0.3:53 $client,udp,fd00:96::3:53"
    done
    sed -e 's/: web/: load/g' -e 's/10\.96\.0\.1/10.96.0.3/g; s/fd00:96::1/fd00:96::3/g' -e '/externalIPs/d' \
        -e 's/30080/30082/; s/30053/30054/; s/8080/8081/' /files/web.yaml >load.new
    mv load.new manifests/load.yaml
    wait_for "virtual servers of the load" has_server "[fd00:96::3]:53 -r"
    rm -f load-*
    python3 /files/load.py pod-2,pod-3,pod-4 $flows >load.log 2>&1 &
    local load=$!
    for mode in $modes; do
        wait_for "requests in mode $previous" more_rounds 3
        echo "$previous to $mode" >load-phase
        wait_for "requests in mode $previous" more_rounds 1
        # In this machine an answer may take longer than the 250 ms after which userspace mode forgets a flow.
        settings $mode "udpIdleTimeout: 30s"
        wait_for "mode $mode" is_active $mode
        previous=$mode
    done
    wait_for "requests in mode $previous" more_rounds 3
    kill $load
    wait $load || fail "requests during the switches"
    cat load.log
    rm manifests/load.yaml
    check_foreign_servers switches
}
# more_rounds NUMBER: reports whether each client has sent this often since the last success.
rounds=0
more_rounds() {
    local now
    now=$(cat load-rounds) && [ $((now - rounds)) -ge "$1" ] && rounds=$now
}

check_termination_ends() {
    echo "== end of graceful termination"
    close_connection held
    wait_for "the removal of pod-$held_pod" has_weight "$held_pod" ""
}

check_missing_scheduler() {
    echo "== missing scheduler"
    local before
    before=$(wc -l <proxy.log)
    settings ipvs "ipvs: {scheduler: absent}"
    wait_for "the warning" grep -q ' WARN .*absent' proxy.log
    wait_for "iptables mode" is_active iptables
    check_flows "missing scheduler"
    [ "$(sed "1,${before}d" proxy.log | grep -c ' WARN .*absent')" = 1 ] || fail "log: $(sed "1,${before}d" proxy.log)"
}

check_demo() {
    echo "== demo"
    /files/ferroute demo --proxy-mode ipvs --connections 10 >demo.log 2>&1 || fail "demo: $(cat demo.log)"
    grep -q "all as expected" demo.log || fail "demo: $(cat demo.log)"
}

ln -s "$(cd /usr/sbin && echo python3.*)" /usr/sbin/python3
mkdir manifests
make_network
join_pod 5
modprobe sctp
add_foreign_objects
cat >sticky.yaml <<'YAML'
---
apiVersion: v1
kind: Service
metadata: {name: sticky}
spec:
  type: NodePort
  clusterIP: 10.96.0.2
  sessionAffinity: ClientIP
  sessionAffinityConfig: {clientIP: {timeoutSeconds: 600}}
  ports:
    - {name: tcp, port: 80, targetPort: 8080, nodePort: 30081}
    - {name: sctp, port: 80, protocol: SCTP, targetPort: 8080, nodePort: 30100}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: sticky-4, labels: {kubernetes.io/service-name: sticky}}
addressType: IPv4
ports: [{name: tcp, port: 8080}, {name: sctp, port: 8080, protocol: SCTP}]
endpoints: [{addresses: [10.244.0.2]}, {addresses: [10.244.0.3]}, {addresses: [10.244.0.4]}]
YAML
endpoints 2 3 4
dump_state >before
ipvsadm -Sn >foreign
check_first_sync
check_affinity
check_held_ports
check_commands
start_graceful_termination
check_switches
if [ -e /files/full ]; then
    check_termination_ends
    check_all_switches
fi
for name in "${!connections[@]}"; do close_connection "$name"; done
check_programs
check_missing_scheduler
end_proxy
/files/ferroute run --cleanup >cleanup.log 2>&1 || fail "ferroute run --cleanup: $(cat cleanup.log)"
check_clean cleanup
check_demo
echo "== $failures failures, $(cut -d. -f1 /proc/uptime) s"
[ $failures = 0 ]
