"""Words, filler and items of the texts, as dense token ids.

An item is something to remember: a unit of the context, with a question about it and its answer.
"""
import math
import random

import wording
from tokenizer import Tokenizer

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
        self.languages = wording.load()
        self.newline, self.space = self.ids("\n"), self.ids(" ")[0]
        self.digit = {c: self.ids(c)[0] for c in HEX + "-"}
        self.word_ids = {self.ids(" " + word)[0] for word in self.tokenizer.words}
        self.all_words = sorted(self.word_ids)
        # The same word at the start of a line, where no space precedes it.
        self._line_start = {self.ids(" " + word)[0]: self.ids(word)[0]
                            for word in self.tokenizer.line_starts}
        self._line_start[self.ids(' "')[0]] = self.ids('"')[0]
        self.printable = [i for i, full in enumerate(self.full_ids) if full > 2]
        self.fillers = {name: FillerTables(self, language)
                        for name, language in self.languages.items()}

    def ids(self, text):
        return [self._dense[i] for i in self.tokenizer.encode(text)]

    def text(self, ids):
        return self.tokenizer.decode([self.full_ids[i] for i in ids])

    def phrase(self, name, language="english", /, **fields):
        """The text of a wording with its fields filled in."""
        text = self.languages[language].phrases[name]
        for field, value in fields.items():
            text = text.replace("{%s}" % field, str(value))
        return text

    def words(self, group):
        return self.languages["english"].words[group]

    def at_line_start(self, ids):
        if ids[0] == self.space:
            return ids[1:]
        return [self._line_start.get(ids[0], ids[0])] + ids[1:]


class FillerTables:
    """Sentences of a language as lists of token ids and word classes, and ids of the words."""

    def __init__(self, vocabulary, language):
        self.weights = [weight for weight, _ in language.sentences]
        self.slots = [self._slots(vocabulary, text) for _, text in language.sentences]
        self.words = {group: [vocabulary.ids(" " + word)[0] for word in members]
                      for group, members in language.words.items()}
        self.used = sorted({slot for slots in self.slots for slot in slots
                            if isinstance(slot, str)})

    @staticmethod
    def _slots(vocabulary, text):
        slots = []
        for part in (" " + text).replace("{", "\0{").replace("}", "}\0").split("\0"):
            if part.startswith("{"):
                slots.append(part[1:-1])
            else:
                slots += vocabulary.ids(part.rstrip(" "))
        return slots


VOCAB = Vocabulary()


class Filler:
    """Filler sentences.  A topic draws most words from a few, so that text has a context."""

    def __init__(self, rng, topical=False, language="english"):
        self.rng, self.tables = rng, VOCAB.fillers[language]
        self.words = dict(self.tables.words)
        if topical:
            for group in self.tables.used:
                words = self.words[group]
                n = max(2, len(words) // 9)
                self.words[group] = rng.sample(words, n) * (len(words) * 4 // n) + words

    def sentence(self):
        rng = self.rng
        slots = rng.choices(self.tables.slots, self.tables.weights)[0]
        return [rng.choice(self.words[s]) if isinstance(s, str) else s for s in slots]


class Item:
    """A unit of the context, with its question and answer (all token ids).

    `value` is where the value asked for stands in the unit: (first token, number of tokens).
    `key` are the last tokens of what identifies the value, the last one first.  The value is
    needed from token `reads` of the answer on.  `weights` are the loss weights of the answer.
    `sum` are the digits that the question makes one compute and `operands` those that it adds,
    the last one first (both operands with four digits, or spaces before those there are).

    For parts of lists: `ordinal` counts the values of one key from 1 (0: not known); `asks` are
    the tokens that the token before the part has to look for, the last one first (else `key`).
    No layer before `first_layer` can know which value it is.
    """

    ordinal, asks, first_layer = 0, None, 0

    def __init__(self, unit, question, answer, value, key, reads=0, weights=None, sum_digits=(),
                 operands=()):
        self.unit, self.question, self.answer = unit, question, answer
        self.value, self.key, self.reads = value, key, reads
        self.weights = weights or [W_ANSWER] * len(answer)
        self.sum, self.operands = list(sum_digits), list(operands)

    def cost(self):
        """Tokens of the question, with the line break before it, and of the answer."""
        return len(self.question) + len(self.answer) + 1


def any_wording(rng):
    """The suffix of one of the three wordings that every question has."""
    return rng.choice(("", "", "_2", "_3"))


def random_digits(rng, n, base):
    return "".join(HEX[int(rng.random() * base)] for _ in range(n))


def characters(text):
    return [VOCAB.digit[c] for c in text]


# ---- facts in sentences: passkey, number_string, needle ----

def fact(task, value, variant, language="english", /, **fields):
    """The item of a task whose item says {value} once or twice, and whose answer is the value."""
    before, rest = VOCAB.phrase(task + "_item", language, **fields).split("{value}", 1)
    # The tokens up to the space before the value, which is a token of its own.
    start = VOCAB.ids(" " + before)
    unit = VOCAB.ids(" " + before + value + rest.replace("{value}", value))
    question = VOCAB.ids(VOCAB.phrase(task + "_question" + variant, language, **fields))
    return Item(unit, question, VOCAB.ids(" " + value + "."), (len(start), len(value)),
                start[-3:-1][::-1] if fields else [])


def passkey_items(rng, n, variant=None, n_digits=5):
    """n = 1: the unnamed key; otherwise n keys of different names."""
    if n == 1:
        return [fact("passkey", random_digits(rng, n_digits, 10), any_variant(rng, variant))]
    return [fact("passkeys", random_digits(rng, n_digits, 10), any_variant(rng, variant), name=name)
            for name in rng.sample(VOCAB.words("name"), min(n, len(VOCAB.words("name"))))]


def any_variant(rng, variant):
    return any_wording(rng) if variant is None else variant


def digits_with_runs(rng, n=10, n_random=None):
    """n_random digits (half of them unless given) are random; each other repeats one where it stands."""
    digits = list(random_digits(rng, n - n // 2 if n_random is None else n_random, 10))
    while len(digits) < n:
        i = rng.randrange(len(digits))
        digits.insert(i, digits[i])
    return "".join(digits)


def number_string_item(rng, variant=None, n_digits=10, n_random=None):
    return fact("number_string", digits_with_runs(rng, n_digits, n_random),
                any_variant(rng, variant))


def needle_items(rng, n, variant=None, language="english", n_digits=7):
    cities = VOCAB.words("city")
    return [fact("needle", random_digits(rng, n_digits, 10), any_variant(rng, variant), language,
                 city=city) for city in rng.sample(cities, min(n, len(cities)))]


# ---- kv_retrieval ----

def hex_string(rng, length):
    if length == "uuid":
        return "-".join(random_digits(rng, n, 16) for n in (8, 4, 4, 4, 12))
    return random_digits(rng, length, 16)


def similar_string(rng, text):
    """A string that shares most digits with text: the distractors of very long contexts."""
    cut = rng.randrange(1, len(text))
    fresh = "".join("-" if c == "-" else HEX[int(rng.random() * 16)] for c in text)
    return text[:cut] + fresh[cut:] if rng.random() < 0.5 else fresh[:cut] + text[cut:]


def with_part_of(rng, text, other):
    """text with a few digits at a place taken from any place of other: in a long context every
    three or four digits occur many times."""
    if "-" in text or "-" in other:
        return similar_string(rng, other) if len(text) == len(other) else text
    n = min(rng.randint(3, 5), len(text) - 1, len(other))
    to, source = rng.randrange(len(text) - n + 1), rng.randrange(len(other) - n + 1)
    return text[:to] + other[source:source + n] + text[to + n:]


def kv_pairs(rng, n, key_length=8, value_length=8, similar=0.0):
    """n pairs of different keys; with probability `similar` a key resembles an earlier one, and
    a value shares digits with another string."""
    pairs = {}
    keys = []
    while len(keys) < n:
        key, value = hex_string(rng, key_length), hex_string(rng, value_length)
        if keys and rng.random() < similar:
            key = similar_string(rng, rng.choice(keys))
        if keys and rng.random() < similar:
            other = rng.choice(keys)
            value = with_part_of(rng, value, other if rng.random() < 0.2 else pairs[other])
        if key not in pairs:
            pairs[key] = value
            keys.append(key)
    return [(key, pairs[key]) for key in keys]


QUOTE, OPEN, NEXT, COLON, COMMA, CLOSE = (
    VOCAB.ids(text)[0] for text in ('"', '{"', ' "', '":', '",', '"}'))
KV_QUESTION = {variant: [VOCAB.ids(part) for part in
                         VOCAB.phrase("kv_question" + variant).split("{key}")]
               for variant in ("", "_2", "_3")}


def kv_item(rng, key, value, before, variant=None):
    """A pair after the token `before`: an opening quote, with or without a space or brace."""
    unit = [before] + characters(key) + [COLON, NEXT] + characters(value)
    head, tail = KV_QUESTION[any_variant(rng, variant)]
    return Item(unit, head + characters(key) + tail, characters(value) + [QUOTE],
                (len(unit) - len(value), len(value)), characters(key)[::-1])


# ---- two_stage_retr ----

DIRECT_LAYER = 5  # the sum_probe asks for the sum in the layer before
FAR_KEYS = 20000  # consecutive keys from 0 to here take 150K tokens


def operand_digits(*numbers):
    """The last four digits of each number, the last one first."""
    return [VOCAB.ids(c)[0] for number in numbers for c in ("%4d" % number)[-4:][::-1]]


def two_stage_item(rng, key, color, direct=False, variant=None):
    """A line of the list, asked for by a sum.  With `direct` the answer is the color alone."""
    a = rng.randint(0, key)
    return sum_item(a, key - a, color, direct, any_variant(rng, variant))


def sum_item(a, b, color, direct, variant):
    key = a + b
    unit = VOCAB.ids(VOCAB.phrase("two_stage_item", key=key, color=color))
    name = ("two_stage_direct" if direct else "two_stage_question") + variant
    question = VOCAB.ids(VOCAB.phrase(name, a=a, b=b))
    digits = characters(str(key))[::-1]
    value, label = (len(unit) - 1, 1), digits + VOCAB.newline
    sums = {"sum_digits": digits + [VOCAB.space], "operands": operand_digits(a, b)}
    if direct:
        item = Item(unit, question, VOCAB.ids(" " + color + "."), value, label, **sums)
        item.asks, item.first_layer = [], DIRECT_LAYER
        return item
    text = VOCAB.phrase("two_stage_answer", sum=key, color=color)
    answer = VOCAB.ids(text)
    reads = len(VOCAB.ids(text[:text.rindex(" " + color)]))
    weights = [W_OTHER] * len(answer)
    for i in range(1, len(digits) + 2):  # the digits and the full stop
        weights[i] = W_ANSWER
    weights[reads] = W_ANSWER
    return Item(unit, question, answer, value, label, reads, weights, **sums)


def random_keys(rng, n):
    """Different keys in random order: n_digits or fewer each."""
    limit = max(10 ** rng.choice((2, 3, 3, 4)), 2 * n)
    return rng.sample(range(min(limit, 10000)), n)


def key_runs(rng, n, limit=None):
    """Ascending keys: a part of a long list of consecutive keys, in up to four pieces."""
    limit = limit or max(2 * n, int(10 ** rng.uniform(1.5, 3.6)))
    pieces = rng.randint(1, 4)
    keys = set()
    while len(keys) < n:
        start = rng.randrange(limit)
        if rng.random() < 0.2:
            start = 0
        keys |= set(range(start, start + (n + pieces - 1) // pieces))
    keys = sorted(keys)
    drop = len(keys) - n
    return keys[:n] if rng.random() < 0.5 else keys[drop:]


def far_keys(rng, n):
    """Keys from the range of a list of 128K tokens: a part of it, or similar ones."""
    if rng.random() < 0.6:
        return key_runs(rng, n, FAR_KEYS)
    return similar_keys(rng, n, 1000, FAR_KEYS)


def echo_keys(rng, n):
    """Keys of a list of 128K tokens that end as others do, behind other digits or none."""
    keys, wanted = set(), max(2, n // 2)  # as many as fit: most take twice the tokens that n is for
    while len(keys) < wanted:
        start, length = rng.randrange(10000), rng.choice((1, 2, 4, 8))
        for place in {start, start + 10000, start % 1000, start % 100,
                      1000 * rng.randrange(20) + start % 1000}:
            keys |= {key for key in range(place, place + length) if key < FAR_KEYS}
    keys = rng.sample(sorted(keys), wanted)
    return sorted(keys) if rng.random() < 0.7 else keys


def similar_keys(rng, n, lowest=10, limit=10000):
    """Keys that differ from one another in a digit, by one digit more or in their order; lowest:
    the smallest range that one is drawn from."""
    keys = set()
    while len(keys) < 2 * n or sum(key < limit for key in keys) < n:
        key = str(rng.randrange(int(10 ** rng.uniform(math.log10(lowest), math.log10(limit)))))
        keys.add(int(key))
        for _ in range(rng.randint(2, 8)):
            i, digit = rng.randrange(len(key)), rng.choice("0123456789")
            swapped = list(key)
            swapped[i], swapped[0] = swapped[0], swapped[i]
            keys.add(int(rng.choice((key[:i] + digit + key[i + 1:], key[:i] + key[i + 1:] or "0",
                                     key[:i] + digit + key[i:], "".join(swapped)))))
    keys = [key for key in sorted(keys) if key < limit]
    start = rng.randrange(len(keys) - n + 1)
    keys = keys[start:start + n] if rng.random() < 0.5 else rng.sample(keys, n)
    return sorted(keys) if rng.random() < 0.5 else rng.sample(keys, n)
