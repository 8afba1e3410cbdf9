#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Workers on devices that the simulating layer (tests/layer) makes of the software driver: what is
refused, what is imported instead, and what streaming does with a GPU's heaps and queues."""
import os
import subprocess

import harness
from harness import check, check_equal
from layered import GPU, layer_lines, layered, layered_worker

QUESTION = "Which continent is Chile in?"
ANSWER = "Chile is in South America.\n"


def imports(worker, handle):
    """[(kind, access, why it failed or None)] of what the worker itself imported by that handle."""
    taken = [(line["import"], line.get("reason")) for line in layer_lines(worker)
             if line.get("import", {}).get("handle") == handle]
    return [(i.get("kind"), i.get("access"), reason) for i, reason in taken]


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


def windows(worker):
    """[(kind, offset in its file, bytes, why it failed or None)] of the worker's host imports."""
    lines = [line for line in layer_lines(worker)
             if line.get("import", {}).get("handle") == "host-allocation"]
    return [(line["import"]["kind"], line["import"]["offset"], line["size"], line.get("reason"))
            for line in lines]


def check_moved(site, place, refuse, expected, n_warnings):
    """
    Attaches under the layer to windows placed so. expected: of the placements by window, where they
    come to lie; and what is tried, [(placement, window)], ~window where it is refused.
    """
    weightd = site.weightd({"demo": harness.MODEL}, ["--place", "*=device"])
    worker = layered_worker(site, {}, ["--deterministic"])
    tokens = complete_tokens(site, worker)
    worker.stop()
    weightd.stop()

    weightd = site.weightd({"demo": harness.MODEL}, ["--place", place, "--window", "1M"])
    allocs = harness.only_generation(site.status(), "demo")["allocations"]
    worker = layered_worker(site, dict(refuse, POISON="1"), ["--deterministic"])
    places, tried = expected([a["placement"] for a in allocs])
    rows = []
    for at, i in tried:
        a = allocs[max(i, ~i)]
        rows.append(({"staged": "memfd", "pinned": "file"}[at], a["file_offset"], a["n_bytes"],
                     "refuse" if i < 0 else None))
    check_equal(windows(worker), rows, "imports")
    n_bytes = {at: 0 for at in places}
    for a, at in zip(allocs, places):
        n_bytes[at] += a["buffer_bytes"]
    status = site.ctl("status", "--json", worker=worker).json()["worker"]
    check_equal({p["placement"]: p["n_bytes"] for p in status["placed_weights"]}, n_bytes,
                "bytes by placement")
    warnings = [line for line in worker.log().splitlines() if "are taken again" in line]
    check_equal(len(warnings), n_warnings, f"{worker.log()}")
    for line, i in zip(warnings, [~i for _, i in tried if i < 0]):
        check(f"import of weights {i}:" in line and "VK_ERROR_OUT_OF_DEVICE_MEMORY" in line and
              f"from allocation {i} on" in line, f"window {i}: {line}")
    check_equal(complete_tokens(site, worker), tokens, "tokens")
    worker.stop()
    return weightd


def third(own, *places):
    """Index of the third window that lies at one of these."""
    return [i for i, at in enumerate(own) if at in places][2]


def attempt(own, end, refused=()):
    """Windows tried in order, each where it lies, and then one that is refused."""
    return [(own[i], i) for i in range(end)] + [(at, ~end) for at in refused]


def test_refused_memfd_in_the_middle(site):
    """The third window of the memfd poisons the device: those from it on are copied."""
    def expected(own):
        k = third(own, "staged")
        return (own[:k] + ["paged"] * (len(own) - k),
                attempt(own, k, ["staged"]) + attempt(own, k))
    check_moved(site, "*=staged", {"REFUSE": "memfd", "REFUSE_FROM": "3"}, expected, 1)


def test_refused_file_in_the_middle(site):
    """The third window of the file: those from it on come as a copy in host memory, made once."""
    def expected(own):
        k = third(own, "pinned")
        moved = own[:k] + ["staged"] * (len(own) - k)
        return moved, attempt(own, k, ["pinned"]) + attempt(moved, len(own))
    weightd = check_moved(site, "*=pinned", {"REFUSE": "file", "REFUSE_FROM": "3"}, expected, 1)
    check_equal(weightd.log().count("were copied to host memory"), 1, weightd.log())
    # Another whose driver refuses the same finds the copy, and one that refuses more adds to it.
    for first, n_copies in (("3", 1), ("2", 2)):
        worker = layered_worker(site, {"REFUSE": "file", "REFUSE_FROM": first, "POISON": "1"})
        check_equal(placed(site, worker)[0], {"pinned", "staged"}, "placements")
        check_equal(weightd.log().count("were copied to host memory"), n_copies, weightd.log())
        check_answer(site, worker, f"refused from {first} on")
        worker.stop()


def test_refused_both(site):
    """The file from its third window on, then the memfd that takes its place, from there on."""
    def expected(own):
        k = third(own, "pinned", "staged")
        return (own[:k] + ["paged"] * (len(own) - k),
                attempt(own, k, [own[k]]) + attempt(own, k, ["staged"]) + attempt(own, k))
    check_moved(site, "*=pinned", {"REFUSE": "file,memfd", "REFUSE_FROM": "3"}, expected, 2)


def test_refused_from_the_first(site):
    """A driver that takes no pages of files: all of them come as a copy, and none is tried."""
    def expected(own):
        moved = ["staged"] * len(own)
        return moved, attempt(moved, len(own))
    check_moved(site, "*=pinned", {"REFUSE": "file"}, expected, 0)


def test_refused_beside_others(site):
    """
    Large windows are imported by several threads, where one that is refused poisons others that
    came first. A second attempt, in order, finds which it was; so that nothing else moves.
    """
    if len(os.sched_getaffinity(0)) < 2:
        raise harness.Skip("one core: nothing is imported beside another")
    path = os.path.join(site.dir, "big.gguf")
    subprocess.run([harness.need_env("MKMODEL_BIN"), path, "--bytes", "96M", "--layers", "4"],
                   check=True, stdout=subprocess.DEVNULL)
    site.weightd({"demo": path}, ["--place", "*=staged", "--window", "4M"])
    args = ["--ctx", "64", "--sessions", "1", "--log-level", "debug"]
    worker = layered_worker(site, {"REFUSE": "memfd", "REFUSE_FROM": "5", "POISON": "1"}, args)
    check("one after the other" in worker.log(), worker.log())
    for what in ("acquire", "allocations in 1 mappings on 1 threads", "ownership"):
        check(any("attach: " in line and what in line and " ms" in line
                  for line in worker.log().splitlines()), f"no time of {what}: {worker.log()}")
    check_equal(worker.log().count("are taken again"), 1, worker.log())
    allocs = harness.only_generation(site.status(), "demo")["allocations"]
    expected = [("memfd", a["file_offset"], a["n_bytes"], None) for a in allocs[:4]]
    refused = [("memfd", allocs[4]["file_offset"], allocs[4]["n_bytes"], "refuse")]
    check_equal(windows(worker)[-9:], expected + refused + expected, "imports")
    status = site.ctl("status", "--json", worker=worker).json()["worker"]
    check_equal({p["placement"]: p["n_bytes"] for p in status["placed_weights"]},
                {"staged": sum(a["buffer_bytes"] for a in allocs[:4]),
                 "paged": sum(a["buffer_bytes"] for a in allocs[4:])}, "bytes by placement")


def test_refused_under_a_quota(site):
    """What a worker had before it began anew is not in its way, where one lease is all there is."""
    tenant = os.path.join(site.dir, "tenant.sock")
    site.weightd({"demo": harness.MODEL}, ["--place", "*=staged", "--window", "1M",
                                           "--listen", f"{tenant},leases=1"])
    site.weightd_socket, plain = tenant, site.weightd_socket
    try:
        worker = layered_worker(site, {"REFUSE": "memfd", "REFUSE_FROM": "3", "POISON": "1"})
    finally:
        site.weightd_socket = plain
    check_equal(worker.log().count("are taken again"), 1, worker.log())
    check_equal(placed(site, worker)[0], {"staged", "paged"}, "placements")
    check_answer(site, worker, "under a quota")


def test_no_room_for_a_copy(site):
    """Other models have taken the host's budget: the worker copies for itself, and it is said."""
    weightd = site.weightd({"demo": harness.MODEL, "other": harness.MODEL},
                           ["--place", "*=staged", "--place", "blk.0.*=pinned",
                            "--host-budget", "8M"])
    worker = layered_worker(site, {"REFUSE": "file"})
    check_equal(placed(site, worker)[0], {"staged", "paged"}, "placements")
    check_equal(weightd.log().count("will copy them itself"), 1, weightd.log())
    check("wanted" in weightd.log(), weightd.log())
    check_answer(site, worker, "without a copy")
    # There is room again, and whoever comes now has its copy.
    site.ctl("unload", "other")
    harness.wait_until(lambda: all(m["name"] != "other" or not m["generations"]
                                   for m in site.status()["models"]), "room")
    second = layered_worker(site, {"REFUSE": "file"})
    check_equal(placed(site, second)[0], {"staged"}, "placements")
    check_equal(weightd.log().count("were copied to host memory"), 1, weightd.log())
    check_answer(site, second, "with a copy")


def test_probe_keeps_from_trying(site):
    site.weightd({"demo": harness.MODEL}, ["--place", "*=staged"])
    worker = layered_worker(site, {"REFUSE": "all", "POISON": "1"})
    check_equal(imports(worker, "host-allocation"), [], "imports of what the probe found refused")
    check_equal(placed(site, worker)[0], {"paged"}, "placements")
    check("paged" in worker.log(), f"nothing said of paged weights: {worker.log()}")
    check_answer(site, worker, "paged")


def takes_memfd_as_dma_buf(site):
    """Does the driver itself, without the layer?"""
    argv = [harness.need_env("WEIGHTD_BIN"), "--probe", "software"]
    out = subprocess.run(argv, env=site.env, check=True, timeout=60, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE).stdout.decode()
    return "probe memfd-dma-buf yes" in out


def test_memfd_as_dma_buf(site):
    """By the driver where it can (the software driver from Mesa 25.0 on), else by the layer."""
    layer = {"HIDE": "VK_EXT_external_memory_host"}
    if not takes_memfd_as_dma_buf(site):
        layer["DMA_BUF"] = "import,memfd"
    print(f"# the layer is told {layer}")
    site.weightd({"demo": harness.MODEL}, ["--place", "*=staged", "--window", "1M"])
    worker = layered_worker(site, layer)
    check_equal({row[0] for row in imports(worker, "dma-buf")}, {"memfd"}, "imports")
    check_equal(imports(worker, "host-allocation"), [], "imports of host pages")
    check_equal(placed(site, worker)[0], {"staged"}, "placements")
    check_answer(site, worker, "a memfd as dma-buf")


def imported_inodes(worker, handle):
    """Of what came in by that handle."""
    return {line["import"]["inode"] for line in layer_lines(worker)
            if line.get("import", {}).get("handle") == handle and "reason" not in line}


def exports(weightd):
    """{(handle, inode)} of the descriptors that the driver gave out for host memory."""
    lines = layer_lines(weightd)
    cached = {line["id"] for line in lines if line["call"] == "allocate" and line["type"] == 3}
    return {(line["handle"], line["inode"]) for line in lines
            if line["call"] == "export" and line["id"] in cached}


def complete_tokens(site, worker):
    return site.ctl("complete", QUESTION, "--temp", "0", "--n-predict", "12", "--json",
                    worker=worker).json()["tokens"]


def test_staged_as_dma_buf(site):
    """Memfds are refused: host memory of the device's own, to each worker as it imports it."""
    weightd = site.weightd({"demo": harness.MODEL}, ["--place", "*=device"])
    worker = layered_worker(site, GPU, ["--deterministic"])
    expected = complete_tokens(site, worker)
    worker.stop()
    weightd.stop()

    refuses = dict(GPU, REFUSE="all", POISON="1")
    gives = dict(refuses, DMA_BUF="export,import")
    weightd = layered(site, gives, lambda: site.weightd(
        {"demo": harness.MODEL}, ["--place", "*=staged", "--alloc-bytes", "2M"]))
    generation = harness.only_generation(site.status(), "demo")
    check_equal({(a["placement"], a["handle_type"]) for a in generation["allocations"]},
                {("staged", "dma_buf")}, "allocations")
    inodes = {a["inode"] for a in generation["allocations"]}
    check(len(inodes) == len(generation["allocations"]) > 1, f"{generation['allocations']}")
    check_equal(exports(weightd), {(h, i) for h in ("dma-buf", "opaque-fd") for i in inodes},
                "descriptors of host memory")

    two = [layered_worker(site, gives, ["--deterministic"]) for _ in range(2)]
    opaque = layered_worker(site, dict(refuses, HIDE="VK_EXT_external_memory_dma_buf"),
                            ["--deterministic"])
    # Its driver claims dma-bufs and refuses the second, after which its device must be made anew.
    refused = layered_worker(site, dict(GPU, REFUSE="all,dma-buf", REFUSE_FROM="2", POISON="1",
                                        DMA_BUF="export,import"), ["--deterministic"])
    for worker in two:
        check_equal(imported_inodes(worker, "dma-buf"), inodes, "imports of dma-bufs")
        check_equal(imports(worker, "opaque-fd"), [], "imports of opaque descriptors")
    check_equal(imports(opaque, "dma-buf"), [], "imports of a driver without dma-bufs")
    check_equal(imported_inodes(opaque, "opaque-fd"), inodes, "imports of opaque descriptors")
    check("refuse" in {row[2] for row in imports(refused, "dma-buf")}, "no dma-buf was refused")
    check(imported_inodes(refused, "opaque-fd"), "nothing came in after the refusal")
    for worker in two + [opaque, refused]:
        check_equal(imports(worker, "host-allocation"), [], "imports of host pages")
        check_equal(placed(site, worker)[0], {"staged"}, "placements")
        check_equal(complete_tokens(site, worker), expected, "tokens")
    # Underneath, the simulated descriptors are memfds: pages of one copy, whoever maps them.
    weights = generation["weights_bytes"]
    shared = sum(harness.smaps_pss(d.pid, harness.weight_inodes(generation))
                 for d in site.daemons if d.is_alive())
    print(f"# 4 workers: weights {weights}, sum of their Pss {shared}")
    check(0.99 <= shared / weights <= 1.05, f"{shared / weights:.3f} copies")


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
