#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weightctl tune: choices are measured, used, kept on disk, and damage to them costs nothing."""
import os
import re
import stat
import subprocess

import harness
from harness import check, check_equal

QUESTION = "complete", "Once upon a time", "--n-predict", 24
FAST = ["--kernels", "fast", "--ctx", "256", "--sessions", "2", "--chunk", "64",
        "--log-level", "debug"]


def own_cache(site):
    """A directory of this test's: other tests' kernels are compiled once, but choices are not theirs."""
    site.env["WEIGHTD_CACHE"] = os.path.join(site.dir, "cache")


def tuning_files(site):
    cache = site.env["WEIGHTD_CACHE"]
    found = os.listdir(cache) if os.path.isdir(cache) else []
    return [os.path.join(cache, f) for f in sorted(found) if f.endswith(".tuning")]


def loaded(worker):
    """How many choices a worker says it has loaded, of each time that it looked; how many left out."""
    return re.findall(r"tuning: (\d+) choices from \S+, (\d+) lines left out", worker.log())


def tuned(site):
    """A worker that has been tuned, and what it said before and of that."""
    own_cache(site)
    site.weightd({"demo": harness.MODEL})
    worker = site.worker("demo", FAST)
    check("No such file" in worker.log() and not loaded(worker), worker.log())
    before = site.ctl(*QUESTION, worker=worker).out
    return worker, before, site.ctl("tune", "--json", worker=worker).json()


def test_tune(site):
    worker, before, found = tuned(site)
    check(found["is_saved"] and found["ns"] > 0, f"{found}")
    rows = found["products"]
    check_equal(found["n_products"], len(rows), "products that there are")
    check_equal(len({(r["product"], r["rows"]) for r in rows}), len(rows), "products")
    check({1, 2, 4, 8} <= {r["rows"] for r in rows}, f"rows of {rows}")
    for r in rows:
        check(0 < r["best_ns"] <= r["default_ns"], f"times of {r}")
        word = "matvec " if r["rows"] <= 8 else "matrix "
        check(r["cut"].startswith(word) and "=" in r["cut"], f"cut of {r}")
    check_equal(site.ctl(*QUESTION, worker=worker).out, before, "answer of the tuned worker")
    files = tuning_files(site)
    check_equal(len(files), 1, f"{files}")
    mode = os.stat(files[0])
    check(stat.S_ISREG(mode.st_mode) and stat.S_IMODE(mode.st_mode) == 0o600, f"mode {mode}")
    # Every later worker has them, and says the same; for exact kernels there is no choice.
    other = site.worker("demo", FAST)
    check_equal(loaded(other)[-1], (str(len(rows)), "0"), "choices loaded")
    check_equal(site.ctl(*QUESTION, worker=other).out, before, "answer of a later worker")
    exact = site.worker("demo", ["--kernels", "exact", "--log-level", "debug"])
    check("tuning" not in exact.log(), exact.log())
    check("exact kernels have no choice" in site.ctl("tune", worker=exact, status=1).err, "refusal")
    # Again: the file is replaced, and a table is printed.
    text = site.ctl("tune", worker=other).out
    lines = text.splitlines()
    check(lines[0].endswith("PRODUCT: CUT") and "kept on disk" in lines[-1], text)
    told = [re.match(r" *(\d+)/(\d+) +(\d+) +([0-9.]+) +([0-9.]+) +([0-9.]+)  (.+): mat", line)
            for line in lines[1:-1]]
    check(all(told), f"rows of {text}")
    check_equal([(int(m[1]), int(m[2])) for m in told],
                [(i + 1, len(rows)) for i in range(len(rows))], "rows as they are measured")
    check_equal({(m[7], int(m[3])) for m in told}, {(r["product"], r["rows"]) for r in rows},
                "products of the table")
    check(all(float(m[6]) >= 1 for m in told), f"gains of {text}")
    check_equal(os.listdir(os.path.dirname(files[0])).count(os.path.basename(files[0])), 1, "files")
    check_equal(tuning_files(site), files, "files afterwards")


def test_damage(site):
    """A file that is not whole, or of another device or build, is as none."""
    _, before, found = tuned(site)
    (path,) = tuning_files(site)
    with open(path, encoding="ascii") as f:
        text = f.read()
    check_equal(len(text.splitlines()), 1 + len(found["products"]), "lines")
    check("weightd-tuning 1 device=" in text and "parts=" in text, text)
    damages = {
        "one digit": text[:-2] + ("1" if text[-2] != "1" else "0") + "\n",
        "truncated": text[:len(text) * 2 // 3],
        "another device": re.sub("device=.", "device=z", text),
        "another build": re.sub("kernels=.", "kernels=z", text),
        "only a line": text.splitlines()[0],
        "empty": "",
        "garbage": "\0\xff" * 1000,
    }
    for name, damaged in damages.items():
        with open(path, "w", encoding="latin-1") as f:
            f.write(damaged)
        worker = site.worker("demo", FAST)
        check("damaged: ignored" in worker.log() and not loaded(worker), f"{name}: {worker.log()}")
        check_equal(site.ctl(*QUESTION, worker=worker).out, before, f"answer with {name}")
        worker.stop()
    with open(path, "w", encoding="ascii") as f:
        f.write(text)
    worker = site.worker("demo", FAST)
    check_equal(loaded(worker)[-1][0], str(len(found["products"])), "choices of what is whole again")


def test_beside_others(site):
    """Generations go on while it measures; it goes with its client."""
    own_cache(site)
    site.weightd({"demo": harness.MODEL})
    worker = site.worker("demo", FAST)
    tune = site.start_ctl("tune", "--json", worker=worker)
    answer = site.ctl(*QUESTION, worker=worker).out
    second = site.ctl("tune", worker=worker, status=None)
    check(second.status == 0 or "another one is under way" in second.err, f"{second}")
    tune.kill()
    tune.wait()
    check_equal(site.ctl(*QUESTION, worker=worker).out, answer, "answer after a client that left")
    found = site.ctl("tune", "--json", worker=worker).json()
    check(found["is_saved"] and found["products"], f"{found}")
    check_equal(site.ctl(*QUESTION, worker=worker).out, answer, "answer afterwards")


def test_timeout(site):
    """What is measured in the time is kept; the others stay as they are, and it says so."""
    own_cache(site)
    site.weightd({"demo": harness.MODEL})
    worker = site.worker("demo", FAST)
    text = site.ctl("tune", "--timeout", 1, worker=worker).out
    found = re.search(r"^(\d+) of (\d+) products in [0-9.]+ s, .*kept on disk\nthe others would take",
                      text, re.M)
    check(found and 0 < int(found[1]) < int(found[2]), text)
    other = site.worker("demo", FAST)
    check_equal(loaded(other)[-1], (found[1], "0"), "choices loaded")


def measured(worker):
    """What has been measured, as the log has it: (product, rows, cut)."""
    return re.findall(r"tuning: (.+) of (\d+) rows: (matvec .+|matrix .+): \d+ ns", worker.log())


def test_held(site):
    """x that goes into the registers of a subgroup is tried there, of one row and no other."""
    own_cache(site)
    # Eight lanes hold the 512 numbers of a row in one go; the 1280 of the layer are several subgroups'.
    site.env["LP_NATIVE_VECTOR_WIDTH"] = "256"
    path = os.path.join(site.dir, "wide.gguf")
    subprocess.run([harness.need_env("MKMODEL_BIN"), path, "--embd", "512", "--ff", "1280",
                    "--layers", "1", "--heads", "8", "--kv-heads", "2", "--head-dim", "64",
                    "--vocab", "300"], check=True, timeout=120,
                   stdout=subprocess.DEVNULL)
    site.weightd({"wide": path})
    worker = site.worker("wide", FAST)
    before = site.ctl(*QUESTION, worker=worker).out
    found = site.ctl("tune", "--json", worker=worker).json()
    cuts = measured(worker)
    check_equal({(p, int(n)) for p, n, _ in cuts},
                {(r["product"], r["rows"]) for r in found["products"]}, "products measured")
    tried = {}
    for product, n, cut in cuts:
        if cut.startswith("matvec"):
            case = int(re.search(r" x (\d+)", product)[1]), n == "1"
            tried.setdefault(case, set()).add(int(re.search(r"n_hold=(\d+)", cut)[1]))
    check_equal(tried, {(512, True): {0, 1}, (512, False): {0}, (1280, True): {0, 1},
                        (1280, False): {0}}, "n_hold of each width, of one row and of more")
    check_equal(site.ctl(*QUESTION, worker=worker).out, before, "answer of the tuned worker")


def test_a_worker_of_its_own(site):
    """As bench has it; in software its kernels are the exact ones, and nothing is left behind."""
    own_cache(site)
    refused = site.ctl("tune", "--synthetic", "tiny:q8_0", status=1)
    check("exact kernels have no choice" in refused.err, f"{refused}")
    check_equal(site.strays(), [], "processes left")
    check(not [d for d in os.listdir(site.dir) if d.startswith("weightctl-")], "directories left")


harness.run(globals())
