#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights that somebody wrote into are found, named, and replaced."""
import os
import re
import shutil
import socket
import subprocess
import time

import harness
from harness import check, check_equal
from rogue import Rogue
from worker_socket import LENGTH, Connection, Running, count_tokens

QUESTION = "Which continent is Chile in?"
ANSWER = "Chile is in South America.\n"
FIRST, SECOND = "blk.1.ffn_up.weight", "output_norm.weight"
FIND_SECONDS = 30
CORRUPT, LOST = 10, 7


def start(site, *args, path=harness.MODEL):
    return site.weightd({"demo": path}, ["--scrub", "0", *args])


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def fields(data):
    """{number: value of its last occurrence} of a protobuf message."""
    found, at = {}, 0

    def take():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = take()
        value = take()
        if key & 7 == 2:
            value, at = data[at:at + value], at + value
        found[key >> 3] = value
    return found


class RawClient:
    """A client by its own encoding of requests."""

    def __init__(self, site, path=None):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(FIND_SECONDS)
        self.socket.connect(path or site.weightd_socket)
        hello = b"\x08" + varint(1) + b"\x12\x04test\x18\x02"
        self.send(1, 3, hello)
        self.take(1, 4)

    def send(self, request, body, message):
        self.socket.send(b"\x08" + varint(request) + varint(body << 3 | 2)
                         + varint(len(message)) + message)

    def take(self, request, body):
        reply = fields(self.socket.recv(65536))
        check(reply.get(1) == request and body in reply, f"expected body {body}, found {reply}")
        return fields(reply[body])


class Watcher(RawClient):
    """One that hears every event."""

    def __init__(self, site, path=None):
        super().__init__(site, path)
        self.send(2, 9, b"")
        self.take(2, 6)

    def wait(self, kind):
        while True:
            reply = fields(self.socket.recv(65536))
            event = fields(reply.get(9, b""))
            if event.get(1) == kind:
                return event


def verify_clean(site):
    found = site.ctl("--json", "verify", "demo").json()
    check_equal((found["n_tensors"], found["differences"]), (0, []), "a clean model")
    return found


def generations(site):
    return {g["id"]: g for m in site.status()["models"] for g in m["generations"]}


def wait_for(what, condition):
    deadline = time.monotonic() + FIND_SECONDS
    while not condition():
        check(time.monotonic() < deadline, f"it never came: {what}")
        time.sleep(0.05)


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8") as f:
        user, system = f.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def check_found(site, places, *args):
    """Both tensors are named, at the right offset; then all is well again."""
    weightd = start(site, *args)
    before = verify_clean(site)
    rogue = Rogue(site, *places)
    found = site.ctl("--json", "verify", "demo", status=1)
    check("is not what was loaded" in found.err, found)
    rows = {d["tensor"]: d for d in found.json()["differences"]}
    check_equal(set(rows), {t for t, _ in places}, "tensors that differ")
    check_equal(found.json()["n_tensors"], len(places), "their number")
    for tensor, offset in places:
        check_equal(rows[tensor]["offset"], offset >> 20 << 20, f"offset in {tensor}")
        check(0 < rows[tensor]["n_bytes"] <= 1 << 20, rows[tensor])
    # Who asks for the model meanwhile waits for what comes.
    worker = site.worker("demo")
    check_equal(generations(site)[1]["state"], "lost", "the one that was written into")
    check_equal(generations(site)[2]["state"], "ready", "the one that follows")
    after = verify_clean(site)
    check_equal(after["generation"], 2, "generation")
    check_equal(after["n_bytes"], before["n_bytes"], "bytes that were summed")
    check_equal(site.ctl("ask", QUESTION, worker=worker).out, ANSWER, "answer")
    # Log and event name who had it.
    line = next(x for x in weightd.log().splitlines() if "changed in memory" in x)
    for word in [t for t, _ in places] + [f"pid {rogue.process.pid}"]:
        check(word in line, f"no {word} in: {line}")
    rogue.end()
    wait_for("the lost one's end", lambda: 1 not in generations(site))


def test_device_memory(site):
    check_found(site, [(FIRST, 4)])


def test_two_tensors(site):
    check_found(site, [(FIRST, 77), (SECOND, 0)])


def test_staged_memory(site):
    check_found(site, [(FIRST, 4), (SECOND, 1)], "--place", "*=staged")


def test_both_kinds(site):
    check_found(site, [(FIRST, 4), (SECOND, 1)], "--place", f"{FIRST}=staged")


def test_small_allocations(site):
    check_found(site, [(FIRST, 9), (SECOND, 2)], "--alloc-bytes", "1M")


def test_second_piece(site):
    """The offset is of the piece, from the tensor's start."""
    path = os.path.join(site.dir, "big.gguf")
    subprocess.run([harness.need_env("MKMODEL_BIN"), path, "--bytes", "64M"], check=True,
                   timeout=120)
    start(site, path=path)
    tensors = site.ctl("--json", "map", "demo").json()["tensors"]
    large = max(tensors, key=lambda t: t["n_bytes"])
    check(large["n_bytes"] > 2 << 20, f"no large tensor: {large}")
    at = large["n_bytes"] - 1
    rogue = Rogue(site, (large["name"], at))
    found = site.ctl("--json", "verify", "demo", status=1).json()
    check_equal([(d["tensor"], d["offset"]) for d in found["differences"]],
                [(large["name"], at >> 20 << 20)], "what differs")
    rogue.end()


def make_untied(site, *args):
    path = os.path.join(site.dir, "untied.gguf")
    subprocess.run([harness.need_env("MKMODEL_BIN"), path, "--bytes", "8M", "--embd", "288",
                    "--untied", *args], check=True, timeout=120)
    return path


def find_unused(site, ids):
    """(tensor, offset) of what no step of these tokens reads: the last token's embedding."""
    tensors = {t["name"]: t for t in site.ctl("--json", "map", "demo").json()["tensors"]}
    embedding = tensors["token_embd.weight"]
    check(embedding["ne"][1] - 1 not in ids, "the last token is used")
    return "token_embd.weight", embedding["n_bytes"] - 4


def check_goes_on(site, *args, change=None):
    """An answer during which somebody writes into the weights has the tokens of one undisturbed."""
    path = make_untied(site)
    start(site, *args, path=path)
    worker = site.worker("demo", ["--ctx", "1024"])
    n_tokens = count_tokens(worker, 6, 900)
    undisturbed, reason, _ = Running(worker, n_tokens).finish()
    check_equal((len(undisturbed), reason), (n_tokens, LENGTH), "tokens of an undisturbed answer")
    place = find_unused(site, undisturbed)
    before = generations(site)[1]["identity"]
    running = Running(worker, n_tokens)
    harness.wait_until(lambda: running.has(20), "tokens")
    rogue = Rogue(site, place)
    if change:
        change(path)
    site.ctl("verify", "demo", status=1)
    found = running.finish()
    check("what was under way goes on" in worker.log(), worker.log())
    check_equal(found[1:], (LENGTH, ""), "how it ended")
    check_equal(found[0], undisturbed, "tokens")
    with Connection(worker) as c:
        status = c.status()
    check_equal(status[5], 2, "generation of the worker")
    check_equal(status[31].hex(), generations(site)[2]["identity"], "identity of the worker")
    check_equal(status[31].hex(), before, "identity before")
    rogue.end()
    return worker


def test_answers_go_on(site):
    check_goes_on(site)


def test_answers_go_on_in_host_memory(site):
    check_goes_on(site, "--place", "*=staged")


def test_text(site):
    start(site)
    out = site.ctl("verify", "demo").out
    check(re.search(r"generation 1: .* GB/s: all as it was loaded\n$", out), out)
    rogue = Rogue(site, (SECOND, 0))
    found = site.ctl("verify", "demo", status=1)
    check(f"tensor {SECOND}, allocation 0: from byte 0 on" in found.out, found)
    rogue.end()


def check_scrubbed(site, places, *args):
    site.weightd({"demo": harness.MODEL}, ["--scrub", "1", "--scrub-budget", "100", *args])
    watcher = Watcher(site)
    time.sleep(1.5)
    check_equal(set(generations(site)), {1}, "generations of a clean model")
    clean = generations(site)[1]
    check(0 < clean["verified_ns"] < 5e9, f"it is not scrubbed: {clean['verified_ns']}")
    rogue = Rogue(site, *places)
    wrote = time.monotonic()
    event = watcher.wait(CORRUPT)
    # A round takes a second, and what was just looked at waits for the next one.
    check(time.monotonic() - wrote < 10, "it was found, but late")
    check_equal((event[2], event[3]), (b"demo", 1), "whose event")
    for word in [t for t, _ in places] + [str(rogue.process.pid)]:
        check(word in event[6].decode(), f"no {word} in {event[6]}")
    # What was made since the write is inside the time that is not to be trusted.
    check(time.monotonic() - wrote - 1 < event[8] / 1e9 < 10, f"since {event[8]} ns")
    check(b"changed in memory" in watcher.wait(LOST)[6], "the reason of the loss")
    wait_for("a new generation", lambda: generations(site).get(2, {}).get("state") == "ready")
    check_equal(verify_clean(site)["generation"], 2, "generation")
    check_equal(site.ctl("ask", QUESTION, worker=site.worker("demo")).out, ANSWER, "answer")
    rogue.end()


def test_tenants_hear_no_pids(site):
    """Who has a model is for those who may see others."""
    path = os.path.join(site.dir, "tenant")
    start(site, "--listen", path, "--listen", f"{path}-control,control=yes")
    tenant, others = Watcher(site, path), [Watcher(site), Watcher(site, f"{path}-control")]
    rogue = Rogue(site, (FIRST, 4))
    site.ctl("verify", "demo", status=1)
    text = tenant.wait(CORRUPT)[6].decode()
    check(f"{FIRST} changed in memory" in text, text)
    check("held by" not in text and str(rogue.process.pid) not in text, f"who has it: {text}")
    for other in others:
        text = other.wait(CORRUPT)[6].decode()
        check(f"held by pid {rogue.process.pid}" in text, text)
    rogue.end()


def test_scrub_finds_device_memory(site):
    check_scrubbed(site, [(FIRST, 4)])


def test_scrub_finds_two_tensors(site):
    check_scrubbed(site, [(FIRST, 4), (SECOND, 0)])


def test_scrub_finds_staged_memory(site):
    check_scrubbed(site, [(FIRST, 4)], "--place", "*=staged")


def test_scrub_finds_a_writable_file(site):
    path = os.path.join(site.dir, "copy.gguf")
    shutil.copy(harness.MODEL, path)
    weightd = start(site, "--scrub", "1", "--scrub-budget", "100", "--place", "*=pinned",
                    "--pin-writable", "demo", path=path)
    watcher = Watcher(site)
    wait_for("a first round", lambda: generations(site)[1]["verified_ns"])
    rogue = Rogue(site, (FIRST, 4))
    check(FIRST in watcher.wait(CORRUPT)[6].decode(), "the tensor's name")
    watcher.wait(LOST)
    check("the bytes are those of the model file itself" in weightd.log(), weightd.log())
    rogue.end()


def test_scrub_leaves_files_alone(site):
    """Weights in a file that nobody can write to through us are not read again and again."""
    weightd = start(site, "--scrub", "1", "--scrub-budget", "100", "--place", "blk.*=pinned")
    wait_for("a second round", lambda: generations(site)[1]["verified_ns"] < 5e8)
    check_equal(generations(site)[1]["identity"], "", "identity before every tensor was read")
    weightd.stop()
    weightd = start(site, "--scrub", "1", "--place", "*=pinned")
    before = cpu_seconds(weightd.pid)
    time.sleep(3)
    check(cpu_seconds(weightd.pid) - before < 1, "with nothing to look at it is busy")


def test_scrub_leaves_a_clean_model(site):
    weightd = site.weightd({"demo": harness.MODEL}, ["--scrub", "1", "--scrub-budget", "100"])
    time.sleep(4)
    check_equal(set(generations(site)), {1}, "generations")
    check("changed" not in weightd.log(), weightd.log())


def test_no_scrub(site):
    """Off, as it is by default on a software device: nobody looks."""
    site.weightd({"demo": harness.MODEL})
    rogue = Rogue(site, (FIRST, 4))
    time.sleep(3)
    check_equal(set(generations(site)), {1}, "generations")
    site.ctl("verify", "demo", status=1)
    rogue.end()


def test_file_changed(site):
    """Nothing is left to load it from: lost, and said so."""
    path = os.path.join(site.dir, "copy.gguf")
    shutil.copy(harness.MODEL, path)
    weightd = start(site, path=path)
    rogue = Rogue(site, (FIRST, 4))
    os.utime(path, (1, 1))
    site.ctl("verify", "demo", status=1)
    check_equal(generations(site)[1]["state"], "lost", "state")
    check("it is not loaded anew: file: it changed" in weightd.log(), weightd.log())
    found = site.ctl("verify", "demo", status=1)
    check("no generation of it is ready" in found.err, found)
    rogue.end()


def heat_with_memfd(site):
    """A worker of a generation that was warm: its memfd, where some tensors stay, has all of them.
    (weightd, worker, file)"""
    path = os.path.join(site.dir, "copy.gguf")
    shutil.copy(harness.MODEL, path)
    weightd = start(site, "--idle", "1", "--place", f"{SECOND}=staged", path=path)
    wait_for("it is warm", lambda: generations(site)[1]["state"] == "warm")
    worker = site.worker("demo", ["--no-park"])
    check_equal(generations(site)[1]["state"], "ready", "state")
    return weightd, worker, path


def test_file_changed_and_host_memory_has_it(site):
    weightd, worker, path = heat_with_memfd(site)
    before = verify_clean(site)
    identity = generations(site)[1]["identity"]
    with open(path, "r+b") as f:
        f.truncate(1000)
    rogue = Rogue(site, (FIRST, 4))
    site.ctl("verify", "demo", status=1)
    check("it is loaded anew from its copy in host memory" in weightd.log(), weightd.log())
    wait_for("a new generation", lambda: generations(site).get(2, {}).get("state") == "ready")
    check_equal(generations(site)[2]["identity"], identity, "identity")
    after = verify_clean(site)
    check_equal((after["generation"], after["n_bytes"]), (2, before["n_bytes"]), "what there is")
    check_equal(site.ctl("ask", QUESTION, worker=worker).out, ANSWER, "answer")
    check_equal(site.ctl("ask", QUESTION, worker=site.worker("demo")).out, ANSWER, "another's")
    rogue.end()
    wait_for("the lost one's end", lambda: 1 not in generations(site))
    # Now nothing is left: what the memfd has is one tensor.
    rogue = Rogue(site, (FIRST, 4))
    site.ctl("verify", "demo", status=1)
    check("weightd does not have it any more: host memory has no copy of all of it"
          in weightd.log(), weightd.log())
    check_equal(generations(site)[2]["state"], "lost", "state")
    rogue.end()


def test_file_changed_and_host_memory_too(site):
    """Nothing is loaded that is not what it was."""
    weightd, worker, path = heat_with_memfd(site)
    verify_clean(site)
    os.utime(path, (1, 1))
    rogue = Rogue(site, (SECOND, 4))
    site.ctl("verify", "demo", status=1)
    wait_for("the load's end", lambda: "those that were loaded before" in weightd.log())
    check(f"tensor {SECOND}: its bytes are not those" in weightd.log(), weightd.log())
    check_equal({g["state"] for g in generations(site).values()}, {"lost"}, "states")
    check("was lost" in site.ctl("ask", QUESTION, worker=worker, status=1).err, "a refusal")
    rogue.end()


def test_pinned(site):
    """Sums of a file's own pages are those of the first check."""
    path = os.path.join(site.dir, "copy.gguf")
    shutil.copy(harness.MODEL, path)
    weightd = start(site, "--place", "*=pinned", "--pin-writable", "demo", path=path)
    check_equal(generations(site)[1]["identity"], "", "identity before a check")
    verify_clean(site)
    check_equal(len(generations(site)[1]["identity"]), 64, "digits of the identity")
    rogue = Rogue(site, (FIRST, 4))
    found = site.ctl("--json", "verify", "demo", status=1).json()
    check_equal([d["tensor"] for d in found["differences"]], [FIRST], "what differs")
    check("the bytes are those of the model file itself" in weightd.log(), weightd.log())
    check_equal(set(generations(site)), {1}, "no new generation of a file that was written into")
    rogue.end()


def test_worker_learns_identity(site):
    """What was not summed when the worker took its lease is told when it is."""
    start(site, "--place", "*=pinned")
    with Connection(site.worker("demo")) as c:
        check(31 not in c.status(), "an identity before every tensor was read")
        verify_clean(site)
        wait_for("the identity", lambda: 31 in c.status())
        check_equal(c.status()[31].hex(), generations(site)[1]["identity"], "identity")
        verify_clean(site)
        check_equal(c.status()[31].hex(), generations(site)[1]["identity"], "and once more")


def test_identity(site):
    """The same wherever the weights are; another for another file."""
    found = []
    # With the last one, `same` has no room on the device.
    for args in ([], ["--alloc-bytes", "3M"], ["--place", "blk.*=staged"],
                 ["--vram-budget", "7M"]):
        weightd = start(site, *args)
        other = os.path.join(harness.DATA, "models", "atlas-moe-q8_0.gguf")
        site.ctl("pin", "demo")
        site.ctl("load", f"same={harness.MODEL}")
        site.ctl("load", f"other={other}")
        if "--vram-budget" in args:
            check("pinned" in site.ctl("map", "same").out, "it has room after all")
            site.ctl("verify", "same")
            site.ctl("verify", "other")
        ids = {m["name"]: m["generations"][0]["identity"] for m in site.status()["models"]}
        check_equal({len(i) for i in ids.values()}, {64}, "digits")
        check_equal(ids["same"], ids["demo"], f"the same file, {args}")
        check(ids["other"] != ids["demo"], "another file")
        check(ids["demo"][:12] in site.ctl("ls").out, "ls")
        found.append(ids["demo"])
        weightd.stop()
    # Of one weightd each: the secret is its own.
    check_equal(len(set(found)), 4, "identities of four weightds")


def test_other_models_are_served(site):
    """A check waits for nobody, and nobody for it."""
    start(site)
    running = [site.start_ctl("--json", "verify", "demo") for _ in range(8)]
    for _ in range(5):
        check_equal(generations(site)[1]["state"], "ready", "state")
    gone = [site.start_ctl("--json", "verify", "demo") for _ in range(4)]
    for process in gone:
        process.kill()
    for process in running:
        check_equal(site.finish_ctl(process).status, 0, "exit status")
    for process in gone:
        process.communicate()
    verify_clean(site)


def test_many_ask(site):
    """More than a loader takes jobs: they share a check, and loads get their turn."""
    path = os.path.join(site.dir, "big.gguf")
    subprocess.run([harness.need_env("MKMODEL_BIN"), path, "--bytes", "64M"], check=True,
                   timeout=120)
    start(site, path=path)
    verify_clean(site)
    begun = time.monotonic()
    verify_clean(site)
    seconds = time.monotonic() - begun
    clients = [RawClient(site) for _ in range(100)]
    begun = time.monotonic()
    for c in clients:
        c.send(2, 16, b"\x0a\x04demo")
    site.ctl("load", f"other={harness.MODEL}")
    for c in clients:
        check_equal(c.take(2, 12).get(5, 0), 0, "tensors that differ")
    check(time.monotonic() - begun < 20 * seconds + 5, "each of them had a check of its own")


def test_nobody_asks(site):
    """A check that was answered is not followed by another."""
    weightd = start(site, "--log-level", "debug")
    verify_clean(site)
    verify_clean(site)
    time.sleep(0.5)
    check_equal(weightd.log().count("generation 1: checked 6144000 bytes"), 2, "checks")


def test_refused(site):
    start(site)
    found = site.ctl("verify", "nobody", status=1)
    check("no generation of it is ready" in found.err, found)
    for value in ("x", "-1", "1e9"):
        run = subprocess.run([harness.need_env("WEIGHTD_BIN"), "--scrub", value],
                             capture_output=True, check=False, env=site.env)
        check_equal(run.returncode, 2, f"--scrub {value}")
    for value in ("0", "101", ""):
        run = subprocess.run([harness.need_env("WEIGHTD_BIN"), "--scrub-budget", value],
                             capture_output=True, check=False, env=site.env)
        check_equal(run.returncode, 2, f"--scrub-budget {value}")


harness.run(globals())
