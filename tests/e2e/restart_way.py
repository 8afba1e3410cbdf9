# SPDX-License-Identifier: Apache-2.0
"""A weightd that is killed and started again, and what must be as it was."""
import os
import signal
import time

import harness
import manager
from harness import check, check_equal, wait_until


class Way:
    """weightd with one way of keeping descriptors; starts it again as it was."""

    def __init__(self, site, kind, args=(), model=harness.MODEL):
        self.site = site
        self.manager = manager.Manager(site) if kind == "manager" else None
        keep = ["--keep", "0"] if kind == "workers" else []
        self.argv = site.weightd_argv({"demo": model} if model else {}, [*keep, *args])
        self.daemon = None

    def start(self, wait=True):
        if self.manager:
            self.daemon = self.manager.start(self.argv, wait)
        else:
            self.daemon = harness.Daemon(self.site, "weightd", self.argv, self.site.env, wait)
        return self.daemon

    def kill(self):
        """When it was dead."""
        self.daemon.signal(signal.SIGKILL)
        self.daemon.process.wait()
        return time.monotonic()

    def close(self):
        """Everything ends in order; what was kept is given up."""
        for daemon in reversed(self.site.daemons):
            daemon.stop()
        if self.manager:
            # The last datagrams may still be on their way.
            wait_until(lambda: not self.manager.names(), "an empty store")
            self.manager.close()
        left = [f for f in os.listdir(self.site.dir) if f.startswith("weightd.sock")]
        check_equal(left, [], "files left by weightd")
        check_equal(self.site.strays(), [], "processes left")


def generation(site):
    return harness.only_generation(site.status(), "demo")


def read_io(pid):
    with open(f"/proc/{pid}/io", encoding="ascii") as f:
        return {k: int(v) for k, v in (line.split(": ") for line in f)}


def check_adopted(site, way, before, n_read=0):
    """As it was before, of the same memory, and nothing was read for it. n_read: of the process
    until then."""
    after = generation(site)
    check_equal((after["origin"], after["load_ns"], after["loaded_bytes"]), ("adopted", 0, 0),
                "origin and what was loaded")
    for key in ("id", "state", "weights_bytes", "n_tensors", "architecture", "format", "path",
                "file_bytes", "manifest_bytes"):
        check_equal(after[key], before[key], key)
    check_equal(harness.weight_inodes(after), harness.weight_inodes(before), "memory")
    io = read_io(way.daemon.pid)
    most = before["file_bytes"] / 4
    check(io["rchar"] - n_read < most and io["read_bytes"] < most,
          f"the new weightd read {io}, the model has {before['file_bytes']}")
    return io


def wait_leases(site, pids):
    """Each worker has its lease again, and weightd knows what it is."""
    wait_until(lambda: sorted(w["pid"] for w in site.status()["workers"] if w["leases"]) ==
               sorted(pids), f"leases of {pids}")
