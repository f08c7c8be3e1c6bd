"""Training and evaluation texts: the layouts of the C task generators, as dense token ids.

A document is <bos>, a context, and questions.  For every token it knows the weight of its loss
(the weight of predicting this token) and its role: EVIDENCE (something that a question needs),
CONTEXT (anything else before the questions) or QUESTION.
"""
import items as its
from items import (CLOSE, COMMA, HEX, NEXT, OPEN, QUOTE, VOCAB, W_ANSWER, W_OTHER, Filler, Item,
                   characters)
from tokenizer import BOS

CONTEXT, EVIDENCE, QUESTION = 0, 1, 2


def intro(name, language="english"):
    return VOCAB.ids(VOCAB.phrase(name + "_intro", language) + "\n")


# ---- documents ----

class Answer:
    """Where an answer stands, and where the context shows its value; in tokens.

    The token at `start + reads` is the first that needs the value.
    """

    def __init__(self, start, item, item_start):
        self.start, self.length, self.reads = start, len(item.answer), item.reads
        self.value_start, self.value_length = item_start + item.value[0], item.value[1]
        self.key, self.sum, self.operands = item.key, item.sum, item.operands
        self.asks = item.key if item.asks is None else item.asks
        self.ordinal, self.first_layer = item.ordinal, item.first_layer
        self.follows = False  # a part of a list, and not the first
        self.spaces = int(item.answer[:1] == [VOCAB.space])  # tokens before those of the value


class Document:
    """`groups` tells for every token which question it belongs to, as a part of it or as what it
    needs (-1: none).  `links` are pairs of positions: the last token of a part of a list, and where
    the context says what comes next (0: nothing).  `bag` counts the words of a text of which an
    answer lists the frequent ones."""

    def __init__(self):
        self.ids, self.weights, self.roles, self.groups = [BOS], [0.0], [EVIDENCE], [-1]
        self.answers, self.links, self.bag = [], [], None
        self.question_start = None
        self._item_start, self._group = {}, -1

    def __len__(self):
        return len(self.ids)

    def add(self, ids, weight=W_OTHER, role=CONTEXT):
        self.ids += ids
        self.weights += [weight] * len(ids)
        self.roles += [role] * len(ids)
        self.groups += [self._group] * len(ids)

    def _next_question(self, items):
        """From here on tokens belong to a question that needs these items."""
        self._group += 1
        for item in items:
            if item not in self._item_start:
                continue
            start = self._item_start[item]
            for i in range(start, start + len(item.unit)):
                if self.roles[i] == EVIDENCE:
                    self.groups[i] = self._group

    def add_item(self, item, role, line_start=False):
        ids = VOCAB.at_line_start(item.unit) if line_start else item.unit
        self._item_start[item] = len(self.ids) + len(ids) - len(item.unit)
        self.add(ids, W_OTHER, role)

    def add_pair(self, item, role, first):
        """A pair of a list; its opening quote belongs to the separator."""
        self.add([] if first else [COMMA] + VOCAB.newline)
        self.add_item(item, role)
        self.roles[self._item_start[item]] = CONTEXT

    def add_units(self, units):
        """Units (ids or item, weight, role) joined by one space; the first at a line start."""
        for i, (unit, weight, role) in enumerate(units):
            if isinstance(unit, Item):
                self.add_item(unit, role, i == 0)
            else:
                self.add(VOCAB.at_line_start(unit) if i == 0 else unit, weight, role)

    def add_lines(self, items, needed):
        """Items on lines of their own, without the last line break."""
        for i, item in enumerate(items):
            self.add(VOCAB.newline if i else [])
            self.add_item(item, EVIDENCE if item in needed else CONTEXT)

    def end_context(self):
        if self.question_start is None:
            self.question_start = len(self.ids)

    def ask(self, item):
        self.end_context()
        self._next_question([item])
        self.add(VOCAB.newline + item.question, W_OTHER, QUESTION)
        self.answers.append(Answer(len(self.ids), item, self._item_start.get(item, 0)))
        self.add(item.answer, W_ANSWER, QUESTION)
        self.weights[-len(item.answer):] = item.weights

    def ask_list(self, question, items, quote="", weight=W_ANSWER):
        """A question whose answer lists the values of several items."""
        self.end_context()
        self._next_question(items)
        self.add(VOCAB.newline + question, W_OTHER, QUESTION)
        text, places = "", []
        for i, item in enumerate(items):
            text += ("," if i else "") + " " + quote
            places.append((len(VOCAB.ids(text.rstrip(" "))), len(text)))
            text += item.part + quote
        ids = VOCAB.ids(text + ("" if quote else "."))
        for (start, at), item in zip(places, items):
            end = len(VOCAB.ids(text[:at] + item.part))
            part = Item(item.unit, [], ids[start:end], item.value, item.key)
            part.ordinal, part.asks, part.first_layer = item.ordinal, item.asks, item.first_layer
            self.answers.append(Answer(len(self.ids) + start, part, self._item_start.get(item, 0)))
            self.answers[-1].follows = start > 0
        self.add(ids, weight, QUESTION)

    def list_again(self, items):
        """A second list with some of the pairs: more answers per token than questions give."""
        self.end_context()
        self.add(VOCAB.newline, W_OTHER, QUESTION)
        for i, item in enumerate(items):
            first, n = item.value
            self._next_question([item])
            self.add([OPEN] if i == 0 else [COMMA] + VOCAB.newline + [NEXT], W_OTHER, QUESTION)
            self.add(item.unit[1:first], W_OTHER, QUESTION)
            value = Item(item.unit, [], item.unit[first:first + n], item.value, item.key)
            self.answers.append(Answer(len(self.ids), value, self._item_start[item]))
            self.add(value.answer, W_ANSWER, QUESTION)
        self.add([CLOSE], W_OTHER, QUESTION)

    def cut(self, length):
        del self.ids[length:], self.weights[length:], self.roles[length:], self.groups[length:]
        self.answers = [a for a in self.answers if a.start + a.length <= length]
        self.links = [link for link in self.links if link[0] < length]
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


def fact_document(rng, length, name, items, n_questions, weight=W_OTHER, topical=False,
                  language="english"):
    """Items between filler sentences; the first n_questions are asked for, in random order."""
    asked = items[:n_questions]
    doc = Document()
    doc.add(intro(name, language))
    units = [(item, W_OTHER, EVIDENCE if i < len(asked) else CONTEXT)
             for i, item in enumerate(items)]
    room = length - len(doc) - sum(item.cost() for item in asked) \
        - sum(len(item.unit) for item in items)
    fill_units(rng, units, room, Filler(rng, topical, language), weight)
    doc.add_units(units)
    rng.shuffle(asked)
    for item in asked:
        doc.ask(item)
    return doc


def passkey_document(rng, length, n_keys, n_questions, weight=W_OTHER, topical=False,
                     variant=None):
    return fact_document(rng, length, "passkey" if n_keys == 1 else "passkeys",
                         its.passkey_items(rng, n_keys, variant), n_questions, weight, topical)


def needle_document(rng, length, n_needles, n_questions, weight=W_OTHER, topical=False,
                    variant=None, language="english", n_digits=7):
    items = its.needle_items(rng, n_needles, variant, language, n_digits)
    return fact_document(rng, length, "needle" if n_needles == 1 else "needles", items,
                         n_questions, weight, topical, language)


def number_string_document(rng, length, weight=W_OTHER, topical=False, variant=None, n_digits=10,
                           n_random=None):
    item = its.number_string_item(rng, variant, n_digits, n_random)
    return fact_document(rng, length, "number_string", [item], 1, weight, topical)


def filler_line(rng, room):
    """Filler sentences and a line break in at most `room` tokens, or nothing."""
    sentences = []
    fill_units(rng, sentences, room - 1, Filler(rng))
    ids = [i for sentence, _, _ in sentences for i in sentence]
    return VOCAB.at_line_start(ids) + VOCAB.newline if ids else []


def kv_document(rng, length, n_questions, key_length=8, value_length=8, similar=0.0, again=False,
                with_intro=True, before=0, after=0, variant=None):
    """The context is a list of pairs, with up to `before` and `after` tokens of filler around it.

    With `again` some pairs are listed a second time instead of being asked for one by one.
    """
    example = its.kv_item(rng, *its.kv_pairs(rng, 1, key_length, value_length)[0], NEXT, variant)
    per_pair = len(example.unit) + 2
    doc = Document()
    if with_intro:
        doc.add(intro("kv"))
    if before:
        doc.add(filler_line(rng, before))
    last_line = filler_line(rng, after) if after else []
    length -= len(last_line)
    room = length - len(doc) - n_questions * (per_pair if again else example.cost())
    n_pairs = room // per_pair
    pairs = its.kv_pairs(rng, max(n_pairs, 1), key_length, value_length, similar)
    items = [its.kv_item(rng, key, value, OPEN if i == 0 else NEXT, variant)
             for i, (key, value) in enumerate(pairs)]
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


QUESTION_TOKENS = 40  # at most, of two_stage_retr with its answer


def two_stage_document(rng, length, question_tokens, keys="consecutive", direct=0.25, before=0,
                       after=0, variant=None):
    """The context is a list of numbers with colours, the questions fill `question_tokens`.

    keys: "consecutive" from 0, "runs" (a part of such a list), "random", "similar", "far" or "echo"
    (up to 20000, the others mostly have at most four digits); direct: without the sum, or how often.
    """
    doc = Document()
    doc.add(intro("two_stage"))
    if before:
        doc.add(filler_line(rng, before))
    last_line = filler_line(rng, after) if after else []
    room = length - len(doc) - len(last_line) - question_tokens
    n = max(room // 4, 2)
    numbers = {"consecutive": lambda: list(range(n)), "runs": lambda: its.key_runs(rng, n),
               "random": lambda: its.random_keys(rng, n),
               "similar": lambda: its.similar_keys(rng, n),
               "far": lambda: its.far_keys(rng, n),
               "echo": lambda: its.echo_keys(rng, n)}[keys]()
    items = []
    for key in numbers:
        room -= len(str(key)) + 3
        if room < 0 and items:
            break
        items.append(its.two_stage_item(rng, key, rng.choice(VOCAB.words("color")),
                                        direct if isinstance(direct, bool)
                                        else rng.random() < direct, variant))
    asked = []
    for item in rng.sample(items, len(items)):
        if item.cost() > question_tokens:
            break
        question_tokens -= item.cost()
        asked.append(item)
    doc.add_lines(items, asked)
    if last_line:
        doc.add(VOCAB.newline + last_line[:-1])
    for item in asked:
        doc.ask(item)
    return doc


SUM_EXPONENTS = (1, 2, 2, 3, 3, 3, 3, 3.5, 3.8, 4)


def sums_document(rng, length, far=0.0):
    """Additions alone, with the wording of the questions or shorter; `far`: how often one may be
    as large as the keys of the longest lists."""
    doc = Document()
    doc.end_context()
    while len(doc) < length:
        total = rng.randrange(its.FAR_KEYS) if far and rng.random() < far else \
            int(10 ** rng.choice(SUM_EXPONENTS) * rng.random())
        item = its.two_stage_item(rng, total, "red")
        if rng.random() < 0.6:
            a = rng.randint(0, total)
            item.question = VOCAB.ids("%d + %d? The sum is" % (a, total - a))
            item.operands = its.operand_digits(a, total - a)
        end = len(str(total)) + 2
        item.answer, item.weights, item.reads = item.answer[:end], item.weights[:end], 0
        item.value, item.key = (0, 0), []
        doc.ask(item)
    return doc


def mixed_items(rng, length):
    """Items of several tasks, at most one without a name each."""
    few = max(3, length // 120)
    kinds = rng.sample(("passkeys", "needles", "kv", "entries", "single"), rng.randint(2, 4))
    items = []
    if "passkeys" in kinds:
        items += its.passkey_items(rng, rng.randint(2, few))
    if "needles" in kinds:
        items += its.needle_items(rng, rng.randint(1, few), n_digits=rng.randint(4, 8))
    if "kv" in kinds:
        pairs = its.kv_pairs(rng, rng.randint(1, few), rng.choice((4, 6, 8, 8, 12, 16)),
                             rng.choice((4, 6, 8, 8, 12)))
        for key, value in pairs:
            items.append(its.kv_item(rng, key, value, NEXT))
            items[-1].unit.append(QUOTE)
    if "entries" in kinds:
        for key in its.random_keys(rng, rng.randint(2, 2 * few)):
            items.append(its.two_stage_item(rng, key, rng.choice(VOCAB.words("color")),
                                            rng.random() < 0.2))
    if "single" in kinds:
        items += its.passkey_items(rng, 1) if "passkeys" not in kinds else []
        items.append(its.number_string_item(rng))
    rng.shuffle(items)
    return items


def mixed_document(rng, length, weight=W_OTHER, topical=False):
    """Filler with items of several tasks, and questions about them.  Numbers with colours stand
    on lines between two paragraphs."""
    doc = Document()
    doc.add(intro(rng.choice(("passkeys", "kv", "needles", "two_stage", "number_string"))))
    room, question_room = length - len(doc), length * rng.uniform(0.25, 0.5)
    units, lines, asked = [], [], []
    for item in mixed_items(rng, length):
        if item.cost() <= question_room and len(item.unit) + item.cost() + 1 <= room:
            asked.append(item)
            question_room -= item.cost()
            room -= item.cost()
        elif len(item.unit) + 1 > room:
            continue
        room -= len(item.unit) + bool(item.sum)
        if item.sum:
            lines.append(item)
        else:
            units.append((item, W_OTHER, EVIDENCE if item in asked else CONTEXT))
    language = "german" if rng.random() < 0.15 else "english"
    fill_units(rng, units, room - 1, Filler(rng, topical, language), weight)
    cut = rng.randint(0, len(units)) if lines else len(units)
    doc.add_units(units[:cut])
    if lines:
        doc.add(VOCAB.newline if cut else [])
        doc.add_lines(lines, asked)
        doc.add(VOCAB.newline if cut < len(units) else [])
        doc.add_units(units[cut:])
    for item in asked:
        doc.ask(item)
    return doc


def text_document(rng, length, weight, language="english"):
    """Paragraphs of filler."""
    doc = Document()
    filler = Filler(rng, rng.random() < 0.6, language)
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


def training_kv(rng, length, mix):
    lengths = [n for n in LENGTHS if mix.get("long", True) or n in (4, 5, 6, 8)]
    if length < 512:
        lengths = [n for n in lengths if n not in (24, 36, "uuid")]
    key_length = 8 if rng.random() < mix.get("eight", 0.5) else rng.choice(lengths)
    value_length = key_length if rng.random() < 0.6 else rng.choice(lengths)
    if length >= 512 and "uuid" in mix and rng.random() < mix["uuid"]:
        key_length = value_length = "uuid"
    again = rng.random() < mix.get("again", 0.0)
    body = len(its.hex_string(rng, key_length)) + len(its.hex_string(rng, value_length))
    n_questions = max(1, int(length * rng.uniform(0.35, 0.6) / (body + (5 if again else 15))))
    return kv_document(rng, length, n_questions, key_length, value_length,
                       similar=rng.choice((0.0, 0.0, 0.3, 0.6)), again=again,
                       with_intro=rng.random() >= mix.get("no_intro", 0.0),
                       **(filler_around(rng, length) if mix.get("filler_lines") else {}))


def how_many(rng, length, per_item):
    """Items of a document, and how many of them are asked for."""
    most = max(2, min(30, (length - 20) // per_item))
    n = rng.randint(2, most) if most > 2 else 2
    return n, n if rng.random() < 0.8 else 1


PASSKEY_FORMS = (0.2, 0.5)  # how often, added up: one key, a number string; else named keys


def training_passkey(rng, length, mix):
    kind = rng.random()
    style = {"weight": mix.get("filler_weight", 0.1), "topical": rng.random() < 0.5}
    forms = mix.get("passkey_forms", PASSKEY_FORMS)
    if kind < forms[0]:
        return passkey_document(rng, length, 1, 1, **style)
    if kind < forms[1]:
        n_digits = 10 if rng.random() < 0.7 else rng.randint(5, 14)
        n_random = rng.choice(mix["n_random"]) if "n_random" in mix else None  # few: long runs
        return number_string_document(rng, length, n_digits=n_digits, n_random=n_random, **style)
    return passkey_document(rng, length, *how_many(rng, length, 52), **style)


def training_needle(rng, length, mix):
    style = {"weight": mix.get("filler_weight", 0.1), "topical": rng.random() < 0.5,
             "language": "german" if rng.random() < 0.35 else "english",
             "n_digits": 7 if rng.random() < 0.5 else rng.randint(3, 10)}
    if rng.random() < 0.2:
        return needle_document(rng, length, 1, 1, **style)
    return needle_document(rng, length, *how_many(rng, length, 50), **style)


ORDERS = ("consecutive", "runs", "runs", "random")  # of the keys of two_stage_retr


def training_two_stage(rng, length, mix):
    question_tokens = max(QUESTION_TOKENS, int(length * rng.uniform(0.35, 0.65)))
    return two_stage_document(
        rng, length, question_tokens, rng.choice(mix.get("orders", ORDERS)),
        mix.get("direct", 0.25), **(filler_around(rng, length) if mix.get("filler_lines") else {}))


def training_repeat(rng, length, mix):
    return repeat_document(rng, length, mix.get("warm_up", False))


def training_sums(rng, length, mix):
    return sums_document(rng, length, mix.get("far_sums", 0.0))


def training_mixed(rng, length, mix):
    return mixed_document(rng, length, mix.get("filler_weight", 0.1), rng.random() < 0.5)


def training_text(rng, length, mix):
    return text_document(rng, length, mix.get("text_weight", 0.3),
                         "german" if rng.random() < 0.25 else "english")


KINDS = {"repeat": training_repeat, "kv": training_kv, "passkey": training_passkey,
         "needle": training_needle, "two_stage": training_two_stage, "sums": training_sums,
         "mixed": training_mixed, "text": training_text}
