#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weightctl bench: tables, profiles, workers of its own, and nothing left behind."""
import os
import re
import signal
import time

import harness
from harness import check, check_equal

# tiny of weightctl/synthetic-shape.c: numbers of all matrices but the embedding; Q8_0 has 34 bytes
# for 32 of them.
LAYERS, EMBD, FF, VOCAB, HEADS, KV_HEADS, HEAD_DIM = 4, 256, 768, 512, 4, 2, 64
NUMBERS = LAYERS * (2 * EMBD * HEADS * HEAD_DIM + 2 * EMBD * KV_HEADS * HEAD_DIM + 3 * EMBD * FF)
HEAD = EMBD * VOCAB
KERNELS = {"EMBED_Q8_0_X2", "MATMUL_Q8_0_X2", "ROPE_KV_F16", "ATTENTION_F16", "BEST_PARTS",
           "BEST_MERGE"}
# Numbers and bytes of a block; None: of several formats.
TYPES = {"f16": (1, 2), "q8_0": (32, 34), "q4_0": (32, 18), "q4_k": (256, 144), "q4_k_m": None,
         "q6_k": (256, 210), "tq2_0": (256, 66), "q2_0": (64, 18), "q1_0": (128, 18)}


def nothing_left(site, but=()):
    """No process and no directory of the bench's own."""
    left = [d for d in os.listdir(site.dir) if d.startswith("weightctl-")]
    check(not left, f"left in the directory: {left}")
    strays = set(site.strays()) - set(but)
    check(not strays, f"processes left: {strays}")


def test_markdown(site):
    result = site.ctl("bench", "--synthetic", "tiny:q8_0", "-p", 32, "-n", 8, "-b", "1,2", "-r", 2,
                      "--workers", "1,2")
    nothing_left(site)
    lines = result.out.splitlines()
    check_equal(len(lines), 2 + 8, f"lines of {result}")
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in lines]
    check_equal({len(row) for row in cells}, {9}, f"columns of {result}")
    check(set(lines[1]) <= set("|-: "), f"{result}: no markdown")
    rows = [(row[0], row[3], row[4], row[5]) for row in cells[2:]]
    check_equal(rows, [("tiny:q8_0", w, b, t) for w in "12" for b in "12" for t in ("pp32", "tg8")],
                f"rows of {result}")
    for row in cells[2:]:
        rate = re.fullmatch(r"(\d+\.\d\d) ± (\d+\.\d\d)", row[6])
        check(rate and float(rate[1]) > 0, f"rate in {row}")
        check_equal(len(row[7].split(", ")), int(row[3]), f"workers' rates in {row}")


def test_json(site):
    result = site.ctl("bench", "--synthetic", "tiny:q8_0", "-p", "16,0", "-n", "0,4", "-d", 32,
                      "-r", 2, "--workers", "2x2", "--json", "--seed", 5).json()
    nothing_left(site)
    check(result["make_ms"] > 0 and result["load_ms"] > 0, f"times in {result}")
    check_equal([t["test"] for t in result["tests"]], ["pp16 @ d32", "tg4 @ d32"], "tests")
    for test in result["tests"]:
        check_equal((test["workers"], test["sessions"], test["seed"]), (2, 2, 5), f"{test}")
        check_equal(len(test["samples"]), 2, "samples")
        starts = {s["start_ns"] for s in test["samples"]}
        check_equal(len(starts), 2, "starts")
        for sample in test["samples"]:
            check_equal([w["tokens"] for w in sample["workers"]],
                        [32, 32] if test["n_prompt"] else [8, 8], "tokens")
            check_equal([w["steps"] for w in sample["workers"]],
                        [1, 1] if test["n_prompt"] else [4, 4], "steps")
            for w in sample["workers"]:
                spent = w["record_ns"] + w["submit_ns"] + w["wait_ns"]
                check(0 < spent <= w["ns"], f"the processor's time in {w}")
                check(w["step_median_ns"] <= w["step_p99_ns"] <= w["ns"], f"steps of {w}")
            # From the first start to the last end: no faster than each by its own time.
            total = sum(w["t_s"] for w in sample["workers"])
            check(0 < sample["t_s"] <= total * 1.001, f"rates in {sample}")
        mean = sum(s["t_s"] for s in test["samples"]) / 2
        check(abs(mean - test["avg_t_s"]) < 1e-6 * mean, f"mean of {test}")


def check_ceilings(ceilings, kernels):
    """Shares are of what was measured: memory's, and the higher of the arithmetic ones."""
    read, ridge = ceilings["read_gb_s"], max(ceilings["fma_tflop_s"], ceilings["matrix_tflop_s"])
    check(read > 0 and ceilings["fma_tflop_s"] > 0 and ceilings["matrix_tflop_s"] >= 0,
          f"{ceilings}")
    for k in kernels:
        check(abs(k["read_share"] - k["gb_s"] / read) < 1e-6, f"share of reading in {k}")
        check(abs(k["flop_share"] - k["tflop_s"] / ridge) < 1e-6, f"share of arithmetic in {k}")
    check(any(k["read_share"] > 0 for k in kernels), "a share of reading")
    check(any(k["flop_share"] > 0 for k in kernels), "a share of arithmetic")


def check_profile(test, n_steps, n_rows, keys):
    """keys: what all rows see, and what their sessions have, over all steps."""
    p = test["profile"]
    kernels = p["kernels"]
    check_equal({k["name"] for k in kernels}, KERNELS, "kernels")
    check_equal(sum(k["calls"] for k in kernels), test["dispatches"] * n_steps, "dispatches")
    # Timestamps lie end to end: what kernels take is what the device is busy.
    total = sum(k["ns"] for k in kernels)
    check(abs(total - p["stamped_ns"]) <= 0.05 * total, f"{total} of {p['stamped_ns']} ns")
    check(0 < p["busy_ns"] <= p["ns"], f"busy {p['busy_ns']} of {p['ns']} ns")
    check_ceilings(p["ceilings"], kernels)

    def count(name, what):
        return sum(k[what] for k in kernels if k["name"] == name)

    wanted = n_steps * (NUMBERS + HEAD) * 34 // 32
    check_equal(count("MATMUL_Q8_0_X2", "weight_bytes"), wanted, "bytes of matrices")
    heads = n_steps if test["n_prompt"] else n_rows
    check_equal(count("MATMUL_Q8_0_X2", "flops"), 2 * (NUMBERS * n_rows + HEAD * heads),
                "arithmetic of matrices")
    seen, read = keys
    token = 2 * KV_HEADS * HEAD_DIM * 2
    check_equal(count("ATTENTION_F16", "kv_bytes"), LAYERS * read * token, "bytes of keys")
    check_equal(count("ATTENTION_F16", "flops"), LAYERS * 4 * seen * HEADS * HEAD_DIM,
                "arithmetic of attention")
    check_equal(count("ROPE_KV_F16", "kv_bytes"), LAYERS * n_rows * token, "bytes of new keys")


def test_profile(site):
    tests = site.ctl("bench", "--synthetic", "tiny:q8_0", "-p", 32, "-n", 8, "-r", 1, "--profile",
                     "--json").json()["tests"]
    nothing_left(site)
    check_profile(tests[0], 1, 32, (32 * 33 // 2, 32))
    check_profile(tests[1], 8, 8, (8 * 9 // 2, 8 * 9 // 2))


def matrix_bytes(test):
    """Of all matrices that the profile's kernels read, a step."""
    kernels = test["profile"]["kernels"]
    return sum(k["weight_bytes"] for k in kernels if not k["name"].startswith("EMBED")) / (
        1 if test["n_prompt"] else test["n_gen"])


def test_each_type(site):
    """By the kernels of a software device and by those of a GPU: they read the same bytes.

    Those of few rows need rows of whole words, which these of q6_K and tq2_0 are not.
    """
    for kind, block in TYPES.items():
        read = {}
        for kernels in "exact", "fast":
            tests = site.ctl("bench", "--synthetic", f"tiny:{kind}", "-p", 32, "-n", 8, "-r", 1,
                             "--kernels", kernels, "--profile", "--json").json()["tests"]
            check_equal([t["test"] for t in tests], ["pp32", "tg8"], f"tests of {kind}")
            check(all(t["avg_t_s"] > 0 for t in tests), f"rates of {kind}: {tests}")
            read[kernels] = [matrix_bytes(t) for t in tests]
            few = {k["name"] for k in tests[1]["profile"]["kernels"]}
            has_words = block is None or EMBD // block[0] * block[1] % 4 == 0
            check_equal(any(name.startswith("MATVEC") for name in few),
                        kernels == "fast" and has_words,
                        f"kernels of few rows in {few} of {kind}, {kernels}")
        check_equal(read["fast"], read["exact"], f"bytes of {kind}")
        if block:
            wanted = (NUMBERS + HEAD) * block[1] // block[0]
            check_equal(read["exact"], [wanted, wanted], f"bytes of {kind}")
    nothing_left(site)


def test_a_worker_that_is_there(site):
    site.weightd({"demo": harness.MODEL})
    worker = site.worker("demo", ["--ctx", "256", "--sessions", "2"])
    daemons = [d.pid for d in site.daemons]
    generation = site.start_ctl("complete", "The", "--n-predict", 60, "--json", worker=worker)
    result = site.ctl("bench", "-p", 40, "-n", 3, "-r", 1, "--profile", worker=worker)
    check_equal(len(re.findall(r"^\| demo ", result.out, re.M)), 2, f"rows of {result}")
    for word in "KERNEL", "ceilings, measured", "TFLOP/s", "FLOP a byte", "GPU busy":
        check(result.out.count(word) >= 2, f"{word} in {result}")
    # Of matrices the line has a figure, or says that there are none.
    check_equal(len(re.findall(r"^ceilings, .* (?:f16 matrices in registers [0-9.]+ TFLOP/s|"
                               r"no matrices: arithmetic is held against f32)$", result.out, re.M)),
                2, "what is said of matrices")
    finished = site.finish_ctl(generation)
    check_equal(finished.status, 0, f"the generation beside it: {finished}")
    check(site.ctl("bench", "-b", 3, worker=worker, status=1).err.startswith(
        "weightctl: bench: sessions: expected 1 to the worker's 2, found 3"), "too many sessions")
    check("at most the context's 256 tokens, found 257" in
          site.ctl("bench", "-p", 0, "-n", 257, worker=worker, status=1).err, "too many tokens")
    # The client goes in the middle: its pages are free.
    bench = site.start_ctl("bench", "-p", 0, "-n", 250, "-r", 100, worker=worker)

    def pages():
        status = site.ctl("--json", "status", worker=worker).json()["worker"]
        return status["kv_pages"]["used"]

    harness.wait_until(lambda: pages() > 0, "pages of the bench")
    bench.send_signal(signal.SIGKILL)
    bench.communicate()
    harness.wait_until(lambda: pages() == 0, "the end of the bench's pages")
    # Workers of its own beside it, of the same weightd.
    result = site.ctl("bench", "-m", "demo", "-p", 0, "-n", 2, "-r", 1, "--workers", 2)
    check_equal(len(re.findall(r"\| 2 \| 1 \| tg2 \|", result.out)), 1, f"{result}")
    nothing_left(site, but=daemons + site.keepers())
    check_equal(len(site.status()["workers"]), 1, "workers of weightd")


def test_a_file(site):
    result = site.ctl("bench", "-m", harness.MODEL, "-p", 0, "-n", 2, "-r", 1)
    nothing_left(site)
    check(f"| {os.path.basename(harness.MODEL)} |" in result.out, f"{result}")


def test_make_model(site):
    """The file is what bench makes in memory: the same for the same seed, and a model."""
    paths = [os.path.join(site.dir, name) for name in ("a.gguf", "b.gguf", "c.gguf")]
    for path, seed in zip(paths, (7, 7, 8)):
        out = site.ctl("make-model", "tiny:q4_0", path, "--seed", seed).out
        check(out.startswith(f"{path}: ") and out.endswith("iB\n"), out)
    made = [open(path, "rb").read() for path in paths]
    check(made[0] == made[1] != made[2], "bytes by seed")
    check("would load" in site.ctl("inspect", paths[0]).out, "inspect")
    result = site.ctl("bench", "-m", paths[0], "-p", 0, "-n", 2, "-r", 1)
    check("| a.gguf |" in result.out, f"{result}")
    found = site.ctl("make-model", "tiny:q4_0", os.path.join(site.dir, "d.gguf"), "--json").json()
    check_equal(found["n_bytes"], len(made[0]), "bytes in JSON")
    # What is there stays, and nothing half written is left.
    refused = site.ctl("make-model", "tiny:q4_0", paths[0], status=1).err
    check("File exists" in refused and open(paths[0], "rb").read() == made[0], refused)
    nowhere = os.path.join(site.dir, "none", "e.gguf")
    check("No such file" in site.ctl("make-model", "tiny:q4_0", nowhere, status=1).err, "nowhere")
    check("tiny" in site.ctl("make-model", "huge:q4_0", nowhere, status=1).err, "shapes there are")
    nothing_left(site)


def test_refusals(site):
    text = os.path.join(site.dir, "text.gguf")
    with open(text, "wb") as f:
        f.write(b"not a model at all\n" * 99)
    cases = [
        (2, ["--synthetic", "tiny"], "--synthetic: expected SHAPE:TYPE"),
        (2, ["-p", "1,x"], "-p: expected"),
        (2, ["--workers", "0"], "--workers: expected"),
        (2, ["surplus"], "bench: expected no argument"),
        (1, ["-m", text], "text.gguf: model bench: magic"),
        (1, ["-m", "/nowhere/a.gguf"], "/nowhere/a.gguf: "),
        (1, ["-m", "demo"], "expected -m FILE or --synthetic, or a weightd"),
        (1, ["--synthetic", "tiny:q8_0", "--device", "77"], "77"),
        (1, ["--synthetic", "tiny:q8_0", "-p", "0", "-n", "5000"], "4096"),
        (1, ["--synthetic", "tiny:q8_0", "--kv-type", "q9"], "q9"),
        (1, ["--synthetic", "tiny:q8_0", "--kernels", "best"], "--kernels: expected auto, exact or"),
    ]
    for status, args, text in cases:
        result = site.ctl("bench", *args, status=status)
        lines = result.err.splitlines()
        check(text in lines[0] and not result.out, f"{result}: expected {text}")
        check_equal(len(lines), 2 if status == 2 else 1, f"lines of {result}")
        nothing_left(site)


def test_interrupt(site):
    for delay in 0.05, 0.3, 1.5:
        bench = site.start_ctl("bench", "--synthetic", "tiny:q8_0", "-p", 64, "-n", 2000, "-r", 50,
                               "--workers", 2)
        time.sleep(delay)
        bench.send_signal(signal.SIGINT)
        result = site.finish_ctl(bench)
        # Before it has daemons, the signal is enough.
        check(result.status == -signal.SIGINT or
              (result.status == 1 and result.err == "weightctl: interrupted\n"), f"{result}")
        nothing_left(site)


if __name__ == "__main__":
    harness.run(globals())
