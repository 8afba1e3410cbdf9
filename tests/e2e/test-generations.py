#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Lifetimes of generations: replaced beside and drained first, evicted, pinned, cooled and heated,
unloaded under workers that stay, and a status that answers whatever the loader does."""
import json
import os
import socket
import statistics
import subprocess
import threading
import time

import harness
import worker_socket
from harness import check, check_equal, wait_until

QUESTION = "Which continent is Chile in?"
ANSWER = "Chile is in South America.\n"
MIB = 1 << 20


def states(site, model):
    """[(state, leases, holds)] of a model's generations, oldest first; empty when there is none."""
    return [(g["state"], g["n_leases"], g["n_holds"]) for m in site.status()["models"]
            if m["name"] == model for g in m["generations"]]


def models(site):
    return {m["name"] for m in site.status()["models"]}


def device_bytes(status):
    """Of weights on the device, as the loader's account has it."""
    return sum(h["weights_bytes"] for h in status["device"]["heaps"])


def check_answer(site, worker, what):
    check_equal(site.ctl("ask", QUESTION, worker=worker).out, ANSWER, what)


def make_model(site, name, n_mib, seed=1):
    path = os.path.join(site.dir, name + ".gguf")
    subprocess.run([harness.need_env("MKMODEL_BIN"), path, "--bytes", f"{n_mib}M", "--seed",
                    str(seed)], check=True, timeout=120, stdout=subprocess.DEVNULL)
    return path


def acquire_message(connection, model):
    """The body of Acquire for weightd's own device, opaque descriptors alone."""
    uuids = worker_socket.fields(connection.welcome[3])
    return (worker_socket.field(1, model) + worker_socket.field(2, uuids[1]) +
            worker_socket.field(3, uuids[2]))


class Lease:
    """A worker's connection by hand, of a process that can be killed: it leases and stays."""

    def __init__(self, site, model):
        self.connection = Weightd(site, role=1)
        reply = self.connection.ask(4, acquire_message(self.connection, model))
        check(5 in reply, f"Acquire of {model}: {reply}")
        self.generation = worker_socket.fields(reply[5])[1]

    def close(self):
        self.connection.close()


class Weightd:
    """weightd's socket by hand: SOCK_SEQPACKET, one protobuf message a packet."""

    def __init__(self, site, role=2):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(harness.CTL_SECONDS)
        self.socket.connect(site.weightd_socket)
        self.last_id = 0
        self.events = []
        hello = worker_socket.field(1, 1) + worker_socket.field(2, "test")
        self.welcome = worker_socket.fields(self.ask(3, hello + worker_socket.field(3, role))[4])

    def receive(self):
        data, fds, _, _ = socket.recv_fds(self.socket, 65536, 64)
        for fd in fds:
            os.close(fd)
        return worker_socket.fields(data)

    def ask(self, body, message=b""):
        """The first packet of the answer; events that come before it are kept."""
        self.last_id += 1
        self.socket.send(worker_socket.field(1, self.last_id) + worker_socket.field(body, message))
        while True:
            reply = self.receive()
            if reply.get(1) == self.last_id:
                return reply
            self.events.append(worker_socket.fields(reply[9]))

    def close(self):
        self.socket.close()


def test_replace_beside(site):
    """Both fit: the old one serves until the new one is ready, and as long as somebody has it. An
    idle worker moves on."""
    weightd = site.weightd({"demo": harness.MODEL})
    lease = Lease(site, "demo")
    old = site.worker("demo")
    site.ctl("load", f"demo={harness.MODEL}", "--replace")
    wait_until(lambda: states(site, "demo") == [("draining", 1, 0), ("ready", 1, 0)], "beside")
    check("drains first" not in weightd.log(), weightd.log())
    # REPLACED, to who has the old one, with the new one's id.
    event = worker_socket.fields(lease.connection.receive()[9])
    check_equal((event[1], event[3]), (9, lease.generation + 1), "event")
    check_answer(site, old, "of who has moved")
    young = site.worker("demo")
    check_answer(site, young, "of the new generation")
    lease.close()
    old.stop()


def test_replace_drains_first(site):
    """No room for two: the old one drains, Acquire waits, and the new one is loaded after it."""
    weightd = site.weightd({"demo": harness.MODEL}, ["--vram-budget", "10M"])
    worker = site.worker("demo", ["--no-park"])
    check_answer(site, worker, "before")
    lease = Lease(site, "demo")
    load = site.start_ctl("load", f"demo={harness.MODEL}", "--replace")
    wait_until(lambda: states(site, "demo") == [("draining", 2, 0), ("loading", 0, 0)],
               "the old generation drains")
    check("drains first" in weightd.log(), weightd.log())
    event = worker_socket.fields(lease.connection.receive()[9])
    check_equal((event[1], event[3]), (8, lease.generation), "event: kind, generation")
    check_answer(site, worker, "while it drains")
    started = []
    waiter = threading.Thread(target=lambda: started.append(site.worker("demo")))
    waiter.start()
    # The waiting worker's is the third connection; it has no lease.
    wait_until(lambda: len(site.status()["workers"]) == 3, "a worker that waits")
    worker.stop()
    time.sleep(0.2)
    check_equal(states(site, "demo"), [("draining", 1, 0), ("loading", 0, 0)], "one to go")
    lease.close()
    # Our own process lives on: it could have the memory imported still.
    wait_until(lambda: states(site, "demo")[0] == ("held", 0, 1), "held by a process")
    pids = [h["pid"] for h in site.status()["holders"]]
    check_equal(pids, [os.getpid()], "who holds")
    check(load.poll() is None and waiter.is_alive(), "loaded while the old one is held")
    again = Weightd(site, role=1)
    check_equal(worker_socket.fields(again.ask(13, worker_socket.field(1, lease.generation))[6])[1],
                lease.generation, "Release ends the hold")
    again.close()
    check_equal(site.finish_ctl(load).status, 0, "load --replace")
    waiter.join()
    check_equal(states(site, "demo"), [("ready", 1, 0)], "after it")
    check_answer(site, started[0], "of the new generation")


def test_replaced_worker_parks(site):
    """No room for two: the idle worker that has the old one makes way, and returns to the new."""
    site.weightd({"demo": harness.MODEL}, ["--vram-budget", "10M"])
    worker = site.worker("demo")
    check_answer(site, worker, "before")
    site.ctl("load", f"demo={harness.MODEL}", "--replace")
    check_equal(states(site, "demo"), [("ready", 0, 0)], "the worker has parked")
    check_answer(site, worker, "of the new generation")
    check_equal(states(site, "demo"), [("ready", 1, 0)], "the worker is back")


def test_replace_that_cannot_fit(site):
    """What not even the empty device takes is refused, and the old generation lives."""
    big = make_model(site, "big", 24)
    site.weightd({"demo": harness.MODEL}, ["--vram-budget", "10M", "--place", "*=device"])
    worker = site.worker("demo", ["--no-park"])
    load = site.ctl("load", f"demo={big}", "--replace", status=1)
    check("needs" in load.err and f"by pid {worker.pid}" in load.err, load.err)
    check_equal(states(site, "demo"), [("ready", 1, 0)], "the old one")
    check_answer(site, worker, "of the old one")
    # Given up while it waits for its turn: the old one is gone by then, as was asked.
    load = site.start_ctl("load", f"demo={harness.MODEL}", "--replace")
    wait_until(lambda: states(site, "demo") == [("draining", 1, 0), ("loading", 0, 0)], "drains")
    site.ctl("unload", "demo")
    ended = site.finish_ctl(load)
    check_equal(ended.status, 1, "load that was given up")
    check("unloaded while it loaded" in ended.err, ended.err)
    check_equal(states(site, "demo"), [("draining", 1, 0)], "what is left")
    check_answer(site, worker, "of what is left")


def use(site, model):
    """A lease that ends, and no process that holds."""
    lease = Lease(site, model)
    done = lease.connection.ask(13, worker_socket.field(1, lease.generation))
    check(6 in done, f"Release: {done}")
    lease.close()


def test_least_recently_used_goes(site):
    paths = {name: make_model(site, name, 8, seed) for seed, name in enumerate("abcdef", 1)}
    weightd = site.weightd({}, ["--vram-budget", "20M", "--place", "*=device"])

    def load(name, status=0):
        return site.ctl("load", f"{name}={paths[name]}", status=status)

    load("a")
    load("b")
    check_equal(models(site), {"a", "b"}, "both fit")
    use(site, "a")
    load("c")
    check_equal(models(site), {"a", "c"}, "b was used least recently")
    check("model b: generation 2 makes room for generation 3 of c" in weightd.log(), weightd.log())
    site.ctl("pin", "a")
    load("d")
    check_equal(models(site), {"a", "d"}, "a is pinned")
    check_equal([g["pinned"] for m in site.status()["models"] for g in m["generations"]],
                [True, False], "pinned")
    site.ctl("unpin", "a")
    lease = Lease(site, "d")
    load("e")
    check_equal(models(site), {"d", "e"}, "d is leased, a is pinned no more")
    site.ctl("pin", "e")
    refused = load("f", status=1)
    check(f"d generation 4" in refused.err and f"held by pid {os.getpid()}" in refused.err,
          refused.err)
    check("e generation 5" in refused.err and "pinned" in refused.err, refused.err)
    check_equal(models(site), {"d", "e"}, "nobody goes for nothing")
    lease.close()
    check("no model x" in site.ctl("pin", "x", status=1).err, "pin of nothing")


def test_no_room_without_a_rule(site):
    """Nobody goes for a model that would leave the device in part all the same."""
    small, large = make_model(site, "small", 8), make_model(site, "large", 40)
    site.weightd({"small": small}, ["--vram-budget", "20M"])
    site.ctl("load", f"large={large}")
    check_equal(models(site), {"small", "large"}, "models")
    placed = {a["placement"] for m in site.status()["models"] if m["name"] == "large"
              for g in m["generations"] for a in g["allocations"]}
    check("device" in placed and len(placed) > 1, f"placements of the large one: {placed}")


def layered(site, layer):
    """The environment of a weightd on a device that the simulating layer makes."""
    directory = os.environ.get("LAYER_DIR")
    if not directory:
        raise harness.Skip("LAYER_DIR is not set")
    cache = os.path.join(site.dir, "cache")
    os.mkdir(cache, mode=0o700)
    return dict(site.env, VK_ADD_LAYER_PATH=directory, WEIGHTD_CACHE=cache,
                VK_INSTANCE_LAYERS="VK_LAYER_WEIGHTD_simulate_validated",
                WEIGHTD_LAYER_LOG=os.path.join(site.dir, "layer.log"),
                **{f"WEIGHTD_LAYER_{name}": value for name, value in layer.items()})


def imports(site, pid):
    """[why it failed or None] of memfd pages that the process imported."""
    with open(os.path.join(site.dir, "layer.log"), encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    return [r.get("reason") for r in rows if r["pid"] == pid and
            r.get("import", {}).get("kind") == "memfd"]


def cool_and_heat(site, args=(), where="host memory"):
    """Idle, warm, heated: the same answers before and after. Returns weightd."""
    weightd = site.weightd({"demo": harness.MODEL}, ["--idle", "1", *args])
    loaded = device_bytes(site.status())
    check(loaded > 0, f"on the device: {loaded}")
    worker = site.worker("demo")
    check_answer(site, worker, "before")
    time.sleep(2.5)
    check_equal(states(site, "demo"), [("ready", 1, 0)], "while somebody has it")
    worker.stop()
    wait_until(lambda: states(site, "demo") == [("warm", 0, 0)], "it cools")
    check(f"it is ready in {where}" in weightd.log(), weightd.log())
    status = wait_until(lambda: (lambda s: device_bytes(s) == 0 and s)(site.status()),
                        "device memory is free")
    generation = harness.only_generation(status, "demo")
    check_equal(generation["allocations"], [], "allocations of a warm generation")
    check_equal(generation["architecture"], "qwen3", "architecture of a warm generation")
    staged = generation["weights_bytes"]
    check(staged >= 0.95 * loaded if where == "host memory" else staged == 0, f"staged {staged}")
    check(generation["idle_ns"] > 1e9, f"idle for {generation['idle_ns']}")
    check("warm" in site.ctl("ls").out, "warm in ls")
    check("is warm" in site.ctl("map", "demo", status=1).err, "map of a warm generation")
    worker = site.worker("demo")
    check_equal(states(site, "demo"), [("ready", 1, 0)], "heated")
    check_answer(site, worker, "after")
    status = site.status()
    check_equal(device_bytes(status), loaded, "on the device again")
    # One copy: what was staged is gone.
    check_equal(harness.only_generation(status, "demo")["weights_bytes"], loaded, "resident")
    return weightd


def test_cool_and_heat_by_imports(site):
    site.env = layered(site, {})
    weightd = cool_and_heat(site, ["--window", "1M"])
    found = imports(site, weightd.pid)
    check(len(found) >= 4 and set(found) == {None}, f"imports of the memfd: {found}")


def test_cool_and_heat_through_the_ring(site):
    site.env = layered(site, {"REFUSE": "memfd"})
    weightd = cool_and_heat(site)
    check_equal(imports(site, weightd.pid), [], "imports of what the probe found refused")


def test_heat_when_an_import_is_refused(site):
    """The probe's and the first are let through: the rest goes through the ring."""
    site.env = layered(site, {"REFUSE": "memfd", "REFUSE_FROM": "2"})
    weightd = cool_and_heat(site, ["--window", "1M"])
    check_equal(imports(site, weightd.pid), [None, "refuse"], "imports of the memfd")
    check("refuses to import a memfd" in weightd.log(), weightd.log())


def test_cool_without_room(site):
    weightd = cool_and_heat(site, ["--host-budget", "1M"], where="its file")
    check("its file's page cache has to do" in weightd.log(), weightd.log())


def test_warm_file_changes(site):
    """What is warm was read from a file; another file is never taken for it."""
    path = os.path.join(site.dir, "model.gguf")
    with open(harness.MODEL, "rb") as f:
        data = f.read()
    for budget, reason in (([], "changed"), (["--host-budget", "1M"], "changed")):
        with open(path, "wb") as f:
            f.write(data)
        weightd = site.weightd({"demo": path}, ["--idle", "1", *budget])
        wait_until(lambda: states(site, "demo") == [("warm", 0, 0)], "it cools")
        with open(path, "r+b") as f:
            f.write(data)
        lease = Weightd(site, role=1)
        reply = lease.ask(4, acquire_message(lease, "demo"))
        check(3 in reply, f"Acquire of a changed file: {reply}")
        wait_until(lambda: not states(site, "demo"), "it is lost")
        check(reason in weightd.log() and "is lost" in weightd.log(), weightd.log())
        lease.close()
        weightd.stop()


def test_heated_when_there_is_room(site):
    """Who asks for a warm model that finds no room is refused, and it stays warm."""
    weightd = site.weightd({"demo": harness.MODEL},
                 ["--idle", "1", "--vram-budget", "10M", "--place", "*=device"])
    wait_until(lambda: states(site, "demo") == [("warm", 0, 0)], "it cools")
    site.ctl("load", f"other={harness.MODEL}")
    lease = Lease(site, "other")
    connection = Weightd(site, role=1)
    for _ in range(2):
        reply = connection.ask(4, acquire_message(connection, "demo"))
        check(3 in reply, f"Acquire without room: {reply}")
        text = worker_socket.fields(reply[3])[2].decode()
        check("needs" in text and "other" not in text, f"who has it is not for everybody: {text}")
        check(f"other generation 2" in weightd.log() and f"by pid {os.getpid()}" in weightd.log(),
              weightd.log())
        check_equal(states(site, "demo"), [("warm", 0, 0)], "as warm as before")
    lease.connection.ask(13, worker_socket.field(1, lease.generation))
    lease.close()
    worker = site.worker("demo")
    check_answer(site, worker, "once the other one can go")
    check_equal(models(site), {"demo"}, "the other one is gone")
    # Given up while it is heated, or just before or after: nothing is left of it.
    worker.stop()
    wait_until(lambda: states(site, "demo") == [("warm", 0, 0)], "it cools again")
    acquire = worker_socket.field(4, acquire_message(connection, "demo"))
    unload = worker_socket.field(6, worker_socket.field(1, "demo"))
    connection.socket.send(worker_socket.field(1, 50) + acquire)
    connection.socket.send(worker_socket.field(1, 51) + unload)
    bodies = {}
    while len(bodies) < 2:
        reply = connection.receive()
        bodies[reply[1]] = reply
    check(6 in bodies[51], f"Unload: {bodies[51]}")
    check(3 in bodies[50] or 5 in bodies[50], f"Acquire: {bodies[50]}")
    connection.close()
    # Our process still holds what it was given, if it was.
    wait_until(lambda: [row[0] for row in states(site, "demo")] in ([], ["held"]), "gone")
    is_held = bool(states(site, "demo"))
    wait_until(lambda: (device_bytes(site.status()) > 0) == is_held, "device memory")


def test_idle_unload(site):
    weightd = site.weightd({"a": harness.MODEL, "b": harness.MODEL},
                           ["--idle", "1", "--idle-unload", "3"])
    site.ctl("pin", "b")
    wait_until(lambda: states(site, "a") == [("warm", 0, 0)], "a cools")
    wait_until(lambda: models(site) == {"b"}, "a goes")
    check("unused for" in weightd.log(), weightd.log())
    check_equal(states(site, "b"), [("ready", 0, 0)], "b is pinned")
    check_equal(device_bytes(site.status()),
                harness.only_generation(site.status(), "b")["weights_bytes"], "on the device")


def test_unload_with_a_timeout(site):
    weightd = site.weightd({"demo": harness.MODEL})
    n_fds = weightd.n_fds()
    worker = site.worker("demo")
    lease = Lease(site, "demo")
    out = site.ctl("unload", "demo", "--timeout", "1").out
    check_equal(out, "demo: draining: 2 leases\n", "unload")
    # The worker lets go by itself, our process does not.
    wait_until(lambda: states(site, "demo") == [("held", 0, 1)], "leases end", 10)
    check_equal({h["pid"] for h in site.status()["holders"]}, {os.getpid()}, "holders")
    check("2 leases end" in weightd.log(), weightd.log())
    text = site.ctl("status").out
    check(f"process {os.getpid()}, uid" in text and "still holds" in text, text)
    event = worker_socket.fields(lease.connection.receive()[9])
    check_equal((event[1], event[3]), (11, lease.generation), "event: kind, generation")
    refused = site.ctl("ask", QUESTION, worker=worker, status=1)
    check("the worker is parked" in refused.err and "no model demo" in refused.err, refused.err)
    check("no model demo" in site.ctl("unload", "demo", status=1).err, "unload of what goes")
    lease.connection.ask(13, worker_socket.field(1, lease.generation))
    check_equal(states(site, "demo"), [], "after a release")
    refused = lease.connection.ask(13, worker_socket.field(1, lease.generation))
    check(3 in refused, f"a second release: {refused}")
    worker.stop()
    lease.close()
    check_equal(device_bytes(wait_until(
        lambda: (lambda s: device_bytes(s) == 0 and s)(site.status()), "free")), 0, "device")
    wait_until(lambda: weightd.n_fds() <= n_fds, "descriptors of who held")


def test_unload_at_once(site):
    """--timeout 0 is no wait, not no timeout: the answer finds no lease."""
    weightd = site.weightd({"demo": harness.MODEL})
    lease = Lease(site, "demo")
    out = site.ctl("unload", "demo", "--timeout", "0").out
    check_equal(out, "demo: held: a process that had a lease is still alive\n", "unload")
    check_equal(states(site, "demo"), [("held", 0, 1)], "no lease")
    check("1 leases end" in weightd.log(), weightd.log())
    event = worker_socket.fields(lease.connection.receive()[9])
    check_equal((event[1], event[3]), (11, lease.generation), "event: kind, generation")
    lease.close()


def test_hold_after_expulsion_and_close(site):
    """A connection that was expelled once still counts when it ends with another lease."""
    site.weightd({"demo": harness.MODEL, "other": harness.MODEL})
    first = Lease(site, "demo")
    site.ctl("unload", "demo", "--timeout", "1")
    wait_until(lambda: states(site, "demo") == [("held", 0, 1)], "expelled", 10)
    reply = first.connection.ask(4, acquire_message(first.connection, "other"))
    check(5 in reply, f"Acquire: {reply}")
    first.close()
    wait_until(lambda: states(site, "other") == [("ready", 0, 1)], "a hold of the process")
    check_equal([(h["pid"], {x["model"] for x in h["holds"]}) for h in site.status()["holders"]],
                [(os.getpid(), {"demo", "other"})], "holders")


def expel_amid(site, args, change, reason):
    """How an answer ends whose lease does, with another generation of the model there already;
    change(path): of the file, before that is loaded."""
    path = make_model(site, "mine", 8)
    site.weightd({"demo": path}, args)
    worker = site.worker("demo", ["--ctx", "1024"])
    n_tokens = worker_socket.count_tokens(worker, 6, 900)
    undisturbed = worker_socket.Running(worker, n_tokens).finish()[0]
    running = worker_socket.Running(worker, n_tokens)
    wait_until(lambda: running.has(1), "a token")
    site.ctl("unload", "demo", "--timeout", "1")
    change(path)
    site.ctl("load", f"demo={path}")
    found = running.finish()
    check_equal(found[1], reason, f"how it ended: {found[2]}, {worker.log()}")
    if reason == worker_socket.LENGTH:
        check_equal(found[0], undisturbed, "tokens")
        check("what was under way goes on" in worker.log(), worker.log())
    else:
        check("is not known to be the same" in found[2], found[2])
    site.ctl("complete", "a", "--n-predict", "2", worker=worker)
    with worker_socket.Connection(worker) as c:
        check_equal(c.status()[5], 2, "generation of the worker")


def test_expelled_answer_goes_on(site):
    expel_amid(site, [], lambda path: os.utime(path, (1, 1)), worker_socket.LENGTH)


def test_expelled_answer_ends(site):
    expel_amid(site, [], lambda path: make_model(site, "mine", 8, seed=2), worker_socket.FAILED)


def test_expelled_answer_of_the_same_file(site):
    """Without an identity the file has to be what it was."""
    expel_amid(site, ["--place", "*=pinned"], lambda path: None, worker_socket.LENGTH)


def test_expelled_answer_of_a_file_that_moved(site):
    expel_amid(site, ["--place", "*=pinned"], lambda path: os.utime(path, (1, 1)),
               worker_socket.FAILED)


def waited_seconds(pids):
    """For a processor, of the main threads of the processes: no fault of who waits."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/task/{pid}/schedstat", encoding="utf-8") as f:
                total += int(f.read().split()[1])
        except OSError:
            pass  # a kernel without
    return total / 1e9


def test_release_before_reading(site):
    """Descriptors that wait for their reader are not sent once the lease has ended."""
    weightd = site.weightd({"demo": harness.MODEL})
    lease = Lease(site, "demo")
    generation = lease.generation
    acquire = worker_socket.field(4, acquire_message(lease.connection, "demo"))
    for i in range(300):
        lease.connection.socket.send(worker_socket.field(1, 100 + i) + acquire)
    site.ctl("unload", "demo")
    lease.connection.socket.send(worker_socket.field(1, 1000) + worker_socket.field(
        13, worker_socket.field(1, lease.generation)))
    wait_until(lambda: not states(site, "demo"), "it is gone")
    # Others that take the numbers of those that were closed, and are none of the reader's business.
    others = [Weightd(site) for _ in range(20)]
    inodes = set()
    n = 0
    while True:
        try:
            data, fds, _, _ = socket.recv_fds(lease.connection.socket, 65536, 64)
        except ConnectionResetError:
            break
        for fd in fds:
            st = os.fstat(fd)
            os.close(fd)
            inodes.add((st.st_dev, st.st_ino))
        if not data:
            break
        reply = worker_socket.fields(data)
        check(5 not in reply or worker_socket.fields(reply[5])[1] == generation, f"{reply}")
        n += 1
        if n == 300:
            break
    check(0 < n < 300, f"{n} answers, and then the end of the connection")
    check_equal(len(inodes), 2, "files behind the descriptors: the manifest and the weights")
    check(weightd.is_alive(), "weightd ended")
    for connection in [lease, *others]:
        connection.close()


def ask_status(connection, pid):
    """Seconds until the answer; those that a thread waited for a processor are not counted."""
    pids = (pid, os.getpid())
    waited = waited_seconds(pids)
    start = time.monotonic()
    connection.ask(8)
    seconds = time.monotonic() - start
    return max(0, seconds - (waited_seconds(pids) - waited))


def test_status_while_it_loads(site):
    """The loop thread waits for nothing that the loader does."""
    site.env["WEIGHTD_VALIDATION"] = "0"
    big = make_model(site, "big", 1024)
    pid = site.weightd({"demo": harness.MODEL}, ["--idle", "2"]).pid
    connection = Weightd(site)
    seconds = {"idle": [ask_status(connection, pid) for _ in range(100)]}

    def watch(phase, is_over):
        seconds[phase] = []
        end = time.monotonic() + 60
        while not is_over():
            for _ in range(5):
                seconds[phase].append(ask_status(connection, pid))
                time.sleep(0.002)
            check(time.monotonic() < end, f"{phase} takes too long")

    load = site.start_ctl("load", f"big={big}")
    watch("loading", lambda: load.poll() is not None)
    check_equal(site.finish_ctl(load).status, 0, "load")
    watch("cooling", lambda: [s[0] for s in states(site, "big")] == ["warm"])
    site.ctl("unload", "big")
    end = time.monotonic() + 1
    watch("dropping", lambda: time.monotonic() > end)
    for phase, times in seconds.items():
        print(f"# status while {phase}: {len(times)} answers, median "
              f"{statistics.median(times) * 1e3:.2f} ms, max {max(times) * 1e3:.2f} ms")
    for phase, times in seconds.items():
        check(len(times) >= 25, f"{phase}: {len(times)} answers")
        check(statistics.median(times) < 0.05, f"median while {phase}")
        check(max(times) < 0.05, f"max while {phase}")
    connection.close()


harness.run(globals())
