#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line contract: exit statuses, option places, and the shape of --json."""
import os
import subprocess

import harness
from harness import check, check_equal

QUESTION = "Which continent is Chile in?"


def run_program(name, *args):
    run = subprocess.run([harness.need_env(name), *args], stdin=subprocess.DEVNULL,
                         capture_output=True, text=True, timeout=30, check=False)
    return harness.Result([name, *args], run.returncode, run.stdout, run.stderr)


def check_keys(row, keys, what):
    missing = set(keys) - set(row)
    check(not missing, f"{what}: no {', '.join(sorted(missing))} in {sorted(row)}")


def test_help_and_version(_site):
    for name in "WEIGHTD_BIN", "WORKERD_BIN", "WEIGHTCTL_BIN":
        for option in "--help", "--version":
            result = run_program(name, option)
            check_equal(result.status, 0, f"{result}")
            check(result.out.strip() and not result.err, f"{result}: belongs on stdout")


def test_wrong_usage_is_2(site):
    cases = [
        ("WEIGHTD_BIN", "--nonsense"),
        ("WEIGHTD_BIN", "--model", "no-equals-sign"),
        ("WEIGHTD_BIN", "--model", "bad name=/dev/null"),
        ("WEIGHTD_BIN", "surplus"),
        ("WORKERD_BIN",),
        ("WORKERD_BIN", "--model"),
        ("WORKERD_BIN", "--model", "demo", "--ctx", "many"),
        ("WORKERD_BIN", "--model", "demo", "--sessions", "-1"),
        ("WEIGHTCTL_BIN",),
        ("WEIGHTCTL_BIN", "nonsense"),
        ("WEIGHTCTL_BIN", "ls", "--nonsense"),
        ("WEIGHTCTL_BIN", "ls", "surplus"),
        ("WEIGHTCTL_BIN", "load"),
        ("WEIGHTCTL_BIN", "load", "no-equals-sign"),
        ("WEIGHTCTL_BIN", "unload"),
        ("WEIGHTCTL_BIN", "ask"),
        ("WEIGHTCTL_BIN", "ask", "x", "--temp", "warm"),
        ("WEIGHTCTL_BIN", "ask", "x", "--temp", "-1"),
        ("WEIGHTCTL_BIN", "ask", "x", "--n-predict", "1e3x"),
        ("WEIGHTCTL_BIN", "ask", "x", "--logit-bias", "7"),
        ("WEIGHTCTL_BIN", "ask", "x", "--logprobs", "3"),
        ("WEIGHTCTL_BIN", "ask", "x", "-n", "9"),
        ("WEIGHTCTL_BIN", "chat", "-n", "2"),
        ("WEIGHTCTL_BIN", "detokenize", "twelve"),
    ]
    for case in cases:
        result = run_program(*case)
        check_equal(result.status, 2, f"{result}")
        check(result.err.strip() and not result.out, f"{result}: belongs on stderr")


def test_options_after_the_command(site):
    site.weightd({"demo": harness.MODEL})
    worker = site.worker("demo")
    before = site.ctl("--json", "ask", "--temp", "0", QUESTION, worker=worker).json()
    after = site.ctl("ask", QUESTION, "--temp", "0", "--json", worker=worker).json()
    check_equal(after["text"], before["text"], "text")
    moved = subprocess.run(
        [harness.need_env("WEIGHTCTL_BIN"), "ask", QUESTION, "--worker", worker.socket,
         "--temp=0"], capture_output=True, text=True, timeout=harness.CTL_SECONDS, check=False)
    check_equal((moved.returncode, moved.stdout), (0, before["text"] + "\n"), moved.stderr)


def test_ask_and_complete(site):
    site.weightd({"demo": harness.MODEL})
    worker = site.worker("demo")
    answer = site.ctl("ask", QUESTION, "--temp", "0", "--json", worker=worker).json()
    check_keys(answer, ["text", "tokens", "prompt_tokens", "finish_reason", "timings"], "ask")
    check_equal(answer["finish_reason"], "stop", "finish_reason")
    plain = site.ctl("ask", QUESTION, "--temp", "0", worker=worker)
    check_equal((plain.out, plain.err), (answer["text"] + "\n", ""), "ask prints the text alone")

    cut = site.ctl("complete", "The capital of", "--temp", "0", "--n-predict", "3", "--json",
                   worker=worker).json()
    check_equal((len(cut["tokens"]), cut["finish_reason"]), (3, "length"), f"{cut}")
    plain = site.ctl("complete", "The capital of", "--temp", "0", "--n-predict", "3",
                     worker=worker)
    check_equal(plain.out, cut["text"] + "\n", "complete prints the text alone")

    # The same seed draws the same text.
    drawn = [site.ctl("complete", "The", "--temp", "1.5", "--top-k", "40", "--top-p", "0.95",
                      "--seed", "7", "--n-predict", "12", worker=worker).out for _ in range(2)]
    check_equal(drawn[0], drawn[1], "seed 7 twice")


def test_logprobs_bias_and_stop_tokens(site):
    site.weightd({"demo": harness.MODEL})
    worker = site.worker("demo")
    plain = site.ctl("ask", QUESTION, "--json", worker=worker).json()
    check("logprobs" not in plain, f"{plain}: nobody asked for logprobs")
    told = site.ctl("ask", QUESTION, "--json", "--logprobs", "2", worker=worker).json()
    check_equal([row["id"] for row in told["logprobs"]], plain["tokens"], "ids of logprobs")
    for row in told["logprobs"]:
        check_keys(row, ["id", "logprob", "top"], "logprobs")
        check_equal((len(row["top"]), row["top"][0]["id"], row["top"][0]["logprob"]),
                    (2, row["id"], row["logprob"]), "the likeliest")
        check(row["top"][1]["logprob"] <= row["logprob"] <= 0, f"{row}")
    check_equal("".join(row["top"][0]["text"] for row in told["logprobs"]), plain["text"], "text")
    third = plain["tokens"][2]
    cut = site.ctl("ask", QUESTION, "--json", "--stop-token", third, worker=worker).json()
    check_equal((cut["tokens"], cut["finish_reason"]), (plain["tokens"][:3], "stop"), "stop token")
    other = site.ctl("ask", QUESTION, "--json", "--logit-bias", f"{third}=-inf", "--n-predict",
                     "20", worker=worker).json()
    check(third not in other["tokens"], f"{third} in {other['tokens']}")
    same = site.ctl("complete", "The", "--logit-bias", f"{third}=100", "--n-predict", "4",
                    "--frequency-penalty", "0.1", "--presence-penalty", "0.1", "--typical-p", "0.9",
                    "--json", worker=worker).json()
    check_equal(same["tokens"], [third] * 4, "a bias of 100")
    wrong = site.ctl("ask", QUESTION, "--json", "--logprobs", "21", status=1, worker=worker)
    check("20" in wrong.err and len(wrong.err.splitlines()) == 1, f"{wrong}: one line")
    drawn = [site.ctl("complete", "The", "--dry-multiplier", "0.8", "--dry-base", "2",
                      "--dry-allowed-length", "1", "--temp", "1", "--seed", "1", "--n-predict",
                      "30", worker=worker).out for _ in range(2)]
    check_equal(drawn[0], drawn[1], "seed 1 under DRY twice")


def test_completions(site):
    site.weightd({"demo": harness.MODEL})
    worker = site.worker("demo", ["--deterministic"])
    how = ["complete", "The capital of", "--temp", "1.3", "--n-predict", "9", "--seed"]
    alone = [site.ctl(*how, 20 + i, worker=worker).out for i in range(3)]
    check(len(set(alone)) > 1, "all seeds give the same: it shows nothing")
    check_equal(site.ctl(*how, 20, "-n", "3", worker=worker).out, "\n".join(alone), "as text")
    rows = site.ctl(*how, 20, "-n", "3", "--json", "--logprobs", "1", worker=worker).json()
    rows = rows["completions"]
    check_equal([row["text"] + "\n" for row in rows], alone, "as JSON")
    check_equal([row["seed"] for row in rows], ["20", "21", "22"], "seeds")
    check_equal([len(row["logprobs"]) for row in rows], [len(row["tokens"]) for row in rows],
                "log probabilities")
    one = site.ctl(*how, 20, "-n", "1", "--json", worker=worker).json()
    check_equal(one["text"] + "\n", alone[0], "-n 1 is as without")


def test_tokenize_and_back(site):
    site.weightd({"demo": harness.MODEL})
    worker = site.worker("demo")
    text = "Ulan Bator \u00e9 \u6771\u4eac 42"
    ids = site.ctl("tokenize", text, "--json", worker=worker).json()["tokens"]
    check(ids and all(isinstance(i, int) for i in ids), f"ids {ids}")
    plain = site.ctl("tokenize", text, worker=worker).out
    check_equal([int(i) for i in plain.split()], ids, "tokenize as text")
    back = site.ctl("detokenize", *ids, worker=worker)
    check_equal(back.out, text + "\n", "detokenize")


def test_load_ls_status_unload(site):
    site.weightd()
    check_equal(site.ctl("ls", "--json").json()["models"], [], "models of a bare weightd")
    site.ctl("load", f"one={harness.MODEL}")
    check("one" in site.ctl("ls").out, "ls names the model")
    check_equal(site.ctl("ls").out.splitlines()[1].split()[-2], "0", "devices that have the model")
    again = site.ctl("load", f"one={harness.MODEL}", status=1)
    check("one" in again.err and len(again.err.splitlines()) == 1, f"{again}: one line")

    worker = site.worker("one")
    status = site.status()
    check_keys(status, ["pid", "device", "models", "workers"], "status")
    generation = harness.only_generation(status, "one")
    check_keys(generation, ["id", "state", "origin", "weights_bytes", "n_leases", "allocations"],
               "generation")
    for row in generation["allocations"]:
        check_keys(row, ["n_bytes", "inode", "dev", "placement"], "allocation")
    check_keys(status["workers"][0], ["pid", "leases", "kv_bytes", "scratch_bytes", "io_bytes",
                                      "attach_ns"], "worker")
    check(os.path.getsize(harness.MODEL) * 0.9 < generation["weights_bytes"]
          < os.path.getsize(harness.MODEL) * 1.1, f"weights of {generation['weights_bytes']} bytes")
    check("one" in site.ctl("status").out, "status names the model")

    mine = site.ctl("status", "--json", worker=worker)
    check_equal(mine.status, 0, f"{mine}")

    worker.stop()
    harness.wait_until(lambda: not site.status()["workers"], "the worker leaves status")
    check_equal(site.ctl("unload", "one").out, "one: unloaded\n", "unload")
    check_equal(site.status()["models"], [], "models after unload")
    check_equal(site.ctl("unload", "one", status=1).err.count("\n"), 1, "lines of a refusal")


harness.run(globals())
