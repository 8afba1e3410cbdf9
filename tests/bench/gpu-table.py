#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/performance.md in one go, as markdown: models, workers, starts, kernels.

usage: gpu-table.py [OPTION]... [PART]...      without PART all of them, in this order:
  dense     8B Q4_K_M: decode of 1 and 32 sessions, prompts of 64, 512 and 2048
  q8        8B Q8_0: decode, a prompt of 512
  moe       30B-A3B Q4_K: decode, prompts of 512 and 2048
  moe-host  the same, experts in host memory: prompts, decode without and with an expert cache
  workers   1, 2 and 4 workers that decode at once
  beside    a token's 99th percentile beside another worker's prompt of 8192, and alone
  vram      memory in use of the GPU with 0, 1 and 4 workers on one model (nvidia-smi)
  start     a worker from its start to ready, and to its first token
  load      a file in the page cache into device memory
  matvec    bench-matvec: weights of 4096 x 14336, 1 to 8 columns
  matrix    bench-matrix: the same for 512 rows
  greedy    tokens of the demo models against their references

Every row is of --repeats runs: their mean and standard deviation, or median and range of times.
A part ends before --seconds (60) are over and says what it left out. Programs are looked for in --bin,
flat or as a build has them. Models are files, or random weights made with weightctl make-model in
--models (kept there for the next run; a temporary folder by default). --small: for a software
driver, with models given: prompts, sessions and workers of a hundredth.
"""
import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

PLACES = {"weightd": "weightd", "workerd": "workerd", "weightctl": "weightctl",
          "bench-matvec": "tests/bench", "bench-matrix": "tests/bench",
          "test-vk-reference": "tests/vulkan"}
SHAPES = {"dense": "llama-8b:q4_k_m", "q8": "llama-8b:q8_0", "moe": "qwen3moe-30b-a3b:q4_k"}


class Late(Exception):
    """A part's time is over."""


class Bench:
    """Programs, models and daemons, and when the part has to end."""

    def __init__(self, args, folder):
        self.args = args
        self.dir = folder
        self.n_sockets = 0
        self.deadline = 0.0

    def program(self, name):
        for place in (name, os.path.join(PLACES[name], name)):
            path = os.path.join(self.args.bin, place)
            if os.access(path, os.X_OK) and not os.path.isdir(path):
                return path
        raise Late(f"no {name} in {self.args.bin}")

    def left(self):
        seconds = self.deadline - time.monotonic()
        if seconds <= 0:
            raise Late("no time left")
        return seconds

    def run(self, name, *arguments, env=None):
        """Standard output of a program, within the part's time."""
        argv = [self.program(name), *map(str, arguments)]
        try:
            done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, timeout=self.left(),
                                  check=False, env={**os.environ, **(env or {})})
        except subprocess.TimeoutExpired as late:
            out = late.stdout or b""
            return out.decode() if isinstance(out, bytes) else out
        if done.returncode:
            said = (done.stdout if done.returncode == 77 else done.stderr).strip().splitlines()
            raise Late(f"{name}: {said[-1] if said else done.returncode}")
        return done.stdout

    def model(self, kind):
        """A file that was given, or is there from before, or is made."""
        given = getattr(self.args, kind)
        if given:
            return given
        path = os.path.join(self.args.models or self.dir,
                            SHAPES[kind].replace(":", "-") + ".gguf")
        if not os.path.exists(path):
            self.run("weightctl", "make-model", SHAPES[kind], path)
        return path

    def socket(self):
        self.n_sockets += 1
        return os.path.join(self.dir, f"{self.n_sockets}.sock")

    @contextlib.contextmanager
    def daemon(self, name, *arguments):
        """A process that has said it is ready, with its log."""
        log = os.path.join(self.dir, f"{name}.log")
        with open(log, "wb") as out:
            process = subprocess.Popen([self.program(name), *map(str, arguments)], stdout=out,
                                       stderr=out, stdin=subprocess.DEVNULL)
        try:
            while not re.search(r": ready\b", read(log)):
                if process.poll() is not None:
                    raise Late(f"{name}: {(read(log).splitlines() or ['ended'])[-1]}")
                self.left()
                time.sleep(0.002)
            yield log
        finally:
            process.terminate()
            process.wait()

    @contextlib.contextmanager
    def weightd(self, kind, *arguments):
        """Its socket; the model is m."""
        path = self.socket()
        with self.daemon("weightd", "--socket", path, "--device", self.args.device,
                         "--log-level", "debug", "--model", "m=" + self.model(kind),
                         *arguments) as log:
            while "ready" not in self.run("weightctl", "--weightd", path, "ls"):
                time.sleep(0.02)
            yield path, log

    @contextlib.contextmanager
    def worker(self, weightd, *arguments):
        path = self.socket()
        with self.daemon("workerd", "--model", "m", "--weights", weightd, "--socket", path,
                         *arguments):
            yield path

    def measure(self, *arguments, where):
        """Tests of weightctl bench, by their names."""
        out = self.run("weightctl", *where, "bench", "-r", self.args.repeats, "--json", *arguments)
        return {t["test"]: t for t in json.loads(out)["tests"]} if out else {}


def read(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        return f.read()


def rates(test):
    values = [s["t_s"] for s in test["samples"]]
    spread = statistics.stdev(values) if len(values) > 1 else 0
    return f"{show(statistics.mean(values))} ± {show(spread)}"


def show(value):
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def times(values):
    return f"{show(statistics.median(values))} ({show(min(values))} to {show(max(values))})"


def row(*cells):
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def head(*cells):
    print()
    row(*cells)
    row(*["---"] * len(cells))


def scaled(bench, *values):
    return [max(1, v // 100) if bench.args.small else v for v in values]


# ---- models ----

def show_tests(name, tests, labels):
    for test, label in labels.items():
        if test in tests:
            row(f"{name} {label}".strip(), rates(tests[test]))


def throughput(bench, name, kind, prompts, sessions=()):
    prompts = scaled(bench, *prompts)
    n = 8 if bench.args.small else 128
    head("work", "tokens/s")
    with bench.weightd(kind) as (weightd, _):
        where = ("--weightd", weightd)
        own = ("-m", "m", "--workers", 1)
        tests = bench.measure(*own, "-p", 0, "-n", n, where=where)
        show_tests(name, tests, {f"tg{n}": "decode, one session"})
        for many in sessions:
            tests = bench.measure(*own, "-p", 0, "-n", n // 4, "-b", many, where=where)
            show_tests(name, tests, {f"tg{n // 4}": f"decode, {many} sessions"})
        tests = bench.measure(*own, "-p", ",".join(map(str, prompts)), "-n", 0, where=where)
        show_tests(name, tests, {f"pp{p}": f"prompt of {p}" for p in prompts})


def part_dense(bench):
    throughput(bench, "8B Q4_K_M", "dense", (64, 512, 2048), (2 if bench.args.small else 32,))


def part_q8(bench):
    throughput(bench, "8B Q8_0", "q8", (512,))


def part_moe(bench):
    throughput(bench, "30B-A3B Q4_K", "moe", (512, 2048))


def part_moe_host(bench):
    prompts = scaled(bench, 512, 2048)
    n = 8 if bench.args.small else 64
    head("30B-A3B Q4_K, experts in host memory", "tokens/s")
    with bench.weightd("moe", "--experts", "host") as (weightd, _):
        for cache in "off", "auto":
            with bench.worker(weightd, "--expert-cache", cache, "--sessions", 1, "--ctx",
                              2 * max(prompts[-1], n)) as worker:
                where = ("--worker", worker)
                tests = bench.measure("-p", 0, "-n", n, where=where)
                show_tests("", tests, {f"tg{n}": f"decode, `--expert-cache {cache}`"})
                if cache == "off":
                    tests = bench.measure("-p", ",".join(map(str, prompts)), "-n", 0, where=where)
                    show_tests("", tests, {f"pp{p}": f"prompt of {p}" for p in prompts})


# ---- several processes ----

def part_workers(bench):
    n = 8 if bench.args.small else 64
    counts = (1, 2) if bench.args.small else (1, 2, 4)
    head("8B Q4_K_M, workers that decode at once", "tokens/s in all", "of one's")
    one = None
    with bench.weightd("dense") as (weightd, _):
        for count in counts:
            tests = bench.measure("-m", "m", "--workers", count, "-p", 0, "-n", n,
                                  where=("--weightd", weightd))
            for test in tests.values():
                one = one or test["avg_t_s"]
                row(count, rates(test), f"{100 * test['avg_t_s'] / one:.0f} %")


def percentiles(bench, worker, n):
    tests = bench.measure("-p", 0, "-n", n, where=("--worker", worker))
    return [w["step_p99_ns"] / 1e6 for t in tests.values() for s in t["samples"]
            for w in s["workers"]]


def part_beside(bench):
    n_prompt, n = (64, 16) if bench.args.small else (8192, 256)
    head("8B Q4_K_M, a token's 99th percentile", "ms, median (range)")
    with bench.weightd("dense") as (weightd, _), \
            bench.worker(weightd, "--ctx", n_prompt + 64, "--sessions", 1) as other, \
            bench.worker(weightd, "--ctx", n_prompt + 64, "--sessions", 1) as worker:
        row("alone", times(percentiles(bench, worker, n)))
        prompts = subprocess.Popen(
            [bench.program("weightctl"), "--worker", other, "bench", "-p", str(n_prompt), "-n", "0",
             "-r", "100"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        try:
            time.sleep(0.5 if bench.args.small else 2)  # until it computes, kernels and all
            row(f"beside a worker that computes prompts of {n_prompt} without pause",
                times(percentiles(bench, worker, n)))
        finally:
            prompts.terminate()
            prompts.wait()


def used_mib():
    if not shutil.which("nvidia-smi"):
        raise Late("no nvidia-smi")
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                         stdout=subprocess.PIPE, text=True, check=True).stdout
    return int(out.splitlines()[0])


def part_vram(bench):
    before = used_mib()
    head("8B Q4_K_M, memory in use", "MiB")
    with contextlib.ExitStack() as stack:
        weightd, _ = stack.enter_context(bench.weightd("dense"))
        row("weightd alone", used_mib() - before)
        for count in range(1, 5):
            worker = stack.enter_context(bench.worker(weightd, "--ctx", 4096, "--sessions", 1))
            bench.run("weightctl", "--worker", worker, "complete", "a", "--n-predict", 4)
            if count in (1, 4):
                row(f"{count} worker{'s' if count > 1 else ''}, a session of 4096 each",
                    used_mib() - before)


def part_start(bench):
    ready, first, outside = [], [], []
    head("8B Q4_K_M, a worker", "ms, median (range)")
    with bench.weightd("dense") as (weightd, _):
        # The first one fills the caches of kernels.
        for i in range(1 + bench.args.repeats):
            begun = time.monotonic()
            with bench.worker(weightd, "--ctx", 512, "--sessions", 1) as worker:
                seen = time.monotonic()
                bench.run("weightctl", "--worker", worker, "complete", "a", "--n-predict", 1)
                status = json.loads(bench.run("weightctl", "--worker", worker, "--json", "status"))
            own = status["worker"]
            if i == 0:
                row("first of all, caches as they were: ready, then first token",
                    f"{show(own['ready_ns'] / 1e6)}, {show(own['first_token_ns'] / 1e6)}")
                continue
            outside.append((seen - begun) * 1e3)
            ready.append(own["ready_ns"] / 1e6)
            first.append(own["first_token_ns"] / 1e6)
    row("process start to ready, by itself", times(ready))
    row("the same as its parent sees it", times(outside))
    row("first request to first token", times(first))


def part_load(bench):
    filled = []
    head("8B Q4_K_M from the page cache into device memory", "GB/s, median (range)")
    with open(bench.model("dense"), "rb") as f:
        while f.read(1 << 24):
            bench.left()
    for _ in range(bench.args.repeats):
        with bench.weightd("dense") as (_, log):
            found = re.findall(r"fill: (\d+) bytes in ([0-9.]+) ms, ([0-9.]+) GB/s by (\w+)", read(log))
        filled += [float(rate) for _, _, rate, _ in found[:1]]
    row(f"weightd --model, by {found[0][3]}", times(filled))


# ---- kernels ----

def part_matvec(bench):
    n, k = (192, 1024) if bench.args.small else (4096, 14336)
    pattern = rf"(\w+) +{n} x {k} +n (\d) +default .*: +([0-9.]+) us +([0-9.]+) GB/s( WRONG)?"
    head("format", "n = 1 µs (GB/s)", "n = 2", "n = 4", "n = 8")
    for name in "f16", "q8_0", "q4_K", "q6_K", "q4_0", "tq2_0", "q2_0", "q1_0":
        found = [re.findall(pattern, bench.run("bench-matvec", "--default", f"{n}x{k}", name,
                                               env=bench.env))
                 for _ in range(bench.args.repeats)]
        cells = []
        for columns in "1", "2", "4", "8":
            values = [float(us) for out in found for f, c, us, _, wrong in out
                      if f == name and c == columns and not wrong]
            rate = [float(gb) for out in found for f, c, _, gb, _ in out
                    if f == name and c == columns]
            cells.append(f"{show(statistics.median(values))} ({show(statistics.median(rate))})"
                         if values else "-")
        row(name, *cells)


def part_matrix(bench):
    head("format", "14336 x 4096 x 512, TFLOP/s")
    out = bench.run("bench-matrix", max(1, bench.left() - 8), "--default", env=bench.env)
    peak = re.search(r"^ceiling: .* ([0-9.]+) TFLOP/s", out, re.M)
    if peak:
        row("ceiling, out of registers", peak[1])
    for name, what, rate in re.findall(r"^(\w+) +(\d+ x +\d+ x +\d+) .* ([0-9.]+) TFLOP/s  \S",
                                       out.rpartition("best of each")[2], re.M):
        row(f"{name} {re.sub(' +', ' ', what)}", rate)


def part_greedy(bench):
    head("demo model, fast kernels", "greedy tokens as the reference's", "largest difference of a logit")
    for name in "atlas-dense", "atlas-moe":
        out = bench.run("test-vk-reference", name, "q8_0", "fast", env=bench.env)
        tokens = re.search(r"^(\d+) tokens, (\d+) chosen otherwise", out, re.M)
        far = re.search(r"largest difference ([0-9.]+) from the scalar model", out)
        if tokens and far:
            row(name, f"{int(tokens[1]) - int(tokens[2])} of {tokens[1]}", far[1])


PARTS = {"dense": part_dense, "q8": part_q8, "moe": part_moe, "moe-host": part_moe_host,
         "workers": part_workers, "beside": part_beside, "vram": part_vram, "start": part_start,
         "load": part_load, "matvec": part_matvec, "matrix": part_matrix, "greedy": part_greedy}


def parse():
    here = os.path.dirname(os.path.abspath(__file__))
    p = argparse.ArgumentParser(usage=__doc__.partition("usage: ")[2], add_help=False)
    p.add_argument("-h", "--help", action="help")
    p.add_argument("--bin", default="build")
    p.add_argument("--device", default="auto")
    p.add_argument("--repeats", type=int, default=3)
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--models")
    for kind in SHAPES:
        p.add_argument("--" + kind)
    p.add_argument("--small", action="store_true")
    p.add_argument("--data", default=os.environ.get("WEIGHTD_TEST_DATA",
                                                    os.path.join(here, "..", "data")))
    p.add_argument("parts", nargs="*", metavar="PART")
    args = p.parse_args()
    for part in args.parts:
        if part not in PARTS:
            p.error(f"expected one of {', '.join(PARTS)}, found {part}")
    return args


def main():
    args = parse()
    status = 0
    with tempfile.TemporaryDirectory(prefix="gpu-table-") as folder:
        bench = Bench(args, folder)
        bench.env = {"WEIGHTD_TEST_DEVICE": args.device, "WEIGHTD_TEST_DATA": args.data}
        print(f"{time.strftime('%Y-%m-%d')}, {os.cpu_count()} CPUs, {args.repeats} repeats")
        for name in args.parts or PARTS:
            begun = time.monotonic()
            bench.deadline = begun + args.seconds
            try:
                PARTS[name](bench)
            except Late as why:
                print(f"\n{name}: left out: {why}")
                status = 1
            print(f"\n{name}: {time.monotonic() - begun:.1f} s", flush=True)
    return status


sys.exit(main())
