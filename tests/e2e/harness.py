# SPDX-License-Identifier: Apache-2.0
"""Runs the built programs as a person would, in a directory of their own, and watches what is left.

A test file defines functions test_*(site) and ends in harness.run(globals()). Each function gets a
fresh Site; when it returns, everything it started must end cleanly and leave nothing behind.
Exit status: 0 passed, 1 failed, 77 every test skipped.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.environ.get("WEIGHTD_TEST_DATA", os.path.join(HERE, "..", "data"))
SHARED = os.environ.get("WEIGHTD_SHARED", os.path.join(HERE, "..", "..", "..", "shared"))
MODEL = os.path.join(DATA, "models", "atlas-dense-q8_0.gguf")
QUESTIONS = os.path.join(DATA, "ref", "questions.tsv")

# Sanitizers and the software driver's compiler on two busy cores are slow; nothing here measures.
START_SECONDS = 120
STOP_SECONDS = 30
CTL_SECONDS = 180


class Failure(Exception):
    """What was expected and what was found."""


class Skip(Exception):
    """Why a test cannot run here."""


def check(condition, text):
    if not condition:
        raise Failure(text)


def check_equal(found, expected, what):
    check(found == expected, f"{what}: expected {expected!r}, found {found!r}")


def need_env(name):
    """A program of the build, by the environment variable that meson sets."""
    path = os.environ.get(name)
    if not path:
        raise Skip(f"{name} is not set")
    check(os.access(path, os.X_OK), f"{name}={path} is no program")
    return path


def is_sanitized(path):
    """Was this program built with AddressSanitizer, whose own memory dwarfs the program's?"""
    with open(path, "rb") as f:
        return b"__asan_init" in f.read()


def shared_model(name):
    path = os.path.join(SHARED, "models", name)
    if not os.path.isfile(path):
        raise Skip(f"no {name} beside the checkout")
    return path


def wait_until(predicate, what, seconds=20):
    """Calls predicate until it returns something true, and returns that."""
    deadline = time.monotonic() + seconds
    while True:
        value = predicate()
        if value:
            return value
        check(time.monotonic() < deadline, f"{what}: not within {seconds} s")
        time.sleep(0.02)


def read_questions():
    """[(question, greedy answer)] of the demo model in Q8_0."""
    with open(QUESTIONS, encoding="utf-8") as f:
        return [tuple(line.rstrip("\n").split("\t")) for line in f]


class Daemon:
    """A weightd or workerd that has said it is ready."""

    def __init__(self, site, name, argv, env, wait=True, pass_fds=()):
        self.name = name
        self.log_path = os.path.join(site.dir, name + ".log")
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=site.dir,
                pass_fds=pass_fds)
        self.pid = self.process.pid
        site.daemons.append(self)
        if wait:
            self.wait_ready()

    def wait_ready(self):
        name = self.name
        deadline = time.monotonic() + START_SECONDS
        while not re.search(r": ready\b", self.log()):
            check(self.process.poll() is None,
                  f"{name} ended with {self.process.returncode} before it was ready: {self.log()}")
            check(time.monotonic() < deadline, f"{name} is not ready: {self.log()}")
            time.sleep(0.02)

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def is_alive(self):
        return self.process.poll() is None

    def n_fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def signal(self, signum):
        self.process.send_signal(signum)

    def stop(self):
        """SIGTERM; it must end by itself, with status 0."""
        if not self.is_alive():
            return
        self.signal(signal.SIGTERM)
        try:
            status = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Failure(f"{self.name} did not end on SIGTERM: {self.log()}") from None
        check_equal(status, 0, f"exit status of {self.name} ({self.log()})")

    def kill(self):
        if self.is_alive():
            self.signal(signal.SIGKILL)
        self.process.wait()


class Result:
    """What a finished weightctl printed."""

    def __init__(self, argv, status, out, err):
        self.argv, self.status, self.out, self.err = argv, status, out, err

    def json(self):
        try:
            return json.loads(self.out)
        except ValueError:
            raise Failure(f"{self}: no JSON on stdout") from None

    def __str__(self):
        return f"{' '.join(self.argv)} -> {self.status}, {self.out!r}, {self.err!r}"


class Site:
    """A directory with sockets, logs and caches, and the processes that were started in it."""

    def __init__(self):
        # Short, because a socket's path has at most 107 bytes.
        self.dir = tempfile.mkdtemp(prefix="weightd-e2e-")
        self.daemons = []
        self.n_workers = 0
        self.weightd_socket = os.path.join(self.dir, "weightd.sock")
        self.env = dict(os.environ, XDG_RUNTIME_DIR=self.dir, WEIGHTD_SOCKET=self.weightd_socket)
        # No test depends on a cache, but compiling every kernel in every process takes minutes.
        if "E2E_CACHE" in os.environ:
            self.env["WEIGHTD_CACHE"] = os.path.join(os.environ["E2E_CACHE"], "weightd")
            self.env["MESA_SHADER_CACHE_DIR"] = os.path.join(os.environ["E2E_CACHE"], "mesa")
            for name in ("WEIGHTD_CACHE", "MESA_SHADER_CACHE_DIR"):
                os.makedirs(self.env[name], mode=0o700, exist_ok=True)

    def weightd_argv(self, models=None, args=()):
        argv = [need_env("WEIGHTD_BIN"), "--socket", self.weightd_socket]
        for name, path in (models or {}).items():
            argv += ["--model", f"{name}={path}"]
        return argv + list(args)

    def weightd(self, models=None, args=()):
        """Starts weightd with {name: file}."""
        return Daemon(self, "weightd", self.weightd_argv(models, args), self.env)

    def worker(self, model, args=()):
        """Starts a workerd; its socket is in .socket."""
        self.n_workers += 1
        name = f"worker{self.n_workers}"
        socket = os.path.join(self.dir, name + ".sock")
        argv = [need_env("WORKERD_BIN"), "--model", model, "--weights", self.weightd_socket,
                "--socket", socket, *args]
        daemon = Daemon(self, name, argv, self.env)
        daemon.socket = socket
        return daemon

    def ctl_argv(self, args, worker=None):
        argv = [need_env("WEIGHTCTL_BIN"), "--weightd", self.weightd_socket]
        if worker:
            argv += ["--worker", worker.socket]
        return argv + [str(a) for a in args]

    def ctl(self, *args, worker=None, status=0):
        """Runs weightctl to its end; its exit status must be `status` (None: any)."""
        argv = self.ctl_argv(args, worker)
        run = subprocess.run(argv, env=self.env, stdin=subprocess.DEVNULL, capture_output=True,
                             timeout=CTL_SECONDS, check=False, cwd=self.dir)
        result = Result(argv, run.returncode, run.stdout.decode("utf-8", "replace"),
                        run.stderr.decode("utf-8", "replace"))
        check(status is None or result.status == status, f"{result}: expected status {status}")
        return result

    def start_ctl(self, *args, worker=None):
        """Starts weightctl and returns its Popen; finish_ctl takes the result."""
        return subprocess.Popen(self.ctl_argv(args, worker), env=self.env, cwd=self.dir,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    @staticmethod
    def finish_ctl(process):
        out, err = process.communicate(timeout=CTL_SECONDS)
        return Result(process.args, process.returncode, out.decode("utf-8", "replace"),
                      err.decode("utf-8", "replace"))

    def status(self):
        return self.ctl("--json", "status").json()

    def close(self):
        """Ends what still runs, workers first, and looks for what should not be there."""
        trouble = []
        for daemon in reversed(self.daemons):
            try:
                daemon.stop()
            except Failure as e:
                trouble.append(str(e))
        left = [f for f in os.listdir(self.dir) if f.endswith(".sock")]
        killed = any(d.process.returncode == -signal.SIGKILL for d in self.daemons)
        if left and not killed:
            trouble.append(f"sockets left behind: {' '.join(left)}")
        # A weightd that was killed has a keeper, which waits for the next one.
        if killed:
            for pid in self.keepers():
                os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not self.keepers(), "the end of a keeper")
        trouble += [f"process {pid} was left behind" for pid in self.strays()]
        shutil.rmtree(self.dir)
        check(not trouble, "; ".join(trouble))

    def keepers(self):
        """Processes of this site that keep descriptors for a weightd."""
        found = []
        for pid in self.strays():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as f:
                    if b"--keeper" in f.read().split(b"\0"):
                        found.append(pid)
            except OSError:
                pass  # gone meanwhile
        return found

    def strays(self):
        """Processes that know this directory: children that a daemon forgot."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    if int(pid) != os.getpid() and self.dir.encode() in f.read():
                        found.append(int(pid))
            except OSError:
                pass  # gone, or another user's
        return found


def only_generation(status, model):
    """The one generation of a model in weightctl's status."""
    for row in status["models"]:
        if row["name"] == model:
            check_equal(len(row["generations"]), 1, f"generations of {model}")
            return row["generations"][0]
    raise Failure(f"no model {model} in {status}")


def smaps_pss(pid, inodes):
    """Bytes of the Pss of a process's mappings of {(dev, inode)}."""
    total = 0
    counts = False
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as f:
        for line in f:
            m = re.match(r"[0-9a-f]+-[0-9a-f]+ \S+ [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) (\d+)", line)
            if m:
                dev = os.makedev(int(m[1], 16), int(m[2], 16))
                counts = (dev, int(m[3])) in inodes
            elif counts and line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def rollup_pss(pid):
    """Bytes of the Pss of everything a process maps."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="utf-8") as f:
        return next(int(x.split()[1]) for x in f if x.startswith("Pss:")) * 1024


def weight_inodes(generation):
    return {(a["dev"], a["inode"]) for a in generation["allocations"]}


def run_one(function):
    """(verdict, text) of one test in a site of its own."""
    site = Site()
    verdict, text = "ok", ""
    try:
        function(site)
    except Skip as e:
        verdict, text = "skipped", str(e)
    except Failure as e:
        verdict, text = "FAILED", str(e)
    except Exception:
        verdict, text = "FAILED", traceback.format_exc()
    logs = [(d.name, d.log()) for d in site.daemons]
    try:
        site.close()
    except Failure as e:
        verdict, text = "FAILED", f"{text}; at the end: {e}".lstrip("; ")
    if verdict == "FAILED":
        for name, log in logs:
            print(f"# {name}: {log}", flush=True)
    return verdict, text


def run(names):
    """Runs test_* of a module's globals() in order; the command line may name some of them."""
    wanted = sys.argv[1:]
    counts = {"ok": 0, "FAILED": 0, "skipped": 0}
    for name, function in list(names.items()):
        if not name.startswith("test_") or (wanted and name not in wanted):
            continue
        start = time.monotonic()
        verdict, text = run_one(function)
        counts[verdict] += 1
        print(f"{verdict} {name} ({time.monotonic() - start:.1f} s) {text}".rstrip(), flush=True)
    if counts["FAILED"] or not any(counts.values()):
        sys.exit(1)
    sys.exit(0 if counts["ok"] else 77)
