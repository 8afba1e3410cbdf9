#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""N workers on a model cost one copy of its weights, and one that dies harms nobody."""
import os
import signal
import subprocess

import harness
from harness import check, check_equal

MODEL_MIB = 512
WORKERS = (1, 2, 4)
MIB = 1 << 20
# What a process with a Vulkan device costs beside its KV and scratch: on the software driver the
# code it compiles and its own heap.
PROCESS_BYTES = 64 * MIB


def make_model(site):
    path = os.path.join(site.dir, "big.gguf")
    subprocess.run([harness.need_env("MKMODEL_BIN"), path, "--bytes", f"{MODEL_MIB}M"],
                   check=True, timeout=120)
    return path


def need_mapped_weights(status):
    if not status["device"]["software"]:
        raise harness.Skip("the weights are in a GPU's memory, which smaps does not show")


def test_one_copy(site):
    site.env["WEIGHTD_VALIDATION"] = "0"  # the layer's own memory is not what is measured
    weightd = site.weightd({"big": make_model(site)})
    need_mapped_weights(site.status())
    is_sanitized = harness.is_sanitized(harness.need_env("WORKERD_BIN"))
    workers = []
    for n in WORKERS:
        while len(workers) < n:
            workers.append(site.worker("big", ["--ctx", "256", "--sessions", "1"]))
            # A step reads every weight, so that its pages count for this worker.
            site.ctl("complete", "a", "--temp", "0", "--n-predict", "2", worker=workers[-1])

        status = site.status()
        generation = harness.only_generation(status, "big")
        weights = generation["weights_bytes"]
        check(weights > 0.9 * MODEL_MIB * MIB, f"weights of {weights} bytes")
        check_equal(generation["n_leases"], n, "leases")
        inodes = harness.weight_inodes(generation)
        shared = {d.pid: harness.smaps_pss(d.pid, inodes) for d in [weightd] + workers}
        copies = sum(shared.values()) / weights
        print(f"# {n} workers: weights {weights}, sum of their Pss {sum(shared.values())} "
              f"= {copies:.3f} copies")
        check(1.00 <= copies <= 1.05, f"{n} workers: {copies:.3f} copies in memory")

        total = sum(harness.rollup_pss(d.pid) for d in [weightd] + workers)
        if n > WORKERS[0]:
            own = sum(w["kv_bytes"] + w["scratch_bytes"] for w in status["workers"]) // n
            added = (total - total_before) // (n - n_before)
            print(f"# {n} workers: each further one adds {added} bytes, its KV and scratch {own}")
            check(is_sanitized or added < own + PROCESS_BYTES,
                  f"a worker costs {added} bytes, its own are {own}")
        n_before, total_before = n, total


def long_completion(site, worker):
    # So hot that no end token is drawn in 300: there is time to kill somebody meanwhile.
    return site.start_ctl("complete", "The capital of France", "--temp", "5", "--seed", "12",
                          "--n-predict", "300", "--json", worker=worker)


def test_weightd_dies(site):
    weightd = site.weightd({"demo": harness.MODEL})
    worker = site.worker("demo")
    undisturbed = site.finish_ctl(long_completion(site, worker)).json()
    running = long_completion(site, worker)
    weightd.kill()
    check_equal(site.finish_ctl(running).json()["text"], undisturbed["text"],
                        "text of a generation during which weightd died")
    answer = site.ctl("ask", "Which continent is Chile in?", worker=worker)
    check_equal(answer.out, "Chile is in South America.\n", "answer without weightd")


def test_kill_a_worker(site):
    weightd = site.weightd({"demo": harness.MODEL})
    survivor = site.worker("demo")
    undisturbed = site.finish_ctl(long_completion(site, survivor)).json()
    n_fds = weightd.n_fds()

    victim = site.worker("demo")
    harness.wait_until(lambda: len(site.status()["workers"]) == 2, "two workers in status")
    running = [long_completion(site, w) for w in (survivor, victim)]
    before = site.ctl("status", "--json", worker=victim).json()["worker"]["generated_tokens"]
    harness.wait_until(
        lambda: site.ctl("status", "--json", worker=victim).json()["worker"]["generated_tokens"]
        > before, "the victim generates")
    victim.signal(signal.SIGKILL)
    broken = site.finish_ctl(running[1])
    check_equal((broken.status, len(broken.err.splitlines())), (1, 1), f"{broken}")
    disturbed = site.finish_ctl(running[0]).json()
    check_equal(disturbed["text"], undisturbed["text"], "text of the survivor")
    check_equal(disturbed["tokens"], undisturbed["tokens"], "tokens of the survivor")

    # The lease and the connection are gone, and nothing is left open for the dead.
    harness.wait_until(lambda: [w["pid"] for w in site.status()["workers"]] == [survivor.pid],
                       "the dead worker leaves status")
    harness.wait_until(lambda: weightd.n_fds() == n_fds, "weightd closes what it had for the dead")
    again = site.worker("demo")
    check_equal(site.finish_ctl(long_completion(site, again)).json()["text"],
                undisturbed["text"], "text of a worker that attached afterwards")


def states(site, model):
    """{generation: (state, leases)} of a model; empty when there is none."""
    return {g["id"]: (g["state"], g["n_leases"]) for m in site.status()["models"]
            if m["name"] == model for g in m["generations"]}


def test_replace_and_unload_under_a_reader(site):
    site.weightd({"demo": harness.MODEL})
    old = site.worker("demo", ["--ctx", "512"])
    running = long_completion(site, old)
    generated = lambda: site.ctl("status", "--json", worker=old).json()["worker"]
    harness.wait_until(lambda: generated()["generated_tokens"] > 0, "the old worker generates")
    site.ctl("load", f"demo={harness.MODEL}", "--replace")
    # Who generates stays where it is; with that over it moves, and the old generation goes.
    check_equal(list(states(site, "demo").values()), [("draining", 1), ("ready", 0)],
                "the old generation beside the next")
    young = site.worker("demo")
    check_equal(site.finish_ctl(running).status, 0, "the generation under which it was replaced")
    harness.wait_until(lambda: list(states(site, "demo").values()) == [("ready", 2)],
                       "the old generation goes with its last generation of text")
    for worker in old, young:
        answer = site.ctl("ask", "Which continent is Chile in?", worker=worker)
        check_equal(answer.out, "Chile is in South America.\n", worker.name)
    old.stop()
    harness.wait_until(lambda: list(states(site, "demo").values()) == [("ready", 1)],
                       "one lease is left")
    check_equal(site.ctl("unload", "demo").out, "demo: draining: 1 lease\n", "unload")
    check_equal(list(states(site, "demo").values()), [("draining", 1)], "after unload")
    young.stop()
    harness.wait_until(lambda: not states(site, "demo"), "the model goes with its last worker")


def test_kill_while_attaching(site):
    """SIGKILL at many moments of a worker's life; weightd never notices more than a disconnect."""
    weightd = site.weightd({"demo": harness.MODEL})
    n_fds = weightd.n_fds()
    argv = [harness.need_env("WORKERD_BIN"), "--model", "demo", "--weights", site.weightd_socket,
            "--socket", os.path.join(site.dir, "killed.sock")]
    for step in range(8):
        process = subprocess.Popen(argv, env=site.env, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.wait(0.01 + 0.04 * step)
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
    harness.wait_until(lambda: not site.status()["workers"], "no worker is left in status")
    harness.wait_until(lambda: weightd.n_fds() == n_fds, "weightd closes what it had for the dead")
    # The dead left a socket file; the next worker takes its place.
    argv_socket = argv[-1]
    worker = site.worker("demo", ["--socket", argv_socket])
    worker.socket = argv_socket
    site.ctl("ask", "Which continent is Chile in?", worker=worker)


harness.run(globals())
