#!/usr/bin/env python3
"""Makes tests/golden/templates/*.json: what the jinja2 package renders, for the template tests.

    pip install jinja2==3.1.6 markupsafe==3.0.3 && python3 tools/make_template_golden.py

<model>.json: the real chat template <model>.jinja over conversations.json; snippets.json: small
templates over every statement, operator, filter, test and method, with edge cases, rendered with
variables.json. A case is a pair of name or template and its text, null where jinja2 refuses.

The environment is the one transformers builds in utils/chat_template_utils.py (4.57), and time
stands still at NOW in UTC.
"""

import copy
import itertools
import json
import pathlib
import re
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
        out = ENV.from_string(template).render(**copy.deepcopy(variables))
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


# ---- snippets ----

VARIABLES = {
    "s": "Hello, Wörld  ", "e": "", "n": None, "t": True, "i": 7, "f": 2.5, "big": 9007199254740993,
    "l": [3, 1, 2], "m": {"b": 1, "a": "x", "items": [1], "ß": None}, "nested": [[1, 2], [3, [4]]],
    "users": [{"name": "Zoe", "age": 30, "tags": ["x", "y"], "home": {"city": "Ulm"}},
              {"name": "adam", "age": 25, "tags": [], "home": {"city": "Bonn"}},
              {"name": "Bea", "age": 30, "home": {}}],
}

VALUES = ["none", "true", "false", "0", "7", "-3", "2.5", "-0.0", "100000000000000000000.0", "0.00001", "0.1", "''", "'a'",
          "'Hello World'", "' x y '", "'12'", "'-3.7'", "'ß ŉ ǆ İ ΑΣ'", "'it\\'s'", "'a\\n\\tb'", "[]",
          "[1]", "[3,1,2]", "['b','A','a']", "[[1,2],[0]]", "(1,'x')", "()", "{}", "{'a':1,'B':2}",
          "{1:2, none:3, true:4}", "undef", "s", "l", "m", "users", "m.items()|list", "m.keys()|list",
          "l|map('string')", "[1,'a',none,true,2.0]", "['x', undef]"]

FILTERS = """capitalize count default(5) dictsort dictsort(true) dictsort(by='value') dictsort(reverse=true) e
escape first indent indent(2) indent(2,true) indent('> ',blank=true) int int(5) items join join('-')
join(', ', attribute='name') last length list lower map(attribute='name') map('upper')
map('default','z') map('length') max min max(attribute='age') min(attribute='name') reject
reject('odd') rejectattr('age') rejectattr('age','equalto',30) replace('a','b') replace('','-')
replace('l','L',1) reverse safe select select('string') select('>',1) selectattr('tags')
selectattr('name','==','Bea') selectattr('tags','defined') sort sort(reverse=true)
sort(case_sensitive=true) sort(attribute='age') sort(attribute='0') string title tojson
tojson(indent=2) tojson(ensure_ascii=true) tojson(separators=(',',':')) tojson(sort_keys=true)
tojson(indent=' ') trim trim('Hd') unique unique(true) unique(attribute='age') upper upper|lower
list|length list|first string|length list|reverse|list map(attribute='home.city') d('D')""".split()

TESTS = """boolean defined false float integer iterable mapping none number sequence string true undefined
in([1,'a',none]) eq(1) ne('a') gt(1) ge(1) lt(3) le(3) equalto(7) odd even divisibleby(2)""".replace("==(1) ", "").split()

OPERATORS = ["+", "-", "*", "/", "//", "%", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in",
             "and", "or"]

OPERANDS = ["none", "true", "0", "1", "7", "-3", "2.5", "-0.5", "''", "'ab'", "'a'", "[1]", "[1,2]",
            "(1,)", "{}", "{'a':1}", "undef", "big", "l"]

STRINGS = ["''", "'abc'", "' a b  c '", "'aXbXc'", "'Ünï ß'", "'a\\r\\nb\\nc'", "'ABC def'", "'--x--'", "'12½²'"]

METHODS = """capitalize() endswith('c') endswith(('x','c')) find('b') find('') find('zz') join(['p','q'])
join('xy') join([1]) lower() lstrip() lstrip('a-') partition('') replace('a','bb') replace('','.')
replace('X','',1) rfind('X') rfind('') rindex('q') rsplit('X') rsplit('X',1) rstrip() rstrip('c-')
split() split('X') split('X',1) split(none,1) split('') split(' ') startswith('a') startswith(['a'])
strip() strip('-') strip('- a') strip(1) title() upper() nosuch() nosuch""".split()

SEQUENCES = ["[0,1,2,3,4]", "'añb東c'", "(1,2,3)", "range(5)", "range(0,10,3)", "[]", "''", "none", "undef", "{}", "m"]

SUBSCRIPTS = """[0] [-1] [9] [-9] [true] ['x'] [1.0] [none] [::] [1:] [:1] [1:3] [-2:] [:-2] [::-1] [::2] [3:0:-1]
[3::-2] [:0:-1] [-1:-9:-3] [::0] [none:2] ['a':] [1:2:none] .0 .a .items .keys()|list .get('a')
.get('z',3) .get('z') .get([]) ['items'] .pop() ._x .__class__""".split()

EXPRESSIONS = """
1 < 2 < 3 | 1 < 3 > 2 == 2 | 1 in [1] == true | not 1 == 2 | not not x | -7//2 | -7%3 | 7%-3
1/3 | 10/5 | 2**63 | 9223372036854775807+1 | -9223372036854775808 | 5%0 | 1//0 | 1.0/0
123456789.123 | 0.0001 | 0.00001 | 100000000000000000000.0
1.e5 | .5 | 3.real | 1.0.is_integer
'a' 'b' | "q" 'r' | 'a' if t | 'a' if e | 'a' if e else 'b' | 1 if 0 else 2 if 0 else 3 | (1 if t else 2) + 1
'\\q\\d' | "\\"" | '\\a\\b\\f\\v'|tojson
x.y | x.y.z | x is defined | x.y is defined | m.zz | m.zz.q | m['zz']['q'] | m.a | m['a'] | m.items | m['items'] | n.a | n['a'] | s.zz
l.0 | l[1.0] | l['0'] | l[10] | users.0.name | users[0]['tags'][-1] | users[9].name | f.x | i[0] | (1)[0]
[1, 2,] | [] | (1,) | () | (1, 2) | 1, 2 | {} | {'a': 1,} | {1: 'x', 'k': [none, true, 1.0]} | {[]: 1} | {(1,2): 3}
{'a': 1, 'a': 2} | {1: 'a', true: 'b', 1.0: 'c'} | dict(a=1, b='x') | dict({'z': 1}) | dict(1) | dict([1])
range(3) | range(1,7,2) | range(5,0,-2) | range(3)|list | range(0)|list | range(1,2,0) | range(100001) | range('a') | range(3)[1] | range(10)[2:5]
namespace(a=1).a | namespace(a=1) | namespace({'a': 2}, b=3).a | namespace().zz | namespace(a=1)['a'] | namespace
'%s-%d' % ('a', 3) | '%5.2f|%-5s|%05d|%x' % (3.14159, 'ab', 42, 255) | '%s' % [1,2] | '%(k)s' % {'k': 'v'} | '%s %s' % 'a' | '%d' % 'x' | '%%' % () | 'x' % 3
'%r %i' % ('q', 2.9) | '%+d % d' % (3, 4) | '%e %g' % (12345.678, 0.00001) | '%c' % 65 | '%s' % none | '%.2s|' % 'abc' | '%#x %o' % (255, 8) | '%s' % (undef,)
'{} {}'.format('a', 1)
'{{}}'.format() | '{}'.format()
'a' in 'abc' | 'd' not in 'abc' | '' in 'abc' | 1 in 'abc' | none in [none] | 'a' in m | 1 in m.values() | 'b' in m.keys() | ('b', 1) in m.items() | [1] in m | 2 in range(5) | 'x' in none | 'x' in 5 | undef in [1] | 'x' in undef
[1,2] == [1,2] | [1,2] == (1,2) | {'a':1} == {'a':1.0} | 1 == 1.0 | 1 == true | '1' == 1 | none == false | undef == undef2 | undef == none | big == 9007199254740992.0 | big > 9007199254740992.0
[1,2] < [1,3] | [1] < [1,2] | 'a' < 'B' | 'a' < 'ab' | none < 1 | {} < {} | [1] < 'a' | 1 < undef | (1,'a') < (1,'b') | true < 2 | 'ä' > 'z' | ['a'] < [1]
[1]+[2] | (1,)+(2,) | [1]+(2,) | 'a'*3 | 3*'ab' | [0]*3 | 'a'*-1 | 'a'*2.0 | {}+{} | 'a'+1 | 1+'a' | none+1 | true+true | true+1.5 | -true | +false | -'a' | -undef | undef+1 | 1-undef
1 ~ 'a' ~ none ~ true ~ 1.0 ~ [1] | undef ~ 'x' | [1, 'a', none, {'k': 'it\\'s'}] | ['"', "'", '\\'"'] | ['\\n\\x00\\x7f\\xad\\u2028é東🦊'] | [undef] | {'a': ()}
x or 'd' | e or 'd' | s and 'y' | 0 and x.y | none or undef | t and f and i | not t or f | [] or {} or 0 | 1 and undef.x
l|first|string + 'a' | l|length * 2 | -l|first | (l|sort)[0] | l|sort|last | 'a'|upper ~ 'b' | l | length | [l|length, 1] | 'abc'|list|join('-')|upper | l|join|int + 1
i is odd | i is not odd | not i is odd | i is divisibleby 7 | i is divisibleby(2) | i is in [7] | i is eq 7 and t | i is defined or x | 'a' is string and 'b' is string | x is undefined | i is number is string | n is none | m is mapping | 1 is in(l) | i is not in [1] | (i is odd) is true | i is lt 9
loop is defined | namespace() is mapping | {}.items() is iterable | {}.items() is sequence | {} is sequence | 'a' is iterable | 5 is iterable | undef is iterable | undef is sequence
x|default('a') | e|default('a') | e|default('a', true) | n|default('a') | n|d('a', true) | x.y|default('a') | m.q|default(1) + 1 | x|d
'<a & "b">'|e | '<a>'|safe | ('<a>'|safe) + '<b>' | '<b>' + ('<a>'|safe) | ('<a>'|e)|e | ('<i>'|safe)|upper + '<' | ('<i>'|safe) ~ '<' | ['<'|safe] | ('<'|safe)|tojson | ('<'|e).strip() + '<'
{'a': [1, {'b': none}], 'c': 'é"\\\\/\\n\\x01\\x7f🦊', 'd': 1.0, 'e': {}, 'f': []}|tojson | {'a': [1, {'b': none}], 'c': {}, 'f': []}|tojson(indent=2) | {'b': 1, 'a': 'é🦊\\x7f'}|tojson(ensure_ascii=true, sort_keys=true) | {'a': 1, 'b': [1,2]}|tojson(separators=(',', ':')) | {(1,): 2}|tojson | (1, 2)|tojson | undef|tojson | [1,2]|tojson(indent=0) | [range(2)]|tojson | m|tojson(4) | 5|tojson(nope=1) | {'b':1, 2:3}|tojson(sort_keys=true)
strftime_now('%Y-%m-%d %H:%M:%S') | strftime_now('%d %b %Y, %A %j %-d %e %I %p %y %%') | strftime_now('%B %d, %Y é') | strftime_now(5) | raise_exception('no!') | raise_exception() | raise_exception(5)
nosuch() | 5() | 'a'() | s.upper | s.upper() | l.append(1) | m.update({}) | m.pop('a') | m.setdefault('q', 1) | l.sort() | s.__class__ | m._x
l|map('nosuch') | l|map() | l|select('nosuch') | l|map(attribute='x')|list | users|map(attribute='name')|join(' ') | users|map(attribute='home')|map(attribute='city')|list | users|selectattr('age', 'gt', 26)|map(attribute='name')|list
users|selectattr('tags')|list|length | users|rejectattr('tags')|map(attribute='name')|list | users|sort(attribute='name')|map(attribute='name')|list | users|unique(attribute='age')|map(attribute='name')|list | (l|map('string')) | l|select('odd')|length | 'yes' if l|select('gt', 9) else 'no'
[3,1]|sort|string | ['b','A']|sort | [1,'a']|sort | [none]|sort | [[2],[1,5]]|sort | 'hello'|sort|join | m|sort | m|dictsort | [1,1.0,true,'a','A']|unique|list | []|first | []|last|default('none') | 'abc'|first | 'abc'|last | [1,2]|reverse|list | m|first | m|list | m|length | (l|map('int'))|last | m|items|list | n|items | []|max | [2,'a']|max | ['b','A','c']|max | 5|list | n|length | 5|first
3.7|int | 'z'|int(9) | n|int | ' 12 '|int | ''|int(3) | 1e30|int | undef|int | '０１２'|int | true|int | [1]|int(4)
'a'|round | 1.5|round(1,'x') | 'a'|abs
'a b\\n\\nc\\n'|indent | 'a\\nb'|indent(2, true) | 'a\\n\\nb'|indent(2, blank=true) | 'a\\nb'|indent('--') | ''|indent(first=true) | 'x'|indent(-1) | 'a-b c(d) [e]'|title | 'élan VITAL'|title | 'ǆabc'|capitalize | 'ﬁ ß'|upper | 'ΌΣΟΣ Σ'|lower | 'İ'|lower|length
caller | caller() | self | super() | lipsum | joiner() | cycler() | loop | dict
"""

STATEMENTS = r"""
{{ '{}{}'.format(*[1, 2]) }}{{ dict({'a': 1}, b=2) }}
{% for x in l %}{{ loop.cycle('a','b') }} {% endfor %}{{ loop is defined }}
{% for x in l if x > 1 %}{{ loop.index }}:{{ x }}/{{ loop.last }} {% else %}no{% endfor %}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {% endfor %}
{% for x in l %}{{ x }},{% endfor %}
{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}
{% for x in l %}{{ loop['index'] }}{% endfor %}
{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}
{% for k in m %}{{ k }}{% endfor %}
{% for k, v in m %}{{ k }}{% endfor %}
{% for a, b in [[1,2],[3,4]] %}{{ a+b }} {% endfor %}
{% for (a, b), c in [((1,2),3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [[1]] %}{% endfor %}
{% for a, b in [[1,2,3]] %}{% endfor %}
{% for a, b in [1] %}{% endfor %}
{% for c in 'añ東' %}[{{ c }}]{% endfor %}
{% for x in [] %}a{% else %}none{% endfor %}
{% for x in undef %}a{% else %}none{% endfor %}
{% for x in none %}{% endfor %}
{% for x in 5 %}{% endfor %}
{% for x in l if x > 9 %}{{ x }}{% else %}no{% endfor %}
{% for x in l if x > 1 %}{{ loop.last }}{{ loop.nextitem }} {% endfor %}
{% set ns = namespace(c=0) %}{% for x in [1,2,3,4] if x > ns.c %}{% set ns.c = ns.c + 2 %}{{ x }}{% endfor %}
{% set ns = namespace(c=0) %}{% for x in [1,2,3,4] if x > ns.c %}{% set ns.c = ns.c + 2 %}{{ x }}{{ loop.last }}{% endfor %}
{% for x in range(3) %}{% for y in range(2) %}{{ loop.index }}{{ x }}{{ y }} {% endfor %}{{ loop.index }};{% endfor %}
{% for x in [1,2,3,4] %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %}|
{% for x in [1,2,3,4] %}{% if x is odd %}{% continue %}{% endif %}{{ x }}{% endfor %}|
{% for x in [1,2] %}{% for y in [1,2] %}{% if y == 2 %}{% break %}{% endif %}{{ x }}{{ y }}{% endfor %}.{% else %}e{% endfor %}
{% for x in [1,2,3] %}{% break %}{% else %}e{% endfor %}
{% break %}
{% continue %}
{% for x in [1] %}{% macro q() %}{% break %}{% endmacro %}{% endfor %}
{% for x in [1] %}{{ loop([2]) }}{% endfor %}
{% for x in l|sort %}{{ x }}{% endfor %}
{% for x in l[::-1] %}{{ x }}{% endfor %}
{% for x in 1, 2, 3 %}{{ x }}{% endfor %}
{% for x in (1, 2) %}{{ x }}{% endfor %}
{% for x in users if x.tags %}{{ x.name }}{% endfor %}
{% for x in users|selectattr('tags') %}{{ x.name }}{% endfor %}
{% set g = users|selectattr('age') %}{% for x in g %}{{ x.name }}{% endfor %}|{% for x in g %}{{ x.name }}{% endfor %}|{{ g|list }}
{% set g = l|map('string') %}{{ g|first }}{{ g|list }}{{ '2' in g }}
{% set g = m.items() %}{{ g|list }}{{ g|list }}{{ g|length }}
{% if 1 %}a{% elif 1 %}b{% else %}c{% endif %}
{% if 0 %}a{% elif 1 %}b{% else %}c{% endif %}
{% if 0 %}a{% elif '' %}b{% else %}c{% endif %}
{% if 0 %}a{% endif %}|
{% if undef %}a{% else %}b{% endif %}
{% if undef.x %}a{% endif %}
{% if x is defined and x.y %}a{% else %}b{% endif %}
{% if 1, %}a{% endif %}
{% if not l %}a{% elif l and m %}b{% endif %}
{% set x = 5 %}{{ x }}
{% set x = 1, 2 %}{{ x }}
{% set a, b = 1, 2 %}{{ a }}{{ b }}
{% set a, b = 'xy' %}{{ a }}{{ b }}
{% set a, b = 1 %}
{% set (a, b) = [1, 2] %}{{ a }}
{% set x %}a{{ i }}b{% endset %}{{ x }}{{ x|length }}
{% set x | upper %}a{{ i }}b{% endset %}{{ x }}
{% set x | trim | replace('a', 'z') %} a {% endset %}[{{ x }}]
{% set x %}{% set y = 3 %}{{ y }}{% endset %}{{ x }}{{ y }}
{% set ns = namespace(v=1) %}{% set ns.v = ns.v + 1 %}{% set ns.w = 5 %}{{ ns.v }}{{ ns.w }}
{% set ns = namespace() %}{% set ns.x %}block{% endset %}{{ ns.x }}
{% set m.a = 5 %}
{% set undef.a = 5 %}
{% set ns = namespace(a=1) %}{% set ns.a, b = 2, 3 %}{{ ns.a }}{{ b }}
{% set true = 1 %}
{% set 5 = 1 %}
{% set x.y.z = 1 %}
{% set l[0] = 1 %}
{% set x = 1 %}{% for i in [1,2] %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}
{% for i in [1,2] %}{% if i == 1 %}{% set q = 5 %}{% endif %}{{ q }}|{% endfor %}{{ q }}
{% if t %}{% set q = 5 %}{% endif %}{{ q }}
{% set x = 1 %}{% if t %}{% set x = 2 %}{% endif %}{{ x }}
{% set ns = namespace(found=false) %}{% for i in l %}{% if i == 1 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.found }}
{% for i in [1,2] %}{% for j in [1] %}{% set z = i %}{% endfor %}{{ z }}{% endfor %}
{% set messages = l[1:] %}{{ messages }}
{% macro f(a, b=2, c='x') %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ f(1) }}{{ f(1, 3) }}{{ f(1, c=9) }}{{ f(b=1, a=2) }}{{ f() }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(q=2) }}
{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=2) }}
{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, 2) }}
{% macro f(a=1, b) %}{% endmacro %}
{% macro f(a) %}{{ a is defined }}{% endmacro %}{{ f() }}{{ f(none) }}
{% macro f() %}{{ caller() }}{% endmacro %}{% call f() %}body{{ i }}{% endcall %}
{% macro f() %}{{ caller(1, 2) }}{% endmacro %}{% call(a, b=5) f() %}{{ a }}{{ b }}{% endcall %}
{% macro f() %}{% if caller %}y{% else %}n{% endif %}{% endmacro %}{{ f() }}{% call f() %}{% endcall %}
{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}
{% macro f() %}x{% endmacro %}{% call f() %}{% endcall %}
{% macro f(x) %}{% if x > 0 %}{{ x }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(4) }}
{% macro f(x) %}{% set y = x * 2 %}{{ y }}{% endmacro %}{{ f(2) }}{{ y }}
{% macro f() %}{{ g }}{% endmacro %}{% set g = 5 %}{{ f() }}
{% set g = 1 %}{% macro f() %}{{ g }}{% set g = 2 %}{{ g }}{% endmacro %}{{ f() }}{{ g }}
{% for x in l %}{% macro f() %}{{ x }}{% endmacro %}{{ f() }}{% endfor %}
{% set ns = namespace() %}{% macro outer(x) %}{% macro f() %}{{ x }}{% endmacro %}{% set ns.f = f %}{% endmacro %}{{ outer(1) }}{% for y in [7] %}{{ ns.f() }}{% endfor %}
{% macro f(x) %}{{ loop is defined }}{% endmacro %}{% for x in [1] %}{{ f(x) }}{% endfor %}
{% macro f() %}a {% endmacro %}{{ f() | trim }}{{ f()|length }}{{ f() + 'b' }}
{% macro f(a) %}{% endmacro %}{{ f }}{{ f.name }}{{ f.arguments }}{{ f.caller }}{{ f.catch_kwargs }}
{% macro outer() %}{% macro inner(z) %}<{{ z }}>{% endmacro %}{{ inner(1) }}{% endmacro %}{{ outer() }}{{ inner is defined }}
{% macro f(items) %}{% for k, v in items.items() %}{% if v is mapping %}{{ k }}:{ {{- f(v) -}} }{% else %}{{ k }}={{ v }} {% endif %}{% endfor %}{% endmacro %}{{ f({'a': 1, 'b': {'c': 2, 'd': {}}}) }}
{% set ns = namespace(f=1) %}{% macro g() %}{% set ns.f = ns.f + 1 %}{% endmacro %}{{ g() }}{{ g() }}{{ ns.f }}
{% filter upper %}a{{ s }}b{% endfilter %}
{% filter trim | replace('a', 'b') %}  aa  {% endfilter %}|
{% generation %}a{{ i }}{% set q = 1 %}{% endgeneration %}{{ q }}
{% for x in l %}{% generation %}{{ x }}{{ loop.index }}{% endgeneration %}{% endfor %}
  x
y
{# c #}a{# {{ x }} {% if %} #}b
{#- c -#}  a
a {#- c #} b
{# unclosed
{{ unclosed
{% if 1 %}
{% endif %}
{% for x in l %}{% endif %}{% endfor %}
{% nosuch %}
{% if %}a{% endif %}
{{ }}
{{ 1 2 }}
{{ 'a }}
{{ (1 }}
{{ 1) }}
{{ [1} }}
{{ {'a' 1} }}
{{ a b }}
{{ 1 + }}
{{ * 1 }}
{{ a. }}
{{ a.'b' }}
{{ f(a=1, 2) }}
{{ f(**m, 1) }}
{{ l|nosuch }}
{{ l is nosuch }}
{% if false %}{{ l|nosuch }}{% endif %}ok
{% if true %}{{ l|nosuch }}{% endif %}ok
{{ (l|nosuch) if false else 'ok' }}
{% if l is nosuch %}{% endif %}
{% if false %}{% for x in l|nosuch %}{% endfor %}{% endif %}ok
{% if false %}{% for x in l %}{{ x|nosuch }}{% endfor %}{% endif %}ok
{% endfor %}
{% else %}
{% set %}
{% for in l %}{% endfor %}
{% for x l %}{% endfor %}
{% macro %}{% endmacro %}
{% macro f( %}{% endmacro %}
{{ x if }}
{{ ? }}
{{ "a" "b" ~ 'c' }}
{{- i -}}   x
a   {{- i }}
a   {{ i -}}   b
  {%- if t %}  a  {%- endif %}  b
  {%+ if t %}  a  {%+ endif +%}  b
  {% if t +%}
 a
{% endif %}
x {% if t %} y {% endif %} z
a
  {% if t %}
  b
  {% endif %}
c
a
  {{ i }}
b
 {# c #}
b
a {% set x = 1 %}
b
{% set x = 1 -%}

  b
{{ i }}
{{ i }}

{{ i }} 
"""


MORE_STATEMENTS = [
    "a\n  {% if t %}\n  b\n  {% endif %}\nc\n", "a\n  {{ i }}\nb", " {# c #}\nb", "a {# c #}\nb",
    "a\n \t{% set x = 1 %}\t\nx", "{% set x = 1 -%}\n\n  b", "{{ i }}\n", "{{ i }}\n\n", "{{ i }}\n\nx\n",
    "a\r\nb\rc\n", "{% if t %}\r\na\r\n{% endif %}\r\n", "{{ 'a\r\nb' }}", "  {%+ if t %}\n a\n  {%+ endif %}\nb",
    "  {%- if t +%}\n a\n{% endif %}\nb", "x\n\n  {%- if t -%}\n\n y {% endif -%} \n z", "{# a #}\n\n{# b -#}\n\n x",
    "{#+ a +#}\n x", "\u00a0 {% if t %}a{% endif %}", "a\u00a0{%- if t %}a{% endif %}",
    "a\n\u2003{% if t %}b{% endif %}", "{% if t %}\n\n{% endif %}", " \n {% if t %} \n{% endif %} \n",
    "{%if t%}{{i}}{%endif%}", "{%- for x in l -%}\n {{ x }}\n{%- endfor -%}\n", "{{\ni\n}}",
    "{% for x in l %}\n  {{ x }}\n{% endfor %}\nend", "{{ {'a': {'b': 1}}}}", "{{ {'a': {'b': 1}}['a']['b'] }}",
    "{{ '}}' }}{{ '%}' }}{% set x = '%}' %}{{ x }}", "{{ i -}}\n\n\n a", "a {{- '  ' -}} b", "{{'a'-}} {{-'b'}}",
    "{%- if t %}\n    {{- 'x\\n' }}\n{%- endif %}", "", "\n", "\n\n", " ", "{", "{ {", "}} %} #}", "{{ '{{' }}",
    "{% set x = [\n 1,\n 2\n] %}{{ x }}", "line\n{% if t %}x{% endif %}\nline", "{% if t %}x{% endif %}\n\ny",
    "{{ i|\nstring }}", "\u00e9{{ nope.x }}", "a\n{% if t %}\n{{ nope.x }}{% endif %}", "{{ 'a\\\nb' }}",
    "{{ 'a\nb' }}", "a {#- c -#}\n b", "{# unclosed", "{{ unclosed", "{% if t %}x{%- else %} y {%- endif %} z",
    "{%- set x -%}\n a \n{%- endset -%}\n[{{ x }}]", "{%\nif\nt\n%}a{%\nendif\n%}", "{{- '\n' -}}\n x",
    "\n  {%- if t %}\n  x\n  {%- endif %}\n\n y",
]


def statements():
    yield from STATEMENTS.strip("\n").split("\n")
    yield from MORE_STATEMENTS


def expressions():
    for line in EXPRESSIONS.strip("\n").split("\n"):
        yield from line.split(" | ")
    for value, name in itertools.product(VALUES, FILTERS):
        yield f"{value}|{name}"
    for value, name in itertools.product(VALUES, TESTS):
        yield f"{value} is {name}"
    for left, op, right in itertools.product(OPERANDS, OPERATORS, OPERANDS):
        yield f"{left} {op} {right}"
    for value, method in itertools.product(STRINGS, METHODS):
        yield f"{value}.{method}"
    for value, subscript in itertools.product(SEQUENCES, SUBSCRIPTS):
        yield f"{value}{subscript}"


def deliberate(template, result):
    """Where weft differs on purpose: see tests/golden/templates/README.md."""
    text = result.get("out", "")
    if re.search(r"0x7f|<built-in|<class|<generator|<function|<Template|<Macro|<Namespace|range\(|\d{19,}$", text):
        return True
    if re.search(r"(none|\{\})\[[^\]]*:|\['a':\]|\.real\b|undef\.__class__", template):
        return True
    # Refused for some values only.
    return bool(re.search(
        r"\.\d+ (//|%|is (odd|even|div))|(//|%) -?\d\.|'.*' % |/ big|big /|[^\0-\x7f0].*\|int|3\.7'\|int|s\|int|"
        r"ß.*(title|capitalize)|map\('string'\)\|(replace|upper|string)|"
        r"range\(.*\)\.[i_]|('|s)\|reverse|\{1:2.*tojson|'\[-?\d*:-?\d*:(-\d|2)", template))


def snippets():
    templates = list(statements())
    listed = [e for line in EXPRESSIONS.strip("\n").split("\n") for e in line.split(" | ")]
    templates += ["{{ " + e + " }}" for e in listed]
    templates += ["{{ " + e + " }}" for e in list(expressions())[len(listed)::4]]
    for template in dict.fromkeys(templates):
        result = render(template, VARIABLES)
        if not deliberate(template, result):
            yield [template, result.get("out")]


def write(name, value):
    """One case a line."""
    lines = ",\n".join(json.dumps(item, ensure_ascii=False) for item in value)
    (GOLDEN / name).write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def main():
    cases = list(conversations())
    write("conversations.json", [[name, variables] for name, variables in cases])
    write("variables.json", [VARIABLES])
    write("snippets.json", snippets())
    for path in sorted(GOLDEN.glob("*.jinja")):
        template = path.read_bytes().decode()
        write(path.stem + ".json", [[name, render(template, variables).get("out")]
                                    for name, variables in cases])


if __name__ == "__main__":
    main()
