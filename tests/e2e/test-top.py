#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weightctl top: the live screen on a terminal, and the tables and objects where there is none."""
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading

import harness
from harness import MODEL, check, check_equal, wait_until
from worker_socket import Closed, Connection

SMALL = ["--sessions", "2", "--ctx", "256", "--chunk", "64"]
ENTER, LEAVE = b"\033[?1049h", b"\033[?1049l"


class Terminal:
    """weightctl top in a terminal of our own, and what is to be seen there."""

    def __init__(self, site, *args, worker=None, columns=150, rows=30):
        self.columns, self.rows = columns, rows
        self.master, self.slave = pty.openpty()
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self.slave)
        argv = site.ctl_argv(["top", "--interval", "0.2", *args])
        if worker:
            argv = [harness.need_env("WEIGHTCTL_BIN"), "--worker", worker.socket, "top",
                    "--interval", "0.2"]
        self.process = subprocess.Popen(
            argv, env=dict(site.env, TERM="xterm"), cwd=site.dir, stdin=self.slave,
            stdout=self.slave, stderr=self.slave, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.bytes = b""
        self.lines = [""] * rows
        self.styles = [set() for _ in range(rows)]
        self.at = [0, 0]
        self.style = 0
        self.rest = b""
        self.is_alternate = False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)

    def resize(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.lines = [""] * rows
        self.styles = [set() for _ in range(rows)]
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def press(self, keys):
        os.write(self.master, keys)

    def escape(self, letter, text):
        row, column = self.at
        if letter == "H":
            self.at = [0, 0]
        elif letter == "K":
            self.lines[row] = self.lines[row][:column]
            self.styles[row].clear()
        elif letter == "J":
            self.lines[row] = self.lines[row][:column]
            self.lines[row + 1:] = [""] * (self.rows - row - 1)
        elif letter == "m":
            self.style = int(text)
        elif letter in "hl" and text == "?1049":
            self.is_alternate = letter == "h"
        else:
            check(letter in "hl" and text in ("?25", "?7"), f"an escape {text}{letter}")

    def write(self, character):
        row, column = self.at
        if character == "\r":
            self.at[1] = 0
        elif character == "\n":
            check(row + 1 < self.rows, "the screen scrolls")
            self.at[0] = row + 1
        else:
            check(character.isprintable(), f"{character!r} on the screen")
            check(column < self.columns, f"a line beyond {self.columns}: {self.lines[row]}")
            self.lines[row] = self.lines[row].ljust(column)[:column] + character
            self.styles[row].add(self.style)
            self.at[1] = column + 1

    def read(self):
        """Takes what is there, and makes the picture of it."""
        while select.select([self.master], [], [], 0)[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:  # the other side is closed
                break
            self.bytes += data
            self.rest += data
        while self.rest:
            m = re.match(rb"\033\[([?0-9;]*)([a-zA-Z])", self.rest)
            if m:
                self.escape(m[2].decode(), m[1].decode())
                self.rest = self.rest[m.end():]
            elif self.rest[:1] == b"\033":
                check(len(self.rest) < 16, f"an escape {self.rest[:16]!r}")
                break
            else:
                self.write(self.rest[:1].decode("ascii"))
                self.rest = self.rest[1:]
        return self.lines

    def wait_for(self, predicate, what):
        """Until predicate(self) is true of a picture."""
        def look():
            check(self.process.poll() is None, f"top ended: {self.bytes[-2000:]!r}")
            self.read()
            return predicate(self)
        try:
            return wait_until(look, what, 120)
        except harness.Failure as e:
            raise harness.Failure(str(e) + "\n" + "\n".join(self.lines)) from None

    def row(self, pid):
        """The words of a worker's line; [] while there is none. The mark is left out."""
        for line in self.lines:
            words = line.lstrip(">").split()
            if words and words[0] == str(pid):
                return words
        return []

    def session(self):
        """{column: value} of the first session."""
        for head, line in zip(self.lines, self.lines[1:]):
            if head.split()[:2] == ["SESSION", "CLIENT"] and line:
                names = ["session", "client", "state", "tokens", "cached", "rate"]
                return dict(zip(names, line.split()))
        return {}

    def first_pid(self):
        """Of the first worker's line."""
        heads = [i for i, line in enumerate(self.lines) if line.split()[:2] == ["PID", "MODEL"]]
        return self.lines[heads[0] + 1].lstrip(">").split()[0]

    def has(self, text):
        return any(text in line for line in self.lines)

    def expect_end(self):
        """It ends by itself, with the terminal as it was."""
        check_equal(self.process.wait(30), 0, "exit status of top")
        self.read()
        check(ENTER in self.bytes, "it never entered the alternate screen")
        check(not self.is_alternate and self.bytes.endswith(LEAVE), "the screen was not left")
        check(b"\033[?25h" in self.bytes[self.bytes.rindex(ENTER):], "the cursor is hidden")
        check_equal(termios.tcgetattr(self.slave), self.before, "modes of the terminal")


@contextlib.contextmanager
def generating(worker):
    """Somebody generates without an end on the worker, and reads it."""
    connection = Connection(worker)
    session = connection.open()
    connection.append_text(session, "The capital of")
    connection.generate(session, ignore_eos=True, n_keep=0)

    def drain():
        with contextlib.suppress(Closed, OSError):
            while True:
                connection.receive_bytes(1)

    thread = threading.Thread(target=drain)
    thread.start()
    try:
        yield
    finally:
        connection.socket.shutdown(2)
        thread.join()
        connection.close()


def rate(words):
    """Tokens a second of a worker's line that has figures."""
    return float(words[8]) if len(words) > 8 and words[8] != "-" else -1


def is_active(words):
    return len(words) > 8 and words[3] == "ready" and words[5] == "1"


def test_screen(site):
    site.weightd({"atlas": MODEL})
    workers = [site.worker("atlas", SMALL) for _ in range(2)]
    with Terminal(site) as t:
        t.wait_for(lambda t: all(t.row(w.pid)[3:4] == ["ready"] for w in workers), "both workers")
        check(t.is_alternate, "not on the alternate screen")
        check(any(re.match(r"device 0: budget .*, weights .*, reserved .*, 0 waiting; ", line)
                  for line in t.lines), f"no account in {t.lines}")
        check_equal(t.row(workers[0].pid)[4:7], ["0/2", "0", "0"], "sessions, active, queue")
        with generating(workers[0]):
            t.wait_for(lambda t: is_active(t.row(workers[0].pid)) and
                       rate(t.row(workers[0].pid)) > 0, "a rate above 0")
            # Select it, whichever it is: its sessions are below.
            title = f"sessions of worker {workers[0].pid} at {workers[0].socket}"
            for key in (b"k", b"\033[A"):
                t.press(key)
            if not t.has(title):
                t.press(b"j")
            t.wait_for(lambda t: t.has(title) and t.session().get("state") == "decoding",
                       "its session")
            first = t.session()["tokens"]
            t.wait_for(lambda t: t.session().get("tokens", first) != first and
                       t.session().get("rate", "-") != "-", "the session goes on")
            used = t.row(workers[0].pid)[9].split("/")
            check(int(used[0]) > 0 and int(used[3]) == 16, f"KV pages {used}")
            marked = [i for i, line in enumerate(t.lines) if line.startswith("> ")]
            check(len(marked) == 1 and 7 in t.styles[marked[0]], f"marks in {t.lines}")
            other = f"sessions of worker {workers[1].pid} "
            t.press(b"\033[B" if t.lines[marked[0]].split()[1] == t.first_pid() else b"\033[A")
            t.wait_for(lambda t: t.has(other), "the other worker's sessions")
        t.wait_for(lambda t: t.row(workers[0].pid)[4:6] == ["0/2", "0"], "the end of the session")
        t.press(b"q")
        t.expect_end()


def test_sizes(site):
    site.weightd({"atlas": MODEL})
    worker = site.worker("atlas", SMALL)
    with Terminal(site, columns=70, rows=20) as t, generating(worker):
        t.wait_for(lambda t: t.session().get("state"), "a session")
        # The picture fails where a line is too long, or one too many.
        for columns, rows in ((40, 5), (1, 1), (200, 50)):
            t.read()
            t.resize(columns, rows)
            n = len(t.bytes)
            t.wait_for(lambda t, n=n: t.bytes.count(b"\033[H", n) > 1, "two pictures more")
        t.wait_for(lambda t: t.session().get("state"), "the session again")
        t.press(b"\003")  # the terminal makes it SIGINT
        t.expect_end()


def test_signals(site):
    """^Z gives the shell its screen until the job goes on; SIGTERM ends it as q does."""
    site.weightd({"atlas": MODEL})
    with Terminal(site) as t:
        t.wait_for(lambda t: t.has("no workers"), "the screen")
        t.press(b"\032")

        def is_stopped():
            with open(f"/proc/{t.process.pid}/stat", encoding="utf-8") as f:
                return f.read().rpartition(")")[2].split()[0] == "T"
        wait_until(is_stopped, "it is stopped")
        t.read()
        check(not t.is_alternate, "stopped on the alternate screen")
        check_equal(termios.tcgetattr(t.slave), t.before, "modes of the terminal")
        t.process.send_signal(signal.SIGCONT)
        t.wait_for(lambda t: t.is_alternate, "the screen again")
        t.process.terminate()
        t.expect_end()


def test_a_stopped_worker(site):
    """It is shown as such, the other one goes on, and so do keys; the same for weightd."""
    weightd = site.weightd({"atlas": MODEL})
    stopped, other = [site.worker("atlas", SMALL) for _ in range(2)]
    with Terminal(site) as t, generating(other):
        t.wait_for(lambda t: t.row(stopped.pid)[3:4] == ["ready"] and
                   is_active(t.row(other.pid)), "both workers")
        stopped.signal(signal.SIGSTOP)
        try:
            t.wait_for(lambda t: t.row(stopped.pid)[3:7] == ["silent", "no", "answer", "for"],
                       "the stopped one is silent")
            n = len(t.bytes)
            t.wait_for(lambda t: is_active(t.row(other.pid)) and rate(t.row(other.pid)) > 0,
                       "the other one's rate")
            title = f"sessions of worker {other.pid} "
            t.press(b"kk")
            t.wait_for(lambda t: len(t.bytes) > n, "a picture")
            if not t.has(title):
                t.press(b"j")
            t.wait_for(lambda t: t.has(title) and "tokens" in t.session(), "its session")
            before = t.session()["tokens"]
            t.wait_for(lambda t: t.session().get("tokens", before) != before, "it goes on")
            # Somebody who comes while it is stopped.
            once = site.ctl("top", "--once", "--interval", "0.1").out
            check(re.search(rf"^  {stopped.pid} .* silent +no answer for ", once, re.M), once)
            check(re.search(rf"^  {other.pid} .* ready ", once, re.M), once)
        finally:
            stopped.signal(signal.SIGCONT)
        t.wait_for(lambda t: t.row(stopped.pid)[3:4] == ["ready"], "it is back")
        weightd.signal(signal.SIGSTOP)
        try:
            t.wait_for(lambda t: t.has(": no answer for "), "weightd is silent")
            check(is_active(t.row(other.pid)), "workers are still asked")
            t.press(b"q")
            t.expect_end()
        finally:
            weightd.signal(signal.SIGCONT)


def test_one_worker(site):
    """Without weightd; when it ends and another takes its place, rates begin anew."""
    site.weightd({"atlas": MODEL})
    worker = site.worker("atlas", SMALL)
    with Terminal(site, worker=worker) as t:
        t.wait_for(lambda t: t.row(worker.pid)[3:4] == ["ready"], "the worker")
        check(not t.has("weightd pid"), "weightd was asked")
        with generating(worker):
            t.wait_for(lambda t: rate(t.row(worker.pid)) > 0, "a rate")
        worker.stop()
        t.wait_for(lambda t: t.row(worker.pid)[3:4] == ["failed"], "its end")
        site.n_workers -= 1  # the same socket
        again = site.worker("atlas", SMALL)
        t.wait_for(lambda t: t.row(again.pid)[3:4] == ["ready"], "the next one")
        t.wait_for(lambda t: rate(t.row(again.pid)) == 0, "its rate")
        t.press(b"q")
        t.expect_end()
    check(not re.search(rb"(?<![\w.])-\d", t.bytes), "a rate below 0")


def test_tables(site):
    """Where stdout is no terminal: no escapes; and objects that say the same."""
    refused = site.ctl("top", status=1)
    check("connect" in refused.err and len(refused.err.splitlines()) == 1, f"{refused}")
    site.weightd({"atlas": MODEL})
    worker = site.worker("atlas", SMALL)
    with generating(worker):
        def ask():
            return site.ctl("--json", "top", "--once", "--interval", "0.5").json()
        sample = wait_until(lambda: (lambda s: s if s["workers"][0]["rates"]["generated_per_s"]
                                     else None)(ask()), "a rate in an object", 120)
        row = sample["workers"][0]
        check_equal((row["pid"], row["state"], row["socket"], row["error"]),
                    (worker.pid, "ready", worker.socket, ""), "the worker")
        status = row["status"]
        check_equal((row["n_generating"], row["n_spills"], status["kv_pages"]["total"]),
                    (1, 0, 16), f"{row}")
        check_equal([s["state"] for s in status["sessions"]], ["decoding"], "sessions")
        check(status["generated_tokens"] > 0, f"{row}")
        check("account" in sample["weightd"]["devices"][0], f"{sample['weightd']}")
        once = site.ctl("top", "--once", "--interval", "0.1").out
        check("\033" not in once and f"sessions of worker {worker.pid} at " in once, once)
        # A table each interval.
        process = site.start_ctl("top", "--interval", "0.2")
        text = b""
        while text.count(b"  PID ") < 3:
            text += os.read(process.stdout.fileno(), 65536)
        process.terminate()
        site.finish_ctl(process)
        check(b"\033" not in text, f"escapes in {text!r}")
        process = site.start_ctl("--json", "top", "--interval", "0.2")
        for _ in range(3):
            check_equal(json.loads(process.stdout.readline())["workers"][0]["pid"], worker.pid,
                        "pid in an object of many")
        process.terminate()
        site.finish_ctl(process)
    usage = site.ctl("top", "--interval", "0", status=2)
    check("from 0.1 to 86400" in usage.err, f"{usage}")


if __name__ == "__main__":
    harness.run(globals())
