"""The kinds of training documents: python3 kinds.py prints one of each."""
import random

import items as its
import ruler
import tasks
from items import VOCAB

KINDS = {**tasks.KINDS, **ruler.KINDS}


def training_document(rng, length, mix):
    """One document by the probabilities in `mix` (see the configuration files)."""
    kind = rng.choices(list(KINDS), [mix.get(name, 0.0) for name in KINDS])[0]
    doc = KINDS[kind](rng, length, mix)
    doc.cut(length)
    return doc


def show(doc):
    print(VOCAB.text(doc.ids))
    for a in doc.answers:
        print([VOCAB.text(doc.ids[a.value_start:a.value_start + a.value_length]),
               VOCAB.text(doc.ids[a.start + a.reads:a.start + a.length])])


def check(kind, doc):
    """What training sees is what encoding the text gives; a question and what it needs are one
    group; what follows in a chain is said where the link points; the words asked for come often."""
    if kind != "repeat":
        assert VOCAB.ids(VOCAB.text(doc.ids[1:])) == doc.ids[1:], kind
    for a in doc.answers:
        group = doc.groups[a.start]
        assert group >= 0, kind
        if a.value_length:
            assert {*doc.groups[a.value_start:a.value_start + a.value_length]} == {group}, kind
    for position, target in doc.links:
        assert target == 0 or doc.ids[target] == doc.ids[position], kind
        assert target == 0 or doc.groups[target] == doc.groups[position], kind
    ends = [target for _, target in doc.links].count(0)
    assert kind != "vt" or ends == len({doc.groups[p] for p, _ in doc.links}), kind
    assert bool(doc.bag) == (kind in ("cwe", "fwe")), kind
    if kind == "fwe":
        asked = {doc.ids[a.start] for a in doc.answers}
        others = [count for word, count in doc.bag.items() if word not in asked]
        assert min(doc.bag[word] for word in asked) >= max(others, default=0), kind


def main():
    rng = random.Random(0)
    many = 3 * len(ruler.PLAIN)  # words that a list of thousands of tokens may have
    assert len({*ruler.cwe_words(rng, many, True)}) == many
    keys = its.echo_keys(rng, 400)
    assert len({*keys}) == len(keys) and len({key % 1000 for key in keys}) < 0.8 * len(keys)
    mix = {"any_hops": True, "far_sums": 0.5, "orders": [*tasks.ORDERS, "similar", "far", "echo"]}
    for kind in KINDS:
        docs = [training_document(rng, 300, {kind: 1.0, **mix}) for _ in range(40)]
        print("----", kind, len(docs[0]), "tokens")
        show(docs[0])
        for doc in docs:
            check(kind, doc)


if __name__ == "__main__":
    main()
