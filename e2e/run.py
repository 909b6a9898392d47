#!/usr/bin/env python3
"""End-to-end tests in a real cluster of three nodes on this machine. README.md says what is needed.

    run.py --kubernetes DIR test [--mode MODE]...     all: cluster, upstream's tests of Services, scenarios
    run.py --kubernetes DIR check                     whether everything that `test` needs is there
    run.py --kubernetes DIR up | down                 the cluster, with Ferroute on all nodes
    run.py --kubernetes DIR upstream [--focus REGEX]  upstream's tests in the running cluster
    run.py --kubernetes DIR scenarios [NAME...]       scenarios in the running cluster (run.py --list shows them)
    run.py --kubernetes DIR rollout                   the commands of docs/rollout.md, with a control plane of its own
    run.py --kubernetes DIR kubectl ARGUMENT...       kubectl of the running cluster
    run.py --kubernetes DIR node n1 COMMAND...        a command on a node
"""

import argparse
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import images
import proxy
import rollout
import scenarios
from cluster import HERE, HOST_PROGRAMS, NODES, Cluster, Problem

# Tests of other components, and of features that this cluster does not have. Go's regular expressions have no lookahead.
SKIP = "|".join([
    r"\[Feature:(Ingress|KubeProxyDaemonSet|LoadBalancer|NetworkPolicy|Networking|PerformanceDNS)", r"\[Disruptive\]", r"\[Flaky\]",
    "LoadBalancer", "Ingress", "NetworkPolicy", "Gateway",
    # No external network, no cloud, no cluster DNS in pods.
    "should provide Internet connection", "GCE", "CoreDNS", "DNS configMap",
    # Programs that the image of the tests does not contain: CoreDNS, and a server for one bug.
    "configurable pod resolv.conf", "invalid conntrack state bug",
])


def check(cluster, options):
    """Reports everything that is missing but the program. `up` by itself needs less than a test."""
    is_test = options.command != "up"
    more = [*(["e2e.test"] if is_test and not options.without_upstream else []), *(["kube-proxy"] if is_test else [])]
    cluster.check(more, {**HOST_PROGRAMS, **images.host_programs(image_names(options), cluster.kubernetes)})
    cluster.require(running=False)


def image_names(options):
    return images.SCENARIOS if options.without_upstream else images.UPSTREAM


def up(cluster, options):
    check(cluster, options)
    program = Path(options.program).resolve()
    if not os.access(program, os.X_OK):
        raise Problem(f"{program} is not a program: build it with `make debug` or `make release`")
    cluster.state.mkdir(parents=True, exist_ok=True)
    work = cluster.state / "images"
    work.mkdir(exist_ok=True)
    archives = [images.proxy_image(program, work, proxy.IMAGE), *images.test_images(image_names(options), cluster.kubernetes, work)]
    try:
        cluster.up(archives)
        proxy.deploy_ferroute(cluster, options.mode[0])
    except BaseException:
        if not options.keep:
            cluster.down()
        raise
    print(f"the cluster runs: {len(NODES)} nodes, Ferroute in {options.mode[0]} mode")


def has_sctp():
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_SCTP).close()
    except OSError:
        return False
    return True


def upstream(cluster, focus):
    """Runs upstream's tests, prints each with its result, and returns whether all passed."""
    skip = SKIP
    if not has_sctp():
        skip += r"|\[Feature:SCTP"
        print("NOT TESTED: connections of SCTP, which this kernel does not support")
    log = cluster.logs / "upstream.log"
    with open(log, "w") as output:
        subprocess.run([
            *cluster.in_namespace("cp"), cluster.binary("e2e.test"), f"--kubeconfig={cluster.admin}",
            f"--kubectl-path={cluster.binary('kubectl')}", "--provider=skeleton", "--num-nodes=3", "--allowed-not-ready-nodes=0",
            "--disable-log-dump", "--dump-logs-on-failure=false", "--ginkgo.no-color", "--ginkgo.v", "--ginkgo.seed=1", "--ginkgo.timeout=2h",
            f"--ginkgo.focus={focus}", f"--ginkgo.skip={skip}"], stdout=output, stderr=output)
    text = log.read_text(errors="replace")
    for block in re.split(r"^-{20,}$", text, flags=re.M):
        result = re.search(r"^(• \[\w+\]|•) ?\[([\d.]+) seconds\]", block, re.M)
        test = re.search(r"^\[sig-network\] (.*?)(?: \[sig-network.*)?$", block, re.M)
        if result and test:
            state = "ok    " if result[1] == "•" else "FAILED"
            why = re.findall(r"^  \[(?:FAILED|TIMEDOUT|PANICKED|INTERRUPTED)\] (?!in )(.*)$", block, re.M)
            print(state, f"{float(result[2]):5.0f} s", test[1].replace("[It] ", "")[:130], "; ".join(why)[:300] if state != "ok    " else "")
    summary = re.search(r"^Ran (\d+) of .*$", text, re.M)
    print(summary[0] if summary else f"upstream's tests did not run: see {log}")
    return bool(summary) and int(summary[1]) > 0 and "\nSUCCESS!" in text


def test(cluster, options):
    """Runs all parts in each mode; returns the number of modes and parts that failed."""
    failed = []
    up(cluster, options)
    try:
        scenarios.prepare(cluster)
        for mode in options.mode:
            proxy.deploy_ferroute(cluster, mode)
            if not options.without_upstream and not upstream(cluster, options.focus):
                failed.append(f"{mode}: upstream's tests")
            failed += [f"{mode}: {name}" for name in scenarios.ALL if not scenarios.play(cluster, mode, name)]
    finally:
        if not options.keep:
            cluster.down()
    for what in failed:
        print("FAILED", what)
    return not failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kubernetes", help="directory of the programs of a Kubernetes release, and etcd")
    parser.add_argument("--program", default=str(HERE.parent / "target/program/ferroute"), help="the ferroute program")
    parser.add_argument("--state", default="/var/tmp/ferroute-e2e", help="directory for the cluster")
    parser.add_argument("--mode", action="append", choices=["iptables", "nftables", "ipvs"], help="may be repeated (default: nftables, iptables)")
    parser.add_argument("--focus", default=r"\[sig-network\]", help="upstream's tests whose names match")
    parser.add_argument("--without-upstream", action="store_true", help="scenarios only")
    parser.add_argument("--keep", action="store_true", help="leave the cluster running")
    parser.add_argument("--list", action="store_true", help="list the scenarios")
    parser.add_argument("command", choices=["test", "check", "up", "down", "upstream", "scenarios", "rollout", "kubectl", "node"], nargs="?")
    parser.add_argument("arguments", nargs="*")
    words = sys.argv[1:]
    # The words after these are arguments of another program.
    own = next((place + 1 for place, word in enumerate(words) if word in ("kubectl", "node")), len(words))
    options = parser.parse_args(words[:own])
    options.arguments += words[own:]
    options.mode = options.mode or ["nftables", "iptables"]
    if options.list:
        for name, function in scenarios.ALL.items():
            print(f"{name:9} {function.__doc__.splitlines()[0]}")
        return True
    if not options.command or not options.kubernetes:
        parser.error("name a command and, with --kubernetes, the directory of Kubernetes' programs")
    cluster = Cluster(options.kubernetes, options.state)
    if options.command == "rollout":
        return rollout.play(options.kubernetes)
    if options.command == "test":
        return test(cluster, options)
    if options.command == "check":
        check(cluster, options)
        return True
    if options.command == "up":
        up(cluster, options)
        return True
    if options.command == "down":
        cluster.down()
        return True
    cluster.require(running=True)
    if options.command == "upstream":
        cluster.check(more=["e2e.test"])
        return upstream(cluster, options.focus)
    if options.command == "scenarios":
        unknown = set(options.arguments) - set(scenarios.ALL)
        if unknown:
            raise Problem(f"no such scenario: {', '.join(sorted(unknown))}; --list shows them")
        if not options.arguments or "swap" in options.arguments:
            cluster.check(more=["kube-proxy"])
        scenarios.prepare(cluster)
        proxy.deploy_ferroute(cluster, options.mode[0])
        return all([scenarios.play(cluster, options.mode[0], name) for name in options.arguments or scenarios.ALL])
    if options.command == "kubectl":
        # Plugins, such as `kubectl ferroute`, accept no flag before their name.
        os.environ["KUBECONFIG"] = str(cluster.admin)
        command = [*cluster.in_namespace("cp"), str(cluster.binary("kubectl")), *options.arguments]
    else:
        node, *command = options.arguments or [""]
        if node not in NODES:
            raise Problem(f"name a node: {', '.join(NODES)}")
        command = [*cluster.in_node(node), *(command or ["bash"])]
    return subprocess.run(command).returncode == 0


if __name__ == "__main__":
    try:
        sys.exit(0 if main() else 1)
    except Problem as problem:
        sys.exit(f"e2e: {problem}")
