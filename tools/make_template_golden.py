#!/usr/bin/env python3
"""Makes tests/golden/templates/*.json: what the jinja2 package renders, for the template tests.

    pip install jinja2 && python3 tools/make_template_golden.py

Two kinds of files. <model>.json: a real chat template (<model>.jinja beside it, its source and
licence in README.md) over a matrix of conversations. snippets.json: small templates over every
statement, operator, filter, test and method, with edge cases. Each case has the variables it is
rendered with, and `out`, or `error` when jinja2 refuses.

The environment is the one transformers builds in utils/chat_template_utils.py (4.57), and time
stands still at NOW in UTC.
"""

import itertools
import json
import pathlib
from datetime import datetime, timezone

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = 1735787045  # 2025-01-02 03:04:05 UTC
GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "tests/golden/templates"


class Generation(jinja2.ext.Extension):
    """transformers' AssistantTracker, less the tracking."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def strftime_now(format):
    return datetime.fromtimestamp(NOW, timezone.utc).replace(tzinfo=None).strftime(format)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


ENV = environment()


def render(template, variables):
    """{"out": text} or {"error": message}."""
    try:
        out = ENV.from_string(template).render(**variables)
        out.encode()
        return {"out": out}
    except Exception as error:  # whatever jinja2 or Python refuse
        return {"error": f"{type(error).__name__}: {error}"}


# ---- conversations ----

TOOL = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather <now> & \"here\"", "parameters": {
        "type": "object", "properties": {
            "city": {"type": "string", "description": "Name, e.g. Zürich", "enum": ["Zürich", "東京"]},
            "days": {"type": "integer", "default": 1}, "exact": {"type": "boolean"},
            "scale": {"type": ["number", "null"], "minimum": 0.5},
            "where": {"type": "object", "properties": {"lat": {"type": "number"}}, "required": ["lat"]},
            "tags": {"type": "array", "items": {"type": "string"}}},
        "required": ["city"]}}}
TOOL2 = {"type": "function", "function": {"name": "f", "description": "", "parameters": {
    "type": "object", "properties": {}}}}


def say(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, id="call00001"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


SYSTEM = say("system", "S")
USER = say("user", "hi")
HISTORY = [say("user", "a"), say("assistant", "<think>\nr1\n</think>\n\nb"), say("user", "c")]
CALLS = [say("user", "Weather?"),
         say("assistant", "", tool_calls=[call("get_weather", {"city": "Zürich", "days": 2})]),
         say("tool", "12 °C", tool_call_id="call00001", name="get_weather")]
TWO_CALLS = [say("user", "c"),
             say("assistant", "Let me see.", reasoning_content="r2", tool_calls=[
                 call("f", {"é": "x", "n": 2, "list": [1, 2.5, None, True], "o": {"k": "v\n\"q\""}}),
                 call("f", {}, "call00002")]),
             say("tool", "T1", tool_call_id="call00001", name="f"),
             say("tool", "T2", tool_call_id="call00002", name="f")]

CONVERSATIONS = {
    "user": dict(messages=[USER]),
    "system": dict(messages=[SYSTEM, USER]),
    "turns": dict(messages=[SYSTEM, USER, say("assistant", "Hello."), say("user", "  And? \n")]),
    "unicode": dict(messages=[say("user", "Ünïcödé 東京 🦊\u200d\U0001F525 \u00a0\u2028 <|im_end|> {{ x }} '\"\\")]),
    "empty": dict(messages=[say("system", ""), say("user", "")]),
    "spaces": dict(messages=[say("system", " \n s \t"), say("user", "\n\n u \n"), say("assistant", "\n a \n")]),
    "none": dict(messages=[]),
    "late_system": dict(messages=[USER, SYSTEM, say("assistant", "ok"), USER]),
    "two_users": dict(messages=[USER, USER]),
    "ends_in_answer": dict(messages=[USER, say("assistant", "done")]),
    "thinking_history": dict(messages=HISTORY),
    "thinking_kept": dict(messages=HISTORY, clear_thinking=False, preserve_thinking=True),
    "reasoning": dict(messages=[USER, say("assistant", "b", reasoning_content="\nr1\n"), say("user", "c")]),
    "reasoning_last": dict(messages=[USER, say("assistant", "b", reasoning_content="r1")]),
    "thinking_on": dict(messages=[USER], enable_thinking=True, thinking=True),
    "thinking_off": dict(messages=[SYSTEM, USER], enable_thinking=False, thinking=False),
    "effort": dict(messages=[SYSTEM, USER], reasoning_effort="high"),
    "effort_low": dict(messages=[SYSTEM, USER], reasoning_effort="low"),
    "tools": dict(messages=[USER], tools=[TOOL, TOOL2]),
    "tools_system": dict(messages=[SYSTEM, USER], tools=[TOOL]),
    "tools_empty": dict(messages=[SYSTEM, USER], tools=[]),
    "call": dict(messages=CALLS, tools=[TOOL]),
    "call_without_tools": dict(messages=CALLS),
    "calls": dict(messages=[SYSTEM] + HISTORY[:2] + TWO_CALLS, tools=[TOOL, TOOL2]),
    "calls_answered": dict(messages=TWO_CALLS + [say("assistant", "So."), say("user", "And?")], tools=[TOOL2]),
    "call_null_content": dict(messages=[USER, say("assistant", None, tool_calls=[call("f", {"a": 1})]),
                                        say("tool", "T", tool_call_id="call00001")], tools=[TOOL2]),
    "call_no_content": dict(messages=[USER, {"role": "assistant", "tool_calls": [call("f", {"a": 1})]},
                                      say("tool", "T", tool_call_id="call00001")], tools=[TOOL2]),
    "call_text_arguments": dict(messages=[USER, say("assistant", None, tool_calls=[call("f", '{"a": 1}')]),
                                          say("tool", "T", tool_call_id="call00001")], tools=[TOOL2]),
    "tool_wrapper": dict(messages=[USER, say("assistant", "x"), say("user", "<tool_response>\nT\n</tool_response>")]),
    "parts": dict(messages=[say("user", [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])]),
    "parts_all": dict(messages=[say("system", [{"type": "text", "text": "sys"}]),
                                say("user", [{"type": "text", "text": "one"}]),
                                say("assistant", [{"type": "text", "text": "a"}]),
                                say("user", [{"type": "image"}, {"type": "text", "text": "two"}])]),
    "unknown_role": dict(messages=[say("narrator", "x")]),
    "developer": dict(messages=[say("developer", "D"), USER]),
    "date": dict(messages=[USER], date_string="26 Jul 2024"),
    "documents": dict(messages=[USER], documents=[{"title": "T", "text": "body"}]),
}


def conversations():
    for (name, given), prompt in itertools.product(CONVERSATIONS.items(), (True, False)):
        variables = dict(tools=None, documents=None, add_generation_prompt=prompt)
        variables.update(bos_token="<s>", eos_token="</s>", pad_token="<pad>")
        variables.update(given)
        yield f"{name}{'' if prompt else ' closed'}", variables
