#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""weightd dies and comes back: nothing is read again, nobody who computes notices."""
import os
import pty
import resource
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import threading
import time

import harness
from harness import check, check_equal, wait_until
from restart_way import Way, check_adopted, generation, read_io, wait_leases
from worker_socket import Connection, FINISHED, TOKEN, sampling

N_TOKENS = 150
N_BEFORE = 20
# A worker that waits for weightd waits for its start at least: what is too long is far above what
# two busy CPUs make of one step.
GAP_SECONDS = 0.25
# weightd/keeper.h
KEEPER_PROTOCOL, KEEPER_TAKE = 0x4b01, 3
GAP_FACTOR = 60

QUESTION = "Which continent is Chile in?"


def marker(site, *args, status=0):
    run = subprocess.run([harness.need_env("MARKER_BIN"), site.weightd_socket, "demo", *args],
                         env=site.env, capture_output=True, text=True, check=False, timeout=120)
    if run.returncode == 77:
        raise harness.Skip(run.stderr)
    check_equal(run.returncode, status, f"marker {args}: {run.stderr}")
    return run.stdout.strip()


class Acquirer:
    """A client whose device is open, so that it takes a lease as soon as there is a weightd."""

    def __init__(self, site):
        self.process = subprocess.Popen(
            [harness.need_env("MARKER_BIN"), site.weightd_socket, "demo", "acquire"],
            env=site.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        check_equal(self.process.stdout.readline(), "open\n", "the acquirer")

    def go(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self):
        """(generation, when)."""
        out, _ = self.process.communicate(timeout=120)
        check_equal(self.process.returncode, 0, "the acquirer")
        generation, when = out.split()
        return int(generation), float(when)


class Stream(threading.Thread):
    """A generation of N_TOKENS on a worker, and when each token came."""

    def __init__(self, worker):
        super().__init__(daemon=True)
        self.worker = worker
        self.times, self.text, self.trouble = [], b"", None
        self.start()

    def run(self):
        try:
            with Connection(self.worker) as c:
                session = c.open()
                c.append_text(session, "The capital of France")
                c.generate(session, N_TOKENS, sampling(5.0, seed=12), ignore_eos=True)
                while True:
                    _, kind, answer = c.receive()
                    if kind == FINISHED:
                        return
                    if kind == TOKEN:
                        self.times.append(time.monotonic())
                        self.text += answer.get(2, b"")
        except Exception as e:
            self.trouble = e

    def wait_tokens(self, n):
        wait_until(lambda: len(self.times) >= n or self.trouble, f"{n} tokens", 60)

    def finish(self):
        self.join(120)
        check(not self.is_alive() and self.trouble is None, f"the stream: {self.trouble}")
        check(len(self.times) > N_BEFORE, f"{len(self.times)} tokens")
        return self

    def gaps(self):
        return [b - a for a, b in zip(self.times, self.times[1:])]


def make_model(site):
    """Of random weights, whose norms end before a multiple of 256 bytes does: there is room for a
    mark behind them."""
    path = os.path.join(site.dir, "marked.gguf")
    subprocess.run([harness.need_env("MKMODEL_BIN"), path, "--bytes", "8M", "--embd", "288"],
                   check=True, timeout=120, stdout=subprocess.DEVNULL)
    return path


def check_stream(stream, undisturbed):
    check_equal(stream.text, undisturbed.text, "text of a stream during which weightd died")
    median = statistics.median(undisturbed.gaps())
    largest = max(stream.gaps())
    allowed = max(GAP_FACTOR * median, GAP_SECONDS, 4 * max(undisturbed.gaps()))
    check(largest < allowed, f"a pause of {largest:.3f} s, a step takes {median:.4f}")
    return largest, median


def check_way(site, kind, place):
    way = Way(site, kind, ["--place", f"*={place}"], make_model(site))
    way.start()
    worker = site.worker("demo")
    Stream(worker).finish()  # compiles what there is to compile
    undisturbed = Stream(worker).finish()
    before = generation(site)
    check(place in {a["placement"] for a in before["allocations"]}, f"placement: {before}")
    marker(site, "put", f"m{place}")
    acquirer = Acquirer(site)

    stream = Stream(worker)
    stream.wait_tokens(N_BEFORE)
    acquirer.go_at = way.kill()
    acquirer.go()
    way.start()
    acquired, when = acquirer.finish()
    stream.finish()
    check_equal(acquired, before["id"], "generation that is leased after the restart")
    io = check_adopted(site, way, before)
    check_equal(marker(site, "get"), f"m{place}", "a mark in memory")
    largest, median = check_stream(stream, undisturbed)
    wait_leases(site, [worker.pid])
    print(f"# {kind}, {place}: SIGKILL to lease {when - acquirer.go_at:.3f} s; weightd read "
          f"{io['rchar']} bytes of {before['file_bytes']}; largest gap {largest * 1e3:.1f} ms, median "
          f"{median * 1e3:.1f} ms undisturbed (largest {max(undisturbed.gaps()) * 1e3:.1f})",
          flush=True)
    check(when - acquirer.go_at < 4, "the lease came late: was anybody waited for in vain?")
    check_equal(Stream(site.worker("demo")).finish().text, undisturbed.text,
                "text of a worker that attached afterwards")
    way.close()


def test_manager_device(site):
    check_way(site, "manager", "device")


def test_manager_staged(site):
    check_way(site, "manager", "staged")


def test_keeper_device(site):
    check_way(site, "keeper", "device")


def test_keeper_staged(site):
    check_way(site, "keeper", "staged")


def test_workers_device(site):
    check_way(site, "workers", "device")


def test_workers_staged(site):
    check_way(site, "workers", "staged")


def test_goes_on_alone(site):
    """While there is no weightd, and while there is one that says nothing."""
    way = Way(site, "workers")
    way.start()
    worker = site.worker("demo")
    before = generation(site)
    stream = Stream(worker)
    stream.wait_tokens(N_BEFORE)
    way.kill()
    stream.finish()
    check_equal(len(stream.times), N_TOKENS, "tokens without weightd")
    os.unlink(site.weightd_socket)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(site.weightd_socket)
        silent.listen(4)
        connection, _ = silent.accept()
        check_equal(len(Stream(worker).finish().times), N_TOKENS, "tokens beside a silent weightd")
        connection.close()
    way.start()
    check_adopted(site, way, before)
    wait_leases(site, [worker.pid])
    way.close()


def test_grants_come_back(site):
    """What was granted to a worker counts with the next weightd as before."""
    way = Way(site, "keeper")
    way.start()
    worker = site.worker("demo")
    before = site.status()["devices"][0]["account"]
    check(before["reserved_bytes"] > 0, f"account: {before}")
    way.kill()
    way.start()
    wait_leases(site, [worker.pid])
    after = site.status()["devices"][0]["account"]
    for figure in ("weights_bytes", "reserved_bytes"):
        check_equal(after[figure], before[figure], figure)
    worker.stop()
    wait_until(lambda: site.status()["devices"][0]["account"]["reserved_bytes"] == 0, "given back")
    way.close()


def test_parked_meanwhile(site):
    """A parked worker has nothing to resume, and returns to the weightd that there is then."""
    way = Way(site, "keeper")
    way.start()
    worker = site.worker("demo", ["--park-after", "1"])
    answer = site.ctl("ask", QUESTION, worker=worker).out
    wait_until(lambda: not any(w["leases"] for w in site.status()["workers"]), "parked")
    way.kill()
    way.start()
    wait_until(lambda: [w["pid"] for w in site.status()["workers"]] == [worker.pid], "it is back")
    check_equal(site.status()["workers"][0]["leases"], [], "leases of who parked")
    check_equal(site.ctl("ask", QUESTION, worker=worker).out, answer, "answer after both")
    way.close()


def test_ends_while_it_waits(site):
    """SIGTERM ends a worker at once, though a weightd that it asks does not answer."""
    way = Way(site, "workers")
    way.start()
    worker = site.worker("demo")
    way.kill()
    os.unlink(site.weightd_socket)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.bind(site.weightd_socket)
        silent.listen(4)
        connection, _ = silent.accept()
        check(connection.recv(4096), "Hello of the worker")
        start = time.monotonic()
        worker.stop()
        seconds = time.monotonic() - start
        check(seconds < 10, f"it took {seconds:.1f} s, as long as it waits for an answer?")
        connection.close()


def test_pinned_and_loaded_by_client(site):
    """A model that no command line names, in windows of its file and in many of them."""
    for kind in "keeper", "workers":
        way = Way(site, kind, ["--place", "*=pinned", "--window", "512K"], model=None)
        way.start()
        site.ctl("load", f"demo={harness.MODEL}")
        worker = site.worker("demo")
        before = generation(site)
        way.kill()
        way.start()
        wait_until(lambda: [g["state"] for m in site.status()["models"]
                            for g in m["generations"]] == ["ready"], "the model")
        check_adopted(site, way, before)
        wait_leases(site, [worker.pid])
        way.close()


def test_twice_in_a_row(site):
    """Killed again before anything was back, then when it was; ids go on."""
    for kind in "manager", "keeper", "workers":
        way = Way(site, kind)
        way.start()
        worker = site.worker("demo")
        before = generation(site)
        stream = Stream(worker)
        stream.wait_tokens(3)
        for seconds in (0.02, 0.1, 0.3):
            way.kill()
            way.start(wait=False)
            time.sleep(seconds)
        way.kill()
        way.start()
        check_adopted(site, way, before)
        wait_leases(site, [worker.pid])
        way.kill()
        way.start()
        check_adopted(site, way, before)
        wait_leases(site, [worker.pid])
        stream.finish()
        site.ctl("load", f"other={harness.MODEL}")
        ids = {m["name"]: m["generations"][0]["id"] for m in site.status()["models"]}
        check_equal(ids, {"demo": before["id"], "other": before["id"] + 1}, "ids")
        way.close()


def test_worker_dies_meanwhile(site):
    """Who died while weightd was away is not waited for, and its memory is not held."""
    way = Way(site, "workers")
    way.start()
    worker = site.worker("demo")
    before = generation(site)
    way.kill()
    worker.kill()
    start = time.monotonic()
    way.start()
    seconds = time.monotonic() - start
    after = generation(site)
    check_equal((after["origin"], after["id"]), ("loaded", before["id"] + 1), "what came of it")
    check(seconds < 4, f"ready after {seconds:.1f} s: a dead worker was waited for")
    way.close()


def test_worker_that_stands_still(site):
    """It is waited for, five seconds, and moves to what came instead when it goes on later."""
    way = Way(site, "workers")
    way.start()
    worker = site.worker("demo")
    before = generation(site)
    worker.signal(signal.SIGSTOP)
    way.kill()
    start = time.monotonic()
    way.start()
    seconds = time.monotonic() - start
    check(seconds >= 4.5, f"ready after {seconds:.1f} s: a worker that lives was not waited for")
    after = {g["id"]: g["state"] for m in site.status()["models"] for g in m["generations"]}
    check_equal(after, {before["id"]: "lost", before["id"] + 1: "ready"}, "what came of it")
    worker.signal(signal.SIGCONT)
    wait_until(lambda: "not all of its descriptors came back" in worker.log(),
               "the worker hears of it")
    check_equal(site.ctl("ask", "Which continent is Chile in?", worker=worker).out,
                "Chile is in South America.\n", "an answer all the same")
    way.close()


def test_draining(site):
    """What was replaced before the kill is still its worker's, which moves on when it is back."""
    way = Way(site, "keeper")
    way.start()
    old = site.worker("demo")
    os.kill(old.pid, signal.SIGSTOP)
    site.ctl("load", f"demo={harness.MODEL}", "--replace")
    before = {g["id"]: g["state"] for g in site.status()["models"][0]["generations"]}
    check_equal(list(before.values()), ["draining", "ready"], "states")
    way.kill()
    way.start()
    wait_until(lambda: {g["id"]: (g["state"], g["origin"])
                        for m in site.status()["models"] for g in m["generations"]} ==
               {i: (s, "adopted") for i, s in before.items()}, "generations")
    os.kill(old.pid, signal.SIGCONT)
    wait_until(lambda: len(site.status()["models"][0]["generations"]) == 1, "the old one goes")
    wait_leases(site, [old.pid])
    way.close()


def test_unload_timeout_goes_on(site):
    """The time that an unload left its workers runs on while weightd is away."""
    for kind in "keeper", "workers":
        way = Way(site, kind, model=None)
        way.start()
        site.ctl("load", f"demo={harness.MODEL}")
        workers = [site.worker("demo") for _ in range(2)]
        before = generation(site)
        # One that cannot be reached: it comes back for its lease when the time is over.
        workers[1].signal(signal.SIGSTOP)
        out = site.ctl("unload", "demo", "--timeout", "6").out
        start = time.monotonic()
        check_equal(out, "demo: draining: 2 leases\n", "unload")
        workers[0].signal(signal.SIGSTOP)
        way.kill()
        way.start()
        workers[0].signal(signal.SIGCONT)
        wait_leases(site, [workers[0].pid])
        check_equal((generation(site)["state"], generation(site)["id"]),
                    ("draining", before["id"]), "after the restart")
        wait_until(lambda: "1 leases end" in way.daemon.log(), "the end of the time", 15)
        check(time.monotonic() - start > 5.9, "it came early")
        check(time.monotonic() - start < 12, "it came late")
        workers[1].signal(signal.SIGCONT)
        wait_until(lambda: not site.status()["models"], "the generation goes", 15)
        way.close()


def test_state_cannot_be_written(site):
    """It is said each time that it begins, and when it is over."""
    way = Way(site, "keeper")
    way.start()
    in_the_way = site.weightd_socket + ".state.new"
    for i in range(1, 3):
        if os.path.exists(in_the_way):
            os.unlink(in_the_way)
        os.mkdir(in_the_way)
        for name in "a", "b":
            site.ctl("load", f"{name}{i}={harness.MODEL}")
        os.rmdir(in_the_way)
        site.ctl("load", f"c{i}={harness.MODEL}")
        log = way.daemon.log()
        check_equal((log.count("the state for a restart cannot be written"),
                     log.count("the state for a restart is written again")), (i, i), log)
    way.close()


def test_another_file_under_the_name(site):
    """The command line's file changed meanwhile: the old one goes when its worker has moved on."""
    path = os.path.join(site.dir, "m.gguf")
    other = os.path.join(harness.DATA, "models", "atlas-dense-f16.gguf")
    if not os.path.exists(other):
        other = os.path.join(harness.DATA, "models", "atlas-moe-q8_0.gguf")
    with open(path, "wb") as f, open(harness.MODEL, "rb") as model:
        f.write(model.read())
    way = Way(site, "keeper", model=path)
    way.start()
    worker = site.worker("demo")
    before = generation(site)
    way.kill()
    os.unlink(path)
    with open(path, "wb") as f, open(other, "rb") as model:
        f.write(model.read())
    way.start()
    wait_until(lambda: [(g["id"], g["state"], g["origin"])
                        for g in site.status()["models"][0]["generations"]] ==
               [(before["id"] + 1, "ready", "loaded")], "generations")
    wait_leases(site, [worker.pid])
    way.close()


def test_broken_state(site):
    """A state that cannot be trusted is none; one line says so."""
    state = site.weightd_socket + ".state"
    way = Way(site, "keeper")
    way.start()
    worker = site.worker("demo")
    with open(state, "rb") as f:
        good = f.read()
    check_equal(os.stat(state).st_mode & 0o777, 0o600, "mode of the state file")
    broken = [b"", good[:5], good[:-3], good[:40] + bytes([good[40] ^ 1]) + good[41:],
              os.urandom(500)]
    for data in broken:
        way.kill()
        with open(state, "wb") as f:
            f.write(data)
        way.start()
        check_equal(generation(site)["origin"], "loaded", f"origin with {data[:16]!r}")
        lines = [x for x in way.daemon.log().splitlines() if "nothing is brought back" in x]
        check_equal(len(lines), 1, f"lines about it: {way.daemon.log()}")
    wait_until(lambda: "without generation" in worker.log(), "the worker hears of it")
    # What the keeper holds now is of the last of them.
    before = generation(site)
    way.kill()
    way.start()
    check_adopted(site, way, before)
    way.close()


def need_two_devices(site):
    """An environment in which the software driver is two devices."""
    shim = os.environ.get("SECOND_UUID")
    found = [p for p in ("/usr/share/vulkan/icd.d/lvp_icd.x86_64.json",
                         "/usr/share/vulkan/icd.d/lvp_icd.json") if os.path.exists(p)]
    if not shim or not found:
        raise harness.Skip("no second software device")
    paths = [os.path.join(site.dir, name) for name in ("a.json", "b.json")]
    for path in paths:
        shutil.copy(found[0], path)
    site.env.update(LD_PRELOAD=shim, VK_DRIVER_FILES=":".join(paths),
                    VK_ICD_FILENAMES=":".join(paths))


def test_two_devices(site):
    """Each device's memory comes back to it, also when they are named in another order."""
    need_two_devices(site)
    place = ["--place", "*=device", "--place", "blk.0.*=staged"]
    for kind in "keeper", "workers":
        way = Way(site, kind, ["--device", "0", "--device", "1", *place])
        way.start()
        workers = [site.worker("demo", ["--device", d, "--ctx", "256"]) for d in ("0", "1")]
        before = generation(site)
        check_equal({a["device"] for a in before["allocations"]}, {1, 2}, "devices")
        for order in ("0", "1"), ("1", "0"), ("1", "0"), ("0", "1"):
            for at, device in zip((i for i, x in enumerate(way.argv) if x == "--device"), order):
                way.argv[at + 1] = device
            way.kill()
            way.start()
            check_adopted(site, way, before)
            wait_leases(site, [w.pid for w in workers])
        for worker in workers:
            check_equal(site.ctl("ask", "Which continent is Chile in?", worker=worker).out,
                        "Chile is in South America.\n", "an answer")
        way.close()


def test_terminal_is_closed(site):
    """Its SIGHUP is an end, not an upgrade."""
    argv = site.weightd_argv()
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            os.execve(argv[0], argv, site.env)
        finally:
            os._exit(127)
    wait_until(lambda: b": ready" in os.read(terminal, 4096), "ready")
    os.close(terminal)
    found = wait_until(lambda: os.waitpid(pid, os.WNOHANG)[0] == pid, "its end")
    check(found, "it goes on")
    check(not os.path.exists(site.weightd_socket), "its socket is left")


def test_keeper_dies_too(site):
    """Then the workers bring the memory; and a new keeper is started for the next time."""
    way = Way(site, "keeper")
    way.start()
    worker = site.worker("demo")
    before = generation(site)
    first = site.keepers()
    check_equal(len(first), 1, "keepers")
    way.kill()
    os.kill(first[0], signal.SIGKILL)
    way.start()
    check_adopted(site, way, before)
    wait_leases(site, [worker.pid])
    wait_until(lambda: "brought back" in worker.log(), "the worker says so")
    # Killed while weightd lives, it is missed and replaced.
    second = wait_until(site.keepers, "a keeper")
    check(second != first, "the same keeper")
    os.kill(second[0], signal.SIGKILL)
    wait_until(lambda: site.keepers() not in ([], second), "another keeper")
    worker.stop()
    wait_until(lambda: not site.status()["workers"], "no worker")
    way.kill()
    way.start()
    check_adopted(site, way, before)
    way.close()


def test_keeper_stands_still(site):
    """One that does not answer is given up, and does not stay in the way of the next."""
    way = Way(site, "keeper")
    way.start()
    first = site.keepers()
    way.kill()
    os.kill(first[0], signal.SIGSTOP)
    way.start()
    before = generation(site)
    check_equal(before["origin"], "loaded", "origin")
    os.kill(first[0], signal.SIGCONT)
    wait_until(lambda: site.keepers() not in ([], first), "another keeper")
    wait_until(lambda: len(site.keepers()) == 1, "the end of the first")
    way.kill()
    way.start()
    check_adopted(site, way, before)
    way.close()


def test_keeper_ends_by_itself(site):
    way = Way(site, "keeper", ["--keep", "1"])
    way.start()
    check_equal(len(site.keepers()), 1, "keepers")
    time.sleep(1.5)
    check_equal(len(site.keepers()), 1, "keepers while weightd lives")
    way.kill()
    wait_until(lambda: not site.keepers(), "the end of the keeper")
    check(not os.path.exists(site.weightd_socket + ".keeper"), "its socket is left")
    way.start()
    way.close()


def try_keeper(path, uid):
    """What a process of that uid gets from the keeper at path when it asks for everything."""
    pipe, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(uid, uid, uid)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
                s.connect(path)
                s.send(struct.pack("<II64s", KEEPER_PROTOCOL, KEEPER_TAKE, b""))
                data, fds, _, _ = socket.recv_fds(s, 4096, 16)
                os.write(tell, f"{len(data)} bytes, {len(fds)} fds".encode())
        except OSError as e:
            os.write(tell, type(e).__name__.encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    os.close(tell)
    with os.fdopen(pipe) as f:
        return f.read()


def test_keeper_refuses_others(site):
    if os.geteuid() != 0:
        raise harness.Skip("only root can be somebody else")
    way = Way(site, "keeper")
    way.start()
    path = site.weightd_socket + ".keeper"
    os.chmod(site.dir, 0o711)
    check_equal(os.stat(path).st_mode & 0o777, 0o600, "mode of the keeper's socket")
    check_equal(try_keeper(path, os.geteuid()), "72 bytes, 1 fds", "what weightd's own uid gets")
    check_equal(try_keeper(path, 65534), "PermissionError", "what another uid gets")
    # Behind the file's mode stands the keeper's own look at who it is.
    os.chmod(path, 0o666)
    found = try_keeper(path, 65534)
    check(found in ("0 bytes, 0 fds", "ConnectionResetError", "BrokenPipeError"),
          f"what another uid gets: {found}")
    way.close()


def test_sighup(site):
    """The program is executed anew in place; the same process goes on."""
    for kind in "manager", "keeper", "workers":
        way = Way(site, kind)
        way.start()
        worker = site.worker("demo")
        before = generation(site)
        stream = Stream(worker)
        stream.wait_tokens(3)
        n_read = read_io(way.daemon.pid)["rchar"]
        way.daemon.signal(signal.SIGHUP)
        wait_until(lambda: way.daemon.log().count(": ready") == 2, "ready again", 60)
        check_adopted(site, way, before, n_read)
        wait_leases(site, [worker.pid])
        check_equal(site.status()["pid"], way.daemon.pid, "pid")
        stream.finish()
        # And killed afterwards: what was kept is kept.
        way.kill()
        way.start()
        check_adopted(site, way, before)
        way.close()


def test_sighup_many_times(site):
    """One that comes while the program is executed is not the end."""
    way = Way(site, "keeper")
    way.start()
    before = generation(site)
    for _ in range(400):
        way.daemon.signal(signal.SIGHUP)
        time.sleep(0.001)
        check(way.daemon.is_alive(), f"weightd ended: {way.daemon.log()}")
    time.sleep(0.5)
    wait_until(lambda: way.daemon.log().rfind(": ready") >
               way.daemon.log().rfind("is executed anew") > 0, "the last one is ready", 60)
    check_equal(generation(site)["id"], before["id"], "generation")
    check_equal(generation(site)["origin"], "adopted", "origin")
    way.close()


def check_clean_end(site, way, what):
    check_equal(way.daemon.process.wait(20), 0, f"{what}: {way.daemon.log()}")
    wait_until(lambda: not site.keepers(), f"{what}: the end of the keeper")
    left = [f for f in os.listdir(site.dir) if f.startswith("weightd.sock")]
    check_equal(left, [], f"{what}: files left by weightd: {way.daemon.log()}")
    site.daemons.remove(way.daemon)


def test_sigterm_behind_sighup(site):
    """Whenever it comes, also right before the program is executed anew, it is a clean end."""
    for i in range(80):
        way = Way(site, "keeper")
        way.start()
        end = time.perf_counter() + i * 0.000015
        way.daemon.signal(signal.SIGHUP)
        while time.perf_counter() < end:
            pass
        way.daemon.signal(signal.SIGTERM)
        check_clean_end(site, way, f"round {i}")


def has_signal(pid, signum):
    """Is it blocked or caught?"""
    with open(f"/proc/{pid}/status", encoding="ascii") as f:
        masks = [int(line.split()[1], 16) for line in f if line.startswith(("SigBlk", "SigCgt"))]
    return any(m >> signum - 1 & 1 for m in masks)


def test_sigterm_at_the_start(site):
    """What the weightd before left is given up by one that is ended while it starts."""
    for i in range(20):
        way = Way(site, "keeper")
        way.start()
        check_equal(len(site.keepers()), 1, "keepers")
        way.kill()
        site.daemons.remove(way.daemon)
        way.start(wait=False)
        # Before its first line the program has no say in it.
        wait_until(lambda: has_signal(way.daemon.pid, signal.SIGTERM), "the program")
        way.daemon.signal(signal.SIGTERM)
        check_clean_end(site, way, f"round {i}")


def test_sighup_without_descriptors(site):
    """Where memory cannot be handed over, weightd goes on with it and says so."""
    way = Way(site, "keeper")
    way.start()
    worker = site.worker("demo")
    before = generation(site)
    usual = resource.prlimit(way.daemon.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(way.daemon.pid, resource.RLIMIT_NOFILE, (way.daemon.n_fds(), usual[1]))
    way.daemon.signal(signal.SIGHUP)
    line = "descriptors cannot be handed over"
    wait_until(lambda: line in way.daemon.log() or not way.daemon.is_alive(), "its word")
    resource.prlimit(way.daemon.pid, resource.RLIMIT_NOFILE, usual)
    check_equal(way.daemon.log().count(line), 1, f"lines about it: {way.daemon.log()}")
    after = generation(site)
    for key in ("id", "origin", "n_leases", "allocations"):
        check_equal(after[key], before[key], key)
    check(site.ctl("ask", QUESTION, worker=worker).out, "an answer")
    way.daemon.signal(signal.SIGHUP)
    wait_until(lambda: way.daemon.log().count(": ready") == 2, "ready again", 60)
    check_equal(generation(site)["origin"], "adopted", "origin")
    wait_leases(site, [worker.pid])
    way.close()


def test_failed_start(site):
    """A file that is broken costs what was loaded before nothing."""
    broken = os.path.join(site.dir, "broken.gguf")
    with open(broken, "wb") as f:
        f.write(b"GGUF")
    way = Way(site, "keeper")
    way.start()
    before = generation(site)
    usual = way.argv
    way.kill()
    for arguments in ([*usual, "--model", f"other={broken}"],
                      [*usual[:-2], "--model", f"demo={broken}"]):
        way.argv = arguments
        way.start(wait=False)
        check_equal(way.daemon.process.wait(60), 1, f"status: {way.daemon.log()}")
        check_equal(len(site.keepers()), 1, "keepers")
    way.argv = usual
    way.start()
    check_adopted(site, way, before)
    way.close()


def test_many_generations(site):
    """More than a loader takes jobs at a time."""
    n = 80
    path = os.path.join(site.dir, "small.gguf")
    subprocess.run([harness.need_env("MKMODEL_BIN"), path, "--bytes", "64K", "--embd", "64"],
                   check=True, timeout=120, stdout=subprocess.DEVNULL)
    way = Way(site, "keeper", model=None)
    way.start()
    for i in range(n):
        site.ctl("load", f"m{i}={path}")
    before = {m["name"]: m["generations"][0]["id"] for m in site.status()["models"]}
    check_equal(len(before), n, "models")
    way.kill()
    way.start()
    wait_until(lambda: len(site.status()["models"]) == n or "did not survive" in way.daemon.log(),
               "models")
    after = {m["name"]: (m["generations"][0]["id"], m["generations"][0]["origin"])
             for m in site.status()["models"]}
    check_equal(after, {name: (i, "adopted") for name, i in before.items()}, "generations")
    way.close()


def test_verify_remembers(site):
    """Sums of a file that a load does not read are made by the first verify, and outlive weightd."""
    path = os.path.join(site.dir, "m.gguf")
    shutil.copy(harness.MODEL, path)
    way = Way(site, "keeper", ["--place", "*=paged", "--scrub", "0"], model=path)
    way.start()
    before = generation(site)
    check_equal(site.ctl("--json", "verify", "demo").json()["n_tensors"], 0, "what differs")
    way.kill()
    times = os.stat(path)
    with open(path, "r+b") as f:
        f.seek(times.st_size // 2)
        byte = f.read(1)
        f.seek(times.st_size // 2)
        f.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    way.start()
    check_adopted(site, way, before)
    found = site.ctl("--json", "verify", "demo", status=None)
    check_equal(found.json()["n_tensors"], 1, f"what differs: {found}")
    way.close()


harness.run(globals())
