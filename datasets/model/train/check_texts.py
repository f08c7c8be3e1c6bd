"""Checks that texts of the C tasks are what training shows: python3 check_texts.py FILE

FILE has records "task, context, question, answer, token ids" with the byte 1f between fields and
1e after each record.  Each text is taken apart, put together again by the functions that make the
training documents, and compared; so are its tokens.  tests/unit/test_model_texts.c writes FILE.
"""
import re
import sys

import items as its
import tasks
from items import NEXT, OPEN, VOCAB

VARIANTS = ("", "_2", "_3")


def pattern(text):
    """A regular expression for a wording: fields match words, the same field the same word."""
    parts, seen = [], set()
    for part in re.split(r"(\{\w+\})", text):
        name = part[1:-1]
        if not part.startswith("{"):
            parts.append(re.escape(part))
        elif name in seen:
            parts.append("(?P=%s)" % name)
        else:
            seen.add(name)
            parts.append(r"(?P<%s>[\w-]+)" % name)
    return "".join(parts)


def match_wording(name, language, text):
    """(variant, fields) of the wording that text is."""
    for variant in VARIANTS:
        found = re.fullmatch(pattern(VOCAB.phrase(name + variant, language)), text)
        if found:
            return variant, found.groupdict()
    raise ValueError("no wording of %s: %r" % (name, text))


def language_of(context):
    for language in VOCAB.languages:
        if any(context.startswith(text + "\n") for name, text
               in VOCAB.languages[language].phrases.items() if name.endswith("_intro")):
            return language
    raise ValueError("no known intro: %r" % context[:60])


def fact_text(task, context, question, answer):
    """passkey, number_string, needle."""
    language = language_of(context)
    many = task + "s"
    single = context.startswith(VOCAB.phrase(task + "_intro", language))
    name = many if task == "passkey" and not single else task
    variant, fields = match_wording(name + "_question", language, question)
    asked = its.fact(name, answer.strip(), variant, language, **fields)

    body = context.split("\n")[1]
    units, at = [], 0
    for found in re.finditer(pattern(VOCAB.phrase(name + "_item", language)), body):
        units.append(body[at:found.start()])
        values = found.groupdict()
        value = values.pop("value")
        units.append(asked if values == fields
                     else its.fact(name, value, variant, language, **values))
        at = found.end()
    units.append(body[at:])
    units = [VOCAB.ids(" " + unit.strip()) if isinstance(unit, str) else unit for unit in units
             if not isinstance(unit, str) or unit.strip()]
    doc = tasks.Document()
    doc.add(tasks.intro(task if single else many, language))
    doc.add_units([(unit, 0, 0) for unit in units])
    doc.ask(asked)
    return doc


def add_filler_line(doc, line):
    doc.add(VOCAB.at_line_start(VOCAB.ids(" " + line)))


def list_text(name, context, lines_of, asked):
    """Lines of filler around a list; lines_of adds the list to the document."""
    lines = context.split("\n")[1:-1]
    is_entry = [lines_of.match(line) is not None for line in lines]
    first, last = is_entry.index(True), len(lines) - is_entry[::-1].index(True)
    doc = tasks.Document()
    doc.add(tasks.intro(name))
    for line in lines[:first]:
        add_filler_line(doc, line)
        doc.add(VOCAB.newline)
    lines_of.add(doc, lines[first:last], asked)
    for line in lines[last:]:
        doc.add(VOCAB.newline)
        add_filler_line(doc, line)
    doc.ask(asked)
    return doc


class Pairs:
    @staticmethod
    def match(line):
        return re.fullmatch(r'[{ ]"([0-9a-f-]+)": "([0-9a-f-]+)"[,}]', line)

    @staticmethod
    def add(doc, lines, asked):
        for i, line in enumerate(lines):
            key, value = Pairs.match(line).groups()
            item = its.kv_item(None, key, value, NEXT if i else OPEN, "")
            if item.key == asked.key:
                asked.unit, item = item.unit, asked
            doc.add_pair(item, 0, i == 0)
        doc.add([its.CLOSE])


class Entries:
    @staticmethod
    def match(line):
        return re.fullmatch(r"(\d+): (\w+)", line)

    @staticmethod
    def add(doc, lines, asked):
        items = []
        for line in lines:
            key, color = Entries.match(line).groups()
            item = its.sum_item(int(key), 0, color, True, "")
            items.append(asked if item.unit == asked.unit else item)
        doc.add_lines(items, items)


def kv_text(context, question, answer):
    variant, fields = match_wording("kv_question", "english", question)
    return list_text("kv", context, Pairs,
                     its.kv_item(None, fields["key"], answer.strip('"'), NEXT, variant))


def two_stage_text(context, question, answer):
    direct = "The sum is" not in question
    name = "two_stage_direct" if direct else "two_stage_question"
    variant, fields = match_wording(name, "english", question)
    color = re.findall(r"\w+", answer)[-1]
    return list_text("two_stage", context, Entries, its.sum_item(
        int(fields["a"]), int(fields["b"]), color, direct, variant))


def check(task, context, question, answer, ids):
    if task == "kv_retrieval":
        doc = kv_text(context, question, answer)
    elif task == "two_stage_retr":
        doc = two_stage_text(context, question, answer)
    else:
        doc = fact_text(task, context, question, answer)
    text = context + question + answer
    ours = VOCAB.text(doc.ids[1:])
    if ours not in (text, text + "."):
        raise ValueError("training shows\n%s\n---- and not\n%s" % (ours, text))
    full = [VOCAB.full_ids[i] for i in doc.ids]
    if full[:len(ids)] != ids:
        raise ValueError("training has the tokens\n%s\n---- and not\n%s" % (full, ids))
    if not doc.answers[0].value_length or doc.answers[0].value_start >= len(doc):
        raise ValueError("the value was not found in %s" % context)


def main():
    with open(sys.argv[1], encoding="utf-8", newline="") as file:
        records = file.read().split("\x1e")[:-1]
    for record in records:
        task, context, question, answer, ids = record.split("\x1f")
        check(task, context, question, answer, [int(i) for i in ids.split()])
    print("%d texts" % len(records))
    if not records:
        raise SystemExit("no texts in %s" % sys.argv[1])


if __name__ == "__main__":
    main()
