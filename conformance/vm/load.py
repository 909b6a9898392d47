#!/usr/bin/env python3
"""load.py PODS FLOW...: traffic of a Service during a switch of modes, until SIGTERM.

A TCP and a UDP server in the network namespace of each of PODS, separated by commas, and clients of the flows
`NAMESPACE,PROTOCOL,ADDRESS:PORT`; the namespace `node` is the one of this process. A TCP flow consists of new connections all the
time, and of connections that are held to the end: one more for each content of the file `load-phase`. A UDP flow alternates
between a socket that is kept and new ones. The file `load-rounds` has the number of rounds that each client has completed at least.

At the end prints a line per namespace, and fails if a connection was refused, failed or was lost, or if a datagram was lost. Timeouts
do not count that expire because the machine was paused: its host then makes its clock jump."""
import asyncio
import collections
import contextlib
import ctypes
import os
import signal
import socket
import struct
import sys
import time

TCP_PORT, UDP_PORT = 8081, 5353     # of the pods
PAUSE = 0.3                         # seconds between requests of a client
# An emulated machine may be slow: only requests that take much longer than a switch have failed.
TIMEOUT = 30
# Seconds until a datagram is sent again, as clients of UDP do; the last try decides.
UDP_TIMEOUTS = (2, 5, TIMEOUT)
RETRANSMISSIONS = 100               # offset of tcpi_total_retrans in struct tcp_info
# Seconds without a step of this program after which the machine was paused.
GAP = 5

OWN = os.open("/proc/self/ns/net", os.O_RDONLY)
START = time.monotonic()
LIBC = ctypes.CDLL(None, use_errno=True)
counts = collections.defaultdict(collections.Counter)   # by namespace
rounds = {}                                             # by client
stopping = asyncio.Event()
gap_end = -float("inf")                                 # of the last pause of the machine


def new_socket(namespace, kind, address):
    """Returns a socket in a network namespace: where a socket is created, it stays."""
    def enter(descriptor):
        if LIBC.setns(descriptor, 0):
            raise OSError(ctypes.get_errno(), f"cannot enter network namespace {namespace}")

    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    if namespace == "node":
        sock = socket.socket(family, kind)
    else:
        with open(f"/run/netns/{namespace}") as other:
            enter(other.fileno())
            try:
                sock = socket.socket(family, kind)
            finally:
                enter(OWN)
    sock.setblocking(False)
    return sock


def phase():
    with contextlib.suppress(FileNotFoundError), open("load-phase") as file:
        return file.read().strip()
    return ""


def failed(flow, kind, why):
    if isinstance(why, TimeoutError) and time.monotonic() - gap_end < sum(UDP_TIMEOUTS):
        kind = f"{kind} in a pause"
    counts[flow[0]][kind] += 1
    print(f"{time.monotonic() - START:.1f} s, {phase()}: {' '.join(map(str, flow))} {kind}: {why or type(why).__name__}", flush=True)


# --- servers -------------------------------------------------------------------------------

async def serve_tcp(pod):
    """Sends the pod's name to each client, and then returns the data that it receives."""
    async def serve(connection):
        loop = asyncio.get_running_loop()
        with connection, contextlib.suppress(OSError):
            await loop.sock_sendall(connection, f"{pod}\n".encode())
            while data := await loop.sock_recv(connection, 4096):
                await loop.sock_sendall(connection, data)

    listener, tasks = new_socket(pod, socket.SOCK_STREAM, "::"), set()
    listener.bind(("::", TCP_PORT))
    listener.listen(256)
    while True:
        connection, _ = await asyncio.get_running_loop().sock_accept(listener)
        connection.setblocking(False)
        task = asyncio.create_task(serve(connection))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def serve_udp(pod):
    """Sends back each datagram, from the address that it was sent to."""
    loop, server = asyncio.get_running_loop(), new_socket(pod, socket.SOCK_DGRAM, "::")
    server.bind(("::", UDP_PORT))
    while True:
        data, client = await loop.sock_recvfrom(server, 4096)
        with contextlib.suppress(OSError):
            await loop.sock_sendto(server, data, client)


# --- clients -------------------------------------------------------------------------------

async def connect(flow):
    """Opens a connection; returns it after the pod's name has arrived, or None."""
    namespace, _, address, port = flow
    loop, sock = asyncio.get_running_loop(), new_socket(namespace, socket.SOCK_STREAM, address)
    try:
        async with asyncio.timeout(TIMEOUT):
            await loop.sock_connect(sock, (address, port))
            if not await loop.sock_recv(sock, 4096):
                raise OSError("closed without an answer")
    except ConnectionRefusedError as error:
        failed(flow, "refused", error)
    except OSError as error:  # TimeoutError is an OSError.
        failed(flow, "failed", error)
    else:
        counts[namespace]["connections"] += 1
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, RETRANSMISSIONS + 4)
        counts[namespace]["retransmitted"] += struct.unpack_from("I", info, RETRANSMISSIONS)[0] > 0
        return sock
    sock.close()
    return None


async def new_connections(flow):
    if sock := await connect(flow):
        sock.close()


def held_connections(flow):
    """Returns the function that a client with held connections calls repeatedly."""
    loop, held, phases = asyncio.get_running_loop(), [], set()

    async def use(sock, line):
        await loop.sock_sendall(sock, line)
        received = b""
        while len(received) < len(line):
            data = await loop.sock_recv(sock, 4096)
            if not data:
                raise OSError("closed")
            received += data
        if received != line:
            raise OSError(f"{received!r} instead of {line!r}")

    async def again():
        if phase() not in phases:
            phases.add(phase())
            if sock := await connect(flow):
                counts[flow[0]]["held"] += 1
                held.append(sock)
        line = f"{time.monotonic()}\n".encode()
        for sock in held[:]:
            try:
                async with asyncio.timeout(TIMEOUT):
                    await use(sock, line)
            except OSError as error:
                failed(flow, "lost", error)
                held.remove(sock)
                sock.close()
    return again


def datagrams(flow):
    namespace, _, address, port = flow
    loop, number = asyncio.get_running_loop(), 0

    def open_flow():
        sock = new_socket(namespace, socket.SOCK_DGRAM, address)
        sock.connect((address, port))
        return sock

    async def exchange(sock, data, seconds):
        async with asyncio.timeout(seconds):
            await loop.sock_sendall(sock, data)
            # An answer to an earlier attempt may arrive late.
            while await loop.sock_recv(sock, 4096) != data:
                pass

    kept = open_flow()

    async def again():
        nonlocal number
        number += 1
        sock, error = kept if number % 2 else open_flow(), None
        for seconds in UDP_TIMEOUTS:
            try:
                await exchange(sock, f"{number}".encode(), seconds)
                break
            except OSError as e:
                error = e
                await asyncio.sleep(PAUSE)
        else:
            failed(flow, "datagrams lost", error)
        counts[namespace]["datagrams"] += 1
        counts[namespace]["retried"] += error is not None
        if sock is not kept:
            sock.close()
    return again


async def client(name, again):
    rounds[name] = 0
    while not stopping.is_set():
        await again()
        rounds[name] += 1
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopping.wait(), PAUSE)


async def watch_clock():
    global gap_end
    while not stopping.is_set():
        before = time.monotonic()
        await asyncio.sleep(PAUSE)
        if time.monotonic() - before > GAP:
            gap_end = time.monotonic()


async def report_rounds():
    while not stopping.is_set():
        with open("load-rounds.new", "w") as file:
            file.write(f"{min(rounds.values())}\n")
        os.rename("load-rounds.new", "load-rounds")
        await asyncio.sleep(PAUSE)


async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    servers = [asyncio.create_task(serve(pod)) for pod in sys.argv[1].split(",") for serve in (serve_tcp, serve_udp)]
    await asyncio.sleep(0)
    clients = []
    for argument in sys.argv[2:]:
        namespace, protocol, destination = argument.split(",")
        address, port = destination.rsplit(":", 1)
        flow = (namespace, protocol, address, int(port))
        if protocol == "tcp":
            clients.append(client(f"{argument} new", lambda flow=flow: new_connections(flow)))
            clients.append(client(f"{argument} held", held_connections(flow)))
        else:
            clients.append(client(argument, datagrams(flow)))
    running = asyncio.gather(*clients)
    await asyncio.sleep(0)
    await asyncio.gather(running, report_rounds(), watch_clock())
    for server in servers:
        if server.done():
            server.result()
        server.cancel()
    for namespace, count in counts.items():
        print(f"  {namespace}: {count['connections']} connections, {count['refused']} refused, {count['failed']} failed, "
              f"{count['retransmitted']} with retransmissions; {count['held']} held, {count['lost']} lost; "
              f"{count['datagrams']} datagrams, {count['retried']} retried, {count['datagrams lost']} lost; "
              f"{sum(number for kind, number in count.items() if kind.endswith('in a pause'))} more failed in pauses")
    bad = sum(count[kind] for count in counts.values() for kind in ("refused", "failed", "lost", "datagrams lost"))
    sys.exit(1 if bad else 0)


asyncio.run(main())
