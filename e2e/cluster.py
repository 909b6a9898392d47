"""A Kubernetes cluster of three nodes on one machine, made of network namespaces.

The control plane (etcd, API server, controller manager, scheduler, cluster DNS) is in one namespace, with the bridge that connects
all; each node has separate network, mount and UTS namespaces with a containerd and a kubelet; one more namespace is a host outside
of the cluster. Both IP families. Everything is below one directory of state, so that a command can find what an earlier one started.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
PREFIX = "ferroute-e2e-"
NODES = ("n1", "n2", "n3")
API = "10.88.0.1"
API_URL = f"https://{API}:6443"
DNS = "10.96.0.10"
SERVICES = "10.96.0.0/16,fd96::/112"
PODS = "10.244.0.0/16,fd44::/32"
# The programs of a Kubernetes release, from its server and test archives, and etcd.
BINARIES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
# The image of pods' sandboxes, which Kubernetes 1.36 tests with.
PAUSE = "registry.k8s.io/pause:3.10.2"
# Programs from packages of Debian or another distribution.
HOST_PROGRAMS = {
    "containerd": "containerd", "ctr": "containerd", "runc": "runc", "ip": "iproute2", "nsenter": "util-linux", "openssl": "openssl",
    "conntrack": "conntrack", "/usr/lib/cni/bridge": "containernetworking-plugins", "curl": "curl", "sysctl": "procps",
}


class Problem(Exception):
    """An error that the caller must fix; its text describes it."""


def run(*command, input=None, check=True, timeout=120):
    """Runs a command and returns its output; the error contains the command and its output."""
    command = [str(part) for part in command]
    try:
        done = subprocess.run(command, input=input, text=True, capture_output=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        raise Problem(f"{' '.join(command)}: not within {timeout} s")
    if check and done.returncode:
        raise Problem(f"{' '.join(command)}: exit status {done.returncode}\n{done.stderr.strip()}")
    return done.stdout.strip()


def until(what, condition, seconds):
    """Waits until the condition holds; `what` names it if it never does."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Problem(f"not within {seconds} s: {what}")
        time.sleep(0.5)


def program_problem(path):
    """Returns what prevents a file from being executed here, or None."""
    if not path.exists():
        return "missing"
    if not os.access(path, os.X_OK):
        return "not executable"
    with open(path, "rb") as file, open(sys.executable, "rb") as own:
        found, expected = file.read(20), own.read(20)
    # The type of file, and the machine.
    is_for_this_machine = (found[:5], found[18:]) == (expected[:5], expected[18:])
    return None if found[:2] == b"#!" or is_for_this_machine else "not a program for this machine"


def number(node):
    return int(node[1:])


class Cluster:
    def __init__(self, kubernetes, state):
        self.kubernetes, self.state = Path(kubernetes), Path(state)
        self.control = self.state / "control"
        self.logs = self.state / "log"
        self.admin = self.control / "admin.conf"

    # Programs, each with a file that has its process ID.

    def start(self, pid_file, log, *command):
        with open(self.logs / log, "ab") as output:
            process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                       start_new_session=True)
        pid_file.write_text(str(process.pid))

    def stop(self, pid_file, sig=signal.SIGTERM):
        if not pid_file.exists():
            return
        pid = int(pid_file.read_text())
        pid_file.unlink()
        try:
            os.kill(pid, sig)
            for _ in range(100):
                os.kill(pid, 0)
                try:
                    os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    pass
                time.sleep(0.1)
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def binary(self, name):
        return self.kubernetes / name

    def kubectl(self, *args, **options):
        return run(*self.in_namespace("cp"), self.binary("kubectl"), "--kubeconfig", self.admin, *args, **options)

    def apply(self, *objects):
        self.apply_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}))

    def apply_text(self, text):
        """Applies manifests. The server checks them; kubectl's own check waits for a description of all objects first."""
        self.kubectl("apply", "--validate=false", "-f", "-", input=text)

    @staticmethod
    def in_namespace(name):
        return ["ip", "netns", "exec", PREFIX + name]

    def node_pid(self, node):
        return (self.state / node / "pid").read_text()

    def in_node(self, node):
        """Returns the command that enters a node, with the node's root directory."""
        return ["nsenter", "-t", self.node_pid(node), "-n", "-m", "-u"]

    def container_pid(self, namespace, pod):
        """Returns the node of a pod, and the process ID of its first container."""
        status = json.loads(self.kubectl("-n", namespace, "get", "pod", pod, "-o", "json"))
        container = status["status"]["containerStatuses"][0]["containerID"].removeprefix("containerd://")
        node = status["spec"]["nodeName"]
        for line in run(*self.in_node(node), "ctr", "-n", "k8s.io", "tasks", "ls").splitlines():
            if line.split()[0] == container:
                return node, int(line.split()[1])
        raise Problem(f"the container of pod {namespace}/{pod} does not run")

    # Up and down.

    def check(self, more=(), host_programs=HOST_PROGRAMS):
        """Reports everything that is missing, before anything is started."""
        problems = []
        programs = {name: program_problem(self.binary(name)) for name in (*BINARIES, *more)}
        if any(programs.values()):
            problems.append("\n  ".join([
                f"{self.kubernetes} lacks programs for this machine:" if self.kubernetes.is_dir() else f"{self.kubernetes} is not a directory:",
                *(f"{name}: {problem}" for name, problem in programs.items() if problem),
                "Unpack the server and test archives of a Kubernetes release, and etcd, into one directory: e2e/README.md"]))
        packages = {package for program, package in host_programs.items() if not shutil.which(program)}
        if packages:
            problems.append("install these packages: " + " ".join(sorted(packages)))
        if os.geteuid():
            problems.append("namespaces need root: run this as root")
        if problems:
            raise Problem("\n".join(problems))

    def has_namespaces(self):
        return Path(f"/run/netns/{PREFIX}cp").exists()

    def require(self, running):
        """Reports a cluster that does not run, or one that does."""
        if running and not (self.admin.exists() and self.has_namespaces()):
            raise Problem(f"no cluster runs in {self.state}: start one with `up` first")
        if not running and self.control.exists():
            raise Problem(f"{self.state} has a cluster already: end it with `down`")

    def up(self, archives):
        """Starts all parts, with the images of `archives` on all nodes."""
        for directory in (self.control, self.logs, *(self.state / node for node in NODES)):
            directory.mkdir(parents=True, exist_ok=directory == self.logs)
        self.make_network()
        self.make_credentials()
        self.start_control_plane()
        for node in NODES:
            self.start_node(node)
            for archive in archives:
                run(*self.in_node(node), "ctr", "-n", "k8s.io", "images", "import", archive, timeout=300)
            self.start_kubelet(node)
        self.kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=120s", timeout=150)

    def down(self):
        # After a restart of the machine, the process IDs belong to other processes.
        if self.has_namespaces():
            self.end_programs()
        for name in ("cp", "out", *NODES):
            run("ip", "netns", "delete", PREFIX + name, check=False)
        for name in ("control", *NODES):
            shutil.rmtree(self.state / name, ignore_errors=True)

    def end_programs(self):
        for node in NODES:
            directory = self.state / node
            self.stop(directory / "proxy.pid")
            self.stop(directory / "kubelet.pid")
            if (directory / "pid").exists():
                self.end_containers(node)
            self.stop(directory / "containerd.pid")
            self.stop(directory / "pid", signal.SIGKILL)
        for name in ("dns", "scheduler", "controller-manager", "apiserver", "etcd"):
            self.stop(self.control / f"{name}.pid")

    def end_containers(self, node):
        """Ends the shims of a node's containers: only those in its mount namespace."""
        space = os.readlink(f"/proc/{self.node_pid(node)}/ns/mnt")
        for process in Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            try:
                shim = b"containerd-shim" in (process / "cmdline").read_bytes() and os.readlink(process / "ns/mnt") == space
                children = (process / "task" / process.name / "children").read_text().split() if shim else []
                for pid in [*children, *([process.name] if shim else [])]:
                    os.kill(int(pid), signal.SIGKILL)
            except (OSError, ValueError):
                continue

    def make_network(self):
        for name in ("cp", "out", *NODES):
            ip = ("ip", "-n", PREFIX + name)
            run("ip", "netns", "add", PREFIX + name)
            run(*ip, "link", "set", "lo", "up")
            run(*self.in_namespace(name), "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1",
                "net.ipv6.conf.all.accept_dad=0", "net.ipv6.conf.default.accept_dad=0")
        cp = ("ip", "-n", PREFIX + "cp")
        run(*cp, "link", "add", "br0", "type", "bridge")
        run(*cp, "link", "set", "br0", "up")
        run(*cp, "address", "add", f"{API}/24", "dev", "br0")
        run(*cp, "address", "add", "fd88::1/64", "dev", "br0", "nodad")
        # Packets between the nodes must not pass this host's rules.
        run(*self.in_namespace("cp"), "sysctl", "-qw", "net.bridge.bridge-nf-call-iptables=0", "net.bridge.bridge-nf-call-ip6tables=0",
            check=False)
        for name in ("out", *NODES):
            host = 100 if name == "out" else 10 + number(name)
            ip = ("ip", "-n", PREFIX + name)
            run("ip", "link", "add", "eth0", "netns", PREFIX + name, "type", "veth", "peer", "name", f"v-{name}", "netns", PREFIX + "cp")
            run(*cp, "link", "set", f"v-{name}", "master", "br0", "up")
            run(*ip, "address", "add", f"10.88.0.{host}/24", "dev", "eth0")
            run(*ip, "address", "add", f"fd88::{host}/64", "dev", "eth0", "nodad")
            run(*ip, "link", "set", "eth0", "up")
            run(*ip, "route", "add", "default", "via", API)
            run(*ip, "route", "add", "default", "via", "fd88::1")
        for name in ("cp", "out", *NODES):
            for other in NODES:
                if other != name:
                    i = number(other)
                    run("ip", "-n", PREFIX + name, "route", "add", f"10.244.{i}.0/24", "via", f"10.88.0.{10 + i}")
                    run("ip", "-n", PREFIX + name, "route", "add", f"fd44:{i}::/64", "via", f"fd88::{10 + i}")

    def make_credentials(self):
        at = self.control

        def key(name, subject):
            run("openssl", "req", "-newkey", "rsa:2048", "-nodes", "-keyout", at / f"{name}.key", "-out", at / f"{name}.csr", "-subj", subject)

        run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", at / "ca.key", "-out", at / "ca.crt", "-days", "30",
            "-subj", "/CN=ferroute-e2e")
        run("openssl", "genrsa", "-out", at / "accounts.key", "2048")
        key("api", "/CN=kube-apiserver")
        names = [f"IP:{address}" for address in (API, "127.0.0.1", "10.96.0.1", "fd96::1")]
        names += [f"DNS:{name}" for name in ("kubernetes", "kubernetes.default", "kubernetes.default.svc")]
        (at / "names").write_text("subjectAltName=" + ",".join(names) + "\n")
        run("openssl", "x509", "-req", "-in", at / "api.csr", "-CA", at / "ca.crt", "-CAkey", at / "ca.key", "-CAcreateserial", "-days", "30",
            "-extfile", at / "names", "-out", at / "api.crt")
        tokens = ['admin-token,admin,admin,"system:masters"']
        tokens += [f'{node}-token,system:node:{node},{node},"system:nodes"' for node in NODES]
        (at / "tokens.csv").write_text("\n".join(tokens) + "\n")
        self.write_kubeconfig(self.admin, {"token": "admin-token"})
        for node in NODES:
            self.write_kubeconfig(self.state / node / "kubelet.conf", {"token": f"{node}-token"})

    def write_kubeconfig(self, path, user):
        path.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": API_URL, "certificate-authority": str(self.control / "ca.crt")}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        }))

    def start_api_server(self):
        at = self.control
        self.start(
            at / "apiserver.pid", "apiserver.log", *self.in_namespace("cp"), self.binary("kube-apiserver"),
            "--etcd-servers=http://127.0.0.1:2379", "--secure-port=6443", f"--advertise-address={API}",
            f"--tls-cert-file={at}/api.crt", f"--tls-private-key-file={at}/api.key", f"--client-ca-file={at}/ca.crt", f"--cert-dir={at}/certs",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={at}/accounts.key",
            f"--service-account-signing-key-file={at}/accounts.key", "--authorization-mode=Node,RBAC", f"--token-auth-file={at}/tokens.csv",
            f"--service-cluster-ip-range={SERVICES}", "--allow-privileged", "--enable-admission-plugins=NodeRestriction",
            "--kubelet-preferred-address-types=InternalIP")
        until("the API server is ready (see its log)", self.api_ready, 120)

    def api_ready(self):
        return self.kubectl("get", "--raw", "/readyz", check=False) == "ok"

    def start_control_plane(self):
        at, cp = self.control, self.in_namespace("cp")
        self.start(at / "etcd.pid", "etcd.log", *cp, self.binary("etcd"), "--data-dir", at / "etcd", "--listen-client-urls",
                   "http://127.0.0.1:2379", "--advertise-client-urls", "http://127.0.0.1:2379", "--listen-peer-urls", "http://127.0.0.1:2380")
        self.start_api_server()
        self.start(at / "controller-manager.pid", "controller-manager.log", *cp, self.binary("kube-controller-manager"),
                   f"--kubeconfig={self.admin}", "--leader-elect=false", "--use-service-account-credentials", f"--root-ca-file={at}/ca.crt",
                   f"--service-account-private-key-file={at}/accounts.key", "--allocate-node-cidrs=false",
                   f"--service-cluster-ip-range={SERVICES}", f"--cluster-cidr={PODS}",
                   # On a slow machine, nodes must not become NotReady while a scenario stops the API server.
                   "--node-monitor-grace-period=10m")
        self.start(at / "scheduler.pid", "scheduler.log", *cp, self.binary("kube-scheduler"), f"--kubeconfig={self.admin}",
                   "--leader-elect=false")
        # Cluster DNS is a program of the control plane behind a Service without a selector.
        self.start(at / "dns.pid", "dns.log", *cp, "python3", HERE / "dns.py", API, f"{API}:6443", at / "ca.crt", "admin-token")
        ports = [("dns", "UDP"), ("dns-tcp", "TCP")]
        self.apply(
            {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "kube-dns", "namespace": "kube-system"},
             "spec": {"clusterIP": DNS, "ports": [{"name": name, "port": 53, "protocol": protocol} for name, protocol in ports]}},
            {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
             "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"kubernetes.io/service-name": "kube-dns"}},
             "ports": [{"name": name, "port": 53, "protocol": protocol} for name, protocol in ports],
             "endpoints": [{"addresses": [API], "conditions": {"ready": True}}]})

    def start_node(self, node):
        i, at = number(node), self.state / node
        for name in ("kubelet", "containerd", "cni-state", "cni", "log"):
            (at / name).mkdir()
        # Each node has separate directories for paths to which its programs write by fixed names.
        mounts = f"""
            hostname {node}; mount --make-rshared /; mkdir -p /var/lib/kubelet /var/lib/containerd /var/lib/cni
            mount -t tmpfs run-{node} /run
            mount --bind {at}/kubelet /var/lib/kubelet; mount --bind {at}/containerd /var/lib/containerd
            mount --bind {at}/cni-state /var/lib/cni; mount --bind {at}/log /var/log
            mount --make-rshared /run; mkdir -p /run/netns; touch {at}/mounted; exec sleep infinity"""
        self.start(at / "pid", f"{node}.log", "nsenter", f"--net=/run/netns/{PREFIX}{node}", "unshare", "--mount", "--uts", "--propagation",
                   "private", "bash", "-ec", mounts)
        until(f"the directories of {node} are mounted", (at / "mounted").exists, 10)
        (at / "cni/10-pods.conflist").write_text(json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [
            {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipMasq": False, "ipam": {
                "type": "host-local", "ranges": [[{"subnet": f"10.244.{i}.0/24"}], [{"subnet": f"fd44:{i}::/64"}]],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
            {"type": "portmap", "capabilities": {"portMappings": True}, "snat": True}]}))
        (at / "containerd.toml").write_text(f"""
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
disable_apparmor = true
restrict_oom_score_adj = true
sandbox_image = "{PAUSE}"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{at}/cni"
""")
        (at / "resolv.conf").write_text("nameserver 10.255.255.53\n")
        (at / "kubelet.yaml").write_text(json.dumps({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "failCgroupV1": False,
            "cgroupDriver": "cgroupfs", "cgroupsPerQOS": False, "enforceNodeAllocatable": [], "failSwapOn": False,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}}, "authorization": {"mode": "AlwaysAllow"},
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100, "clusterDNS": [DNS], "clusterDomain": "cluster.local",
            "resolvConf": f"{at}/resolv.conf", "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            # Shows changes of ConfigMaps to pods within seconds.
            "syncFrequency": "5s", "configMapAndSecretChangeDetectionStrategy": "Watch"}))
        self.start(at / "containerd.pid", f"containerd-{node}.log", *self.in_node(node), "containerd", "-c", at / "containerd.toml")
        until(f"containerd of {node} answers (see its log)",
              lambda: run(*self.in_node(node), "ctr", "version", check=False).count("Version") > 1, 30)
        self.apply({"apiVersion": "v1", "kind": "Node",
                    "metadata": {"name": node, "labels": {"kubernetes.io/hostname": node, "topology.kubernetes.io/zone": f"zone-{i}"}},
                    "spec": {"podCIDR": f"10.244.{i}.0/24", "podCIDRs": [f"10.244.{i}.0/24", f"fd44:{i}::/64"]}})

    def start_kubelet(self, node):
        at, i = self.state / node, number(node)
        self.start(at / "kubelet.pid", f"kubelet-{node}.log", *self.in_node(node), self.binary("kubelet"), f"--config={at}/kubelet.yaml",
                   f"--kubeconfig={at}/kubelet.conf", f"--hostname-override={node}", f"--node-ip=10.88.0.{10 + i},fd88::{10 + i}",
                   "--root-dir=/var/lib/kubelet", "--v=2")
