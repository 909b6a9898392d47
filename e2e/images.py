"""Archives of container images for the nodes, which have no way out of this machine: packed from directories, or pulled here."""

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

from cluster import PAUSE, Problem, run, until

AT = "registry.k8s.io/e2e-test-images"
# The images of the scenarios, and those of upstream's tests of the network in Kubernetes 1.36.
SCENARIOS = (f"{AT}/agnhost:2.63.0", PAUSE)
UPSTREAM = (*SCENARIOS, f"{AT}/busybox:1.37.0-1", f"{AT}/nginx:1.15-4", f"{AT}/glibc-dns-testing:2.0.0",
            "registry.k8s.io/build-image/distroless-iptables:v0.9.3")


def pack(archive, root, entrypoint, names):
    """Packs the directory `root` as an image of one layer, under all `names`."""
    layer = Path(f"{archive}.layer")
    run("tar", "-C", root, "--numeric-owner", "-cf", layer, ".")
    digest = run("sha256sum", layer).split()[0]
    config = json.dumps({
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(run("uname", "-m"), "amd64"), "os": "linux",
        "config": {"Entrypoint": entrypoint[:1], "Cmd": entrypoint[1:],
                   "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}}).encode()
    name = hashlib.sha256(config).hexdigest() + ".json"
    manifest = json.dumps([{"Config": name, "RepoTags": list(names), "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(archive, "w") as image:
        for path, data in ((name, config), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            image.addfile(entry, io.BytesIO(data))
        image.add(layer, "layer.tar")
    layer.unlink()
    return archive


def proxy_image(program, directory, name):
    """Creates the image of Ferroute: the program, a link named kube-proxy, and its libraries."""
    root = Path(directory) / "proxy"
    (root / "usr/local/bin").mkdir(parents=True, exist_ok=True)
    shutil.copy2(program, root / "usr/local/bin/ferroute")
    link = root / "usr/local/bin/kube-proxy"
    if not link.is_symlink():
        link.symlink_to("ferroute")
    for directory_ in ("run", "tmp", "var/lib/ferroute", "proc", "sys", "dev", "etc"):
        (root / directory_).mkdir(parents=True, exist_ok=True)
    libraries = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    for word in libraries.split():
        if word.startswith("/"):
            target = root / word[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(word, target)
    return pack(Path(directory) / "proxy.tar", root, ["/usr/local/bin/ferroute"], [name])


def test_images(names, kubernetes, directory):
    """Returns archives with all images `names`: those in `images` of Kubernetes' directory, and one with the rest.

    The rest is made from the program `agnhost` in Kubernetes' directory if it is there, and pulled otherwise.
    """
    archives = sorted((Path(kubernetes) / "images").glob("*.tar"))
    present = {name for archive in archives for name in names_in(archive)}
    missing = [name for name in names if name not in present]
    agnhost = Path(kubernetes) / "agnhost"
    if missing and agnhost.exists():
        archives += make(missing, agnhost, Path(directory))
    elif missing:
        archives.append(pull(missing, kubernetes, Path(directory)))
    return archives


def host_programs(names, kubernetes):
    """Returns the programs, each with its package, that `test_images` needs for images that are in no archive."""
    archives = (Path(kubernetes) / "images").glob("*.tar")
    is_complete = set(names) <= {name for archive in archives for name in names_in(archive)}
    return {"debootstrap": "debootstrap"} if not is_complete and (Path(kubernetes) / "agnhost").exists() else {}


def names_in(archive):
    """Returns the names of the images in an archive of `docker save` or `ctr images export`."""
    try:
        with tarfile.open(archive) as tar:
            members = set(tar.getnames())
            docker = json.load(tar.extractfile("manifest.json")) if "manifest.json" in members else []
            oci = json.load(tar.extractfile("index.json"))["manifests"] if "index.json" in members else []
    except (OSError, tarfile.TarError, ValueError, KeyError) as error:
        raise Problem(f"cannot read the image archive {archive}: {error}")
    names = [name for image in docker for name in image.get("RepoTags") or []]
    return names + [image.get("annotations", {}).get("io.containerd.image.name", "") for image in oci]


def pull(names, kubernetes, directory):
    """Pulls images into one archive, with a containerd that has the network of this machine. Earlier results are used again."""
    archive, partial = directory / "pulled.tar", directory / "pulled.partial"
    if archive.exists() and set(names) <= set(names_in(archive)):
        return archive
    at, log = directory / "pull", directory / "pull.log"
    at.mkdir(exist_ok=True)
    configuration, address = at / "containerd.toml", at / "socket"
    configuration.write_text(f"""
version = 2
root = "{at}/root"
state = "{at}/state"
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
address = "{address}"
""")
    ctr = ("ctr", "--address", address, "--namespace", "e2e")
    with open(log, "wb") as output:
        daemon = subprocess.Popen(["containerd", "-c", configuration], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        until(f"containerd answers (see {log})", lambda: run(*ctr, "version", check=False).count("Version") > 1, 30)
        for name in names:
            print(f"pulling {name}", flush=True)
            run(*ctr, "content", "fetch", name, timeout=900)
        run(*ctr, "images", "export", partial, *names, timeout=300)
    except Problem as problem:
        raise Problem(f"{problem}\nThe images of the tests cannot be pulled. Without access to registry.k8s.io, put archives of these images "
                      f"into {kubernetes}/images (e2e/README.md):\n  " + "\n  ".join(names))
    finally:
        daemon.terminate()
        daemon.wait(timeout=30)
        shutil.rmtree(at, ignore_errors=True)
    partial.rename(archive)
    return archive


def make(names, agnhost, directory):
    """Makes the images of upstream's tests with the program `agnhost`, without a registry, and returns their archives.

    All are one Debian system with agnhost in it, under the names that the tests use, except for the one of sandboxes.
    """
    root = directory / "root"
    if not root.exists():
        packages = "curl,netcat-openbsd,iproute2,iputils-ping,dnsutils,procps,conntrack,iptables,nftables,ca-certificates"
        # An interrupted run must not leave half a system.
        partial = directory / "root.partial"
        shutil.rmtree(partial, ignore_errors=True)
        run("debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", partial, timeout=900)
        partial.rename(root)
    shutil.copy2(agnhost, root / "agnhost")
    # The certificate of `agnhost porter`, which clients of the tests do not verify.
    run("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3650", "-subj", "/CN=localhost",
        "-addext", "subjectAltName=IP:127.0.0.1,IP:::1", "-keyout", root / "localhost.key", "-out", root / "localhost.crt")
    wget = root / "usr/bin/wget"
    wget.write_text("""#!/bin/sh
# wget -q -O - -T SECONDS URL, by curl
seconds=10
while [ $# -gt 1 ]; do case $1 in -T) seconds=$2; shift ;; -O) shift ;; esac; shift; done
exec curl -sSfL -m $seconds "$1"
""")
    wget.chmod(0o755)
    pause = directory / "pause"
    pause.mkdir(exist_ok=True)
    shutil.copy2(agnhost, pause / "pause")
    others = [name for name in names if name != PAUSE]
    return [pack(directory / archive, contents, entrypoint, tags) for archive, contents, entrypoint, tags in (
        ("agnhost.tar", root, ["/agnhost", "pause"], others), ("pause.tar", pause, ["/pause", "pause"], [PAUSE])) if set(tags) & set(names)]
