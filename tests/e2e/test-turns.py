#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who waits for whom in a worker, counted in steps: by the order of tokens, and by the worker's
counters. Whoever streams has a token of each step."""
import os
import subprocess

import harness
from harness import check, check_equal
from worker_socket import (
    APPEND, CLOSE, FINISHED, OPEN, STATUS, TOKEN, Connection, field, fields, packed, repeated)

N_CTX = 4096
N_LONG = 3000
CHUNK = 64


def serve(site, *args):
    """A model with room for long prompts; what it says means nothing."""
    path = os.path.join(site.dir, "long.gguf")
    subprocess.run([harness.need_env("MKMODEL_BIN"), path, "--embd", "64", "--layers", "1", "--ff",
                    "64", "--heads", "2", "--kv-heads", "1", "--head-dim", "32", "--vocab", "512",
                    "--ctx", str(N_CTX)], check=True, timeout=120, stdout=subprocess.DEVNULL)
    site.weightd({"long": path})
    return site.worker("long", ["--deterministic", "--no-park", "--chunk", str(CHUNK), *args])


def prompt(n, salt):
    return [(salt * 31 + i * 7) % 250 for i in range(n)]


class Steps:
    """Generations of one connection, and what has come of each."""

    def __init__(self, connection):
        self.connection, self.tokens, self.finished = connection, {}, set()

    def begin(self, ids, n_predict, priority=0):
        """(session, id) of a generation."""
        session = fields(self.ask(OPEN))[1]
        self.ask(APPEND, field(1, session) + field(3, field(1, packed(ids))))
        id_ = self.connection.generate_at(session, n_predict, priority)
        self.tokens[id_] = []
        return session, id_

    def take(self):
        """The next reply: None where it is of a generation, else its bytes."""
        id_, kind, body = self.connection.receive_body()
        if kind == TOKEN and id_ in self.tokens:
            self.tokens[id_].append(fields(body).get(1, 0))
            return None
        if kind == FINISHED:
            self.finished.add(id_)
            return None
        check(id_ not in self.tokens, f"reply {kind} to a generation: {body}")
        return body

    def take_token(self, id_):
        n = len(self.tokens[id_])
        while len(self.tokens[id_]) == n:
            check(self.take() is None and id_ not in self.finished, "a token")

    def ask(self, kind, body=b""):
        """The answer. What it says is true between the steps of the tokens before and behind it."""
        self.connection.send(kind, body)
        answer = None
        while answer is None:
            answer = self.take()
        return answer

    def computed(self):
        """Tokens of prompts that the worker has computed."""
        return fields(self.ask(STATUS)).get(16, 0)

    def cached(self, session):
        """Tokens of a session that are computed; None: there is no such session."""
        rows = [fields(row) for row in repeated(self.ask(STATUS), 28)]
        return next((row.get(4, 0) for row in rows if row[1] == session), None)


def ask_alone(c, ids, n_predict):
    session = c.open()
    c.append_ids(session, ids)
    found = c.finish(c.generate(session, n_predict, ignore_eos=True))[0]
    c.call(CLOSE, field(1, session))
    return found


def check_long_prompt(site, n_rows, *args):
    """Beside two streams, in steps of n_rows tokens: each has its token of every step."""
    worker = serve(site, *args)
    n_share = n_rows - 2
    with Connection(worker) as c:
        alone = [ask_alone(c, prompt(5, i), 300) for i in range(2)]
        steps = Steps(c)
        sessions, streams = zip(*(steps.begin(prompt(5, i), 1000) for i in range(2)))
        for stream in streams:
            steps.take_token(stream)
        first, second = (steps.tokens[stream] for stream in streams)
        n_before = len(first)
        _, long_id = steps.begin(prompt(N_LONG, 2), 5)
        n_apart = None
        n_last, n_computed = len(first), None
        while not steps.tokens[long_id]:
            now = steps.computed()
            n_steps = len(first) - n_last
            if n_computed is not None:
                check(now - n_computed <= n_steps * n_share,
                      f"{now - n_computed} tokens of a prompt in {n_steps} steps of a stream")
                check_equal(len(first) - len(second), n_apart, "a stream beside a stream")
            n_apart, n_last, n_computed = len(first) - len(second), len(first), now
            steps.take_token(streams[0])
        n_steps = len(first) - n_before
        check(n_steps >= N_LONG // n_share, f"{n_steps} tokens of a stream beside {N_LONG}")
        print(f"# {n_steps} tokens of a stream beside a prompt of {N_LONG}", flush=True)
        while long_id not in steps.finished:
            steps.take()
        for session in sessions:
            steps.ask(CLOSE, field(1, session))
        for stream, expected in zip(streams, alone):
            found = steps.tokens[stream]
            n = min(len(found), len(expected))
            check_equal(found[:n], expected[:n], "tokens of a stream")
        check_equal(ask_alone(c, prompt(N_LONG, 2), 5), steps.tokens[long_id],
                    "tokens behind the long prompt")


def test_long_prompt(site):
    check_long_prompt(site, CHUNK)


def test_long_prompt_in_small_steps(site):
    check_long_prompt(site, 16, "--step-tokens", "16")


def test_disconnect(site):
    """Once its session is gone, not one row more of it is computed, and its pages are free."""
    worker = serve(site)
    with Connection(worker) as c:
        steps = Steps(c)
        session, stream = steps.begin(prompt(5, 0), 2000)
        steps.take_token(stream)
        other = Connection(worker)
        gone = other.open()
        other.append_ids(gone, prompt(N_LONG, 1))
        other.generate(gone, 5)
        while (steps.cached(gone) or 0) < 4 * CHUNK:
            steps.take_token(stream)
        check(steps.cached(gone) < N_LONG, "the prompt was computed already")
        other.close()
        while steps.cached(gone) is not None:
            steps.take_token(stream)
        n_computed = steps.computed()
        check(n_computed < N_LONG, f"{n_computed} tokens of a prompt of {N_LONG}")
        for _ in range(5):
            steps.take_token(stream)
        status = fields(steps.ask(STATUS))
        check_equal(status[16], n_computed, "tokens computed for nobody")
        n_pages = -(-(5 + len(steps.tokens[stream])) // 32)
        check(status[24] <= n_pages, f"{status[24]} pages of a stream of {n_pages}")
        steps.ask(CLOSE, field(1, session))


class Flow:
    """Two prompts at a time, of priority 0 and without an end."""

    def __init__(self, steps):
        self.steps, self.sessions, self.n_begun = steps, {}, 0

    def go_on(self):
        for id_ in [i for i in self.sessions if i in self.steps.finished]:
            self.steps.ask(CLOSE, field(1, self.sessions.pop(id_)))
        while len(self.sessions) < 2:
            # Its first token makes it another, of which nothing is known.
            self.n_begun += 1
            session, id_ = self.steps.begin([self.n_begun] + prompt(900, 2), 1)
            self.sessions[id_] = session


def test_low_priority(site):
    """Prompts of a higher priority without an end: a low one has its share all the same."""
    n_below, n_age = 4, 4  # steps that count as one of priority: workerd/turn.h
    worker = serve(site)
    with Connection(worker) as c:
        steps = Steps(c)
        _, stream = steps.begin(prompt(5, 0), 3000)
        steps.take_token(stream)
        flow = Flow(steps)
        flow.go_on()
        low, low_id = steps.begin(prompt(300, 1), 2, -n_below)
        cached, n_without, n_longest = steps.cached(low), 0, 0
        n_last = len(steps.tokens[stream])
        while not steps.tokens[low_id]:
            flow.go_on()
            now, n = steps.cached(low), len(steps.tokens[stream])
            n_without = 0 if now > cached else n_without + n - n_last
            check(n_without <= n_below * n_age, f"a prompt waits for {n_without} steps")
            n_longest = max(n_longest, n_without)
            cached, n_last = now, n
            steps.take_token(stream)
        print(f"# {n_longest} steps at most without, {flow.n_begun} others begun", flush=True)
        check(n_longest >= n_age, f"it waited for {n_longest} steps: it was no lower")


if __name__ == "__main__":
    harness.run(globals())
