"""Batches of training documents that simulate contexts far longer than themselves."""
import math

import torch

from kinds import training_document
from tasks import QUESTION

LOCAL = 16  # nearer keys than this stand for themselves only


def stretch(rng, doc, length, longest):
    """Positions and key biases that make doc look like a part of a longer context.

    The context is cut in 2 to 7 chunks with position gaps between them, up to a last position
    drawn log-uniformly from [length, longest].  The gap after a chunk stands for text like that
    chunk: each of its keys counts as if it were there (1 + gap / chunk) times, i.e. gets the
    logarithm of it as a bias of its attention score; see Batch.bias for whom.  A text whose words
    are counted gets longer evenly; plain text and repeated tokens do not.
    """
    positions, bias = [0] * length, [0.0] * length
    n = min(len(doc), doc.question_start)
    gaps = {}
    if longest > length and n > 16 and rng.random() < 0.85:
        total = int(length * math.exp(rng.random() * math.log(longest / length))) - length
        cuts = sorted(rng.sample(range(1, n), rng.randint(1, 6)))
        shares = [rng.expovariate(1) for _ in cuts]
        gaps = {cut: int(total * share / sum(shares)) for cut, share in zip(cuts, shares)}
        chunks = [(1, n, total / n)] if doc.bag else [
            (start, cut, gaps[cut] / max(cut - start, 8)) for start, cut in zip([1] + cuts, cuts)]
        for start, end, more in chunks:
            for i in range(start, end):
                if doc.roles[i] != QUESTION:
                    bias[i] = math.log(1 + more)
    position = 0
    for i in range(length):
        position += gaps.get(i, 0)
        positions[i] = position
        position += 1
    return positions, bias


class Batch:
    """Tensors [batch][length]: ids, positions, key biases, loss weights, groups (see Document);
    and the documents."""

    def __init__(self, rng, size, length, mix, longest):
        self.docs = [training_document(rng, length, mix) for _ in range(size)]
        stretched = [stretch(rng, doc, length, longest) for doc in self.docs]
        self.ids = torch.zeros(size, length, dtype=torch.long)
        self.weights = torch.zeros(size, length)
        for b, doc in enumerate(self.docs):
            self.ids[b, :len(doc)] = torch.tensor(doc.ids)
            self.weights[b, :len(doc)] = torch.tensor(doc.weights)
        self.positions = torch.tensor([p for p, _ in stretched])
        self.key_bias = torch.tensor([b for _, b in stretched])
        self.groups = torch.tensor([doc.groups + [-1] * (length - len(doc)) for doc in self.docs])

    def leave_out(self, mask):
        """The tokens of texts whose entry in mask is true need not be predicted."""
        self.weights[torch.tensor(mask)] = 0

    def bias(self):
        """The bias [batch][length][length] of every key for every row: none for what the row's own
        question needs, nor close by."""
        own = (self.groups[:, :, None] == self.groups[:, None, :]) & (self.groups >= 0)[:, :, None]
        far = torch.ones(own.shape[1:]).tril(-LOCAL)
        return self.key_bias[:, None, :] * far * ~own
