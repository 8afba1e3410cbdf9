# SPDX-License-Identifier: Apache-2.0
"""A service manager with a store of descriptors, as systemd is to a unit: sd_notify(3), FDSTORE."""
import array
import fcntl
import os
import socket
import threading

import harness

# Far above what a child has open, so that it can lay them out from 3 on.
HIGH_FD = 300


class Manager:
    def __init__(self, site):
        self.site = site
        self.store = []  # [(name, fd)]
        self.lock = threading.Lock()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = os.path.join(site.dir, "notify")
        self.socket.bind(path)
        self.env = dict(site.env, NOTIFY_SOCKET=path, FDSTORE="512")
        self.thread = threading.Thread(target=self.listen, daemon=True)
        self.thread.start()

    def listen(self):
        while True:
            data, control, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(4 * 16))
            if not data:
                return
            fds = array.array("i")
            for level, kind, payload in control:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    fds.frombytes(payload)
            with self.lock:
                self.handle(dict(x.split("=", 1) for x in data.decode().splitlines()), fds)

    def handle(self, message, fds):
        name = message.get("FDNAME", "stored")
        if message.get("FDSTOREREMOVE") == "1":
            for _, fd in (x for x in self.store if x[0] == name):
                os.close(fd)
            self.store = [x for x in self.store if x[0] != name]
        for fd in fds:
            if message.get("FDSTORE") == "1":
                self.store.append((name, fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, HIGH_FD)))
            os.close(fd)

    def names(self):
        with self.lock:
            return sorted(name for name, _ in self.store)

    def start(self, argv, wait=True):
        """The unit's process, with what is in the store."""
        with self.lock:
            store = list(self.store)
        fds = [fd for _, fd in store]
        # In the child: descriptors to their places, LISTEN_PID to what it is, on to the program.
        lines = [f"exec {3 + i}<&{fd} {fd}<&-" for i, fd in enumerate(fds)]
        if fds:
            names = ":".join(name for name, _ in store)
            lines.append(f"export LISTEN_PID=$$ LISTEN_FDS={len(fds)} LISTEN_FDNAMES={names}")
        child = ["bash", "-c", "\n".join([*lines, 'exec "$@"']), "manager", *argv]
        return harness.Daemon(self.site, "weightd", child, self.env, wait, fds)

    def close(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
            s.sendto(b"", self.socket.getsockname())
        self.thread.join()
        self.socket.close()
        for _, fd in self.store:
            os.close(fd)
