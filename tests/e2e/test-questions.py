#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A sample of the reference questions gets the reference's exact greedy answers."""
import harness

EVERY = 5          # of 200 questions
SHARE_RIGHT = 0.99  # the other engine's arithmetic may turn a tie


def test_reference_questions(site):
    site.weightd({"demo": harness.MODEL})
    worker = site.worker("demo")
    rows = harness.read_questions()[::EVERY]
    harness.check(len(rows) >= 40, f"only {len(rows)} questions in {harness.QUESTIONS}")
    wrong = []
    for question, answer in rows:
        found = site.ctl("ask", question, "--temp", "0", "--json", worker=worker).json()
        harness.check_equal(found["finish_reason"], "stop", question)
        if found["text"] != answer:
            wrong.append(f"{question}: expected {answer!r}, found {found['text']!r}")
    harness.check(len(wrong) <= len(rows) * (1 - SHARE_RIGHT),
                  f"{len(wrong)} of {len(rows)} wrong: {'; '.join(wrong[:5])}")


harness.run(globals())
