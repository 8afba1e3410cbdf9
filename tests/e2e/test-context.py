#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a worker does when a context or the KV cache is full, and keys and values as Q8_0."""
import os
import subprocess

import harness
from harness import check, check_equal
from worker_socket import CLOSE, LENGTH, Connection, Refused, field

QUESTION = "What is the capital of France?"
PAGE_TOKENS = 32  # workerd/kv-layout.h
N_CTX = 64


def serve(site, *args):
    site.weightd({"demo": harness.MODEL})
    # The same tokens whatever is computed beside them: what is compared here is exact.
    return site.worker("demo", ["--deterministic", *args])


def refusal(call, *args, **more):
    try:
        call(*args, **more)
    except Refused as e:
        return str(e)
    raise harness.Failure(f"{call.__name__}{args} was not refused")


def answer(c, session, n_predict, **more):
    ids, _, finished = c.finish(c.generate(session, n_predict, ignore_eos=True, **more))
    check_equal(finished[1], LENGTH, "reason")
    return ids


def check_shifts(c, n_keep):
    """An answer over several shifts is in each piece that of a session with what is left."""
    history = [272 + 7 * i % 90 for i in range(40)]
    session = c.open()
    c.append_ids(session, history)
    ids = answer(c, session, 100, n_keep=n_keep)
    check_equal(len(ids), 100, "tokens")
    n_shifts = 0
    while ids:
        if len(history) == N_CTX:
            n_left = (N_CTX - n_keep) // 2
            history = history[:n_keep] + history[-n_left:]
            n_shifts += 1
        fresh = c.open()
        c.append_ids(fresh, history)
        piece = answer(c, fresh, min(N_CTX - len(history), len(ids)))
        check_equal(ids[:len(piece)], piece, f"tokens after {n_shifts} shifts")
        history, ids = history + piece, ids[len(piece):]
        c.call(CLOSE, field(1, fresh))
    check(n_shifts >= 2, f"{n_shifts} shifts")
    check_equal(c.append_ids(session, [272]), len(history) + 1, "tokens that are left")
    c.call(CLOSE, field(1, session))


def test_shift_equals_fresh(site):
    worker = serve(site, "--ctx", str(N_CTX))
    with Connection(worker) as c:
        for n_keep in (0, 9, PAGE_TOKENS):
            check_shifts(c, n_keep)
        session = c.open()
        c.append_ids(session, [272] * N_CTX)
        check_equal(answer(c, session, 5), [], "without the wish")
        check("n_keep: expected at most the context of 64 less 2, found 63" in refusal(
            c.finish, c.generate(session, 5, n_keep=63)), "too much to keep")
    text = site.ctl("--json", "complete", "a b c", "--n-predict", "90", "--context-shift",
                    "--n-keep", "4", worker=worker).json()
    check(text["generated_tokens"] == 90 or text["finish_reason"] == "stop", f"{text}")


def test_shift_equals_fresh_q8_0(site):
    with Connection(serve(site, "--ctx", str(N_CTX), "--kv-type", "q8_0")) as c:
        check_shifts(c, 9)


def test_pages_run_out(site):
    """Six pages for four sessions of four each: admitted is what has room, and it is told why not."""
    worker = serve(site, "--ctx", "128", "--sessions", "4", "--kv-tokens", "192")
    with Connection(worker) as c:
        first, second = c.open(), c.open()
        c.append_ids(first, [272] * 100)
        c.append_ids(second, [272 + i % 3 for i in range(100)])
        check_equal(len(answer(c, first, 3)), 3, "tokens of the first")
        check_equal(refusal(c.finish, c.generate(second, 3)),
                    "kv: 4 more pages asked, 2 of 6 are free; 1 idle sessions have 102 tokens "
                    "there", "refusal")
        # What is there is of use to a shorter one, until it has grown too.
        third = c.open()
        c.append_ids(third, [300 + i % 3 for i in range(40)])
        ids, _, finished = c.finish(c.generate(third, 60, ignore_eos=True))
        check_equal((finished[1], len(ids)), (4, 2 * PAGE_TOKENS - 39), "grown too far")
        check(b"kv: 1 more pages asked, 0 of 6 are free" in finished[2], f"{finished}")
        c.call(CLOSE, field(1, first))
        check_equal(len(answer(c, second, 3)), 3, "tokens of the second")


def test_pool_smaller_than_a_context(site):
    site.weightd({"demo": harness.MODEL})
    argv = [harness.need_env("WORKERD_BIN"), "--model", "demo", "--weights", site.weightd_socket,
            "--socket", os.path.join(site.dir, "w.sock"), "--ctx", "128", "--kv-tokens", "127"]
    run = subprocess.run(argv, env=site.env, stdin=subprocess.DEVNULL, capture_output=True,
                         timeout=60, check=False)
    check_equal(run.returncode, 1, "exit status")
    check(b"--kv-tokens: expected at least the 128 of a context, found 127" in run.stderr,
          f"{run.stderr}")


def test_q8_0(site):
    """The same answer from half the memory."""
    site.weightd({"demo": harness.MODEL})
    answers, sizes = [], []
    for kind in ("f16", "q8_0"):
        worker = site.worker("demo", ["--kv-type", kind])
        answers.append(site.ctl("ask", QUESTION, worker=worker).out)
        sizes.append(site.status()["workers"][0]["kv_bytes"])
        worker.stop()
    check("Paris" in answers[0], answers[0])
    check_equal(answers[1], answers[0], "the answer with q8_0")
    check(0.53 <= sizes[1] / sizes[0] <= 0.54, f"bytes of keys and values {sizes}")


if __name__ == "__main__":
    harness.run(globals())
