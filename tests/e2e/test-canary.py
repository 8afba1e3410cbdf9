#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What closed sessions had computed reaches no other: in pages that many had before, an answer has
the log probabilities of a worker that has served nobody, to the last bit."""
import harness
import soak
from harness import check, check_equal, wait_until
from worker_socket import (
    CLOSE, ERROR, FAILED, FINISHED, TOKEN, TRUNCATE, Connection, Refused, field, fields, sampling)

N_SESSIONS = 16
N_GENERATIONS = soak.get_rounds(120, 60)
N_PAGES = 24
PAGE_TOKENS = 32  # workerd/kv.h
N_LOGPROBS = 20   # as many as there are for who asks
N_PREDICT = 12


def serve(site, *args):
    return site.worker("demo", ["--deterministic", "--no-park", "--sessions", str(N_SESSIONS),
                                "--ctx", "256", "--kv-tokens", str(N_PAGES * PAGE_TOKENS), *args])


def make_probes():
    """Tokens that no conversation begins with: of a part of a page, whole pages, and more."""
    return [[1500 + 11 * i + k * 7 % 900 for k in range(n)]
            for i, n in enumerate((1, 31, 64, 141))]


def answer(c, session, how):
    """The bytes of every Token: ids, texts, log probabilities of it and of the likeliest."""
    id_ = c.generate(session, N_PREDICT, how, ignore_eos=True, more=field(9, N_LOGPROBS))
    found = []
    while True:
        got, kind, body = c.receive_body()
        check_equal(got, id_, "answered request")
        if kind == ERROR or (kind == FINISHED and fields(body)[1] == FAILED):
            raise Refused(fields(body)[2].decode())
        if kind == FINISHED:
            check_equal(len(found), N_PREDICT, "tokens")
            return found
        check_equal(kind, TOKEN, "kind of reply")
        found.append(body)


def probe(c, ids, how, before=None, n_keep=0):
    """In a session of its own, which had `before` behind its first n_keep tokens and forgot it."""
    session = c.open()
    if before:
        c.append_ids(session, ids[:n_keep] + before)
        c.finish(c.generate(session, 3))
        c.call(TRUNCATE, field(1, session) + field(2, n_keep))
    c.append_ids(session, ids[n_keep:])
    try:
        return answer(c, session, how)
    finally:
        c.call(CLOSE, field(1, session))


def hows():
    return sampling(), sampling(soak.TEMPERATURE, soak.SEEDS[0])


def check_probes(c, expected, what, before=None, n_keep=0):
    for ids, answers in zip(make_probes(), expected):
        for how, tokens in zip(hows(), answers):
            found = probe(c, ids, how, before, min(n_keep, len(ids)))
            for i, (a, b) in enumerate(zip(found, tokens)):
                check(a == b, f"{what}: token {i} behind {len(ids)}: expected {b!r}, found {a!r}")


def go_back(c, ids, other):
    """A session that had all of ids, went back into a page that is found by others, and has
    something else there."""
    session = c.open()
    for n_keep, more in (0, ids), (len(ids) - PAGE_TOKENS + 2, other):
        c.call(TRUNCATE, field(1, session) + field(2, n_keep))
        c.append_ids(session, more)
        c.finish(c.generate(session, 3))
    return session


def check_canary(site, *args):
    n_generations = N_GENERATIONS
    if harness.is_sanitized(harness.need_env("WORKERD_BIN")):
        n_generations //= 3
    fresh = serve(site, *args)
    with Connection(fresh) as c:
        expected = [[probe(c, ids, how) for how in hows()] for ids in make_probes()]
        # One other token long before, and it is seen.
        other = make_probes()[-1]
        other[0] += 1
        check(probe(c, other, sampling()) != expected[-1][0], "the first token changes nothing")
    prompts = soak.make_prompts(fresh, 6)
    fresh.stop()

    worker = serve(site, *args)
    seed = soak.get_seed()
    clients = [soak.Client(worker, prompts, seed + i, N_SESSIONS // 2, may_lack_pages=True)
               for i in range(2)]
    counts = soak.add_counts(soak.Crowd(clients, "generate", n_generations // 2).join())
    with Connection(worker) as c:
        wait_until(lambda: c.n_sessions() == 0, "the end of all sessions")
        status = c.status()
        n_computed = status[16] + status[17]
        print(f"# {n_computed} tokens computed in {N_PAGES} pages; {counts}", flush=True)
        check(n_computed > N_PAGES * PAGE_TOKENS, f"pages are not used again: {n_computed}")
        check_equal((status[23], status.get(24, 0)), (N_PAGES, 0), "pages, and those in use")
        check_probes(c, expected, "after others")
        check_probes(c, expected, "found again")
        check_probes(c, expected, "in a session that forgot all", prompts[-1].ids)
        # In its last page keys and values of what it forgot are still there.
        check_probes(c, expected, "in a session that forgot the most", prompts[-1].ids, 5)
        sessions = [go_back(c, ids, prompts[0].ids) for ids in make_probes()[2:]]
        check_probes(c, expected, "beside who went back")
        for session in sessions:
            c.call(CLOSE, field(1, session))
        # Fewer pages than all want: what is the probe's may have been anybody's a step ago.
        crowd = soak.Crowd(clients[:1], "generate", n_generations // 4)
        check_beside(c, expected)
        crowd.join()
        check_probes(c, expected, "after them")


def check_beside(c, expected):
    """While others take pages and give them back; who has none is refused and asks again."""
    found = []
    while not found:
        try:
            found = probe(c, make_probes()[1], sampling())
        except Refused as e:
            check(soak.is_for_pages(str(e)), f"refused: {e}")
    check(found == expected[1][0], "beside others: other bits")


def test_f16(site):
    site.weightd({"demo": harness.MODEL})
    check_canary(site)


def test_q8_0(site):
    site.weightd({"demo": harness.MODEL})
    check_canary(site, "--kv-type", "q8_0")


if __name__ == "__main__":
    harness.run(globals())
