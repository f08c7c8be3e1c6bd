"""Checks that texts of the C tasks are what training shows: python3 check_texts.py FILE

FILE has records "task, context, question, answer, token ids" with the byte 1f between fields and
1e after each record.  Each text is taken apart, put together again by the functions that make the
training documents, and compared; so are its tokens.  tests/unit/test_model_texts.c writes FILE.
"""
import functools
import re
import sys

import items as its
import ruler
import tasks
from items import NEXT, OPEN, VOCAB

VARIANTS = ("", "_2", "_3")


def pattern(text, field=r"[\w-]+"):
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
            parts.append("(?P<%s>%s)" % (name, field))
    return "".join(parts)


def match_wording(name, language, text, field=r"[\w-]+"):
    """(variant, fields) of the wording that text is."""
    for variant in VARIANTS:
        found = re.fullmatch(pattern(VOCAB.phrase(name + variant, language), field), text)
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

    def item(found):
        values = found.groupdict()
        value = values.pop("value")
        return asked if values == fields else its.fact(name, value, variant, language, **values)

    doc = tasks.Document()
    doc.add(tasks.intro(task if single else many, language))
    doc.add_units(units_of(context, pattern(VOCAB.phrase(name + "_item", language)), item))
    doc.ask(asked)
    return doc


def units_of(context, item_pattern, make):
    """The second line as units: sentences, and what `make` makes of each match of the pattern."""
    body = context.split("\n")[1]
    units, at = [], 0
    for found in re.finditer(item_pattern, body):
        units += [body[at:found.start()], make(found)]
        at = found.end()
    units.append(body[at:])
    return [(VOCAB.ids(" " + unit.strip()) if isinstance(unit, str) else unit, 0, 0)
            for unit in units if not isinstance(unit, str) or unit.strip()]


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


# ---- the tasks that are like RULER's ----

NEEDLE = r'The magic value of "?(?P<key>[\w -]+?)"? is "?(?P<value>[\w -]+?)"?\.'
STATEMENT = r"The value of (?P<key>\w+) is (the value of )?(?P<value>\w+)\."


def niah_asked(question):
    """(variant, keys) of a question about needles."""
    for name in ("niahs_question", "niah_question"):
        try:
            variant, fields = match_wording(name, "english", question, ".+")
        except ValueError:
            continue
        keys = re.split(", | and ", fields["key"])
        return variant, [key.strip('"') for key in keys]
    raise ValueError("no question about needles: %r" % question)


def niah_text(context, question, answer):
    variant, keys = niah_asked(question)
    told, doc = [], tasks.Document()

    def item(found):
        told.append((found["key"], ruler.needle(found["key"], found["value"])))
        return told[-1][1]

    name = "niah" if len(re.findall(NEEDLE, context)) == 1 else "niahs"
    doc.add(tasks.intro(name))
    doc.add_units(units_of(context, NEEDLE, item))
    asked = [item for key in keys for told_key, item in told if told_key == key]
    return list_answer(doc, ruler.niah_question(keys, len(asked), variant), asked)


def niah_list_text(context, question, answer):
    variant, keys = niah_asked(question)
    lines = context.split("\n")[1:-1]
    doc, told = tasks.Document(), {}
    doc.add(tasks.intro("niah_list"))
    for line in lines:
        found = re.fullmatch(NEEDLE, line)
        if not found and not told:
            add_filler_line(doc, line)
            doc.add(VOCAB.newline)
        elif found:
            told[found["key"]] = ruler.needle(found["key"], found["value"])
    ruler.add_lines(doc, told.values(), [])
    if not re.fullmatch(NEEDLE, lines[-1]):
        doc.add(VOCAB.newline)
        add_filler_line(doc, lines[-1])
    return list_answer(doc, ruler.niah_question(keys, 1, variant), [told[keys[0]]])


def vt_text(context, question, answer):
    variant, fields = match_wording("vt_question", "english", question)
    chain, doc = {fields["value"]: None}, tasks.Document()

    def item(found):
        key, value = found["key"], found["value"]
        other = None if value.isdigit() else value
        told = ruler.statement(key, value, other)
        if value in chain:
            chain[key] = told
        return told

    doc.add(tasks.intro("vt"))
    doc.add_units(units_of(context, STATEMENT, item))
    return list_answer(doc, ruler.list_question("vt", variant, **fields), list(chain.values())[1:])


def bag_text(name, context, question, answer):
    variant, fields = match_wording(name + "_question", "english", question)
    lines = context.split("\n")[1:-1]
    doc = tasks.Document()
    doc.add(tasks.intro(name))
    for line in lines[:-1]:
        add_filler_line(doc, line)
        doc.add(VOCAB.newline)
    doc.add(VOCAB.ids(lines[-1]))
    words = [ruler.Counted(word) for word in answer.strip().split(", ")]
    if len(words) != int(fields["n"]):
        raise ValueError("%d words and not %s: %r" % (len(words), fields["n"], answer))
    return list_answer(doc, ruler.list_question(name, variant, **fields), words)


def list_answer(doc, question, items):
    """Asks, and checks that the values of the items are where the document says."""
    doc.ask_list(question, items, '"' if ruler.is_uuid(items[0].part) else "")
    for answer, item in zip(doc.answers, items):
        value = VOCAB.text(doc.ids[answer.value_start:answer.value_start + answer.value_length])
        part = VOCAB.text(doc.ids[answer.start:answer.start + answer.length])
        told = item.known.endswith(value.strip()) if isinstance(item, ruler.Statement) \
            else value.strip() == item.part
        if part.strip() != item.part or item.value[1] and not told:
            raise ValueError("%r and %r are not the part %r" % (value, part, item.part))
    return doc


TEXTS = {"kv_retrieval": kv_text, "two_stage_retr": two_stage_text, "niah_multivalue": niah_text,
         "niah_multiquery": niah_text, "vt": vt_text, "cwe": functools.partial(bag_text, "cwe"),
         "fwe": functools.partial(bag_text, "fwe"),
         "niah_multikey": lambda context, question, answer: (
             niah_list_text if context.startswith(VOCAB.phrase("niah_list_intro")) else niah_text)(
                 context, question, answer)}
COUNTED = ("vt", "cwe", "fwe")  # no span of the context is a value to copy


def check(task, context, question, answer, ids):
    if task in TEXTS:
        doc = TEXTS[task](context, question, answer)
    else:
        doc = fact_text(task, context, question, answer)
    text = context + question + answer
    ours = VOCAB.text(doc.ids[1:])
    if ours not in (text, text + "."):
        raise ValueError("training shows\n%s\n---- and not\n%s" % (ours, text))
    full = [VOCAB.full_ids[i] for i in doc.ids]
    if full[:len(ids)] != ids:
        raise ValueError("training has the tokens\n%s\n---- and not\n%s" % (full, ids))
    if task not in COUNTED and not (
            doc.answers[0].value_length and doc.answers[0].value_start < len(doc)):
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
