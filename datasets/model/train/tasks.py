"""Training and evaluation texts: the layouts of the C task generators, as dense token ids.

A document is <bos>, a context, and questions.  For every token it knows the weight of its loss
(the weight of predicting this token) and its role: EVIDENCE (something that a question needs),
CONTEXT (anything else before the questions) or QUESTION.
"""
import random

import english
from tokenizer import BOS, Tokenizer

CONTEXT, EVIDENCE, QUESTION = 0, 1, 2
HEX = "0123456789abcdef"

# Loss weights: answers, and the rest of task documents (nothing to learn but the layout).
W_ANSWER, W_OTHER = 1.0, 0.03


class Vocabulary:
    """Dense ids of the tokens that training uses, and texts prepared with them."""

    def __init__(self):
        self.tokenizer = Tokenizer()
        self.full_ids = self.tokenizer.trained_ids()
        self._dense = {full: i for i, full in enumerate(self.full_ids)}
        self.size = len(self.full_ids)
        self.words, self._sentences, self.phrases = english.load()
        self.newline = self.ids("\n")
        self.full_stop = self.ids(".")
        self.digit = {c: self.ids(c)[0] for c in HEX + "-"}
        self.word_ids = {group: [self.ids(" " + word)[0] for word in members]
                         for group, members in self.words.items()}
        self.all_words = sorted({self.ids(" " + word)[0] for word in self.tokenizer.words})
        # The same word at the start of a line, where no space precedes it.
        self._line_start = {self.ids(" " + word)[0]: self.ids(word)[0]
                            for word in self.tokenizer.words if word[0].isupper()}
        self._line_start[self.ids(' "')[0]] = self.ids('"')[0]
        self.printable = [i for i, full in enumerate(self.full_ids) if full > 2]
        self.sentence_weights = [weight for weight, _ in self._sentences]
        self.sentence_slots = [self._slots(text) for _, text in self._sentences]

    def ids(self, text):
        return [self._dense[i] for i in self.tokenizer.encode(text)]

    def text(self, ids):
        return self.tokenizer.decode([self.full_ids[i] for i in ids])

    def _slots(self, text):
        """A sentence as a list of token ids and word classes."""
        slots = []
        for part in (" " + text).replace("{", "\0{").replace("}", "}\0").split("\0"):
            if part.startswith("{"):
                slots.append(part[1:-1])
            else:
                slots += self.ids(part.rstrip(" "))
        return slots

    def at_line_start(self, ids):
        return [self._line_start.get(ids[0], ids[0])] + ids[1:]


VOCAB = Vocabulary()


class Filler:
    """Filler sentences.  A topic draws most words from a few, so that text has a context."""

    def __init__(self, rng, topical=False):
        self.rng = rng
        self.words = dict(VOCAB.word_ids)
        if topical:
            for group, n in (("noun", 5), ("verb", 4), ("adj", 4), ("prep", 3), ("adv", 2),
                             ("city", 3), ("name", 3)):
                few = rng.sample(VOCAB.word_ids[group], n)
                self.words[group] = few * (len(VOCAB.word_ids[group]) * 4 // n) \
                    + VOCAB.word_ids[group]

    def sentence(self):
        rng = self.rng
        slots = rng.choices(VOCAB.sentence_slots, VOCAB.sentence_weights)[0]
        return [rng.choice(self.words[s]) if isinstance(s, str) else s for s in slots]


# ---- items: something to remember, and the question about it ----

class Item:
    """A unit of the context, with its question and answer (all token ids).

    `value` is where the value asked for stands in the unit: (first token, number of tokens).
    `key` are the last tokens of what identifies the value, the last one first.
    """

    def __init__(self, unit, question, answer, value, key):
        self.unit, self.question, self.answer = unit, question, answer
        self.value, self.key = value, key

    def cost(self):
        """Tokens of the question, with the line break before it, and of the answer."""
        return len(self.question) + len(self.answer) + 1


KV_QUESTION = [VOCAB.ids(part) for part in VOCAB.phrases["kv_question"].split("{key}")]
INTRO = {name: VOCAB.ids(VOCAB.phrases[name] + "\n")
         for name in ("passkey_intro", "passkeys_intro", "kv_intro")}


def random_digits(rng, n, base):
    return "".join(HEX[int(rng.random() * base)] for _ in range(n))


def passkey_items(rng, n):
    """n = 1: the unnamed key; otherwise n keys of different names."""
    if n == 1:
        return [passkey_item(random_digits(rng, 5, 10))]
    return [passkey_item(random_digits(rng, 5, 10), name)
            for name in rng.sample(VOCAB.words["name"], min(n, len(VOCAB.words["name"])))]


def passkey_item(value, name=None):
    text = VOCAB.phrases["passkeys_item" if name else "passkey_item"]
    question = VOCAB.phrases["passkeys_question" if name else "passkey_question"]
    if name:
        text, question = text.replace("{name}", name), question.replace("{name}", name)
    # The tokens up to the space before the value, which is a token of its own.
    before = VOCAB.ids(" " + text.split("{value}")[0])
    key = before[-3:-1][::-1] if name else []
    return Item(VOCAB.ids(" " + text.replace("{value}", value)), VOCAB.ids(question),
                VOCAB.ids(" " + value + "."), (len(before), len(value)), key)


def hex_string(rng, length):
    if length == "uuid":
        return "-".join(random_digits(rng, n, 16) for n in (8, 4, 4, 4, 12))
    return random_digits(rng, length, 16)


def similar_string(rng, text):
    """A string that shares most digits with text: the distractors of very long contexts."""
    cut = rng.randrange(1, len(text))
    fresh = "".join("-" if c == "-" else HEX[int(rng.random() * 16)] for c in text)
    return text[:cut] + fresh[cut:] if rng.random() < 0.5 else fresh[:cut] + text[cut:]


def kv_pairs(rng, n, key_length=8, value_length=8, similar=0.0):
    """n pairs of different keys; with probability `similar` a key resembles an earlier one."""
    pairs = {}
    keys = []
    while len(keys) < n:
        if keys and rng.random() < similar:
            key = similar_string(rng, rng.choice(keys))
        else:
            key = hex_string(rng, key_length)
        if key not in pairs:
            pairs[key] = hex_string(rng, value_length)
            keys.append(key)
    return [(key, pairs[key]) for key in keys]


def characters(text):
    return [VOCAB.digit[c] for c in text]


QUOTE, OPEN, NEXT, COLON, COMMA, CLOSE = (
    VOCAB.ids(text)[0] for text in ('"', '{"', ' "', '":', '",', '"}'))


def kv_body(key, value):
    """What stands between the outer quotes of a pair: key": "value."""
    return characters(key) + [COLON, NEXT] + characters(value)


def kv_question(key):
    return KV_QUESTION[0] + characters(key) + KV_QUESTION[1]


def kv_answer(value):
    return characters(value) + [QUOTE]


def kv_item(key, value, before):
    """A pair after the token `before`: an opening quote, with or without a space or brace."""
    unit = [before] + kv_body(key, value)
    return Item(unit, kv_question(key), kv_answer(value), (len(unit) - len(value), len(value)),
                characters(key)[::-1])


# ---- documents ----

class Answer:
    """Where an answer stands, and where the context shows its value; in tokens."""

    def __init__(self, start, length, value_start, value_length, key):
        self.start, self.length = start, length
        self.value_start, self.value_length, self.key = value_start, value_length, key


class Document:
    def __init__(self):
        self.ids, self.weights, self.roles = [BOS], [0.0], [EVIDENCE]
        self.answers = []
        self.question_start = None
        self._item_start = {}

    def __len__(self):
        return len(self.ids)

    def add(self, ids, weight=W_OTHER, role=CONTEXT):
        self.ids += ids
        self.weights += [weight] * len(ids)
        self.roles += [role] * len(ids)

    def add_item(self, item, role, ids=None):
        self._item_start[item] = len(self.ids)
        self.add(ids or item.unit, W_OTHER, role)

    def add_pair(self, item, role, first):
        """A pair of a list; its opening quote belongs to the separator."""
        self.add([] if first else [COMMA] + VOCAB.newline)
        self.add_item(item, role)
        self.roles[self._item_start[item]] = CONTEXT

    def add_units(self, units):
        """Units (ids or item, weight, role) joined by one space; the first at a line start."""
        for i, (unit, weight, role) in enumerate(units):
            ids = unit.unit if isinstance(unit, Item) else unit
            if i == 0:
                ids = VOCAB.at_line_start(ids)
            if isinstance(unit, Item):
                self.add_item(unit, role, ids)
            else:
                self.add(ids, weight, role)

    def end_context(self):
        if self.question_start is None:
            self.question_start = len(self.ids)

    def _add_answer(self, item, ids):
        self.answers.append(Answer(len(self.ids), len(ids), self._item_start[item] + item.value[0],
                                   item.value[1], item.key))
        self.add(ids, W_ANSWER, QUESTION)

    def ask(self, item):
        self.end_context()
        self.add(VOCAB.newline + item.question, W_OTHER, QUESTION)
        self._add_answer(item, item.answer)

    def list_again(self, items):
        """A second list with some of the pairs: more answers per token than questions give."""
        self.end_context()
        self.add(VOCAB.newline, W_OTHER, QUESTION)
        for i, item in enumerate(items):
            first, n = item.value
            self.add([OPEN] if i == 0 else [COMMA] + VOCAB.newline + [NEXT], W_OTHER, QUESTION)
            self.add(item.unit[1:first], W_OTHER, QUESTION)
            self._add_answer(item, item.unit[first:first + n])
        self.add([CLOSE], W_OTHER, QUESTION)

    def cut(self, length):
        del self.ids[length:], self.weights[length:], self.roles[length:]
        self.answers = [a for a in self.answers if a.start + a.length <= length]
        self.end_context()
        self.question_start = min(self.question_start, len(self.ids))


def fill_units(rng, units, room, filler, weight=W_OTHER):
    """Adds filler sentences until `room` tokens are used and shuffles."""
    while True:
        ids = filler.sentence()
        if len(ids) > room:
            break
        units.append((ids, weight, CONTEXT))
        room -= len(ids)
    rng.shuffle(units)


def passkey_document(rng, length, n_keys, n_questions, weight=W_OTHER, topical=False):
    items = passkey_items(rng, n_keys)
    asked = items[:n_questions]
    doc = Document()
    doc.add(INTRO["passkey_intro" if n_keys == 1 else "passkeys_intro"])
    units = [(item, W_OTHER, EVIDENCE if i < len(asked) else CONTEXT)
             for i, item in enumerate(items)]
    room = length - len(doc) - sum(item.cost() for item in asked) \
        - sum(len(item.unit) for item in items)
    fill_units(rng, units, room, Filler(rng, topical), weight)
    doc.add_units(units)
    rng.shuffle(asked)
    for item in asked:
        doc.ask(item)
    return doc


def filler_line(rng, room):
    """Filler sentences and a line break in at most `room` tokens, or nothing."""
    sentences = []
    fill_units(rng, sentences, room - 1, Filler(rng))
    ids = [i for sentence, _, _ in sentences for i in sentence]
    return VOCAB.at_line_start(ids) + VOCAB.newline if ids else []


def kv_document(rng, length, n_questions, key_length=8, value_length=8, similar=0.0, again=False,
                intro=True, before=0, after=0):
    """The context is a list of pairs, with up to `before` and `after` tokens of filler around it.

    With `again` some pairs are listed a second time instead of being asked for one by one.
    """
    example = kv_item(hex_string(rng, key_length), hex_string(rng, value_length), NEXT)
    per_pair = len(example.unit) + 2
    doc = Document()
    if intro:
        doc.add(INTRO["kv_intro"])
    if before:
        doc.add(filler_line(rng, before))
    last_line = filler_line(rng, after) if after else []
    length -= len(last_line)
    room = length - len(doc) - n_questions * (per_pair if again else example.cost())
    n_pairs = room // per_pair
    items = [kv_item(key, value, OPEN if i == 0 else NEXT) for i, (key, value) in enumerate(
        kv_pairs(rng, max(n_pairs, 1), key_length, value_length, similar))]
    asked = rng.sample(range(len(items)), min(n_questions, len(items)))
    needed = set(asked)
    for i, item in enumerate(items):
        doc.add_pair(item, EVIDENCE if i in needed else CONTEXT, first=i == 0)
    doc.add([CLOSE])
    if last_line:
        doc.add(VOCAB.newline + last_line[:-1])
    if again:
        doc.list_again([items[i] for i in asked])
    else:
        for i in asked:
            doc.ask(items[i])
    return doc


def mixed_document(rng, length, weight=W_OTHER, topical=False):
    """Filler with pass keys and key-value pairs, and questions about both."""
    names = passkey_items(rng, rng.randint(2, max(3, length // 60)))
    key_length = rng.choice((4, 6, 8, 8, 12, 16))
    pairs = kv_pairs(rng, rng.randint(1, max(2, length // 60)), key_length,
                     rng.choice((4, 6, 8, 8, 12)))
    items = names + [kv_item(key, value, NEXT) for key, value in pairs]
    for item in items[len(names):]:
        item.unit.append(QUOTE)
    rng.shuffle(items)
    doc = Document()
    doc.add(INTRO[rng.choice(("passkeys_intro", "kv_intro"))])
    room, question_room = length - len(doc), length * rng.uniform(0.25, 0.5)
    units, asked = [], []
    for item in items:
        if item.cost() <= question_room and len(item.unit) + item.cost() <= room:
            asked.append(item)
            units.append((item, W_OTHER, EVIDENCE))
            question_room -= item.cost()
            room -= len(item.unit) + item.cost()
        elif len(item.unit) <= room:
            units.append((item, W_OTHER, CONTEXT))
            room -= len(item.unit)
    fill_units(rng, units, room, Filler(rng, topical), weight)
    doc.add_units(units)
    for item in asked:
        doc.ask(item)
    return doc


def text_document(rng, length, weight):
    """Paragraphs of filler."""
    doc = Document()
    filler = Filler(rng, rng.random() < 0.6)
    while len(doc) < length:
        if len(doc) > 1:
            doc.add(VOCAB.newline, weight, QUESTION)
        sentences = [(filler.sentence(), weight, QUESTION) for _ in range(rng.randint(3, 12))]
        doc.add_units(sentences)
    doc.question_start = len(doc)
    doc.cut(length)
    return doc


def repeat_document(rng, length, warm_up=False):
    """Random tokens in spans of which 60 % copy an earlier one: teaches to look back and copy.

    Only copied tokens count, after the first few that identify the span.
    """
    kind = rng.random()
    if kind < 0.45:
        alphabet, shortest, ambiguous = rng.sample(VOCAB.all_words, 64), 4, 2
    elif kind < 0.65 or (warm_up and kind < 0.8):
        alphabet, shortest, ambiguous = VOCAB.printable, 4, 2
    else:
        alphabet, shortest, ambiguous = characters(HEX), 10, 6
    doc = Document()
    while len(doc) < length:
        n = rng.randint(shortest, 24)
        if len(doc) > 24 and rng.random() < 0.6:
            start = rng.randint(1, len(doc) - n - 1) if len(doc) - n - 1 > 1 else 1
            span = doc.ids[start:start + n]
            doc.add(span[:ambiguous], 0.02, QUESTION)
            doc.add(span[ambiguous:], W_ANSWER, QUESTION)
        else:
            doc.add([alphabet[int(rng.random() * len(alphabet))] for _ in range(n)], 0.02, QUESTION)
    doc.cut(length)
    return doc


def filler_around(rng, length):
    """Mostly a line that closes the length exactly, sometimes filler before and after the list."""
    if rng.random() < 0.2:
        return {"before": rng.randrange(length // 4), "after": rng.randrange(length // 4)}
    return {"before": rng.randrange(40)}


LENGTHS = (4, 5, 6, 8, 8, 8, 8, 10, 12, 16, 24, 36, "uuid")


def training_document(rng, length, mix):
    """One document by the probabilities in `mix` (see the configuration files)."""
    kinds = ("repeat", "kv", "passkey", "mixed", "text")
    kind = rng.choices(kinds, [mix.get(k, 0.0) for k in kinds])[0]
    topical = rng.random() < mix.get("topical", 0.5)
    weight = mix.get("filler_weight", 0.1)
    if kind == "repeat":
        doc = repeat_document(rng, length, mix.get("warm_up", False))
    elif kind == "kv":
        lengths = [n for n in LENGTHS if mix.get("long", True) or n in (4, 5, 6, 8)]
        if length < 512:
            lengths = [n for n in lengths if n not in (24, 36, "uuid")]
        key_length = 8 if rng.random() < mix.get("eight", 0.5) else rng.choice(lengths)
        value_length = key_length if rng.random() < 0.6 else rng.choice(lengths)
        again = rng.random() < mix.get("again", 0.0)
        body = len(hex_string(rng, key_length)) + len(hex_string(rng, value_length))
        cost = body + (5 if again else 15)
        n_questions = max(1, int(length * rng.uniform(0.35, 0.6) / cost))
        doc = kv_document(rng, length, n_questions, key_length, value_length,
                          similar=rng.choice((0.0, 0.0, 0.3, 0.6)), again=again,
                          intro=rng.random() >= mix.get("no_intro", 0.0),
                          **(filler_around(rng, length) if mix.get("filler_lines") else {}))
    elif kind == "passkey":
        if rng.random() < 0.3:
            doc = passkey_document(rng, length, 1, 1, weight, topical)
        else:
            most = max(2, min(len(VOCAB.words["name"]), (length - 20) // 50))
            n = rng.randint(2, most) if most > 2 else 2
            doc = passkey_document(rng, length, n, n if rng.random() < 0.8 else 1, weight, topical)
    elif kind == "mixed":
        doc = mixed_document(rng, length, weight, topical)
    else:
        doc = text_document(rng, length, mix.get("text_weight", 0.3))
    doc.cut(length)
    return doc


if __name__ == "__main__":
    demo_rng = random.Random(0)
    for demo_kind in ("repeat", "kv", "passkey", "mixed", "text"):
        demo = training_document(demo_rng, 300, {demo_kind: 1.0})
        print("----", demo_kind, len(demo), "answers:",
              [VOCAB.text(demo.ids[a.start:a.start + a.length]) for a in demo.answers])
        print(VOCAB.text(demo.ids))
        # What training sees is what encoding the text gives.
        if demo_kind != "repeat":
            assert VOCAB.ids(VOCAB.text(demo.ids[1:])) == demo.ids[1:], demo_kind
