#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The beginning of a prompt that one worker computes and others use: how often it is computed, how
often it is in memory, who may have it, and what becomes of it when somebody ends."""
import os

import harness
from harness import check, check_equal, wait_until
from rogue import Rogue
from weightd_socket import Weightd
from worker_socket import PUBLISH, Connection, Refused, Running, field

PAGE = 32
TEXT = " ".join(f"Paragraph {i} of the rules says that answer {i * 7} follows." for i in range(8))
QUESTION = "\nThe capital of France is"
LAYOUT = ["--ctx", "512", "--sessions", "2"]


def serve(site, *args):
    return site.worker("demo", ["--deterministic", *LAYOUT, *args])


def answer(c, text, n_predict=12):
    """(ids, prompt tokens, cached tokens) of a new session."""
    session = c.open()
    c.append_text(session, text)
    ids, _, finished = c.finish(c.generate(session, n_predict, ignore_eos=True))
    c.call(8, field(1, session))
    return ids, finished[3], finished.get(5, 0)


def plain(site, text=TEXT + QUESTION):
    """What a worker answers that shares nothing: a reference, and its prompt's tokens."""
    worker = site.worker("demo", ["--deterministic", *LAYOUT])
    with Connection(worker) as c:
        ids, n_prompt, n_cached = answer(c, text)
    check_equal(n_cached, 0, "cached without a prefix")
    worker.stop()
    return ids, n_prompt


def prefixes(site, socket=None):
    args = ["--weightd", socket] if socket else []
    return site.ctl("--json", *args, "prefix", "ls").json()["prefixes"]


def computed(worker):
    """Prompt tokens that the worker has computed."""
    with Connection(worker) as c:
        return c.status().get(16, 0)


def counts(worker):
    """(imported prefixes, their bytes)"""
    with Connection(worker) as c:
        status = c.status()
    return status.get(37, 0), status.get(38, 0)


def charged(site):
    return site.status()["devices"][0]["account"]


def publish(site, worker, **more):
    with Connection(worker) as c:
        return c.publish(TEXT, **more)


def expect_used(site, worker, expected, n_prompt, n_prefix):
    """The worker answers as without, and has computed what is behind the prefix alone."""
    before = computed(worker)
    with Connection(worker) as c:
        ids, n, n_cached = answer(c, TEXT + QUESTION)
    check_equal((ids, n, n_cached), (expected, n_prompt, n_prefix), "answer with the prefix")
    check_equal(computed(worker) - before, n_prompt - n_prefix, "prompt tokens computed")


def test_computed_once(site):
    site.weightd({"demo": harness.MODEL})
    expected, n_prompt = plain(site)
    workers = [serve(site) for _ in range(4)]
    before = charged(site)
    published = publish(site, workers[0], name="rules")
    n_prefix, n_bytes = published[2], published[3]
    check(n_prefix >= 2 * PAGE and n_prefix % PAGE == 0, f"{published}: whole pages")
    check_equal(published[4], n_prefix, "computed tokens")
    check_equal(computed(workers[0]), n_prefix, "computed by the publisher")
    row, = prefixes(site)
    check_equal((row["name"], row["n_tokens"], row["n_bytes"], row["pid"], row["leases"]),
                ("rules", n_prefix, n_bytes, workers[0].pid, 1), "the row")
    # One copy: charged once, and nobody's reservation has grown.
    after = charged(site)
    check_equal(after["weights_bytes"] - before["weights_bytes"], n_bytes, "charged")
    check_equal(after["reserved_bytes"], before["reserved_bytes"], "reserved")
    for worker in workers:
        expect_used(site, worker, expected, n_prompt, n_prefix)
        check_equal(counts(worker), (1, n_bytes), "imported")
    check_equal(charged(site), after, "the account with four users")
    check_equal(prefixes(site)[0]["leases"], 4, "leases")
    # The same again is the same one.
    again = publish(site, workers[1], name="other")
    check_equal((again[1], again[2], again.get(5, 0)), (published[1], n_prefix, 1), "again")
    # A second copy of the pages is none: a session that goes on behind it writes its own.
    with Connection(workers[2]) as c:
        one, _, _ = answer(c, TEXT + "\nAnd then")
        other, _, _ = answer(c, TEXT + QUESTION)
    check_equal(other, expected, "after another continuation")
    check(one != other, "two continuations are the same: nothing is shown")


def test_publisher_is_killed(site):
    site.weightd({"demo": harness.MODEL})
    expected, n_prompt = plain(site)
    first, second = serve(site), serve(site)
    published = publish(site, first)
    expect_used(site, second, expected, n_prompt, published[2])
    first.kill()
    wait_until(lambda: prefixes(site)[0]["leases"] == 1, "the end of the publisher's lease")
    expect_used(site, second, expected, n_prompt, published[2])
    # Also where nobody has it any more.
    second.stop()
    wait_until(lambda: prefixes(site)[0]["leases"] == 0, "the end of the last lease")
    third = serve(site)
    expect_used(site, third, expected, n_prompt, published[2])


def test_removed(site):
    site.weightd({"demo": harness.MODEL})
    expected, n_prompt = plain(site)
    first, second = serve(site), serve(site)
    before = charged(site)
    published = publish(site, first)
    with Connection(second) as c:
        session = c.open()
        c.append_text(session, TEXT + QUESTION)
        ids, _, finished = c.finish(c.generate(session, 6, ignore_eos=True))
        check_equal(finished.get(5, 0), published[2], "cached")
        site.ctl("prefix", "rm", published[1])
        check_equal(prefixes(site), [], "prefixes")
        wait_until(lambda: counts(first) == (0, 0), "the publisher to let go")
        # Who uses it goes on, and its memory stays.
        check_equal(counts(second)[0], 1, "of the session that uses it")
        check_equal(charged(site)["weights_bytes"] - before["weights_bytes"], published[3],
                    "charged while it is in use")
        more, _, _ = c.finish(c.generate(session, 6, ignore_eos=True))
        check_equal(ids + more, expected, "the answer over the removal")
    wait_until(lambda: counts(second) == (0, 0), "the last one to let go")
    wait_until(lambda: charged(site) == before, "the memory to be free")
    third = serve(site)
    with Connection(third) as c:
        check_equal(answer(c, TEXT + QUESTION), (expected, n_prompt, 0), "computed anew")
    result = site.ctl("prefix", "rm", published[1], status=1)
    check("no prefix" in result.err, str(result))


def test_sockets(site):
    tenants = [os.path.join(site.dir, name) for name in ("a.sock", "b.sock")]
    args = []
    for path in tenants:
        args += ["--listen", f"{path},models=demo"]
    site.weightd({"demo": harness.MODEL}, args)
    expected, n_prompt = plain(site)

    def tenant(path):
        main, site.weightd_socket = site.weightd_socket, path
        worker = serve(site)
        site.weightd_socket = main
        return worker

    a, b = tenant(tenants[0]), tenant(tenants[1])
    published = publish(site, a)
    with Connection(b) as c:
        check_equal(answer(c, TEXT + QUESTION), (expected, n_prompt, 0), "of another tenant")
    check_equal(len(prefixes(site, tenants[0])), 1, "seen by its own tenant")
    check_equal(prefixes(site, tenants[1]), [], "seen by another")
    try:
        publish(site, a, shared=True)
        raise harness.Failure("a prefix for others was published without control")
    except Refused as e:
        check("without control" in str(e), str(e))
    other = serve(site)
    shared = publish(site, other, shared=True)
    check(shared[1] != published[1], "the private one was given to all")
    newcomer = tenant(tenants[1])
    expect_used(site, newcomer, expected, n_prompt, shared[2])
    result = site.ctl("--weightd", tenants[1], "prefix", "rm", shared[1], status=1)
    check("no prefix" in result.err, str(result))


def test_weightd_is_killed_and_back(site):
    weightd = site.weightd({"demo": harness.MODEL})
    expected, n_prompt = plain(site)
    first, second = serve(site), serve(site)
    published = publish(site, first, name="rules")
    expect_used(site, second, expected, n_prompt, published[2])
    first.kill()
    weightd.kill()
    with Connection(second) as c:
        check_equal(answer(c, TEXT + QUESTION), (expected, n_prompt, published[2]), "without")
    site.weightd({"demo": harness.MODEL})
    row, = wait_until(lambda: prefixes(site), "the prefix to be published again", 60)
    check_equal((row["name"], row["n_tokens"], row["n_bytes"], row["pid"]),
                ("rules", published[2], published[3], second.pid), "the row")
    third = serve(site)
    expect_used(site, third, expected, n_prompt, published[2])
    check_equal(prefixes(site)[0]["leases"], 2, "leases")
    # Two that have the same publish one.
    check_equal(len(prefixes(site)), 1, "prefixes")


def test_parked_worker_lets_go(site):
    site.weightd({"demo": harness.MODEL})
    expected, n_prompt = plain(site)
    first, second = serve(site), serve(site, "--park-after", "1")
    published = publish(site, first)
    expect_used(site, second, expected, n_prompt, published[2])
    wait_until(lambda: counts(second) == (0, 0), "the worker to park")
    wait_until(lambda: prefixes(site)[0]["leases"] == 1, "its lease to end")
    expect_used(site, second, expected, n_prompt, published[2])


def test_pressure(site):
    """What no session uses makes room for others; what one uses does not."""
    site.weightd({"demo": harness.MODEL}, ["--device-budget", "256M"])
    expected, n_prompt = plain(site)
    workers = [serve(site, "--no-park") for _ in range(2)]
    published = publish(site, workers[0])
    expect_used(site, workers[1], expected, n_prompt, published[2])
    check_equal(prefixes(site)[0]["leases"], 2, "leases")
    account = charged(site)
    n_free = account["budget_bytes"] - account["weights_bytes"] - account["reserved_bytes"]
    peer = Weightd(site)
    with Connection(workers[1]) as c:
        session = c.open()
        c.append_text(session, TEXT + QUESTION)
        c.finish(c.generate(session, 6, ignore_eos=True))
        check("bytes" in peer.reserve(n_free + published[3]), "was not refused")
        check_equal((counts(workers[0]), counts(workers[1])), ((0, 0), (1, published[3])),
                    "who has it while a session uses it")
        check_equal(prefixes(site)[0]["leases"], 1, "leases")
        more, _, _ = c.finish(c.generate(session, 6, ignore_eos=True))
        check_equal(more, expected[6:], "the rest of the answer")
    check_equal(peer.reserve(n_free + published[3]), "", "refusal when nobody uses it")
    check_equal(prefixes(site), [], "prefixes")
    check_equal(counts(workers[1]), (0, 0), "imported")
    peer.close()
    with Connection(workers[1]) as c:
        check_equal(answer(c, TEXT + QUESTION)[0], expected, "computed anew")


def test_beside_decoding(site):
    """A prefix is computed while another session decodes, and both come out right."""
    site.weightd({"demo": harness.MODEL})
    expected, n_prompt = plain(site)
    worker = serve(site, "--chunk", "64")
    alone = Running(worker, 60).finish()
    running = Running(worker, 60)
    wait_until(lambda: running.has(2), "a token")
    published = publish(site, worker)
    check_equal(running.finish(), alone, "the answer beside it")
    expect_used(site, worker, expected, n_prompt, published[2])


def test_other_layout(site):
    """Pages that are made in another way are not taken for one's own."""
    site.weightd({"demo": harness.MODEL})
    first, other = serve(site), serve(site, "--kv-type", "q8_0")
    n_prefix = publish(site, first)[2]
    with Connection(other) as c:
        check_equal(answer(c, TEXT + QUESTION)[2], 0, "cached tokens of another layout")
        expected = answer(c, TEXT + QUESTION)[0]
    check_equal(counts(other), (0, 0), "imported")
    with Connection(other) as c:
        published = c.publish(TEXT)
    check_equal((published[2], published.get(5, 0)), (n_prefix, 0), "one of its own")
    third = serve(site, "--kv-type", "q8_0")
    with Connection(third) as c:
        ids, _, n_cached = answer(c, TEXT + QUESTION)
    check_equal((ids, n_cached), (expected, n_prefix), "answer with the q8_0 prefix")


def test_lost_with_its_generation(site):
    """What was computed with weights that somebody wrote into is not used any more."""
    site.weightd({"demo": harness.MODEL}, ["--scrub", "0"])
    expected, n_prompt = plain(site)
    worker = serve(site)
    n_prefix = publish(site, worker)[2]
    expect_used(site, worker, expected, n_prompt, n_prefix)
    Rogue(site, ("blk.1.ffn_up.weight", 4)).end()
    site.ctl("verify", "demo", status=1)
    check_equal(prefixes(site), [], "prefixes of the lost generation")
    wait_until(lambda: counts(worker) == (0, 0), "the worker to let go")
    with Connection(worker) as c:
        check_equal(answer(c, TEXT + QUESTION), (expected, n_prompt, 0), "on the next generation")
    check_equal(publish(site, worker)[2], n_prefix, "published again")


def test_ends_meanwhile(site):
    """One at a time; a client that goes leaves it to be finished, a worker that ends does not."""
    site.weightd({"demo": harness.MODEL})
    worker = serve(site, "--chunk", "64")
    running = Running(worker, 40)
    wait_until(lambda: running.has(1), "a token")
    with Connection(worker) as c, Connection(worker) as other:
        c.send(PUBLISH, field(1, field(1, TEXT)))
        wait_until(lambda: other.n_sessions() == 2, "the session of the prefix")
        try:
            other.publish(TEXT + " else")
            busy = ""
        except Refused as e:
            busy = str(e)
    # It may have been faster than the second.
    check(not busy or "another one is being published" in busy, busy)
    wait_until(lambda: len(prefixes(site)) >= 1, "the prefix that its client did not wait for")
    running.finish()
    wait_until(lambda: worker_sessions(worker) == 0, "the sessions to be closed")
    second = serve(site, "--chunk", "64")
    with Connection(second) as c:
        c.send(PUBLISH, field(1, field(1, "Other rules. " + TEXT)))
        second.stop()
    n_bytes = sum(p["n_bytes"] for p in prefixes(site))
    account = charged(site)
    only, = site.status()["models"]
    check_equal(account["weights_bytes"],
                only["generations"][0]["weights_bytes"] + n_bytes, "nothing else is charged")


def worker_sessions(worker):
    with Connection(worker) as c:
        return c.n_sessions()


def test_refusals(site):
    site.weightd({"demo": harness.MODEL})
    worker = serve(site)
    path = os.path.join(site.dir, "rules")
    with open(path, "w", encoding="utf-8") as f:
        f.write(TEXT)
    with Connection(worker) as c:
        for body, text in ((b"", "expected text or tokens"),
                           (field(1, field(1, "short")), "at least the 32 tokens"),
                           (field(1, field(1, TEXT * 20)), "of the context"),
                           (field(1, field(1, TEXT)) + field(3, "n" * 65), "at most 64 bytes"),
                           (field(2, field(1, b"\xff\xff\xff\x7f" * 40)), "token")):
            try:
                c.call(PUBLISH, body)
                raise harness.Failure(f"{text}: was not refused")
            except Refused as e:
                check(text in str(e), f"{text}: {e}")
        check_equal(c.n_sessions(), 0, "sessions left")
    result = site.ctl("prefix", "add", "other", path, worker=worker, status=1)
    check("serves model demo, not other" in result.err, str(result))
    result = site.ctl("prefix", "add", "demo", path, "--name", "x", worker=worker)
    check("published" in result.out, str(result))
    row = site.ctl("--json", "prefix", "add", path, worker=worker).json()
    check(row["existed"] and row["computed_tokens"] == 0, str(row))
    check("x" in site.ctl("prefix", "ls", "demo").out, "the name in ls")
    check_equal(site.ctl("--json", "prefix", "ls", "nobody").json(), {"prefixes": []}, "of another")
    for args in (["prefix", "what"], ["prefix", "rm", "x"], ["prefix", "add"]):
        site.ctl(*args, worker=worker, status=2)


if __name__ == "__main__":
    harness.run(globals())
