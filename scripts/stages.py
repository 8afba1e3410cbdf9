#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The stages of scripts/test. Each prints one line; the last line is "N passed, N failed".

usage: scripts/test [--quick] [--list] [STAGE]...

  --quick   what a developer runs before a commit: lints, the gcc build and its suites
  --list    the stages, and nothing else
  STAGE     only these

Logs of every stage are in build/logs/. Exit status: 0 when nothing failed, 1, or 2 for wrong usage.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOGS = os.path.join(ROOT, "build", "logs")
FUZZ_SECONDS = 5
STATIC_CHECKS = ("format", "layers", "spdx", "length", "tidy")
BUILT_CHECKS = ("symbols", "headers")

# Drivers stay loaded until leaks have been looked for: tests/keep-loaded.c.
KEEP_LOADED = os.path.join(ROOT, "build-asan", "keep-loaded.so")
SANITIZER_ENV = {
    "LD_PRELOAD": KEEP_LOADED,
    # The usual 256 MB of freed blocks hold 13 GB: the software driver's have wide alignments.
    "ASAN_OPTIONS": "verify_asan_link_order=0:abort_on_error=1:quarantine_size_mb=4",
    "UBSAN_OPTIONS": "halt_on_error=1:abort_on_error=1:print_stacktrace=1",
    "LSAN_OPTIONS": f"suppressions={ROOT}/tests/lsan.supp:print_suppressions=0",
}


class Stage:
    """Where a stage writes, and what it counted."""

    def __init__(self, name):
        self.name = name
        self.log_path = os.path.join(LOGS, name + ".log")
        self.passed = 0
        self.failures = []
        self.skips = []
        with open(self.log_path, "w", encoding="utf-8"):
            pass

    def run(self, argv, env=None):
        """Runs a command into the log; its exit status."""
        with open(self.log_path, "a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(argv)}\n")
            log.flush()
            return subprocess.run(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                  env=dict(os.environ, **(env or {})), check=False).returncode

    def count(self, what, status):
        if status == 0:
            self.passed += 1
        else:
            self.failures.append(f"{what} (exit {status})")

    def check(self, what, argv, env=None):
        """One check: passes when the command does."""
        self.count(what, self.run(argv, env))


def lint(stage, checks, build):
    for name in checks:
        stage.check(name, ["scripts/lint", "--build", build, name])


def build(stage, directory, options=(), env=None):
    """Configures (anew if need be) and builds; false when that fails."""
    setup = ["meson", "setup", directory, "-Dwerror=true", "-Dtests=true", *options]
    if os.path.isfile(os.path.join(ROOT, directory, "build.ninja")):
        setup.insert(2, "--reconfigure")
    status = stage.run(setup, env) or stage.run(["ninja", "-C", directory])
    stage.count(directory, status)
    return status == 0


def last_words(row):
    """The line in which a skipped test says why."""
    text = (row.get("stderr") or "") + "\n" + (row.get("stdout") or "")
    lines = [x.strip() for x in text.splitlines() if x.strip()]
    skips = [x for x in lines if "skip" in x.lower()]
    return (skips or lines or ["no reason given"])[-1][:160]


def suite(stage, directory, names, env=None, slower=1, without=()):
    """Runs meson suites and counts their tests."""
    argv = ["meson", "test", "-C", directory, "--no-rebuild", "--print-errorlogs",
            "--timeout-multiplier", str(slower), "--logbase", "stage-" + stage.name]
    for name in names:
        argv += ["--suite", name]
    for name in without:
        argv += ["--no-suite", name]
    log = os.path.join(ROOT, directory, "meson-logs", f"stage-{stage.name}.json")
    if os.path.exists(log):
        os.remove(log)
    stage.run(argv, env)
    if not os.path.exists(log):
        stage.failures.append(f"no test ran in {directory}")
        return
    with open(log, encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    for row in rows:
        name = re.sub(r"^weightd:", "", row["name"])
        if row["result"] == "OK":
            stage.passed += 1
        elif row["result"] == "SKIP":
            stage.skips.append(f"{name}: {last_words(row)}")
        else:
            stage.failures.append(f"{name} ({row['result'].lower()})")
    if not rows:
        stage.failures.append(f"no test in {', '.join(names)}")


def fuzz_targets():
    """The fuzz programs of build-fuzz, by meson's own list."""
    out = subprocess.run(["meson", "introspect", "build-fuzz", "--targets"], cwd=ROOT,
                         capture_output=True, text=True, check=True).stdout
    return [(t["name"], t["filename"][0]) for t in json.loads(out)
            if t["type"] == "executable" and t["name"].startswith("fuzz-")
            and t["build_by_default"]]


def stage_static(stage):
    """format, layers, licence lines, lengths, tidiness"""
    lint(stage, STATIC_CHECKS, "build")


def stage_gcc(stage):
    """build with gcc, warnings are errors"""
    build(stage, "build", env={"CC": "gcc"})


def stage_clang(stage):
    """build with clang, warnings are errors"""
    build(stage, "build-clang", env={"CC": "clang"})


def stage_built(stage):
    """symbol prefixes, and each header alone with both compilers"""
    lint(stage, BUILT_CHECKS, "build")


def stage_unit(stage):
    """suites unit and lint"""
    suite(stage, "build", ["unit", "lint"])


def stage_vulkan(stage):
    """suite vulkan, a validation error ends the test"""
    suite(stage, "build", ["vulkan"], {"WEIGHTD_VALIDATION": "abort"})


def stage_e2e(stage):
    """suite e2e: the programs as a person runs them"""
    suite(stage, "build", ["e2e"])


def stage_replay(stage):
    """every fuzz corpus once"""
    suite(stage, "build", ["fuzz"])


def stage_sanitize(stage):
    """unit, fuzz and most of vulkan and e2e with address and undefined-behaviour sanitizers"""
    # The plain builds judge warnings: what the sanitizers add to the code makes gcc see false ones.
    options = ["-Db_sanitize=address,undefined", "-Dwerror=false"]
    if build(stage, "build-asan", options, {"CC": "gcc"}) and stage.run(
            ["gcc", "-shared", "-fPIC", "-o", KEEP_LOADED, "tests/keep-loaded.c"]) == 0:
        # Other tests take the same ways through the programs; with these it is minutes more.
        suite(stage, "build-asan", ["unit", "vulkan", "fuzz", "e2e"], SANITIZER_ENV, slower=4,
              without=["plain"])


def stage_fuzz(stage):
    """each fuzz target for a while with libFuzzer"""
    if not build(stage, "build-fuzz", ["-Dfuzz=true"], {"CC": "clang"}):
        return
    targets = fuzz_targets()
    if not targets:
        stage.failures.append("no fuzz target in build-fuzz")
    for name, program in targets:
        stem = name.removeprefix("fuzz-")
        found = os.path.join(ROOT, "build-fuzz", "corpus-" + stem)
        os.makedirs(found, exist_ok=True)
        argv = [program, f"-max_total_time={FUZZ_SECONDS}", "-timeout=10", "-rss_limit_mb=2048",
                "-print_final_stats=1", f"-artifact_prefix={LOGS}/{name}-", found]
        argv.append(os.path.join(ROOT, "tests", "data", "fuzz", stem))
        argv.append("-dict=" + os.path.join(ROOT, "tests", "fuzz", stem + ".dict"))
        stage.check(name, argv)


STAGES = {f.__name__.removeprefix("stage_"): f for f in (
    stage_static, stage_gcc, stage_clang, stage_built, stage_unit, stage_vulkan, stage_e2e,
    stage_replay, stage_sanitize, stage_fuzz)}
QUICK = ("static", "gcc", "built", "unit", "vulkan", "e2e", "replay")


def report(stage, seconds):
    text = f"{stage.passed} passed, {len(stage.failures)} failed"
    if stage.skips:
        text += f", {len(stage.skips)} skipped"
    print(f"{stage.name:9} {text:34} {seconds:6.0f} s   {STAGES[stage.name].__doc__}", flush=True)
    for line in stage.skips:
        print(f"          skipped  {line}", flush=True)
    for line in stage.failures:
        print(f"          FAILED   {line}", flush=True)
    if stage.failures:
        with open(stage.log_path, encoding="utf-8", errors="replace") as f:
            tail = f.read().splitlines()[-60:]
        print(f"          the end of {os.path.relpath(stage.log_path, ROOT)}:")
        print("\n".join("          | " + line for line in tail), flush=True)


def main():
    parser = argparse.ArgumentParser(
        prog="scripts/test", description="Builds and tests everything.",
        epilog="Logs are in build/logs/. The last line is 'N passed, N failed'.")
    parser.add_argument("--quick", action="store_true", help=f"only {', '.join(QUICK)}")
    parser.add_argument("--list", action="store_true", help="list the stages")
    parser.add_argument("stage", nargs="*", metavar="STAGE", help=", ".join(STAGES))
    args = parser.parse_args()
    unknown = set(args.stage) - set(STAGES)
    if unknown:
        parser.error(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(STAGES)}")
    if args.list:
        for name, function in STAGES.items():
            print(f"{name:9} {function.__doc__}")
        return 0

    os.makedirs(LOGS, exist_ok=True)
    n_passed = n_failed = 0
    start = time.monotonic()
    for name in args.stage or (QUICK if args.quick else STAGES):
        stage = Stage(name)
        stage_start = time.monotonic()
        STAGES[name](stage)
        report(stage, time.monotonic() - stage_start)
        n_passed += stage.passed
        n_failed += len(stage.failures)
    print(f"took {(time.monotonic() - start) / 60:.1f} minutes")
    print(f"{n_passed} passed, {n_failed} failed")
    return 1 if n_failed else 0


if __name__ == "__main__":
    sys.exit(main())
