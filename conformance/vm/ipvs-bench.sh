# Runs in a virtual machine (boot.sh) and measures ipvs mode at 10,000 Services with 10 endpoints each: the benchmark of its
# crate, /files/sync, and the memory of the program, /files/ferroute, beside nftables mode.
set -eu

modprobe dummy numdummies=0
modprobe -a ip_vs nf_conntrack_netlink
/files/sync 10000x10
mkdir manifests
awk 'BEGIN {
    for (i = 0; i < 10000; i++) {
        if (i % 100 == 0) file = "manifests/" i ".yaml"
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
    kill $proxy
    wait $proxy || true
    /files/ferroute run --cleanup >cleanup.log 2>&1
done
