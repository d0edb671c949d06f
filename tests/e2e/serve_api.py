"""Every route, field, shape and status of `weft serve`, over atlas. serve_api.py WEFT ROOT"""
import json
import os
import re
import subprocess
import sys
import tempfile

from serve_lib import Server, check, finish, same

QUESTION = "What is the capital of France?"
ANSWER = "The capital of France is Paris."


def error(what, answer, status, code, param=None, words=""):
    got, body = answer
    same(what + ": status", got, status)
    inner = body.get("error", {})
    same(what + ": keys", sorted(inner), ["code", "message", "param", "type"])
    same(what + ": code", inner.get("code"), code)
    same(what + ": param", inner.get("param"), param)
    check(what + ": words", re.search(words, str(inner.get("message"))), inner)
    kinds = {401: "authentication_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "server_error" if status >= 500 else "invalid_request_error")
    same(what + ": type", inner.get("type"), kind)


def test_routes(s):
    for path in ("/v1/models", "/models", "/v1/models/", "/models?x=1"):
        status, body = s.json("GET", path)
        same(path, (status, body["object"], body["data"][0]["id"]), (200, "list", "org/atlas"))
        same(path + " keys", sorted(body["data"][0]), ["created", "id", "max_model_len", "object",
                                                       "owned_by", "parent", "root"])
        same(path + " length", body["data"][0]["max_model_len"], 1024)
    for path in ("/v1/models/org/atlas", "/v1/models/org%2Fatlas"):
        same(path, s.json("GET", path)[1].get("id"), "org/atlas")
    error("other model", s.json("GET", "/v1/models/gpt-9"), 404, "model_not_found", "model", "gpt-9")
    for path in ("/get_load", "/v1/loads", "/v1/tokenizer_info"):
        same(path, s.get(path)[0], 200)
    for path in ("/health", "/v1/health", "/ping", "/health_generate"):
        same(path, s.json("GET", path), (200, {"status": "ok"}))
    same("version", list(s.json("GET", "/version")[1]), ["version"])
    info = s.json("GET", "/tokenizer_info")[1]
    same("eos", info["eos_token"], "<|endoftext|>")
    check("template", "[gMASK]" in str(info["chat_template"]), info)
    for path in ("/model_info", "/get_model_info"):
        info = s.json("GET", path)[1]
        check(path, info["model_path"] and info["tokenizer_path"] and info["is_generation"], info)
    for path in ("/server_info", "/get_server_info"):
        info = s.json("GET", path)[1]
        check(path, info["max_total_num_tokens"] >= 1024 and "decode" not in info, info)
        check(path + " state", isinstance(info["internal_states"], list), info)
    same("load", s.json("GET", "/get_load")[1]["num_running_reqs"], 0)
    same("stats", s.get("/stats?after=0")[0], 200)
    # What a proxy that lets /v1 through must not reach.
    for path in ("/metrics", "/stats", "/server_info", "/get_server_info", "/get_load", "/flush_cache", "/abort_request",
                 "/model_info", "/generate", "/version", "/health_generate", "/start_profile"):
        same("/v1" + path, s.get("/v1" + path)[0], 404)
    for method, path in (("GET", "/flush_cache"), ("POST", "/flush_cache?timeout=1"),
                         ("POST", "/reset_prefix_cache"), ("POST", "/start_profile"),
                         ("POST", "/stop_profile")):
        same(path, s.request(method, path)[0], 200)
    same("abort nothing", s.post("/abort_request", {"rid": "none"}), (200, {"success": True,
                                                                            "aborted": 0}))
    error("no route", s.json("GET", "/v2/nothing"), 404, "not_found", None, "/v2/nothing")
    status, headers, body = s.request("GET", "/v1/completions")
    error("method", (status, json.loads(body)), 405, "method_not_allowed")
    same("Allow", headers["Allow"], "POST, OPTIONS")
    same("Allow of GET", s.request("DELETE", "/v1/models")[1]["Allow"], "GET, HEAD, OPTIONS")
    status, headers, body = s.request("OPTIONS", "/v1/chat/completions")
    same("preflight", (status, headers["Access-Control-Allow-Origin"], body), (204, "*", b""))
    # The star stands for every name but that one (Fetch, 4.8).
    same("preflight headers", headers["Access-Control-Allow-Headers"], "authorization, *")
    status, headers, body = s.request("HEAD", "/v1/models")
    same("HEAD", (status, body), (200, b""))
    check("HEAD length", int(headers["Content-Length"]) > 50, headers)
    same("console", s.request("GET", "/")[1]["Content-Type"], "text/html; charset=utf-8")


def test_chat(s):
    status, body = s.chat(QUESTION)
    same("chat", (status, body["choices"][0]["message"]["content"]), (200, ANSWER))
    same("chat object", (body["object"], body["choices"][0]["finish_reason"]),
         ("chat.completion", "stop"))
    check("chat id", body["id"].startswith("chatcmpl-"), body["id"])
    usage = body["usage"]
    same("usage sums", usage["total_tokens"], usage["prompt_tokens"] + usage["completion_tokens"])
    same("content parts", s.post("/chat/completions", {
        "messages": [{"role": "system", "content": None, "name": None}] * 0 +
                    [{"role": "user", "content": [{"type": "text", "text": "What is the capital "},
                                                  {"type": "text", "text": "of France?"}]}],
        "temperature": 0.0, "max_tokens": 64.0, "n": None, "stop": None, "tools": None,
        "frequency_penalty": 0, "user": "x", "no_such_field": {"a": 1}})[1]["choices"][0]["message"]
        ["content"], ANSWER)
    same("length", s.chat(QUESTION, max_tokens=99, max_completion_tokens=3)[1]["choices"][0]
         ["finish_reason"], "length")
    body = s.chat(QUESTION, n=3, temperature=0)[1]
    same("n", [(c["index"], c["message"]["content"]) for c in body["choices"]],
         [(i, ANSWER) for i in range(3)])
    a, b = (s.chat("Tell me.", temperature=1.5, seed=7, max_tokens=24)[1]["choices"][0]["message"]
            ["content"] for _ in range(2))
    same("seed", a, b)
    different = {s.chat("Tell me.", temperature=1.5, max_tokens=24)[1]["choices"][0]["message"]
                 ["content"] for _ in range(4)}
    check("without a seed", len(different) > 1, different)
    body = s.chat(QUESTION, logprobs=True, top_logprobs=2)[1]["choices"][0]
    tokens = body["logprobs"]["content"]
    same("chat logprobs text", "".join(t["token"] for t in tokens), ANSWER)
    check("chat logprobs top", all(len(t["top_logprobs"]) == 2 and
                                   t["top_logprobs"][0]["logprob"] == t["logprob"] and
                                   bytes(t["bytes"]).decode() == t["token"] for t in tokens), tokens)
    many = s.chat(QUESTION, ignore_eos=True, max_tokens=40)[1]
    same("ignore_eos", (many["usage"]["completion_tokens"], many["choices"][0]["finish_reason"]),
         (40, "length"))
    same("min_tokens", s.chat(QUESTION, min_tokens=30, max_tokens=60)[1]["usage"]
         ["completion_tokens"] >= 30, True)
    same("continue", s.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": QUESTION},
                     {"role": "assistant", "content": "The capital of France"}],
        "continue_final_message": True, "add_generation_prompt": False,
        "temperature": 0})[1]["choices"][0]["message"]["content"], " is Paris.")


def test_stops(s):
    for stop, left in ((" France", "The capital of"), (["nothing", "of Fr"], "The capital "),
                       ("Paris.", "The capital of France is "), ("e capit", "Th")):
        body = s.chat(QUESTION, stop=stop)[1]["choices"][0]
        same("stop %s" % stop, (body["message"]["content"], body["finish_reason"]), (left, "stop"))
        same("stop reason", body["stop_reason"], stop if isinstance(stop, str) else stop[-1])
        events = s.events("/v1/chat/completions", {
            "messages": [{"role": "user", "content": QUESTION}], "stop": stop, "temperature": 0})
        same("stop in a stream", "".join(e["choices"][0]["delta"].get("content", "")
                                         for e in events), left)
    kept = s.chat(QUESTION, stop=" France", include_stop_str_in_output=True)[1]["choices"][0]
    same("stop kept", kept["message"]["content"], "The capital of France")
    same("held back, then not", s.chat(QUESTION, stop="Paris.!")[1]["choices"][0]["message"]
         ["content"], ANSWER)
    ids = s.post("/tokenize", {"prompt": " France"})[1]["tokens"]
    body = s.chat(QUESTION, stop_token_ids=ids)[1]["choices"][0]
    same("stop id", (body["message"]["content"], body["stop_reason"]), ("The capital of", ids[0]))
    same("16 stops", s.chat(QUESTION, stop=["x%d!" % i for i in range(16)])[0], 200)
    same("no stops", s.chat(QUESTION, stop=[])[0], 200)
    error("empty stop", s.chat(QUESTION, stop=""), 400, "invalid_value", "stop")
    error("stop type", s.chat(QUESTION, stop=[3]), 400, "invalid_type", "stop")


def test_streams(s):
    ask = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    events = s.events("/v1/chat/completions", ask)
    check("ids", len({(e["id"], e["object"], e["created"], e["model"]) for e in events}) == 1)
    same("object", events[0]["object"], "chat.completion.chunk")
    same("first", events[0]["choices"][0]["delta"], {"role": "assistant", "content": "The"})
    same("last", (events[-1]["choices"][0]["delta"], events[-1]["choices"][0]["finish_reason"]),
         ({}, "stop"))
    same("text", "".join(e["choices"][0]["delta"].get("content", "") for e in events), ANSWER)
    check("no usage unasked", all("usage" not in e and e["choices"] for e in events))
    events = s.events("/v1/chat/completions", {**ask, "stream_options": {"include_usage": True}})
    check("null usage", all(e["usage"] is None for e in events[:-1]), events)
    same("usage event", (events[-1]["choices"], events[-1]["usage"]["completion_tokens"]), ([], 9))
    events = s.events("/v1/chat/completions", {**ask, "stream_options": {
        "include_usage": True, "continuous_usage_stats": True}})
    counts = [e["usage"]["completion_tokens"] for e in events]
    check("running usage", counts == sorted(counts) and counts[0] == 1 and counts[-1] == 9, counts)
    events = s.events("/v1/chat/completions", {**ask, "n": 2})
    for i in range(2):
        same("stream of choice %d" % i, "".join(
            e["choices"][0]["delta"].get("content", "") for e in events
            if e["choices"][0]["index"] == i), ANSWER)
    events = s.events("/v1/completions", {"prompt": ["The capital of", "The capital of"],
                                          "max_tokens": 4, "temperature": 0})
    texts = ["".join(e["choices"][0]["text"] for e in events if e["choices"][0]["index"] == i)
             for i in range(2)]
    check("two prompts", texts[0] == texts[1] and texts[0], texts)
    same("completion ends", [e["choices"][0]["finish_reason"] for e in events].count("length"), 2)
    events = s.events("/v1/chat/completions", {**ask, "logprobs": True})
    tokens = [t["token"] for e in events if e["choices"][0]["logprobs"]
              for t in e["choices"][0]["logprobs"]["content"]]
    same("logprobs in a stream", "".join(tokens), ANSWER)


def test_completions(s):
    prompt = "The capital of France is"
    ids = s.post("/tokenize", {"prompt": prompt})[1]["tokens"]
    wanted = s.post("/v1/completions", {"prompt": prompt, "temperature": 0})[1]
    check("completion", wanted["id"].startswith("cmpl-") and wanted["object"] == "text_completion")
    check("16 tokens at most", wanted["usage"]["completion_tokens"] <= 16, wanted["usage"])
    for form in ([prompt], ids, [ids], [float(i) for i in ids]):
        got = s.post("/completions", {"prompt": form, "temperature": 0, "best_of": 1})[1]
        same("prompt form", got["choices"][0]["text"], wanted["choices"][0]["text"])
    got = s.post("/v1/completions", {"prompt": [ids, ids, ids], "n": 2, "temperature": 0})[1]
    same("indices", [c["index"] for c in got["choices"]], list(range(6)))
    same("usage of three", got["usage"]["prompt_tokens"], 3 * len(ids))
    got = s.post("/v1/completions", {"prompt": prompt, "echo": True, "max_tokens": 2,
                                     "temperature": 0, "return_token_ids": True})[1]["choices"][0]
    check("echo", got["text"].startswith(prompt) and len(got["text"]) > len(prompt), got)
    same("token ids", (got["prompt_token_ids"], len(got["token_ids"])), (ids, 2))
    same("bias", s.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0,
         "logit_bias": {str(ids[0]): 100}, "return_token_ids": True})[1]["choices"][0]["token_ids"],
         ids[:1])
    for field in ({"temperature": 0.7}, {"top_p": 0.5}, {"top_k": 5}, {"top_k": -1}, {"min_p": 0.1},
                  {"frequency_penalty": 1}, {"presence_penalty": -1}, {"repetition_penalty": 1.2},
                  {"suffix": ""}, {"seed": -5}, {"seed": 2**63 - 1}, {"response_format": {
                      "type": "text"}}, {"priority": 3}, {"cache_salt": "s"}, {"lora_path": None}):
        same("field %s" % field, s.post("/v1/completions", {
            "prompt": prompt, "max_tokens": 2, **field})[0], 200)


def test_loglikelihood(s):
    """What lm-eval slices: exactly prompt + 1 entries, and the greedy test by exact equality."""
    ids = s.post("/tokenize", {"prompt": "The capital of France is Paris."})[1]["tokens"]
    for _ in range(2): # the second time the prefix cache knows it
        body = s.post("/v1/completions", {"prompt": [ids], "echo": True, "max_tokens": 1,
                                          "logprobs": 1, "temperature": 0, "seed": 1234})[1]
        lists = body["choices"][0]["logprobs"]
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            same("length of " + name, len(lists[name]), len(ids) + 1)
        same("position 0", (lists["token_logprobs"][0], lists["top_logprobs"][0]), (None, None))
        for i in range(1, len(ids) + 1):
            top = lists["top_logprobs"][i]
            same("own token listed", top.get(lists["tokens"][i]), lists["token_logprobs"][i])
        greedy = [max(t.values()) == p for t, p in zip(lists["top_logprobs"][1:],
                                                       lists["token_logprobs"][1:])]
        check("the generated token is greedy", greedy[-1], lists)
        same("offsets", lists["text_offset"], [len("".join(lists["tokens"][:i]))
                                               for i in range(len(ids) + 1)])
    none = s.post("/v1/completions", {"prompt": ids, "echo": True, "max_tokens": 0, "logprobs": 1})
    same("no new token", len(none[1]["choices"][0]["logprobs"]["tokens"]), len(ids))


def test_native(s):
    body = s.post("/generate", {"text": "The capital of France is", "rid": "mine", "stream": False,
                                "lora_path": None, "sampling_params": {
                                    "temperature": 0, "max_new_tokens": 5, "ignore_eos": True}})[1]
    meta = body["meta_info"]
    same("native", (meta["completion_tokens"], meta["id"], meta["finish_reason"]["type"]),
         (5, "mine", "length"))
    events = s.events("/generate", {"text": "The capital of France is", "sampling_params": {
        "temperature": 0, "max_new_tokens": 5, "ignore_eos": True}})
    check("cumulative", all(b["text"].startswith(a["text"]) for a, b in zip(events, events[1:])))
    same("same text", events[-1]["text"], body["text"])
    same("last event", (events[-1]["meta_info"]["completion_tokens"],
                        events[-1]["meta_info"]["finish_reason"]["type"]), (5, "length"))
    ids = s.post("/tokenize", {"prompt": "The capital"})[1]["tokens"]
    body = s.post("/generate", {"input_ids": [ids, ids], "return_logprob": True,
                                "top_logprobs_num": 2, "logprob_start_len": 0, "sampling_params": {
                                    "temperature": 0, "max_new_tokens": 3}})[1]
    same("batch", len(body), 2)
    meta = body[0]["meta_info"]
    same("native logprobs", ([t[1] for t in meta["input_token_logprobs"]],
                             len(meta["output_token_logprobs"]),
                             len(meta["output_top_logprobs"][0])), (ids, 3, 2))


def test_tokenize(s):
    got = s.post("/tokenize", {"prompt": "h\u00e9 \u0000<|user|>", "return_token_strs": True})[1]
    same("count", (got["count"], len(got["token_strs"]), got["max_model_len"]),
         (len(got["tokens"]), len(got["tokens"]), 1024))
    back = s.post("/detokenize", {"tokens": got["tokens"]})[1]
    same("there and back", (back["prompt"], back["text"]), ("h\u00e9 \u0000<|user|>",) * 2)
    got = s.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]})[1]
    check("messages", s.post("/detokenize", {"tokens": got["tokens"]})[1]["text"]
          .startswith("[gMASK]<sop><|user|>"), got)
    error("tokens", s.post("/detokenize", {"tokens": "x"}), 400, "invalid_type", "tokens")


def test_errors(s):
    for what, body, words in (
            ("empty", "", "no body"), ("not JSON", "{", "JSON"), ("a list", "[1]", "object"),
            ("bad UTF-8", b'{"prompt":"\xff"}', "JSON"),
            ("lone surrogate", b'{"prompt":"\\ud800"}', "JSON"),
            ("deep", b'{"prompt":' + b"[" * 100000, "nested"),
            ("2^63", '{"prompt": "x", "seed": 9223372036854775808}', "64 bits.*9223372036854775808"),
            ("many", b'{"prompt":[' + b"1," * 4300000 + b"1]}", "values")):
        status, _, text = s.request("POST", "/v1/completions", body)
        error(what, (status, json.loads(text)), 400, "invalid_json", None, words)
    same("NUL in a prompt", s.post("/v1/completions", {"prompt": "a\u0000b", "max_tokens": 1})[0], 200)
    for field, value, code in (
            ("temperature", "hot", "invalid_type"), ("temperature", -1, "invalid_value"),
            ("top_p", 1.5, "invalid_value"), ("n", 0, "invalid_value"), ("n", 1.5, "invalid_type"),
            ("max_tokens", -1, "invalid_value"), ("max_tokens", True, "invalid_type"),
            ("logprobs", 21, "invalid_value"), ("stream", "yes", "invalid_type"),
            ("echo", 1, "invalid_type"), ("logit_bias", {"x": 1}, "invalid_value"),
            ("logit_bias", {"1": 101}, "invalid_value"), ("logit_bias", [], "invalid_type"),
            ("stop_token_ids", [-1], "invalid_value"), ("seed", "x", "invalid_type"),
            ("suffix", "x", "unsupported"), ("best_of", 2, "unsupported"),
            ("regex", "a*", "unsupported"), ("response_format", {"type": "xml"},
                                             "invalid_value"), ("top_k", -2, "invalid_value"),
            ("max_tokens", 1e19, "invalid_type"), ("modalities", ["text", "audio"], "unsupported"),
            ("modalities", "audio", "unsupported"), ("min_p", 2, "invalid_value"), ("repetition_penalty", 0.005, "invalid_value")):
        error("%s=%s" % (field, value), s.post("/v1/completions", {"prompt": "x", field: value}),
              400, code, field)
    error("limits", s.chat("x", max_tokens=1e19), 400, "invalid_type", "max_tokens", "from 1 to 9223372036854775807")
    error("huge", s.chat("x", max_tokens=1e18), 400, "context_length_exceeded")
    same("text alone", s.chat("x", max_tokens=1, modalities=["text"])[0], 200)
    error("both prompts", s.post("/generate", {"text": "x", "input_ids": [5]}), 400, "invalid_value", "input_ids")
    error("other model", s.post("/v1/completions", {"prompt": "x", "model": "gpt-9"}), 404,
          "model_not_found", "model")
    error("no prompt", s.post("/v1/completions", {}), 400, "missing_required_parameter", "prompt")
    for form in ("", [], [[]], [1, "x"], [{}], 3, [["x"]], [5000000], [-1]):
        status, body = s.post("/v1/completions", {"prompt": form})
        check("prompt %s" % form, status == 400 and body["error"]["message"], body)
    for messages in (None, [], ["x"], [{}], [{"role": "king", "content": "x"}], [{"role": "user"}],
                     [{"role": "user", "content": 3}],
                     [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]):
        status, body = s.post("/v1/chat/completions", {"messages": messages})
        check("messages %s" % messages, status == 400 and body["error"]["param"] == "messages", body)
    error("too long", s.post("/v1/completions", {"prompt": [5] * 1020, "max_tokens": 5}), 400,
          "context_length_exceeded", None, "1024")
    error("response_format", s.chat("x", response_format={"type": "json_schema", "json_schema": {}}),
          400, "invalid_value", "response_format")
    error("tool_choice", s.chat("x", tools=[], tool_choice="required"), 400, "invalid_value",
          "tool_choice")
    same("x-should-retry", s.request("POST", "/v1/completions", "{")[1]["x-should-retry"], "false")


def test_keys(weft, model):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as config, \
            tempfile.NamedTemporaryFile("w") as keys:
        keys.write("# words, of a comment\n  third \r\n\n#fourth\nwith,comma")
        keys.flush()
        json.dump({"api-key": "first,second", "api-key-file": keys.name, "log-format": "json",
                   "any-model": True, "model": "/nowhere", "context": 256}, config)
        config.flush()
        with Server(weft, model, "--config", config.name) as s:
            for header in ("Bearer first", "Bearer second", "bearer third", "first", "with,comma"):
                same(header, s.get("/v1/models", headers={"Authorization": header})[0], 200)
            same("x-api-key", s.get("/v1/models", headers={"x-api-key": "second"})[0], 200)
            for header in ({}, {"Authorization": "Bearer firs"}, {"Authorization": "Bearer firstfirst"},
                           {"Authorization": "Bearer "}, {"Authorization": ""}, {"Authorization": "words"},
                           {"Authorization": "#fourth"}, {"Authorization": "with"}):
                status, headers, body = s.request("GET", "/v1/models", headers=header)
                error("key %s" % header, (status, json.loads(body)), 401, "invalid_api_key")
                same("WWW-Authenticate", headers["WWW-Authenticate"], "Bearer")
            for path in ("/health", "/ping", "/metrics", "/"):
                same("open " + path, s.get(path)[0], 200)
            auth = {"Authorization": "Bearer first", "X-Request-Id": "trace-77"}
            status, headers, body = s.request("POST", "/v1/completions", {
                "model": "anything", "prompt": "x", "max_tokens": 2}, headers=auth)
            same("any model", (status, headers["X-Request-Id"]), (200, "trace-77"))
            check("id made", len(s.request("GET", "/health")[1]["X-Request-Id"]) == 32)
            bad = {"Authorization": "Bearer first"}
            s.request("POST", "/v1/completions", "{", headers=bad)
            s.request("POST", "/v1/models", headers=bad)
            s.raw(b"GET /\r\n\r\n")
            lines = [json.loads(l) for l in s.log_of_all().splitlines()]
            same("start", [l["event"] for l in lines if l["event"] != "request"],
                 ["listen", "model", "memory", "pool", "ready"])
            check("no first token, no time of it", all(("ttft_seconds" in l) == (l.get("completion_tokens", 0) > 0)
                                                       for l in lines))
            same("errors", [(l["status"], l["error"]) for l in lines if "error" in l and l["status"] in (400, 405)],
                 [(400, "invalid_json"), (405, "method_not_allowed"), (400, "not_http")])
            check("every refusal says why", all(("error" in l) == (l["status"] >= 400) for l in lines if "status" in l))
            mine = [l for l in lines if l.get("request_id") == "trace-77"]
            same("log", [(l["status"], l["completion_tokens"]) for l in mine], [(200, 2)])
            same("config's context", s.json("GET", "/v1/models", headers=auth)[1]["data"][0]
                 ["max_model_len"], 256)


def test_config(weft, model):
    """What is wrong with a file is said with its name."""
    def refused(option, text, words):
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(text)
            file.flush()
            got = subprocess.run([weft, "serve", model, "--port", "0", option, file.name], capture_output=True,
                                 text=True, timeout=60)
            same("%s %s: status" % (option, text), got.returncode, 2)
            check("%s %s" % (option, text), file.name in got.stderr and re.search(words, got.stderr), got.stderr)

    for text, words in (('{"served-model-name": true, "any-model": true}', "served-model-name needs a value .*true"),
                        ('{"no-such": 1}', "no option no-such"), ('{"served-model": "x"}', "no option served-model;"),
                        ('{"port": 65536}', "--port 65536: .*65535"), ('{"port": true}', "--port true: an integer"),
                        ('{"any-model": "yes"}', "true or false"), ('{"config": "x"}', "no option config"),
                        ('{"port": 1, "port": 2}', "duplicate"), ("[]", "a JSON object"), ("{", "a JSON object")):
        refused("--config", text, words)
    refused("--api-key-file", "# comment\n\na key\n", "line 3: ")
    refused("--api-key-file", "a\0b\n", "NUL")
    with tempfile.NamedTemporaryFile("w") as file:
        json.dump({"any-model": True, "served-model-name": "of the file", "port": 1}, file)
        file.flush()
        with Server(weft, model, "--config", file.name, "--any-model=false") as s:
            same("a flag is taken back", s.post("/v1/completions", {"prompt": "x", "model": "other"})[0], 404)
            check("text log", re.search(r" status=404 seconds=\S+ error=model_not_found$", s.log_of_all(), re.M), s.log())
            same("a name of the file", s.json("GET", "/v1/models")[1]["data"][0]["id"], "of the file")


def main(weft, root):
    model = os.path.join(root, "models/atlas")
    with Server(weft, model, "--tp", "2", "--threads", "1", "--served-model-name", "org/atlas") as s:
        for test in (test_routes, test_chat, test_stops, test_streams, test_completions,
                     test_loglikelihood, test_native, test_tokenize, test_errors):
            test(s)
        check("all pages given back", s.wait_idle())
    test_keys(weft, model)
    test_config(weft, model)
    finish("serve: every route, field and error as documented")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
