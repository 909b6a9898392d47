"""Cluster DNS for the test cluster, which queries the API server for each request: dns.py ADDRESS API CA TOKEN

Answers A, AAAA, SRV, CNAME and PTR of cluster.local as https://github.com/kubernetes/dns/blob/master/docs/specification.md says.
"""

import http.client
import json
import socket
import socketserver
import ssl
import struct
import sys
import threading
import urllib.parse

ADDRESS, API, CA, TOKEN = sys.argv[1:5]
A, CNAME, PTR, AAAA, SRV = 1, 5, 12, 28, 33
NAME_ERROR, SERVER_FAILURE = 3, 2
TLS = ssl.create_default_context(cafile=CA)
LOCAL = threading.local()


def get(path):
    """Returns an object of the API server, or None if it does not exist."""
    for _ in range(2):
        try:
            if getattr(LOCAL, "connection", None) is None:
                LOCAL.connection = http.client.HTTPSConnection(API, context=TLS, timeout=3)
            LOCAL.connection.request("GET", path, headers={"Authorization": "Bearer " + TOKEN})
            response = LOCAL.connection.getresponse()
            body = response.read()
            return json.loads(body) if response.status == 200 else None
        except (OSError, http.client.HTTPException):
            LOCAL.connection = None
    raise OSError("no API server")


def encode(name):
    return b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split(".")) + b"\0"


def addresses(owner, values, wanted):
    """Returns records of the requested type for addresses of both families."""
    for value in values:
        kind, family = (AAAA, socket.AF_INET6) if ":" in value else (A, socket.AF_INET)
        if kind == wanted:
            yield owner, kind, socket.inet_pton(family, value)


def endpoints(namespace, service, unready):
    """Returns address, host name and ports of each endpoint."""
    selector = urllib.parse.quote("kubernetes.io/service-name=" + service)
    slices = get(f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?labelSelector={selector}") or {"items": []}
    for piece in slices["items"]:
        for endpoint in piece["endpoints"] or []:
            if unready or endpoint.get("conditions", {}).get("ready", True) is not False:
                for address in endpoint["addresses"]:
                    host = endpoint.get("hostname") or address.replace(".", "-").replace(":", "-")
                    yield address, host, piece.get("ports") or []


def reverse(name, labels):
    address = ".".join(reversed(labels[:4]))
    for service in (get("/api/v1/services") or {"items": []})["items"]:
        if address in service["spec"].get("clusterIPs", []):
            metadata = service["metadata"]
            return [(name, PTR, encode(f"{metadata['name']}.{metadata['namespace']}.svc.cluster.local"))], True
    return [], False


def srv(name, spec, rest, namespace, service):
    records = []
    for port in spec.get("ports", []):
        port_name = port.get("name", "")
        if rest and rest != [f"_{port_name}", f"_{port['protocol'].lower()}"]:
            continue
        domain = f"{service}.{namespace}.svc.cluster.local"
        targets = [(domain, port["port"])]
        if spec.get("clusterIP") == "None":
            targets = [(f"{host}.{domain}", its["port"])
                       for _, host, ports in endpoints(namespace, service, spec.get("publishNotReadyAddresses"))
                       for its in ports if its.get("name", "") == port_name]
        records += [(name, SRV, struct.pack("!HHH", 0, 100, number) + encode(target)) for target, number in targets]
    return records


def answer(name, wanted):
    """Returns the records, and whether the name exists."""
    lower = name.lower().rstrip(".")
    labels = lower.split(".")
    if lower.endswith(".in-addr.arpa"):
        return reverse(name, labels)
    if not lower.endswith(".svc.cluster.local") or len(labels) < 5:
        return [], lower in ("cluster.local", "svc.cluster.local")
    rest, service, namespace = labels[:-5], labels[-5], labels[-4]
    found = get(f"/api/v1/namespaces/{namespace}/services/{service}")
    if not found:
        return [], False
    spec = found["spec"]
    if spec["type"] == "ExternalName":
        return [(name, CNAME, encode(spec["externalName"]))], True
    if (rest and rest[0].startswith("_")) or (wanted == SRV and not rest):
        return (srv(name, spec, rest, namespace, service) if wanted == SRV else []), True
    if spec.get("clusterIP") == "None":
        matching = {address for address, host, _ in endpoints(namespace, service, spec.get("publishNotReadyAddresses"))
                    if not rest or rest == [host]}
        return list(addresses(name, sorted(matching), wanted)), bool(matching)
    return ([], False) if rest else (list(addresses(name, spec.get("clusterIPs", []), wanted)), True)


def reply(query):
    at, labels = 12, []
    while query[at]:
        labels.append(query[at + 1:at + 1 + query[at]].decode())
        at += 1 + query[at]
    wanted = struct.unpack("!H", query[at + 1:at + 3])[0]
    try:
        records, exists = answer(".".join(labels), wanted)
        code = 0 if exists else NAME_ERROR
    except OSError:
        records, code = [], SERVER_FAILURE
    header = query[:2] + struct.pack("!HHHHH", 0x8580 | code, 1, len(records), 0, 0)
    body = b"".join(encode(owner) + struct.pack("!HHIH", kind, 1, 5, len(value)) + value for owner, kind, value in records)
    return header + query[12:at + 5] + body


class Udp(socketserver.BaseRequestHandler):
    def handle(self):
        data, sock = self.request
        sock.sendto(reply(data), self.client_address)


class Tcp(socketserver.StreamRequestHandler):
    def handle(self):
        while length := self.rfile.read(2):
            response = reply(self.rfile.read(struct.unpack("!H", length)[0]))
            self.wfile.write(struct.pack("!H", len(response)) + response)


for server in (socketserver.ThreadingUDPServer, socketserver.ThreadingTCPServer):
    server.allow_reuse_address = server.daemon_threads = True
tcp = socketserver.ThreadingTCPServer((ADDRESS, 53), Tcp)
threading.Thread(target=tcp.serve_forever, daemon=True).start()
socketserver.ThreadingUDPServer((ADDRESS, 53), Udp).serve_forever()
