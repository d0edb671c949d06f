"""Tool calls and reasoning of `weft serve`: atlas under the chat templates of other families. Calls are
forced where the format allows it, since atlas knows none. serve_tools.py WEFT ROOT"""
import json
import os
import shutil
import sys
import tempfile

from serve_lib import Server, check, finish, same, sanitized

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.",
     "parameters": {"type": "object", "properties": {
         "city": {"type": "string", "maxLength": 8}, "days": {"$ref": "#/$defs/days"}},
         "required": ["city", "days"], "$defs": {"days": {"enum": [1, 2, 3]}}}}},
    {"type": "function", "function": {"name": "now"}},
]


def model_with(root, template, where):
    """The folder of atlas with another chat template."""
    path = os.path.join(where, template)
    os.mkdir(path)
    for name in os.listdir(os.path.join(root, "models/atlas")):
        os.symlink(os.path.join(root, "models/atlas", name), os.path.join(path, name))
    shutil.copy(os.path.join(root, "tests/golden/templates", template + ".jinja"),
                os.path.join(path, "chat_template.jinja"))
    return path


def ask(s, **fields):
    return s.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": TOOLS,
        "max_tokens": 200, "temperature": 1, "chat_template_kwargs": {"enable_thinking": False}, **fields})


def is_call(what, call, names):
    same(what + ": keys", sorted(call), ["function", "id", "type"])
    check(what + ": id", call["id"].startswith("call_") and len(call["id"]) > 20, call)
    same(what + ": type", call["type"], "function")
    check(what + ": name", call["function"]["name"] in names, call)
    arguments = json.loads(call["function"]["arguments"])
    if call["function"]["name"] == "get_weather":
        check(what + ": arguments", len(arguments["city"]) <= 8 and arguments["days"] in (1, 2, 3), arguments)


def test_forced(s, seeds):
    ids = set()
    for seed in range(seeds):
        choice = {"type": "function", "function": {"name": "get_weather"}} if seed % 2 else "required"
        names = ("get_weather",) if seed % 2 else ("get_weather", "now")
        body = ask(s, tool_choice=choice, seed=seed)[1]["choices"][0]
        what = "forced call, seed %d" % seed
        if body["finish_reason"] == "length": # {"type": "object"} has no end that a model must find
            continue
        same(what, (body["finish_reason"], body["message"]["content"], len(body["message"]["tool_calls"])),
             ("tool_calls", None, 1))
        is_call(what, body["message"]["tool_calls"][0], names)
        ids.add(body["message"]["tool_calls"][0]["id"])
        events = s.events("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "What is the weather in Paris?"}], "tools": TOOLS,
            "max_tokens": 200, "temperature": 1, "tool_choice": choice, "seed": seed,
            "chat_template_kwargs": {"enable_thinking": False}})
        deltas = [e["choices"][0]["delta"] for e in events]
        calls = [c for d in deltas for c in d.get("tool_calls", [])]
        same(what + ", streamed", [(c["index"], c["function"]) for c in calls],
             [(0, body["message"]["tool_calls"][0]["function"])])
        same(what + ", role", deltas[0].get("role"), "assistant")
        check(what + ", no text", not any(d.get("content") for d in deltas), deltas)
        same(what + ", its reason", events[-1]["choices"][0]["finish_reason"], "tool_calls")
    check("calls were made", len(ids) >= seeds // 2, ids)
    body = ask(s, tool_choice={"type": "function", "function": {"name": "get_weather"}}, n=3, seed=1)[1]
    same("n", [len(c["message"]["tool_calls"]) for c in body["choices"]], [1, 1, 1])
    for seed in range(4): # arguments are an object, said or not
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"additionalProperties": False}}}]
        body = ask(s, tool_choice="required", seed=seed, tools=tools)[1]["choices"][0]
        call = body["message"]["tool_calls"][0]["function"]
        same("parameters of no type", (call["name"], json.loads(call["arguments"])), ("f", {}))


def test_free(s):
    for fields in ({"tool_choice": "none"}, {"tool_choice": "auto"}, {"parallel_tool_calls": False},
                   {"tools": []}, {"tools": None}):
        status, body = ask(s, **{"max_tokens": 20, **fields})
        same("no call %s" % fields, (status, "tool_calls" in body["choices"][0]["message"]), (200, False))
    result = s.post("/v1/chat/completions", {"max_tokens": 8, "messages": [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "now", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "noon"}], "tools": TOOLS})
    same("a history with calls", result[0], 200)


def refused(s, what, param, **fields):
    status, body = ask(s, **fields)
    same(what, (status, body.get("error", {}).get("param")), (400, param))


def test_refused(s):
    refused(s, "no tools", "tool_choice", tools=None, tool_choice="required")
    refused(s, "other function", "tool_choice",
            tool_choice={"type": "function", "function": {"name": "rm"}})
    refused(s, "other word", "tool_choice", tool_choice="maybe")
    refused(s, "two masters", "tool_choice", tool_choice="required",
            response_format={"type": "json_object"})
    refused(s, "tools", "tools", tools={})
    refused(s, "a tool without a name", "tools", tools=[{"type": "function", "function": {}}])
    refused(s, "a tool of a kind", "tools", tools=[{"type": "browser"}])
    refused(s, "unsupported parameters", "tools", tool_choice="required", tools=[
        {"type": "function", "function": {"name": "f", "parameters": {"pattern": "x"}}}])
    refused(s, "parameters of another type", "tools", tool_choice="required", tools=[
        {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}])


def message(s, **fields):
    choice = s.post("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 12,
        "temperature": 0, **fields})[1]["choices"][0]
    return choice["message"].get("content"), choice["message"].get("reasoning_content")


def test_reasoning(s):
    """GLM 4.7's prompt ends inside reasoning, or behind it."""
    content, reasoning = message(s)
    check("all of it is reasoning", content is None and reasoning, (content, reasoning))
    same("kept together", message(s, separate_reasoning=False)[1], None)
    check("kept as text", message(s, separate_reasoning=False)[0].strip() == reasoning.strip(), reasoning)
    content, none = message(s, chat_template_kwargs={"enable_thinking": False})
    check("told not to", content and none is None, (content, none))
    events = s.events("/v1/chat/completions", {
        "messages": [{"role": "user", "content": "What is the capital of France?"}], "max_tokens": 12,
        "temperature": 0})
    same("streamed", "".join(e["choices"][0]["delta"].get("reasoning_content", "") for e in events),
         reasoning)
    end = s.post("/tokenize", {"prompt": "</think>", "add_special_tokens": False})[1]["tokens"]
    json_schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": [1, "a"]}}}
    same("reasoning first, then what was asked for", message(
        s, logit_bias={end[0]: 100}, response_format=json_schema, max_tokens=40), ('[1,"a"]', None))
    content, reasoning = message(s, response_format=json_schema)
    check("a constraint waits for the end of reasoning", content is None and reasoning, reasoning)
    refused(s, "a forced call of another format", "tool_choice", tool_choice="required")


def test_without(s):
    """atlas's own template ignores tools: the model would not see them."""
    refused(s, "tools for a model without them", "tools")
    for fields in ({"tool_choice": "none"}, {"tools": []}):
        same("no tools in truth", ask(s, **{"max_tokens": 4, **fields})[0], 200)


def main(weft, root):
    with Server(weft, os.path.join(root, "models/atlas")) as s:
        test_without(s)
    with tempfile.TemporaryDirectory() as where:
        with Server(weft, model_with(root, "qwen3", where)) as s:
            test_forced(s, 3 if sanitized(weft) else 12)
            test_free(s)
            test_refused(s)
        with Server(weft, model_with(root, "glm_4_7", where)) as s:
            test_reasoning(s)
    finish("serve: calls and reasoning as clients want them")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
