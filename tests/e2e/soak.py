# SPDX-License-Identifier: Apache-2.0
"""Clients that do at random all that one may do with a worker's sessions, and know what must come
of it: what each prompt gives alone is computed beforehand."""
import multiprocessing
import os
import random
import re
import time
import traceback

import harness
from harness import check, check_equal
from worker_socket import (
    APPEND, APPENDED, CANCEL, CANCELLED, CLOSE, DONE, ERROR, FAILED, FINISHED, FORK, LENGTH,
    OPEN, OPENED, RESTORE, RESTORED, SAVE, SAVED, TOKEN, TOKENIZE, TRUNCATE, Closed, Connection,
    Refused, field, packed, sampling, unpacked)

N_MOST = 24         # tokens of a generation
N_GREEDY = 56       # that are known behind a prompt
SEEDS = (70, 71)    # one behind the other: n = 2 with the first has both
TEMPERATURE = 1.2
PAGES = re.compile(r"kv: (\d+) more pages asked, (\d+) of \d+ are free; "
                   r"\d+ idle sessions have \d+ tokens there")


def get_rounds(n_whole, n_short):
    """SOAK_WHOLE=1 makes all rounds; without it as many as a check of every change can wait for."""
    return n_whole if os.environ.get("SOAK_WHOLE") == "1" else n_short


def get_seed():
    """Of this run; SOAK_SEED repeats one."""
    seed = int(os.environ.get("SOAK_SEED") or int.from_bytes(os.urandom(4), "little"))
    print(f"# seed {seed}: SOAK_SEED={seed} repeats it", flush=True)
    return seed


def is_for_pages(text):
    """A refusal that says that pages are missing, and how many."""
    found = PAGES.fullmatch(text)
    return found is not None and int(found[1]) > int(found[2])


class Prompt:
    """Token ids, and what comes behind them: greedy, and by the seeds of SEEDS."""

    def __init__(self, ids):
        self.ids, self.greedy, self.seeded = ids, [], {}


def tokenize(c, text):
    return unpacked(c.call(TOKENIZE, field(1, field(1, text) + field(2, 1)))[1][1])


def answer_alone(c, ids, n_predict, how):
    """Of a session that is opened for it, while there is no other."""
    session = c.open()
    c.append_ids(session, ids)
    found, _, _ = c.finish(c.generate(session, n_predict, how, ignore_eos=True))
    c.call(CLOSE, field(1, session))
    check_equal(len(found), n_predict, "tokens of a reference")
    return found


def make_prompts(worker, n):
    """Conversations of one to five turns, some of which begin the same, from a dozen tokens on."""
    questions = harness.read_questions()
    prompts = []
    with Connection(worker) as c:
        for i in range(n):
            # Every third goes on from the turns of the one before.
            first, n_turns = (i - i % 3) * 5, i % 3 if i % 6 < 3 else i % 5
            turns = [questions[(first + k) % len(questions)] for k in range(n_turns)]
            turns.append((questions[(first + i + 7) % len(questions)][0], None))
            text = "".join(f"<|im_start|>user\n{q}<|im_end|>\n<|im_start|>assistant\n" +
                           (f"{a}<|im_end|>\n" if a else "") for q, a in turns)
            p = Prompt(tokenize(c, text))
            p.greedy = answer_alone(c, p.ids, N_GREEDY, sampling())
            for seed in SEEDS:
                p.seeded[seed] = answer_alone(c, p.ids, N_MOST, sampling(TEMPERATURE, seed))
            prompts.append(p)
    return prompts


class Run:
    """A generation under way: what must come of each completion, and what has."""

    def __init__(self, expected, end, n_until_end):
        self.expected, self.end, self.n_until_end = expected, end, n_until_end
        self.found = [[] for _ in expected]
        self.left = set(range(len(expected)))

    def add(self, index, token):
        found, expected = self.found[index], self.expected[index]
        found.append(token)
        n = len(found)
        check(n <= len(expected) and token == expected[n - 1],
              f"token {n} of completion {index}: expected {expected[:n]}, found {found}")

    def is_due(self):
        return self.end and len(self.found[0]) >= self.n_until_end


class Place:
    """Of a session: its prompt, and how many greedy tokens are behind that."""

    def __init__(self):
        self.session, self.prompt, self.n_behind, self.run = None, None, 0, None
        self.is_other = False    # what is behind the prompt is not greedy
        self.is_refused = False  # its pages are to go to others


class Client:
    """Sessions of one connection at a time. counts: what it did, for the worker's counters."""

    def __init__(self, worker, prompts, seed, n_places, may_lack_pages=False, saves=False):
        self.worker, self.prompts, self.may_lack_pages = worker, prompts, may_lack_pages
        self.seed, self.random, self.saves = seed, random.Random(seed), saves
        self.n_places = n_places
        self.counts = dict.fromkeys(
            ("begun", "whole", "cancelled", "failed", "refused", "no_session", "cut", "forks",
             "restores", "truncates", "generated", "generated_most", "computed",
             "computed_most"), 0)
        self.connection, self.places, self.running = None, [], {}
        self.n_life = self.random.randint(12, 30)

    def count(self, **more):
        for name, n in more.items():
            self.counts[name] += n

    def connect(self):
        self.connection = Connection(self.worker)
        self.places = [Place() for _ in range(self.n_places)]
        self.running = {}

    def disconnect(self):
        """In mid-stream; what is lost may have been computed, or not."""
        self.connection.close()
        for place in self.running.values():
            run = place.run
            self.count(cut=len(run.left), generated=sum(len(run.found[i]) for i in run.left),
                       generated_most=sum(len(run.expected[i]) for i in run.left),
                       computed_most=len(place.prompt.ids) + place.n_behind)
        self.connection, self.n_life = None, self.random.randint(12, 60)

    def take(self):
        """One reply: what is of a generation goes there, and None comes back."""
        id_, kind, answer = self.connection.receive()
        place = self.running.get(id_)
        if not place:
            return id_, kind, answer
        if kind == TOKEN:
            place.run.add(answer.get(5, 0), answer.get(1, 0))
        elif kind == FINISHED:
            self.finish(id_, place, answer)
        elif kind == ERROR:
            del self.running[id_]
            self.refuse(place, answer[2].decode())
        else:
            raise harness.Failure(f"reply {kind} to a generation")
        return None

    def call(self, kind, body, expected=DONE):
        """Fields of the answer; generations go on meanwhile."""
        wanted = self.connection.send(kind, body)
        while True:
            reply = self.take()
            if not reply:
                continue
            id_, got, answer = reply
            check_equal(id_, wanted, "answered request")
            if got == ERROR:
                raise Refused(answer[2].decode())
            check_equal(got, expected, f"kind of the answer to {kind}")
            return answer

    def refuse(self, place, text):
        """A Generate that was not begun: the session is as before."""
        place.run = None
        if text.startswith("n: "):
            self.count(no_session=1)
            return
        check(self.may_lack_pages and is_for_pages(text), f"a Generate was refused: {text}")
        self.count(refused=1)
        place.is_refused = True

    def finish(self, id_, place, answer):
        run, reason, index = place.run, answer.get(1, 0), answer.get(9, 0)
        n_found, n_expected = len(run.found[index]), len(run.expected[index])
        n_uncached = answer.get(3, 0) - answer.get(5, 0)
        check_equal(answer.get(4, 0), n_found, "generated tokens that Finished counts")
        check(reason in (LENGTH, CANCELLED, FAILED), f"a generation ended with {answer}")
        if reason == LENGTH:
            check_equal(n_found, n_expected, "tokens of a whole generation")
        elif reason == CANCELLED:
            check(run.end, f"a generation was cancelled by nobody: {answer}")
        else:
            text = answer.get(2, b"").decode()
            check(self.may_lack_pages and is_for_pages(text), f"a generation failed: {text}")
        if reason == LENGTH:
            self.count(whole=1)
        else:
            self.count(**{"cancelled" if reason == CANCELLED else "failed": 1})
        self.count(generated=n_found, generated_most=n_found)
        # Completions begin with what was computed for the first.
        if index == 0:
            self.count(computed=n_uncached if n_found else 0, computed_most=n_uncached)
            place.n_behind += 0 if place.is_other else n_found
        run.left.remove(index)
        if not run.left:
            place.run = None
            del self.running[id_]

    def close(self, place):
        session, place.session, place.is_refused = place.session, None, False
        self.call(CLOSE, field(1, session))

    def truncate(self, place, n_keep):
        self.count(truncates=1)
        self.call(TRUNCATE, field(1, place.session) + field(2, n_keep))

    def append(self, place, ids):
        body = field(1, place.session) + field(3, field(1, packed(ids)))
        self.call(APPEND, body, APPENDED)

    def fork(self, place):
        """A session of what another one has, which may be generating; False: there is none."""
        others = [p for p in self.places if p.session is not None]
        if not others or self.random.random() < 0.7:
            return False
        other = self.random.choice(others)
        n_known = other.n_behind
        if other.run and not other.is_other:
            n_known += len(other.run.found[0])
        n_behind = self.random.randint(0, min(n_known, N_GREEDY - N_MOST))
        prompt = other.prompt
        body = field(1, other.session) + field(2, len(prompt.ids) + n_behind)
        place.session = self.call(FORK, body, OPENED)[1]
        place.prompt, place.n_behind, place.is_other = prompt, n_behind, False
        self.count(forks=1)
        return True

    def restore(self, place):
        """The place's session again, by way of a file."""
        name = f"soak-{self.seed}"
        self.call(SAVE, field(1, place.session) + field(2, name), SAVED)
        self.close(place)
        found = self.call(RESTORE, field(1, name), RESTORED)
        place.session = found[1]
        check_equal((found[2], found.get(4, b"")), (len(place.prompt.ids) + place.n_behind, b""),
                    "tokens of a restored session, and why its keys are of no use")
        self.count(restores=1)

    def prepare(self, place):
        """A session with a prompt and some greedy tokens behind it."""
        draw = self.random.random()
        if place.session is not None and (place.is_refused or draw < 0.25):
            self.close(place)
        elif place.session is not None and self.saves and not place.is_other and draw < 0.35:
            self.restore(place)
            draw = self.random.random()
        if place.session is None:
            if not self.fork(place):
                place.session = self.call(OPEN, b"", OPENED)[1]
                place.prompt = self.random.choice(self.prompts)
                # As another turn of a conversation: what somebody generated is found, or not.
                n = self.random.randint(0, N_GREEDY - N_MOST) if draw < 0.5 else 0
                place.n_behind, place.is_other = n, False
                self.append(place, place.prompt.ids + place.prompt.greedy[:n])
            return
        n_prompt = len(place.prompt.ids)
        if draw < 0.45:
            # Into the prompt, whose rest is given again.
            n_keep = self.random.randint(0, n_prompt - 1)
            self.truncate(place, n_keep)
            self.append(place, place.prompt.ids[n_keep:])
            place.n_behind = 0
        elif place.is_other or draw < 0.75 or place.n_behind + N_MOST > N_GREEDY:
            place.n_behind = 0 if place.is_other else self.random.randint(
                0, min(place.n_behind, N_GREEDY - N_MOST))
            self.truncate(place, n_prompt + place.n_behind)
        place.is_other = False

    def begin(self, place):
        """Sends a Generate of the place, which has none."""
        self.prepare(place)
        n_predict, draw = self.random.randint(1, N_MOST), self.random.random()
        end = None if draw < 0.75 else CANCEL if draw < 0.92 else CLOSE
        n_until_end = self.random.randint(0, n_predict - 1)
        how, more, known = sampling(), b"", [place.prompt.greedy[place.n_behind:]]
        if place.n_behind == 0 and self.random.random() < 0.5:
            n = self.random.choice((1, 1, 1, 2))
            seeds = SEEDS if n == 2 else [self.random.choice(SEEDS)]
            how = sampling(TEMPERATURE, seeds[0])
            known = [place.prompt.seeded[seed] for seed in seeds]
            more = field(10, n)
            place.is_other = True
        place.run = Run([ids[:n_predict] for ids in known], end, n_until_end)
        id_ = self.connection.generate(place.session, n_predict, how, ignore_eos=True, more=more)
        self.running[id_] = place
        self.n_life -= 1
        self.count(begun=1)

    def try_begin(self, place):
        try:
            self.begin(place)
        except Refused as e:
            is_full = re.fullmatch(r"sessions: all \d+ are open", str(e))
            check(is_full or (self.may_lack_pages and is_for_pages(str(e))), f"refused: {e}")
            self.count(**{"no_session" if is_full else "refused": 1})

    def end_due(self):
        for place in self.places:
            # Ended meanwhile, maybe: each call takes what comes.
            if not place.run or not place.run.is_due():
                continue
            # Once; the generation is CANCELLED, or was whole before.
            end, place.run.n_until_end = place.run.end, N_MOST + 1
            if end == CANCEL:
                self.call(CANCEL, field(1, place.session))
            else:
                self.close(place)

    def turn(self, may_begin):
        """False: nothing is under way, and nothing may begin."""
        if self.connection is None:
            if not may_begin:
                return False
            self.connect()
        for place in self.places:
            if may_begin and not place.run:
                self.try_begin(place)
        self.end_due()
        if self.n_life <= 0 and may_begin:
            self.disconnect()
        elif self.running:
            self.take()
        elif not may_begin:
            for place in self.places:
                if place.session is not None:
                    self.close(place)
            self.connection.close()
            self.connection = None
            return False
        else:
            time.sleep(0.01)
        return True

    def generate(self, n):
        """n generations and a few more, and all is closed."""
        n += self.counts["begun"]
        while self.turn(self.counts["begun"] < n):
            pass

    def outlive(self, stop):
        """Until stop is set; the worker may die and come back."""
        while True:
            try:
                if not self.turn(not stop.is_set()):
                    return
            except (Closed, ConnectionError, FileNotFoundError, Refused):
                if self.connection:
                    self.disconnect()
                time.sleep(0.05)


def run_client(client, method, argument, pipe):
    try:
        getattr(client, method)(argument)
        pipe.send((None, client.counts))
    except harness.Failure as e:
        pipe.send((str(e), client.counts))
    except Exception:
        pipe.send((traceback.format_exc(), client.counts))


class Crowd:
    """Clients in processes of their own."""

    def __init__(self, clients, method, argument):
        fork = multiprocessing.get_context("fork")
        self.members = []
        for client in clients:
            end, other = fork.Pipe(False)
            process = fork.Process(target=run_client, args=(client, method, argument, other),
                                   daemon=True)
            process.start()
            other.close()
            self.members.append((process, end))

    def join(self):
        """The counts of each."""
        found, trouble = [], []
        for process, end in self.members:
            try:
                text, counts = end.recv()
            except EOFError:
                text, counts = "a client died", {}
            process.join()
            end.close()
            found.append(counts)
            if text:
                trouble.append(text)
        check(not trouble, "; ".join(trouble))
        return found


def add_counts(found):
    return {name: sum(counts[name] for counts in found) for name in found[0]}
