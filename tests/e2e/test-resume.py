#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who comes back to a weightd that died, and who only says so."""
import os
import signal
import socket
import time

import harness
from harness import check, check_equal, wait_until
from restart_way import Way, check_adopted, generation, wait_leases
from worker_socket import LENGTH, Connection, Running, count_tokens, field, fields


def test_liar(site):
    """Descriptors of a process that had nothing, and false ones, are not taken."""
    way = Way(site, "workers", model=None)
    way.start()
    site.ctl("load", f"demo={harness.MODEL}")
    worker = site.worker("demo")
    before = generation(site)
    worker.signal(signal.SIGSTOP)
    way.kill()
    way.start()
    answers = resume_with_lies(site, before)
    check(all("is not to be had back" in a for a in answers), f"{answers}")
    worker.signal(signal.SIGCONT)
    wait_leases(site, [worker.pid])
    check_adopted(site, way, before)
    way.close()


def test_hidden(site):
    """Resume does not tell who never had a generation whether there is one, nor gives it."""
    path = os.path.join(site.dir, "tenant")
    way = Way(site, "workers", ["--listen", f"{path},models=other"], model=None)
    way.start()
    site.ctl("load", f"demo={harness.MODEL}")
    worker = site.worker("demo")
    before = generation(site)
    answers = [resume_bare(path, "other", i) for i in (before["id"], before["id"] + 7)]
    worker.signal(signal.SIGSTOP)
    way.kill()
    way.start()
    # On its way back now: its worker is waited for.
    answers += [resume_bare(path, "other", i) for i in (before["id"], before["id"] + 7)]
    answers.append(resume_bare(site.weightd_socket, "demo", before["id"]))
    check_equal({a.replace(str(before["id"] + 7), "N").replace(str(before["id"]), "N")
                 for a in answers}, {"generation N is not to be had back"}, "answers")
    worker.signal(signal.SIGCONT)
    wait_leases(site, [worker.pid])
    check_adopted(site, way, before)
    way.close()


def test_comes_twice(site):
    """A holder whose connection ends while it waits for its lease is one still."""
    way = Way(site, "workers", model=None)
    way.start()
    site.ctl("load", f"demo={harness.MODEL}")
    worker = site.worker("demo")
    before = generation(site)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.connect(site.weightd_socket)
        device = greet(s)
        s.send(field(1, 2) + field(4, field(1, "demo") + field(2, device[1]) +
                                   field(3, device[2])))
        fds = []
        while not fds:
            _, fds, _, _ = socket.recv_fds(s, 65536, 64)
        worker.signal(signal.SIGSTOP)
        way.kill()
    way.start()
    resume = (field(1, "demo") + field(2, before["id"]) + field(3, device[1]) +
              field(4, device[2]) + field(9, os.fstat(fds[0]).st_ino))
    for _ in range(2):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.connect(site.weightd_socket)
            greet(s)
            s.send(field(1, 2) + field(15, resume))
            check_equal(fields(fields(s.recv(65536)).get(11, b"")).get(2), 1, "it is asked for all")
            # The manifest alone is not all: the worker is waited for, and this one with it.
            socket.send_fds(s, [field(1, 3) + field(2, 1) + field(15, resume + field(7, 1))],
                            fds[:1])
            time.sleep(0.2)
    for fd in fds:
        os.close(fd)
    worker.signal(signal.SIGCONT)
    wait_leases(site, [worker.pid])
    check_adopted(site, way, before)
    way.close()


def states(site):
    return {m["name"]: [(g["id"], g["state"], g["n_leases"], g["pinned"]) for g in m["generations"]]
            for m in site.status()["models"]}


def leave_stopped(site, way):
    """A model that a client loaded, and its worker, stopped; a weightd that waits for that."""
    way.start()
    site.ctl("load", f"demo={harness.MODEL}")
    worker = site.worker("demo")
    before = generation(site)
    worker.signal(signal.SIGSTOP)
    way.kill()
    way.start()
    return worker, before


def test_known_on_its_way(site):
    """While its worker is waited for a model is there to see and to pin, and not to load again."""
    way = Way(site, "workers", model=None)
    worker, before = leave_stopped(site, way)
    check_equal(states(site), {"demo": [(before["id"], "returning", 1, False)]}, "states")
    out = site.ctl("ls").out
    check("demo" in out and "returning" in out, out)
    for key in ("weights_bytes", "n_tensors", "architecture", "format", "path", "file_bytes"):
        check_equal(generation(site)[key], before[key], key)
    for refused in (site.ctl("load", f"demo={harness.MODEL}", status=1),
                    site.ctl("verify", "demo", status=1), site.ctl("map", "demo", status=1)):
        check("on its way back" in refused.err, refused)
    check("no model other" in site.ctl("pin", "other", status=1).err, "another model")
    check("no model other" in site.ctl("unload", "other", status=1).err, "another model")
    site.ctl("pin", "demo")
    check_equal(states(site), {"demo": [(before["id"], "returning", 1, True)]}, "pinned")
    worker.signal(signal.SIGCONT)
    wait_leases(site, [worker.pid])
    check_equal(states(site), {"demo": [(before["id"], "ready", 1, True)]}, "it is back")
    check_adopted(site, way, before)
    worker.signal(signal.SIGSTOP)
    way.kill()
    way.start()
    site.ctl("unpin", "demo")
    worker.signal(signal.SIGCONT)
    wait_leases(site, [worker.pid])
    check_equal(states(site), {"demo": [(before["id"], "ready", 1, False)]}, "unpinned")
    way.close()


def test_unload_on_its_way(site):
    """It drains when it is back; a kill in between does not forget that."""
    way = Way(site, "workers", model=None)
    worker, before = leave_stopped(site, way)
    check_equal(site.ctl("unload", "demo").out, "demo: draining: 1 lease\n", "unload")
    check_equal(states(site), {"demo": [(before["id"], "draining", 1, False)]}, "states")
    check("no model demo" in site.ctl("unload", "demo", status=1).err, "unloaded twice")
    way.kill()
    way.start()
    worker.signal(signal.SIGCONT)
    wait_leases(site, [worker.pid])
    check_equal(states(site), {"demo": [(before["id"], "draining", 1, False)]}, "it is back")
    worker.stop()
    wait_until(lambda: not states(site), "its end")
    way.close()


def test_unload_at_once_on_its_way(site):
    """Its leases end when they are back, and who waits for the model is told."""
    way = Way(site, "workers", model=None)
    worker, before = leave_stopped(site, way)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.connect(site.weightd_socket)
        device = greet(s)
        s.send(field(1, 2) + field(4, field(1, "demo") + field(2, device[1]) +
                                   field(3, device[2])))
        time.sleep(0.2)
        site.ctl("unload", "demo", "--timeout", "0")
        refused = fields(fields(s.recv(65536))[3])
        check(b"unloaded" in refused[2], f"who waits: {refused}")
    worker.signal(signal.SIGCONT)
    wait_until(lambda: "1 leases end" in way.daemon.log(), "the end of the lease", 10)
    wait_until(lambda: not states(site), f"the end of {before['id']}", 10)
    way.close()


def test_unload_of_what_does_not_come(site):
    """What the command line names is not loaded for who has unloaded it meanwhile."""
    way = Way(site, "workers")
    way.start()
    worker = site.worker("demo")
    worker.signal(signal.SIGSTOP)
    way.kill()
    way.start(wait=False)
    wait_until(lambda: os.path.exists(site.weightd_socket) and
               site.ctl("ls", status=None).out.count("returning") == 1, "the next weightd", 10)
    site.ctl("unload", "demo")
    worker.kill()
    wait_until(lambda: ": ready" in way.daemon.log(), "ready", 10)
    wait_until(lambda: not states(site), "no model")
    check("is ready" not in way.daemon.log(), way.daemon.log())
    way.close()


def forget(site, way):
    """weightd is killed, and the next one knows nothing of it: ids begin anew."""
    way.kill()
    os.unlink(site.weightd_socket + ".state")
    way.start()


def get_status(worker):
    with Connection(worker) as c:
        return c.status()


def test_refused(site):
    """A worker whose generation weightd does not know ends what is under way and moves on."""
    way = Way(site, "workers")
    way.start()
    site.ctl("load", f"demo={harness.MODEL}", "--replace")
    worker = site.worker("demo", ["--park-after", "2"])
    before = get_status(worker)
    check_equal(before[5], 2, "generation before")
    n_tokens = count_tokens(worker, 4, 400)
    undisturbed = Running(worker, n_tokens).finish()
    running = Running(worker, n_tokens)
    wait_until(lambda: running.has(5), "tokens")
    forget(site, way)
    wait_until(lambda: "without generation 2" in worker.log(), "the worker hears of it")
    check(running.finished is None, "the answer was over before")
    check_equal(running.finish(), undisturbed, "the answer that was under way")
    # It lets go, of itself: nobody asks it for anything.
    wait_until(lambda: get_status(worker).get(30), "it has parked")
    check("generation 2 is let go of" in worker.log(), worker.log())
    check_equal(get_status(worker).get(19), 1, "connected to weightd")
    check_equal(generation(site)["n_leases"], 0, "leases")
    # And comes back to what is there, whatever its number is.
    check_equal(Running(worker, n_tokens).finish(), undisturbed, "an answer of the next one")
    after = get_status(worker)
    check_equal((after[5], after.get(30, 0)), (1, 0), "generation after, parked")
    check(after[31] != before[31], "of a weightd with another secret")
    wait_leases(site, [worker.pid])
    # It parks, returns and moves as any worker does.
    wait_until(lambda: get_status(worker).get(30), "it parks again")
    check_equal(Running(worker, 5).finish()[1], LENGTH, "it returns")
    site.ctl("load", f"demo={harness.MODEL}", "--replace")
    wait_until(lambda: get_status(worker)[5] == 2, "it moves")
    way.close()


def test_refused_when_idle(site):
    """Sessions that are open come along, as with a generation that is lost."""
    way = Way(site, "workers")
    way.start()
    worker = site.worker("demo", ["--no-park"])
    with Connection(worker) as c:
        session = c.open()
        c.append_text(session, "The capital of France")
        first = c.finish(c.generate(session, 4, ignore_eos=True))[0]
        forget(site, way)
        wait_until(lambda: "is let go of" in worker.log(), "it lets go")
        wait_until(lambda: get_status(worker).get(30), "nothing is on the device")
        more = c.finish(c.generate(session, 4, ignore_eos=True))
        check_equal(more[2].get(5, 0), 0, "tokens whose KV was there")
        other = c.open()
        c.append_text(other, "The capital of France")
        both = c.finish(c.generate(other, 8, ignore_eos=True))[0]
        check_equal(first + more[0], both, "tokens of the session")
    wait_leases(site, [worker.pid])
    check_equal(generation(site)["origin"], "loaded", "what it has now")
    way.close()


def greet(s):
    """Says Hello; the fields of the first device."""
    s.send(field(1, 1) + field(3, field(1, 1) + field(3, 1)))
    return fields(fields(fields(s.recv(65536))[4])[3])


def resume_bare(path, model, generation_id):
    """The refusal of a Resume without descriptors."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.connect(path)
        device = greet(s)
        s.send(field(1, 2) + field(15, field(1, model) + field(2, generation_id) +
                                   field(3, device[1]) + field(4, device[2])))
        answer = fields(s.recv(65536))
        check(3 in answer, f"expected a refusal, found {answer}")
        return fields(answer[3])[2].decode()


def resume_with_lies(site, before):
    answers = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.connect(site.weightd_socket)
        s.send(field(1, 1) + field(3, field(1, 1) + field(3, 1)))
        device = fields(fields(fields(s.recv(65536))[4])[3])
        body = (field(1, "demo") + field(2, before["id"]) + field(3, device[1]) +
                field(4, device[2]) + field(7, 1))
        fd = os.memfd_create("lie")
        socket.send_fds(s, [field(1, 2) + field(2, 1) + field(15, body)], [fd])
        os.close(fd)
        answers.append(fields(fields(s.recv(65536))[3])[2].decode())
    return answers


harness.run(globals())
