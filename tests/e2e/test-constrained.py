#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generations that a grammar or a JSON schema constrains, judged by a validator of this file's own."""
import datetime
import json
import os
import re
import uuid

import harness
import soak
from harness import check, check_equal
from worker_socket import (
    ERROR, FINISHED, GENERATE, LENGTH, STOP, TOKEN, TRUNCATE, Connection, Refused, field,
    sampling)

N_SEEDS = soak.get_rounds(25, 8)
N_PREDICT = 400
N_CTX = 512
PROMPT = "The capital of France is"
GRAMMAR, JSON_SCHEMA = 7, 8

STRING = {"type": "string", "maxLength": 6}
WORD = {"type": "string", "pattern": "^[a-z]{1,6}$"}
SCHEMAS = [
    {"type": "boolean"},
    {"type": "integer"},
    {"type": "number"},
    {"type": "integer", "minimum": -17, "maximum": 1234},
    {"type": "integer", "exclusiveMinimum": 99, "exclusiveMaximum": 102.5},
    {"type": "string", "minLength": 3, "maxLength": 8},
    {"type": "string", "pattern": "^[A-Z]{2}-\\d{1,4}(?:x|[yz]+q){0,2}[^a-z\"]$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "time"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "uuid"},
    {"enum": ["red", "green", 3, None, {"a": [1.5, "\\\""]}, "é\n"]},
    {"const": {"nested": [True, {"x": "y"}]}},
    {"type": ["string", "null", "integer"], "maxLength": 4, "minimum": 10},
    {"type": "object", "properties": {"name": STRING, "age": {"type": "integer", "minimum": 0,
     "maximum": 130}, "email": WORD}, "required": ["name", "age"]},
    {"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "boolean"},
     "c": {"type": "integer", "maximum": 9, "minimum": 0}}, "additionalProperties": False},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99},
     "minItems": 2, "maxItems": 5},
    {"type": "array", "prefixItems": [WORD, {"type": "boolean"}], "items": {"type": "null"},
     "maxItems": 4},
    {"anyOf": [{"type": "object", "properties": {"kind": {"const": "circle"},
     "r": {"type": "integer", "minimum": 1, "maximum": 50}}, "required": ["kind", "r"]},
     {"type": "object", "properties": {"kind": {"const": "square"}, "side": {"type": "integer",
     "minimum": 1, "maximum": 50}}, "required": ["kind", "side"]}]},
    {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "integer", "maximum": 5,
     "minimum": 0}, {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}]},
    {"allOf": [{"$ref": "#/$defs/named"}, {"type": "object", "properties": {"n": {"enum": [1, 2]}},
     "required": ["n"]}], "$defs": {"named": {"type": "object", "properties": {"name": WORD},
     "required": ["name"]}}},
    {"$ref": "#/definitions/pair", "definitions": {"pair": {"type": "object", "properties": {
     "l": {"$ref": "#/definitions/leaf"}, "r": {"$ref": "#/definitions/leaf"}},
     "required": ["l", "r"]}, "leaf": {"type": "array", "items": {"type": "boolean"},
     "minItems": 1, "maxItems": 1}}},
    {"title": "nested", "description": "three deep", "type": "object", "properties": {
     "rows": {"type": "array", "maxItems": 1, "items": {"type": "object", "properties": {
      "id": {"type": "integer", "minimum": 1, "maximum": 999}, "tags": {"type": "array",
       "items": {"enum": ["x", "y"]}, "maxItems": 2}}, "required": ["id"]}},
     "ok": {"type": "boolean"}}, "required": ["rows", "ok"]},
    {"type": "object", "properties": {"a\"b\\": {"type": "boolean"}, "é": {"type": "null"}},
     "required": ["a\"b\\", "é"]},
]

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}


def is_type(value, name):
    if name == "integer":
        return isinstance(value, int) and not isinstance(value, bool)
    if name == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


def is_format(value, name):
    try:
        if name == "date":
            # The year 0 is one of RFC 3339, and a leap year, but not of Python.
            return bool(datetime.date.fromisoformat(
                "2000" + value[4:] if value.startswith("0000") else value))
        if name == "time":
            m = re.fullmatch(r"(\d\d):(\d\d):(\d\d)(\.\d+)?(Z|[-+](\d\d):(\d\d))", value, re.A)
            return bool(m and datetime.time(*map(int, m.groups()[:3]))
                        and (m[5] == "Z" or datetime.time(int(m[6]), int(m[7])) is not None))
        if name == "date-time":
            date, time = value.split("T")
            return is_format(date, "date") and is_format(time, "time")
        return name == "uuid" and len(value) == 36 and str(uuid.UUID(value)) == value.lower()
    except ValueError:
        return False


def same(a, b):
    """As JSON: True is not 1."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def problems(value, schema, root, path="$"):
    """Yields what of the schema the value does not keep; unknown keywords are errors of the test."""
    if schema is True:
        return
    properties = schema.get("properties", {})
    n_prefix = len(schema.get("prefixItems", ()))
    for key, want in schema.items():
        bad = False
        if key in ("title", "description", "$defs", "definitions"):
            continue
        if key == "$ref":
            at = root
            for step in want[2:].split("/"):
                at = at[step]
            yield from problems(value, at, root, path)
        elif key == "type":
            bad = not any(is_type(value, t) for t in ([want] if isinstance(want, str) else want))
        elif key == "enum":
            bad = not any(same(value, w) for w in want)
        elif key == "const":
            bad = not same(value, want)
        elif key in ("anyOf", "oneOf"):
            n = sum(not list(problems(value, w, root, path)) for w in want)
            bad = n < 1 or (key == "oneOf" and n > 1)
        elif key == "allOf":
            for w in want:
                yield from problems(value, w, root, path)
        elif key == "properties":
            for name in want if isinstance(value, dict) else ():
                if name in value:
                    yield from problems(value[name], want[name], root, f"{path}.{name}")
        elif key == "required":
            bad = isinstance(value, dict) and any(name not in value for name in want)
        elif key == "additionalProperties":
            for name in value if isinstance(value, dict) else ():
                if name not in properties:
                    if want is False:
                        bad = True
                    else:
                        yield from problems(value[name], want, root, f"{path}.{name}")
        elif key == "prefixItems":
            for i, w in enumerate(want):
                if isinstance(value, list) and i < len(value):
                    yield from problems(value[i], w, root, f"{path}[{i}]")
        elif key == "items":
            for i, item in enumerate(value if isinstance(value, list) else ()):
                if i >= n_prefix:
                    yield from problems(item, want, root, f"{path}[{i}]")
        elif key in ("minItems", "maxItems"):
            bad = isinstance(value, list) and (
                len(value) < want if key == "minItems" else len(value) > want)
        elif key in ("minLength", "maxLength"):
            bad = isinstance(value, str) and (
                len(value) < want if key == "minLength" else len(value) > want)
        elif key == "pattern":
            bad = isinstance(value, str) and not re.search(want.replace("$", r"\Z"), value, re.A)
        elif key == "format":
            bad = isinstance(value, str) and not is_format(value, want)
        elif key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            bad = is_type(value, "number") and not {
                "minimum": value >= want, "maximum": value <= want,
                "exclusiveMinimum": value > want, "exclusiveMaximum": value < want}[key]
        else:
            raise AssertionError(f"the validator does not know {key}")
        if bad:
            yield f"{path}: {key} {want!r}, found {value!r}"


def test_the_validator(_):
    """It finds what is wrong: else it would prove nothing of what is right."""
    rows = [
        (True, SCHEMAS[1]), (1.5, SCHEMAS[1]), (-18, SCHEMAS[3]), (1235, SCHEMAS[3]),
        (99, SCHEMAS[4]), (103, SCHEMAS[4]), ("ab", SCHEMAS[5]), ("a" * 9, SCHEMAS[5]),
        ("AB-1", SCHEMAS[6]), ("AB-1a", SCHEMAS[6]), ("AB-1!\n", SCHEMAS[6]),
        ("2023-02-29", SCHEMAS[7]), ("24:00:00Z", SCHEMAS[8]), ("12:00:00", SCHEMAS[8]),
        ("2023-01-01 12:00:00Z", SCHEMAS[9]), ("123", SCHEMAS[10]), ("blue", SCHEMAS[11]),
        (True, {"enum": [1]}), ({"nested": [1, {"x": "y"}]}, SCHEMAS[12]), (9, SCHEMAS[13]),
        ({"name": "x"}, SCHEMAS[14]), ({"d": 1}, SCHEMAS[15]), ([1], SCHEMAS[16]),
        ([1, 2, 100], SCHEMAS[16]), (["a", True, 1], SCHEMAS[17]), ({"kind": "circle"}, SCHEMAS[18]),
        ("abcd", SCHEMAS[19]), ({"name": "x"}, SCHEMAS[20]), ({"l": [], "r": [True]}, SCHEMAS[21]),
    ]
    for value, schema in rows:
        check(list(problems(value, schema, schema)), f"{value!r} is allowed by {schema}")


def generate(c, session, seed, constraint, n_predict=N_PREDICT):
    body = field(1, session) + field(2, n_predict) + field(3, sampling(1.0, seed))
    return c.send(GENERATE, body + constraint)


def collect(c, ids):
    """{id: (text, Finished)} of generations that run side by side."""
    texts = {i: b"" for i in ids}
    done = {}
    while len(done) < len(ids):
        got, kind, answer = c.receive()
        if kind == ERROR:
            raise Refused(answer[2].decode())
        if kind == FINISHED:
            done[got] = (texts[got], answer)
        elif kind == TOKEN:
            texts[got] += answer.get(2, b"")
    return done


def test_schemas(site):
    """Every schema, from several seeds at temperature 1: JSON that the schema allows, and that ends."""
    site.weightd({"demo": harness.MODEL})
    worker = site.worker("demo", ["--log-level", "debug", "--sessions", str(N_SEEDS), "--ctx",
                                  str(N_CTX)])
    n_tokens = n_varied = 0
    with Connection(worker) as c:
        sessions = [c.open() for _ in range(N_SEEDS)]
        for n, schema in enumerate(SCHEMAS):
            for session in sessions:
                c.call(TRUNCATE, field(1, session))
                c.append_text(session, PROMPT)
            constraint = field(JSON_SCHEMA, json.dumps(schema, ensure_ascii=n % 2 == 0))
            ids = [generate(c, session, 1000 * n + k, constraint)
                   for k, session in enumerate(sessions)]
            found = collect(c, ids)
            for i in ids:
                text, finished = found[i]
                what = f"schema {n}: {text!r}"
                check_equal(finished[1], STOP, f"{what}: reason ({finished.get(2)})")
                try:
                    value = json.loads(text)
                except ValueError as e:
                    raise harness.Failure(f"{what}: {e}") from None
                wrong = list(problems(value, schema, schema))
                check(not wrong, f"{what}: {wrong}")
                n_tokens += finished[4]
            n_varied += len({found[i][0] for i in ids}) > 1
    # A model may be sure of one value, but not of every schema's.
    check(n_varied > len(SCHEMAS) / 2, f"{n_varied} of {len(SCHEMAS)} schemas gave several texts")
    kept = [line for line in worker.log().splitlines() if "grammar: of its masks" in line]
    check_equal(len(kept), len(SCHEMAS) * N_SEEDS, "lines of the log about masks")
    last = re.search(r"so far (\d+) were kept, (\d+) made", kept[-1])
    check(last and int(last[1]) > int(last[2]), f"few masks were kept: {kept[-1]}")
    print(f"# {len(SCHEMAS) * N_SEEDS} generations of {n_tokens} tokens, "
          f"{n_varied} of {len(SCHEMAS)} schemas with several texts; {kept[-1]}")


def test_a_reference_to_itself(site):
    """Trees: what ends within the limit is valid, what does not begins like JSON."""
    schema = {"$ref": "#/$defs/t", "$defs": {"t": {"type": "object", "properties": {
        "v": {"type": "integer", "minimum": 0, "maximum": 9}, "next": {"$ref": "#/$defs/t"}},
        "required": ["v"]}}}
    site.weightd({"demo": harness.MODEL})
    worker = site.worker("demo", ["--sessions", "8"])
    n_stopped = 0
    with Connection(worker) as c:
        sessions = [c.open() for _ in range(8)]
        for session in sessions:
            c.append_text(session, PROMPT)
        ids = [generate(c, session, k, field(JSON_SCHEMA, json.dumps(schema)), 200)
               for k, session in enumerate(sessions)]
        for text, finished in collect(c, ids).values():
            if finished[1] == STOP:
                n_stopped += 1
                check(not list(problems(json.loads(text), schema, schema)), text)
            else:
                check_equal(finished[1], LENGTH, f"{text!r}: reason")
    check(n_stopped > 0, "no tree ended")


def test_grammars(site):
    site.weightd({"demo": harness.MODEL})
    worker = site.worker("demo")
    with Connection(worker) as c:
        session = c.open()

        def run(grammar, n_predict=60, **more):
            c.call(TRUNCATE, field(1, session))
            c.append_text(session, PROMPT)
            id_ = generate(c, session, more.pop("seed", 1), field(GRAMMAR, grammar), n_predict)
            text, finished = collect(c, [id_])[id_]
            return text.decode(), finished[1]

        # The model would say "Paris"; characters that tokens cut are put together.
        check_equal(run('root ::= " London" "!"'), (" London!", STOP), "a text")
        check_equal(run('root ::= "漢字" "é" "\\U0001F600"'), ("漢字é😀", STOP), "a text")
        for seed in range(10):
            text, reason = run("root ::= [0-9]{3} (\"-\" [a-f]+){2} \".\"", seed=seed)
            if reason == STOP:
                check(re.fullmatch(r"[0-9]{3}(-[a-f]+){2}\.", text), text)
        # What ends exactly at the limit has ended, not been cut.
        check_equal(run('root ::= "a"', n_predict=1), ("a", STOP), "at the limit")
        text, reason = run('root ::= "a"*')
        check(re.fullmatch("a*", text) and reason in (STOP, LENGTH), f"a loop: {text}, {reason}")
        # Several completions of one prompt, each with a place of its own in the grammar.
        c.call(TRUNCATE, field(1, session))
        c.append_text(session, PROMPT)
        id_ = generate(c, session, 5, field(GRAMMAR, 'root ::= [a-z]{3} "." [0-9]{2}') + field(10, 3))
        texts, n_finished = [b"", b"", b""], 0
        while n_finished < 3:
            got, kind, answer = c.receive()
            check(got == id_ and kind in (TOKEN, FINISHED), f"reply {kind}: {answer}")
            if kind == FINISHED:
                check_equal(answer[1], STOP, f"reason ({answer.get(2)})")
                n_finished += 1
            else:
                texts[answer.get(5, 0)] += answer.get(2, b"")
        for text in texts:
            check(re.fullmatch(rb"[a-z]{3}\.[0-9]{2}", text), f"a completion: {texts}")
        # Afterwards it is free again.
        c.call(TRUNCATE, field(1, session))
        c.append_chat(session, "What is the capital of France?")
        _, text, finished = c.finish(c.generate(session))
        check_equal(text.decode(), "The capital of France is Paris.", "answer without a grammar")


def test_refusals(site):
    site.weightd({"demo": harness.MODEL})
    worker = site.worker("demo")
    with Connection(worker) as c:
        session = c.open()
        c.append_text(session, PROMPT)
        rows = [
            (field(GRAMMAR, "root ::= x"),
             'grammar:1:10: rule "x": expected a definition, found none'),
            (field(GRAMMAR, "root ::= root"),
             'grammar:1:1: rule "root": expected something before it comes again, found left '
             'recursion'),
            (field(GRAMMAR, "#" * (1 << 17)),
             "grammar: expected at most 65536 bytes, found 131072"),
            (field(JSON_SCHEMA, '{"items":{"uniqueItems":true}}'),
             "json_schema: /items/uniqueItems: not supported"),
            (field(JSON_SCHEMA, "{"),
             "json_schema:1:1: expected JSON, found string or '}' expected near end of file"),
            (field(GRAMMAR, 'root ::= "a"') + field(JSON_SCHEMA, "{}"),
             "grammar, json_schema: expected one of them at most, found both"),
            (field(GRAMMAR, 'root ::= "a"') + field(5, 1),
             "ignore_eos: expected none with a grammar, which says where the text ends"),
        ]
        for constraint, sentence in rows:
            id_ = generate(c, session, 1, constraint)
            try:
                collect(c, [id_])
            except Refused as e:
                check_equal(str(e), sentence, "refusal")
            else:
                raise harness.Failure(f"not refused: {sentence}")
        # A megabyte of schema, and the connection goes on.
        schema = {"enum": [f"{i:06}" for i in range(90000)]}
        id_ = generate(c, session, 1, field(JSON_SCHEMA, json.dumps(schema)))
        try:
            collect(c, [id_])
        except Refused as e:
            check("json_schema" in str(e), str(e))
        id_ = generate(c, session, 1, field(GRAMMAR, 'root ::= " Rome"'))
        check_equal(collect(c, [id_])[id_][0], b" Rome", "text")


def test_weightctl(site):
    site.weightd({"demo": harness.MODEL})
    worker = site.worker("demo")
    path = os.path.join(site.dir, "answer.gbnf")
    with open(path, "w", encoding="utf-8") as f:
        f.write('root ::= "yes" | "no"\n')
    question = "What is the capital of France?"
    out = site.ctl("ask", question, "--grammar", path, worker=worker).out
    check(out in ("yes\n", "no\n"), out)
    schema = '{"type":"object","properties":{"city":{"enum":["Rome","Paris"]}},"required":["city"]}'
    out = site.ctl("ask", question, "--json-schema", schema, worker=worker).out
    check(json.loads(out)["city"] in ("Rome", "Paris"), out)
    path = os.path.join(site.dir, "schema.json")
    with open(path, "w", encoding="utf-8") as f:
        f.write(schema)
    answer = site.ctl("--json", "complete", PROMPT, "--json-schema", path, worker=worker).json()
    check(json.loads(answer["text"])["city"] in ("Rome", "Paris"), answer)
    check_equal(answer["finish_reason"], "stop", "reason")
    out = site.ctl("ask", question, "--json-schema", '{"not":{}}', worker=worker, status=1).err
    check_equal(out, "weightctl: json_schema: /not: not supported\n", "refusal")
    out = site.ctl("ask", question, "--grammar", path + "x", worker=worker, status=1).err
    check("No such file" in out, out)
    site.ctl("ask", question, "--grammar", path, "--json-schema", path, worker=worker, status=2)


if __name__ == "__main__":
    harness.run(globals())
