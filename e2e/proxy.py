"""The proxy that serves the nodes: Ferroute as its DaemonSet, or kube-proxy as a program of each node."""

import json
import signal

from cluster import API_URL, HERE, NODES, PODS, Problem, run, until

IMAGE = "localhost/ferroute:e2e"


def configuration(mode, kubeconfig):
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": mode, "clusterCIDR": PODS,
        "clientConnection": {"kubeconfig": kubeconfig},
        # The size of the connection tracking table is a setting of the machine; its timeouts are settings of each node.
        "conntrack": {"maxPerCore": 0, "min": 0},
    }


def write_overlay(directory):
    """Returns a kustomization of deploy/kubernetes with this cluster's image and API server; only the ConfigMap sets the mode."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "patch.json").write_text(json.dumps({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "ferroute", "namespace": "kube-system"},
        "spec": {"template": {"spec": {
            "initContainers": [{"name": "kernel-settings", "imagePullPolicy": "Never"}],
            "containers": [{"name": "ferroute", "imagePullPolicy": "Never"}]}}}}))
    base = HERE.parent / "deploy/kubernetes"
    link = directory / "base"
    if not link.is_symlink():
        link.symlink_to(base)
    (directory / "kustomization.yaml").write_text(json.dumps({
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": ["base"],
        "images": [{"name": "registry.example.org/ferroute", "newName": IMAGE.split(":")[0], "newTag": IMAGE.split(":")[1]}],
        "patches": [{"path": "patch.json"}]}))


def deploy_ferroute(cluster, mode):
    """Installs the DaemonSet, or changes its mode in the ConfigMap, like an operator; the proxies follow without a restart."""
    kubeconfig = json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "c", "cluster": {
            "server": API_URL, "certificate-authority": "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"}}],
        "users": [{"name": "u", "user": {"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]})
    overlay = cluster.state / "control/overlay"
    write_overlay(overlay)
    objects = run(cluster.binary("kubectl"), "kustomize", "--load-restrictor", "LoadRestrictionsNone", overlay)
    files = {"config.conf": json.dumps(configuration(mode, "/var/lib/ferroute/kubeconfig.conf")), "kubeconfig.conf": kubeconfig}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ferroute", "namespace": "kube-system"}, "data": files}
    kept = [part for part in objects.split("\n---\n") if "\nkind: ConfigMap\n" not in "\n" + part]
    cluster.apply_text("\n---\n".join([*kept, json.dumps(config_map)]))
    cluster.kubectl("-n", "kube-system", "rollout", "status", "daemonset/ferroute", "--timeout=120s", timeout=150)
    until(f"all proxies are in {mode} mode", lambda: all(active_mode(cluster, node) == mode for node in NODES), 120)


def active_mode(cluster, node):
    """Returns the mode of the proxy of a node, from the same address as kube-proxy's."""
    return run(*cluster.in_node(node), "curl", "-sf", "-m", "2", "http://127.0.0.1:10249/proxyMode", check=False)


def remove_ferroute(cluster):
    """Removes the DaemonSet. The rules stay, as with any proxy."""
    cluster.kubectl("-n", "kube-system", "delete", "daemonset/ferroute", "--ignore-not-found", "--wait")


def start_kube_proxy(cluster, mode):
    """Starts kube-proxy on each node, with the permissions that kubeadm grants to it."""
    program = cluster.binary("kube-proxy")
    if not program.exists():
        raise Problem(f"{program} is missing: the scenario `swap` replaces Ferroute with it")
    cluster.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "kube-proxy", "namespace": "kube-system"}},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "kubeadm:node-proxier"},
         "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-proxier"},
         "subjects": [{"kind": "ServiceAccount", "name": "kube-proxy", "namespace": "kube-system"}]})
    token = cluster.kubectl("create", "token", "kube-proxy", "-n", "kube-system", "--duration=24h")
    for node in NODES:
        at = cluster.state / node
        cluster.write_kubeconfig(at / "proxy.conf", {"token": token})
        (at / "proxy.yaml").write_text(json.dumps(configuration(mode, str(at / "proxy.conf"))))
        cluster.start(at / "proxy.pid", f"kube-proxy-{node}.log", *cluster.in_node(node), program, f"--config={at}/proxy.yaml",
                      f"--hostname-override={node}")
    until(f"all kube-proxies are in {mode} mode", lambda: all(active_mode(cluster, node) == mode for node in NODES), 60)


def stop_kube_proxy(cluster):
    for node in NODES:
        cluster.stop(cluster.state / node / "proxy.pid", signal.SIGTERM)
