"""Training texts of the tasks that are like RULER's: niah_*, vt, cwe, fwe."""
import collections
import functools

import items as its
from items import VOCAB, W_ANSWER, W_OTHER, Filler, Item
from tasks import CONTEXT, EVIDENCE, Document, fill_units, filler_line, intro


class Told(Item):
    """A sentence of the context that tells `part`, which an answer lists."""

    def __init__(self, text, part, key):
        at = text.rindex(part)
        start = len(VOCAB.ids(" " + text[:at].rstrip(" ")))
        if part[0].isdigit() and text[at - 1] == " ":
            start += 1  # the space is a token of its own
        end = len(VOCAB.ids(" " + text[:at] + part))
        super().__init__(VOCAB.ids(" " + text), [], [], (start, end - start), key_ids(key)[::-1])
        self.part = part


class Statement(Item):
    """A sentence of a chain of keys, which an answer lists: asked for is `known`, at its end.

    The token where `known` ends is what the token before the key in the answer has to find.
    """

    def __init__(self, text, key, known):
        end = len(VOCAB.ids(" " + text[:text.rindex(known) + len(known)]))
        super().__init__(VOCAB.ids(" " + text), [], [], (end - 1, 1), VOCAB.ids(" " + key))
        self.part, self.known = key, known
        self.asks = (its.characters(known) if known.isdigit() else VOCAB.ids(" " + known))[::-1]


def key_ids(key):
    """Numbers and uuids are read character by character, words as words."""
    if key.startswith("the "):
        return VOCAB.ids(" " + key)
    return its.characters(key)


def list_question(name, variant, **fields):
    return VOCAB.ids(VOCAB.phrase(name + "_question" + variant, "english", **fields))


def answer_cost(question, parts, quote=""):
    """Tokens of a question and its answer."""
    text = ",".join(" " + quote + part + quote for part in parts)
    return len(question) + len(VOCAB.ids(text)) + 2


# ---- needles ----

def draw(rng, kind):
    """A key or value: words, a number or a uuid."""
    if kind == "words":
        return "%s %s" % (rng.choice(VOCAB.words("adj")), rng.choice(VOCAB.words("noun")))
    if kind == "numbers":
        return str(rng.randrange(10 ** 6, 10 ** 7))
    text = its.hex_string(rng, "uuid")
    return text[:14] + "4" + text[15:19] + rng.choice("89ab") + text[20:]


def draw_different(rng, n, draw_one):
    found = {}
    while len(found) < n:
        found[draw_one()] = None
    return list(found)


def quote_of(kind):
    return '"' if kind == "uuids" else ""


def needle(key, value):
    """key and value as texts; a uuid gets its quotes from the wording."""
    uuids = "".join("k" if is_key else "v" for is_key, text in ((True, key), (False, value))
                    if is_uuid(text))
    name = "niah_item" + {"": "", "k": "_uuid_key", "v": "_uuid_value", "kv": "_uuids"}[uuids]
    return Told(VOCAB.phrase(name, key=key, value=value), value, key)


def is_uuid(text):
    return len(text) == 36 and text.count("-") == 4


def niah_question(keys, n_parts, variant):
    quote = '"' if is_uuid(keys[0]) else ""
    keys = [quote + key + quote for key in keys]
    text = keys[0] if len(keys) == 1 else ", ".join(keys[:-1]) + " and " + keys[-1]
    return list_question("niahs" if n_parts > 1 else "niah", variant, key=text)


# Of eight: the layers before these find out which part of a list is due, where a key has one value
# and where it has several.
LIST_LAYER, PLACE_LAYER = 4, 5


def number_parts(told, places, first_layer):
    """Numbers the values of each key as they stand in the text."""
    counts = {}
    for key, item in sorted(told, key=lambda row: places[row[1]]):
        counts[key] = item.ordinal = counts.get(key, 0) + 1
        item.first_layer = first_layer


def niah_document(rng, length, keys, n_values, groups, value_kind, weight=W_OTHER, topical=False,
                  variant=None):
    """n_values needles for each of the keys; `groups` are the lists of keys that are asked for."""
    doc, quote = Document(), quote_of(value_kind)
    doc.add(intro("niahs" if len(keys) * n_values > 1 else "niah"))
    told = [(key, needle(key, draw(rng, value_kind))) for key in keys for _ in range(n_values)]
    asked = {key for group in groups for key in group}
    questions = [niah_question(group, len(group) * n_values, its.any_variant(rng, variant))
                 for group in groups]
    room = length - len(doc) - sum(len(item.unit) for _, item in told)
    for group, question in zip(groups, questions):
        room -= answer_cost(question, [item.part for key, item in told if key in group], quote)
    units = [(item, W_OTHER, EVIDENCE if key in asked else CONTEXT) for key, item in told]
    fill_units(rng, units, room, Filler(rng, topical), weight)
    doc.add_units(units)
    place = {item: i for i, (item, _, _) in enumerate(units) if isinstance(item, Item)}
    number_parts(told, place, PLACE_LAYER if n_values > 1 else
                 LIST_LAYER if len(groups[0]) > 1 else 0)
    for group, question in zip(groups, questions):
        doc.ask_list(question, [item for asked_key in group for item in sorted(
            (item for key, item in told if key == asked_key), key=place.get)], quote)
    return doc


def word_keys(rng, n):
    return draw_different(rng, n, lambda: "the " + draw(rng, "words"))


def niah_keys(rng, n, kind):
    return word_keys(rng, n) if kind == "words" else draw_different(
        rng, n, lambda: draw(rng, kind))


def list_key(rng, kind):
    """A key of a list that is all needles."""
    if kind == "words":
        return "the %s of %s" % (draw(rng, kind), rng.choice(VOCAB.words("city")))
    return draw(rng, kind)


def niah_list_document(rng, length, n_questions, key_kind, value_kind, before=0, variant=None):
    """The context is needles, one on a line, with up to `before` tokens of filler before them."""
    doc, quote = Document(), quote_of(value_kind)
    doc.add(intro("niah_list"))
    if before:
        doc.add(filler_line(rng, before))
    example = needle(list_key(rng, key_kind), draw(rng, value_kind))
    question = niah_question([list_key(rng, key_kind)], 1, "")
    per_question = answer_cost(question, [example.part], quote) + 1
    n = max((length - len(doc) - n_questions * per_question) // (len(example.unit) + 1), 1)
    keys = draw_different(rng, n, lambda: list_key(rng, key_kind))
    told = {key: needle(key, draw(rng, value_kind)) for key in keys}
    asked = rng.sample(keys, min(n, n_questions))
    add_lines(doc, told.values(), [told[key] for key in asked])
    for key in asked:
        doc.ask_list(niah_question([key], 1, its.any_variant(rng, variant)), [told[key]], quote)
    return doc


def add_lines(doc, told, needed):
    for i, item in enumerate(told):
        doc.add(VOCAB.newline if i else [])
        doc.add_item(item, EVIDENCE if item in needed else CONTEXT, line_start=True)


# How often, added up: a list of needles, single ones, several values of a key; else several keys.
NIAH_FORMS = (0.3, 0.5, 0.75)


def training_niah(rng, length, mix):
    value_kind = rng.choice(("numbers", "numbers", "words", "uuids" if length > 400 else "numbers"))
    key_kind = rng.choice(("words", "words", "numbers", "uuids" if length > 400 else "words"))
    style = {"weight": mix.get("filler_weight", 0.1), "topical": rng.random() < 0.5}
    most = max(1, length // (160 if "uuids" in (key_kind, value_kind) else 60))
    form, forms = rng.random(), mix.get("niah_forms", NIAH_FORMS)
    if form < forms[0]:
        return niah_list_document(rng, length, max(1, most // 2), key_kind, value_kind,
                                  rng.randrange(40))
    if form < forms[1]:
        keys = niah_keys(rng, most, key_kind)
        return niah_document(rng, length, keys, 1, [[key] for key in keys], value_kind, **style)
    if form < forms[2]:
        n_values = rng.choice([n for n in mix.get("values", (2, 3, 4, 5, 6)) if n <= most] or [2])
        keys = niah_keys(rng, max(1, most // n_values), key_kind)
        return niah_document(rng, length, keys, n_values, [[key] for key in keys], value_kind,
                             **style)
    keys = niah_keys(rng, most, key_kind)
    groups, rest = [], list(keys)
    while rest:
        n = rng.randint(2, 6)
        groups.append(rest[:n])
        rest = rest[n:]
    return niah_document(rng, length, keys, 1, groups, value_kind, **style)


# ---- vt ----

def statement(key, value, other=None):
    text = VOCAB.phrase("vt_item", key=key, other=other) if other else \
        VOCAB.phrase("vt_item_first", key=key, value=value)
    return Statement(text, key, other or value)


def in_order(units, chain):
    """Puts the items of a chain in its order, at the places that they have in a list of units."""
    places = [i for i, unit in enumerate(units) if unit[0] in chain]
    rows = {units[i][0]: units[i] for i in places}
    for i, item in zip(places, chain):
        units[i] = rows[item]


def vt_document(rng, length, hops, weight=W_OTHER, topical=False, variant=None,
                answer_weight=W_ANSWER):
    """A chain for each of `hops`, its length.  All chains are asked for."""
    doc = Document()
    doc.add(intro("vt"))
    names = VOCAB.words("name") + VOCAB.words("city")
    names = rng.sample(names, sum(hops) + len(hops))
    values = draw_different(rng, len(hops), lambda: str(rng.randrange(10 ** 4, 10 ** 5)))
    firsts = [sum(hops[:i]) + i for i in range(len(hops))]
    chains = [[statement(names[i], value, names[i - 1] if i > first else None)
               for i in range(first, first + n + 1)]
              for value, first, n in zip(values, firsts, hops)]
    questions = [list_question("vt", its.any_variant(rng, variant), value=value)
                 for value in values]
    units = [(item, W_OTHER, EVIDENCE) for chain in chains for item in chain]
    room = length - len(doc) - sum(len(item.unit) for item, _, _ in units)
    for chain, question in zip(chains, questions):
        room -= answer_cost(question, [item.part for item in chain])
    fill_units(rng, units, room, Filler(rng, topical), weight)
    for chain in chains:
        in_order(units, chain)
    doc.add_units(units)
    for chain, question in zip(chains, questions):
        doc.ask_list(question, chain, weight=answer_weight)
        parts = doc.answers[-len(chain):]
        doc.links += zip((part.start + part.length - 1 for part in parts),
                         [part.value_start for part in parts[1:]] + [0])
    return doc


def training_vt(rng, length, mix):
    most = rng.randint(1, 6 if length > 300 else 2)
    n_chains = max(1, min(62 // (most + 1), length // (30 * (most + 1)), rng.randint(1, 6)))
    hops = [rng.randint(0, most) if mix.get("any_hops") else most for _ in range(n_chains)]
    return vt_document(rng, length, hops, mix.get("filler_weight", 0.1),
                       rng.random() < 0.5, answer_weight=mix.get("vt_weight", W_ANSWER))


# ---- cwe, fwe ----

PLAIN = [word for group in ("noun", "adj", "verb", "color", "name", "city")
         for word in VOCAB.words(group)]


class Counted:
    """A word of an answer: it stands in many places, so that none is its value."""

    unit, value, key = [], (0, 0), []
    ordinal, asks, first_layer = 0, None, 0

    def __init__(self, word):
        self.part = word


def put_together(rng):
    noun = rng.choice(VOCAB.words("noun"))
    return rng.choice([word for word in VOCAB.words("noun") + VOCAB.words("color")
                       if word != noun]) + noun


def cwe_words(rng, n, together):
    """n different words, a part of them put together."""
    n_together = max(n // 2 if together else 0, n - len(PLAIN))
    return rng.sample(PLAIN, n - n_together) + draw_different(
        rng, n_together, lambda: put_together(rng))


def cwe_list(rng, n_asked, common, n_other, uncommon, together):
    """(the words of a list, the common ones in the order in which they come first)."""
    words = cwe_words(rng, n_asked + n_other, together)
    rng.shuffle(words)
    often = set(words[:n_asked])
    entries = [word for word in words for _ in range(common if word in often else uncommon)]
    rng.shuffle(entries)
    return entries, [word for word in dict.fromkeys(entries) if word in often]


def bag_document(rng, name, text, words, before=0, variant=None, weight=W_ANSWER):
    """A text of words, and the question about those that come often."""
    doc = Document()
    doc.add(intro(name))
    if before:
        doc.add(filler_line(rng, before))
    ids = VOCAB.ids(text)
    doc.add(ids, W_OTHER, EVIDENCE)
    doc.ask_list(list_question(name, its.any_variant(rng, variant), n=len(words)),
                 [Counted(word) for word in words], weight=weight)
    doc.bag = collections.Counter(i for i in ids if i in VOCAB.word_ids)
    return doc


def fitting(make, n, room, join):
    """The text of n or somewhat fewer that fits, and what is asked for."""
    while True:
        entries, words = make(n)
        text = join(entries)
        if n <= 1 or len(VOCAB.ids(text)) <= room:
            return text, words
        n = n * 9 // 10


def numbered(entries):
    return " ".join("%d. %s" % (i + 1, word) for i, word in enumerate(entries))


def training_cwe(rng, length, mix):
    room = length - 100
    n_asked = max(1, min(10, room // 60, rng.randint(1, 10)))
    common = max(2, min(30, room // (8 * n_asked), rng.randint(3, 30)))
    uncommon = rng.randint(1, max(1, min(3, common // 2)))
    together = rng.random() < 0.3
    n_other = max(1, (room // (10 if together else 6) - n_asked * common) // uncommon)
    return bag_document(rng, "cwe", *fitting(
        lambda n: cwe_list(rng, n_asked, common, n, uncommon, together), n_other, room, numbered),
        rng.randrange(20), weight=mix.get("bag_weight", W_ANSWER))


@functools.lru_cache(maxsize=64)
def zeta(alpha, terms=1000):
    """Riemann's, by a sum and the integral of the rest."""
    return sum(k ** -alpha for k in range(1, terms)) + (terms - 0.5) ** (1 - alpha) / (alpha - 1)


def fwe_list(rng, n, alpha, n_asked):
    """(the words of a text, the most frequent ones); rank 1 is noise."""
    words = ["..."] + rng.sample(PLAIN, len(PLAIN))
    times = [int(n * (k + 1) ** -alpha / zeta(alpha)) for k in range(len(words))]
    entries = [word for word, count in zip(words, times) for _ in range(count)]
    rng.shuffle(entries)
    noise = entries.index("...")  # comes first, as in fwe.c
    entries[0], entries[noise] = entries[noise], entries[0]
    while n_asked > 1 and times[n_asked] <= times[n_asked + 1]:
        n_asked -= 1
    return entries, words[1:n_asked + 1]


def training_fwe(rng, length, mix):
    alpha = rng.choice((2.0, 2.0, rng.uniform(1.4, 2.6)))
    room = length - 90
    return bag_document(rng, "fwe", *fitting(
        lambda n: fwe_list(rng, n, alpha, 3), max(20, int(room / 2.4)), room, " ".join),
        rng.randrange(20), weight=mix.get("bag_weight", W_ANSWER))


KINDS = {"niah": training_niah, "vt": training_vt, "cwe": training_cwe, "fwe": training_fwe}
