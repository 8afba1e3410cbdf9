#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A llama model of random weights, from its file to answers."""
import os
import subprocess

import harness
from harness import check, check_equal
from worker_socket import TOKENIZE, Connection, field, unpacked

N_VOCAB = 1000
BOS = N_VOCAB - 4  # mkmodel's: the special tokens are the last
PLACES = ("device", "staged", "pinned", "paged")
# Longer than the 32 tokens of which the factors take the model's context to be made.
TEXT = "etaoin shrdlu " * 12


def make(site, name, *args):
    path = os.path.join(site.dir, name + ".gguf")
    subprocess.run([harness.need_env("MKMODEL_BIN"), path, "--arch", "llama", "--layers", "2",
                    "--embd", "128", "--ff", "256", "--heads", "4", "--kv-heads", "2",
                    "--head-dim", "32", "--ctx", "512", "--vocab", str(N_VOCAB), *args],
                   check=True, timeout=120, stdout=subprocess.DEVNULL)
    return path


def complete(site, worker):
    return site.ctl("complete", TEXT, "--temp", "0", "--n-predict", "24", "--json",
                    worker=worker).json()["tokens"]


def run_model(site, path, place="device"):
    """The answer with the factors, where there are any, in that place and the rest on the device."""
    weightd = site.weightd({"m": path}, ["--place", f"rope_freqs.weight={place}"])
    worker = site.worker("m", ["--deterministic"])
    found = complete(site, worker)
    status = site.ctl("status", "--json", worker=worker).json()["worker"]
    placed = [p["placement"] for p in status["placed_weights"] if p["n_bytes"]]
    check(place in placed, f"{place}: the worker has its weights as {placed}")
    worker.stop()
    weightd.stop()
    return found


def test_factors_wherever_they_are(site):
    path = make(site, "factors", "--rope-factors")
    expected = None
    for place in PLACES:
        found = run_model(site, path, place)
        expected = expected or found
        check_equal(found, expected, f"tokens with the factors {place}")
    check(run_model(site, make(site, "plain")) != expected, "the factors change nothing")


def tokenize(c, text, add_bos=0):
    body = field(1, text) + field(2, 1) + field(3, add_bos)
    return unpacked(c.call(TOKENIZE, field(1, body))[1][1])


def answer(c, session):
    return c.finish(c.generate(session, 16, ignore_eos=True))[0]


def test_chat_begins_with_bos_once(site):
    site.weightd({"m": make(site, "plain")})
    worker = site.worker("m", ["--deterministic"])
    turn = ("<|start_header_id|>user<|end_header_id|>\n\n%s<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n")
    with Connection(worker) as c:
        first, second = tokenize(c, turn % "set 1234"), tokenize(c, turn % "dad")
        check_equal(tokenize(c, "set", 1), [BOS] + tokenize(c, "set"), "tokens with BOS")
        check_equal(first.count(N_VOCAB - 1), 1, "end marks of a turn")
        session, other = c.open(), c.open()
        check_equal(c.append_chat(session, " set 1234\n"), 1 + len(first), "first turn")
        c.append_ids(other, [BOS] + first)
        said = answer(c, session)
        check_equal(said, answer(c, other), "answer to the first turn")
        check_equal(c.append_chat(session, "dad"), 1 + len(first) + 16 + len(second), "two turns")
        c.append_ids(other, second)
        check_equal(answer(c, session), answer(c, other), "answer to the second turn")


def test_inspect(site):
    path = make(site, "plain")
    text = site.ctl("inspect", path).out
    check("general.architecture" in text and '"llama"' in text and "would load" in text, text)
    with open(path, "rb") as f:
        data = f.read()
    other = os.path.join(site.dir, "other.gguf")
    with open(other, "wb") as f:
        f.write(data.replace(b"blk.1.attn_norm.weight", b"blk.1.attn_norm.weighs"))
    text = site.ctl("inspect", other).out
    check("would not load: tensor blk.1.attn_norm.weight: expected [128]" in text, text)


if __name__ == "__main__":
    harness.run(globals())
