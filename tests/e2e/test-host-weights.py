#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker answers alike wherever its weights live, and shares their one copy in host memory."""
import os
import resource
import signal
import subprocess

import harness
from harness import check, check_equal

QUESTION = "Which continent is Chile in?"
ANSWER = "Chile is in South America.\n"
# Longer than 64 tokens, so that a step of many rows and steps of one are both taken.
TEXT = "The capital of France is Paris. " * 12
PLACES = ("device", "staged", "pinned", "paged")
NEVER = str(2**32 - 1)
MOE = os.path.join(harness.DATA, "models", "atlas-moe-q8_0.gguf")
# What proto/wire.c says of MSG_CTRUNC.
TRUNCATED = "found some cut off"


def start(site, place, args=()):
    return site.weightd({"demo": harness.MODEL}, ["--place", f"*={place}", *args])


def complete_argv():
    return ["complete", TEXT, "--temp", "0", "--n-predict", "12", "--json"]


def text_and_tokens(result):
    answer = result.json()
    return answer["text"], answer["tokens"]


def worker_status(site, worker):
    return site.ctl("status", "--json", worker=worker).json()["worker"]


def placed_bytes(site, worker):
    return {p["placement"]: p["n_bytes"] for p in worker_status(site, worker)["placed_weights"]}


def check_place(site, path, place, args, expected):
    """One worker and then three, over weights in one place; the answer, which is as expected."""
    weightd = site.weightd({"m": path}, ["--place", f"*={place}", *args])
    what = f"{os.path.basename(path)} {place} {args}"
    workers = []
    for how in (["--stream-rows", "1"], ["--stream-rows", NEVER], []):
        workers.append(site.worker("m", ["--deterministic", *how]))
        found = text_and_tokens(site.ctl(*complete_argv(), worker=workers[-1]))
        expected = expected or found
        check_equal(found, expected, f"{what} {how}")
        placed = placed_bytes(site, workers[-1])
        check(place in placed, f"{what}: the worker has its weights as {placed}")
    running = [site.start_ctl(*complete_argv(), worker=w) for w in workers]
    for process in running:
        check_equal(text_and_tokens(site.finish_ctl(process)), expected, f"{what}: three at once")
    streamed, direct = (worker_status(site, w)["streaming"] for w in workers[:2])
    check_equal(streamed["steps"] > 0, place != "device", f"{what}: {streamed}")
    is_paged = "paged" in placed
    check_equal(direct["copied_bytes"] > 0, is_paged and place != "paged", f"{what}: {direct}")
    check_equal(direct["paged_bytes"] > 0, is_paged, f"{what}: {direct}")
    for daemon in reversed([weightd] + workers):
        daemon.stop()
    return expected


def check_all_places(site, path):
    expected = None
    for place in PLACES:
        expected = check_place(site, path, place, [], expected)
    # Many windows, and some tensors that are larger than one.
    for place in ("staged", "pinned"):
        check_place(site, path, place, ["--window", "128K"], expected)


def test_dense_answers_alike(site):
    check_all_places(site, harness.MODEL)


def test_moe_answers_alike(site):
    check_all_places(site, MOE)


def cached_worker(site, size):
    return site.worker("m", ["--deterministic", "--stream-rows", NEVER, "--expert-cache", size])


def experts(site, worker):
    """The worker's cache of experts, and the share of those wanted that were in it."""
    found = worker_status(site, worker)["experts"]
    wanted = found["found"] + found["fetched"] + found["direct"]
    return found, found["found"] / wanted if wanted else 0


def check_cache(site, size, n_most_bytes, expected):
    """Answers with a cache of so many bytes; the more is found, the longer it is used."""
    worker = cached_worker(site, size)
    before = experts(site, worker)[0]
    check(0 < before["bytes"] <= n_most_bytes and before["slots"] > 0, f"{size}: {before}")
    check_equal(before["found"] + before["fetched"], 0, f"{size}: wanted before any step")
    scratch = {r["name"]: r["requested_bytes"] for r in worker_status(site, worker)["roles"]}
    check(scratch["scratch"] > before["bytes"], f"{size}: {scratch} without {before}")
    check("none wanted yet" in site.ctl("status", worker=worker).out, "status before any step")
    rates = []
    for _ in range(3):
        check_equal(text_and_tokens(site.ctl(*complete_argv(), worker=worker)), expected,
                    f"--expert-cache {size}")
        rates.append(experts(site, worker)[1])
    after = experts(site, worker)[0]
    print(f"# --expert-cache {size}: {after}, found {rates}")
    check(0 < rates[0] < rates[1] < rates[2] < 1, f"{size}: {rates}")
    line = f"experts: {after['slots']} slots, "
    check(line in site.ctl("status", worker=worker).out, f"status has no \"{line}\"")
    worker.stop()
    return after


def check_no_cache(site, size, expected, said):
    worker = cached_worker(site, size)
    check_equal(text_and_tokens(site.ctl(*complete_argv(), worker=worker)), expected,
                f"--expert-cache {size}")
    check_equal(experts(site, worker)[0]["slots"], 0, f"slots of --expert-cache {size}")
    text = site.ctl("status", worker=worker).out
    check("experts:" not in text, f"--expert-cache {size}: {text}")
    lines = [line for line in worker.log().splitlines() if "experts are not cached" in line]
    check_equal(len(lines), 1 if said else 0, f"--expert-cache {size}: {worker.log()}")
    check(said in "".join(lines), f"--expert-cache {size}: {lines}")
    worker.stop()


def test_expert_cache(site):
    weightd = site.weightd({"m": MOE}, ["--experts", "device"])
    worker = cached_worker(site, "off")
    expected = text_and_tokens(site.ctl(*complete_argv(), worker=worker))
    worker.stop()
    check_no_cache(site, "4M", expected, "none is in host memory")
    weightd.stop()

    site.weightd({"m": MOE}, ["--experts", "host"])
    found = [check_cache(site, "2M", 2 << 20, expected), check_cache(site, "4096K", 4 << 20, expected),
             check_cache(site, "1G", 64 << 20, expected)]
    check(found[0]["slots"] < found[1]["slots"] < found[2]["slots"], f"{found}")
    # All experts have a slot: none is fetched twice.
    check(found[2]["fetched"] <= found[2]["slots"] and found[2]["direct"] == 0, f"{found[2]}")
    check_no_cache(site, "1K", expected, "less than one for each")
    check_no_cache(site, "off", expected, "")
    if site.status()["device"]["software"]:
        check_no_cache(site, "auto", expected, "")
    else:
        check_cache(site, "auto", 64 << 20, expected)


def check_one_copy(site, place):
    site.env["WEIGHTD_VALIDATION"] = "0"  # the layer's own memory is not what is measured
    path = os.path.join(site.dir, "big.gguf")
    subprocess.run([harness.need_env("MKMODEL_BIN"), path, "--bytes", "256M"], check=True,
                   timeout=120)
    site.weightd({"big": path}, ["--place", f"*={place}"])
    workers = []
    for n in (1, 3):
        while len(workers) < n:
            workers.append(site.worker("big", ["--ctx", "256", "--sessions", "1",
                                               "--stream-rows", NEVER]))
            # A step reads every weight, so that its pages count for this worker.
            site.ctl("complete", "a", "--temp", "0", "--n-predict", "2", worker=workers[-1])
        generation = harness.only_generation(site.status(), "big")
        weights = generation["weights_bytes"]
        check(placed_bytes(site, workers[-1]).get(place, 0) > 0.9 * weights,
              f"{place}: {placed_bytes(site, workers[-1])}")
        inodes = harness.weight_inodes(generation)
        shared = sum(harness.smaps_pss(d.pid, inodes) for d in site.daemons)
        print(f"# {place}, {n} workers: weights {weights}, sum of their Pss {shared} "
              f"= {shared / weights:.3f} copies")
        # A page's share is cut to whole bytes, and a mapping's sum to whole KiB.
        check(0.999 <= shared / weights <= 1.05, f"{n} workers: {shared / weights:.3f} copies")


def test_one_copy_staged(site):
    check_one_copy(site, "staged")


def test_one_copy_pinned(site):
    check_one_copy(site, "pinned")


def worker_argv(site, name):
    return [harness.need_env("WORKERD_BIN"), "--model", "demo", "--weights", site.weightd_socket,
            "--socket", os.path.join(site.dir, name)]


def test_kill_while_importing(site):
    """SIGKILL at many moments of a worker's life; weightd never notices more than a disconnect."""
    weightd = start(site, "staged")
    n_fds = weightd.n_fds()
    for step in range(12):
        process = subprocess.Popen(worker_argv(site, "killed.sock"), env=site.env,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        try:
            process.wait(0.02 + 0.03 * step)
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
    harness.wait_until(lambda: not site.status()["workers"], "no worker is left in status")
    harness.wait_until(lambda: weightd.n_fds() == n_fds, "weightd closes what it had for the dead")
    # The dead left a socket file; the next worker takes its place.
    socket = os.path.join(site.dir, "killed.sock")
    worker = site.worker("demo", ["--socket", socket])
    worker.socket = socket
    check_equal(site.ctl("ask", QUESTION, worker=worker).out, ANSWER, "answer afterwards")


def test_too_few_descriptors(site):
    """Descriptors that do not arrive are a refusal in one line, and weightd goes on."""
    weightd = start(site, "staged", ["--window", "512K"])
    n_fds = weightd.n_fds()
    errors = []
    for limit in range(4, 30, 2):
        process = subprocess.Popen(
            worker_argv(site, "few.sock"), env=dict(site.env, WEIGHTD_VALIDATION="0"),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            preexec_fn=lambda n=limit: resource.setrlimit(resource.RLIMIT_NOFILE, (n, n)))
        try:
            _, err = process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=harness.STOP_SECONDS)
            break
        # 127: not even the program's libraries could be opened.
        check(process.returncode in (1, 127) and err, f"{limit}: {process.returncode} {err}")
        errors.append(err.decode())
    check(any(TRUNCATED in e for e in errors), f"no limit cut a packet's descriptors: {errors}")
    harness.wait_until(lambda: weightd.n_fds() == n_fds, "weightd closes what it had")
    worker = site.worker("demo")
    check_equal(site.ctl("ask", QUESTION, worker=worker).out, ANSWER, "answer afterwards")


def test_bench_memory(site):
    start(site, "staged")
    worker = site.worker("demo", ["--stream-rows", "64"])
    found = site.ctl("bench-memory", "--json", worker=worker).json()
    rows = {r["placement"]: r for r in found["rates"]}
    check("staged" in rows, f"{found}")
    for name in ("read_gb_s", "copy_gb_s", "stream_gb_s"):
        check(rows["staged"][name] > 0, f"{name}: {rows['staged']}")
    check(found["load"]["load_gb_s"] > 0 and found["load"]["read_gb_s"] > 0, f"{found['load']}")
    text = site.ctl("bench-memory", worker=worker).out
    check("staged" in text and "load: " in text, text)
    check_equal(site.ctl("ask", QUESTION, worker=worker).out, ANSWER, "answer afterwards")


def test_nothing_and_unused(site):
    """A budget of nothing is one; what is named and not there is said once."""
    weightd = site.weightd({"demo": harness.MODEL}, [
        "--host-budget", "0", "--vram-budget", "0", "--reserve", "0",
        "--place", "blk.77.*=staged", "--pin-writable", "nosuch", "--pin-writable", "demo"])
    check("device 0, pinned 0, staged 0, paged 6144000" in weightd.log(), weightd.log())
    check_equal(weightd.log().count("--place blk.77.*: the model has no such tensor"), 1,
                weightd.log())
    check_equal(weightd.log().count("--pin-writable nosuch: no --model has that name"), 1,
                weightd.log())
    check("--pin-writable demo" not in weightd.log(), weightd.log())


def test_figures_of_paged(site):
    """What stays in the file was not read, is no resident memory, and has a size all the same."""
    weightd = site.weightd({"demo": harness.MODEL}, ["--place", "*=paged"])
    check(" 0 of them read" in weightd.log() and "GB/s" not in weightd.log(), weightd.log())
    g = harness.only_generation(site.status(), "demo")
    check_equal((g["weights_bytes"], g["loaded_bytes"]), (0, 0), "resident, read")
    check(g["paged_bytes"] > 6000000, f"{g}")
    check(" 5.9 MiB " in site.ctl("ls").out, site.ctl("ls").out)
    workers = [site.worker("demo") for _ in range(2)]
    sharing = site.status()["sharing"]
    check_equal(sharing["separate_bytes"], 2 * g["paged_bytes"], "separate copies")
    check("every worker reads them for itself" in site.ctl("status").out, site.ctl("status").out)
    out = site.ctl("bench-memory", worker=workers[0]).out
    check("load: nothing was read" in out, out)


harness.run(globals())
