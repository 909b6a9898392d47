#!/usr/bin/env python3
"""Records how kube-proxy reads every field of its configuration with every value of a list: record.py KUBE_PROXY > recorded.tsv

    record.py KUBE_PROXY forms.json > forms.tsv    # whole configurations and command lines, as distributions have them
    record.py KUBE_PROXY flags > flags.tsv         # every flag with every value of a list: the fields that it changes, or `error`

Each line is a field, the JSON that `--write-config-to` wrote for it, and a list of the values with this result. Instead of the JSON
that was written, `=` is the value itself, and `error` means that kube-proxy rejects the configuration. The test `acceptance` of
ferroute-config compares Ferroute with it. Fields that matter in one mode are recorded once more in that mode, as `MODE/FIELD`."""
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import miniyaml

HEAD = {"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration"}

# Fields that kube-proxy does not write if they are unset.
MORE_FIELDS = ["clientConnection.acceptContentTypes", "clientConnection.kubeconfig", "detectLocal.bridgeInterface",
               "detectLocal.interfaceNamePrefix", "featureGates", "logging.vmodule", "logging.options.json.splitStream",
               "portRange", "udpIdleTimeout", "winkernel.networkName", "unknownField", "iptables.unknownField"]

COMMON = [None, "", "x", "X Y", 0, 1, -1, 31, 32, 1000, -1000, 1001, 65536, 2147483648, 4294967296, 1.5, 1e3, True, False, "true",
          "0", "1", [], ["x"], [1], {}, {"x": 1}]
STRINGS = ["0s", "1s", "-1s", "1m30s", "1h0m0s", "1", "1d", "0.5s", "+1s", "1000000h", "s", ".s", " 1s",
           "0.0.0.0", "0.0.0.0:1", ":80", "1.2.3.4:65536", "[::]:1", "::", "::1", "[::1]", "::1:80", "localhost:1", "*", "*:1",
           "10.0.0.0/8", "10.0.0.1/8", "10.0.0.0/33", "fd00::/8", "10.0.0.0/8,fd00::/8", "fd00::/8,10.0.0.0/8", "10.0.0.0/8,11.0.0.0/8",
           "010.0.0.0/8", "10.0.0.0/8, fd00::/8", "1000-2000", "1000+10", "2000-1000", "1000",
           "iptables", "ipvs", "nftables", "userspace", "kernelspace", "IPTables", "ClusterCIDR", "NodeCIDR", "BridgeInterface",
           "InterfaceNamePrefix", "clustercidr", "text", "json", "JSON", "rr", "mh", "application/json", "application/yaml",
           "1.35", "1.36", "1.34", "1.37", "4Ki", "1.5Ki", "1e3", "-1"]
LISTS = [["10.0.0.0/8"], ["10.0.0.0/8", "fd00::/8"], ["10.0.0.1/8"], ["10.0.0.0"], ["primary"], ["primary", "10.0.0.0/8"],
         ["primary", "primary"], ["127.0.0.0/8"], ["::1/128"], ["localhost"], ["all"], ["10.0.0.0/8", "10.0.0.0/8"], [""],
         ["10.0.0.0/8,11.0.0.0/8"], [None], ["010.0.0.0/8"]]
MAPS = [{"AllAlpha": True}, {"AllBeta": False}, {"NoSuchGate": False}, {"NoSuchGate": True}, {"AllAlpha": "true"}, {"AllAlpha": None},
        {"TopologyAwareHints": True}, {"LoggingBetaOptions": False}, {"x": "y"}, [{"filePattern": "a", "verbosity": 1}],
        [{"filePattern": "", "verbosity": 1}], [{"filePattern": "a", "verbosity": -1}], [{"filePattern": "a=", "verbosity": 1}]]
VALUES = COMMON + STRINGS + LISTS + MAPS

# Flags that do not set a field.
ACTIONS = {"help", "version", "cleanup", "init-only", "config", "write-config-to"}
FLAG_VALUES = ["", "x", "0", "1", "-1", "014", "32", "1001", "65536", "4294967296", "1.5", "true", "false", "T", "yes", "1s", "-1s", "1m30s",
               "0.5s", "1d", "0.0.0.0", "127.0.0.1", "127.0.0.1:1", "[::]:1", "::", "10.0.0.0/8", "10.0.0.1/8", "10.0.0.0/8,fd00::/8",
               "10.0.0.0/8,11.0.0.0/8", "iptables", "IPTables", "nftables", "ClusterCIDR", "NodeCIDR", "NodeCIDR ", "AllBeta=false,X=true",
               "X=", "rr", "primary", "json", "4Ki", "a=1,b=2", "1.36"]


def flatten(value, path=""):
    """Yields the paths of all fields."""
    for key, inner in value.items():
        name = f"{path}.{key}" if path else key
        if isinstance(inner, dict) and inner:
            yield name
            yield from flatten(inner, name)
        else:
            yield name


def with_field(path, value):
    config = dict(HEAD)
    mode, _, path = path.rpartition("/")
    if mode:
        config["mode"] = mode
    at = config
    *parents, last = path.split(".")
    for parent in parents:
        at = at.setdefault(parent, {})
    at[last] = value
    return config


def run(program, config, args=()):
    """Returns the written configuration, or None if it is rejected."""
    with tempfile.TemporaryDirectory() as directory:
        read, written = os.path.join(directory, "in"), os.path.join(directory, "out")
        if config is not None:
            with open(read, "w") as file:
                json.dump(config, file)
            args = [f"--config={read}"]
        done = subprocess.run([program, *args, f"--write-config-to={written}"], capture_output=True)
        if done.returncode != 0:
            return None
        with open(written) as file:
            return miniyaml.load_all(file.read())[0]


def record(program, path, value):
    written = run(program, with_field(path, value))
    if written is None:
        return "error"
    for key in path.rpartition("/")[2].split("."):
        written = written.get(key) if isinstance(written, dict) else None
    return "=" if json.dumps(written) == json.dumps(value) else json.dumps(written, sort_keys=True)


def record_forms(program, path):
    with open(path) as file:
        forms = json.load(file)
    for name, form in forms.items():
        config = form.get("config")
        written = run(program, config and {**HEAD, **config}, form.get("args", ()))
        print(name, json.dumps(written, sort_keys=True), sep="\t")


def changes(before, after, path=""):
    """Returns the fields that differ, by their paths."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted({*before, *after})
        parts = [changes(before.get(key), after.get(key), f"{path}.{key}" if path else key) for key in keys]
        return {name: value for part in parts for name, value in part.items()}
    return {} if before == after else {path: after}


def record_flags(program):
    text = subprocess.run([program, "--help"], capture_output=True, text=True).stdout
    flags = sorted({*re.findall(r"--([a-z][a-z0-9-]+)", text)} - ACTIONS)
    defaults = run(program, None)

    def record_flag(argument):
        written = run(program, None, [argument])
        return "error" if written is None else json.dumps(changes(defaults, written), sort_keys=True)

    with ThreadPoolExecutor(2) as pool:
        for flag in flags:
            arguments = [f"--{flag}", *(f"--{flag}={value}" for value in FLAG_VALUES)]
            arguments_by_result = {}
            for argument, result in zip(arguments, pool.map(record_flag, arguments)):
                arguments_by_result.setdefault(result, []).append(argument)
            for result, same in arguments_by_result.items():
                print(result, json.dumps(same), sep="\t", flush=True)


def main():
    program = sys.argv[1]
    if sys.argv[2:] == ["flags"]:
        return record_flags(program)
    if len(sys.argv) > 2:
        return record_forms(program, sys.argv[2])
    fields = sorted({*flatten(run(program, HEAD)), *MORE_FIELDS})
    fields += [f"{mode}/{field}" for mode in ("ipvs", "nftables") for field in fields if field.startswith(mode + ".")]
    fields += [f"{mode}/nodePortAddresses" for mode in ("ipvs", "nftables")]
    with ThreadPoolExecutor(2) as pool:
        for field in fields:
            values_by_result = {}
            for value, result in zip(VALUES, pool.map(lambda value: record(program, field, value), VALUES)):
                values_by_result.setdefault(result, []).append(value)
            for result, values in values_by_result.items():
                print(field, result, json.dumps(values), sep="\t", flush=True)


main()
