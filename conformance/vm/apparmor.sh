# Runs in a virtual machine (boot.sh) and tests deploy/apparmor/ferroute: the program serves in each mode, and the kernel has denied
# nothing. Debian's kernel has AppArmor.
set -eu
. /files/machine.sh

WAIT=600
diagnose() { dmesg | tail -n 20; }

mount -t securityfs securityfs /sys/kernel/security
[ -e /sys/kernel/security/apparmor/.load ] || { echo "FAILED: this kernel has no AppArmor"; exit 1; }
apparmor_parser -K -r /files/apparmor/ferroute
cp /files/ferroute /bin/ferroute
sysctl -qw net.ipv4.ip_forward=1 kernel.printk_ratelimit=0
join pod pod
ip address add 10.244.0.1/24 dev pod
inside pod ip address add 10.244.0.2/24 dev eth0
inside pod ip route add default via 10.244.0.1
inside pod busybox nc -ll -p 8080 -e busybox echo pod &
join_client
mkdir -p /etc/ferroute/manifests
configure() { # MODE OOM_SCORE_ADJ
    cat >config.new <<YAML
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: $1
oomScoreAdj: $2
YAML
    mv config.new /etc/ferroute/config.yaml
}
cat >/etc/ferroute/manifests/web.yaml <<'YAML'
apiVersion: v1
kind: Service
metadata: {name: web}
spec:
  type: NodePort
  clusterIP: 10.96.0.1
  ports: [{port: 80, targetPort: 8080, nodePort: 30080}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-4, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [10.244.0.2]}]
YAML

serves() { inside client bash -c "read -r -t 5 answer <>/dev/tcp/$1/$2 && [ \"\$answer\" = pod ]"; }

# confined MODE [FLAG...]: starts the proxy as its unit does, with the profile, and ends it again with its rules.
confined() {
    echo "== $*"
    configure "$1" -900
    aa-exec -p ferroute -- /bin/ferroute run --config /etc/ferroute/config.yaml --manifests /etc/ferroute/manifests "${@:2}" >proxy.log 2>&1 &
    proxy=$!
    wait_for "the node port in mode $1" serves 192.0.2.1 30080
    grep -q '^ferroute (enforce)' /proc/$proxy/attr/current || fail "the proxy is not confined: $(cat /proc/$proxy/attr/current)"
    # A changed configuration makes it start itself again.
    configure "$1" -800
    wait_for "the new configuration" grep -q -- "oom_score_adj = -800" proxy.log
    wait_for "the answer to a command" /bin/ferroute status
    wait_for "the node port in mode $1, with a new configuration" serves 192.0.2.1 30080
    kill $proxy
    wait $proxy || fail "exit status of the proxy: $(cat proxy.log)"
    aa-exec -p ferroute -- /bin/ferroute run --cleanup >cleanup.log 2>&1 || fail "cleanup: $(cat cleanup.log)"
}

confined nftables
confined iptables
confined iptables --iptables-programs
confined userspace
confined ipvs
dmesg | grep 'apparmor="DENIED"' >denied || true
[ ! -s denied ] || fail "AppArmor denied: $(cat denied)"
# What the profile does not allow is denied.
cp /etc/ferroute/manifests/web.yaml /home.yaml
/bin/ferroute check /home.yaml >check.log 2>&1 || fail "check without the profile: $(cat check.log)"
! aa-exec -p ferroute -- /bin/ferroute check /home.yaml >check.log 2>&1 || fail "the profile allows any file"
grep -qi "permission denied" check.log || fail "check with the profile: $(cat check.log)"
echo "AppArmor: $failures failures"
[ $failures = 0 ]
