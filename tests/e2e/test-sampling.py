#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sampling over workerd's client socket: what each parameter promises of the tokens that come."""
import math

import harness
from harness import check, check_equal
from worker_socket import (
    CANCEL, CANCELLED, DETOKENIZE, DONE, ERROR, FINISHED, LENGTH, STOP, TOKEN, TRUNCATE,
    Connection, Refused, field, fields, packed, repeated, sampling)

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
N_VOCAB = 4096
N_BEST = 20


def serve(site, *args):
    site.weightd({"demo": harness.MODEL})
    return site.worker("demo", ["--deterministic", *args])


def refusal(call, *args, **more):
    try:
        call(*args, **more)
    except Refused as e:
        return str(e)
    raise harness.Failure(f"{args} {more} was not refused")


class Session:
    """A prompt that is gone on with again and again."""

    def __init__(self, connection, prompt):
        self.connection = connection
        self.session = connection.open()
        if isinstance(prompt, str):
            self.n_prompt = connection.append_chat(self.session, prompt)
        else:
            self.n_prompt = connection.append_ids(self.session, prompt)

    def run(self, n=30, how=None, more=b"", **options):
        """(ids, text, Finished)"""
        c = self.connection
        c.call(TRUNCATE, field(1, self.session) + field(2, self.n_prompt))
        return c.finish(c.generate(self.session, n, how, more=more, **options))

    def tokens(self, n, how, n_best):
        """[(id, logprob, [(id, logprob, text)])] of a generation."""
        c = self.connection
        c.call(TRUNCATE, field(1, self.session) + field(2, self.n_prompt))
        wanted = c.generate(self.session, n, how, ignore_eos=True, more=field(9, n_best))
        rows = []
        while True:
            id_, kind, body = c.receive_body()
            if id_ == wanted and kind == ERROR:
                raise Refused(fields(body)[2].decode())
            if kind == FINISHED:
                return rows
            token = fields(body)
            top = [fields(t) for t in repeated(body, 4)]
            rows.append((token.get(1, 0), token.get(3),
                         [(t.get(1, 0), t.get(2, 0.0), t.get(3, b"")) for t in top]))


    def completions(self, n, n_predict, how, cancel_at=None, more=b""):
        """{index: ([ids], Finished)} in the order of their ends."""
        c = self.connection
        c.call(TRUNCATE, field(1, self.session) + field(2, self.n_prompt))
        wanted = c.generate(self.session, n_predict, how, more=field(10, n) + more)
        ids = [[] for _ in range(n)]
        ended = {}
        cancel = None
        while len(ended) < n:
            id_, kind, reply = c.receive()
            if id_ == wanted and kind == ERROR:
                raise Refused(reply[2].decode())
            if id_ == wanted and kind == FINISHED:
                check(reply.get(9, 0) not in ended, "an index ended twice")
                ended[reply.get(9, 0)] = (ids[reply.get(9, 0)], reply)
            elif id_ == wanted:
                check(reply.get(5, 0) not in ended, "a token behind Finished")
                ids[reply.get(5, 0)].append(reply.get(1, 0))
                if len(ids[0]) == cancel_at and not cancel:
                    cancel = c.send(CANCEL, field(1, self.session))
        if cancel:
            check_equal(c.receive()[:2], (cancel, DONE), "answer to Cancel")
        return ended


def test_completions(site):
    """Each is what its seed gives alone; the prompt is computed once."""
    worker = serve(site, "--sessions", "5")
    with Connection(worker) as c:
        session = Session(c, [300, 301, 302, 303])
        alone = [session.run(40, sampling(1.2, 100 + i))[0] for i in range(4)]
        check(len({tuple(ids) for ids in alone}) > 1, "all seeds give the same: it shows nothing")
        fresh = Session(c, "Name a country.")
        computed = c.status().get(16, 0)
        fresh.completions(3, 1, sampling(1.2, 1))
        check_equal(c.status().get(16, 0) - computed, fresh.n_prompt, "prompt tokens computed")
        ended = session.completions(4, 40, sampling(1.2, 100))
        for i in range(4):
            ids, finished = ended[i]
            check_equal(ids, alone[i], f"completion {i}")
            check_equal((finished[3], finished.get(4, 0), finished[8]),
                        (session.n_prompt, len(ids), 100 + i), f"figures of {i}")
        check_equal(c.n_sessions(), 2, "sessions that stay")
        # The first is what the session goes on with.
        c.append_ids(session.session, [300])
        _, _, finished = c.finish(c.generate(session.session, 1))
        check_equal(finished[3], session.n_prompt + len(alone[0]) + 1, "tokens in the session")
        text = refusal(session.completions, 5, 1, sampling())
        check("5 completions take 4 more sessions, 3 of 5 are free" in text, text)
        check("n: expected at most 8, found 9" in refusal(session.completions, 9, 1, sampling()),
              "9")
        ended = session.completions(4, 0, sampling(1.2, 5), 3, field(5, 1))
        check_equal({f[1] for _, f in ended.values()}, {CANCELLED}, "reasons behind a Cancel")
        check_equal(c.n_sessions(), 2, "sessions behind a Cancel")
        # A client that goes amid them leaves nothing.
        c.call(TRUNCATE, field(1, session.session) + field(2, session.n_prompt))
        c.generate(session.session, 0, ignore_eos=True, more=field(10, 4))
        while c.receive()[1] != TOKEN:
            pass
    with Connection(worker) as c:
        harness.wait_until(lambda: c.n_sessions() == 0, "sessions of a client that has gone")
        check_equal(Session(c, QUESTION).run(0)[1].decode(), ANSWER, "answer")


def test_logprobs(site):
    worker = serve(site)
    with Connection(worker) as c:
        session = Session(c, QUESTION)
        plain, text, _ = session.run(12, ignore_eos=True)
        rows = session.tokens(12, sampling(), N_BEST)
        check_equal([id_ for id_, _, _ in rows], plain, "tokens with logprobs")
        for id_, logprob, top in rows:
            check_equal(len(top), N_BEST, "likeliest tokens")
            check_equal((top[0][0], top[0][1]), (id_, logprob), "greedy takes the likeliest")
            values = [t[1] for t in top]
            check_equal(values, sorted(values, reverse=True), "order")
            total = sum(math.exp(v) for v in values)
            check(0 < total < 1.0001, f"probabilities of {total} in all")
            check_equal(len({t[0] for t in top}), N_BEST, "different tokens")
            for other, _, spelled in top:
                back = c.call(DETOKENIZE, field(1, field(1, packed([other]))))[1].get(1, b"")
                check(spelled in (back, b""), f"token {other}: {spelled} is not {back}")
        check_equal(b"".join(top[0][2] for _, _, top in rows)[:len(text)], text, "text of the best")
        # By the model alone: neither temperature nor bias nor penalties change them.
        how = sampling(1.5, 3, logit_bias=[(plain[0], -math.inf)], presence_penalty=3.0,
                       top_k=4, dry_multiplier=1.0)
        id_, logprob, top = session.tokens(1, how, N_BEST)[0]
        check_equal(top, rows[0][2], "likeliest tokens of the same prompt")
        check(id_ != plain[0], "a banned token came")
        check_equal(dict((t[0], t[1]) for t in top).get(id_, logprob), logprob, "its own")
        # Nobody asked: nothing is said.
        check_equal(session.tokens(1, sampling(), 0), [(plain[0], None, [])], "unasked")
        check_equal(len(session.tokens(1, sampling(), 1)[0][2]), 1, "one")
        check("20, found 21" in refusal(session.tokens, 1, sampling(), 21), "21")


def test_bias(site):
    worker = serve(site)
    with Connection(worker) as c:
        session = Session(c, QUESTION)
        plain, _, _ = session.run(8, ignore_eos=True)
        ban = [(id_, -math.inf) for id_ in set(plain)]
        for temperature in 0.0, 1.0:
            ids, _, _ = session.run(30, sampling(temperature, 1, logit_bias=ban), ignore_eos=True)
            check(not set(ids) & set(plain), f"banned tokens in {ids}")
            how = sampling(temperature, 1, logit_bias=[(77, 50), (77, 50)])
            ids, _, _ = session.run(5, how, ignore_eos=True)
            check_equal(ids, [77] * 5, "a token of bias 100")
        every = [(id_, 0.0) for id_ in range(1024)]
        check_equal(session.run(8, sampling(0.0, logit_bias=every), ignore_eos=True)[0], plain,
                    "biases of 0")
        check("1024, found 1025" in
              refusal(session.run, 1, sampling(logit_bias=every + [(1, 1.0)])), "too many")
        check("logit_bias[0]: expected an id below" in
              refusal(session.run, 1, sampling(logit_bias=[(1 << 31, 1.0)])), "no token")
        for value in math.nan, math.inf:
            check("logit_bias[1]" in
                  refusal(session.run, 1, sampling(logit_bias=[(1, 0.0), (1, value)])), "value")


def test_penalties(site):
    """A penalty far above all logits leaves tokens only once, in prompt and answer together."""
    worker = serve(site)
    prompt = [300, 301, 302, 303]
    with Connection(worker) as c:
        session = Session(c, prompt)
        how = {"repeat_last_n": 512}
        for name in "presence_penalty", "frequency_penalty":
            for temperature in 0.0, 1.0:
                ids, _, _ = session.run(60, sampling(temperature, 1, **{name: 100.0}, **how),
                                        ignore_eos=True)
                check_equal(len(set(ids + prompt)), 64, f"{name} at {temperature}")
        # DRY with an allowed length of 1: no token follows another as it did before.
        ids, _, _ = session.run(100, sampling(dry_multiplier=500.0, dry_allowed_length=1,
                                              dry_breakers=[""]), ignore_eos=True)
        pairs = list(zip(prompt + ids, (prompt + ids)[1:]))
        check_equal(len(set(pairs)), len(pairs), "pairs of tokens under DRY")
        plain, _, _ = session.run(100, ignore_eos=True)
        pairs = list(zip(prompt + plain, (prompt + plain)[1:]))
        check(len(set(pairs)) < len(pairs), "without DRY nothing repeats: the test shows nothing")
        # One token is typical enough for so small a share: nothing is left to the seed.
        some = [session.run(20, sampling(1.0, seed, typical_p=1e-6), ignore_eos=True)[0]
                for seed in (1, 2)]
        check_equal(some[0], some[1], "typical_p 1e-6 with two seeds")
        for bad in ({"typical_p": 1.5}, {"typical_p": math.nan}, {"frequency_penalty": 101.0},
                    {"presence_penalty": math.nan}, {"dry_multiplier": -1.0}, {"dry_base": 0.5},
                    {"dry_breakers": ["x" * 41]}, {"dry_breakers": ["x"] * 17},
                    {"dry_breakers": ["x", ""]}):
            name = next(iter(bad))
            text = refusal(session.run, 1, sampling(1.0, 1, **bad))
            check(text.startswith(name) and "found" in text, f"{bad}: {text}")


def test_stop_tokens(site):
    worker = serve(site)
    with Connection(worker) as c:
        session = Session(c, QUESTION)
        plain, text, finished = session.run(0)
        check_equal((text.decode(), finished[1]), (ANSWER, STOP), "without")
        for at in 1, len(plain) // 2, len(plain) - 1:
            first = plain.index(plain[at])
            for ids in [plain[at]], [4095, plain[at], 1]:
                got, cut, finished = session.run(0, ignore_eos=True, more=field(11, packed(ids)))
                check_equal((got, finished[1]), (plain[:first + 1], STOP), f"stop at {ids}")
                check(text.startswith(cut), f"{cut} is not how {text} begins")
                spelled = c.call(DETOKENIZE, field(1, field(1, packed(plain[:first]))))
                check(len(cut) <= len(spelled[1].get(1, b"")), f"{cut}: text of a stop token")
        got, _, finished = session.run(20, ignore_eos=True, more=field(11, packed([N_VOCAB - 9])))
        check_equal((len(got), finished[1]), (20, LENGTH), "a stop token that never comes")
        check("16, found 17" in refusal(session.run, 1, more=field(11, packed([1] * 17))), "17")
        check("stop_tokens[1]" in refusal(session.run, 1, more=field(11, packed([1, 1 << 31]))),
              "no token")


harness.run(globals())
