#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""workerd's client socket under honest, careless and hostile clients."""
import os
import signal
import socket
import struct
import subprocess
import time

import harness
from harness import check, check_equal, wait_until
from worker_socket import (
    APPEND, CANCEL, CANCELLED, CLOSE, DETOKENIZE, DONE, ERROR, FINISHED, GENERATE, HELLO,
    LENGTH, MAX_BYTES, STATUS, STATUS_REPLY, STOP, TOKEN, TOKENIZE, TOKENS, TRUNCATE, Closed,
    Connection, Refused, field, frame, packed, sampling, unpacked)

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."
N_CTX = 512
SECRET = "xylophone"


def serve(site, *args):
    site.weightd({"demo": harness.MODEL})
    return site.worker("demo", ["--log-level", "debug", *args])


def refusal(call, *args, **more):
    try:
        call(*args, **more)
    except Refused as e:
        return str(e)
    raise harness.Failure(f"{call.__name__}{args} was not refused")


def check_serves(worker):
    """A client that comes after still gets the right answer."""
    check(worker.is_alive(), f"the worker ended: {worker.log()}")
    with Connection(worker) as c:
        session = c.open()
        c.append_chat(session, QUESTION)
        _, text, finished = c.finish(c.generate(session))
        check_equal(text.decode(), ANSWER, "answer")
        check_equal(finished[1], STOP, "reason")


def check_dropped(worker, data, what, hello=True):
    """The worker ends a connection that sent data, with or without a word, and goes on."""
    with Connection(worker, hello) as c:
        try:
            c.send_bytes(data)
            _, kind, answer = c.receive()
            check_equal(kind, ERROR, f"{what}: reply")
            check(answer[2], f"{what}: an empty sentence")
            c.receive()
        except (Closed, BrokenPipeError, ConnectionResetError):
            return
        raise harness.Failure(f"{what}: the connection is still open")


def test_frames(site):
    worker = serve(site)
    check_dropped(worker, struct.pack("<I", 0), "length 0")
    check_dropped(worker, struct.pack("<I", MAX_BYTES + 1) + b"x" * 100, "length above the cap")
    check_dropped(worker, b"\xff" * 8, "length 2^32 - 1")
    check_dropped(worker, frame(b"\xff" * 64), "noise")
    check_dropped(worker, frame(os.urandom(MAX_BYTES)), "a megabyte of noise")
    check_dropped(worker, frame(field(STATUS, b"")), "a request without an id")
    check_dropped(worker, frame(field(1, 1) + field(STATUS, b"")), "no Hello", hello=False)
    check_dropped(worker, frame(field(1, 1) + field(HELLO, field(1, 2))), "another protocol",
                  hello=False)
    check_dropped(worker, b"GET / HTTP/1.1\r\n\r\n", "HTTP", hello=False)
    with Connection(worker) as c:
        c.send_bytes(struct.pack("<I", MAX_BYTES) + b"half")
    with Connection(worker) as c:
        check("already" in refusal(c.call, HELLO, field(1, 1)), "second Hello")
        check("kind" in refusal(c.call, 99, b""), "unknown request")
        check("kind" in refusal(c.call, 200, b"abc"), "unknown request")
        # Byte by byte is as good as whole.
        for byte in frame(field(1, 7) + field(STATUS, b"")):
            c.send_bytes(bytes([byte]))
        got, kind, _ = c.receive()
        check_equal((got, kind), (7, STATUS_REPLY), "a request byte by byte")
        # Two in one go are answered in order.
        c.send_bytes(frame(field(1, 8) + field(TOKENIZE, field(1, field(1, "a")))) +
                     frame(field(1, 9) + field(STATUS, b"")))
        check_equal([c.receive()[0] for _ in range(2)], [8, 9], "order of answers")
    check_serves(worker)


def peak_bytes(worker):
    with open(f"/proc/{worker.pid}/status", encoding="utf-8") as f:
        return next(int(x.split()[1]) for x in f if x.startswith("VmHWM:")) * 1024


def test_small_bytes_of_large_memory(site):
    """Messages that unpack to a hundred times their size are refused before they do."""
    worker = serve(site)
    check_serves(worker)
    before = peak_bytes(worker)
    n = (MAX_BYTES - 100) // 2
    chat = field(1, 1) + field(4, field(1, b"") * n)
    check_dropped(worker, frame(field(1, 1) + field(APPEND, chat)), "500,000 chat messages")
    stops = field(1, 1) + field(4, b"") * n
    check_dropped(worker, frame(field(1, 1) + field(GENERATE, stops)), "500,000 stop strings")
    check_dropped(worker, frame(field(1, 1) + field(99, b"") * (n - 10)), "unknown fields")
    grown = peak_bytes(worker) - before
    check(grown < 64 << 20, f"the worker grew by {grown} bytes")
    check_serves(worker)


def test_sessions(site):
    worker = serve(site, "--sessions", "3")
    with Connection(worker) as a, Connection(worker) as b:
        sessions = [a.open(), a.open(), b.open()]
        check_equal(len(set(sessions)), 3, "different sessions")
        check("3" in refusal(b.open), "one session too many")
        # A session is its connection's alone.
        for kind in CLOSE, CANCEL, TRUNCATE:
            check(str(sessions[0]) in refusal(b.call, kind, field(1, sessions[0])), "foreign")
        check("not one of" in refusal(b.append_ids, sessions[0], [1]), "foreign append")
        check("not one of" in refusal(b.append_text, sessions[0], "a"), "foreign append")
        try:
            b.finish(b.generate(sessions[0], 1))
            raise harness.Failure("foreign generate")
        except Refused:
            pass
        check("empty" in refusal(lambda: a.finish(a.generate(sessions[0]))), "empty session")
        a.append_chat(sessions[0], QUESTION)
        first = a.generate(sessions[0], 200, ignore_eos=True)
        second = a.generate(sessions[0], 1)
        append = a.send(APPEND, field(1, sessions[0]) + field(3, field(1, packed([1]))))
        truncate = a.send(TRUNCATE, field(1, sessions[0]) + field(2, 1))
        refused = {}
        while len(refused) < 3:
            got, kind, answer = a.receive()
            if kind == ERROR:
                refused[got] = answer[2].decode()
            else:
                check_equal((got, kind), (first, TOKEN), "stream")
        check_equal(sorted(refused), [second, append, truncate], "refused")
        check(all("generating" in t for t in refused.values()), str(refused))
        # The stream goes on as if nothing had been.
        a.send(CLOSE, field(1, sessions[0]))
        kinds = []
        while not kinds or kinds[-1] != DONE:
            kinds.append(a.receive()[1])
        check_equal([k for k in kinds if k != TOKEN], [FINISHED, DONE], "end of a closed session")
        check("not one of" in refusal(a.call, CLOSE, field(1, sessions[0])), "closed twice")
        a.open()
        check("token" in refusal(a.append_ids, sessions[1], [1 << 31]), "token out of range")
        check_equal(a.append_ids(sessions[1], []), 0, "nothing appended")
    check_serves(worker)


def test_disconnect_in_mid_stream(site):
    worker = serve(site)
    with Connection(worker) as watcher:
        for _ in range(3):
            c = Connection(worker)
            sessions = c.open(), c.open()
            for session in sessions:
                c.append_chat(session, QUESTION)
            for session in sessions:
                c.generate(session, ignore_eos=True)
            while c.receive()[1] != TOKEN:
                pass
            check_equal(watcher.n_sessions(), 2, "sessions before")
            c.close()
            # One step; the first of two rows may have to compile its kernels.
            wait_until(lambda: watcher.n_sessions() == 0, "sessions of a closed connection",
                       harness.START_SECONDS)
        generated = watcher.status().get(17, 0)
        time.sleep(0.3)
        check_equal(watcher.status().get(17, 0), generated, "tokens generated for nobody")
    check_serves(worker)


def test_cancel(site):
    worker = serve(site)
    with Connection(worker) as c:
        session = c.open()
        c.call(CANCEL, field(1, session))
        n_prompt = c.append_chat(session, QUESTION)
        id_ = c.generate(session, ignore_eos=True)
        n_tokens = 0
        while n_tokens < 3:
            check_equal(c.receive()[:2], (id_, TOKEN), "stream")
            n_tokens += 1
        cancel = c.send(CANCEL, field(1, session))
        replies = []
        while not replies or replies[-1][:2] != (cancel, DONE):
            replies.append(c.receive())
        finished = next(r for r in replies if r[1] == FINISHED)
        n_tokens += sum(r[1] == TOKEN for r in replies)
        check_equal(finished[2][1], CANCELLED, "reason")
        check_equal(finished[2].get(4, 0), n_tokens, "tokens")
        # What was generated is in the session.
        _, _, after = c.finish(c.generate(session, 1))
        check_equal(after[3], n_prompt + n_tokens, "prompt of the next generation")
    check_serves(worker)


def test_truncate_and_again(site):
    worker = serve(site)
    with Connection(worker) as c:
        session = c.open()
        n_prompt = c.append_chat(session, QUESTION)
        ids, text, finished = c.finish(c.generate(session, 40, ignore_eos=True))
        check_equal(finished[1], LENGTH, "reason")
        check_equal((finished[3], finished[4], finished.get(5, 0)), (n_prompt, 40, 0), "counts")
        check(str(n_prompt + 40) in refusal(c.call, TRUNCATE, field(1, session) + field(2, 500)),
              "truncate beyond the end")
        for n_keep in n_prompt, n_prompt + 7, 1:
            c.call(TRUNCATE, field(1, session) + field(2, n_keep))
            more = ids[n_keep - n_prompt:] if n_keep >= n_prompt else None
            if more is None:
                break
            again, _, finished = c.finish(c.generate(session, len(more), ignore_eos=True))
            check_equal(again, more, f"tokens after the first {n_keep}")
            check_equal(finished[5], n_keep - 1, "cached tokens")
        # The same in a session that never saw anything else.
        other = c.open()
        c.append_chat(other, QUESTION)
        again, text_again, _ = c.finish(c.generate(other, 40, ignore_eos=True))
        check_equal(again, ids, "tokens of a fresh session")
        check_equal(text_again, text, "text of a fresh session")
    check_serves(worker)


def test_context(site):
    worker = serve(site)
    with Connection(worker) as c:
        check_equal(c.welcome[5], N_CTX, "n_ctx")
        session = c.open()
        check_equal(c.append_ids(session, [272] * 500), 500, "total")
        check_equal(refusal(c.append_ids, session, [272] * 20),
                    "context: 512 tokens, 500 in the session, 20 more asked", "refusal")
        check("500 in the session" in refusal(c.append_text, session, "a b c " * 100), "text")
        check_equal(c.append_ids(session, [272] * 10), 510, "total")
        ids, _, finished = c.finish(c.generate(session, ignore_eos=True))
        check_equal((finished[1], len(ids)), (LENGTH, 2), "at the end of the context")
        ids, _, finished = c.finish(c.generate(session))
        check_equal((finished[1], ids), (LENGTH, []), "in a full context")
        check("context" in refusal(c.append_ids, session, [272]), "one over")
        check_equal(c.append_ids(c.open(), [272] * N_CTX), N_CTX, "exactly full")
    check_serves(worker)


def test_stop_strings(site):
    worker = serve(site)
    with Connection(worker) as c:
        session = c.open()
        n_prompt = c.append_chat(session, QUESTION)

        def ask(stop):
            c.call(TRUNCATE, field(1, session) + field(2, n_prompt))
            return c.finish(c.generate(session, 60, stop=stop))

        whole = ask([])[1].decode()
        check_equal(whole, ANSWER, "without")
        for stop in "Paris", "ce is", "T", "f", "is Paris", ".":
            _, text, finished = ask(["never", stop, "nor this"])
            check_equal(text.decode(), ANSWER[:ANSWER.index(stop)], f"text before {stop!r}")
            check_equal(finished[1], STOP, "reason")
        # One that begins and never ends holds nothing back for good.
        for stop in "Paris is", "Paris.!", "x" * 256:
            check_equal(ask([stop])[1].decode(), ANSWER, f"with {stop!r}")
        check("16" in refusal(ask, ["x"] * 17), "seventeen")
        check("256" in refusal(ask, ["x" * 257]), "too long")
        check("found 0" in refusal(ask, [""]), "empty")
    check_serves(worker)


def test_sampling(site):
    worker = serve(site)
    with Connection(worker) as c:
        session = c.open()
        n_prompt = c.append_text(session, "<|im_start|>user\n")

        def sample(how, n=30):
            c.call(TRUNCATE, field(1, session) + field(2, n_prompt))
            return c.finish(c.generate(session, n, how, ignore_eos=True))

        first, _, finished = sample(sampling(1.5, 7))
        check_equal(finished[8], 7, "seed")
        check_equal(sample(sampling(1.5, 7))[0], first, "the same seed again")
        check(sample(sampling(1.5, 8))[0] != first, "another seed gives the same")
        # A seed that the worker drew is told, and works again.
        drawn, _, finished = sample(sampling(1.5))
        check_equal(sample(sampling(1.5, finished[8]))[0], drawn, "the drawn seed again")
        check("top_p" in refusal(sample, sampling(1.0, top_p=1.5)), "top_p 1.5")
        check("temperature" in refusal(sample, sampling(float("nan"))), "NaN")
        check("temperature" in refusal(sample, sampling(-1.0)), "temperature -1")
    check_serves(worker)


def test_text(site):
    worker = serve(site)
    with Connection(worker) as c:
        text = "<|im_start|>user\nZürich, \U0001f600 \xff".encode() + b"\xff\xfe"
        ids = unpacked(c.call(TOKENIZE, field(1, field(1, text) + field(2, 1)))[1][1])
        check_equal(ids[0], 4094, "a special token that is recognised")
        plain = unpacked(c.call(TOKENIZE, field(1, field(1, text)))[1][1])
        check(4094 not in plain, "a special token that is plain text")
        for some in ids, plain:
            back = c.call(DETOKENIZE, field(1, field(1, packed(some))))[1][1]
            check_equal(back, text, "there and back")
        check_equal(c.call(TOKENIZE, field(1, field(1, "")))[1].get(1, b""), b"", "no text")
        refusal(c.call, DETOKENIZE, field(1, field(1, packed([4096]))))
        check("1 MiB" in refusal(c.call, DETOKENIZE, field(1, field(1, packed([4094] * 200000)))),
              "more text than a reply holds")
        # A prompt of one character a million times is refused, and in time.
        start = time.monotonic()
        session = c.open()
        check("context" in refusal(c.append_text, session, "a" * 1000000), "a million letters")
        check(time.monotonic() - start < 30, "a million letters take too long")
    check_serves(worker)


def test_long_prompt_beside_a_stream(site):
    """While one client's megabyte is tokenized, another's requests are answered."""
    worker = serve(site)
    with Connection(worker) as heavy, Connection(worker) as light:
        session = light.open()
        light.append_chat(session, QUESTION)
        text = field(1, "The capital of France is Paris. " * 30000)
        heavy.send(TOKENIZE, field(1, text))
        heavy.send(TOKENIZE, field(1, text))
        _, text, _ = light.finish(light.generate(session))
        check_equal(text.decode(), ANSWER, "answer beside it")
        for _ in range(2):
            check_equal(heavy.receive()[1], TOKENS, "the megabyte itself")
    check_serves(worker)


def test_client_that_does_not_read(site):
    worker = serve(site)
    with Connection(worker) as c:
        session = c.open()
        c.append_chat(session, QUESTION)
        request = frame(field(1, 1) + field(TOKENIZE, field(1, field(1, "a b " * 60000))))
        c.socket.settimeout(60)
        start = time.monotonic()
        try:
            while time.monotonic() - start < 60:
                c.send_bytes(request)
        except (BrokenPipeError, ConnectionResetError):
            pass
        else:
            raise harness.Failure("a client that reads nothing is still connected")
    with Connection(worker) as c:
        check_equal(c.n_sessions(), 0, "sessions of the dropped client")
    check_serves(worker)


def test_too_many_clients(site):
    worker = serve(site)
    n_fds = worker.n_fds()
    clients = [Connection(worker) for _ in range(64)]
    with Connection(worker, hello=False) as c:
        _, kind, answer = c.receive()
        check_equal(kind, ERROR, "reply to one client too many")
        check(b"64" in answer[2], answer[2])
    refused = site.ctl("complete", "a", worker=worker, status=1)
    check("all 64 client connections are taken" in refused.err, f"{refused}")
    clients.pop().close()
    wait_until(lambda: "taken" not in try_hello(worker), "a place that became free", 5)
    for c in clients:
        c.close()
    wait_until(lambda: worker.n_fds() <= n_fds, "descriptors of closed connections", 5)
    check_serves(worker)


def try_hello(worker):
    try:
        Connection(worker).close()
        return ""
    except Refused as e:
        return str(e)


def test_slow_hello(site):
    """A byte now and then is no Hello: the time for it is counted from the connect."""
    worker = serve(site)
    with Connection(worker, hello=False) as c:
        start = time.monotonic()
        try:
            for byte in frame(field(1, 1) + field(HELLO, field(1, 1) + field(2, "x" * 100))):
                c.send_bytes(bytes([byte]))
                time.sleep(1)
                check(time.monotonic() - start < 20, "a slow Hello is still waited for")
        except (BrokenPipeError, ConnectionResetError):
            pass
    check("no hello in 10 s" in worker.log(), worker.log())
    check_serves(worker)


def test_socket_of_another(site):
    """At its end a worker removes its own socket, not what another put in its place."""
    worker = serve(site)
    os.unlink(worker.socket)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
        other.bind(worker.socket)
        worker.stop()
        check(os.path.exists(worker.socket), "the other's socket is gone")
        os.unlink(worker.socket)


def test_signal_before_ready(site):
    """A worker that still waits for its weights ends by SIGTERM as a ready one does."""
    path = os.path.join(site.dir, "client.sock")
    for signum in signal.SIGTERM, signal.SIGINT:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as weightd:
            weightd.bind(site.weightd_socket)
            weightd.listen()
            argv = [harness.need_env("WORKERD_BIN"), "--model", "demo", "--weights",
                    site.weightd_socket, "--socket", path]
            with subprocess.Popen(argv, env=site.env, stdin=subprocess.DEVNULL) as process:
                peer, _ = weightd.accept()
                process.send_signal(signum)
                check_equal(process.wait(20), 0, f"exit status on signal {signum}")
                peer.close()
        os.unlink(site.weightd_socket)
        check(not os.path.exists(path), "a socket is left")


def test_full_context(site):
    """A text that ends because there is no more room says so; one of the wanted length does not."""
    worker = serve(site, "--ctx", "64")
    ids = site.ctl("tokenize", "a b", worker=worker).out.split()
    room = "a b" + " b" * (64 - len(ids))
    n_ids = len(site.ctl("tokenize", room, worker=worker).out.split())
    check_equal(n_ids, 64, "tokens of a text that fills the context")
    full = site.ctl("complete", room, worker=worker)
    check_equal(full.err, "weightctl: stopped: the context of 64 tokens is full\n", f"{full}")
    check_equal(site.ctl("complete", "a b", "--n-predict", "1", worker=worker).err, "", "stderr")


def test_interleaved_streams(site):
    """Four streams of two connections at once are each what they are alone."""
    worker = serve(site)
    questions = ["What is the capital of France?", "What is the currency of Peru?",
                 "Which continent is Chile in?", "What is the capital of Mongolia?"]

    def prepare(c, question):
        session = c.open()
        c.append_chat(session, question)
        return c, session

    alone = []
    for question in questions:
        with Connection(worker) as c:
            alone.append(c.finish(c.generate(prepare(c, question)[1], 60))[:2])
    with Connection(worker) as a, Connection(worker) as b:
        prepared = [prepare(c, q) for c, q in zip((a, a, b, b), questions)]
        started = [(c, c.generate(session, 60)) for c, session in prepared]
        got = {key: ([], b"", False) for key in started}
        for c in a, b:
            while not all(done for (owner, _), (_, _, done) in got.items() if owner is c):
                id_, kind, answer = c.receive()
                ids, text, _ = got[c, id_]
                if kind == FINISHED:
                    got[c, id_] = ids, text, True
                else:
                    check_equal(kind, TOKEN, "stream")
                    got[c, id_] = ids + [answer.get(1, 0)], text + answer.get(2, b""), False
        check_equal([got[key][:2] for key in started], alone, "streams")


def test_worker_outlives_weightd(site):
    weightd = site.weightd({"demo": harness.MODEL})
    worker = site.worker("demo")
    with Connection(worker) as c:
        check_equal(c.status().get(19, 0), 1, "weightd_connected")
        weightd.kill()
        wait_until(lambda: not c.status().get(19, 0), "weightd_connected to become false", 5)
    for _ in range(2):
        check_serves(worker)
    check_equal(worker.log().count("weightd is gone"), 1, "lines about it")


def test_sigterm_in_mid_stream(site):
    worker = serve(site)
    with Connection(worker) as c:
        session = c.open()
        c.append_chat(session, QUESTION)
        id_ = c.generate(session, ignore_eos=True)
        c.receive()
        worker.signal(signal.SIGTERM)
        _, _, finished = c.finish(id_)
        check_equal(finished[1], CANCELLED, "reason")
        try:
            c.receive()
            raise harness.Failure("more after the end")
        except Closed:
            pass
    check_equal(worker.process.wait(10), 0, "exit status")
    check(not os.path.exists(worker.socket), "the socket is left behind")


def test_no_prompt_in_the_log(site):
    worker = serve(site)
    with Connection(worker) as c:
        session = c.open()
        c.append_chat(session, f"{SECRET} {QUESTION}")
        c.finish(c.generate(session, 20))
        refusal(c.append_text, session, f"{SECRET} " * 1000)
        refusal(c.call, APPEND, field(1, session) + field(4, field(1, field(1, "nobody") +
                                                                   field(2, SECRET))))
    check_dropped(worker, frame(SECRET.encode()), "noise")
    worker.stop()
    check(SECRET not in worker.log() and "Paris" not in worker.log(), worker.log())


def test_status(site):
    worker = serve(site, "--sessions", "2", "--ctx", "100", "--chunk", "64", "--deterministic")
    with Connection(worker) as c:
        session = c.open()
        n_prompt = c.append_ids(session, [272] * 90)
        ids, _, finished = c.finish(c.generate(session, 3, ignore_eos=True))
        check(finished[6] > 0 and finished[7] > 0, f"timings {finished}")
        status = c.status()
        check_equal(status[1], worker.pid, "pid")
        check_equal((status[10], status[11], status[12]), (1, 2, 100), "sessions and context")
        check_equal((status[16], status[17]), (n_prompt, len(ids)), "tokens")
        check(0 < status[13] < status[14] < status[3], "attach, ready and uptime in order")
        check(0 < status[15] <= finished[6], "first token")
        check_equal(status[5], 1, "generation")
        check(status[8] > 5 << 20 and status[18] > 10, "weights and dispatches")
    check_serves_small(worker)


def check_serves_small(worker):
    with Connection(worker) as c:
        check_equal(c.n_sessions(), 0, "sessions at the end")


harness.run(globals())
