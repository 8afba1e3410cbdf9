#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One account of the device's memory: workers that park, and workers that change generations."""
import os
import re
import subprocess
import threading
import time

import harness
from harness import check, check_equal, wait_until
from worker_socket import Connection, Refused, sampling

MIB = 1 << 20
QUESTION = "Which continent is Chile in?"
ANSWER = "Chile is in South America.\n"
PROMPT = "The capital of"
# A worker of the demo model then takes 6 MiB, and its plan some hundred kilobytes.
SMALL = ["--sessions", "2", "--ctx", "512", "--chunk", "64"]


def make_model(site, name, *args):
    path = os.path.join(site.dir, name + ".gguf")
    subprocess.run([harness.need_env("MKMODEL_BIN"), path, *args], check=True, timeout=120)
    return path


def worker_state(site, worker):
    return site.ctl("--json", "status", worker=worker).json()["worker"]


def wait_for_state(site, worker, state):
    return wait_until(lambda: worker_state(site, worker)["state"] == state,
                      f"{worker.name} is {state}")


def account(site):
    return site.status()["devices"][0]["account"]


def check_account(site):
    """Nobody has more than there is, at this moment."""
    a = account(site)
    check(a["weights_bytes"] + a["reserved_bytes"] <= a["budget_bytes"], f"over-committed: {a}")
    return a


def names(site):
    return [m["name"] for m in site.status()["models"]]


def complete(site, worker, **more):
    return site.ctl("complete", PROMPT, "--n-predict", "12", "--json", worker=worker, **more)


def test_a_second_model(site):
    """Two models of 60% of the device each: held weights stay, idle workers make room."""
    a = make_model(site, "a", "--bytes", "24M", "--seed", "1")
    b = make_model(site, "b", "--bytes", "24M", "--seed", "2")
    # 24 MiB of 40, and all of it on the device or nothing.
    site.weightd({"a": a}, ["--device-budget", "40M", "--place", "*=device"])
    options = ["--sessions", "1", "--ctx", "64", "--chunk", "64", "--deterministic"]
    held = [site.worker("a", options + ["--no-park"]) for _ in range(2)]
    before = account(site)
    refused = site.ctl("load", f"b={b}", status=1)
    check_equal(len(refused.err.splitlines()), 1, f"lines of {refused}")
    for part in [f"pid {w.pid} (model a)" for w in held] + ["a generation 1"]:
        check(part in refused.err, f"{part!r} is not in {refused}")
    check_equal(names(site), ["a"], "models after the refusal")
    check_equal(account(site), before, "account after the refusal")
    check_equal(site.status()["models"][0]["generations"][0]["n_leases"], 2, "leases")
    # One that waits for room can be given up.
    waiting = site.start_ctl("load", f"b={b}")
    wait_until(lambda: account(site)["n_waiting"] == 1, "the load waits")
    site.ctl("unload", "b")
    given_up = site.finish_ctl(waiting)
    check_equal((given_up.status, len(given_up.err.splitlines())), (1, 1), f"{given_up}")
    check_equal(account(site), before, "account after the load was given up")
    for w in held:
        w.stop()

    idle = [site.worker("a", options) for _ in range(2)]
    answers = [complete(site, w).json()["text"] for w in idle]
    site.ctl("load", f"b={b}")
    check_account(site)
    check_equal(names(site), ["b"], "models after the workers have parked")
    for w in idle:
        check_equal(worker_state(site, w)["state"], "parked", w.name)
    status = site.status()
    for w in status["workers"]:
        check_equal((w["leases"], w["reserved_bytes"], w["kv_bytes"]), ([], 0, 0), f"{w}")
    # Its model is not there: that request is refused, and the worker lives.
    refused = complete(site, idle[0], status=1)
    check_equal(len(refused.err.splitlines()), 1, f"lines of {refused}")
    check("the worker is parked" in refused.err and "no model a" in refused.err, f"{refused}")

    site.ctl("unload", "b")
    site.ctl("load", f"a={a}")
    for w, answer in zip(idle, answers):
        check_equal(complete(site, w).json()["text"], answer, "answer after the park")
        check_equal(worker_state(site, w)["state"], "ready", w.name)
    check_account(site)


def start_at_once(site, n, options, budget):
    """Starts n workers together; ([those that are ready], [(status, log) of those that ended])."""
    site.weightd({"demo": harness.MODEL}, ["--device-budget", str(budget)])
    started, ended = [], []
    lock = threading.Lock()

    def start():
        try:
            with lock:
                site.n_workers += 1
                name = f"worker{site.n_workers}"
            socket = os.path.join(site.dir, name + ".sock")
            argv = [harness.need_env("WORKERD_BIN"), "--model", "demo", "--weights",
                    site.weightd_socket, "--socket", socket, *options]
            daemon = harness.Daemon(site, name, argv, site.env)
            daemon.socket = socket
            started.append(daemon)
        except harness.Failure as e:
            ended.append(str(e))

    threads = [threading.Thread(target=start) for _ in range(n)]
    for t in threads:
        t.start()
    while any(t.is_alive() for t in threads):
        check_account(site)
        time.sleep(0.05)
    check_account(site)
    # Those that ended were refused, as is expected here.
    site.daemons = [d for d in site.daemons if d.is_alive() or d.name == "weightd"]
    return started, ended


def measure_worker(site, options):
    """Bytes of the weights and of one worker's grant, once it is up."""
    other = harness.Site()
    try:
        other.weightd({"demo": harness.MODEL})
        other.worker("demo", options)
        a = account(other)
        return a["weights_bytes"], a["reserved_bytes"]
    finally:
        other.close()


def test_eight_start_for_five(site):
    options = SMALL + ["--no-park"]
    n_weights, n_worker = measure_worker(site, options)
    check(n_worker > 2.5 * MIB, f"a worker of {n_worker} bytes is too small for this test")
    started, ended = start_at_once(site, 8, options, n_weights + n_worker * 11 // 2 + MIB)
    check_equal((len(started), len(ended)), (5, 3), f"workers that got in, and not: {ended}")
    for text in ended:
        check("ended with 1 before" in text, text)
        for w in started:
            check(f"pid {w.pid} (model demo)" in text, f"{w.pid} is not named in {text}")
    check_equal(account(site)["reserved_bytes"], 5 * n_worker, "reserved by five")
    # The dead give their memory back.
    started[0].kill()
    wait_until(lambda: account(site)["reserved_bytes"] == 4 * n_worker, "the grant of the dead")
    site.daemons.remove(started[0])
    os.unlink(started[0].socket)
    again = site.worker("demo", options)
    check_equal(site.ctl("ask", QUESTION, worker=again).out, ANSWER, "answer of the next")


def test_eight_share_room_for_five(site):
    """Whoever is idle parks for whoever asks: all eight serve, never more than five at a time."""
    n_weights, n_worker = measure_worker(site, SMALL)
    started, ended = start_at_once(site, 8, SMALL, n_weights + n_worker * 11 // 2 + MIB)
    check_equal((len(started), ended), (8, []), "workers that got in")
    for w in started + started[::-1]:
        check_equal(site.ctl("ask", QUESTION, worker=w).out, ANSWER, f"answer of {w.name}")
        check_account(site)
    states = [worker_state(site, w)["state"] for w in started]
    check(states.count("parked") >= 3, f"states: {states}")


def test_chunk_of_what_is_granted(site):
    options = ["--sessions", "2", "--ctx", "512"]
    n_weights, n_least = measure_worker(site, options + ["--chunk", "64"])
    _, n_most = measure_worker(site, options + ["--chunk", "1024"])
    check(n_most > n_least + 2 * MIB, f"chunks take {n_least} and {n_most} bytes")
    n_budget = n_weights + (n_least + n_most) // 2 + MIB
    site.weightd({"demo": harness.MODEL}, ["--device-budget", str(n_budget)])
    worker = site.worker("demo", options + ["--chunk", "1024"])
    found = re.search(r"chunk: (\d+) tokens a step, there is no memory for 1024", worker.log())
    check(found and 64 <= int(found[1]) < 1024, worker.log())
    check(n_least < check_account(site)["reserved_bytes"] < n_most, f"{account(site)}")
    check_equal(site.ctl("ask", QUESTION, worker=worker).out, ANSWER, "answer")
    # Not even the smallest: refused by name.
    small = harness.Site()
    try:
        small.weightd({"demo": harness.MODEL},
                      ["--device-budget", str(n_weights + n_least // 2 + MIB // 2)])
        small.worker("demo", options + ["--chunk", "1024"])
        raise harness.Failure("a worker without room was not refused")
    except harness.Failure as e:
        check("weights of demo (generation 1)" in str(e), f"{e}")
    finally:
        small.daemons.pop()
        small.close()


def talk(worker, turns, pause):
    """The texts of a conversation in one session; pause() is called between its turns."""
    texts = []
    with Connection(worker) as c:
        session = c.open()
        for i, turn in enumerate(turns):
            if i:
                pause(c)
            c.append_chat(session, turn)
            ids, text, finished = c.finish(c.generate(session, n_predict=24))
            texts.append((ids, text, finished.get(3, 0)))
    return texts


def test_idle_park_keeps_a_chat(site):
    turns = [QUESTION, "What is the capital of France?", "And of Mongolia?"]
    site.weightd({"demo": harness.MODEL})
    steady = site.worker("demo", SMALL + ["--deterministic"])
    parking = site.worker("demo", SMALL + ["--deterministic", "--park-after", "1"])
    parked = []

    def wait_parked(c):
        wait_until(lambda: c.status().get(30, 0), "the worker parks by itself")
        # Nothing of it is left on the device, and other requests are served all the same.
        row = next(w for w in site.status()["workers"] if w["pid"] == parking.pid)
        check_equal((row["leases"], row["reserved_bytes"]), ([], 0), f"{row}")
        check_equal(site.ctl("tokenize", "Chile", worker=parking, status=None).status, 0,
                    "tokenize while parked")
        parked.append(1)

    expected = talk(steady, turns, lambda c: None)
    check_equal(talk(parking, turns, wait_parked), expected, "a chat with parks in between")
    check_equal(len(parked), 2, "parks")
    check_equal(worker_state(site, steady)["state"], "ready", "without --park-after")


def test_replaced_by_other_weights(site):
    old = make_model(site, "old", "--bytes", "4M", "--seed", "1")
    new = make_model(site, "new", "--bytes", "4M", "--seed", "2")
    site.weightd({"m": old})
    options = ["--sessions", "2", "--ctx", "64", "--chunk", "64", "--deterministic"]
    worker = site.worker("m", options)
    first = complete(site, worker).json()["tokens"]
    with Connection(worker) as c:
        session = c.open()
        c.append_ids(session, [5, 6, 7])
        c.finish(c.generate(session, n_predict=4, ignore_eos=True))
        site.ctl("load", f"m={new}", "--replace")
        # An open session comes along: its tokens mean the same.
        wait_until(lambda: worker_state(site, worker)["generation"] == 2, "it moves")
        wait_until(lambda: len(site.status()["models"][0]["generations"]) == 1,
                   "the old generation goes")
        c.append_ids(session, [8])
        ids, _, finished = c.finish(c.generate(session, n_predict=4, ignore_eos=True))
        check_equal(finished.get(5, 0), 0, "cached tokens after the move")
        check_equal(finished[3], 8, "prompt tokens after the move")
    second = complete(site, worker).json()["tokens"]
    check(first != second, f"the answers of both models are {first}")
    fresh = site.worker("m", options)
    check_equal(complete(site, fresh).json()["tokens"], second, "answer of a fresh worker")
    check(len(ids) == 4, f"tokens after the move: {ids}")


def test_replaced_by_other_tokens(site):
    old = make_model(site, "old", "--bytes", "4M", "--seed", "1", "--vocab", "400")
    new = make_model(site, "new", "--bytes", "4M", "--seed", "2", "--vocab", "500")
    site.weightd({"m": old})
    worker = site.worker("m", ["--sessions", "2", "--ctx", "64", "--chunk", "64"])
    with Connection(worker) as c:
        session = c.open()
        c.append_ids(session, [5, 6, 7])
        first = c.finish(c.generate(session, n_predict=4, ignore_eos=True))[0]
        site.ctl("detokenize", "450", worker=worker, status=1)
        site.ctl("load", f"m={new}", "--replace")
        time.sleep(1)
        # Its ids mean nothing there: it stays where they do.
        check_equal(worker_state(site, worker)["generation"], 1, "generation of an open session")
        c.append_ids(session, [8])
        c.finish(c.generate(session, n_predict=4, ignore_eos=True))
        check_equal(len(first), 4, "tokens of the old generation")
    wait_until(lambda: worker_state(site, worker)["generation"] == 2,
               "it moves with the last session closed")
    # And text goes by the new tables.
    site.ctl("detokenize", "450", worker=worker)
    with Connection(worker) as c:
        session = c.open()
        c.append_ids(session, [450])  # a token of the new model alone
        check_equal(len(c.finish(c.generate(session, n_predict=4, ignore_eos=True))[0]), 4,
                    "tokens of the new generation")


def test_stop_and_loss_of_weightd(site):
    """A parked worker has no way back without weightd, says so, and ends when it is told to."""
    n_weights, n_worker = measure_worker(site, SMALL)
    weightd = site.weightd({"demo": harness.MODEL},
                           ["--device-budget", str(n_weights + n_worker * 3 // 2 + MIB)])
    parked = site.worker("demo", SMALL)
    keeper = site.worker("demo", SMALL + ["--no-park"])
    check_equal(worker_state(site, parked)["state"], "parked", "the first worker")
    # Its question waits for memory that is not there; SIGTERM does not.
    waiting = site.start_ctl("ask", QUESTION, worker=parked)
    wait_until(lambda: account(site)["n_waiting"] == 1, "the parked worker waits")
    start = time.monotonic()
    parked.stop()
    check(time.monotonic() - start < 3, "the worker waited for weightd")
    check_equal(site.finish_ctl(waiting).status, 1, "status of the question")

    keeper.stop()
    last = site.worker("demo", SMALL + ["--park-after", "1"])
    wait_for_state(site, last, "parked")
    weightd.kill()
    refused = site.ctl("ask", QUESTION, worker=last, status=1)
    check_equal(len(refused.err.splitlines()), 1, f"lines of {refused}")
    check("the worker is parked: weightd is gone" in refused.err, f"{refused}")


def test_lost(site):
    """The file under pinned weights changes: the worker computes with it no more."""
    path = make_model(site, "m", "--bytes", "4M", "--seed", "1")
    site.weightd({"m": path}, ["--place", "*=pinned"])
    worker = site.worker("m", ["--sessions", "2", "--ctx", "512", "--chunk", "64"])
    placed = site.ctl("--json", "status").json()["models"][0]["generations"][0]["allocations"]
    if "pinned" not in [a["placement"] for a in placed]:
        raise harness.Skip("this device imports no files")
    text = complete(site, worker).json()["text"]
    with Connection(worker) as c:
        session = c.open()
        c.append_ids(session, [5, 6, 7])
        running = c.generate(session, n_predict=480, how=sampling(temperature=5.0, seed=1),
                             ignore_eos=True)
        c.receive()
        os.utime(path, (1, 1))
        _, _, finished = c.finish(running)
        check_equal(finished[1], 4, f"reason of {finished}")
        check("generation 1" in finished[2].decode(), f"{finished}")
        check(worker.is_alive(), f"the worker ended: {worker.log()}")
        check_equal(worker_state(site, worker)["state"], "parked", "after the loss")
        try:
            c.finish(c.generate(session, n_predict=1))
            raise harness.Failure("a generation on a lost model was not refused")
        except Refused as e:
            check("the worker is parked: " in str(e), f"{e}")
        site.ctl("load", f"m={path}", "--replace")
        check_equal(len(c.finish(c.generate(session, n_predict=4, ignore_eos=True))[0]), 4,
                    "tokens after the reload")
    check_equal(complete(site, worker).json()["text"], text, "answer after the reload")


harness.run(globals())
