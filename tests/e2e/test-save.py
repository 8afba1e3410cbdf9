#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sessions in files: over the end of a worker, into another one, and files that are not to be used."""
import os
import subprocess

import harness
from harness import check, check_equal, wait_until
from worker_socket import APPEND, CLOSE, ERROR, SAVE, TRUNCATE, Connection, Refused, field

HEADER_BYTES = 192  # workerd/snapshot.h
QUESTION = "What is the capital of France?"


def sessions_dir(site, name="sessions"):
    path = os.path.join(site.dir, name)
    if not os.path.isdir(path):
        os.mkdir(path, 0o700)
    return path


def serve(site, *args):
    return site.worker("demo", ["--deterministic", "--sessions-dir", sessions_dir(site), *args])


def path_of(site, name):
    return os.path.join(sessions_dir(site), f"uid-{os.geteuid()}", name)


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


def start(c, name):
    """A session of 60 tokens and more behind the question, saved: (tokens in it, what follows)."""
    session = c.open()
    n_prompt = c.append_chat(session, QUESTION)
    answer(c, session, 60)
    saved = c.save(session, name)
    n_tokens = n_prompt + 60
    check_equal((saved[1], saved[2]), (n_tokens, n_tokens - 1), "saved")
    return n_tokens, answer(c, session, 40)[0]


def test_over_the_end_of_a_worker(site):
    site.weightd({"demo": harness.MODEL})
    worker = serve(site)
    with Connection(worker) as c:
        n_tokens, expected = start(c, "chat")
    check_equal(os.stat(path_of(site, "chat")).st_mode & 0o7777, 0o600, "mode")
    worker.stop()
    for args in (), ("--sessions", "1", "--chunk", "64"):
        again = serve(site, *args)
        with Connection(again) as c:
            restored = c.restore("chat")
            check_equal((restored[2], restored[3]), (n_tokens, n_tokens - 1), "restored")
            check_equal(restored.get(4, b""), b"", "a reason")
            ids, n_cached = answer(c, restored[1], 40)
            check_equal(n_cached, n_tokens - 1, "cached tokens")
            check_equal(ids, expected, "what follows")
            # What is gone on with is a session as any other.
            c.call(TRUNCATE, field(1, restored[1]) + field(2, n_tokens))
            check_equal(answer(c, restored[1], 40)[0], expected, "what follows, once more")
            fresh = c.save(restored[1], "longer")
            check_equal(fresh[1], n_tokens + 40, "saved again")
        again.stop()


def test_beside_others(site):
    """A file goes into a worker that is busy, and two sessions come of one file."""
    site.weightd({"demo": harness.MODEL})
    worker = serve(site)
    with Connection(worker) as c, Connection(worker) as other:
        _, expected = start(c, "chat")
        stream = other.open()
        other.append_chat(stream, QUESTION)
        id_ = other.generate(stream, 100, ignore_eos=True)
        sessions = [c.restore("chat")[1], c.restore("chat")[1]]
        for session in sessions:
            check_equal(answer(c, session, 40)[0], expected, "what follows")
        check_equal(len(other.finish(id_)[0]), 100, "tokens of the stream beside it")
        check("all 4 are open" in refusal(lambda: [c.restore("chat"), c.restore("chat")]), "full")


def test_saved_pages_are_nobody_elses(site):
    """What came from a file is not found by who begins the same: whoever wrote it may have lied."""
    site.weightd({"demo": harness.MODEL})
    worker = serve(site)
    with Connection(worker) as c:
        session = c.open()
        c.append_ids(session, list(range(300, 400)))
        expected = answer(c, session, 20)[0]
        c.save(session, "text")
    worker.stop()
    worker = serve(site)
    with Connection(worker) as c:
        restored = c.restore("text")[1]
        check_equal(answer(c, restored, 20)[1], 119, "cached tokens of the file's session")
        session = c.open()
        c.append_ids(session, list(range(300, 400)))
        check_equal(answer(c, session, 20), (expected, 0), "who begins the same")


def damage(path, at, n_bytes=1):
    with open(path, "r+b") as f:
        f.seek(at)
        data = bytes(b ^ 0x40 for b in f.read(n_bytes))
        f.seek(at)
        f.write(data)


def test_refusals(site):
    site.weightd({"demo": harness.MODEL})
    worker = serve(site)
    with Connection(worker) as c:
        n_tokens, expected = start(c, "chat")
        path = path_of(site, "chat")
        with open(path, "rb") as f:
            whole = f.read()
        n_before = c.n_sessions()
        n_tokens_at = HEADER_BYTES
        n_pages_at = HEADER_BYTES + (4 * n_tokens + 31) // 32 * 32
        for at in (0, 9, 20, 60, 170, n_tokens_at, n_tokens_at + 4 * n_tokens - 1, n_pages_at,
                   n_pages_at + 12345, len(whole) - 33, len(whole) - 1):
            damage(path, at)
            text = refusal(c.restore, "chat")
            check("session file" in text or "tokens[" in text, f"byte {at}: {text}")
            damage(path, at)
        for n_bytes in (0, 1, 100, HEADER_BYTES, n_pages_at, len(whole) - 1):
            os.truncate(path, n_bytes)
            check("session file" in refusal(c.restore, "chat"), f"{n_bytes} bytes")
            with open(path, "wb") as f:
                f.write(whole)
        with open(path, "ab") as f:
            f.write(b"x")
        check("bytes that it has" in refusal(c.restore, "chat"), "one byte too many")
        os.truncate(path, len(whole))
        for name in "", ".", "..", "a/b", "../chat", ".chat", "a" * 65:
            check("expected a name" in refusal(c.restore, name), name)
            check("expected a name" in refusal(c.save, 1, name), name)
        check_equal(refusal(c.restore, "none"), "session file: none: there is none", "no file")
        check("not one of" in refusal(c.save, 99, "chat"), "a session that is not there")
        busy = c.open()
        c.append_chat(busy, QUESTION)
        id_ = c.generate(busy, 200, ignore_eos=True)
        check("generating" in refuse_beside(c, busy), "a session that generates")
        c.finish(id_)
        c.call(CLOSE, field(1, busy))
        check_equal(c.n_sessions(), n_before, "sessions that refusals left")
        # None of it did harm.
        check_equal(answer(c, c.restore("chat")[1], 40)[0], expected, "what follows")
    plain = site.worker("demo")
    with Connection(plain) as c:
        check("--sessions-dir" in refusal(c.save, c.open(), "chat"), "a worker without one")
        check("--sessions-dir" in refusal(c.restore, "chat"), "a worker without one")


def refuse_beside(c, session):
    """The refusal of a save while tokens of the same connection come."""
    wanted = c.send(SAVE, field(1, session) + field(2, "busy"))
    while True:
        got, kind, reply = c.receive()
        if got == wanted:
            check_equal(kind, ERROR, "reply to a save")
            return reply[2].decode()


def make_model(site, name, *args):
    path = os.path.join(site.dir, name + ".gguf")
    subprocess.run([harness.need_env("MKMODEL_BIN"), path, *args], check=True, timeout=120)
    return path


def test_files_of_others(site):
    """Another model's file, and one whose keys and values are of no use."""
    site.weightd({"demo": harness.MODEL, "other": make_model(site, "other", "--seed", "1")})
    worker = serve(site)
    with Connection(worker) as c:
        n_tokens, expected = start(c, "chat")
    other = site.worker("other", ["--sessions-dir", sessions_dir(site)])
    with Connection(other) as c:
        check("another model" in refusal(c.restore, "chat"), "another model's file")
        check_equal(c.n_sessions(), 0, "sessions")
    other.stop()
    # The same tokens in keys and values of another kind come back, and are computed again.
    packed = serve(site, "--kv-type", "q8_0")
    with Connection(packed) as c:
        restored = c.restore("chat")
        check_equal((restored[2], restored.get(3, 0)), (n_tokens, 0), "tokens alone")
        check(b"another way" in restored[4], restored[4])
        ids, n_cached = answer(c, restored[1], 40)
        check_equal(n_cached, 0, "cached tokens")
        check_equal(len(ids), 40, "tokens")
        n_q8_0 = c.save(restored[1], "packed")
        check(n_q8_0[3] < 3 << 20, f"{n_q8_0[3]} bytes")
        again = c.restore("packed")
        check_equal(again[3], n_tokens + 39, "keys and values in q8_0")
    with Connection(worker) as c:
        restored = c.restore("packed")
        check_equal((restored[2], restored.get(3, 0)), (n_tokens + 40, 0), "tokens alone")
        # Less context than the file has tokens.
    small = serve(site, "--ctx", "64")
    with Connection(small) as c:
        check("context: 64 tokens" in refusal(c.restore, "chat"), "a smaller context")


def test_other_weights(site):
    """The header says that other weights made the keys and values: its tokens are used alone."""
    site.weightd({"demo": harness.MODEL})
    worker = serve(site)
    with Connection(worker) as c:
        n_tokens, expected = start(c, "chat")
        path = path_of(site, "chat")
        with open(path, "rb") as f:
            flags = f.read(45)[44]
        check(flags & 3, "neither the weights nor their file have an identity")
        there = [at for flag, at in ((1, "56"), (2, "120")) if flags & flag]
        subprocess.run([harness.need_env("RESEAL_BIN"), path, *there], check=True, timeout=60)
        restored = c.restore("chat")
        check_equal((restored[2], restored.get(3, 0)), (n_tokens, 0), "tokens alone")
        check(b"not known to be the same" in restored[4], restored[4])
        check_equal(answer(c, restored[1], 40)[0], expected, "what follows")
        # A token that the model does not have, in a file that is whole.
        subprocess.run([harness.need_env("RESEAL_BIN"), path, str(HEADER_BYTES + 3)], check=True,
                       timeout=60)
        check("tokens[0]" in refusal(c.restore, "chat"), "a token out of range")


def test_weightctl(site):
    """--save and --load: one text in two runs is the text of one; a conversation goes on."""
    site.weightd({"demo": harness.MODEL})
    worker = serve(site)
    whole = site.ctl("complete", "The capital of", "--n-predict", "8", "--json",
                     worker=worker).json()
    site.ctl("complete", "The capital of", "--n-predict", "3", "--save", "half", worker=worker)
    rest = site.ctl("complete", "", "--n-predict", "5", "--load", "half", "--json",
                    worker=worker).json()
    check_equal(rest["tokens"], whole["tokens"][3:], "the second half")
    check_equal(rest["cached_tokens"], rest["prompt_tokens"] - 1, "cached tokens")
    # What a chat sends for a second turn is what is in the session of the first.
    site.ctl("ask", QUESTION, "--save", "talk", worker=worker)
    second = site.ctl("ask", "Which continent is Chile in?", "--load", "talk", "--json",
                      worker=worker).json()
    with Connection(worker) as c:
        session = c.open()
        messages = ("user", QUESTION), ("assistant", "The capital of France is Paris."), \
            ("user", "Which continent is Chile in?")
        chat = b"".join(field(1, field(1, r) + field(2, t)) for r, t in messages) + field(2, 1)
        n_total = c.call(APPEND, field(1, session) + field(4, chat))[1][2]
        check_equal(second["prompt_tokens"], n_total, "tokens of the conversation")
        ids, _, _ = c.finish(c.generate(session))
        check_equal(second["tokens"], ids, "the second answer")
    refused = site.ctl("ask", "x", "--load", "none", worker=worker, status=1)
    check_equal(refused.err, "weightctl: session file: none: there is none\n", "refusal")
    packed = serve(site, "--kv-type", "q8_0")
    told = site.ctl("ask", "x", "--n-predict", "1", "--load", "talk", worker=packed)
    check("computed again" in told.err, told.err)


def test_parked(site):
    """A worker that has given its memory back saves tokens, and takes files when asked."""
    site.weightd({"demo": harness.MODEL})
    worker = serve(site, "--park-after", "1")
    with Connection(worker) as c:
        n_tokens, expected = start(c, "chat")
        session = c.restore("chat")[1]
        wait_until(lambda: c.status().get(30, 0), "parked")
        saved = c.save(session, "parked")
        check_equal((saved[1], saved.get(2, 0)), (n_tokens, 0), "saved of a parked worker")
        check(c.status().get(30, 0), "a save of tokens alone took the memory back")
        restored = c.restore("chat")
        check_equal(restored[3], n_tokens - 1, "restored by a parked worker")
        tokens = c.restore("parked")
        check_equal((tokens[2], tokens.get(3, 0), tokens.get(4, b"")), (n_tokens, 0, b""),
                    "tokens alone")
        check_equal(answer(c, tokens[1], 40)[0], expected, "what follows tokens alone")
        check_equal(answer(c, restored[1], 40)[0], expected, "what follows")


if __name__ == "__main__":
    harness.run(globals())
