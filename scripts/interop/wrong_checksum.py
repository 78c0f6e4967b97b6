#!/usr/bin/env python3
"""Sends one UDP datagram with a wrong checksum to an IPv4 address: proof that the receiver's counter of wrong
checksums counts. Needs the right to open raw sockets.

Nobody listens on the port: the kernel then checks the sum at once and not only when somebody reads."""

import socket
import struct
import sys

PORT = 9
PAYLOAD = b"not what the checksum says"


def main():
    # 1 is wrong for this payload, and 0 would mean "no checksum".
    header = struct.pack("!HHHH", PORT, PORT, 8 + len(PAYLOAD), 1)
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_UDP) as raw:
        raw.sendto(header + PAYLOAD, (sys.argv[1], 0))


if __name__ == "__main__":
    main()
