"""A relay between ranks that damages frames: it passes a handshake on as it is, then flips a bit in some of the frames.

It knows of the protocol what it needs to tell frames apart: who connects says 8 bytes and two messages behind their lengths,
who answers one such message; then come headers of 56 bytes that say how long the payload behind them is.
"""

import random
import socket
import threading
from contextlib import suppress
from typing import Self

HEADER_BYTES, LENGTH = 56, slice(4, 8)


class Relay:
    """Listens at a port of its own, and leads to another one of this host."""

    def __init__(self, to_port: int, *, one_in: int, seed: int):
        self.to_port, self.one_in = to_port, one_in
        self.frames, self.damaged = 0, 0
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self.to_port))
                except OSError:
                    near.close()
                    continue
                for one in (near, far):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets += [near, far]
                threading.Thread(target=self._pass, args=(near, far, 8, 2), daemon=True).start()
                threading.Thread(target=self._pass, args=(far, near, 0, 1), daemon=True).start()

    def _pass(self, near: socket.socket, far: socket.socket, preamble: int, messages: int) -> None:
        with suppress(OSError, EOFError):
            far.sendall(exactly(near, preamble))
            for _ in range(messages):
                length = exactly(near, 2)
                far.sendall(length + exactly(near, int.from_bytes(length, "little")))
            while True:
                head = exactly(near, HEADER_BYTES)
                frame = head + exactly(near, int.from_bytes(head[LENGTH], "little"))
                far.sendall(self._damage(frame))
        for one in (near, far):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def _damage(self, frame: bytes) -> bytes:
        with self._lock:
            self.frames += 1
            if self._random.randrange(self.one_in):
                return frame
            self.damaged += 1
            at, bit = self._random.randrange(len(frame)), self._random.randrange(8)
        damaged = bytearray(frame)
        damaged[at] ^= 1 << bit
        return bytes(damaged)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._listener, *self._sockets):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def exactly(near: socket.socket, length: int) -> bytes:
    """So many bytes, however they come."""
    got = bytearray()
    while len(got) < length:
        more = near.recv(length - len(got))
        if not more:
            raise EOFError
        got += more
    return bytes(got)
