#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sessions of a worker that share what they have in common, and go on from where others ended."""
import harness
from harness import check, check_equal
from worker_socket import (
    CLOSE, FINISHED, TOKEN, TOKENIZE, TRUNCATE, Connection, Refused, field, unpacked)

QUESTION = "What is the capital of France?"
PAGE_TOKENS = 32  # workerd/kv.h


def serve(site, *args):
    site.weightd({"demo": harness.MODEL})
    # The same tokens whatever is computed beside them: what is compared here is exact.
    return site.worker("demo", ["--deterministic", *args])


def refusal(call, *args):
    try:
        call(*args)
    except Refused as e:
        return str(e)
    raise harness.Failure(f"{call.__name__}{args} was not refused")


def answer(c, session, n_predict=40):
    """(ids, cached tokens) of a generation."""
    ids, _, finished = c.finish(c.generate(session, n_predict, ignore_eos=True))
    return ids, finished.get(5, 0)


def test_fork_equals_recompute(site):
    worker = serve(site)
    with Connection(worker) as c, Connection(worker) as other:
        session = c.open()
        n_prompt = c.append_chat(session, QUESTION)
        ids, _ = answer(c, session, 60)
        check(n_prompt + 60 > 2 * PAGE_TOKENS, "the fork must have whole pages to share")
        for n_keep in (0, n_prompt, 2 * PAGE_TOKENS, 2 * PAGE_TOKENS + 5):
            n_had = n_keep or n_prompt + 60
            fork = c.fork(session, n_keep)
            forked, n_cached = answer(c, fork, 30)
            # All is there but the KV of the last token, which is computed for its logits.
            check_equal(n_cached, n_had - 1, f"cached tokens of a fork at {n_keep}")
            # A client of its own would compute every token of it.
            alone = other.open()
            other.append_ids(alone, prompt_ids(c, QUESTION) + ids[:n_had - n_prompt])
            computed, _ = answer(other, alone, 30)
            check_equal(forked, computed, f"tokens of a fork at {n_keep}")
            c.call(CLOSE, field(1, fork))
            other.call(CLOSE, field(1, alone))
        check("asked" in refusal(c.fork, session, 500), "a fork beyond the end")
        check("not one of" in refusal(other.fork, session), "a fork of another's session")


def prompt_ids(c, question):
    """Tokens of the chat, by asking for a Tokenize of what the template makes of it."""
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    reply = c.call(TOKENIZE, field(1, field(1, text) + field(2, 1)))[1]
    return unpacked(reply[1])


def test_forks_do_not_disturb(site):
    """Three that write behind the same tokens, at the same time, and one that goes back into them."""
    worker = serve(site)
    with Connection(worker) as c:
        first = c.open()
        n_prompt = c.append_chat(first, QUESTION)
        ids, _ = answer(c, first, 60)
        sessions = [first, c.fork(first, n_prompt + 5), c.fork(first, n_prompt)]
        c.call(TRUNCATE, field(1, first) + field(2, n_prompt + 20))
        started = [c.generate(s, 30, ignore_eos=True) for s in sessions]
        streams = {id_: [] for id_ in started}
        left = set(started)
        while left:
            id_, kind, reply = c.receive()
            if kind == TOKEN:
                streams[id_].append(reply.get(1, 0))
            else:
                check_equal(kind, FINISHED, f"reply to {id_}")
                left.remove(id_)
        for id_, n_had in zip(started, (20, 5, 0)):
            check_equal(streams[id_], ids[n_had:n_had + 30], f"tokens after the first {n_had}")


if __name__ == "__main__":
    harness.run(globals())
