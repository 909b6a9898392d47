"""A client that counts failures: load.py tcp HOST PORT RATE | load.py udp HOST PORT SOURCE-PORT

tcp opens RATE new connections a second and requests /hostname on each; udp sends a request from one port every 50 ms. SIGTERM ends
it, and it prints one line of JSON: requests that succeeded, failures by reason, endpoints that answered, the slowest answer in
seconds.
"""

import asyncio
import collections
import json
import signal
import socket
import sys
import time

KIND, HOST, PORT, ARGUMENT = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
STARTED = time.time()


class Tally:
    def __init__(self):
        self.succeeded, self.slowest, self.gap = 0, 0.0, 0.0
        self.reasons, self.endpoints, self.examples = collections.Counter(), collections.Counter(), []

    def failure(self, error, since):
        reason = str(error.args[-1])[:40] if isinstance(error, OSError) and error.args else type(error).__name__
        self.reasons[reason] += 1
        self.examples.append(f"{since - STARTED:.2f} s: {reason}")

    def report(self):
        print(json.dumps({
            "succeeded": self.succeeded, "failed": sum(self.reasons.values()), "reasons": self.reasons,
            "endpoints": len(self.endpoints), "slowest": round(self.slowest, 2), "gap": round(self.gap, 1),
            "examples": self.examples[:10]}))


async def request(tally):
    since, writer = time.time(), None
    try:
        async with asyncio.timeout(4):
            reader, writer = await asyncio.open_connection(HOST, PORT)
            writer.write(b"GET /hostname HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            response = await reader.read()
        if b"200 OK" not in response:
            raise OSError("empty reply")
        tally.succeeded += 1
        tally.endpoints[response.rsplit(b"\r\n", 1)[1].decode()] += 1
        tally.slowest = max(tally.slowest, time.time() - since)
    except Exception as error:
        tally.failure(error, since)
    finally:
        if writer:
            writer.close()


async def tcp(tally):
    tasks, stop, sent = set(), asyncio.Event(), 0
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    while not stop.is_set():
        task = asyncio.create_task(request(tally))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        sent += 1
        await asyncio.sleep(max(0, STARTED + sent / ARGUMENT - time.time()))
    if tasks:
        await asyncio.wait(tasks, timeout=5)


def udp(tally):
    client = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    client.bind(("", ARGUMENT))
    client.settimeout(0.05)
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    last = time.time()
    while not stopped:
        since = time.time()
        try:
            client.sendto(b"hostname", (HOST, PORT))
            name = client.recv(999).decode()
            tally.succeeded += 1
            tally.endpoints[name] += 1
            tally.gap, last = max(tally.gap, time.time() - last), time.time()
        except OSError as error:
            tally.failure(error, since)
        time.sleep(max(0, since + 0.05 - time.time()))
    tally.gap = max(tally.gap, time.time() - last)


tally = Tally()
if KIND == "tcp":
    asyncio.run(tcp(tally))
else:
    udp(tally)
tally.report()
