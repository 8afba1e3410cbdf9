#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a weightd that dies must not forget: models that are warm, who holds, what was granted, and
what was to take another's place."""
import os
import random
import shutil
import signal
import subprocess
import time

import harness
from harness import check, check_equal, wait_until
from restart_way import Way, check_adopted, generation, read_io, wait_leases
from weightd_socket import Weightd

QUESTION = "Which continent is Chile in?"
ANSWER = "Chile is in South America.\n"
N_ROUNDS = 12  # of kills at random times
SEED = 20


def states(site, model="demo"):
    """[(state, leases, holds)] of a model's generations, oldest first."""
    return [(g["state"], g["n_leases"], g["n_holds"]) for m in site.status()["models"]
            if m["name"] == model for g in m["generations"]]


def holders(site):
    """{pid: generations that it holds}."""
    return {h["pid"]: [x["generation"] for x in h["holds"]] for h in site.status()["holders"]}


def device_bytes(site):
    return sum(h["weights_bytes"] for h in site.status()["device"]["heaps"])


def make_model(site, name, n_mib, seed=1):
    path = os.path.join(site.dir, name + ".gguf")
    subprocess.run([harness.need_env("MKMODEL_BIN"), path, "--bytes", f"{n_mib}M", "--seed",
                    str(seed)], check=True, timeout=120, stdout=subprocess.DEVNULL)
    return path


def cool(site, way):
    """The model was used, and is warm now: what status says of it."""
    way.start()
    worker = site.worker("demo")
    check_equal(site.ctl("ask", QUESTION, worker=worker).out, ANSWER, "before")
    worker.stop()
    wait_until(lambda: states(site) == [("warm", 0, 0)], "it cools")
    wait_until(lambda: device_bytes(site) == 0, "device memory is free")
    return generation(site)


def check_heated(site):
    worker = site.worker("demo")
    check_equal(states(site), [("ready", 1, 0)], "heated")
    check_equal(site.ctl("ask", QUESTION, worker=worker).out, ANSWER, "after")
    check_equal(site.ctl("verify", "demo").status, 0, "verify")


def test_warm(site):
    """What is ready in host memory is so after a restart, and after another one."""
    for kind in "keeper", "manager":
        way = Way(site, kind, ["--idle", "1"])
        before = cool(site, way)
        site.ctl("pin", "demo")
        for _ in range(2):
            way.kill()
            way.start()
            check_equal(states(site), [("warm", 0, 0)], "states")
            check_adopted(site, way, before)
            check_equal(generation(site)["pinned"], True, "pinned")
        check("warm: it is ready in host memory" in way.daemon.log(), way.daemon.log())
        read = read_io(way.daemon.pid)["rchar"]
        check_heated(site)
        # The metadata is read from the file, weights are not.
        read = read_io(way.daemon.pid)["rchar"] - read
        check(read < before["file_bytes"] / 4, f"{read} bytes were read to heat it")
        way.close()


def test_warm_by_client(site):
    """No command line names it, and its place in host memory is all there is."""
    path = os.path.join(site.dir, "m.gguf")
    shutil.copy(harness.MODEL, path)
    way = Way(site, "keeper", ["--idle", "1"], model=None)
    way.start()
    site.ctl("load", f"demo={path}")
    wait_until(lambda: states(site) == [("warm", 0, 0)], "it cools")
    before = generation(site)
    os.unlink(path)
    way.kill()
    way.start()
    wait_until(lambda: states(site) == [("warm", 0, 0)], "states")
    check_adopted(site, way, before)
    check_heated(site)
    way.close()


def test_warm_in_its_file(site):
    """Where host memory is short, its file is what is kept."""
    way = Way(site, "keeper", ["--idle", "1", "--host-budget", "1M"])
    before = cool(site, way)
    way.kill()
    way.start()
    check_equal(states(site), [("warm", 0, 0)], "states")
    check_adopted(site, way, before)
    check("warm: it is ready in its file" in way.daemon.log(), way.daemon.log())
    check_heated(site)
    way.close()


def kept_memfd(keeper):
    """The path of the memfd that the keeper has; it may still read what it was sent."""
    folder = f"/proc/{keeper}/fd"
    found = [os.path.join(folder, fd) for fd in os.listdir(folder)]
    return next((fd for fd in found if "weightd-weights" in os.readlink(fd)), None)


def test_warm_damaged(site):
    """Its sums come back with it: what was changed meanwhile is not served."""
    way = Way(site, "keeper", ["--idle", "1"], model=None)
    way.start()
    site.ctl("load", f"demo={harness.MODEL}")
    wait_until(lambda: states(site) == [("warm", 0, 0)], "it cools")
    way.kill()
    memfd = wait_until(lambda: kept_memfd(site.keepers()[0]), "the memfd in the keeper")
    with open(memfd, "r+b") as f:
        f.seek(os.stat(memfd).st_size // 2)
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 0x10]))
    way.start()
    wait_until(lambda: states(site) == [("warm", 0, 0)], "states")
    worker = subprocess.run(
        [harness.need_env("WORKERD_BIN"), "--model", "demo", "--weights", site.weightd_socket,
         "--socket", os.path.join(site.dir, "w.sock")],
        env=site.env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=120)
    check(worker.returncode != 0 and "not those that were loaded before" in worker.stderr,
          f"a worker of damaged weights: {worker}")
    way.close()


def test_killed_while_heating(site):
    """Heated or warm, it is there, and it is right."""
    path = make_model(site, "big", 96)
    way = Way(site, "keeper", ["--idle", "1"], model=None)
    way.start()
    site.ctl("load", f"big={path}")
    for seconds in (0.0, 0.02, 0.05, 0.1):
        wait_until(lambda: states(site, "big") == [("warm", 0, 0)], "it cools", 60)
        client = Weightd(site)
        client.send_acquire("big")
        time.sleep(seconds)
        way.kill()
        client.close()
        way.start()
        wait_until(lambda: [s for s, _, _ in states(site, "big")] in (["warm"], ["ready"]),
                   "the model")
        check_equal(harness.only_generation(site.status(), "big")["origin"], "adopted", "origin")
        check_equal(site.ctl("verify", "big", status=None).status if
                    states(site, "big")[0][0] == "ready" else 0, 0, "verify")
    way.close()


def test_held(site):
    """A worker that was expelled and has not let go: its generation is nobody else's, before and
    after, until the process is gone."""
    for kind in "keeper", "manager":
        way = Way(site, kind, model=None)
        way.start()
        site.ctl("load", f"demo={harness.MODEL}")
        worker = site.worker("demo")
        before = generation(site)
        worker.signal(signal.SIGSTOP)
        site.ctl("unload", "demo", "--timeout", "1")
        wait_until(lambda: states(site) == [("held", 0, 1)], "it is expelled")
        n_bytes = device_bytes(site)
        for _ in range(2):
            way.kill()
            way.start()
            wait_until(lambda: states(site) == [("held", 0, 1)], "held as before")
            check_equal(holders(site), {worker.pid: [before["id"]]}, "holders")
            check_equal(device_bytes(site), n_bytes, "bytes on the device")
            account = site.status()["devices"][0]["account"]
            check(account["weights_bytes"] >= n_bytes, f"account: {account}")
        check(f"process {worker.pid}, uid" in site.ctl("status").out, "status names it")
        worker.kill()
        wait_until(lambda: states(site) == [], "it goes with its process")
        wait_until(lambda: device_bytes(site) == 0, "device memory is free")
        way.close()


def test_ready_and_held(site):
    """A hold on what others may lease; who holds takes its lease back."""
    way = Way(site, "keeper")
    way.start()
    client = Weightd(site)
    client.acquire("demo")
    client.close()
    wait_until(lambda: states(site) == [("ready", 0, 1)], "a hold")
    way.kill()
    way.start()
    check_equal(states(site), [("ready", 0, 1)], "the hold")
    check_equal(holders(site), {os.getpid(): [generation(site)["id"]]}, "holders")
    way.kill()
    way.start()
    check_equal(states(site), [("ready", 0, 1)], "the hold")
    way.close()


def test_let_go_is_let_go(site):
    """Who did not come back, and says later that it has let go, is not waited for the next time."""
    way = Way(site, "keeper")
    way.start()
    client = Weightd(site)
    held = client.acquire("demo")
    way.kill()
    way.start()
    wait_until(lambda: states(site) == [("ready", 0, 1)], "it is not waited for any more")
    client.close()
    client = Weightd(site)
    client.release(held)
    check_equal(states(site), [("ready", 0, 0)], "released")
    way.kill()
    way.start()
    time.sleep(6)  # as long as anybody is waited for
    check_equal(states(site), [("ready", 0, 0)], "nobody has it")
    client.close()
    way.close()


def test_let_go_meanwhile(site):
    """Who is waited for, and says that it has let go, becomes no holder."""
    way = Way(site, "keeper")
    way.start()
    client = Weightd(site)
    held = client.acquire("demo")
    way.kill()
    client.close()
    way.start()
    client = Weightd(site)
    client.release(held)
    client.close()
    time.sleep(6)  # as long as anybody is waited for
    check_equal(states(site), [("ready", 0, 0)], "nobody has it")
    way.close()


def test_grant_of_who_does_not_come_back(site):
    """It counts from the start on: nobody is granted what a process may still have."""
    mib = 1 << 20
    way = Way(site, "keeper")
    way.start()
    one, two = site.worker("demo"), site.worker("demo")
    account = site.status()["devices"][0]["account"]
    budget = account["weights_bytes"] + account["reserved_bytes"] + 4 * mib
    for worker in two, one:
        worker.stop()
    way.close()
    way = Way(site, "keeper", ["--device-budget", str(budget)])
    way.start()
    one, two = site.worker("demo", ["--no-park"]), site.worker("demo", ["--no-park"])
    before = site.status()["devices"][0]["account"]
    granted = {w["pid"]: w["reserved_bytes"] for w in site.status()["workers"]}
    left = budget - before["weights_bytes"] - before["reserved_bytes"]
    check(left > mib and granted[one.pid] > 2 * mib, f"{before}, {granted}")
    one.signal(signal.SIGSTOP)
    for _ in range(2):
        way.kill()
        way.start()
        wait_leases(site, [two.pid])
        after = site.status()["devices"][0]["account"]
        for figure in ("weights_bytes", "reserved_bytes"):
            check_equal(after[figure], before[figure], figure)
    third = Weightd(site)
    refusal = third.reserve(left + mib)
    check(f"pid {one.pid} (model demo) {granted[one.pid]} without a connection" in refusal,
          f"a third worker that asks for more than is left: {refusal!r}")
    check_equal(third.reserve(left - mib), "", "what is left")
    one.kill()
    wait_until(lambda: site.status()["devices"][0]["account"]["reserved_bytes"] ==
               granted[two.pid] + left - mib, "its grant ends with it")
    check_equal(third.reserve(left + mib), "", "what it had")
    third.close()
    way.close()


def test_grant_comes_back_once(site):
    """Who resumes late has what it has, and it is not counted twice."""
    way = Way(site, "keeper")
    way.start()
    worker = site.worker("demo")
    before = site.status()["devices"][0]["account"]["reserved_bytes"]
    check(before > 0, "a grant")
    worker.signal(signal.SIGSTOP)
    way.kill()
    way.start()
    check_equal(site.status()["devices"][0]["account"]["reserved_bytes"], before, "at once")
    time.sleep(6)  # nobody is waited for any more
    worker.signal(signal.SIGCONT)
    wait_leases(site, [worker.pid])
    check_equal(site.status()["devices"][0]["account"]["reserved_bytes"], before, "when it is back")
    check_equal(site.ctl("ask", QUESTION, worker=worker).out, ANSWER, "an answer")
    worker.stop()
    wait_until(lambda: site.status()["devices"][0]["account"]["reserved_bytes"] == 0, "given back")
    way.close()


class Lessee:
    """A process of its own that has a lease, and does not outlive this one."""

    def __init__(self, site, model):
        told, tell = os.pipe()
        end, self.hold = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self.hold)
                client = Weightd(site)
                client.acquire(model)
                os.write(tell, b"1")
                os.read(end, 1)
            finally:
                os._exit(1)
        os.close(tell)
        os.close(end)
        check_equal(os.read(told, 1), b"1", f"a lease of {model}")
        os.close(told)

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.hold)


class Returner:
    """A process with a lease by a socket, that wants it back from the weightd that comes next."""

    def __init__(self, site, path, model):
        self.end, end = os.pipe()
        self.told, told = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self.told)
                self.run(site, path, model, self.end, told)
            finally:
                os._exit(1)
        os.close(told)
        self.go = end
        check_equal(self.hear(), b"1", f"a lease of {model}")

    @staticmethod
    def run(site, path, model, go, told):
        client = Weightd(site, path)
        generation = client.acquire(model)
        inode = client.inode
        os.write(told, b"1")
        os.read(go, 1)
        while True:
            try:
                client = Weightd(site, path)
                break
            except OSError:
                time.sleep(0.01)
        os.write(told, b"1" if client.resume(model, generation, inode) else b"0")
        os.read(go, 1)

    def hear(self):
        return os.read(self.told, 1)

    def stop(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        for fd in self.go, self.end, self.told:
            os.close(fd)


def test_refused_and_held(site):
    """Who came back and may not have its lease again has the memory all the same."""
    tenant = os.path.join(site.dir, "tenant.sock")
    path = make_model(site, "big", 96)
    way = Way(site, "keeper", ["--listen", f"{tenant},leases=2"], model=path)
    way.start()
    returners = [Returner(site, tenant, "demo") for _ in range(2)]
    way.kill()
    way.argv = [a.replace("leases=2", "leases=1") for a in way.argv]
    way.start(wait=False)
    for r in returners:
        os.write(r.go, b"1")
    check_equal(sorted(r.hear() for r in returners), [b"0", b"1"], "who has its lease")
    wait_until(lambda: states(site) == [("ready", 1, 1)], "the other one holds", 10)
    for r in returners:
        r.stop()
    wait_until(lambda: states(site) == [("ready", 0, 0)], "nobody has it")
    way.close()


def test_refused_gives_back(site):
    """A worker that may not have its lease again lets go, and what it was granted is free."""
    tenant = os.path.join(site.dir, "tenant.sock")
    way = Way(site, "keeper", ["--listen", f"{tenant},leases=2"])
    way.start()
    workers = [site.worker("demo", ["--weights", tenant]) for _ in range(2)]
    granted = {w["pid"]: w["reserved_bytes"] for w in site.status()["workers"]}
    way.kill()
    way.argv = [a.replace("leases=2", "leases=1") for a in way.argv]
    way.start()
    wait_until(lambda: any("is let go of" in w.log() for w in workers), "one of them lets go")
    wait_until(lambda: states(site) == [("ready", 1, 0)], "one lease")
    has = [w["pid"] for w in site.status()["workers"] if w["leases"]]
    wait_until(lambda: site.status()["devices"][0]["account"]["reserved_bytes"] == granted[has[0]],
               "one grant")
    way.close()


def test_another_socket_before_it(site):
    """A tenant is known by its socket's path, not by its place on the command line."""
    tenant, other = (os.path.join(site.dir, name) for name in ("tenant.sock", "other.sock"))
    way = Way(site, "keeper", ["--listen", f"{tenant},leases=2"])
    way.start()
    worker = site.worker("demo", ["--weights", tenant])
    before = site.status()["devices"][0]["account"]["reserved_bytes"]
    way.kill()
    i = way.argv.index("--listen")
    way.argv[i:i] = ["--listen", other]
    way.start()
    wait_leases(site, [worker.pid])
    wait_until(lambda: "is leased again" in worker.log(), "the worker hears of it")
    time.sleep(6)  # as long as anybody is waited for
    check_equal(states(site), [("ready", 1, 0)], "states")
    check_equal(site.status()["devices"][0]["account"]["reserved_bytes"], before, "one grant")
    way.close()


def start_replacement(site, path):
    return site.start_ctl("load", f"demo={path}", "--replace")


def test_killed_while_it_drains(site):
    """The generation that drains for one that never came serves again."""
    way = Way(site, "keeper", ["--vram-budget", "10M"], model=None)
    way.start()
    site.ctl("load", f"demo={harness.MODEL}")
    worker = site.worker("demo", ["--no-park"])
    before = generation(site)
    replace = start_replacement(site, harness.MODEL)
    wait_until(lambda: states(site) == [("draining", 1, 0), ("loading", 0, 0)], "it drains")
    way.kill()
    check(site.finish_ctl(replace).status != 0, "the command failed")
    way.start()
    wait_leases(site, [worker.pid])
    check_equal(states(site), [("ready", 1, 0)], "states")
    check_adopted(site, way, before)
    check("serves again" in way.daemon.log(), way.daemon.log())
    check_equal(site.ctl("ask", QUESTION, worker=site.worker("demo")).out, ANSWER, "of another")
    way.close()


def test_killed_when_it_has_drained(site):
    """Where nothing is left that could serve, the load begins again."""
    first, second = make_model(site, "first", 96, 1), make_model(site, "second", 96, 2)
    way = Way(site, "keeper", ["--vram-budget", "144M"], model=None)
    way.start()
    site.ctl("load", f"demo={first}")
    client = Weightd(site)
    client.acquire("demo")
    replace = start_replacement(site, second)
    wait_until(lambda: states(site) == [("draining", 1, 0), ("loading", 0, 0)], "it drains")
    site.ctl("pin", "demo")
    client.release(1)
    check_equal(states(site), [("loading", 0, 0)], "the first is gone")
    for _ in range(2):
        way.kill()
        way.start()
    check(site.finish_ctl(replace).status != 0, "the command failed")
    wait_until(lambda: states(site) == [("ready", 0, 0)], "the second is loaded", 60)
    after = generation(site)
    check_equal((after["path"], after["pinned"]), (second, True), "what is loaded")
    check("had not ended, and begins again" in way.daemon.log(), way.daemon.log())
    check_equal(site.ctl("verify", "demo").status, 0, "verify")
    client.close()
    way.close()


def test_killed_while_it_replaces_at_any_time(site):
    """Whatever was under way: some generation serves in the end, and none drains for ever."""
    paths = [make_model(site, "first", 24, 1), make_model(site, "second", 24, 2)]
    way = Way(site, "keeper", ["--vram-budget", "36M"], model=None)
    way.start()
    site.ctl("load", f"demo={paths[0]}")
    found = []
    dice = random.Random(SEED)
    for i in range(N_ROUNDS):
        lessee = Lessee(site, "demo") if i % 3 == 0 else None  # it is to drain first
        replace = start_replacement(site, paths[(i + 1) % 2])
        if lessee:
            wait_until(lambda: states(site)[0][0] == "draining", "it drains")
        time.sleep(dice.random() * 0.3)
        way.kill()
        site.finish_ctl(replace)
        way.start()
        wait_until(lambda: "ready" in [s[0] for s in states(site)],
                   f"round {i}: a generation that serves", 60)
        if lessee:
            lessee.end()
        wait_until(lambda: states(site) == [("ready", 0, 0)],
                   f"round {i}: one generation, and nobody has it", 60)
        found.append(os.path.basename(generation(site)["path"]))
        check_equal(site.ctl("verify", "demo").status, 0, f"round {i}: verify")
    print(f"# what served after each kill: {' '.join(found)}")
    way.close()


def test_successor_does_not_come_back(site):
    """The newer one's memory is lost, the older one's worker brings its own: that serves."""
    way = Way(site, "workers", model=None)
    way.start()
    site.ctl("load", f"demo={harness.MODEL}")
    old = site.worker("demo")
    before = generation(site)
    old.signal(signal.SIGSTOP)
    site.ctl("load", f"demo={harness.MODEL}", "--replace")
    check_equal([s[0] for s in states(site)], ["draining", "ready"], "states")
    way.kill()
    way.start()
    old.signal(signal.SIGCONT)
    wait_leases(site, [old.pid])
    check_equal(states(site), [("ready", 1, 0)], "states")
    check_equal(generation(site)["id"], before["id"], "which one serves")
    check_equal(site.ctl("ask", QUESTION, worker=site.worker("demo")).out, ANSWER, "of another")
    way.close()


def test_few_descriptors(site):
    """Where the limit admits what was loaded, it admits its adoption."""
    n, spare = 40, 12
    path = os.path.join(site.dir, "small.gguf")
    subprocess.run([harness.need_env("MKMODEL_BIN"), path, "--bytes", "64K", "--embd", "64"],
                   check=True, timeout=120, stdout=subprocess.DEVNULL)
    models = [x for i in range(n) for x in ("--model", f"m{i}={path}")]
    way = Way(site, "keeper", models, model=None)
    way.start()
    n_fds = way.daemon.n_fds()
    way.close()
    wrapped = ["bash", "-c", f'ulimit -n {n_fds + spare}; exec "$@"', "limited", *way.argv]
    way.argv = wrapped
    way.start()
    before = {m["name"]: m["generations"][0]["id"] for m in site.status()["models"]}
    check_equal(len(before), n, "models that are loaded")
    for _ in range(2):
        way.kill()
        way.start()
        after = {m["name"]: (m["generations"][0]["id"], m["generations"][0]["origin"])
                 for m in site.status()["models"]}
        check_equal(after, {name: (i, "adopted") for name, i in before.items()}, "generations")
    way.close()


harness.run(globals())
