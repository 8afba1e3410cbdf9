# SPDX-License-Identifier: Apache-2.0
"""weightd's socket (proto/weightd.proto) by hand, as a worker uses it."""
import os
import socket

import harness
from harness import check
from worker_socket import field, fields

WORKER = 1  # Role
HELLO, ACQUIRE, RELEASE, RESERVE, RESUME = 3, 4, 13, 14, 15  # of Request
ERROR, WELCOME, ACQUIRED, RESUMED = 3, 4, 5, 11  # of Reply
ALL_HANDLES = 0b11110  # HandleType


class Weightd:
    """SOCK_SEQPACKET, one protobuf message a packet."""

    def __init__(self, site, path=None):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(harness.CTL_SECONDS)
        self.socket.connect(path or site.weightd_socket)
        self.last_id = 0
        self.inode = 0  # of the first descriptor of the last packet that had any
        hello = field(1, 1) + field(2, "test") + field(3, WORKER)
        self.device = fields(fields(self.ask(HELLO, hello)[WELCOME])[3])

    def send(self, body, message=b""):
        self.last_id += 1
        self.socket.send(field(1, self.last_id) + field(body, message))

    def receive(self):
        """The answer to what was sent last, events left out; descriptors are closed."""
        while True:
            data, fds, _, _ = socket.recv_fds(self.socket, 65536, 64)
            if fds:
                self.inode = os.fstat(fds[0]).st_ino
            for fd in fds:
                os.close(fd)
            reply = fields(data)
            if reply.get(1) == self.last_id:
                return reply

    def ask(self, body, message=b""):
        self.send(body, message)
        return self.receive()

    def send_acquire(self, model):
        self.send(ACQUIRE, field(1, model) + field(2, self.device[1]) + field(3, self.device[2]) +
                  field(4, ALL_HANDLES))

    def acquire(self, model):
        """A lease: the generation."""
        self.send_acquire(model)
        reply = self.receive()
        check(ACQUIRED in reply, f"Acquire of {model}: {reply}")
        return fields(reply[ACQUIRED])[1]

    def resume(self, model, generation, inode):
        """Is the lease there again? inode: of the manifest that came with it."""
        reply = self.ask(RESUME, field(1, model) + field(2, generation) +
                         field(3, self.device[1]) + field(4, self.device[2]) + field(9, inode))
        return RESUMED in reply

    def release(self, generation):
        check(ERROR not in self.ask(RELEASE, field(1, generation)), f"Release of {generation}")

    def reserve(self, n_bytes):
        """"" or the refusal."""
        reply = self.ask(RESERVE, field(1, self.device[1]) + field(2, n_bytes))
        return fields(reply[ERROR])[2].decode() if ERROR in reply else ""

    def close(self):
        self.socket.close()
