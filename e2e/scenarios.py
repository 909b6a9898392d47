"""Actions of operators on a cluster under load: each scenario disturbs it while clients connect, and failed requests are counted.

Clients: a pod of node n1 and the node itself to the cluster IP, and a host outside to n1's node port. A scenario is a function; its
doc string is what `run.py scenarios --list` prints.
"""

import json
import os
import signal
import subprocess
import sys
import time

import proxy
from cluster import HERE, PREFIX, Problem, until

OTHER_MODE = {"iptables": "nftables", "nftables": "iptables", "ipvs": "iptables"}
# Time for which clients continue afterwards, so that late failures are detected: pods serve for 15 s after SIGTERM.
SETTLE = 18


class Load:
    """A client in a pod, on the node or outside, which counts failures until it is stopped."""

    def __init__(self, cluster, where, *arguments):
        if where == "pod":
            _, pid = cluster.container_pid("default", "client")
            enter = ["nsenter", "-t", str(pid), "-n"]
        else:
            enter = ["nsenter", f"--net=/run/netns/{PREFIX}{'n1' if where == 'node' else 'out'}"]
        self.process = subprocess.Popen([*enter, sys.executable, str(HERE / "load.py"), *map(str, arguments)], stdout=subprocess.PIPE, text=True)

    def stop(self):
        self.process.terminate()
        try:
            return json.loads(self.process.communicate(timeout=30)[0])
        except (subprocess.TimeoutExpired, ValueError):
            self.process.kill()
            raise Problem(f"the client {' '.join(self.process.args[-4:])} has not reported its requests")


def ready(cluster, service):
    path = "jsonpath={range .items[*].endpoints[*]}{.conditions.ready}{'\\n'}{end}"
    return cluster.kubectl("get", "endpointslices", "-l", f"kubernetes.io/service-name={service}", "-o", path).split().count("true")


def wait(cluster, count, what="web"):
    cluster.kubectl("rollout", "status", f"deployment/{what}", "--timeout=120s", timeout=150)
    until(f"{what} has {count} ready endpoints", lambda: ready(cluster, what) == count, 60)


def scale_to(cluster, count):
    cluster.kubectl("scale", "deployment/web", f"--replicas={count}")
    wait(cluster, count)


def restart(cluster):
    cluster.kubectl("rollout", "restart", "deployment/web")
    wait(cluster, 4)


def a_pod(cluster):
    return cluster.kubectl("get", "pod", "-l", "app=web", "-o", "name").split()[0]


def idle(cluster, mode):
    """Nothing happens for 15 s."""
    time.sleep(15)


def scale(cluster, mode):
    """4 pods become 8, 2, 6 and 4."""
    for count in (8, 2, 6, 4):
        scale_to(cluster, count)
    time.sleep(SETTLE)


def rolling(cluster, mode):
    """A rolling update replaces all pods."""
    restart(cluster)
    time.sleep(SETTLE)


def flap(cluster, mode):
    """A pod becomes unready and ready again, three times."""
    pod = a_pod(cluster)
    for command in ("touch", "rm") * 3:
        cluster.kubectl("exec", pod, "--", command, "/tmp/unready")
        time.sleep(3)


def drain(cluster, mode):
    """Node n2 is drained, and its pods move."""
    cluster.kubectl("drain", "n2", "--ignore-daemonsets", "--pod-selector=app=web", "--timeout=90s")
    wait(cluster, 4)
    cluster.kubectl("uncordon", "n2")
    restart(cluster)
    time.sleep(SETTLE)


def api(cluster, mode):
    """The API server dies and is away for 30 s; then the proxies have to follow again."""
    cluster.stop(cluster.control / "apiserver.pid", signal.SIGKILL)
    time.sleep(30)
    cluster.start_api_server()
    for count in (6, 4):
        scale_to(cluster, count)
    time.sleep(SETTLE)


def kubelet(cluster, mode):
    """n1's kubelet is away for 3 s."""
    cluster.stop(cluster.state / "n1/kubelet.pid")
    time.sleep(3)
    cluster.start_kubelet("n1")
    time.sleep(12)
    wait(cluster, 4)


def sigkill(cluster, mode):
    """The proxy of n1 is killed while a pod goes; the kubelet starts it again."""
    pod = cluster.kubectl("-n", "kube-system", "get", "pod", "-l", "app=ferroute", "--field-selector=spec.nodeName=n1", "-o",
                          "jsonpath={.items[0].metadata.name}")
    os.kill(cluster.container_pid("kube-system", pod)[1], signal.SIGKILL)
    cluster.kubectl("delete", a_pod(cluster), "--wait=false")
    until("the proxy of n1 runs again", lambda: proxy.active_mode(cluster, "n1") == mode, 60)
    wait(cluster, 4)
    time.sleep(SETTLE)


def upgrade(cluster, mode):
    """The DaemonSet replaces all proxies while pods come and go."""
    cluster.kubectl("-n", "kube-system", "rollout", "restart", "daemonset/ferroute")
    scale_to(cluster, 6)
    scale_to(cluster, 4)
    cluster.kubectl("-n", "kube-system", "rollout", "status", "daemonset/ferroute", "--timeout=180s", timeout=200)
    time.sleep(SETTLE)


def swap(cluster, mode):
    """kube-proxy takes the place of Ferroute in the same mode, and Ferroute that of kube-proxy."""
    proxy.remove_ferroute(cluster)
    proxy.start_kube_proxy(cluster, mode)
    try:
        for count in (6, 4):
            scale_to(cluster, count)
    finally:
        proxy.stop_kube_proxy(cluster)
    proxy.deploy_ferroute(cluster, mode)
    for count in (6, 4):
        scale_to(cluster, count)
    time.sleep(SETTLE)


def modes(cluster, mode):
    """The ConfigMap changes the mode, and changes it back."""
    for each in (OTHER_MODE[mode], mode):
        proxy.deploy_ferroute(cluster, each)
        for count in (6, 4):
            scale_to(cluster, count)
    time.sleep(SETTLE)


def udp(cluster, mode):
    """A UDP flow follows its Service's only pod to the next one."""
    cluster.kubectl("delete", "pod", "-l", "app=udp", "--wait=true")
    wait(cluster, 1, "udp")
    time.sleep(4)


ALL = {function.__name__: function
       for function in (idle, scale, rolling, flap, drain, api, kubelet, sigkill, upgrade, swap, modes, udp)}


def prepare(cluster):
    cluster.apply_text((HERE / "workload.yaml").read_text())
    wait(cluster, 4)
    wait(cluster, 1, "udp")
    cluster.kubectl("wait", "--for=condition=Ready", "pod/client", "--timeout=60s", timeout=90)


def clients(cluster, name):
    """Returns where clients run, and the arguments of each."""
    address = lambda service: cluster.kubectl("get", "service", service, "-o", "jsonpath={.spec.clusterIP}")
    if name == "udp":
        return {"pod": ("udp", address("udp"), 90, 40001), "outside": ("udp", "10.88.0.11", 30090, 40002)}
    web = address("web")
    return {"pod": ("tcp", web, 80, 40), "node": ("tcp", web, 80, 20), "outside": ("tcp", "10.88.0.11", 30080, 20)}


def play(cluster, mode, name):
    """Plays a scenario, prints a line, and returns whether no request failed.

    In `udp`, requests fail while there is no pod; in this scenario, the flow must reach the new pod.
    """
    loads, results, problems = {}, {}, []
    try:
        for where, arguments in clients(cluster, name).items():
            loads[where] = Load(cluster, where, *arguments)
        time.sleep(2)
        ALL[name](cluster, mode)
    except Problem as problem:
        problems.append(problem)
    finally:
        for where, load in loads.items():
            try:
                results[where] = load.stop()
            except Problem as problem:
                problems.append(problem)
    passed = not problems and all(result["endpoints"] > 1 if name == "udp" else not result["failed"] for result in results.values())
    counts = "  ".join(f"{where}: {result['failed']} of {result['failed'] + result['succeeded']} failed, {result['endpoints']} endpoints, "
                       f"slowest {result['slowest']} s" for where, result in results.items())
    print(f"{'ok    ' if passed else 'FAILED'} {mode:8} {name:8} {counts}", flush=True)
    if not passed:
        for where, result in results.items():
            for example in result["examples"]:
                print(f"         {where} {example}")
        for problem in problems:
            print(f"         {problem}")
    return passed
