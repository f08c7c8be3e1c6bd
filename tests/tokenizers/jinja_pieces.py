#!/usr/bin/env python3
"""Random pieces of Jinja and what jinja2 makes of them, for tests/unit/test_jinja.c.

    pip install jinja2 tokenizers
    python3 tests/tokenizers/jinja_pieces.py                    # jinja.json, which the test reads
    python3 tests/tokenizers/jinja_pieces.py SEED COUNT FILE    # others: KVL_JINJA=FILE

A row is [piece, text], the text null where jinja2 refuses the piece.  kvlab may refuse a piece, but must not render
another text, nor one that jinja2 refuses.
"""
import json
import os
import random
import re
import sys
import warnings

import jinja2

from chats import HERE, environment

VALUES = ["''", "'a'", "'B'", "' aB-c d '", "'3.7'", "'12'", "' 7 '", "'-5'", "'+5'", "'1_0'", "'1e3'", "'inf'", "'0x1f'", "'x,y,,z'", "'a  b '", "'é'", "'É b'", "'²'", "'a\u00a0'", "'\u200b'",
          "\"it's\"", "'\"q\"'", "'a\\nb\\r\\nc\\n'", "'a\\x0bb\\x85c\\u2028d\\x1ce'", "'{a}'", "'%s'", "'true'", "'a.b'", "0", "1", "-3", "2.5", "-0.5", "10", "3.0", "9007199254740993", "9007199254740992.0",
          "0.1", "true", "false", "none", "[]", "[1, 2, 3]", "['b', 'A', 'a', 'B']", "[3, 1.5, true]", "[1, '1', none]", "['é', 'E']", "[[1], [2]]", "['x', none]", "()", "(1, 2)", "(1,)", "('a', 'b')", "{}",
          "{'a': 1, 'B': 2, 'b': 0}", "{'k': {'a': [1, 2]}}", "{1: 'x', true: 'y', none: 2.5}", "{'items': 1, 'x': 2}", "[{'a': 1}, {'a': 'B'}, {'b': 2}]", "[{'a': 'x', 'n': 2}, {'a': 'X', 'n': 1}, {'a': 'b', 'n': 3}]", "u", "u2", "range(3)",
          "range(5, 0, -2)", "{'a': 1, 'b': 2}.items()", "{'a': 1}.keys()", "{'a': 1}.values()", "ns", "f", "loop", "lipsum", "joiner", "varargs", "range", "dict(a=1)", "m", "m.content", "m['role']", "messages"]
FILTERS = ["abs", "capitalize", "count", "d", "d('z')", "default('z', true)", "default(default_value='q')", "default(u, true)", "dictsort", "dictsort(true)", "dictsort(false, 'value')", "dictsort(reverse=true)", "escape", "e", "first",
           "float", "format(1)", "indent", "indent(2)", "indent(2, true)", "indent(2, first=false)", "indent(blank=true)", "indent('>')", "int", "int(7)", "int(default='x')", "int(0, 16)", "items", "join", "join(', ')", "join(1)", "join(none)",
           "join('-', 'a')", "join('-', attribute='a')", "join(d='+')", "last", "length", "list", "lower", "map('upper')", "map('string')", "map('int')", "map(attribute='a')", "map(attribute='a', default='-')", "map(attribute='a.b', default=1)",
           "map(attribute='0')", "map('default', 'z')", "map('join', ',')", "map", "map('nope')", "max", "max(attribute='n')", "min", "min(true)", "random", "reject", "reject('none')", "reject('equalto', 1)", "rejectattr('a')",
           "rejectattr('a', 'defined')", "replace('a', 'b')", "replace('', '-')", "replace('a')", "replace('a', 1)", "replace('b', '--', 1)", "replace(old='a', new='c')", "replace('a', 'b', count=1)", "replace('a', 'b', x=1)", "reverse", "round",
           "safe", "select", "select('string')", "select('odd')", "select('gt', 1)", "select('in', [1, 'a'])", "selectattr('a')", "selectattr('a', 'equalto', 1)", "selectattr('a', 'string')", "selectattr('a.b')", "sort", "sort(true)",
           "sort(reverse=true)", "sort(attribute='a')", "sort(attribute='n')", "sort(attribute='a,n')", "sort(case_sensitive=true)", "string", "sum", "title", "tojson", "tojson(indent=2)", "tojson(indent=0)", "tojson(indent=-1)", "tojson(indent='\t')",
           "tojson(indent=true)", "tojson(ensure_ascii=true)", "tojson(separators=(',', ':'))", "tojson(separators=[',', ':'], indent=1)", "tojson(sort_keys=true)", "tojson(2)", "tojson(false, 2)", "trim", "trim('a')", "trim(1)", "trim(chars=' a')",
           "unique", "unique(true)", "unique(attribute='a')", "upper", "urlencode", "wordcount", "length(1)", "upper(1)", "list(1)", "string(x=1)", "tojson(x=1)", "first(1)", "batch(2)", "center(9)", "truncate(3)", "xmlattr", "pprint", "attr('a')", "groupby('a')"]
TESTS = ["boolean", "callable", "defined", "defined(1)", "divisibleby 2", "eq 1", "eq(1.0)", "equalto('a')", "even", "false", "float", "ge 1", "in [1, 'a']", "in 'abc'", "integer", "iterable", "lower", "lt 2", "mapping", "ne none", "none",
         "number", "odd", "sameas none", "sameas(1)", "sequence", "string", "true", "undefined", "upper", "escaped", "filter", "none(1)", "eq", "=="]
METHODS = ["capitalize()", "casefold()", "copy()", "count('a')", "count('')", "endswith('c')", "endswith(('c', ' '))", "endswith(['c'])", "endswith('a', 1)", "find('b')", "format(1)", "get('a')", "get('z')", "get('z', 'w')", "get()", "get([1])",
           "get(key='a')", "get('a', default=1)", "index('a')", "isalpha()", "isdigit()", "isspace()", "items()", "items(1)", "join(['p', 'q'])", "join('pq')", "join([1])", "join()", "keys()", "values()", "lower()", "lower(1)", "lstrip()", "lstrip('a ')",
           "removeprefix('a')", "removesuffix('c')", "replace('a', 'x')", "replace('a', 'x', 1)", "replace('a', 'x', none)", "replace('a', 'x', 1.5)", "replace('', 'x')", "replace(old='a', new='b')", "rfind('b')", "rsplit()", "rsplit('-')", "rstrip()",
           "rstrip('d \\n')", "split()", "split(none, 1)", "split(' ')", "split(',', 1)", "split(',', -1)", "split(',', none)", "split(sep=',')", "split(maxsplit=1)", "split(',', 1, 2)", "splitlines()", "startswith('a')", "startswith(('a', ' '))",
           "startswith('')", "strip()", "strip(' ')", "strip(none)", "strip(1)", "strip('é\u00a0')", "swapcase()", "title()", "upper()", "zfill(5)", "append(1)", "pop()", "pop('a')", "update({'q': 1})", "a", "a.b", "b", "x", "nope", "nope is defined", "content", "real",
           "__class__", "_x", "0", "items", "items is defined", "sort()", "reverse()", "isascii()", "index0", "cycle(1)"]
ITEMS = ["[0]", "[-1]", "[9]", "[true]", "['a']", "['items']", "['nope']", "['strip']", "[none]", "[1.0]", "[[1]]", "[1:]", "[:-1]", "[::2]", "[::-1]", "[-2:]", "[5:1:-2]", "[:0]", "[none:1]", "['a':]", "[::0]", "[u]", "[0][0]", "[0]['a']", ".0"]
BINARY = [" + ", " - ", " * ", " / ", " // ", " % ", " ~ ", " and ", " or ", " in ", " not in ", " == ", " != ", " < ", " <= ", " > ", " ** "]
STRINGS = ["'\\q'", "'\\é'", "'\\x4'", "'\\x41'", "'\\u12'", "'\\u00e9'", "'\\ud800'", "'\\U0001F600'", "'\\U00110000'", "'\\012'", "'\\0'", "'\\08'", "'\\1'", "'\\101'", "'\\N{DASH}'", "'\\\\'", "'\\\n'", "'a\rb'", "'a\r\nb'", "'\\a\\b\\f\\v'", "'\u2028'",
           "\"\\'\"", "'\\\"'", "012", "00", "0", "1_000", "1__0", "1_", "0x1F", "0b11", "0o17", "1e3", "1.5e3", "1.", ".5", "1.5.2", "1.50", "123456789012345678", "1234567890123456789", "12345678901234567890", "+1", "+'a'", "- 1", "--1", "1 .real"]
NAMES = re.compile(r"\b(ns|f|m)\b")
HEAD = "{% set ns = namespace(a=1) %}{% set m = messages[0] %}{% macro f(a, b='B', c=none) %}({{ a }}{{ b }}{{ c }}){% endmacro %}"
DATA = ["a", " ", "  ", "\n", "\n\n", " \n", "\t", "\r\n", "\r", "b\n", "\u00a0", "{", "}}", "%}", "", "é"]


def expression(rng, depth):
    if depth == 0 or rng.random() < 0.15:
        return rng.choice(VALUES if rng.random() < 0.95 else STRINGS)
    a = expression(rng, depth - 1)
    if not a[0] in "['\"{(" or a[-1] not in "]'\"})" or " " in a:
        a = f"({a})" if rng.random() < 0.9 and a[:1] not in "([{" else a
    kind = rng.random()
    if kind < 0.34:
        return f"{a} | {rng.choice(FILTERS)}"
    if kind < 0.50:
        return f"{a}.{rng.choice(METHODS)}"
    if kind < 0.60:
        return f"{a}{rng.choice(ITEMS)}"
    if kind < 0.70:
        return f"{a} is {rng.choice(['', 'not '])}{rng.choice(TESTS)}"
    b = expression(rng, rng.randrange(depth))
    if kind < 0.90:
        return f"{a}{rng.choice(BINARY)}({b})"
    if kind < 0.93:
        return f"{rng.choice(['not ', '-', '+'])}{a}"
    if kind < 0.96:
        return f"{a} if {b} else {rng.choice(VALUES)}" if rng.random() < 0.7 else f"{a} if {b}"
    return rng.choice([f"[{a}, {b}]", f"({a}, {b})", f"{{'a': {a}, 'b': {b}}}", f"{{{a}: {b}}}", f"f({a})", f"f({a}, c={b})", f"f({a}, {b}, 1, 2)", f"f(a={a}, x={b})", f"dict(a={a})", f"range({a})", f"namespace(q={a}).q", f"f({a}, a=1)"])


def statement(rng):
    x = expression(rng, rng.choice([1, 1, 2, 2, 3]))
    return rng.choice(["{{ %s }}"] * 6 + [
        "{%% if %s %%}T{%% else %%}F{%% endif %%}", "{%% for x in %s %%}[{{ x }}]{%% else %%}none{%% endfor %%}", "{%% set v = %s %%}{{ v }}|{{ v is defined }}",
        "{%% set v = %s %%}{{ v | list }}|{{ v | list | length }}", "{%% for x in [1, 2] %%}{{ %s }}{%% endfor %%}", "{%% for a, b in %s %%}{{ a }}{{ b }};{%% endfor %%}", "{%% set v %%}{{ %s }}{%% endset %%}{{ v | length }}",
        "{%% for x in [1, 2, 3] if %s %%}{{ loop.index }}{{ x }}{%% endfor %%}"]) % x


def blanks(rng, depth=2):
    """White space around tags."""
    def tag(text):
        return "{%" + rng.choice(["", "", "-", "+"]) + " " + text + " " + rng.choice(["", "", "-", "+"]) + "%}"
    out = ""
    for _ in range(rng.randrange(1, 4)):
        out += "".join(rng.choice(DATA) for _ in range(rng.randrange(4)))
        kind = rng.random()
        if kind < 0.3:
            out += "{{" + rng.choice(["", "-", "+"]) + " 'v' " + rng.choice(["", "-"]) + "}}"
        elif kind < 0.5:
            out += rng.choice(["{# c #}", "{#- c #}", "{# c -#}", "{#+ c +#}", "{#-#}", "{##}", "{# %} #}", "{#--#}", "{#+#}"])
        elif kind < 0.7 and depth:
            out += tag("if true") + blanks(rng, depth - 1) + tag("endif")
        elif kind < 0.8 and depth:
            out += tag("for x in [1, 2]") + blanks(rng, depth - 1) + tag("endfor")
        elif kind < 0.85 and depth:
            out += tag("generation") + blanks(rng, depth - 1) + tag("endgeneration")
        else:
            out += tag("set q = 1")
    return out + "".join(rng.choice(DATA) for _ in range(rng.randrange(4)))


def scopes(rng, depth=2):
    """Which value a name has where."""
    out, name = "", lambda: rng.choice(["a", "b", "ns.a", "loop.index"])
    for _ in range(rng.randrange(1, 5)):
        kind, n = rng.random(), name()
        to = n if n != "loop.index" else "a"
        inside = (lambda: scopes(rng, depth - 1)) if depth else (lambda: "{{ a }}")
        if kind < 0.35:
            out += "{{ %s }}," % n
        elif kind < 0.65:
            out += "{%% set %s = %s %%}" % (to, rng.choice(["1", "2", "'z'", "a", "b", "[1]", "loop.index", "loop"]))
        elif kind < 0.75:
            out += "{%% for %s in [5, 6] %%}%s{%% endfor %%}" % (rng.choice("abx"), inside())
        elif kind < 0.82:
            out += "{%% if %s %%}%s{%% endif %%}" % (rng.choice(["true", "a", "a is defined"]), inside())
        elif kind < 0.88:
            out += "{%% macro g(%s) %%}%s{%% endmacro %%}{{ g(%s) }}" % (rng.choice(["", "a", "a=b", "b=3"]), inside(), rng.choice(["", "8", "b=9", "a"]))
        elif kind < 0.90:
            out += rng.choice(["{% break %}", "{% if a %}{% continue %}{% endif %}"])
        elif kind < 0.95:
            out += "{%% set %s %%}%s{%% endset %%}" % (rng.choice("ab"), inside())
        else:
            out += "{%% generation %%}%s{%% endgeneration %%}" % inside()
    return out


def piece(rng):
    kind = rng.random()
    if kind < 0.15:
        return blanks(rng)
    if kind < 0.27:
        return "{% set ns = namespace(a=7) %}" + scopes(rng)
    text = statement(rng)
    return HEAD + text if NAMES.search(text) else text


def rendered(env, source):
    values = {"messages": [{"role": "user", "content": "Hi <x>"}], "tools": None, "documents": None, "bos_token": "<s>"}
    try:
        text = env.from_string(source).render(**values)
        text.encode()
    except Exception:  # whatever jinja2 or Python says
        return None
    return None if " at 0x" in text or "<jinja2" in text or "<built-in" in text or "<function" in text else text


def main():
    seed, count, path = ([int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]] if len(sys.argv) > 3
                         else [1, 1500, os.path.join(HERE, "jinja.json")])
    warnings.simplefilter("ignore")  # about \q
    rng, env, seen = random.Random(seed), environment(), {}
    while len(seen) < count:
        source = piece(rng)
        if source not in seen and len(source) < 400:
            seen[source] = rendered(env, source)
    with open(path, "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in seen.items()) + "\n]\n")


if __name__ == "__main__":
    main()
