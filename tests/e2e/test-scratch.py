#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A worker's scratch and KV: where they lie on a GPU with a small BAR, what is said when they do not
fit there, and the chunk that fits into what is granted."""
import os
import re

import harness
from harness import check, check_equal, wait_until
from layered import GPU, layer_lines, layered_worker

MIB = 1 << 20
QUESTION = "Which continent is Chile in?"
ANSWER = "Chile is in South America.\n"
# Some 400 tokens of this model's, so that a step of the largest chunk is one of many rows.
TEXT = "The capital of France is Paris. " * 45
LONG = ["--ctx", "512", "--sessions", "4", "--deterministic"]
# Where a careless search for a type would find the BAR first. The weights, which come as type 0, have
# to fit into its heap, though they take nothing of it; the KV of LONG, 6 MiB, does not.
BAR_FIRST = dict(GPU, HEAPS="device+host:6100K;host,host+cached:16G;device:8G")
VRAM, CACHED = 0, 3  # types of GPU
SPILLED = "spilled out of the memory they belong in: "


def worker_status(site, worker):
    return site.ctl("status", "--json", worker=worker).json()["worker"]


def roles(status):
    return {r["name"]: r for r in status["roles"]}


def slices(status, *names):
    return [s for s in status["memory"]["slices"] if s["role"] in names]


def complete(site, worker, text=TEXT):
    return site.ctl("complete", text, "--temp", "0", "--n-predict", "8", "--json",
                    worker=worker).json()["tokens"]


def lines_with(worker, text):
    return [line for line in worker.log().splitlines() if text in line]


def live(worker, *types):
    """The worker's own allocations of these types that are not freed."""
    found = {}
    for line in layer_lines(worker):
        if line["call"] == "allocate" and line["id"] and "import" not in line:
            found[line["id"]] = line
        elif line["call"] == "free":
            found.pop(line["id"], None)
    return [line for line in found.values() if line["type"] in types]


def check_home(site, worker, heap, what):
    """Everything that a step computes with is in device memory that nobody can map."""
    status = worker_status(site, worker)
    found = slices(status, "kv", "scratch")
    names = {s["name"] for s in found}
    check({"kv pages", "residual", "qkv", "attention", "hidden"} <= names, f"{what}: {names}")
    for s in found:
        check(s["device_local"] and not s["host_visible"] and not s["spilled"], f"{what}: {s}")
        check_equal(s["heap"], heap, f"{what}: heap of {s['name']}")
    for name in ("kv", "scratch"):
        r = roles(status)[name]
        check(r["placed_bytes"] == r["requested_bytes"] == r["peak_bytes"] > 0, f"{what}: {r}")
        check_equal((r["spilled_bytes"], r["spills"]), (0, 0), f"{what}: spills of {name}")
        check_equal([(h["heap"], h["placed_bytes"]) for h in r["heaps"]],
                    [(heap, r["placed_bytes"])], f"{what}: heaps of {name}")
    return status


def test_device_local_at_every_chunk(site):
    site.weightd({"demo": harness.MODEL})
    expected = None
    for chunk in (64, 128, 256, 512):
        for heap, layer in ((0, GPU), (2, BAR_FIRST)) if chunk in (64, 512) else ((0, GPU),):
            what = f"chunk {chunk}, heap {heap}"
            worker = layered_worker(site, layer, LONG + ["--chunk", str(chunk), "--fail-on-spill"])
            expected = expected or complete(site, worker)
            check_equal(complete(site, worker), expected, f"{what}: tokens")
            memory = check_home(site, worker, heap, what)["memory"]
            check_equal((memory["chunk"]["tokens"], memory["chunk"]["defaulted"]), (chunk, False),
                        f"{what}: {memory['chunk']}")
            scratch = memory["scratch"]
            check(scratch["peak_bytes"] * 3 < scratch["sum_bytes"], f"{what}: {scratch}")
            worker.stop()


def test_io_is_the_only_host_memory(site):
    """Of a step: nothing else can be mapped, and nothing is made or mapped while it runs."""
    site.weightd({"demo": harness.MODEL})
    worker = layered_worker(site, GPU, LONG)
    before = len(layer_lines(worker))
    complete(site, worker)
    check_equal(site.ctl("ask", QUESTION, worker=worker).out, ANSWER, "answer")
    # Not for a session's first use either: its pages are of the pool's one chunk.
    during = layer_lines(worker)[before:]
    check_equal(during, [], "allocations and maps while sessions were opened and computed")
    r = roles(worker_status(site, worker))
    host = live(worker, 1, 2, CACHED)
    check_equal({line["type"] for line in host}, {CACHED}, "types of memory with a host pointer")
    check_equal(sum(line["size"] for line in host), r["io"]["placed_bytes"], "bytes of it")
    check_equal(r["staging"]["requested_bytes"], 0, "staging")
    check_equal(sum(line["size"] for line in live(worker, VRAM)),
                r["kv"]["placed_bytes"] + r["scratch"]["placed_bytes"], "device memory")
    mapped = [line["type"] for line in layer_lines(worker) if line["call"] == "map"]
    check_equal(len(mapped), len(host), "maps: one for the life of each memory")
    check_equal(set(mapped), {CACHED}, "types that were mapped")


def test_scratch_of_streamed_weights(site):
    """Slots of copied weights, cached experts and their books are scratch like any other."""
    site.weightd({"demo": os.path.join(harness.DATA, "models", "atlas-moe-q8_0.gguf")},
                 ["--experts", "host"])
    worker = layered_worker(site, GPU, LONG + ["--stream-rows", "16", "--expert-cache", "4M",
                                               "--fail-on-spill"])
    before = len(layer_lines(worker))
    complete(site, worker)
    complete(site, worker, "The capital of")
    check_equal(layer_lines(worker)[before:], [], "allocations and maps while it computed")
    status = worker_status(site, worker)
    check(status["streaming"]["steps"] > 0 and status["experts"]["found"] > 0, f"{status}")
    found = slices(status, "scratch")
    check({"residual", "qkv", "attention", "router", "choice", "pairs", "groups", "hidden", "mixed",
           "weights slot 0", "weights slot 1", "expert cache", "expert tables of the slots",
           "expert tables", "rope turns", "logits", "best logits", "step",
           "page table"} == {s["name"] for s in found}, f"{found}")
    for s in found:
        check(s["device_local"] and not s["host_visible"] and s["heap"] == 0, f"{s}")
    cache = next(s for s in found if s["name"] == "expert cache")
    check(cache["n"] > 2 and cache["total_bytes"] > status["experts"]["bytes"], f"{cache}")
    check_equal(roles(status)["staging"]["requested_bytes"], 0, "staging")
    check_equal(sum(line["size"] for line in live(worker, VRAM)),
                sum(roles(status)[name]["placed_bytes"] for name in ("kv", "scratch")),
                "device memory")


# Too little for KV and scratch, but not for the 6,144,000 bytes of weights.
def small_gpu(size):
    return dict(GPU, HEAPS=f"device:{size};device+host:1M;host,host+cached:16G")


def check_spilled(site, worker, names, n_warnings):
    """These roles are in host memory, said once in one line."""
    status = worker_status(site, worker)
    warnings = lines_with(worker, SPILLED)
    check_equal(len(warnings), n_warnings, f"warnings: {worker.log()}")
    for name in ("kv", "scratch"):
        r = roles(status)[name]
        check_equal(r["spilled_bytes"] > 0, name in names, f"{r}")
        check_equal(r["spills"] > 0, name in names, f"{r}")
        check(r["spilled_bytes"] + r["placed_bytes"] == r["requested_bytes"] > 0, f"{r}")
        for s in slices(status, name):
            check_equal((s["spilled"], s["device_local"], s["heap"]),
                        (True, False, 2) if name in names else (False, True, 0), f"{s}")
        if name in names:
            heaps = {h["heap"]: h for h in r["heaps"]}
            check(heaps[0]["requested_bytes"] == heaps[2]["spilled_bytes"] == r["spilled_bytes"],
                  f"{r}")
            check(f"{name} {r['spilled_bytes']} of {r['requested_bytes']} bytes into heap 2"
                  in warnings[-1], f"{name}: {warnings}")
            check(f"{name}/" in site.ctl("status", worker=worker).out, "slices in text")
    check((", spilled\n" in site.ctl("status", worker=worker).out) == bool(names), "text")


def check_ended(site, layer, args, *parts):
    """Under --fail-on-spill it ends by itself: status 1 and one line."""
    try:
        layered_worker(site, layer, args + ["--fail-on-spill"])
    except harness.Failure:
        pass
    else:
        raise harness.Failure(f"{args} did not end")
    worker = site.daemons.pop()
    check_equal(worker.process.wait(), 1, f"exit status of {args}")
    check_equal(len(lines_with(worker, "error: ")), 1, worker.log())
    for part in (SPILLED, *parts):
        check(part in lines_with(worker, "error: ")[0], f"{part}: {worker.log()}")
    check_equal(lines_with(worker, ": ready"), [], worker.log())


def test_spill_is_said(site):
    site.weightd({"demo": harness.MODEL})
    answers = set()
    for size, names, chunk in (("8G", (), 256), ("6300K", ("scratch",), 64), ("6100K", ("kv",), 256)):
        args = LONG + ["--chunk", "256"]
        worker = layered_worker(site, small_gpu(size), args)
        check_spilled(site, worker, names, 1 if names else 0)
        # Scratch does not spill while a smaller chunk's fits.
        check_equal(worker_status(site, worker)["memory"]["chunk"]["tokens"], chunk, f"chunk, {size}")
        answers.add(tuple(complete(site, worker)))
        worker.stop()
        if names:
            check_ended(site, small_gpu(size), args, f"{names[0]} ", "into heap 2")
    check_equal(len(answers), 1, f"answers: {answers}")


def test_less_chunk_rather_than_a_spill(site):
    """The device has less than weightd knows of: the step shrinks until its scratch fits."""
    site.weightd({"demo": harness.MODEL})
    worker = layered_worker(site, small_gpu("7200K"), LONG + ["--chunk", "512", "--fail-on-spill"])
    status = check_home(site, worker, 0, "7200K")
    check_equal(status["memory"]["chunk"]["tokens"], 128, "chunk")
    check_equal(lines_with(worker, SPILLED), [], worker.log())
    said = lines_with(worker, "chunk: ")
    check_equal(len(said), 1, worker.log())
    check("chunk: 128 tokens a step, there is no memory for 512 (--chunk): the device has less than "
          "weightd granted" in said[0], said[0])
    check("chunk 128 tokens of 512 asked for" in site.ctl("status", worker=worker).out, "status")


def wait_parked(site, worker):
    wait_until(lambda: worker_status(site, worker)["state"] == "parked", f"{worker.name} parks")


def failing_after(site, args, disturb):
    """The number of the first allocation of device memory after disturb(worker)."""
    worker = layered_worker(site, GPU, args)
    before = sum(line["call"] == "allocate" for line in layer_lines(worker))
    disturb(worker)
    made = [line for line in layer_lines(worker) if line["call"] == "allocate"][before:]
    worker.stop()
    n = next(i for i, line in enumerate(made) if line["type"] == VRAM and "import" not in line)
    return before + n + 1


def check_ends(worker):
    """By itself, with status 1 and one line."""
    check_equal(worker.process.wait(harness.STOP_SECONDS), 1, "exit status")
    check_equal(len(lines_with(worker, "error: ")), 1, worker.log())
    check(SPILLED + "kv " in lines_with(worker, "error: ")[0], worker.log())


def test_spill_after_a_replace(site):
    """All is made anew for another generation, and device memory went to others meanwhile."""
    site.weightd({"demo": harness.MODEL})
    generations = [1]

    def replace(worker):
        site.ctl("load", f"demo={harness.MODEL}", "--replace")
        generations[0] += 1
        wait_until(lambda: not worker.is_alive() or
                   worker_status(site, worker)["generation"] == generations[0], "it moves")

    layer = dict(GPU, FAIL_ALLOC=str(failing_after(site, LONG, replace)))
    worker = layered_worker(site, layer, LONG)
    check_spilled(site, worker, (), 0)
    expected = complete(site, worker)
    replace(worker)
    check_spilled(site, worker, ("kv",), 1)
    check_equal(complete(site, worker), expected, "tokens after the spill")
    replace(worker)
    # It has its place again; that it had none is still counted, and not said again.
    r = roles(worker_status(site, worker))["kv"]
    check_equal((r["spilled_bytes"], r["spills"]), (0, 1), f"{r}")
    check_equal(len(lines_with(worker, SPILLED)), 1, worker.log())
    check_equal(complete(site, worker), expected, "tokens after the next replace")
    worker.stop()

    worker = layered_worker(site, layer, LONG + ["--fail-on-spill"])
    check_equal(complete(site, worker), expected, "tokens before the spill")
    site.ctl("load", f"demo={harness.MODEL}", "--replace")
    check_ends(worker)
    site.daemons.remove(worker)


def test_spill_after_a_park(site):
    site.weightd({"demo": harness.MODEL})
    args = LONG + ["--park-after", "1"]

    def park(worker):
        wait_parked(site, worker)
        check_equal(live(worker, 0, 1, 2, 3), [], "memory while parked")
        check_equal(slices(worker_status(site, worker), "kv", "scratch", "io"), [], "parked")
        complete(site, worker)

    layer = dict(GPU, FAIL_ALLOC=str(failing_after(site, args, park)))
    worker = layered_worker(site, layer, args + ["--fail-on-spill"])
    wait_parked(site, worker)
    refused = site.ctl("complete", TEXT, "--n-predict", "8", worker=worker, status=1)
    check_equal(len(refused.err.splitlines()), 1, f"{refused}")
    check(SPILLED in refused.err, f"{refused}")
    check_ends(worker)
    site.daemons.remove(worker)


def grant(site, args):
    """Bytes of the weights, and of the grant of a worker with a chunk."""
    other = harness.Site()
    try:
        other.weightd({"demo": harness.MODEL})
        other.worker("demo", args)
        a = other.status()["devices"][0]["account"]
        return a["weights_bytes"], a["reserved_bytes"]
    finally:
        other.close()


def check_chunk(site, worker, chunk, asked, how):
    """It has this chunk, and says which figure was asked for, what fits, and into what."""
    found = worker_status(site, worker)["memory"]["chunk"]
    check_equal((found["tokens"], found["asked_tokens"], found["defaulted"]),
                (chunk, asked, how == "the default"), f"{found}")
    said = re.findall(r"chunk: (\d+) tokens a step, there is no memory for (\d+) \(([^)]*)\): "
                      r"with KV it would take (\d+) bytes, and weightd granted (\d+)", worker.log())
    check_equal(len(said), len(lines_with(worker, "chunk: ")), worker.log())
    if chunk == asked:
        return said
    check_equal(said[-1][:3], (str(chunk), str(asked), how), "what is said")
    check_equal(int(said[-1][4]), found["budget_bytes"], "what was granted")
    check(int(said[-1][3]) > found["budget_bytes"], f"{said}")
    return said


def test_chunk_fits_the_grant(site):
    """The largest multiple of 64 that fits, whether asked for or not."""
    args = ["--ctx", "256", "--sessions", "2", "--no-park"]
    n_weights, n_192 = grant(site, args + ["--chunk", "192"])
    _, n_256 = grant(site, args + ["--chunk", "256"])
    # 1 MiB is asked for on top, for what a driver rounds up, and given back.
    room = n_192 + MIB + (n_256 - n_192) // 2
    weightd = site.weightd({"demo": harness.MODEL}, ["--device-budget", str(n_weights + room)])
    worker = site.worker("demo", args)
    check_equal(len(check_chunk(site, worker, 192, 256, "the default")), 1, worker.log())
    check("chunk 192 tokens of 256 by default" in site.ctl("status", worker=worker).out, "status")
    check_equal(site.ctl("ask", QUESTION, worker=worker).out, ANSWER, "answer")
    worker.stop()
    for asked in (448, 8192):
        worker = site.worker("demo", args + ["--chunk", str(asked)])
        check_equal(len(check_chunk(site, worker, 192, asked, "--chunk")), 1, worker.log())
        worker.stop()
    for asked in (64, 192):
        worker = site.worker("demo", args + ["--chunk", str(asked)])
        check_equal(check_chunk(site, worker, asked, asked, "--chunk"), [], worker.log())
        worker.stop()
    weightd.stop()


def test_chunk_after_a_park(site):
    """Others took memory meanwhile: less a step, and again all of it when they are gone."""
    args = ["--ctx", "256", "--sessions", "2"]
    n_weights, n_256 = grant(site, args)
    _, n_64 = grant(site, args + ["--chunk", "64"])
    other = ["--ctx", "64", "--sessions", "1", "--chunk", "64", "--no-park"]
    _, n_other = grant(site, other)
    room = n_256 + n_other + MIB - (n_256 - n_64) // 2
    check(room > n_256 + MIB, f"{n_256} and {n_other} leave {room}")
    site.weightd({"demo": harness.MODEL}, ["--device-budget", str(n_weights + room)])
    worker = site.worker("demo", args + ["--park-after", "3"])
    check_chunk(site, worker, 256, 256, "the default")
    expected = complete(site, worker, "The capital of")
    wait_parked(site, worker)
    check_equal(worker_status(site, worker)["memory"]["chunk"]["tokens"], 0, "chunk while parked")
    taker = site.worker("demo", other)
    check_equal(complete(site, worker, "The capital of"), expected, "tokens with less memory")
    check_equal(len(check_chunk(site, worker, 128, 256, "the default")), 1, worker.log())
    taker.stop()
    wait_parked(site, worker)
    check_equal(complete(site, worker, "The capital of"), expected, "tokens with all of it again")
    check_equal(len(check_chunk(site, worker, 256, 256, "the default")), 1, worker.log())


harness.run(globals())
