"""Container images from directories, without a builder, in the format of `ctr images import`."""

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

from cluster import Problem, run


def pack(archive, root, entrypoint, names):
    """Packs the directory `root` as an image of one layer, under all `names`."""
    layer = Path(f"{archive}.layer")
    run("tar", "-C", root, "--numeric-owner", "-cf", layer, ".")
    with open(layer, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
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


def test_images(kubernetes, directory):
    """Creates images of the programs of upstream's tests, if Kubernetes' directory has `agnhost`: for machines that cannot pull.

    All are one Debian system with agnhost in it, under the names that the tests use. Returns the archives.
    """
    agnhost, root = Path(kubernetes) / "agnhost", Path(directory) / "root"
    if not agnhost.exists():
        return []
    if not shutil.which("debootstrap"):
        raise Problem("install the package debootstrap, with which the images of the tests are made")
    if not (root / "bin").exists():
        packages = "curl,netcat-openbsd,iproute2,iputils-ping,dnsutils,procps,conntrack,iptables,nftables,ca-certificates"
        run("debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", root, timeout=900)
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
    at = "registry.k8s.io/e2e-test-images"
    names = [f"{at}/agnhost:2.63.0", f"{at}/busybox:1.37.0-1", f"{at}/nginx:1.15-4", f"{at}/glibc-dns-testing:2.0.0",
             "registry.k8s.io/build-image/distroless-iptables:v0.9.3"]
    pause = Path(directory) / "pause"
    pause.mkdir(exist_ok=True)
    shutil.copy2(agnhost, pause / "pause")
    sandboxes = [f"registry.k8s.io/pause:{tag}" for tag in ("3.6", "3.8", "3.9", "3.10", "3.10.1", "3.10.2")]
    return [pack(Path(directory) / "agnhost.tar", root, ["/agnhost", "pause"], names),
            pack(Path(directory) / "pause.tar", pause, ["/pause", "pause"], sandboxes)]
