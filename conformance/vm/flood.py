"""Prints the microseconds that the machine takes to send and forward a packet of an established connection, and the time for a
packet that it drops on arrival.

    flood.py ADDRESS PORT COUNT

The connection is to a server that returns the data that it receives. Once it has had 60 packets, its last one, an acknowledgement,
is sent COUNT times more from a packet socket, so that the time contains little of the sender's TCP. With a single processor, a
packet has been forwarded and received when the call returns.
"""

import socket
import struct
import sys
import time

ETHERNET, TCP = 14, 6


def main():
    address, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    raw.bind(("eth0", 0))
    connection = socket.create_connection((address, port))
    for _ in range(30):
        connection.sendall(b"x")
        connection.recv(1)
    time.sleep(0.5)
    frame = last_acknowledgement(raw, port)
    # A protocol without a receiver.
    unknown = frame[: ETHERNET - 2] + b"\x88\xb5" + frame[ETHERNET:]
    forwarded, dropped = (min(measure(raw, kind, count) for _ in range(5)) for kind in (frame, unknown))
    print(f"{forwarded:.1f}, dropped on arrival {dropped:.1f}")


def measure(raw, frame, count):
    start = time.perf_counter()
    for _ in range(count):
        raw.send(frame)
    return (time.perf_counter() - start) / count * 1e6


def last_acknowledgement(raw, port):
    """Returns the last frame of the client without data, with a complete checksum."""
    raw.setblocking(False)
    found = None
    while True:
        try:
            frame, (_, _, kind, _, _) = raw.recvfrom(2000)
        except BlockingIOError:
            break
        ip = frame[ETHERNET:]
        header = (ip[0] & 15) * 4
        length = struct.unpack("!H", ip[2:4])[0]
        tcp = ip[header:length]
        if kind == socket.PACKET_OUTGOING and ip[0] >> 4 == 4 and ip[9] == TCP and len(tcp) == (tcp[12] >> 4) * 4:
            if struct.unpack("!H", tcp[2:4])[0] == port:
                found = frame[: ETHERNET + header], ip, tcp
    raw.setblocking(True)
    start, ip, tcp = found
    tcp = tcp[:16] + bytes(2) + tcp[18:]
    pseudo = ip[12:20] + struct.pack("!HH", TCP, len(tcp))
    return start + tcp[:16] + struct.pack("!H", checksum(pseudo + tcp)) + tcp[18:]


def checksum(data):
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


main()
