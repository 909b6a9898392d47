"""Runs the unchanged commands of docs/rollout.md against a real API server with its controllers and scheduler.

kubeadm installs kube-proxy and upgrades it. The nodes exist only as objects, and their pods run at once. The test checks on which
node a DaemonSet runs which proxy, and when. Each block of commands is followed by a check of the images on all nodes.
"""

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import cluster
from cluster import API, HERE, Problem, run, until

NODES = ("node-1", "node-2", "node-3")
OLD, NEW = "registry.k8s.io/kube-proxy", "registry.example.org/ferroute"
# Heading, number of the block of commands below it, and the proxies of the three nodes afterwards.
STEPS = [
    ("Checking a node", 0, "OOO"),
    ("kube-proxy's DaemonSet with Ferroute's image", 0, "OOO"),
    ("kube-proxy's DaemonSet with Ferroute's image", 1, "NOO"),
    ("kube-proxy's DaemonSet with Ferroute's image", 3, "OOO"),
    # Repeated, up to the end.
    ("kube-proxy's DaemonSet with Ferroute's image", 0, "OOO"),
    ("kube-proxy's DaemonSet with Ferroute's image", 1, "NOO"),
    ("kube-proxy's DaemonSet with Ferroute's image", 2, "NNN"),
    ("kubeadm upgrade apply --config skip.yaml", None, "NNN"),
    ("kubeadm upgrade apply --config upgrade.yaml", None, "OOO"),
    ("kubeadm and the patched DaemonSet", 0, "OOO"),
    ("Ferroute's own DaemonSet beside kube-proxy's", 0, "OOO"),
    ("Ferroute's own DaemonSet beside kube-proxy's", 1, "NOO"),
    ("Ferroute's own DaemonSet beside kube-proxy's", 3, "OOO"),
    ("Ferroute's own DaemonSet beside kube-proxy's", 0, "OOO"),
    ("Ferroute's own DaemonSet beside kube-proxy's", 1, "NOO"),
    ("kubectl label node --all service-proxy=ferroute", None, "NNN"),
    ("Ferroute's own DaemonSet beside kube-proxy's", 2, "NNN"),
    ("kubeadm and Ferroute's own DaemonSet", 0, "NNN"),
    # Also without the ConfigMap kube-proxy.
    ("kubeadm upgrade apply --config upgrade.yaml", None, "NONONO"),
    ("kubeadm and Ferroute's own DaemonSet", 0, "NNN"),
    # Instead of an editor.
    (r"kubectl -n kube-system get configmap kubeadm-config -o yaml | sed 's/^    proxy: .*/    proxy: {disabled: true}/' |"
     " kubectl replace -f - && kubeadm upgrade apply --config upgrade.yaml", None, "NNN"),
    ("A new version of Ferroute", 0, "NNN"),
    ("A new version of Ferroute", 1, "NNN"),
]


def blocks(text):
    """Returns the blocks of commands by heading. Parts that are not tested, such as the plugin, are left out."""
    found, heading, block = {}, "", []
    for line in [*text.splitlines(), "end"]:
        code = re.match(r"( {4}| {7})(\S.*| +\S.*)", line)
        if code and not re.match(r" *(\d+\.|-) ", line) and (block or re.match(r"(kubectl|sed) ", code[2].strip())):
            block.append(code[2].strip())
            continue
        if block:
            commands = "\n".join(line for line in block if not re.match(r"kubectl (ferroute|.* logs|.* edit)", line))
            if commands:
                found.setdefault(heading, []).append(commands)
            block = []
        if line.startswith("#"):
            heading = line.lstrip("# ")
    return found


class ControlPlane(cluster.Cluster):
    def make_network(self):
        ip = ("ip", "-n", cluster.PREFIX + "cp")
        run("ip", "netns", "add", cluster.PREFIX + "cp")
        run(*ip, "link", "set", "lo", "up")
        run(*ip, "link", "add", "eth0", "type", "veth", "peer", "name", "eth1")
        for name in ("eth0", "eth1"):
            run(*ip, "link", "set", name, "up")
        run(*ip, "address", "add", f"{API}/24", "dev", "eth0")
        run(*ip, "route", "add", "default", "via", API.rpartition(".")[0] + ".254")

    def make_nodes(self):
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady", "lastTransitionTime": now(), "lastHeartbeatTime": now()}
        room = {"cpu": "4", "memory": "8Gi", "pods": "100"}
        for name in NODES:
            self.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}}})
            self.patch("node", name, {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}})

    def patch(self, kind, name, status, namespace="kube-system"):
        self.kubectl("-n", namespace, "patch", kind, name, "--subresource=status", "-p", json.dumps(status), check=False)

    def pods(self):
        return json.loads(self.kubectl("get", "pods", "-A", "-o", "json"))["items"]

    def run_pods(self):
        """Does the work of the kubelets of all nodes, once."""
        for pod in self.pods():
            name, namespace, spec = pod["metadata"]["name"], pod["metadata"]["namespace"], pod["spec"]
            if "nodeName" not in spec:
                continue
            if "deletionTimestamp" in pod["metadata"]:
                self.kubectl("-n", namespace, "delete", "pod", name, "--grace-period=0", "--force", "--wait=false", check=False)
            elif pod["status"].get("phase") == "Pending":
                ready = {"type": "Ready", "status": "True", "lastTransitionTime": now()}
                running = {"running": {"startedAt": now()}}
                containers = [{"name": it["name"], "image": it["image"], "imageID": it["image"], "ready": True, "restartCount": 0,
                               "state": running} for it in spec["containers"]]
                self.patch("pod", name, {"status": {"phase": "Running", "conditions": [ready], "containerStatuses": containers}}, namespace)

    def proxies(self):
        """Returns the proxies of the nodes: `O` for kube-proxy, `N` for Ferroute, and the images of other pods; lower case if not running."""
        images = {name: "" for name in NODES}
        for pod in self.pods():
            image = pod["spec"]["containers"][0]["image"].rpartition(":")[0]
            kind = {OLD: "O", NEW: "N"}.get(image, image)
            if "ownerReferences" in pod["metadata"] and "nodeName" in pod["spec"]:
                images[pod["spec"]["nodeName"]] += kind if pod["status"].get("phase") == "Running" else kind.lower()
        return "".join(images.values())


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Kubeadm:
    """Runs kubeadm on the first node, as a control plane node. Steps that require a real host are left out."""

    OTHER_PHASES = ("preflight", "control-plane", "upload-config", "kubelet-config", "bootstrap-token", "addon/coredns", "post-upgrade")

    def __init__(self, control, directory):
        self.control, self.node = control, Path(directory) / "node"
        kubernetes = self.node / "etc/kubernetes"
        (kubernetes / "manifests").mkdir(parents=True)
        (self.node / "work").mkdir()
        (kubernetes / "manifests/kube-apiserver.yaml").write_text("{}")
        shutil.copy(control.admin, kubernetes / "admin.conf")
        self.version = run(control.binary("kubeadm"), "version", "-o", "short")
        configuration = "apiVersion: kubeadm.k8s.io/v1beta4\nkind: {kind}\n"
        (self.node / "cluster.yaml").write_text(
            configuration.format(kind="ClusterConfiguration") + f"kubernetesVersion: {self.version}\ncontrolPlaneEndpoint: {API}:6443\n")
        # The file of the project, and the same file without its effect.
        skip = (HERE.parent / "deploy/kubeadm/upgrade.yaml").read_text()
        skip = skip.replace("\napply:\n", "\napply:\n  forceUpgrade: true\n  ignorePreflightErrors: [all]\n")
        skip = skip.replace("skipPhases:\n", "skipPhases:\n" + "".join(f"    - {phase}\n" for phase in self.OTHER_PHASES))
        (self.node / "skip.yaml").write_text(skip)
        (self.node / "upgrade.yaml").write_text(skip.replace("    - addon/kube-proxy\n", ""))

    def script(self):
        """Creates a program `kubeadm` that runs in the directory of its files, as on the node."""
        # `upgrade apply` takes the version last.
        return f"""#!/bin/sh
case "$1 $2" in 'upgrade apply') set -- "$@" {self.version} ;; esac
exec unshare --uts --mount sh -ec '
    hostname {NODES[0]}; cd {self.node}
    mount -t overlay etc -o lowerdir=/etc,upperdir={self.node}/etc,workdir={self.node}/work /etc
    exec {self.control.binary("kubeadm").resolve()} "$@"' sh "$@"
"""

    def install(self, program):
        """Installs kube-proxy as kubeadm does, and the objects that an upgrade by kubeadm requires."""
        node = [*self.control.in_namespace("cp"), program]
        for phase in (["upload-config", "kubeadm"], ["upload-config", "kubelet"], ["addon", "kube-proxy"]):
            run(*node, "init", "phase", *phase, "--config", "cluster.yaml", "--kubeconfig", "/etc/kubernetes/admin.conf")
        self.control.kubectl("label", "node", NODES[0], "node-role.kubernetes.io/control-plane=")
        self.control.kubectl("annotate", "node", NODES[0], "kubeadm.alpha.kubernetes.io/cri-socket=unix:///run/containerd/containerd.sock")
        metadata = {"name": f"kube-apiserver-{NODES[0]}", "namespace": "kube-system",
                    "labels": {"component": "kube-apiserver", "tier": "control-plane"},
                    "annotations": {"kubeadm.kubernetes.io/kube-apiserver.advertise-address.endpoint": f"{API}:6443"}}
        account = ("-n", "kube-system", "get", "serviceaccount", "default", "-o", "name")
        until("the namespace has its service account", lambda: self.control.kubectl(*account, check=False), 30)
        containers = [{"name": "kube-apiserver", "image": f"registry.k8s.io/kube-apiserver:{self.version}"}]
        self.control.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {
            "nodeName": NODES[0], "hostNetwork": True, "tolerations": [{"operator": "Exists"}], "containers": containers}})


def play(kubernetes):
    """Runs all steps, and returns whether all had the expected result."""
    cluster.PREFIX, cluster.NODES = "ferroute-rollout-", ()
    commands = blocks((HERE.parent / "docs/rollout.md").read_text())
    with tempfile.TemporaryDirectory(prefix="ferroute-rollout-") as directory:
        control = ControlPlane(kubernetes, directory)
        control.check(more=["kubeadm"], host_programs={"ip": "iproute2", "openssl": "openssl", "unshare": "util-linux"})
        # As in `apply_text`, the server checks the objects.
        programs = Path(directory) / "bin"
        programs.mkdir()
        wrapper = programs / "kubectl"
        wrapper.write_text("#!/bin/sh\ncase \" $* \" in *' apply '*|*' create '*|*' replace '*) set -- \"$@\" --validate=false ;; esac\n"
                           f"exec {control.binary('kubectl').resolve()} --kubeconfig {control.admin} \"$@\"\n")
        wrapper.chmod(0o755)
        done = threading.Event()
        try:
            control.control.mkdir()
            control.logs.mkdir()
            control.make_network()
            control.make_credentials()
            control.start_control_plane()
            control.make_nodes()
            kubeadm = Kubeadm(control, directory)
            (programs / "kubeadm").write_text(kubeadm.script())
            (programs / "kubeadm").chmod(0o755)
            kubeadm.install(programs / "kubeadm")
            kubelets = threading.Thread(target=serve, args=(control, done), daemon=True)
            kubelets.start()
            until("kube-proxy runs on all nodes", lambda: control.proxies() == "OOO", 60)
            for heading, block, expected in STEPS:
                step(control, programs, heading if block is None else commands[heading][block], expected)
            return True
        finally:
            done.set()
            control.down()


def serve(control, done):
    while not done.wait(0.3):
        try:
            control.run_pods()
        except (Problem, ValueError):
            pass


def step(control, path, commands, expected):
    environment = {**os.environ, "PATH": f"{path}:{os.environ['PATH']}"}
    print(commands)
    done = subprocess.run([*control.in_namespace("cp"), "bash", "-ec", commands], cwd=HERE.parent, env=environment, text=True,
                                        capture_output=True, timeout=180)
    if done.returncode:
        raise Problem(f"exit status {done.returncode}: {done.stderr.strip()}")

    def settled():
        # Late changes would be visible after a while.
        return control.proxies() == expected and not time.sleep(2) and control.proxies() == expected

    until(f"proxies are {expected} (are {control.proxies()})", settled, 60)
    print(f"    ok: {expected}")
