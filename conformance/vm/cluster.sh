# Functions of the scripts about ipvs: a node with three pods and a client, traffic between them, and objects of other
# programs, which must not be changed. Sourced.
. /files/machine.sh

WAIT=1500
# Client and destination of each flow.
FLOWS="client,10.96.0.1:80 client,fd00:96::1:80 client,192.0.2.1:30080 client,2001:db8::1:30080 client,192.0.2.1:80
    node,10.96.0.1:80 node,fd00:96::1:80"
diagnose() { ipvsadm -Lnc; }

make_network() {
    modprobe dummy numdummies=0
    modprobe -a ip_vs br_netfilter
    sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.vs.conntrack=1
    ip link add cni0 type bridge
    ip link set cni0 up
    ip address add ${POD_NET}1/24 dev cni0
    ip address add ${POD_NET6}1/64 dev cni0 nodad
    for pod in 2 3 4; do
        join_pod $pod
        inside pod-$pod busybox nc -ll -p 8080 -e busybox sh -c "echo pod-$pod; exec cat" 2>/dev/null &
    done
    join_client
}

# join_pod NUMBER: adds a pod to the node's bridge.
join_pod() {
    join pod-$1 pod$1
    ip link set pod$1 master cni0
    inside pod-$1 ip address add $POD_NET$1/24 dev eth0
    inside pod-$1 ip address add $POD_NET6$1/64 dev eth0 nodad
    inside pod-$1 ip route add default via ${POD_NET}1
    inside pod-$1 ip route add default via ${POD_NET6}1
}

# Adds objects of other programs, some of them similar to those of kube-proxy.
add_foreign_objects() {
    for iptables in iptables ip6tables; do
        for table in filter nat mangle; do $iptables -t $table -N THEIRS; done
        $iptables -A INPUT -j THEIRS
    done
    ipset create theirs hash:net
    ipset add theirs 203.0.113.0/24
    ip link add theirs0 type dummy
    ip address add 203.0.113.1/32 dev theirs0
    # On an address of this host; on addresses of other machines, one with the port of a node port; by firewall mark.
    for server in "-t 192.0.2.1:8888" "-t 203.0.113.1:80" "-t 203.0.113.9:30080" "-t [2001:db8::9]:30080" "-f 7"; do
        ipvsadm -A $server -s rr
    done
    ipvsadm -a -t 203.0.113.9:30080 -r 192.0.2.2:30080 -g
    # The kubelet's rules, which kube-proxy does not change either.
    for restore in iptables-restore ip6tables-restore; do
        printf '*filter\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\n-A OUTPUT -j KUBE-FIREWALL\nCOMMIT\n' |
            $restore --noflush
    done
    iptables -A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment \
        --comment "block incoming localnet connections" -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
}

dump_state() {
    for save in iptables-save ip6tables-save; do $save | sed -e '/^#/d' -e 's/ \[.*//'; done
    nft list tables | grep -v ' \(filter\|nat\|mangle\)$' || true
    ipset save | sort
    ipvsadm -Sn | sort
    ip -o address | awk '{print $2, $4}' | sort
}

# request ADDRESS:PORT [TEXT]: prints the name of the pod that answers, and the text. Starts no process, since that is slow in this machine.
request() {
    local answer=none
    { read -r -t 10 answer <&3 || true; } 3<>"/dev/tcp/${1%:*}/${1##*:}"
    echo "$answer${2:+ $2}"
}
requests() {
    local began
    while [ ! -e stop ]; do
        read -r began _ </proc/uptime
        request "$1" "$began" || true
        sleep 0.3
    done
}
# Writes the times in which nothing ran, as start and end. A machine that its host pauses or starves sees its clock jump, and
# timeouts expire although nobody had the time to answer.
watch_clock() {
    local before now
    read -r before _ </proc/uptime
    while [ ! -e stop ]; do
        sleep 0.5
        read -r now _ </proc/uptime
        [ $((${now%.*} - ${before%.*})) -le 5 ] || echo "$before $now" >>gaps
        before=$now
    done
}
export -f request requests
# from FLOW FUNCTION: calls the function in the client's namespace, with the destination as its argument.
from() {
    case $1 in
        node,*) $2 "${1#*,}" ;;
        *) inside "${1%%,*}" bash -c "$2 ${1#*,}" ;;
    esac
}

check_flows() {
    for flow in $FLOWS; do
        case $(from $flow request || true) in
            pod-*) ;;
            *) fail "$1: no answer on $flow" ;;
        esac
    done
}

start_traffic() {
    rm -f stop traffic-*
    : >gaps
    watch_clock &
    traffic=$!
    for flow in $FLOWS; do
        from $flow requests >"traffic-$flow" 2>&1 &
        traffic="$traffic $!"
    done
}

# Waits for some more requests on each flow, ends the traffic, and checks all answers.
end_traffic() {
    local flow wanted answers failed uncounted
    for flow in $FLOWS; do
        wanted=$(($(wc -l <"traffic-$flow") + 5))
        wait_for "traffic of $flow" eval "[ \$(wc -l <'traffic-$flow') -ge $wanted ]"
    done
    touch stop
    wait $traffic
    for flow in $FLOWS; do
        # A request takes ten seconds at most. Lines without a time are error messages.
        read -r answers failed uncounted <<<"$(awk '
            FILENAME == "gaps" { start[++gaps] = $1; end[gaps] = $2; next }
            NF != 2 || $2 + 0 == 0 { next }
            $1 ~ /^pod-[234]$/ { answers++; next }
            {
                for (gap = 1; gap <= gaps; gap++) if (start[gap] <= $2 + 11 && $2 <= end[gap]) break
                if (gap <= gaps) uncounted++; else failed++
            }
            END { print answers + failed + 0, failed + 0, uncounted + 0 }' gaps "traffic-$flow")"
        echo "  $flow: $answers requests, $failed failed"
        [ "$uncounted" = 0 ] || echo "  $flow: $uncounted more failed while the machine was paused: $(xargs <gaps)"
        [ "$failed" = 0 ] || fail "$failed requests of $flow: $(grep -nv '^pod-[234] ' "traffic-$flow")"
    done
}

# open_connection NAME ADDRESS:PORT: opens a connection that stays open until `close_connection NAME`.
declare -A connections
open_connection() {
    local descriptor
    rm -f "in-$1" "out-$1"
    mkfifo "in-$1"
    inside client busybox nc "${2%:*}" "${2##*:}" <"in-$1" >"out-$1" &
    exec {descriptor}>"in-$1"
    connections[$1]=$descriptor
    send_line "$1" hello
}
send_line() {
    echo "$2" >&"${connections[$1]}"
    wait_for "an answer to '$2' on connection $1" grep -qx "$2" "out-$1"
}
close_connection() {
    local descriptor=${connections[$1]}
    exec {descriptor}>&-
    unset "connections[$1]"
}

start_proxy() {
    sed "s/MODE/$1/" >config.yaml <<'END'
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: MODE
clusterCIDR: 10.244.0.0/16,fd00:10:244::/64
END
    (
        # An inherited descriptor would keep a connection open.
        for descriptor in "${connections[@]}"; do exec {descriptor}>&-; done
        exec /files/ferroute run --config config.yaml --manifests manifests --hostname-override node-1
    ) >proxy.log 2>&1 &
    proxy=$!
}

end_proxy() {
    kill $proxy
    wait $proxy || fail "exit status of the proxy"
}

# settings MODE [LINE...]: writes the configuration, with these lines. A running proxy applies it at once.
settings() {
    local mode=$1
    shift
    {
        printf '%s\n' "apiVersion: kubeproxy.config.k8s.io/v1alpha1" "kind: KubeProxyConfiguration" "mode: $mode" \
            "clusterCIDR: 10.244.0.0/16,fd00:10:244::/64" "$@"
    } >config.new
    mv config.new config.yaml
}

# run_proxy [OPTION...]: starts it without the programs in /usr/sbin, unless it is to use those of iptables.
run_proxy() {
    (
        # An inherited descriptor would keep a connection open.
        for descriptor in "${connections[@]}"; do exec {descriptor}>&-; done
        hide=
        [ "$*" = --iptables-programs ] || hide="busybox unshare -m busybox sh -c"
        exec ${hide:+$hide 'busybox mount -t tmpfs none /usr/sbin && exec "$@"' sh} /files/ferroute run "$@" --config config.yaml --manifests manifests --hostname-override node-1 --hold-node-ports
    ) >>proxy.log 2>&1 &
    proxy=$!
}

has_server() { ipvsadm -Sn | grep -qF -- "$1"; }
has_no_server() { ! ipvsadm -Sn | grep -qF -- "$1"; }
sysctl_is() { [ "$(sysctl -n "$1")" = "$2" ] || fail "$1 is $(sysctl -n "$1") instead of $2"; }
# check_foreign_servers DESCRIPTION
check_foreign_servers() {
    local line
    while read -r line; do
        ipvsadm -Sn | grep -qxF -- "$line" || fail "$1: virtual server '$line' of another program is gone"
    done <foreign
}

# check_clean DESCRIPTION: checks that the state is the same as before the test.
check_clean() {
    dump_state >after
    diff before after || fail "$1: state differs from before"
}
