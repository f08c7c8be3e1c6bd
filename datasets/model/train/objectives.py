"""Losses besides the prediction of the next token.  All are used in training only."""
import bisect

import torch
import torch.nn.functional as F

from batches import LOCAL
from tasks import EVIDENCE, VOCAB

PROBE_ROWS, KEY_ROWS, SUM_ROWS, SPAN_QUESTIONS = 192, 256, 128, 48
QUERY_ROWS, QUERY_TOKENS = 256, 5
SUM_TOKENS = 5  # digits of a sum, and the space before them if there is room
OPERAND_TOKENS = 8  # four digits of two numbers
PLACE_ROWS, COUNT_MASS, LINK_MASS = 96, 0.9, 0.5
BAG_ROWS, BAG_SHORTEST = 24, 64  # rows of a text of words; tokens before the first
SPREAD_MASS = 0.8
# A word weighs as much as so many full stops ("..." has three): the words asked for in `fwe` are
# then 0.3 to 0.7 of both, where attention tells them apart best.
OWN_ROWS, OWN_WEIGHT = 128, 27.0
PICK_MASS, REST_MASS, REST_ROWS = 0.9, 0.95, 48
SINK_MASS, IDLE_ROWS = 0.5, 32
FULL_STOP = VOCAB.ids(".")[0]
SMALLEST = 1e-4  # attention below this is as bad as none


class Probe(torch.nn.Module):
    """Linear maps from a hidden state to n tokens of the text, thrown away after training."""

    def __init__(self, dim, n_tokens):
        super().__init__()
        self.n_tokens = n_tokens
        self.linear = torch.nn.Linear(dim, n_tokens * VOCAB.size, bias=False)

    def loss(self, states, targets):
        """states [row][dim], targets [row][n]; a target of -100 does not count."""
        h = F.layer_norm(states.float(), states.shape[-1:])
        with torch.autocast(h.device.type, torch.bfloat16):
            logits = self.linear(h).view(-1, VOCAB.size)
        return F.cross_entropy(logits.float(), targets.reshape(-1))

    def distribution_loss(self, states, targets):
        """states [row][dim], targets [row][token] probabilities; for a probe of one token."""
        h = F.layer_norm(states.float(), states.shape[-1:])
        return F.cross_entropy(self.linear(h), targets)


def previous_tokens_loss(probe, states, ids, rng):
    """Every state should tell which tokens 1 ... n came before its own.

    Asking an early layer for them makes the previous-token heads, and with them copying, form
    much sooner than the prediction loss alone does.
    """
    batch, t, _ = states.shape
    rows = torch.tensor([rng.randrange(batch) for _ in range(PROBE_ROWS)])
    pos = torch.tensor([rng.randrange(probe.n_tokens, t) for _ in range(PROBE_ROWS)])
    targets = torch.stack([ids[rows, pos - k] for k in range(1, probe.n_tokens + 1)], 1)
    return probe.loss(states[rows, pos], targets)


def positions(cases):
    """Batch indices and positions of tokens, (row in the batch, position, ...) each."""
    return torch.tensor([case[0] for case in cases]), torch.tensor([case[1] for case in cases])


def key_loss(probe, states, docs, rng, by_answer=False):
    """Every token of a value should tell the last tokens of the key that the value belongs to.

    Only then can a question find the whole value, not just its beginning.  By answer, short values
    count as much as long ones.
    """
    answers = [(b, answer) for b, doc in enumerate(docs) for answer in doc.answers
               if answer.key and answer.value_length]
    if not answers:
        return None
    if by_answer:
        cases = [(b, a.value_start + rng.randrange(a.value_length), a.key)
                 for b, a in rng.choices(answers, k=KEY_ROWS)]
    else:
        cases = [(b, a.value_start + j, a.key) for b, a in answers for j in range(a.value_length)]
        cases = rng.sample(cases, min(KEY_ROWS, len(cases)))
    n = probe.n_tokens
    targets = torch.tensor([(key + [-100] * n)[:n] for _, _, key in cases])
    rows, pos = positions(cases)
    return probe.loss(states[rows, pos], targets)


def query_loss(probe, states, docs, rng):
    """The token before a value is needed should tell what it has to look for: the last tokens of
    the key, and which of the values of this key is due.

    In a list this is the token after the part before, or the space after that; single answers
    fill the rows that are left.
    """
    cases = [(b, answer) for b, doc in enumerate(docs) for answer in doc.answers if answer.asks]
    if not cases:
        return None
    cases = rng.sample(cases, len(cases))
    cases.sort(key=lambda case: not (case[1].ordinal or case[1].sum))
    cases = cases[:QUERY_ROWS]
    n = probe.n_tokens - 1
    targets = torch.tensor([[ordinal_target(a)] + (a.asks + [-100] * n)[:n] for _, a in cases])
    rows, pos = question_ends(cases)
    pos = pos + torch.tensor([rng.randint(0, a.spaces) for _, a in cases])
    return probe.loss(states[rows, pos], targets)


def place_loss(probe, states, docs, rng, starts_only=False):
    """Every token of a value should tell how many values of its key stand before it.

    Only then can a question that asks for all of them find the next one.  With starts_only only
    the first token of each is asked, which has none of its own value before it to take for
    another's, and only where a key has several values.
    """
    cases = [(b, answer.value_start + j, answer) for b, doc in enumerate(docs)
             for answer in doc.answers if answer.ordinal
             for j in range(1 if starts_only else answer.value_length)]
    if starts_only:
        several = {b for b, _, answer in cases if answer.ordinal > 1}
        cases = [case for case in cases if case[0] in several]
    if not cases:
        return None
    cases = rng.sample(cases, min(KEY_ROWS, len(cases)))
    targets = torch.tensor([[ordinal_target(answer)] for _, _, answer in cases])
    rows, pos = positions(cases)
    return probe.loss(states[rows, pos], targets)


def choose_places(docs, rng):
    """Up to PLACE_ROWS lists of answers (row in the batch, [answer]): the values of a key up to
    one of them, in the order of the text."""
    cases = []
    for b, doc in enumerate(docs):
        of_key = {}
        for answer in doc.answers:
            if answer.ordinal:
                of_key.setdefault(tuple(answer.key), []).append(answer)
        for answers in of_key.values():
            if len(answers) > 1:
                answers.sort(key=lambda answer: answer.ordinal)
                cases += [(b, answers[:n + 1]) for n in range(len(answers))]
    return rng.sample(cases, min(PLACE_ROWS, len(cases)))


def value_starts(cases):
    """Batch indices and positions of the first tokens of the last values of choose_places."""
    return (torch.tensor([b for b, _ in cases]),
            torch.tensor([answers[-1].value_start for _, answers in cases]))


def shortfall(attention, share):
    """The logarithm of what attention lacks of its share; more is not rewarded."""
    return (torch.log(share) - torch.log(attention + SMALLEST)).clamp(min=0)


def count_loss(attention, cases):
    """The first token of a value should attend alike to the first token of the text and to those
    of the values before it that have the same key: what is left for the first tells how many.
    """
    return even_loss(attention, [[0] + [answer.value_start for answer in answers[:-1]]
                                 for _, answers in cases])


def share_loss(attention, cases):
    """As count_loss, but without the first token of the text: alike to itself and to the values
    before it.  These have the same key, so that equal scores come easily, while the score of the
    first token would have to fit every key.  Which of them comes first is known from the layer
    that counts; its share tells how many there are."""
    return even_loss(attention, [[answer.value_start for answer in answers]
                                 for _, answers in cases])


def even_loss(attention, wanted):
    """wanted: for each case n positions, each of which should have an n-th of COUNT_MASS of its
    attention; more is not rewarded.

    attention [case][kv][group][t] is that of these tokens; the first head is asked.
    """
    cells = [(case, position, len(some)) for case, some in enumerate(wanted) for position in some]
    case, pos, n = (torch.tensor(column) for column in zip(*cells))
    return (shortfall(attention[case, 0, 0, pos], COUNT_MASS / n) / n).sum() / len(wanted)


def choose_links(docs):
    """The links of all documents (row in the batch, position, position that it should find)."""
    return [(b, *link) for b, doc in enumerate(docs) for link in doc.links]


def link_loss(attention, links):
    """The last token of a part of a chain should attend to where the context says what follows, and
    to the first token of the text where nothing does: that the answer ends there can be seen before
    the next part has to be found.

    attention [link][kv][group][t] is that of these tokens; the last head is asked.
    """
    found = torch.tensor([target for _, _, target in links])
    share = torch.full(found.shape, LINK_MASS)
    return shortfall(attention[torch.arange(len(links)), -1, -1, found], share).mean()


def counted_words(doc, first):
    """Where a text whose words are counted has words, from position `first` on."""
    return [i for i in range(first, doc.question_start)
            if doc.ids[i] in doc.bag and doc.roles[i] == EVIDENCE] if doc.bag else []


def choose_bags(docs, rng):
    """Tokens that should know a text of words: those before each part of a list of frequent words,
    and some of the text (row in the batch, position, [position of a word before it]).  The nearest
    words are left out: in a text that looks longer they weigh less."""
    cases = []
    for b, doc in enumerate(docs):
        if not doc.bag:
            continue
        words = counted_words(doc, 0)
        text = range(BAG_SHORTEST, doc.question_start)
        for pos in [answer.start - 1 for answer in doc.answers] + rng.sample(
                text, min(BAG_ROWS, len(text))):
            cases.append((b, pos, words[:bisect.bisect_left(words, pos - LOCAL)]))
    return [case for case in cases if case[2]]


def bag_loss(probe, states, docs, bags):
    """They should tell how often which word was there before."""
    cells = [(row, docs[b].ids[i], 1 / len(words))
             for row, (b, _, words) in enumerate(bags) for i in words]
    row, token, share = (torch.tensor(column) for column in zip(*cells))
    targets = torch.zeros(len(bags), VOCAB.size).index_put((row, token), share, accumulate=True)
    rows, pos = positions(bags)
    return probe.distribution_loss(states[rows, pos], targets)


def spread_loss(attention, bags):
    """They should attend to all words of the text alike: the mean of their values tells which come
    often.

    attention [bag][kv][group][t] is that of these tokens; the last head of each kv head is asked.
    """
    cells = [(row, i, len(words)) for row, (_, _, words) in enumerate(bags) for i in words]
    row, pos, n = (torch.tensor(column) for column in zip(*cells))
    missing = shortfall(attention[row, :, -1, pos], (SPREAD_MASS / n)[:, None])
    return (missing.mean(1) / n).sum() / len(bags)


def choose_words(docs, rng):
    """Words of texts whose words are counted (row in the batch, position)."""
    cases = []
    for b, doc in enumerate(docs):
        cases += [(b, i) for i in counted_words(doc, BAG_SHORTEST)]
    return rng.sample(cases, min(OWN_ROWS, len(cases)))


def texts_of(docs, n):
    """[document][n] which tokens belong to the text whose words are counted, if it has one."""
    return torch.tensor([[i < doc.question_start and doc.roles[i] == EVIDENCE for i in range(n)]
                         for doc in docs])


def own_loss(attention, words, batch):
    """A word should attend to itself wherever it stood before, and to the full stops of the noise:
    what part of a text these are does not depend on its length, so that the ratio of both does not
    either.

    attention [word][kv][group][t] is that of these tokens; the first head is asked.
    """
    rows, pos = positions(words)
    ids, t = batch.ids[rows], torch.arange(batch.ids.shape[1])
    text = texts_of(batch.docs, len(t))[rows] & (t <= pos[:, None])
    times = torch.where(t > pos[:, None] - LOCAL, torch.zeros(()), batch.key_bias[rows]).exp()
    same = text & (ids == ids[torch.arange(len(words)), pos][:, None]) & (t < pos[:, None])
    stops = text & (ids == FULL_STOP)
    wanted = torch.stack([OWN_WEIGHT * (times * same).sum(1), (times * stops).sum(1)], 1) + SMALLEST
    wanted = wanted / wanted.sum(1, keepdim=True)
    attention = attention[:, 0, 0]
    there = torch.stack([(attention * same).sum(1), (attention * stops).sum(1)], 1)
    return (wanted * (wanted.log() - (there + SMALLEST).log())).sum(1).mean()


def choose_listings(docs):
    """Parts of lists of frequent words: (row in the batch, position before the part, positions of
    the parts before, [word that may come next])."""
    cases = []
    for b, doc in enumerate(docs):
        parts = [a.start for a in doc.answers] if doc.bag else []
        for i, start in enumerate(parts):
            word = doc.ids[start]
            rest = {doc.ids[p] for p in parts[i:]}
            cases.append((b, start - 1, parts[:i],
                          [w for w in rest if w == word or doc.bag[w] == doc.bag[word]]))
    return cases


def listed_loss(attention, listings):
    """The token before a part should attend to the parts before, all alike.

    attention [part][kv][group][t] is that of these tokens; the last head is asked.
    """
    wanted = [before for _, _, before, _ in listings]
    return even_loss(attention[:, -1:, -1:], wanted) if any(wanted) else None


def pick_loss(attention, listings, batch):
    """The token before a part should attend to the most frequent word that is not listed, or to any
    of those that are equally frequent, wherever it stands in the text.

    attention [part][kv][group][t] is that of these tokens; the first head of each kv head is asked.
    """
    text = texts_of(batch.docs, batch.ids.shape[1])
    found = torch.stack([torch.isin(batch.ids[b], torch.tensor(words)) & text[b]
                         for b, _, _, words in listings])
    mass = (attention[:, :, 0] * found[:, None]).sum(-1)
    return shortfall(mass, torch.full(mass.shape, PICK_MASS)).mean()


def ordinal_target(answer):
    return VOCAB.digit["%d" % answer.ordinal] if answer.ordinal else -100


def sum_loss(probe, states, docs, rng, what):
    """The last token of a question that adds should tell all digits of the sum, or of the operands
    (`what`: the attribute of the answer that has them), the last first."""
    cases = [(b, answer) for b, doc in enumerate(docs) for answer in doc.answers if answer.sum]
    if not cases:
        return None
    cases = rng.sample(cases, min(SUM_ROWS, len(cases)))
    n = probe.n_tokens
    targets = torch.tensor([(getattr(answer, what) + [-100] * n)[:n] for _, answer in cases])
    rows, pos = torch.tensor([b for b, _ in cases]), torch.tensor([a.start - 1 for _, a in cases])
    return probe.loss(states[rows, pos], targets)


def choose_questions(docs, rng):
    """Up to SPAN_QUESTIONS pairs (row in the batch, answer)."""
    cases = [(b, answer) for b, doc in enumerate(docs) for answer in doc.answers
             if answer.value_length]
    return rng.sample(cases, min(SPAN_QUESTIONS, len(cases)))


def question_ends(cases):
    """Batch indices and positions of the last tokens before the values are needed."""
    return (torch.tensor([b for b, _ in cases]),
            torch.tensor([answer.start + answer.reads - 1 for _, answer in cases]))


def choose_resting(docs, rng):
    """Some tokens of the texts whose words are not counted (row in the batch, position, whether it
    is a word that might be)."""
    return [(b, i, doc.ids[i] in VOCAB.word_ids) for b, doc in enumerate(docs) if not doc.bag
            for i in rng.sample(range(1, len(doc)), min(REST_ROWS, len(doc) - 1))]


def rest_loss(attention, resting, any_word):
    """All heads should attend to the first token where there is nothing to count: what they add is
    then the same however few of the other tokens a method lets them see.

    attention [token][kv][group][t] is that of these tokens.  Without any_word the first head of
    words is left out: where it counts, it cannot know yet in which texts they are counted.
    """
    missing = shortfall(attention[..., 0], torch.full(attention.shape[:3], REST_MASS))
    asked = torch.ones(missing.shape)
    if not any_word:
        asked[:, 0, 0] = torch.tensor([0.0 if word else 1.0 for _, _, word in resting])
    return (missing * asked).sum() / asked.sum()


def choose_idle(docs, rng):
    """Some words of contexts that no question needs (row in the batch, position)."""
    cases = []
    for b, doc in enumerate(docs):
        words = [i for i in range(1, doc.question_start)
                 if doc.ids[i] in VOCAB.word_ids and doc.roles[i] != EVIDENCE]
        cases += [(b, i) for i in rng.sample(words, min(IDLE_ROWS, len(words)))]
    return cases


def sink_loss(attention):
    """Idle words should leave SINK_MASS of their attention on the first token, in all heads.

    attention [token][kv][group][t] is that of these tokens.
    """
    return shortfall(attention[..., 0], torch.full(attention.shape[:3], SINK_MASS)).mean()


def span_loss(layers, seen, cases, mass):
    """The last token of a question should attend to all tokens of the value that it asks for.

    seen[i] [case][kv][group][t] is the attention of these tokens in layers[i]; asked is the mean
    over the query heads of each kv head.  Every value token is asked for its equal share of `mass`;
    more is not rewarded.  Layers are counted without those in front.
    """
    total = torch.zeros(())
    for layer, attention in zip(layers, seen):
        cells = [(case, answer.value_start + j, answer.value_length)
                 for case, (_, answer) in enumerate(cases) if layer >= answer.first_layer
                 for j in range(answer.value_length)]
        if not cells:
            continue
        case, pos, length = (torch.tensor(column) for column in zip(*cells))
        missing = shortfall(attention.mean(2)[case, :, pos], (mass / length)[:, None])
        total = total + (missing.mean(1) / length).sum()
    return total / (len(layers) * len(cases))


def still_loss(embedded, states, docs):
    """Layers that are for texts whose words are counted should leave the states of all other texts
    as they are."""
    changes = [(states[b, :len(doc)].float() - embedded[b, :len(doc)]).pow(2).mean()
               for b, doc in enumerate(docs) if not doc.bag]
    return sum(changes) / len(changes) if changes else None
