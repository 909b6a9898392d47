# Parts of ipvs-host.sh about the differences of ipvs mode that docs/modes.md describes. Sourced.

# serve_peers POD...: starts servers on port 8082 of these pods that send the address of their client.
peer_servers=
serve_peers() {
    local pod
    for pod in "$@"; do
        inside pod-$pod python3 -c '
import socket
server = socket.create_server(("::", 8082), family=socket.AF_INET6, dualstack_ipv6=True)
while True:
    connection, peer = server.accept()
    with connection: connection.sendall(peer[0].removeprefix("::ffff:").encode() + b"\n")' &
        peer_servers="$peer_servers $!"
    done
    for pod in "$@"; do
        wait_for "the server of pod-$pod" eval "[ \$(request ${POD_NET}$pod:8082) = ${POD_NET}1 ]"
    done
}
end_peers() {
    kill $peer_servers
    peer_servers=
}
# answers FLOW TEXT: checks the answer on a flow.
answers() {
    local answer
    answer=$(from "$1" request 2>&1 || true)
    [ "$answer" = "$2" ] || fail "$1: '$answer' instead of '$2'"
}

# A Service whose port is the number of a node port, and the node port itself.
part_numbers() {
    echo "== cluster IP with the number of a node port"
    local policy
    serve_peers 2
    for policy in Cluster Local; do
        service numbers 70 NodePort node-1 "  externalTrafficPolicy: $policy"
        sed -i -e 's/port: 80, nodePort/port: 30170, nodePort/; s/port: 8080/port: 8082/' \
            -e "s/{addresses: \[\"\(${POD_NET}\|${POD_NET6}\)3\"\], nodeName: node-1}//" manifests/numbers.yaml
        start
        wait_for "the Service" has_server "[fd00:96::70]:30170 -r"
        answers pod-5,10.96.0.70:30170 ${POD_NET}5
        answers pod-5,fd00:96::70:30170 ${POD_NET6}5
        if [ $policy = Cluster ]; then
            answers client,192.0.2.1:30170 ${POD_NET}1
            answers client,2001:db8::1:30170 ${POD_NET6}1
        else
            answers client,192.0.2.1:30170 192.0.2.2
            answers client,2001:db8::1:30170 2001:db8::2
        fi
        finish "numbers, policy $policy"
    done
    end_peers
}

# Endpoints in noMasqueradeCIDRs see their clients, unless they could not answer.
part_sources() {
    echo "== sources that are kept"
    local pod
    serve_peers 2 3
    for pod in 2 3; do
        service sources-$pod 6$pod NodePort node-1
        sed -i -e 's/port: 8080/port: 8082/' manifests/sources-$pod.yaml \
            -e "s/^endpoints: .*\"\($POD_NET\|$POD_NET6\)[23].*/endpoints: [{addresses: [\"\1$pod\"], nodeName: node-1}]/"
    done
    start "noMasqueradeCIDRs: [${POD_NET}2/32, \"${POD_NET6}2/128\"]"
    wait_for "the Services" eval 'has_server "[fd00:96::62]:80 -r" && has_server "[fd00:96::63]:80 -r"'
    answers client,192.0.2.1:30162 192.0.2.2
    answers client,2001:db8::1:30162 2001:db8::2
    answers client,10.96.0.62:80 192.0.2.2
    answers client,fd00:96::62:80 2001:db8::2
    answers pod-5,192.0.2.1:30162 ${POD_NET}5
    for flow in node,10.96.0.62:80 node,192.0.2.1:30162; do answers $flow ${POD_NET}1; done
    for flow in node,fd00:96::62:80 node,2001:db8::1:30162; do answers $flow ${POD_NET6}1; done
    # Another endpoint.
    answers client,192.0.2.1:30163 ${POD_NET}1
    answers client,2001:db8::1:30163 ${POD_NET6}1
    answers client,10.96.0.63:80 ${POD_NET}1
    # The endpoint's connections to itself, whose replies netfilter in the bridge sends back to the port where they came from.
    bridge link set dev pod2 hairpin on
    for flow in pod-2,10.96.0.62:80 pod-2,192.0.2.1:30162; do answers $flow ${POD_NET}1; done
    for flow in pod-2,fd00:96::62:80 pod-2,2001:db8::1:30162; do answers $flow ${POD_NET6}1; done
    bridge link set dev pod2 hairpin off
    end_peers
    finish sources
}

# A host port of a network plugin on the number of a node port: the program whose rule comes first has the connections.
part_host_ports() {
    echo "== host ports"
    local iptables to verb answer
    inside pod-5 busybox nc -ll -p 9000 -e busybox echo host-port &
    local listener=$!
    host_port() {
        for iptables in iptables ip6tables; do
            to=${POD_NET}5:9000
            [ $iptables = iptables ] || to=[${POD_NET6}5]:9000
            $iptables -t nat "$1" PREROUTING -p tcp -m addrtype --dst-type LOCAL -m tcp --dport "$2" -j DNAT --to-destination $to
        done
    }
    start
    # Port 80 is that of the cluster IP and the external IP, too.
    for port in 30080 80; do
        for verb in -I -A; do
            host_port $verb $port
            for address in 192.0.2.1:$port 2001:db8::1:$port; do
                answer=$(inside client bash -c "request $address" || true)
                case $verb$answer in
                    -Ihost-port | -Apod-[234]) ;;
                    *) fail "$address: '$answer' with the rule of the host port by $verb" ;;
                esac
            done
            /files/ferroute doctor --no-connect >doctor.log 2>&1 || true
            [ "$(grep -c "earlier-translation\]" doctor.log)" = $([ $verb = -I ] && echo 2 || echo 0) ] || fail "doctor, $verb: $(cat doctor.log)"
            host_port -D $port
        done
    done
    kill $listener
    finish host_ports
}

# The kernel keeps the affinity of a client for two minutes after its last connection has ended.
part_affinity() {
    echo "== session affinity below two minutes"
    local address first again
    service sticky 60 NodePort node-1 '  sessionAffinity: ClientIP' '  sessionAffinityConfig: {clientIP: {timeoutSeconds: 5}}'
    start
    for address in 10.96.0.60:80 fd00:96::60:80; do
        wait_for "the Service" has_server "-s rr -p 5"
        first=$(inside client bash -c "request $address")
        sleep 8
        for again in 1 2 3; do
            [ "$(inside client bash -c "request $address")" = "$first" ] || fail "$address: another endpoint within two minutes"
        done
    done
    # Templates have no port of the client.
    has_templates() { ipvsadm -Lnc | grep -qE ' (192\.0\.2\.2|\[2001:db8::2\]):0 '; }
    has_templates || fail "no persistence templates: $(ipvsadm -Lnc)"
    wait_for "the end of the affinity" lacks has_templates
    finish affinity
}

# Established connections of a Service that is deleted.
part_deleted() {
    echo "== deleted Services"
    local name
    service deleted 80 NodePort node-1
    start
    wait_for "the Service" has_server "[fd00:96::80]:80 -r"
    open_connection cluster 10.96.0.80:80
    open_connection cluster6 fd00:96::80:80
    open_connection node-port 192.0.2.1:30180
    open_connection other 10.96.0.1:80
    rm manifests/deleted.yaml
    wait_for "the deletion" has_no_server ":30180"
    for name in cluster cluster6 node-port; do echo late >&"${connections[$name]}"; done
    send_line other "still here"
    # Twice the time of the first repetitions of a segment.
    sleep 3
    for name in cluster cluster6 node-port; do
        ! grep -q late out-$name || fail "$name: an endpoint of a deleted Service answers"
    done
    for name in cluster cluster6 node-port other; do close_connection $name; done
    case $(inside client bash -c "request 10.96.0.80:80" 2>/dev/null || true) in pod-*) fail "a deleted Service accepts connections" ;; esac
    finish deleted
}

# Internal policy Local without endpoints on the node: a NodePort Service uses those of other nodes, one without node ports none.
part_internal() {
    echo "== internal policy Local"
    local address
    service internal 90 NodePort node-2 '  internalTrafficPolicy: Local'
    service only-internal 91 ClusterIP node-2 '  internalTrafficPolicy: Local'
    sed -i 's/, nodePort: 30191//' manifests/only-internal.yaml
    start
    wait_for "the Service" has_server "[fd00:96::90]:80 -r"
    for address in 10.96.0.90:80 fd00:96::90:80 192.0.2.1:30190 2001:db8::1:30190; do
        case $(inside pod-5 bash -c "request $address" || true) in pod-*) ;; *) fail "no answer at $address" ;; esac
    done
    for address in 10.96.0.91:80 fd00:96::91:80; do
        case $(inside pod-5 bash -c "request $address" 2>&1 || true) in pod-*) fail "an answer at $address" ;; *) ;; esac
    done
    /files/ferroute explain service default/internal >explain.log 2>&1 || fail "explain: $(cat explain.log)"
    /files/ferroute preflight --from iptables >preflight.log 2>&1 || fail "preflight: $(cat preflight.log)"
    grep -q "use endpoints of other nodes if there are none on this node" preflight.log || fail "preflight: $(cat preflight.log)"
    finish internal
}
