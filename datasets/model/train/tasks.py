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


def split_phrase(name, *fields):
    """The parts of a phrase between its {fields} as token ids.

    A part that comes before a value keeps the space that the value begins with.
    """
    text = VOCAB.phrases[name]
    for field in fields:
        text = text.replace("{%s}" % field, "\0")
    return [VOCAB.ids(part) for part in text.split("\0")]


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


# ---- items: (context unit, question, answer), each a list of ids ----

SPACE = VOCAB.ids(" ")
# "{a}" parts of the phrases, cut where values stand.
PASSKEY_ITEM = split_phrase("passkey_item", "value")
PASSKEY_QUESTION = VOCAB.ids(VOCAB.phrases["passkey_question"])
PASSKEYS_ITEM = VOCAB.phrases["passkeys_item"]
PASSKEYS_QUESTION = VOCAB.phrases["passkeys_question"]
KV_QUESTION = split_phrase("kv_question", "key")
INTRO = {name: VOCAB.ids(VOCAB.phrases[name] + "\n")
         for name in ("passkey_intro", "passkeys_intro", "kv_intro")}


def random_digits(rng, n, base):
    return "".join(HEX[int(rng.random() * base)] for _ in range(n))


def passkey_items(rng, n):
    """n = 1: the unnamed key; otherwise n keys of different names."""
    if n == 1:
        value = random_digits(rng, 5, 10)
        unit = VOCAB.ids(" " + VOCAB.phrases["passkey_item"].replace("{value}", value))
        return [(unit, PASSKEY_QUESTION, VOCAB.ids(" " + value + "."))]
    items = []
    for name in rng.sample(VOCAB.words["name"], min(n, len(VOCAB.words["name"]))):
        value = random_digits(rng, 5, 10)
        unit = PASSKEYS_ITEM.replace("{value}", value).replace("{name}", name)
        items.append((VOCAB.ids(" " + unit), VOCAB.ids(PASSKEYS_QUESTION.replace("{name}", name)),
                      VOCAB.ids(" " + value + ".")))
    return items


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


QUOTE, OPEN, NEXT, COLON, COMMA, CLOSE = (VOCAB.ids(t)[0] for t in ('"', '{"', ' "', '":', '",', '"}'))
# Inside a key and value: 'key": "value'.


def kv_body(key, value):
    return characters(key) + [COLON, NEXT] + characters(value)


def kv_question(key):
    return KV_QUESTION[0] + characters(key) + KV_QUESTION[1]


def kv_answer(value):
    return characters(value) + [QUOTE]


# ---- documents ----

class Document:
    def __init__(self):
        self.ids, self.weights, self.roles = [BOS], [0.0], [EVIDENCE]
        self.answers = []  # (start, length) of every answer
        self.question_start = None

    def __len__(self):
        return len(self.ids)

    def add(self, ids, weight=W_OTHER, role=CONTEXT):
        self.ids += ids
        self.weights += [weight] * len(ids)
        self.roles += [role] * len(ids)

    def end_context(self):
        if self.question_start is None:
            self.question_start = len(self.ids)

    def ask(self, question, answer):
        self.end_context()
        self.add(VOCAB.newline + question, W_OTHER, QUESTION)
        self.answers.append((len(self.ids), len(answer)))
        self.add(answer, W_ANSWER, QUESTION)

    def cut(self, length):
        del self.ids[length:], self.weights[length:], self.roles[length:]
        self.answers = [(s, n) for s, n in self.answers if s + n <= length]
        self.end_context()
        self.question_start = min(self.question_start, len(self.ids))


def add_units(doc, units):
    """Units (ids, weight, role) joined by one space; the first one stands at a line start."""
    for i, (ids, weight, role) in enumerate(units):
        doc.add(VOCAB.at_line_start(ids) if i == 0 else ids, weight, role)


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
    cost = sum(len(q) + len(a) + 1 for _, q, a in asked)
    units = [(unit, W_OTHER, EVIDENCE if i < len(asked) else CONTEXT)
             for i, (unit, _, _) in enumerate(items)]
    room = length - len(doc) - cost - sum(len(u[0]) for u in units)
    fill_units(rng, units, room, Filler(rng, topical), weight)
    add_units(doc, units)
    rng.shuffle(asked)
    for _, question, answer in asked:
        doc.ask(question, answer)
    return doc


def kv_document(rng, length, n_questions, key_length=8, value_length=8, similar=0.0, n_pairs=None,
                again=False, intro=True):
    """The whole context is pairs.  With `again`, the pairs asked for are listed a second time
    instead of being asked for one by one: more answers per token, for early training."""
    probe = hex_string(rng, key_length), hex_string(rng, value_length)
    per_pair = len(kv_body(*probe)) + 3
    per_question = len(probe[1]) + 1 + len(kv_question(probe[0])) + 1
    doc = Document()
    if intro:
        doc.add(INTRO["kv_intro"])
    if n_pairs is None:
        n_pairs = (length - len(doc) - n_questions * (per_pair if again else per_question)) // per_pair
    pairs = kv_pairs(rng, max(n_pairs, 1), key_length, value_length, similar)
    asked = rng.sample(range(len(pairs)), min(n_questions, len(pairs)))
    needed = set(asked)
    for i, (key, value) in enumerate(pairs):
        doc.add([OPEN] if i == 0 else [COMMA] + VOCAB.newline + [NEXT])
        doc.add(kv_body(key, value), W_OTHER, EVIDENCE if i in needed else CONTEXT)
    doc.add([CLOSE])
    if again:
        doc.end_context()
        doc.add(VOCAB.newline, W_OTHER, QUESTION)
        for j, i in enumerate(asked):
            key, value = pairs[i]
            doc.add([OPEN] if j == 0 else [COMMA] + VOCAB.newline + [NEXT], W_OTHER, QUESTION)
            doc.add(characters(key) + [COLON, NEXT], W_OTHER, QUESTION)
            doc.answers.append((len(doc), len(value)))
            doc.add(characters(value), W_ANSWER, QUESTION)
        doc.add([CLOSE], W_OTHER, QUESTION)
    else:
        for i in asked:
            doc.ask(kv_question(pairs[i][0]), kv_answer(pairs[i][1]))
    return doc


def mixed_document(rng, length, weight=W_OTHER, topical=False):
    """Filler with pass keys and key-value pairs, and questions about both."""
    names = passkey_items(rng, rng.randint(2, max(3, length // 60)))
    key_length = rng.choice((4, 6, 8, 8, 12, 16))
    pairs = kv_pairs(rng, rng.randint(1, max(2, length // 60)), key_length, rng.choice((4, 6, 8, 8, 12)))
    items = names + [([NEXT] + kv_body(*pair) + [QUOTE], kv_question(pair[0]), kv_answer(pair[1]))
                     for pair in pairs]
    rng.shuffle(items)
    doc = Document()
    doc.add(INTRO[rng.choice(("passkeys_intro", "kv_intro"))])
    room, question_room = length - len(doc), length * rng.uniform(0.25, 0.5)
    units, asked = [], []
    for unit, question, answer in items:
        cost = len(question) + len(answer) + 1
        if cost <= question_room and len(unit) + cost <= room:
            asked.append((question, answer))
            units.append((unit, W_OTHER, EVIDENCE))
            question_room -= cost
            room -= len(unit) + cost
        elif len(unit) <= room:
            units.append((unit, W_OTHER, CONTEXT))
            room -= len(unit)
    fill_units(rng, units, room, Filler(rng, topical), weight)
    # A pair that comes first has no space before it.
    if units and units[0][0][0] == NEXT:
        units[0] = ([QUOTE] + units[0][0][1:],) + units[0][1:]
    add_units(doc, units)
    for question, answer in asked:
        doc.ask(question, answer)
    return doc


def text_document(rng, length, weight):
    """Paragraphs of filler."""
    doc = Document()
    filler = Filler(rng, rng.random() < 0.6)
    while len(doc) < length:
        if len(doc) > 1:
            doc.add(VOCAB.newline, weight, QUESTION)
        sentences = [(filler.sentence(), weight, QUESTION) for _ in range(rng.randint(3, 12))]
        add_units(doc, sentences)
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
                          intro=rng.random() >= mix.get("no_intro", 0.0))
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
    import time
    demo_rng = random.Random(0)
    for demo_kind in ("repeat", "kv", "passkey", "mixed", "text"):
        demo = training_document(demo_rng, 300, {demo_kind: 1.0})
        print("----", demo_kind, len(demo), "answers:",
              [VOCAB.text(demo.ids[s:s + n]) for s, n in demo.answers])
        print(VOCAB.text(demo.ids))
        # What training sees is what encoding the text gives.
        if demo_kind != "repeat":
            assert VOCAB.ids(VOCAB.text(demo.ids[1:])) == demo.ids[1:], demo_kind
    start, total = time.time(), 0
    while time.time() - start < 2:
        total += len(training_document(demo_rng, 512, {k: 1.0 for k in ("repeat", "kv", "passkey", "mixed", "text")}))
    print("%.0f tokens/s" % (total / 2))
