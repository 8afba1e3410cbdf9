#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a restart cannot bring back: who has it hears of it, and is accounted until it lets go."""
import os
import signal
import socket
import time

import harness
from harness import check, check_equal, wait_until
from restart_way import Way, generation, wait_leases
from rogue import Rogue
from worker_socket import field, fields

QUESTION = "Which continent is Chile in?"
ANSWER = "Chile is in South America.\n"
TENSOR = "blk.1.ffn_up.weight"
CORRUPT, LOST = 10, 7


def generations(site):
    return {g["id"]: g for m in site.status()["models"] for g in m["generations"]}


def weights_bytes(site):
    """Of the first device's account."""
    return site.status()["devices"][0]["account"]["weights_bytes"]


def holds(site, id):
    return sorted(h["pid"] for h in site.status()["holders"]
                  if id in {x["generation"] for x in h["holds"]})


class Watcher:
    def __init__(self, site):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(30)
        wait_until(lambda: self.socket.connect_ex(site.weightd_socket) == 0, "weightd", 30)
        self.socket.send(field(1, 1) + field(3, field(1, 1) + field(3, 2)))
        self.socket.recv(65536)
        self.socket.send(field(1, 2) + field(9, b""))
        check(6 in fields(self.socket.recv(65536)), "Done")

    def wait(self, kind):
        while True:
            event = fields(fields(self.socket.recv(65536)).get(9, b""))
            if event.get(1) == kind:
                return event


def check_corrupt(site, kind, place, by_client=False):
    """Written into while weightd looked away, and found when the next one takes it over."""
    way = Way(site, kind, ["--scrub", "0", "--place", f"*={place}"],
              model=None if by_client else harness.MODEL)
    way.start()
    if by_client:
        site.ctl("load", f"demo={harness.MODEL}")
    worker = site.worker("demo")
    before = generation(site)
    n_before = weights_bytes(site)
    rogue = Rogue(site, (TENSOR, 4))
    way.kill()
    way.start(wait=False)
    # Without a keeper it is the worker that brings what was written into.
    wait_until(lambda: f"generation {before['id']} is dropped: tensor {TENSOR}" in worker.log(),
               "the worker's reaction", 30)
    wait_until(lambda: generations(site).get(before["id"] + 1, {}).get("state") == "ready",
               "the one that follows", 30)
    wait_until(lambda: holds(site, before["id"]) == [rogue.pid], "the rogue's hold", 30)
    lost = generations(site)[before["id"]]
    check_equal((lost["state"], lost["n_leases"], lost["n_holds"], lost["weights_bytes"]),
                ("lost", 0, 1, before["weights_bytes"]), "the lost one")
    check_equal(weights_bytes(site), 2 * n_before, "the account")
    check("lost" in site.ctl("ls").out, "ls")
    check(f"process {rogue.pid}" in site.ctl("status").out, "status")
    line = next(x for x in way.daemon.log().splitlines() if "held by pid" in x)
    check(TENSOR in line and str(rogue.pid) in line, line)
    check_equal(site.ctl("ask", QUESTION, worker=worker).out, ANSWER, "an answer")
    wait_leases(site, [worker.pid])
    rogue.end()
    wait_until(lambda: set(generations(site)) == {before["id"] + 1}, "the lost one's end")
    check_equal(weights_bytes(site), n_before, "the account afterwards")
    way.close()


def test_corrupt_device_memory(site):
    check_corrupt(site, "keeper", "device")


def test_corrupt_staged_memory(site):
    check_corrupt(site, "manager", "staged")


def test_corrupt_and_loaded_by_client(site):
    check_corrupt(site, "keeper", "device", by_client=True)


def test_corrupt_from_workers(site):
    check_corrupt(site, "workers", "device")


def test_watcher_hears_of_it(site):
    """The first who asks is told, as a watcher of the weightd before would have been."""
    way = Way(site, "workers", ["--scrub", "0"])
    way.start()
    worker = site.worker("demo")
    rogue = Rogue(site, (TENSOR, 4))
    worker.signal(signal.SIGSTOP)
    way.kill()
    way.start(wait=False)
    watcher = Watcher(site)
    worker.signal(signal.SIGCONT)
    event = watcher.wait(CORRUPT)
    check(TENSOR in event[6].decode() and f"held by pid {rogue.pid}" in event[6].decode(), event)
    check(TENSOR in watcher.wait(LOST)[6].decode(), "the reason of the loss")
    rogue.end()
    way.close()


def test_stays_lost(site):
    """Another restart knows that it was, who has it, and why."""
    way = Way(site, "keeper", ["--scrub", "0"])
    way.start()
    worker, late = site.worker("demo"), site.worker("demo")
    before = generation(site)
    rogue = Rogue(site, (TENSOR, 4))
    late.signal(signal.SIGSTOP)
    way.kill()
    way.start()
    pids = sorted([rogue.pid, late.pid])
    wait_until(lambda: holds(site, before["id"]) == pids, "holds", 30)
    n_bytes = weights_bytes(site)
    way.kill()
    way.start()
    wait_until(lambda: holds(site, before["id"]) == pids, "holds after another restart", 30)
    found = generations(site)
    lost = found[before["id"]]
    check_equal((lost["state"], lost["weights_bytes"], lost["architecture"]),
                ("lost", before["weights_bytes"], before["architecture"]), "the lost one")
    check_equal({i: g["state"] for i, g in found.items()},
                {before["id"]: "lost", before["id"] + 1: "ready"}, "generations")
    check_equal(weights_bytes(site), n_bytes, "the account")
    late.signal(signal.SIGCONT)
    wait_until(lambda: f"generation {before['id']} is dropped: tensor {TENSOR}" in late.log(),
               "the late worker's reaction", 30)
    for w in worker, late:
        check_equal(site.ctl("ask", QUESTION, worker=w).out, ANSWER, "an answer")
    wait_until(lambda: holds(site, before["id"]) == [rogue.pid], "one hold less")
    rogue.end()
    wait_until(lambda: set(generations(site)) == {before["id"] + 1}, "the lost one's end")
    way.close()


def check_lacking(site, place):
    """Nobody brought the memory in time: it is lost to weightd, and its workers' all the same."""
    way = Way(site, "workers", ["--place", f"*={place}"])
    way.start()
    worker, other = site.worker("demo"), site.worker("demo")
    site.ctl("pin", "demo")
    before = generation(site)
    n_before = weights_bytes(site)
    for w in worker, other:
        w.signal(signal.SIGSTOP)
    way.kill()
    way.start()
    wait_until(lambda: holds(site, before["id"]) == sorted([worker.pid, other.pid]), "holds", 30)
    after = generations(site)
    lost = after[before["id"]]
    check_equal((lost["state"], lost["n_holds"], lost["weights_bytes"]),
                ("lost", 2, before["weights_bytes"]), "the lost one")
    follower = after[before["id"] + 1]
    check_equal((follower["state"], follower["pinned"]), ("ready", True), "what follows")
    check_equal(weights_bytes(site), 2 * n_before, "the account")
    # One ends, the other comes back and hears of it.
    other.kill()
    wait_until(lambda: holds(site, before["id"]) == [worker.pid], "one hold less")
    worker.signal(signal.SIGCONT)
    wait_until(lambda: "is dropped: not all of its descriptors came back" in worker.log(),
               "the worker's reaction", 30)
    wait_until(lambda: set(generations(site)) == {before["id"] + 1}, "the lost one's end", 30)
    check_equal(weights_bytes(site), n_before, "the account afterwards")
    check_equal(site.ctl("ask", QUESTION, worker=worker).out, ANSWER, "an answer")
    wait_leases(site, [worker.pid])
    check_equal(holds(site, before["id"] + 1), [], "holds")
    way.close()


def test_lacking_device_memory(site):
    check_lacking(site, "device")


def test_lacking_staged_memory(site):
    check_lacking(site, "staged")


harness.run(globals())
