#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a worker takes to attach to resident weights, and to its first token.

First with empty shader caches, then with the caches that the first worker filled. Prints medians of
ROUNDS and their range; measures, judges nothing.
"""
import os
import statistics
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "e2e"))
import harness

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "5"))
# Ours, Mesa's and NVIDIA's.
CACHES = ("WEIGHTD_CACHE", "MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH")
QUESTION = "Which continent is Chile in?"


def first_token(site):
    """One worker from start to its first token: its figures in milliseconds."""
    worker = site.worker("demo")
    site.ctl("ask", QUESTION, "--temp", "0", worker=worker)
    peer = next(w for w in site.status()["workers"] if w["pid"] == worker.pid)
    own = site.ctl("status", "--json", worker=worker).json()["worker"]
    worker.stop()
    return {"attach": peer["attach_ns"] / 1e6, "ready": own["ready_ns"] / 1e6,
            "first token": own["first_token_ns"] / 1e6}


def show(caches, rows):
    for what in rows[0]:
        values = [row[what] for row in rows]
        print(f"{what:12} {caches:8} {statistics.median(values):9.2f} ms "
              f"({min(values):.2f} to {max(values):.2f}, n = {len(values)})")


def bench(site, cache):
    site.weightd({"demo": harness.MODEL})
    device = site.status()["device"]["name"]
    print(f"device: {device}; model: {os.path.basename(harness.MODEL)}")
    empty = []
    for i in range(ROUNDS):
        for name in CACHES:
            site.env[name] = os.path.join(cache, f"{name}{i}")
            os.mkdir(site.env[name], 0o700)
        empty.append(first_token(site))
    filled = [first_token(site) for _ in range(ROUNDS)]
    show("empty", empty)
    show("filled", filled)


def main():
    site = harness.Site()
    try:
        with tempfile.TemporaryDirectory(prefix="weightd-bench-") as cache:
            bench(site, cache)
    finally:
        site.close()


main()
