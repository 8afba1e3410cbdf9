#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Workers that take turns on a device: what they say is what they say alone, each has its part, and
one that is killed in its turn holds nobody up."""
import re
import time

import harness
from harness import check, check_equal
from worker_socket import Running

TURN_MS = 30  # some steps of the software driver, which takes no turns by itself
PROMPTS = ("The capital of France", "Mongolia lies in", "Which continent")
TURNS = re.compile(r"turns: (\d+), of which (\d+) were waited for, (\d+) ms in all; "
                   r"passed by: (\d+)")


def start(site, n, *args):
    site.weightd({"demo": harness.MODEL})
    return [site.worker("demo", ["--ctx", "512", "--sessions", "1", "--log-level", "debug", *args])
            for _ in range(n)]


def alone(worker, n_predict):
    return [Running(worker, n_predict, prompt).finish()[0] for prompt in PROMPTS]


def check_says(running, expected):
    ids, _, error = running.finish()
    check_equal(error, "", "failure")
    check_equal(ids, expected[:len(ids)], "tokens beside others")
    return len(ids)


def turns(worker):
    """(turns, of those waited for, workers passed by), once the worker has ended."""
    worker.stop()
    found = TURNS.search(worker.log())
    check(found, f"no turns in {worker.log()}")
    return int(found[1]), int(found[2]), int(found[4])


def test_turns(site):
    workers = start(site, len(PROMPTS), "--turn", str(TURN_MS))
    expected = alone(workers[0], 150)
    for worker in workers[1:]:
        Running(worker, 8).finish()
    begun = time.monotonic()
    running = [Running(w, 150, p) for w, p in zip(workers, PROMPTS)]
    for r, e in zip(running, expected):
        check_equal(check_says(r, e), 150, "tokens")
    # Where others compute on these CPUs, steps are longer than anybody waits for.
    step_ms = (time.monotonic() - begun) * 1000 / (150 * len(PROMPTS))
    for worker in workers:
        n, n_waited, n_passed = turns(worker)
        print(f"# steps of {step_ms:.1f} ms: {n} turns, {n_waited} waited for, "
              f"{n_passed} passed by")
        check(n >= n_waited, f"{n} turns, {n_waited} waited for")
        check(n_waited >= 5 or step_ms > TURN_MS / 3, f"only {n_waited} turns were waited for")


def test_killed_in_its_turn(site):
    workers = start(site, len(PROMPTS), "--turn", str(TURN_MS))
    expected = alone(workers[0], 120)
    for worker in workers[1:]:
        Running(worker, 8).finish()
    for i in (2, 1):
        running = [Running(w, 120, p) for w, p in zip(workers[:i + 1], PROMPTS)]
        harness.wait_until(lambda r=running, k=i: r[k].has(10), "some tokens")
        workers[i].kill()
        begun = time.monotonic()
        for r, e in zip(running[:i], expected):
            check_equal(check_says(r, e), 120, "tokens")
        print(f"# beside {i + 1}, one killed: {time.monotonic() - begun:.2f} s")
    n, _, n_passed = turns(workers[0])
    # Whoever has it when it is killed: often enough the other one.
    check(n_passed <= 4, f"{n_passed} were passed by in {n} turns")


def test_off(site):
    first, second = start(site, 2, "--turn", "off")
    running = [Running(w, 30) for w in (first, second)]
    check_equal(running[0].finish()[0], running[1].finish()[0], "tokens")
    first.stop()
    check(not TURNS.search(first.log()), "turns though they are off")


if __name__ == "__main__":
    harness.run(globals())
