"""The commands of docs/rollout.md, as they are written there, against a real API server with its controllers and scheduler.

The nodes exist as objects only, and their pods run at once: this is about which proxy a DaemonSet puts on which node, and when. Each
block of commands is followed by a check of the images on all nodes.
"""

import json
import os
import re
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
    # Once more, and to the end.
    ("kube-proxy's DaemonSet with Ferroute's image", 0, "OOO"),
    ("kube-proxy's DaemonSet with Ferroute's image", 1, "NOO"),
    ("kube-proxy's DaemonSet with Ferroute's image", 2, "NNN"),
    ("kubeadm and the patched DaemonSet", 0, "OOO"),
    ("Ferroute's own DaemonSet beside kube-proxy's", 0, "OOO"),
    ("Ferroute's own DaemonSet beside kube-proxy's", 1, "NOO"),
    ("Ferroute's own DaemonSet beside kube-proxy's", 3, "OOO"),
    ("Ferroute's own DaemonSet beside kube-proxy's", 0, "OOO"),
    ("Ferroute's own DaemonSet beside kube-proxy's", 1, "NOO"),
    ("kubectl label node --all service-proxy=ferroute", None, "NNN"),
    ("Ferroute's own DaemonSet beside kube-proxy's", 2, "NNN"),
    ("kubeadm and Ferroute's own DaemonSet", 0, "NNN"),
    ("A new version of Ferroute", 0, "NNN"),
    ("A new version of Ferroute", 1, "NNN"),
]


def blocks(text):
    """Returns the blocks of commands by heading. What has no part here, such as the plugin, is left out."""
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
        """What the kubelets of all nodes would do, once."""
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
        """The proxies of the nodes: `O` for kube-proxy, `N` for Ferroute, and what else runs there."""
        images = {name: "" for name in NODES}
        for pod in self.pods():
            image = pod["spec"]["containers"][0]["image"].rpartition(":")[0]
            kind = {OLD: "O", NEW: "N"}.get(image, image)
            if "ownerReferences" in pod["metadata"] and "nodeName" in pod["spec"]:
                images[pod["spec"]["nodeName"]] += kind if pod["status"].get("phase") == "Running" else kind.lower()
        return "".join(images.values())


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def kube_proxy():
    """kube-proxy as kubeadm installs it, as far as the commands depend on it."""
    labels = {"k8s-app": "kube-proxy"}
    configuration = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "iptables"}
    pod = {"priorityClassName": "system-node-critical", "hostNetwork": True, "serviceAccountName": "kube-proxy",
           "nodeSelector": {"kubernetes.io/os": "linux"}, "tolerations": [{"operator": "Exists"}],
           "volumes": [{"name": "kube-proxy", "configMap": {"name": "kube-proxy"}}],
           "containers": [{"name": "kube-proxy", "image": f"{OLD}:v1.36.2", "securityContext": {"privileged": True},
                           "command": ["/usr/local/bin/kube-proxy", "--config=/var/lib/kube-proxy/config.conf"],
                           "volumeMounts": [{"name": "kube-proxy", "mountPath": "/var/lib/kube-proxy"}]}]}
    metadata = {"name": "kube-proxy", "namespace": "kube-system"}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata,
         "data": {"config.conf": json.dumps(configuration), "kubeconfig.conf": ""}},
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {**metadata, "labels": labels},
         "spec": {"selector": {"matchLabels": labels}, "updateStrategy": {"type": "RollingUpdate"},
                  "template": {"metadata": {"labels": labels}, "spec": pod}}}]


def play(kubernetes):
    """Runs all steps, and returns whether each had its result."""
    cluster.PREFIX, cluster.NODES = "ferroute-rollout-", ()
    commands = blocks((HERE.parent / "docs/rollout.md").read_text())
    with tempfile.TemporaryDirectory(prefix="ferroute-rollout-") as directory:
        control = ControlPlane(kubernetes, directory)
        # As in `apply_text`, the server checks the objects.
        wrapper = Path(directory) / "bin/kubectl"
        wrapper.parent.mkdir()
        wrapper.write_text("#!/bin/sh\ncase \" $* \" in *' apply '*|*' create '*) set -- \"$@\" --validate=false ;; esac\n"
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
            # Not by `apply`, whose annotation `rollout undo` warns about.
            for item in kube_proxy():
                control.kubectl("create", "--validate=false", "-f", "-", input=json.dumps(item))
            kubelets = threading.Thread(target=serve, args=(control, done), daemon=True)
            kubelets.start()
            until("kube-proxy runs on all nodes", lambda: control.proxies() == "OOO", 60)
            for heading, block, expected in STEPS:
                step(control, wrapper.parent, heading if block is None else commands[heading][block], expected)
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
    until(f"proxies are {expected} (are {control.proxies()})", lambda: control.proxies() == expected, 60)
    # What comes late would show now.
    time.sleep(2)
    if control.proxies() != expected:
        raise Problem(f"proxies are {control.proxies()} (want {expected})")
    print(f"    ok: {expected}")
