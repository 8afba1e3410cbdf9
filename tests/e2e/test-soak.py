#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker's sessions in thousands of generations, cancelled, cut, forked and closed at random:
what is not cut short is what it is alone, and nothing is left behind."""
import os
import time

import harness
import soak
from harness import check, check_equal, wait_until
from worker_socket import Connection

N_SESSIONS = 64
N_CLIENTS = 8
N_FEW = 3  # clients, of fewer generations
N_PLACES = N_SESSIONS // N_CLIENTS
N_CTX = 256
PAGE_TOKENS = 32  # workerd/kv.h
RSS_BYTES = 8 << 20  # that the second half may add


def serve(site, *args):
    folder = os.path.join(site.dir, "saved")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return site.worker("demo", ["--deterministic", "--no-park", "--sessions", str(N_SESSIONS),
                                "--ctx", str(N_CTX), "--sessions-dir", folder, *args])


def rss(worker):
    with open(f"/proc/{worker.pid}/status", encoding="utf-8") as f:
        return next(int(x.split()[1]) for x in f if x.startswith("VmRSS:")) * 1024


class Watcher:
    """A connection beside the others, and what the worker says and has when nobody has anything."""

    def __init__(self, worker):
        self.worker, self.connection = worker, Connection(worker)
        self.before = self.look()

    def look(self):
        """Counters and memory when all is closed; the last connections may still be noticed."""
        wait_until(lambda: self.connection.n_sessions() == 0, "the end of all sessions")
        status = self.connection.status()
        check_equal((status.get(24, 0), status.get(25, 0), status.get(27, 0)), (0, 0, 0),
                    "pages that sessions have, that several have, and generations")
        check(status.get(26, 0) <= status[23], f"{status.get(26)} pages of {status[23]} are kept")
        return {"generated": status.get(17, 0), "computed": status.get(16, 0),
                "pages": status[23], "rss": rss(self.worker)}

    def check_fds(self, n_fds):
        wait_until(lambda: self.worker.n_fds() <= n_fds, "descriptors of who is gone")
        check_equal(self.worker.n_fds(), n_fds, "descriptors")

    def check_counts(self, counts):
        after = self.look()
        check_equal(after["pages"], self.before["pages"], "pages in all")
        for name in "generated", "computed":
            n = after[name] - self.before[name]
            check(counts[name] <= n <= counts[name + "_most"],
                  f"{name} tokens: the worker says {n}, its clients {counts[name]} to "
                  f"{counts[name + '_most']}")
        return after


def soak_worker(worker, prompts, n_clients, n_generations, may_lack_pages=False):
    """Two halves of n_generations; what is there after the one is there after the other."""
    watcher = Watcher(worker)
    n_fds, seed = worker.n_fds(), soak.get_seed()
    clients = [soak.Client(worker, prompts, seed * n_clients + i, N_PLACES, may_lack_pages,
                           saves=True)
               for i in range(n_clients)]
    halves = []
    for _ in range(2):
        start = time.monotonic()
        counts = soak.add_counts(soak.Crowd(clients, "generate",
                                            -(-n_generations // 2 // n_clients)).join())
        print(f"# {time.monotonic() - start:.1f} s: {counts}", flush=True)
        halves.append(watcher.check_counts(counts))
        watcher.before = halves[-1]
        watcher.check_fds(n_fds)
        for client in clients:
            client.random.seed(client.random.random())
        for name in "whole", "cancelled", "cut", "forks", "restores", "truncates":
            check(counts[name] > 0, f"{name}: none in {counts}")
        check_equal(counts["failed"] + counts["refused"] > 0, may_lack_pages,
                    f"pages were short: {counts}")
    grown = halves[1]["rss"] - halves[0]["rss"]
    print(f"# resident {halves[1]['rss'] >> 10} KiB, of it {grown >> 10} of the second half",
          flush=True)
    check(grown < RSS_BYTES, f"the worker grew by {grown} bytes in the second half")
    # What is served after all that is what was served before it.
    check_alone(watcher.connection, prompts[0])
    watcher.connection.close()


def check_alone(c, prompt):
    found = soak.answer_alone(c, prompt.ids, soak.N_MOST, soak.sampling())
    check_equal(found, prompt.greedy[:soak.N_MOST], "tokens afterwards")


def make_prompts(site, n, *args):
    """By a worker that has served nobody."""
    worker = serve(site, *args)
    start = time.monotonic()
    prompts = soak.make_prompts(worker, n)
    print(f"# {len(prompts)} prompts of {min(len(p.ids) for p in prompts)} to "
          f"{max(len(p.ids) for p in prompts)} tokens in {time.monotonic() - start:.1f} s",
          flush=True)
    worker.stop()
    return prompts


def test_soak(site):
    site.weightd({"demo": harness.MODEL})
    prompts = make_prompts(site, 32)
    soak_worker(serve(site), prompts, N_CLIENTS, soak.get_rounds(2000, 500))


def test_soak_q8_0(site):
    site.weightd({"demo": harness.MODEL})
    prompts = make_prompts(site, 8, "--kv-type", "q8_0")
    soak_worker(serve(site, "--kv-type", "q8_0"), prompts, N_FEW, 240)


def test_soak_without_room(site):
    """Pages for a third of the sessions: who is refused is told the figures."""
    site.weightd({"demo": harness.MODEL})
    prompts = make_prompts(site, 16)
    n_tokens = N_FEW * N_PLACES // 3 * 5 * PAGE_TOKENS
    soak_worker(serve(site, "--kv-tokens", str(n_tokens)), prompts, N_FEW, 360, True)


if __name__ == "__main__":
    harness.run(globals())
