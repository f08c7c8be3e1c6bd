"""The kinds of training documents: python3 kinds.py prints one of each."""
import random

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
    """What training sees is what encoding the text gives."""
    if kind != "repeat":
        assert VOCAB.ids(VOCAB.text(doc.ids[1:])) == doc.ids[1:], kind


def main():
    rng = random.Random(0)
    for kind in KINDS:
        docs = [training_document(rng, 300, {kind: 1.0}) for _ in range(40)]
        print("----", kind, len(docs[0]), "tokens")
        show(docs[0])
        for doc in docs:
            check(kind, doc)


if __name__ == "__main__":
    main()
