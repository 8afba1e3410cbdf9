#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sessions at work while what is below them goes: of four workers one is killed every second and
started again, or the model is loaded again and again. The answers are right, and what weightd
counts is what is alive."""
import multiprocessing
import os
import random
import time

import harness
import soak
from harness import check, check_equal, wait_until
from worker_socket import Connection

N_WORKERS = 4
N_SESSIONS = 16
N_KILLS = soak.get_rounds(60, 20)
N_BESIDE_REPLACED = soak.get_rounds(60, 30)  # generations
ARGS = ["--deterministic", "--no-park", "--sessions", str(N_SESSIONS), "--ctx", "256"]


class Seat:
    """Where one worker after the other serves; .socket stays."""

    def __init__(self, site, number):
        self.site, self.name, self.n_started = site, f"seat{number}", 0
        self.socket = os.path.join(site.dir, self.name + ".sock")
        self.start()

    def start(self):
        self.n_started += 1
        argv = [harness.need_env("WORKERD_BIN"), "--model", "demo", "--weights",
                self.site.weightd_socket, "--socket", self.socket, *ARGS]
        self.daemon = harness.Daemon(self.site, f"{self.name}-{self.n_started}", argv,
                                     self.site.env, wait=False)

    def is_ready(self):
        check(self.daemon.is_alive(), f"{self.daemon.name} ended: {self.daemon.log()}")
        return ": ready" in self.daemon.log()

    def kill(self):
        was_ready = self.is_ready()
        self.daemon.kill()
        check("error" not in self.daemon.log(), f"a worker was refused: {self.daemon.log()}")
        return was_ready


def books(site):
    """What weightd counts, of whom."""
    status = site.status()
    generation = harness.only_generation(status, "demo")
    return {
        "leases": generation["n_leases"],
        "holds": generation["n_holds"],
        "holders": status["holders"],
        "account": status["devices"][0]["account"],
        "granted": {w["pid"]: w["reserved_bytes"] for w in status["workers"]},
    }


def check_books(found, seats, account):
    pids = [s.daemon.pid for s in seats]
    check_equal(sorted(found["granted"]), sorted(pids), "workers")
    check_equal((found["leases"], found["holds"], found["holders"]), (len(seats), 0, []),
                "leases, holds and holders")
    check_equal(sum(found["granted"].values()), found["account"]["reserved_bytes"],
                "bytes granted to those who are alive")
    check_equal(len(set(found["granted"].values())), 1, "one size of grants")
    check_equal(found["account"], account, "account")


def test_soak_kill(site):
    weightd = site.weightd({"demo": harness.MODEL})
    seats = [Seat(site, i) for i in range(N_WORKERS)]
    wait_until(lambda: all(s.is_ready() for s in seats), "all workers", harness.START_SECONDS)
    prompts = soak.make_prompts(seats[0], 16)
    account = books(site)["account"]
    check_books(books(site), seats, account)
    n_fds = weightd.n_fds()

    seed = soak.get_seed()
    draw = random.Random(seed)
    stop = multiprocessing.get_context("fork").Event()
    crowd = soak.Crowd([soak.Client(s, prompts, seed * N_WORKERS + i, N_SESSIONS)
                        for i, s in enumerate(seats)], "outlive", stop)
    n_ready = 0
    for _ in range(N_KILLS):
        time.sleep(1)
        # Half of them serve, whatever a start takes here.
        wait_until(lambda: sum(s.is_ready() for s in seats) >= N_WORKERS // 2, "half of them",
                   harness.START_SECONDS)
        seat = draw.choice(seats)
        n_ready += seat.kill()
        seat.start()
    wait_until(lambda: all(s.is_ready() for s in seats), "all workers", harness.START_SECONDS)
    stop.set()
    found = crowd.join()
    print(f"# {N_KILLS} killed, {n_ready} of them ready; {soak.add_counts(found)}", flush=True)
    for counts in found:
        check(counts["whole"] > 0, f"a client without an answer: {counts}")
    check(sum(counts["cut"] for counts in found) > 0, "no kill cut an answer")

    wait_until(lambda: books(site)["leases"] == N_WORKERS and books(site)["holds"] == 0,
               "the leases of the dead end")
    check_books(books(site), seats, account)
    wait_until(lambda: weightd.n_fds() == n_fds, "weightd closes what it had for the dead")
    check_equal(site.ctl("verify", "demo").status, 0, "verify")
    for i, seat in enumerate(seats):
        n = 10
        counts = soak.Crowd([soak.Client(seat, prompts, seed + i, N_SESSIONS)], "generate",
                            n).join()[0]
        check(counts["begun"] >= n, f"worker {i} afterwards: {counts}")
    for seat in seats:
        seat.daemon.stop()
    wait_until(lambda: books(site)["leases"] == 0, "the last lease ends")
    check_equal(books(site)["account"]["reserved_bytes"], 0, "bytes granted to nobody")
    check_equal(books(site)["granted"], {}, "workers")


def replace(site, crowd):
    """Until the crowd is done. How often."""
    n = 0
    while any(process.is_alive() for process, _ in crowd.members):
        site.ctl("load", "--replace", f"demo={harness.MODEL}")
        n += 1
        time.sleep(0.3)
    return n


def test_replaced(site):
    """Whenever nobody generates, a worker moves: sessions and their answers stay what they were."""
    weightd = site.weightd({"demo": harness.MODEL})
    worker = site.worker("demo", ARGS)
    prompts = soak.make_prompts(worker, 6)
    with Connection(worker) as watcher:
        n_fds = weightd.n_fds()
        # Few enough that there are moments without a generation.
        crowd = soak.Crowd([soak.Client(worker, prompts, soak.get_seed(), 2)], "generate",
                           N_BESIDE_REPLACED)
        n = replace(site, crowd)
        counts = crowd.join()[0]
        print(f"# replaced {n} times beside {counts}", flush=True)
        wait_until(lambda: watcher.n_sessions() == 0, "the end of all sessions")
        check_equal(watcher.status().get(24, 0), 0, "pages that sessions have")

        def has_one():
            found = site.status()["models"][0]["generations"]
            return len(found) == 1 and found[0]["n_leases"] == 1 and found[0]["n_holds"] == 0
        wait_until(has_one, "one generation, with one lease")
        check(watcher.status()[5] > n, "the worker has the last of the generations")
        check_equal(weightd.n_fds(), n_fds, "descriptors of weightd")


if __name__ == "__main__":
    harness.run(globals())
