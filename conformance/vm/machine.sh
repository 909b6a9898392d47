# Functions of the scripts that test in a virtual machine: checks, and the client of the machine, which is a node. Sourced by
# scripts that define `diagnose`, which prints what helps to understand a timeout, and WAIT, the longest time to wait for
# something, in tenths of a second.
set -eu # No pipefail: grep -q exits before reading all input.

POD_NET=10.244.0. POD_NET6=fd00:10:244::
failures=0

fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
inside() { ip netns exec "$@"; }
# wait_for DESCRIPTION COMMAND...: waits until the command succeeds.
wait_for() {
    local description=$1 tries=$WAIT
    shift
    until "$@" >/dev/null 2>&1; do
        tries=$((tries - 1))
        if [ $tries = 0 ]; then
            fail "timed out waiting for $description"
            [ ! -e proxy.log ] || tail -n 20 proxy.log
            diagnose
            return
        fi
        sleep 0.1
    done
}

# join NAMESPACE DEVICE: creates a namespace with a device eth0, whose other end is DEVICE.
join() {
    ip netns add "$1"
    ip link add "$2" type veth peer name eth0 netns "$1"
    ip link set "$2" up
    inside "$1" ip link set lo up
    inside "$1" ip link set eth0 up
}

# Adds the client and the network between it and the node.
join_client() {
    join client lan
    ip address add 192.0.2.1/24 dev lan
    ip address add 2001:db8::1/64 dev lan nodad
    # Without a route, the node cannot connect to a Service whose address it does not have.
    ip route add default via 192.0.2.2
    ip route add default via 2001:db8::2
    inside client ip address add 192.0.2.2/24 dev eth0
    inside client ip address add 2001:db8::2/64 dev eth0 nodad
    inside client ip route add default via 192.0.2.1
    inside client ip route add default via 2001:db8::1
}
