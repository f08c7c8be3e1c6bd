"""Kept sets of two programs side by side: which differ, and whether ties explain it.

A lane is a kv head of a layer.  Lanes whose tokens compete for one budget form a group.
"""
EQUAL, TIES, ROUNDING, DIFFERENT = range(4)
# Scores that differ by this share of their size are equal but for rounding: two programs sum in different
# orders, and a layer passes on to the next what that leaves.
CLOSE = 1e-4
CLOSE_CUT = 1e-5  # many cuts have one that is close by chance


def explain(only_theirs, only_ours, score, cuts, size):
    """Why a group differs, from the scores of the tokens that only one program keeps.

    `size` tokens stay or go together, and each program keeps as many of these chunks as the other.

    Where tokens are judged in rounds there is no `score`, but per lane how close the rounds' cuts were.
    """
    n_theirs, n_ours = (len({(lane, token // size) for lane, token in only})
                        for only in (only_theirs, only_ours))
    if n_theirs != n_ours:
        return DIFFERENT
    if score is None:
        lanes = {lane for lane, _ in only_theirs} if cuts else ()
        return ROUNDING if lanes and all(cuts[lane] <= CLOSE_CUT for lane in lanes) else DIFFERENT
    scores = [score(token) for token in only_theirs + only_ours]
    low, high = min(scores), max(scores)
    if low == high:
        return TIES
    return ROUNDING if high - low <= CLOSE * max(abs(low), abs(high)) else DIFFERENT


def compare(theirs, ours, scores=None, cuts=None, group=lambda lane: lane, size=1):
    """Per lane (verdict, tokens that only one keeps, the larger side).

    `theirs` and `ours` hold a set of positions per lane, `scores` a list of scores per lane, `cuts` a
    distance per lane; tokens are kept in chunks of `size`.
    """
    if len(theirs) != len(ours):
        raise ValueError("%d lanes against %d" % (len(theirs), len(ours)))
    only_theirs, only_ours = {}, {}
    for lane, (a, b) in enumerate(zip(theirs, ours)):
        only_theirs.setdefault(group(lane), []).extend((lane, token) for token in sorted(a - b))
        only_ours.setdefault(group(lane), []).extend((lane, token) for token in sorted(b - a))
    score = None if scores is None else lambda token: scores[token[0]][token[1]]
    out = []
    for lane, (a, b) in enumerate(zip(theirs, ours)):
        if a == b:
            out.append((EQUAL, 0))
            continue
        at = group(lane)
        verdict = explain(only_theirs[at], only_ours[at], score, cuts, size)
        out.append((verdict, max(len(a - b), len(b - a))))
    return out


class Tally:
    """What a row of the table counts."""

    def __init__(self):
        self.sets, self.tokens = [0, 0, 0, 0], [0, 0, 0, 0]

    def add(self, verdicts):
        for verdict, n_tokens in verdicts:
            self.sets[verdict] += 1
            self.tokens[verdict] += n_tokens

    def merge(self, other):
        self.sets = [a + b for a, b in zip(self.sets, other.sets)]
        self.tokens = [a + b for a, b in zip(self.tokens, other.tokens)]

    @property
    def compared(self):
        return sum(self.sets)

    @property
    def different(self):
        return self.sets[DIFFERENT]
