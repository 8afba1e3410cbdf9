#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sessions of a worker that share what they have in common, and go on from where others ended."""
import os

import harness
from harness import check, check_equal, wait_until
from worker_socket import (
    CLOSE, FINISHED, TOKEN, TOKENIZE, TRUNCATE, Connection, Refused, field, fields,
    unpacked)

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
    # Where nothing of it is known: in the same worker it would be found.
    elsewhere = site.worker("demo", ["--deterministic"])
    with Connection(worker) as c, Connection(elsewhere) as other:
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
            alone = other.open()
            other.append_ids(alone, prompt_ids(c, QUESTION) + ids[:n_had - n_prompt])
            computed, n_cached = answer(other, alone, 30)
            check(n_keep or n_cached == 0, "the first was not computed elsewhere")
            check_equal(forked, computed, f"tokens of a fork at {n_keep}")
            c.call(CLOSE, field(1, fork))
            other.call(CLOSE, field(1, alone))
        check("asked" in refusal(c.fork, session, 500), "a fork beyond the end")
    with Connection(worker) as other:
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


def long_prompt(n_tokens, first=300):
    """Tokens of the demo model that mean nothing; the same for the same arguments."""
    return [first + i * 7 % 1000 for i in range(n_tokens)]


def ask_ids(c, ids, n_predict=20):
    """(tokens, cached tokens) of a session that is opened for it and closed again."""
    session = c.open()
    c.append_ids(session, ids)
    found = answer(c, session, n_predict)
    c.call(CLOSE, field(1, session))
    return found


def computed_tokens(c):
    return c.status().get(16, 0)


def test_prefix_is_found(site):
    worker = serve(site)
    prompt = long_prompt(100)
    with Connection(worker) as c:
        first, n_cached = ask_ids(c, prompt)
        check_equal(n_cached, 0, "cached tokens of the first")
        for n, n_expected in (100, 96), (97, 96), (96, 64), (33, 32), (32, 0):
            before = computed_tokens(c)
            ids, n_cached = ask_ids(c, prompt[:n])
            check_equal(n_cached, n_expected, f"cached tokens of {n}")
            check_equal(computed_tokens(c) - before, n - n_expected, f"computed tokens of {n}")
            if n == len(prompt):
                check_equal(ids, first, "tokens behind a prefix that was found")
        # What was generated is found too: the next turn of a conversation.
        turn = prompt + first + long_prompt(5, 400)
        _, n_cached = ask_ids(c, turn)
        check_equal(n_cached, (len(prompt) + len(first) - 1) // PAGE_TOKENS * PAGE_TOKENS,
                    "cached tokens of the next turn")
        # One token that differs, and all behind it is another text.
        other = [prompt[0] + 1] + prompt[1:]
        ids, n_cached = ask_ids(c, other)
        check_equal(n_cached, 0, "cached tokens behind another first token")
        ids, n_cached = ask_ids(c, prompt[:40] + [9] + prompt[41:])
        check_equal(n_cached, PAGE_TOKENS, "cached tokens before another token")
    # Another connection of the same user; and two at once, of which one is still open.
    with Connection(worker) as a, Connection(worker) as b:
        session = a.open()
        a.append_ids(session, prompt)
        check_equal(answer(a, session, 20), (first, 96), "in another connection")
        check_equal(ask_ids(b, prompt), (first, 96), "beside an open session")


def test_prefix_gives_way(site):
    """A pool full of pages that nobody has any more refuses nobody, and loses the oldest first."""
    worker = serve(site, "--sessions", "2", "--ctx", "128")
    with Connection(worker) as c:
        n_pages = 2 * 128 // PAGE_TOKENS
        texts = [long_prompt(100, 300 + 10 * i) for i in range(n_pages)]
        answers = [ask_ids(c, text)[0] for text in texts]
        check_equal(ask_ids(c, texts[-1]), (answers[-1], 96), "the last")
        check_equal(ask_ids(c, texts[0]), (answers[0], 0), "the first")
        sessions = [c.open(), c.open()]
        for session, text in zip(sessions, (texts[3], texts[4])):
            c.append_ids(session, (text + text)[:120])
        for session in sessions:
            ids, n_cached = answer(c, session, 8)
            check_equal((len(ids), n_cached), (8, 0), "a full pool of others' pages")


def connect_as(worker, uid):
    """A connection that the kernel says is another user's."""
    os.seteuid(uid)
    try:
        return Connection(worker)
    finally:
        os.seteuid(0)


def open_to_all(site, worker):
    if os.geteuid():
        raise harness.Skip("not root: no other user to be")
    os.chmod(site.dir, 0o755)
    os.chmod(worker.socket, 0o666)


def test_prefix_is_one_users(site):
    worker = serve(site)
    open_to_all(site, worker)
    prompt = long_prompt(100)
    with Connection(worker) as root, connect_as(worker, 12345) as a, \
            connect_as(worker, 12345) as b, connect_as(worker, 12346) as other, \
            connect_as(worker, 65534) as nobody, connect_as(worker, 65534) as nobody_else:
        first = ask_ids(root, prompt)
        check_equal(first[1], 0, "root")
        check_equal(ask_ids(a, prompt), first, "another user")
        check_equal(ask_ids(b, prompt), (first[0], 96), "the same user again")
        check_equal(ask_ids(other, prompt), first, "a third user")
        # A user without a number may be anybody.
        check_equal(ask_ids(nobody, prompt), first, "a user without a number")
        check_equal(ask_ids(nobody_else, prompt), first, "another without a number")
        check_equal(ask_ids(nobody, prompt), (first[0], 96), "the same connection")


def test_prefix_is_everybodys(site):
    worker = serve(site, "--share-prefixes")
    open_to_all(site, worker)
    prompt = long_prompt(100)
    with connect_as(worker, 12345) as a, connect_as(worker, 12346) as b:
        first = ask_ids(a, prompt)
        check_equal(first[1], 0, "one user")
        check_equal(ask_ids(b, prompt), (first[0], 96), "another user")


def kv_pages(c):
    """Pages in all, of sessions, of more than one, of none but kept."""
    status = c.status()
    return [status.get(n, 0) for n in (23, 24, 25, 26)]


def test_status_counts_pages(site):
    worker = serve(site, "--sessions", "2", "--ctx", "128")
    with Connection(worker) as c:
        check_equal(kv_pages(c), [8, 0, 0, 0], "pages of an empty worker")
        session = c.open()
        c.append_ids(session, long_prompt(70))
        answer(c, session, 2)
        check_equal(kv_pages(c), [8, 3, 0, 0], "pages of a session")
        c.fork(session, 70)
        check_equal(kv_pages(c), [8, 4, 2, 0], "pages of a fork")
        rows = [fields(r) for r in c.status_rows(28)]
        check_equal([(r[1], r[3], r[4], r[5]) for r in rows],
                    [(session, 72, 71, 1), (session + 1, 70, 70, 1)], "sessions")
        check_equal(len({r[2] for r in rows}), 1, "clients")
        told = site.ctl("--json", "status", worker=worker).json()["worker"]
        check_equal(told["kv_pages"], {"total": 8, "used": 4, "shared": 2, "cached": 0}, "told")
        check_equal([(s["n_tokens"], s["state"]) for s in told["sessions"]],
                    [(72, "idle"), (70, "idle")], "told")
        text = site.ctl("status", worker=worker).out
        check("  kv pages: 4 of 8 used, 2 by several sessions; 0 kept" in text, text)
        check("72 tokens, 71 computed, idle" in text, text)
    with Connection(worker) as c:
        wait_until(lambda: kv_pages(c) == [8, 0, 0, 2], "pages of a connection that is gone")


def test_disconnect_in_a_prompt(site):
    worker = serve(site, "--chunk", "64")
    with Connection(worker) as watcher:
        for _ in range(3):
            c = Connection(worker)
            session = c.open()
            c.append_ids(session, long_prompt(500))
            c.generate(session, 100, ignore_eos=True)
            c.close()
            wait_until(lambda: watcher.n_sessions() == 0, "sessions of a closed connection",
                       harness.START_SECONDS)
            check_equal(kv_pages(watcher)[1], 0, "pages of a closed connection")
        check_equal(len(ask_ids(watcher, long_prompt(10))[0]), 20, "tokens for who comes after")


def test_priority(site):
    """All answers are what they are alone, whoever goes first; a wrong priority is refused."""
    worker = serve(site, "--chunk", "64", "--step-tokens", "16")
    prompts = [long_prompt(150, 300 + i) for i in range(4)]
    with Connection(worker) as c:
        sessions = [c.open() for _ in prompts]
        for session, prompt in zip(sessions, prompts):
            c.append_ids(session, prompt)
        started = [c.generate_at(s, 12, p) for s, p in zip(sessions, (-100, 0, 100, 5))]
        streams = {id_: [] for id_ in started}
        left = set(started)
        while left:
            id_, kind, reply = c.receive()
            if kind == TOKEN:
                streams[id_].append(reply.get(1, 0))
            else:
                check_equal(kind, FINISHED, f"reply to {id_}")
                left.remove(id_)
        for priority in 101, -101, 1 << 31:
            try:
                c.finish(c.generate_at(sessions[0], 1, priority))
                raise harness.Failure(f"priority {priority} was taken")
            except Refused as e:
                check("priority: expected -100 to 100" in str(e), str(e))
    elsewhere = site.worker("demo", ["--deterministic"])
    with Connection(elsewhere) as c:
        for id_, prompt in zip(started, prompts):
            check_equal(ask_ids(c, prompt, 12)[0], streams[id_], "tokens alone")


def test_quota_of_a_connection(site):
    worker = serve(site, "--client-sessions", "2")
    with Connection(worker) as a, Connection(worker) as b:
        first = a.open()
        a.open()
        check_equal(refusal(a.open), "sessions: this connection has 2, as many as one may have",
                    "a third")
        b.open()
        a.call(CLOSE, field(1, first))
        a.open()


def test_idle_sessions_end(site):
    worker = serve(site, "--session-ttl", "1")
    with Connection(worker) as c, Connection(worker) as watcher:
        session = c.open()
        c.append_ids(session, long_prompt(40))
        answer(c, session, 2)
        wait_until(lambda: watcher.n_sessions() == 0, "the end of an idle session")
        check("or idle for longer than --session-ttl" in refusal(c.append_ids, session, [1]),
              "an append that comes late")
        # Nothing more is to be done, and nothing is: the worker goes on serving.
        check_equal(ask_ids(c, long_prompt(40), 2)[1], 32, "cached tokens of the one that ended")


if __name__ == "__main__":
    harness.run(globals())
