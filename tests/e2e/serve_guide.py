"""Constrained answers of `weft serve`: whatever the model, the temperature and the seed, what comes out
parses and meets its schema, by jsonschema. serve_guide.py WEFT ROOT; exits 77 without jsonschema."""
import json
import os
import re
import sys
import threading
import time

from serve_lib import Server, check, finish, same, sanitized

try:
    import jsonschema
except ImportError:
    print("SKIPPED: no module jsonschema; tools/client-venv.sh makes a Python with it")
    sys.exit(77)

NODE = {"$ref": "#/$defs/node"}
# Arrays and strings are bounded where a model without sense would never end them.
SCHEMAS = {
    "flat": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12},
                                              "age": {"type": "integer"}, "tall": {"type": "boolean"}},
             "required": ["name", "age", "tall"], "additionalProperties": False},
    "optional": {"type": "object", "properties": {c: {"enum": [c, 1, None]} for c in "abcde"},
                 "required": ["c"]},
    "enum": {"enum": ["red", "green", "blue", 3, -0.1, 1e30, None, True, {"a": [1, "x"]}, "\u00e9\"\\/\n"]},
    "const": {"const": "\u4f60\u597d"},
    "large number": {"const": 1e22},
    "larger number": {"enum": [1.5e25, [1e300]]},
    "number": {"type": "number"},
    "integer": {"type": "integer"},
    "range": {"type": "integer", "minimum": -17, "exclusiveMaximum": 1204.5},
    "small range": {"type": ["integer", "null"], "exclusiveMinimum": 98, "maximum": 101},
    "types": {"type": ["integer", "null", "boolean"]},
    "string": {"type": "string", "minLength": 3, "maxLength": 9},
    "array": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 5},
    "empty array": {"type": "array", "maxItems": 0},
    "tuple": {"type": "array", "prefixItems": [{"type": "integer"}, {"const": "x"}], "items": False,
              "minItems": 2},
    "open tuple": {"type": "array", "prefixItems": [{"type": "boolean"}], "items": {"enum": [1, 2]},
                   "minItems": 3, "maxItems": 6},
    "anyOf": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 5},
                        {"type": "array", "items": {"type": "null"}, "maxItems": 3}]},
    "oneOf": {"oneOf": [
        {"type": "object", "properties": {"kind": {"const": "cat"}, "lives": {"type": "integer"}},
         "required": ["kind", "lives"]},
        {"type": "object", "properties": {"kind": {"const": "dog"}, "name": {"type": "string",
                                                                             "maxLength": 4}},
         "required": ["kind"]}]},
    "allOf": {"allOf": [{"type": "boolean"}], "description": "pydantic writes it so"},
    "recursive": {"$defs": {"node": {"type": "object", "properties": {
        "value": {"type": "integer"}, "next": {"anyOf": [NODE, {"type": "null"}]}},
        "required": ["value", "next"], "additionalProperties": False}}, "$ref": "#/$defs/node"},
    "tree": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1},
    "additional": {"type": "object", "properties": {"id": {"type": "integer"}, "idea": {"type": "boolean"}},
                   "required": ["id"], "additionalProperties": {"type": "null"}},
    "map": {"type": "object", "additionalProperties": {"type": "integer"}},
    "no properties": {"type": "object", "additionalProperties": False},
    "escapes": {"type": "object", "properties": {"a\"b\\c\n\u00fc": {"type": "null"}},
                "required": ["a\"b\\c\n\u00fc"]},
    "anything": {},
}
GUIDES, HOLDS = 300, 16
REFUSED = (
    ({"type": "string", "pattern": "^a$"}, "pattern"),
    ({"type": "string", "format": "date"}, "format"),
    ({"type": "number", "minimum": 3}, "bounds are for type integer"),
    ({"type": "integer", "minimum": 3, "exclusiveMaximum": 4, "exclusiveMinimum": 3}, "no integer"),
    ({"type": "integer", "multipleOf": 3}, "multipleOf"),
    ({"properties": {"a": {"properties": {"b": {"uniqueItems": True}}}}}, "/properties/a/properties/b.*uniqueItems"),
    ({"not": {}}, "not"),
    ({"anyOf": [{}], "type": "string"}, "type"),
    ({"allOf": [{}, {}]}, "allOf"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "two of oneOf"),
    ({"$ref": "#/$defs/none"}, "finds nothing"),
    ({"$ref": "http://example.com/schema"}, "finds nothing"),
    ({"$ref": "#"}, "without an end"),
    ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "without an end"),
    ({"type": "text"}, "no type"),
    ({"type": "array", "minItems": 3, "maxItems": 2}, "no array"),
    ({"enum": []}, "no value"),
    ({"properties": {"a": False}}, "false"),
    ({"required": ["a"]}, "required"),
    ({"type": "string", "maxLength": 100000}, "maxLength"),
    ([], "not a schema"),
)


def ask(s, schema, **fields):
    return s.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Tell me something."}], "max_tokens": 300,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        **fields})


def judge(what, schema, choice, ended):
    """Notes what is wrong with an answer; one that was cut off is only counted."""
    if choice["finish_reason"] == "length":
        return
    text = choice["message"]["content"]
    try:
        jsonschema.Draft202012Validator(schema).validate(json.loads(text))
        ended.append(1)
    except (ValueError, jsonschema.ValidationError) as error:
        check(what, False, (text, str(error)[:200]))


def test_schemas(s, rounds):
    """Every schema many times, sixteen requests at once, so that guides are shared and mixed."""
    for name, schema in SCHEMAS.items():
        jsonschema.Draft202012Validator.check_schema(schema)
    ended = {name: [] for name in SCHEMAS}
    left = [(name, seed) for seed in range(rounds) for name in SCHEMAS]
    lock = threading.Lock()

    def worker():
        while True:
            with lock:
                if not left:
                    return
                name, seed = left.pop()
            status, body = ask(s, SCHEMAS[name], seed=seed, temperature=(0, 0.7, 1.5, 5)[seed % 4], n=2,
                               max_tokens=150)
            if status != 200:
                check(name, False, body)
                continue
            for choice in body["choices"]:
                judge("%s, seed %d" % (name, seed), SCHEMAS[name], choice, ended[name])

    threads = [threading.Thread(target=worker) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name in SCHEMAS:
        check("%s comes to an end" % name, len(ended[name]) > 0)
    return sum(len(e) for e in ended.values())


def brackets(s):
    """The bias that makes a model open arrays as long as it may."""
    return {s.post("/tokenize", {"prompt": "[", "add_special_tokens": False})[1]["tokens"][0]: 100}


def test_surface(s):
    whole = ask(s, SCHEMAS["flat"], seed=3, temperature=1)[1]["choices"][0]
    events = s.events("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "Tell me something."}], "max_tokens": 300, "seed": 3,
        "temperature": 1, "response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "schema": SCHEMAS["flat"]}}})
    same("streamed", "".join(e["choices"][0]["delta"].get("content", "") for e in events),
         whole["message"]["content"])
    same("why it ends", (whole["finish_reason"], events[-1]["choices"][0]["finish_reason"]),
         ("stop", "stop"))
    deep = ask(s, True, seed=1, temperature=0, logit_bias=brackets(s), max_tokens=600)[1]["choices"][0]
    check("as deep as it gets", deep["message"]["content"].count("[") in range(50, 65), deep)
    judge("deep", True, deep, [])
    same("with ignore_eos", ask(s, {"const": [1]}, ignore_eos=True)[1]["choices"][0]["message"]["content"],
         "[1]")
    same("text", s.chat("What is the capital of France?", response_format={"type": "text"})[1]
         ["choices"][0]["message"]["content"], "The capital of France is Paris.")
    status, body = s.post("/v1/completions", {"prompt": "x", "max_tokens": 40, "response_format": {
        "type": "json_schema", "json_schema": {"schema": {"enum": [17]}}}})
    same("completions", (status, body["choices"][0]["text"]), (200, "17"))
    status, body = s.post("/generate", {"text": "x", "sampling_params": {
        "max_new_tokens": 40, "json_schema": json.dumps({"enum": [18]})}})
    same("native", (status, body["text"]), (200, "18"))
    status, body = s.post("/generate", {"text": "x", "sampling_params": {"json_schema": "{"}})
    same("native, no schema", (status, body["error"]["param"]), (400, "json_schema"))
    status, body = s.post("/generate", {"text": "x", "sampling_params": {
        "json_schema": "true", "response_format": {"type": "json_object"}}})
    same("both formats", (status, body["error"]["param"]), (400, "json_schema"))
    same("json_schema is not a chat's", s.chat("What is the capital of France?", json_schema="{")[1]
         ["choices"][0]["message"]["content"], "The capital of France is Paris.")
    for schema, words in REFUSED:
        status, body = ask(s, schema)
        error = body.get("error", {})
        same("refused %s" % schema, (status, error.get("param")), (400, "response_format"))
        check("refused %s" % schema, re.search(words, error.get("message", "")), error)
    for body in ({"type": "xml"}, {"type": "json_schema"}, {}, "json"):
        status, answer = s.chat("x", response_format=body)
        same("format %s" % body, (status, answer["error"]["param"]), (400, "response_format"))


def test_stops(s):
    body = ask(s, SCHEMAS["array"], seed=5, temperature=1, stop=[","])[1]["choices"][0]
    check("a stop string ends it", body["finish_reason"] == "stop" and "," not in
          body["message"]["content"], body)
    body = ask(s, {"type": "array", "items": {"type": "integer"}}, min_tokens=20, seed=1)[1]["choices"][0]
    check("min_tokens", body["finish_reason"] in ("stop", "length"), body)


def test_wide(s):
    """A schema of which too much must be followed at once ends its own request, soon; the server's
    others go on."""
    wide = {"anyOf": [{"type": "string", "maxLength": n} for n in range(1, 251)]}
    status, body = ask(s, wide)
    same("too wide", (status, body["error"]["param"]), (400, "response_format"))
    check("too wide", "too complex" in body["error"]["message"], body)
    text = s.request("POST", "/v1/chat/completions", {
        "messages": [{"role": "user", "content": "x"}], "stream": True, "response_format": {
            "type": "json_schema", "json_schema": {"name": "x", "schema": {
                "properties": {"a": wide}, "required": ["a"]}}}})[2]
    check("too wide on the way", b"too complex" in text, text[-300:])
    check("idle after it", s.wait_idle())
    many = {"enum": ["%x" % (i * 2654435761 % 2**32) for i in range(5000)]}
    body = ask(s, many, temperature=1, seed=1)[1]
    judge("many values", many, body["choices"][0], [])


def test_many_guides(weft, model):
    """Schemas of queued requests take bounded memory: what is beyond it is told to come again."""
    with Server(weft, model, "--max-running-requests", "1") as s:
        def one(i):
            array = {"type": "array", "items": {"const": i}, "maxItems": 8190}
            answers.append(ask(s, {"anyOf": [array] * 5}, max_tokens=1)[0])

        def hold(i):
            held.append(s.post("/v1/completions", {"prompt": "x", "max_tokens": 1000, "ignore_eos": True},
                               headers={"X-Request-Id": "hold%d" % i})[0])

        answers, held = [], []
        holds = [threading.Thread(target=hold, args=(i,)) for i in range(HOLDS)]
        threads = [threading.Thread(target=one, args=(i,)) for i in range(GUIDES)]
        for thread in holds: # they run one after the other, with the guides behind them
            thread.start()
        while s.metric("vllm:num_requests_running") + s.metric("vllm:num_requests_waiting") < HOLDS and not held:
            time.sleep(0.01)
        for thread in threads:
            thread.start()
        while 429 not in answers and len(held) < HOLDS:
            time.sleep(0.01)
        for i in range(HOLDS):
            s.post("/abort_request", {"rid": "hold%d" % i})
        for thread in holds + threads:
            thread.join()
        same("the engine was held", held, [200] * HOLDS)
        check("some wait, some are refused", set(answers) == {200, 429}, set(answers))
        check("all guides together", s.resident_kib() < 1 << 20, s.resident_kib())
        same("and then", ask(s, {"const": 5})[1]["choices"][0]["message"]["content"], "5")


def test_full_pool(weft, model):
    """Sequences that are retracted and computed again go on where their constraint was."""
    with Server(weft, model, "--kv-tokens", "512", "--context", "256") as s:
        bodies, ended = [], []
        schema = {"type": "array", "items": {"type": "integer"}, "minItems": 20, "maxItems": 40}
        threads = [threading.Thread(target=lambda i=i: bodies.append(
            ask(s, schema, seed=i, temperature=1, max_tokens=180))) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for status, body in bodies:
            check("answered", status == 200, body)
            judge("after a retraction", schema, body["choices"][0], ended)
        check("some were retracted", s.metric("vllm:num_preemptions_total") > 0)
        check("and ended", len(ended) > 0)


def main(weft, root):
    start = time.time()
    atlas = os.path.join(root, "models/atlas")
    with Server(weft, atlas) as s:
        test_surface(s)
        test_stops(s)
        test_wide(s)
        count = test_schemas(s, 2 if sanitized(weft) else 8)
    test_full_pool(weft, atlas)
    test_many_guides(weft, atlas)
    finish("serve: %d constrained answers meet their schemas (%.0f s)" % (count, time.time() - start))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
