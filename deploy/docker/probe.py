"""A container's health check: whether the service on a port answers a path with the status 200.

    /usr/bin/python3 -I -S /opt/headrace/probe.py 9092 readyz

Without a path: whether anything accepts connections. Every few seconds each container runs it, so
it imports only the part of `socket` that is written in C: an HTTP client's imports take more of a
processor than an idle service does.
"""

from __future__ import annotations

import _socket
import sys

TIMEOUT_S = 3.0

port, *path = sys.argv[1:]
connection = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
connection.settimeout(TIMEOUT_S)
connection.connect(("127.0.0.1", int(port)))
if path:
    connection.sendall(f"GET /{path[0]} HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    # The status line begins with `HTTP/1.0 200` or `HTTP/1.1 200`.
    sys.exit(not connection.recv(12).endswith(b" 200"))
