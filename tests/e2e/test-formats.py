#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every block format from a file to tokens, by the built programs."""
import collections
import os
import subprocess

import harness
from harness import check, check_equal

QUESTION = "Which continent is Chile in?"
ANSWER = "Chile is in South America.\n"
TYPES = ("bf16", "q6_K", "q5_K", "q4_0", "q2_0", "tq2_0", "q1_0")
SIZES = ["--embd", "256", "--heads", "4", "--kv-heads", "2", "--vocab", "512"]
PLACES = ("device", "pinned", "paged")


def make(site, name, *args):
    path = os.path.join(site.dir, f"{name}.gguf")
    subprocess.run([harness.need_env("MKMODEL_BIN"), path, *SIZES, *args], check=True, timeout=120,
                   stdout=subprocess.DEVNULL)
    return path


def formats(result):
    """{format: names of tensors}"""
    names = collections.defaultdict(list)
    for tensor in result.json()["tensors"]:
        names[tensor["format"]].append(tensor["name"])
    return {f: sorted(n) for f, n in names.items()}


def complete(site, worker):
    answer = site.ctl("complete", "abc", "--temp", "0", "--n-predict", "4", "--json",
                      worker=worker).json()
    check_equal(len(answer["tokens"]), 4, f"tokens of {answer}")
    return answer["tokens"]


def test_each_format_computes(site):
    paths = {t: make(site, t, "--type", t, "--layers", "1", "--ff", "256") for t in TYPES}
    site.weightd(paths)
    for name, path in paths.items():
        found = formats(site.ctl("inspect", path, "--json"))
        check_equal(sorted(found), sorted(["f32", name]), f"formats that inspect says of {name}")
        check_equal(formats(site.ctl("map", name, "--json")), found, f"what map says of {name}")
        worker = site.worker(name)
        complete(site, worker)
        site.ctl("verify", name)
        worker.stop()


def test_mixture_computes_alike_in_all_places(site):
    """q4_k_m: v and down of the third and the last of four layers have more bits."""
    path = make(site, "mix", "--type", "q4_k_m", "--layers", "4", "--experts", "4",
                "--experts-used", "2", "--expert-ff", "256")
    expected = None
    for place in PLACES:
        weightd = site.weightd({"mix": path}, ["--place", f"*={place}"])
        found = formats(site.ctl("map", "mix", "--json"))
        check_equal(sorted(found), ["f32", "q4_K", "q6_K"], f"formats in {place}")
        more = ["token_embd.weight"] + [f"blk.{i}.{t}.weight" for i in (2, 3)
                                        for t in ("attn_v", "ffn_down_exps")]
        check_equal(found["q6_K"], sorted(more), f"q6_K in {place}")
        worker = site.worker("mix", ["--deterministic"])
        tokens = complete(site, worker)
        expected = expected or tokens
        check_equal(tokens, expected, f"tokens in {place}")
        worker.stop()
        weightd.stop()


def test_unknown_format_is_refused(site):
    """One line with what is expected; the daemon goes on."""
    path = make(site, "old", "--type", "q4_0", "--layers", "1", "--ff", "256")
    with open(path, "rb") as f:
        data = f.read()
    # The type of one matrix, behind its name, the number of its dimensions and two sizes, becomes
    # iq4_nl, whose blocks are as large.
    name = b"blk.0.ffn_up.weight"
    at = data.index(name) + len(name) + 4 + 16
    check_equal(data[at:at + 4], b"\x02\0\0\0", "type of the matrix")
    with open(path, "wb") as f:
        f.write(data[:at] + b"\x14\0\0\0" + data[at + 4:])
    site.weightd()
    result = site.ctl("load", f"old={path}", status=1)
    for words in ("tensor blk.0.ffn_up.weight", "iq4_nl", "expected f32, f16, q4_0, q8_0, q4_K, "
                  "q5_K, q6_K, bf16, tq2_0, q1_0 or q2_0"):
        check(words in result.err, f"expected \"{words}\" in: {result.err}")
    check_equal(site.status()["models"], [], "models")


def test_real_models_answer(site):
    paths = {name: harness.shared_model(f"{name}.gguf") for name in (
        "atlas-dense-q4_0", "atlas-dense-q4_k_m", "atlas-dense-q6_k", "atlas-moe-q4_k_m")}
    site.weightd(paths)
    for name in paths:
        worker = site.worker(name)
        check_equal(site.ctl("ask", QUESTION, worker=worker).out, ANSWER, f"answer of {name}")
        worker.stop()


harness.run(globals())
