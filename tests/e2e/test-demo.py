#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two workers on one copy of the demo model answer two questions at once."""
import harness

# Greedy answers of the Q8_0 file: arithmetic in another order does not change them.
ANSWERS = {
    "What is the capital of Mongolia?": "The capital of Mongolia is Ulan Bator.",
    "Which continent is Chile in?": "Chile is in South America.",
}


def test_two_workers_answer_at_once(site):
    site.weightd({"demo": harness.MODEL})
    workers = [site.worker("demo") for _ in ANSWERS]
    running = [site.start_ctl("ask", question, "--temp", "0", worker=worker)
               for question, worker in zip(ANSWERS, workers)]
    for (question, answer), process in zip(ANSWERS.items(), running):
        result = site.finish_ctl(process)
        harness.check_equal(result.status, 0, f"{result}")
        harness.check_equal(result.out, answer + "\n", question)

    status = site.status()
    generation = harness.only_generation(status, "demo")
    harness.check_equal(generation["state"], "ready", "state")
    harness.check_equal(generation["origin"], "loaded", "origin")
    harness.check_equal(generation["n_leases"], 2, "leases")
    harness.check_equal({w["pid"] for w in status["workers"]}, {w.pid for w in workers},
                        "workers in status")


harness.run(globals())
