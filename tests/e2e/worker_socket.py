# SPDX-License-Identifier: Apache-2.0
"""workerd's client socket (proto/workerd.proto) by hand: what the client library would never send
can be sent too."""
import socket
import struct
import threading
import time

# The numbers of the oneof members of Request and Reply.
HELLO, OPEN, APPEND, GENERATE, CANCEL, TRUNCATE, CLOSE, TOKENIZE, DETOKENIZE, STATUS = range(2, 12)
ERROR, WELCOME, OPENED, APPENDED, TOKEN, FINISHED, DONE, TOKENS, TEXT, STATUS_REPLY = range(2, 12)
FORK, SAVE, RESTORE, PUBLISH = 13, 14, 15, 17
SAVED, RESTORED, PUBLISHED = 13, 14, 16
STOP, LENGTH, CANCELLED, FAILED = range(1, 5)

MAX_BYTES = 1 << 20
RECEIVE_SECONDS = 60


def varint(n):
    out = b""
    while n >= 0x80:
        out += bytes([n & 0x7f | 0x80])
        n >>= 7
    return out + bytes([n])


def field(number, value):
    """One protobuf field: an int, a float, bytes or a str."""
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    if isinstance(value, str):
        value = value.encode()
    return varint(number << 3 | 2) + varint(len(value)) + value


def take_varint(data, at):
    n = shift = 0
    while True:
        byte = data[at]
        at += 1
        n |= (byte & 0x7f) << shift
        shift += 7
        if byte < 0x80:
            return n, at


def fields(data):
    """{number: value} of a protobuf message; the last of a repeated field."""
    found = {}
    at = 0
    while at < len(data):
        key, at = take_varint(data, at)
        if key & 7 == 5:
            value, at = struct.unpack("<f", data[at:at + 4])[0], at + 4
        else:
            value, at = take_varint(data, at)
        if key & 7 == 2:
            value, at = data[at:at + value], at + value
        found[key >> 3] = value
    return found


def repeated(data, number):
    """All values of one field of a protobuf message, in order."""
    found = []
    at = 0
    while at < len(data):
        key, at = take_varint(data, at)
        if key & 7 == 5:
            value, at = data[at:at + 4], at + 4
        else:
            value, at = take_varint(data, at)
        if key & 7 == 2:
            value, at = data[at:at + value], at + value
        if key >> 3 == number:
            found.append(value)
    return found


def packed(ids):
    return b"".join(varint(i) for i in ids)


def unpacked(data):
    ids = []
    at = 0
    while at < len(data):
        n, at = take_varint(data, at)
        ids.append(n)
    return ids


def frame(body):
    return struct.pack("<I", len(body)) + body


def sampling(temperature=0.0, seed=None, **more):
    body = field(1, float(temperature))
    if seed is not None:
        body += field(7, seed) + field(8, 1)
    names = {"top_k": 2, "top_p": 3, "repeat_penalty": 5, "repeat_last_n": 6, "typical_p": 9,
             "frequency_penalty": 10, "presence_penalty": 11, "dry_multiplier": 12,
             "dry_base": 13, "dry_allowed_length": 14, "dry_last_n": 15}
    body += b"".join(field(number, more[name]) for name, number in names.items() if name in more)
    body += b"".join(field(16, breaker) for breaker in more.get("dry_breakers", ()))
    for id_, bias in more.get("logit_bias", ()):
        body += field(17, field(1, id_) + field(2, float(bias)))
    return body


class Refused(Exception):
    """An Error reply: its text."""


class Closed(Exception):
    """The worker closed the connection."""


class Connection:
    """A client of a worker; Hello is said unless not wanted."""

    def __init__(self, worker, hello=True):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(RECEIVE_SECONDS)
        self.socket.connect(worker.socket)
        self.last_id = 0
        self.welcome = self.call(HELLO, field(1, 1) + field(2, "test"))[1] if hello else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    def send_bytes(self, data):
        self.socket.sendall(data)

    def send(self, kind, body=b""):
        """Sends a request and returns its id."""
        self.last_id += 1
        self.send_bytes(frame(field(1, self.last_id) + field(kind, body)))
        return self.last_id

    def receive_bytes(self, n_bytes):
        data = b""
        while len(data) < n_bytes:
            try:
                more = self.socket.recv(n_bytes - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                raise Closed(f"after {len(data)} of {n_bytes} bytes")
            data += more
        return data

    def receive_body(self):
        """(id, kind, bytes) of the next reply."""
        n_bytes, = struct.unpack("<I", self.receive_bytes(4))
        reply = fields(self.receive_bytes(n_bytes))
        kind = next(k for k in reply if k != 1)
        return reply.get(1, 0), kind, reply[kind]

    def receive(self):
        """(id, kind, fields) of the next reply."""
        id_, kind, body = self.receive_body()
        return id_, kind, fields(body)

    def call(self, kind, body=b""):
        """(kind, fields) of the one answer; Refused where it is an Error."""
        wanted = self.send(kind, body)
        got, kind, answer = self.receive()
        if kind == ERROR:
            raise Refused(answer[2].decode())
        if got != wanted:
            raise AssertionError(f"answer to {got}, not {wanted}")
        return kind, answer

    def open(self):
        return self.call(OPEN)[1][1]

    def fork(self, session, n_tokens=0):
        return self.call(FORK, field(1, session) + field(2, n_tokens))[1][1]

    def save(self, session, name):
        """Fields of Saved."""
        return self.call(SAVE, field(1, session) + field(2, name))[1]

    def restore(self, name):
        """Fields of Restored."""
        return self.call(RESTORE, field(1, name))[1]

    def publish(self, text=None, ids=None, name="", shared=False):
        """Fields of PrefixPublished."""
        body = field(1, field(1, text) + field(2, 1)) if ids is None else field(2, field(1, packed(ids)))
        return self.call(PUBLISH, body + field(3, name) + field(4, int(shared)))[1]

    def append_text(self, session, text, special=True):
        body = field(1, text) + field(2, int(special))
        return self.call(APPEND, field(1, session) + field(2, body))[1].get(2, 0)

    def append_ids(self, session, ids):
        body = field(1, packed(ids))
        return self.call(APPEND, field(1, session) + field(3, body))[1].get(2, 0)

    def append_chat(self, session, content):
        chat = field(1, field(1, "user") + field(2, content)) + field(2, 1)
        return self.call(APPEND, field(1, session) + field(4, chat))[1].get(2, 0)

    def generate(self, session, n_predict=0, how=None, stop=(), ignore_eos=False, more=b"",
                 n_keep=None):
        """Sends Generate and returns its id; receive or finish takes what comes. n_keep: of a
        context that is to shift."""
        body = field(1, session) + field(2, n_predict) + field(3, how or sampling())
        body += b"".join(field(4, s) for s in stop) + field(5, int(ignore_eos))
        if n_keep is not None:
            more += field(12, 1) + field(13, n_keep)
        return self.send(GENERATE, body + more)

    def generate_at(self, session, n_predict, priority):
        """The same with a priority, from -100 to 100."""
        body = field(1, session) + field(2, n_predict) + field(3, sampling()) + field(5, 1)
        return self.send(GENERATE, body + field(6, priority & (1 << 64) - 1))

    def finish(self, id_):
        """(ids, text, Finished) of the generation id_."""
        ids, text = [], b""
        while True:
            got, kind, answer = self.receive()
            if got == id_ and kind == ERROR:
                raise Refused(answer[2].decode())
            if got == id_ and kind == FINISHED:
                return ids, text, answer
            if got != id_ or kind != TOKEN:
                raise AssertionError(f"reply {kind} to {got} amid generation {id_}")
            ids.append(answer.get(1, 0))
            text += answer.get(2, b"")

    def status(self):
        return self.call(STATUS)[1]

    def status_rows(self, number):
        """The bytes of each entry of a repeated field of Status."""
        wanted = self.send(STATUS)
        (n_bytes,) = struct.unpack("<I", self.receive_bytes(4))
        reply = fields(self.receive_bytes(n_bytes))
        if reply[1] != wanted:
            raise AssertionError(f"answer to {reply[1]}, not {wanted}")
        rows, at, data = [], 0, reply[STATUS_REPLY]
        while at < len(data):
            key, at = take_varint(data, at)
            value, at = take_varint(data, at)
            if key & 7 == 2:
                if key >> 3 == number:
                    rows.append(data[at:at + value])
                at += value
        return rows

    def n_sessions(self):
        return self.status().get(10, 0)


class Running(threading.Thread):
    """A greedy generation of n_predict tokens, taken as they come."""

    def __init__(self, worker, n_predict, prompt="The capital of France"):
        super().__init__(daemon=True)
        self.worker, self.n_predict, self.prompt = worker, n_predict, prompt
        self.ids, self.finished, self.trouble = [], None, None
        self.start()

    def run(self):
        try:
            with Connection(self.worker) as c:
                session = c.open()
                c.append_text(session, self.prompt)
                c.generate(session, self.n_predict, ignore_eos=True)
                while self.finished is None:
                    _, kind, answer = c.receive()
                    if kind == FINISHED:
                        self.finished = answer
                    elif kind == TOKEN:
                        self.ids.append(answer.get(1, 0))
                    elif kind == ERROR:
                        raise Refused(answer[2].decode())
        except Exception as e:  # to be said by the thread that waits
            self.trouble = e

    def has(self, n_tokens):
        return len(self.ids) >= n_tokens or self.trouble or self.finished

    def finish(self):
        """(ids, reason, the text of a failure)."""
        self.join(RECEIVE_SECONDS)
        if self.trouble or not self.finished:
            raise AssertionError(f"the generation: {self.trouble}")
        return self.ids, self.finished.get(1, 0), self.finished.get(2, b"").decode()


def count_tokens(worker, seconds, n_most):
    """Tokens that take the worker so long, at most n_most: its speed is measured."""
    Running(worker, 8).finish()  # compiles what there is to compile
    start = time.monotonic()
    Running(worker, 40).finish()
    return max(40, min(n_most, int(seconds * 40 / (time.monotonic() - start))))
