#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Workers on devices that the simulating layer (tests/layer) makes of the software driver: what is
refused, what is imported instead, and what streaming does with a GPU's heaps and queues."""
import json
import os

import harness
from harness import check, check_equal

QUESTION = "Which continent is Chile in?"
ANSWER = "Chile is in South America.\n"
GPU = {"HEAPS": "device:8G;device+host:256M;host,host+cached:16G",
       "QUEUES": "graphics+compute+transfer:1;transfer:1"}


def layered_worker(site, layer, args=()):
    """A worker under the layer, with a probe of its own; the layer's log is in .layer_log."""
    directory = os.environ.get("LAYER_DIR")
    if not directory:
        raise harness.Skip("LAYER_DIR is not set")
    log = os.path.join(site.dir, f"layer{site.n_workers}.log")
    cache = os.path.join(site.dir, f"cache{site.n_workers}")
    os.mkdir(cache, mode=0o700)
    plain = site.env
    # Validation belongs above the layer, where it sees the simulated device.
    site.env = dict(plain, VK_ADD_LAYER_PATH=directory, WEIGHTD_CACHE=cache,
                    VK_INSTANCE_LAYERS="VK_LAYER_WEIGHTD_simulate_validated",
                    WEIGHTD_LAYER_LOG=log,
                    **{f"WEIGHTD_LAYER_{name}": value for name, value in layer.items()})
    try:
        worker = site.worker("demo", args)
    finally:
        site.env = plain
    worker.layer_log = log
    return worker


def imports(worker, handle):
    """[(kind, access, why it failed or None)] of what the worker itself imported by that handle."""
    found = []
    with open(worker.layer_log, encoding="utf-8") as f:
        for line in map(json.loads, f):
            taken = line.get("import", {})
            if line["pid"] == worker.pid and taken.get("handle") == handle:
                found.append((taken.get("kind"), taken.get("access"), line.get("reason")))
    return found


def placed(site, worker):
    status = site.ctl("status", "--json", worker=worker).json()["worker"]
    return {p["placement"] for p in status["placed_weights"]}, status["streaming"]


def check_answer(site, worker, what):
    check_equal(site.ctl("ask", QUESTION, worker=worker).out, ANSWER, what)


def test_imports_are_what_they_claim(site):
    for place, kind in (("staged", "memfd"), ("pinned", "file")):
        weightd = site.weightd({"demo": harness.MODEL}, ["--place", f"*={place}"])
        worker = layered_worker(site, {})
        found = imports(worker, "host-allocation")
        check(found, f"{place}: no host pages were imported")
        for row in found:
            check_equal((row[0], row[2]), (kind, None), f"{place}: import")
        check_equal(placed(site, worker)[0], {place}, "placements")
        check_answer(site, worker, place)
        worker.stop()
        weightd.stop()


def test_refused_in_the_middle(site):
    """The third window is refused and poisons the device: all is made anew without memfds."""
    site.weightd({"demo": harness.MODEL}, ["--place", "*=staged", "--window", "1M"])
    worker = layered_worker(site, {"REFUSE": "memfd", "REFUSE_FROM": "3", "POISON": "1"})
    found = imports(worker, "host-allocation")
    check_equal(found, [("memfd", "rw", None)] * 2 + [("memfd", "rw", "refuse")], "imports")
    warnings = [line for line in worker.log().splitlines() if "warn: " in line]
    check_equal(len([w for w in warnings if "are taken again without" in w]), 1, f"{warnings}")
    check_equal(placed(site, worker)[0], {"paged"}, "placements")
    check_answer(site, worker, "after a refusal")


def test_probe_keeps_from_trying(site):
    site.weightd({"demo": harness.MODEL}, ["--place", "*=staged"])
    worker = layered_worker(site, {"REFUSE": "all", "POISON": "1"})
    check_equal(imports(worker, "host-allocation"), [], "imports of what the probe found refused")
    check_equal(placed(site, worker)[0], {"paged"}, "placements")
    check("paged" in worker.log(), f"nothing said of paged weights: {worker.log()}")
    check_answer(site, worker, "paged")


def test_memfd_as_dma_buf(site):
    site.weightd({"demo": harness.MODEL}, ["--place", "*=staged", "--window", "1M"])
    worker = layered_worker(site, {"HIDE": "VK_EXT_external_memory_host",
                                   "DMA_BUF": "import,memfd"})
    check_equal({row[0] for row in imports(worker, "dma-buf")}, {"memfd"}, "imports")
    check_equal(imports(worker, "host-allocation"), [], "imports of host pages")
    check_equal(placed(site, worker)[0], {"staged"}, "placements")
    check_answer(site, worker, "a memfd as dma-buf")


def test_streaming_on_a_gpu(site):
    """Memory of its own and a transfer queue: what pays is measured, and answers stay the same."""
    site.weightd({"demo": harness.MODEL}, ["--place", "*=staged"])
    for args in ([], ["--stream-rows", "1"], ["--stream-rows", "16"]):
        worker = layered_worker(site, GPU, args)
        check_answer(site, worker, f"{args}")
        streaming = placed(site, worker)[1]
        check(streaming["rows"] >= 1, f"{args}: {streaming}")
        check(streaming["steps"] > 0 or not args, f"{args}: {streaming}")
        worker.stop()


harness.run(globals())
