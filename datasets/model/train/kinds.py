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


if __name__ == "__main__":
    demo_rng = random.Random(0)
    for demo_kind in KINDS:
        demo = training_document(demo_rng, 300, {demo_kind: 1.0})
        print("----", demo_kind, len(demo), "answers:",
              [VOCAB.text(demo.ids[a.start:a.start + a.length]) for a in demo.answers])
        print(VOCAB.text(demo.ids))
        for a in demo.answers:
            print([VOCAB.text(demo.ids[a.value_start:a.value_start + a.value_length]),
                   VOCAB.text(demo.ids[a.start + a.reads:a.start + a.length])])
        # What training sees is what encoding the text gives.
        if demo_kind != "repeat":
            assert VOCAB.ids(VOCAB.text(demo.ids[1:])) == demo.ids[1:], demo_kind
