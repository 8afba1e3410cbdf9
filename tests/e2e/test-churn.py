#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Workers are killed all the time, at any moment of their lives, while others attach and generate:
every lease is accounted for, and everybody else gets right answers."""
import os
import random
import re
import statistics
import subprocess
import time

import harness
from harness import check, check_equal

N_KILLS = 200
N_BESIDE = 4  # that live at a time and are killed
TEXT = "The capital of France"
WORKER_ARGS = ("--ctx", "128", "--sessions", "1", "--deterministic")


class Victim:
    """A worker that is killed at a moment of its own; some before they have attached."""

    def __init__(self, site, number, seconds):
        self.log_path = os.path.join(site.dir, f"victim{number}.log")
        self.socket = os.path.join(site.dir, f"victim{number}.sock")
        self.until = time.monotonic() + seconds
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [harness.need_env("WORKERD_BIN"), "--model", "demo", "--weights",
                 site.weightd_socket, "--socket", self.socket, "--log-level", "debug",
                 *WORKER_ARGS],
                env=site.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def is_due(self):
        return time.monotonic() >= self.until

    def kill(self):
        """Milliseconds that its attach took, and of these weightd; None: it did not come so far."""
        self.process.kill()
        self.process.wait()
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            log = f.read()
        os.unlink(self.log_path)
        if os.path.exists(self.socket):
            os.unlink(self.socket)
        check("error" not in log, f"a worker was refused: {log}")
        found = re.search(r"attached in ([0-9.]+) ms", log)
        acquire = re.search(r"attach: acquire ([0-9.]+) ms", log)
        return (float(found[1]), float(acquire[1])) if found else None


def describe(name, ms):
    """One line of median and 99th percentile."""
    ms = sorted(ms)
    p99 = ms[min(len(ms) - 1, len(ms) * 99 // 100)]
    median = statistics.median(ms)
    print(f"# {name}: median {median:.2f} ms, p99 {p99:.2f} ms ({p99 / median:.1f} x)", flush=True)


def complete(site, worker):
    return site.start_ctl("complete", TEXT, "--temp", "0", "--n-predict", "24", "--json",
                          worker=worker)


def test_killed_at_random(site):
    site.env["WEIGHTD_VALIDATION"] = "0"
    weightd = site.weightd({"demo": harness.MODEL})
    survivors = [site.worker("demo", WORKER_ARGS)]
    # A sanitized program takes seconds to start, and its faults show in fewer.
    n_kills = N_KILLS
    if harness.is_sanitized(harness.need_env("WORKERD_BIN")):
        n_kills = N_KILLS // 5
    start = time.monotonic()
    survivors.append(site.worker("demo", WORKER_ARGS))
    # Beside others that start, with this much of a worker's start one in two attaches.
    life_seconds = (time.monotonic() - start) * 4
    expected = site.finish_ctl(complete(site, survivors[0])).json()["tokens"]
    n_fds = weightd.n_fds()
    n_leases = harness.only_generation(site.status(), "demo")["n_leases"]
    check_equal(n_leases, 2, "leases before")
    seed = int.from_bytes(os.urandom(4), "little")
    print(f"# seed {seed}", flush=True)
    random.seed(seed)
    n_started, n_answers, attach_ms, victims = 0, 0, [], []
    running = [(w, complete(site, w)) for w in survivors]
    while n_started < n_kills or victims:
        while n_started < n_kills and len(victims) < N_BESIDE:
            # From before the first byte on the socket to after the first answers.
            victims.append(Victim(site, n_started, random.uniform(0, life_seconds)))
            n_started += 1
        for victim in [v for v in victims if v.is_due()]:
            victims.remove(victim)
            ms = victim.kill()
            if ms is not None:
                attach_ms.append(ms)
        for i, (worker, process) in enumerate(running):
            if process.poll() is not None:
                check_equal(site.finish_ctl(process).json()["tokens"], expected, "an answer")
                n_answers += 1
                running[i] = (worker, complete(site, worker))
        time.sleep(0.005)
    for _, process in running:
        check_equal(site.finish_ctl(process).json()["tokens"], expected, "a last answer")
    harness.wait_until(
        lambda: harness.only_generation(site.status(), "demo")["n_leases"] == n_leases,
        "the leases of the dead end")
    generation = harness.only_generation(site.status(), "demo")
    check_equal(generation["n_holds"], 0, "holds of the dead")
    check_equal(sorted(w["pid"] for w in site.status()["workers"]),
                sorted(w.pid for w in survivors), "workers that are left")
    harness.wait_until(lambda: weightd.n_fds() == n_fds, "weightd closes what it had for the dead")
    check(n_answers > 0 and len(attach_ms) > n_kills / 10,
          f"{n_answers} answers, {len(attach_ms)} of {n_kills} attached")
    print(f"# {n_kills} killed, {len(attach_ms)} of them attached; {n_answers} answers meanwhile")
    describe("attach", [all_of_it for all_of_it, _ in attach_ms])
    describe("of it weightd", [acquire for _, acquire in attach_ms])
    check_equal(site.finish_ctl(complete(site, site.worker("demo", WORKER_ARGS))).json()["tokens"],
                expected, "the answer of a worker that came afterwards")


harness.run(globals())
