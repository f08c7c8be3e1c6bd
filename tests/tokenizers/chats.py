#!/usr/bin/env python3
"""Makes chats.json: what jinja2 and `tokenizers` make of chat templates, for tests/unit/test_chat.c.

    pip install jinja2 tokenizers
    python3 tests/tokenizers/chats.py
    python3 tests/tokenizers/chats.py FOLDER     # x.json beside every x.jinja of FOLDER: KVL_CHATS=FOLDER

The templates are ours, in the style of published ones.  "language" holds pieces of Jinja and what they render;
"prompts" whole prompts over the vocabularies of the folders here.  What a conversation spells must stay text, so ids
are made by a tokenizer whose control tokens have other names, which the template alone can spell.
"""
import datetime
import glob
import json
import os
import sys

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

    def _said(self, caller):
        return caller()


def environment():
    """As transformers sets it up, but for the date."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: datetime.datetime(2024, 7, 26).strftime(form)
    return env


# ---- pieces --------------------------------------------------------------------------------------------------

PIECES = [
    "a\n", "a\n\n", "{% if true %}\nx\n{% endif %}\ny", "  {% if true %}\n  x\n  {% endif %}\n", "a {%- if true %} b {%- endif %} c",
    "a\n {{- ' b ' -}} \n c", "{# x #}\na{#- y -#} b", "{%+ if true %}a{% endif %}", "a\r\nb\rc", "{{ '}}' }}{{ {'a': {'b': 1}}.a.b }}",
    "{{ 'a\\n\\t\\\\\\'\\x41\\u00e9\\q' }}", "{{ 'a' 'b' \"c\" }}", "{{ 1 + 2 * 3 - 4 // 3 }} {{ 7 % 3 }} {{ -7 // 2 }} {{ -7 % 3 }}",
    "{{ 1 / 2 }} {{ 3.0 }} {{ 0.1 }} {{ 2 - 0.5 }}", "{{ true }} {{ none }} {{ [1, 'a', None, 2.5] }} {{ {'k': \"it's\"} }} {{ (1,) }}",
    "{{ 'a' ~ 1 ~ none ~ x }}", "{{ x }}|{{ x.y is defined if x is defined else 'no' }}", "{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ 'a' < 'b' }} {{ not 1 == 2 }}",
    "{{ 'b' in 'abc' }} {{ 'd' not in 'abc' }} {{ 2 in [1, 2] }} {{ 'k' in {'k': 1} }} {{ 'a' in x }}",
    "{{ 1 if false }}|{{ 1 if false else 2 if true else 3 }}", "{{ [1, 2, 3][-1] }} {{ 'héllo'[1] }} {{ [1, 2, 3, 4][1:-1] }} {{ 'héllo'[::-1] }} {{ 'abc'[5:] }}",
    "{{ [1, 2, 3][::2] }}{{ [1, 2, 3][::-1] }}{{ 'abcdef'[4:1:-2] }}{{ [1, 2][9] is defined }}", "{{ 'ab'[:1] }}{{ 'ab'[1:] }}{{ 'ab'[-1:] }}",
    "{% for x in [1, 2, 3] %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.revindex0 }},{% endfor %}",
    "{% for x in [1, 2, 3, 4] if x % 2 == 0 %}{{ x }}:{{ loop.length }}{% else %}none{% endfor %}{% for x in [] %}{% else %}none{% endfor %}",
    "{% for x in [1, 2, 3] %}{{ loop.previtem is defined }}{{ loop.nextitem }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}",
    "{% for x in [1, 2, 3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{% endfor %}{% for c in 'né' %}{{ c }}.{% endfor %}{% for k in {'a': 1} %}{{ k }}{% endfor %}",
    "{% set a = 1 %}{% for x in [1] %}{% set a = 2 %}{{ a }}{% endfor %}{{ a }}", "{% set ns = namespace(a=1, b='x') %}{% for x in [1, 2] %}{% set ns.a = ns.a + x %}{% endfor %}{{ ns.a }}{{ ns.b }}",
    "{% set a, b = 1, 'z' %}{{ a }}{{ b }}{% set c %}\n in {{ a }}\n{% endset %}{{ c | trim }}", "{% if false %}{% elif true %}b{% else %}c{% endif %}",
    "{% macro f(a, b=2, c=y) %}{{ a }}{{ b }}{{ c is defined }}{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f('q', 'r', 's') | upper }}",
    "{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}", "{% set t = 5 %}{% macro f() %}{{ t }}{% endmacro %}{% set t = 6 %}{{ f() }}",
    "{% generation %}a{% endgeneration %}", "{{ ' \u00a0a\u3000\n'.strip() }}|{{ ' a '.lstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'aé'.rstrip('éb') }}|{{ ' a ' | trim }}",
    "{{ 'a,b,,c'.split(',') }}{{ ' a  b '.split() }}{{ 'a-b-c'.split('-', 1) }}{{ ' a  b c '.split(none, 1) }}{{ 'x</think>y'.split('</think>')[-1] }}",
    "{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('x', 'c')) }}{{ 'aXbX'.replace('X', '--') }}{{ 'aXbX'.replace('X', '', 1) }}",
    "{{ 'hello World'.capitalize() }}{{ 'aB'.upper() }}{{ 'aB' | lower }}{{ ', '.join(['a', 'b']) }}",
    "{{ {'a': 1}.get('a') }}{{ {'a': 1}.get('b') }}{{ {'a': 1}.get('b', 'z') }}",
    "{{ {'b': 1, 'a': 2}.keys() | list }}{{ {'b': 1}.values() | list }}{{ {'b': 1, 'a': 2} | dictsort }}{{ {'b': 1} | items | list }}",
    "{{ 'héllo' | length }}{{ [1, 2] | count }}{{ [3, 4] | first }}{{ [3, 4] | last }}{{ [1, 'b'] | join('-') }}{{ [{'a': 1}, {'a': 2}] | join(',', attribute='a') }}",
    "{{ x | default('d') }}{{ '' | default('d') }}{{ '' | default('d', true) }}{{ none | d('q') }}", "{{ '12' | int + 1 }}{{ 'x' | int(7) }}{{ 3.9 | int }}{{ 3 | string + 'a' }}",
    "{{ [3, 1, 2] | sort }}{{ [{'a': 2}, {'a': 1}] | sort(attribute='a') }}{{ [3, 1] | min }}{{ [3, 1] | max }}{{ ['b', 'A', 'a'] | sort }}{{ ['b', 'A'] | min }}{{ ['B', 'a'] | max }}{{ ['a', 'A', 'b'] | unique | list }}{{ [1, 1, 2] | unique | list }}",
    "{{ [1, 2, 3] | map('string') | join }}{{ [{'a': 1}, {}] | map(attribute='a', default='-') | join }}{{ ['a'] | map('upper') | list }}",
    "{{ [1, 2, 3] | select('odd') | list }}{{ [0, 1] | select | list }}{{ [1, 2] | reject('equalto', 1) | list }}",
    "{{ [{'r': 'a'}, {'r': 'b'}] | selectattr('r', 'equalto', 'b') | list }}{{ [{'r': 'a'}, {}] | rejectattr('r', 'defined') | list | length }}{{ none | selectattr('x') | list }}",
    "{{ {'a': [1, 'é\"\n<', none, true, 2.5], 'b': {}} | tojson }}{{ [] | tojson }}", "{{ {'b': 1, 'a': [1, 2]} | tojson(indent=2) }}{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}",
    "{{ 'a\nb\n\nc' | indent(2) }}{{ 'a\nb' | indent(2, true) }}", "{{ x is defined }}{{ x is undefined }}{{ none is none }}{{ 'a' is string }}{{ 1 is number }}{{ true is boolean }}{{ {} is mapping }}{{ [] is sequence }}{{ 'a' is iterable }}{{ 1 is iterable }}",
    "{{ 3 is odd }}{{ 3 is even }}{{ 1 is eq 1 }}{{ 1 is ne(2) }}{{ 1 is in [1] }}{{ 1 is not none }}{{ true is true }}{{ 1 is true }}{{ 0 is false }}{{ 1 is integer }}{{ 1.0 is float }}",
    "{{ range(3) | list }}{{ range(1, 7, 2) | list }}{{ range(3, 0, -1) | list }}{{ dict(a=1) }}", "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d, %B %A %H:%M') }}",
    "{{ 'ab' * 2 }}{{ [0] * 2 }}{{ [1] + [2] }}{{ 'a' + 'b' }}{{ true + 1 }}", "{{ x | string }}|{{ x | length }}|{{ x | list }}|{{ x | join }}|{{ x == y }}", "{{ messages[0]['content'] }}{{ messages[0].role }}{{ messages | length }}{{ messages[-1].tool_calls is defined }}",
    "{{ (messages | selectattr('role', 'equalto', 'system') | list)[0].content is defined }}", "{{ messages[0].content.items is defined }}{{ messages[0].get('name', 'n') }}", "{{ bos_token }}{{ pad_token }}{{ tools is none }}{{ tools is defined }}",
    # errors
    "{{ x.y }}", "{{ x + 'a' }}", "{{ 'a' + 1 }}", "{{ x() }}", "{{ raise_exception('no') }}", "{{ none | length }}", "{% for a in none %}{% endfor %}", "{{ 1 < 'a' }}", "{{ 1 // 0 }}", "{{ x | tojson }}", "{% set q.a = 1 %}",
    "{{ 'a'.split('') }}", "{% for a, b in [1] %}{% endfor %}", "{{ 1 in none }}",
]

# ---- templates -----------------------------------------------------------------------------------------------

TEMPLATES = {
    "roles": "{% for m in messages %}{{ SEP + m['role'] + '\\n' + m['content'] + eos_token + '\\n' }}{% endfor %}"
             "{% if add_generation_prompt %}{{ SEP + 'assistant\\n' }}{% endif %}",
    "default": "{%- if messages[0].role == 'system' %}\n    {{- SEP + 'system\\n' + messages[0].content + eos_token }}\n{%- else %}\n"
               "    {{- SEP + 'system\\nYou are kind.' + eos_token }}\n{%- endif %}\n{%- for m in messages if m.role != 'system' %}\n"
               "    {{- SEP + m.role + '\\n' }}\n    {%- if m.role == 'assistant' and '</think>' in m.content %}\n"
               "        {{- m.content.split('</think>')[-1].lstrip('\\n') }}\n    {%- else %}\n        {{- m.content }}\n    {%- endif %}\n"
               "    {{- eos_token }}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- SEP + 'assistant\\n<think>\\n' }}\n{%- endif %}",
    "inst": "{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% else %}"
            "{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% for message in loop_messages %}"
            "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
            "{% if loop.index0 == 0 and system_message != false %}{% set content = '<<S>>\\n' + system_message + '\\n<</S>>\\n\\n' + message['content'] %}"
            "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}{{ bos_token + '[I] ' + content.strip() + ' [/I]' }}"
            "{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}",
    "last": "{{ bos_token }}{%- set ns = namespace(n=messages | length - 1) -%}{% for m in messages %}{% if m.role == 'user' %}{{ SEP }}"
            "{% if loop.index0 == ns.n and messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{% endif %}{{ m.content }}"
            "{% elif m.role == 'assistant' %}{{ ' ' + m.content | trim + eos_token }}{% endif %}{% endfor %}",
    "turns": "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] + '\\n\\n' %}{% else %}{% set first = '' %}{% endif %}"
             "{% macro say(role, text) %}{{ SEP }}{{ role }}\n{{ text }}{{ eos_token }}\n{% endmacro %}{% for m in messages if m.role != 'system' %}"
             "{{ say('model' if m.role == 'assistant' else m.role, (first if loop.first else '') + m.content | trim) }}{% endfor %}"
             "{% if add_generation_prompt %}{{ SEP + 'model\\n' }}{% endif %}",
    "plain": "{% for m in messages %}{% if m.role == 'user' %}USER: {{ m.content }} {% elif m.role == 'assistant' %}ASSISTANT: {{ m.content }}{{ eos_token }}"
             "{% else %}{{ m.content }} {% endif %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}",
}
# What parts turns in a vocabulary, beside its own eos.
FOLDERS = {"llama2": "<unk>", "mistral": "<s>", "gemma": "<bos>", "qwen2": "<|x|>", "llama3": "<|begin_of_text|>"}


def said(role, *texts):
    return [{"role": role, "content": x} for x in texts]


def conversations():
    u, a, s = (lambda x, r=r: said(r, x) for r in ("user", "assistant", "system"))
    return [u("Hello"), u("\nHi  "), u("  Hi"), u(" 5"), u(""), u("\u00a0x\u3000"), s("Be brief.") + u("Hello"), s("") + u("Hello"), s(" S\n") + u("a\u0308"),
            u("a<|im_end|></s><s> b<bos>") + a("</think>x") + u("<|x|> [u] y"), u("the word") + a(" ok ") + u("\nand then"), u("A") + a("It is"),
            s("S") + u("it's") + a("one\n") + u("\u2581\u2581two") + a("") + u("  three")]


def token(config, key):
    v = config.get(key)
    return v.get("content") if isinstance(v, dict) else v


def ids_of(folder, source, conversation):
    """None: the template refuses it."""
    with open(os.path.join(HERE, folder, "tokenizer.json"), encoding="utf-8") as f:
        data = json.load(f)
    with open(os.path.join(HERE, folder, "tokenizer_config.json"), encoding="utf-8") as f:
        config = json.load(f)
    bos, eos, sep = token(config, "bos_token"), token(config, "eos_token"), FOLDERS[folder]
    new = {x["content"]: f"\ue000{x['content']}\ue001" for x in data["added_tokens"] if x["special"]}
    ask = conversation[-1]["role"] == "user"
    values = {"messages": conversation, "add_generation_prompt": ask, "tools": None, "documents": None}
    for name, text in (("bos_token", bos), ("eos_token", eos), ("SEP", sep)):
        if text:
            values[name] = new[text]
    try:
        text = environment().from_string(source).render(**values)
    except (jinja2.exceptions.TemplateError, TypeError):
        return None
    if not ask:
        text = text[:text.rindex(conversation[-1]["content"]) + len(conversation[-1]["content"])]
    for x in data["added_tokens"]:
        x["content"] = new.get(x["content"], x["content"])
    for old, now in new.items():  # the post-processor and the model name them, too
        vocab = data["model"]["vocab"]
        if old in vocab:
            vocab[now] = vocab.pop(old)
        if data["model"].get("unk_token") == old:
            data["model"]["unk_token"] = now
    data["post_processor"] = None
    ids = Tokenizer.from_str(json.dumps(data)).encode(text, add_special_tokens=False).ids
    first = config.get("add_bos_token", True)
    with open(os.path.join(HERE, folder, "tokenizer.json"), encoding="utf-8") as f:
        adds = Tokenizer.from_str(f.read())
    whole = adds.encode("", add_special_tokens=True).ids
    if bos and first and whole[:1] == [adds.token_to_id(bos)] and not text.startswith(new[bos]):
        ids = whole[:1] + ids
    return ids


def pieces():
    out = []
    values = {"messages": said("user", "Hi <x>"), "add_generation_prompt": True, "tools": None, "documents": None,
              "bos_token": "<s>", "eos_token": "</s>"}
    for source in PIECES:
        try:
            out.append([source, environment().from_string(source).render(**values)])
        except (jinja2.exceptions.TemplateError, TypeError, ValueError, ZeroDivisionError):
            out.append([source, None])
    return out


def of_folder(folder):
    """Texts of other people's templates: BOS <s>, EOS </s>."""
    for path in sorted(glob.glob(os.path.join(folder, "*.jinja"))):
        cases = []
        for c in conversations():
            ask = c[-1]["role"] == "user"
            with open(path, encoding="utf-8", newline="") as f:
                source = f.read()
            try:
                text = environment().from_string(source).render(messages=c, add_generation_prompt=ask, tools=None,
                                                                documents=None, bos_token="<s>", eos_token="</s>")
            except (jinja2.exceptions.TemplateError, TypeError, ValueError):
                text = None
            cases.append([c, text if ask else None if text is None else [text]])
        with open(path[:-len(".jinja")] + ".json", "w", encoding="utf-8") as f:
            json.dump(cases, f)


def main():
    if len(sys.argv) > 1:
        of_folder(sys.argv[1])
        return
    prompts = {}
    for folder, sep in FOLDERS.items():
        prompts[folder] = []
        for name, source in TEMPLATES.items():
            # A variable for the oracle, where its text is another one.
            prompts[folder].append({"name": name, "template": source.replace("SEP", f"'{sep}'"),
                                    "ids": [ids_of(folder, source, c) for c in conversations()]})
    with open(os.path.join(HERE, "chats.json"), "w", encoding="utf-8") as f:
        json.dump({"language": pieces(), "conversations": conversations(), "prompts": prompts}, f, ensure_ascii=True,
                  separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
