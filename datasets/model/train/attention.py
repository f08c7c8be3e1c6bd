"""Where a checkpoint attends while it answers, and what simple cache policies do to it.

Prints per layer how much attention tokens of the context pay to the first one, the attention mass
on the value asked for, the number of context tokens that hold 90 % of the mass of each head, and
the overlap with the next layer.  Then exact match under masks that act like StreamingLLM, SnapKV,
Quest and OmniKV.  They act on the context only.  The question is visible (the context is compressed
after the question was read, so the answer's tokens see the compressed context) or hidden
(compressed before the question).
"""
import argparse
import random

import torch
import torch.nn.functional as F

import model as llama
from evaluate import Context, sample, split_document
from export import load_model

SINKS, WINDOW, POOL, PAGE = 4, 32, 7, 16
SINK_ROWS, SHORTEST = 128, 512
BEHIND_FILTER = 4  # layers behind OmniKV's filter layer, which see the tokens that it chose
TASKS = ("kv8", "passkeys", "needles", "two")


class Statistics:
    """How the tokens that predict one answer attend to the context."""

    def __init__(self, context, question, answer):
        self.reads = answer.reads
        self.rows = slice(len(question) - answer.length - 1, len(question) - 1)
        self.n = context.n
        self.value = slice(answer.value_start, answer.value_start + answer.value_length)
        self.layers = []
        context.logits(torch.tensor([question]), self.visit)

    def visit(self, layer, _, scores):
        p = torch.softmax(scores, -1)[0].flatten(0, 1)[:, self.rows, :self.n]  # [head][t][n]
        ordered = p.sort(-1, descending=True).values.cumsum(-1)
        # Mass on this part of the cache only; heads that look elsewhere count their own 90 %.
        needed = (ordered < 0.9 * ordered[..., -1:]).sum(-1).float() + 1
        mass = p[..., self.value].sum(-1).mean(-1)
        # The last token before the value is needed (of the question, but in two_stage_retr of the
        # answer) against the whole value: what SnapKV needs to see.
        end = p[:, self.reads, self.value].mean(0)
        mean = p.mean((0, 1))
        self.layers.append({"best": float(mass.max()), "mean": float(mass.mean()),
                            "end": float(end.sum()), "weakest": float(end.min()),
                            "needed": needed.mean(-1), "share": mean / mean.sum()})
        return scores


def sinks(model, ids, rng):
    """Per layer and head: the mean attention that tokens of a context pay to the first one."""
    later = range(len(ids) // 16, len(ids))  # the first tokens have nothing else to look at
    pos = torch.tensor(rng.sample(later, min(SINK_ROWS, len(later))))
    rows = torch.zeros_like(pos), pos
    _, _, seen = model(torch.tensor([ids]), torch.arange(len(ids))[None],
                       rows=[(layer, rows) for layer in range(len(model.blocks))])
    return [attention[..., 0].mean(0).flatten() for attention in seen]


def print_statistics(model, task, length, n_contexts):
    rng = random.Random(11)
    n_layers = len(model.blocks)
    found = []
    for _ in range(n_contexts):
        ids, questions = split_document(sample(task, rng, length))
        context = Context(model, ids)
        for question, answer in questions[:8]:
            found.append(Statistics(context, question, answer))
    print("%s at %d tokens, %d questions" % (task, length, len(found)))
    for i, heads in enumerate(sinks(model, ids, rng)):
        print("  layer %d: on the first token, by tokens of the context, per head: %s"
              % (i, " ".join("%.2f" % mass for mass in heads)))
    for i in range(n_layers):
        layer = [s.layers[i] for s in found]
        needed = torch.stack([e["needed"] for e in layer]).mean(0)
        means = tuple(average(e[key] for e in layer) for key in ("best", "mean", "end", "weakest"))
        line = ("  layer %d: value mass best head %.2f, mean %.2f, where it is needed %.2f"
                " (weakest token %.3f); tokens for 90 %%: %s") % (
                    (i,) + means + (" ".join("%.0f" % x for x in needed),))
        if i + 1 < n_layers:
            following = [s.layers[i + 1] for s in found]
            line += "; next layer: overlap of top 64 %.2f, its mass in our top 256 %.2f" % (
                average(jaccard(a["share"], b["share"]) for a, b in zip(layer, following)),
                average(float(b["share"][a["share"].topk(256).indices].sum())
                        for a, b in zip(layer, following)))
        print(line, flush=True)


def average(values):
    values = list(values)
    return sum(values) / len(values)


def jaccard(a, b, k=64):
    a, b = (set(x.topk(k).indices.tolist()) for x in (a, b))
    return len(a & b) / len(a | b)


class Policy:
    """Masks the scores [question][kv][group][t][n + t] of rows from `first` on."""

    def __init__(self, kind, budget, first, n_prompt, n, context, hidden_votes):
        self.kind, self.budget, self.first, self.n_prompt = kind, budget, first, n_prompt
        self.n, self.context, self.hidden_votes = n, context, hidden_votes

    def __call__(self, layer, q, scores):
        old = scores[..., :self.n]
        keep = getattr(self, self.kind)(layer, q, scores)
        keep = keep.expand(old.shape).clone()
        keep[..., :self.first, :] = True
        return torch.cat((old.masked_fill(~keep, llama.MASKED), scores[..., self.n:]), -1)

    def full(self, layer, q, scores):
        return torch.ones(1, dtype=torch.bool)

    def streaming(self, layer, q, scores):
        keep = torch.zeros(self.n, dtype=torch.bool)
        keep[:SINKS] = keep[self.n - self.budget + SINKS:] = True
        return keep

    def snapkv(self, layer, q, scores):
        if self.first == 0:
            votes = self.hidden_votes[layer].clone()
        else:
            window = slice(max(0, self.n_prompt - WINDOW), self.n_prompt)
            votes = torch.softmax(scores, -1)[..., window, :self.n].sum((2, 3))
        votes = F.max_pool1d(votes, POOL, 1, POOL // 2)
        if self.first == 0:
            votes[..., -WINDOW:] = 1e9
        keep = torch.zeros(votes.shape, dtype=torch.bool)
        keep.scatter_(-1, votes.topk(self.budget, -1).indices, True)
        return keep[:, :, None, None]

    def omnikv(self, layer, q, scores):
        """Layers after the filter layer see the tokens that it attended to most."""
        filter_layer = len(self.context.keys) - 1 - BEHIND_FILTER
        if layer <= filter_layer:
            if layer == filter_layer:
                best = torch.softmax(scores, -1)[..., :self.n].mean((1, 2)).topk(self.budget, -1)
                self.kept = torch.zeros(best.values.shape[:2] + (self.n,), dtype=torch.bool)
                self.kept.scatter_(-1, best.indices, True)
            return self.full(layer, q, scores)
        return self.kept[:, None, None]

    def quest(self, layer, q, scores):
        if layer < 2:
            return self.full(layer, q, scores)
        keys = self.context.keys[layer]
        n_pages = self.n // PAGE
        pages = keys[:, :, :n_pages * PAGE].view(*keys.shape[:2], n_pages, PAGE, -1)
        high, low = pages.amax(3)[:, :, None], pages.amin(3)[:, :, None]
        bound = (q.clamp(min=0) @ high.transpose(-1, -2) + q.clamp(max=0) @ low.transpose(-1, -2))
        bound = bound.amax(2, keepdim=True)
        keep = torch.zeros(bound.shape, dtype=torch.bool)
        keep.scatter_(-1, bound.topk(self.budget // PAGE, -1).indices, True)
        keep = keep.repeat_interleave(PAGE, -1)
        return F.pad(keep, (0, self.n - n_pages * PAGE), value=True)


def hidden_votes(model, ids):
    """Per layer the attention that the last WINDOW context tokens pay: SnapKV without question."""
    context, votes = Context(model, ids[:-WINDOW]), []

    def visit(layer, _, scores):
        votes.append(torch.softmax(scores, -1).sum((2, 3)))
        return scores
    context.logits(torch.tensor([ids[-WINDOW:]]), visit)
    return votes


def print_policies(model, task, length, n_contexts, budgets):
    rng = random.Random(12)
    cases = [("full", False), ("streaming", False), ("snapkv", True), ("snapkv", False),
             ("quest", False)] + ([("omnikv", False)] if len(model.blocks) > BEHIND_FILTER else [])
    right, total = {}, 0
    for _ in range(n_contexts):
        ids, questions = split_document(sample(task, rng, length))
        context = Context(model, ids)
        votes = hidden_votes(model, ids)
        for question, answer in questions[:8]:
            total, n = total + 1, answer.length
            n_prompt = len(question) - n
            for kind, hidden in cases:
                for budget in budgets:
                    policy = Policy(kind, budget, 0 if hidden else n_prompt, n_prompt, context.n,
                                    context, votes)
                    logits = context.logits(torch.tensor([question]), policy)
                    hit = logits[0, -n - 1:-1].argmax(-1) == torch.tensor(question[-n:])
                    key = kind, hidden, budget
                    right[key] = right.get(key, 0) + bool(hit.all())
    print("%s at %d tokens, %d questions, budgets %s" % (task, length, total, budgets))
    for kind, hidden in cases:
        print("  %-9s %-7s %s" % (kind, "hidden" if hidden else "visible", " ".join(
            "%.2f" % (right[kind, hidden, budget] / total) for budget in budgets)), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", help="or a GGUF file of export.py")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--contexts", type=int, default=3)
    parser.add_argument("--budgets", default="64,128,256,512")
    parser.add_argument("--tasks", default=",".join(TASKS))
    arguments = parser.parse_args()
    if arguments.length < SHORTEST:
        raise SystemExit("--length is %d, want at least %d" % (arguments.length, SHORTEST))
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    model = load_model(arguments.checkpoint)
    model.eval()
    budgets = [int(b) for b in arguments.budgets.split(",")]
    for task in arguments.tasks.split(","):
        print_statistics(model, task, arguments.length, arguments.contexts)
        print_policies(model, task, arguments.length, arguments.contexts, budgets)


if __name__ == "__main__":
    main()
