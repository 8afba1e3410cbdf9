#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bad files and bad peers get one clear line and status 1, and weightd goes on serving."""
import os
import socket
import struct
import subprocess

import harness
from gguf import Gguf
from harness import check, check_equal

QUESTION = "Which continent is Chile in?"


def check_refused(result, *words):
    """Exit status 1 and one line on stderr that has every word in it."""
    check_equal(result.status, 1, f"{result}")
    check_equal(len(result.err.splitlines()), 1, f"{result}: lines on stderr")
    check_equal(result.out, "", f"{result}: stdout")
    for word in words:
        check(word.lower() in result.err.lower(), f"{result}: says nothing of {word!r}")


class Served:
    """A weightd with a good model and a worker, to see that it goes on."""

    def __init__(self, site, args=()):
        self.site = site
        self.weightd = site.weightd({"good": harness.MODEL}, args)
        self.worker = site.worker("good")
        self.answer = self.ask()
        self.n_fds = self.weightd.n_fds()

    def ask(self):
        return self.site.ctl("ask", QUESTION, "--temp", "0", worker=self.worker).out

    def check_unmoved(self):
        names = [m["name"] for m in self.site.ctl("ls", "--json").json()["models"]]
        check_equal(names, ["good"], "models")
        check_equal(self.ask(), self.answer, QUESTION)
        harness.wait_until(lambda: self.weightd.n_fds() == self.n_fds,
                           f"weightd's {self.n_fds} descriptors (now {self.weightd.n_fds()})")


def write(site, name, data):
    path = os.path.join(site.dir, name)
    with open(path, "wb") as f:
        f.write(data)
    return path


def test_files_that_are_no_model(site):
    served = Served(site)
    with open(harness.MODEL, "rb") as f:
        good = f.read()
    cases = [
        (os.path.join(site.dir, "missing.gguf"), ["missing.gguf", "no such file"]),
        (site.dir, ["directory"]),
        (write(site, "empty.gguf", b""), ["empty"]),
        (write(site, "text.gguf", b"not a model at all\n" * 99), ["magic"]),
        (write(site, "cut.gguf", good[:-1000]), ["tensor", "expected", "found"]),
        (write(site, "head.gguf", good[:1000]), []),
    ]
    for path, words in cases:
        check_refused(site.ctl("load", f"bad={path}", status=None), *words)
    served.check_unmoved()


def test_models_that_are_not_ours(site):
    served = Served(site)

    model = Gguf.read(harness.MODEL)
    model.set_string("general.architecture", "abacus")
    path = os.path.join(site.dir, "abacus.gguf")
    model.write(path)
    check_refused(site.ctl("load", f"bad={path}", status=None), "abacus", "architecture")

    # 256 f32 become 8 blocks of iq4_nl: a known format of GGUF, none of ours.
    model = Gguf.read(harness.MODEL)
    model.tensor("output_norm.weight").dtype = 20
    path = os.path.join(site.dir, "iq4_nl.gguf")
    model.write(path)
    check_refused(site.ctl("load", f"bad={path}", status=None), "output_norm.weight", "iq4_nl")
    served.check_unmoved()


def test_model_larger_than_the_device(site):
    # Without the rule, what does not fit would be paged.
    served = Served(site, ["--place", "*=device"])
    model = Gguf.read(harness.MODEL)
    n_ff = 1 << 20
    n_layers = 512
    model.set_u32("qwen3.feed_forward_length", n_ff)
    model.set_u32("qwen3.block_count", n_layers)
    model.repeat_layers(n_layers)
    for tensor in model.tensors:
        if "ffn_gate" in tensor.name or "ffn_up" in tensor.name:
            tensor.ne[1] = n_ff
        if "ffn_down" in tensor.name:
            tensor.ne[0] = n_ff
    path = os.path.join(site.dir, "huge.gguf")
    model.write(path, sparse=True)
    check_refused(site.ctl("load", f"bad={path}", status=None), "bytes")
    served.check_unmoved()


def test_weightd_with_a_bad_model(site):
    empty = write(site, "empty.gguf", b"")
    run = subprocess.run(
        [harness.need_env("WEIGHTD_BIN"), "--socket", site.weightd_socket, "--model",
         f"bad={empty}"], env=site.env, capture_output=True, text=True, timeout=60, check=False)
    check_equal(run.returncode, 1, run.stderr)
    check("empty" in run.stderr, run.stderr)


def run_worker(site, *args):
    run = subprocess.run(
        [harness.need_env("WORKERD_BIN"), "--socket", os.path.join(site.dir, "w.sock"), *args],
        env=site.env, capture_output=True, text=True, timeout=120, check=False)
    return harness.Result(["workerd", *args], run.returncode, run.stdout, run.stderr)


def test_wrong_sockets_and_names(site):
    nowhere = os.path.join(site.dir, "nowhere.sock")
    check_refused(site.ctl("--weightd", nowhere, "ls", status=None), nowhere)
    check_refused(site.ctl("--worker", nowhere, "ask", "x", status=None), nowhere)
    check_refused(run_worker(site, "--model", "good", "--weights", nowhere), nowhere)

    served = Served(site)
    # Each daemon's socket given for the other's.
    check_refused(site.ctl("--weightd", served.worker.socket, "ls", status=None),
                  served.worker.socket)
    check_refused(site.ctl("--worker", site.weightd_socket, "ask", "x", status=None),
                  site.weightd_socket)
    check_refused(run_worker(site, "--model", "absent", "--weights", site.weightd_socket),
                  "absent")
    served.check_unmoved()


def varint(n):
    out = b""
    while n >= 0x80:
        out += bytes([n & 0x7f | 0x80])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    """One protobuf field: a varint or bytes."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def fields(data):
    """{number: value} of a protobuf message; the last of a repeated field."""
    found = {}
    at = 0

    def take():
        nonlocal at
        n = shift = 0
        while True:
            byte = data[at]
            at += 1
            n |= (byte & 0x7f) << shift
            shift += 7
            if byte < 0x80:
                return n

    while at < len(data):
        key = take()
        value = take()
        if key & 7 == 2:
            value, at = data[at:at + value], at + value
        found[key >> 3] = value
    return found


def hello(protocol):
    # weightd.proto: Request { id = 1, hello = 3 { protocol = 1, build = 2, role = 3 } }
    return field(1, 1) + field(3, field(1, protocol) + field(2, b"test") + field(3, 1))


def test_another_protocol_version(site):
    served = Served(site)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.settimeout(10)
        s.connect(site.weightd_socket)
        s.send(hello(99))
        reply = fields(s.recv(65536))
        check(3 in reply, f"no Error in {reply}")
        text = fields(reply[3])[2].decode()
        check("99" in text and "protocol" in text, f"refusal {text!r}")
        check_equal(s.recv(65536), b"", "what follows a refused Hello")

    # workerd.proto: Request { id = 1, hello = 2 { protocol = 1, build = 2 } }
    body = field(1, 1) + field(2, field(1, 99) + field(2, b"test"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.settimeout(10)
        s.connect(served.worker.socket)
        s.sendall(struct.pack("<I", len(body)) + body)
        n_bytes, = struct.unpack("<I", s.recv(4, socket.MSG_WAITALL))
        reply = fields(s.recv(n_bytes, socket.MSG_WAITALL))
        text = fields(reply[2])[2].decode()
        check("99" in text and "protocol" in text, f"refusal {text!r}")
        check_equal(s.recv(1), b"", "what follows a refused Hello")
    served.check_unmoved()


def test_noise_on_the_sockets(site):
    served = Served(site)
    for packet in b"\xff" * 100, field(1, 1) + field(7, b""), os.urandom(65536), b"\x08":
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
            s.settimeout(10)
            s.connect(site.weightd_socket)
            s.send(packet)
            while s.recv(65536):
                pass
    lengths = [struct.pack("<I", n) for n in (0, 1 << 30, 4)]
    for noise in lengths[0], lengths[1], lengths[2] + b"\xff" * 4:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            s.settimeout(10)
            s.connect(served.worker.socket)
            s.sendall(noise)
            while s.recv(65536):
                pass
    # Descriptors that no message asked for are closed, the peer with them.
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.settimeout(10)
        s.connect(site.weightd_socket)
        fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
        socket.send_fds(s, [hello(1)], fds)
        while s.recv(65536):
            pass
        for fd in fds:
            os.close(fd)
    served.check_unmoved()


harness.run(globals())
