# Runs in a virtual machine (boot.sh) and measures ipvs mode at 10,000 Services with 10 endpoints each: the benchmark of its
# crate, /files/sync, the time from a change to traffic, /files/compare, and the memory of the program, /files/ferroute, and
# what a change costs it, beside nftables mode.
set -eu

SERVICES=${SERVICES:-10000}
modprobe dummy numdummies=0
modprobe -a ip_vs nf_conntrack_netlink
[ ! -e /files/sync ] || /files/sync ${SERVICES}x10
[ ! -e /files/compare ] || FERROUTE=/files/ferroute /files/compare fake nftables ipvs 1000x10 ${SERVICES}x10 20/s 200/s
mkdir manifests
# The first Service has a file of its own, which changes.
awk -v services=$SERVICES 'BEGIN {
    for (i = 0; i < services; i++) {
        if (i % 100 <= 1) file = "manifests/" (i ? int(i / 100) : "first") ".yaml"
        printf "apiVersion: v1\nkind: Service\nmetadata: {name: s-%d}\nspec: {clusterIP: 10.%d.%d.%d, ports: [{port: 80, targetPort: 8080}]}\n---\n",
            i, 96 + i / 65536, i / 256 % 256, i % 256 > file
        printf "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s-%d, labels: {kubernetes.io/service-name: s-%d}}\naddressType: IPv4\nports: [{port: 8080}]\nendpoints: [", i, i > file
        for (e = 0; e < 10; e++) printf "{addresses: [10.%d.%d.%d]}, ", 128 + (10 * i + e) / 65536, (10 * i + e) / 256 % 256, (10 * i + e) % 256 > file
        printf "]\n---\n" > file
    }
}'
ip link add lan type dummy
ip link set lan up
ip address add 192.0.2.1/24 dev lan

# churn LOG: replaces an endpoint a hundred times, and prints what the syncs took.
churn() {
    local before change ticks
    before=$(wc -l <"$1")
    ticks=$(awk '{ print $14 + $15 }' /proc/$proxy/stat)
    cp manifests/first.yaml first.yaml
    for change in $(seq 100); do
        sed "s/10\.128\.0\.9\]/10.$((200 + change % 2)).0.9]/" first.yaml >first.new
        mv first.new manifests/first.yaml
        sleep 0.05
    done
    sleep 2
    ticks=$(($(awk '{ print $14 + $15 }' /proc/$proxy/stat) - ticks))
    sed "1,${before}d" "$1" | sed -n 's/.* synced .* took=\([0-9.]*\)\([^0-9. ]*\).*/\1 \2/p' |
        awk '{ print $1 * ($2 == "s" ? 1000 : $2 == "ms" ? 1 : 0.001) }' | sort -n |
        awk -v ticks=$ticks '{ took[NR] = $1 } END {
            printf "%d syncs of a change, p50 %.2f ms, p90 %.2f ms, all with their parsing %d ms of a processor\n",
                NR, took[int((NR + 1) / 2)], took[int(NR * 0.9)], 10 * ticks }'
    cp first.yaml manifests/first.yaml
}
for mode in nftables ipvs; do
    /files/ferroute run --manifests manifests --proxy-mode $mode --hostname-override node-1 --cluster-cidr 10.128.0.0/16 \
        >$mode.log 2>&1 &
    proxy=$!
    for second in $(seq 600); do
        ! grep -q 'synced family=IPv4' $mode.log || break
        sleep 1
    done
    sleep 20
    echo "$mode: $(grep -o 'synced family=IPv4 .*' $mode.log | head -n 1)"
    grep -e RssAnon /proc/$proxy/status | xargs echo "$mode:"
    echo "$mode: $(churn $mode.log)"
    kill $proxy
    wait $proxy || true
    /files/ferroute run --cleanup >cleanup.log 2>&1
done
