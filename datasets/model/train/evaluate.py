"""Greedy exact match of a checkpoint at given context lengths, with full attention."""
import argparse
import copy
import math
import random

import torch
import torch.nn.functional as F

import items as its
import model as llama
import ruler
import tasks
from export import load_model
from tasks import VOCAB

CHUNK_SCORES = 1 << 20  # scores per head that are computed at once


class Context:
    """Keys and values of a context, and questions that are asked after it."""

    def __init__(self, model, ids):
        self.model, self.n = model, len(ids)
        shape = model.shape
        size = (1, shape["kv_heads"], self.n, shape["head_dim"])
        self.keys = [torch.empty(size) for _ in model.blocks]
        self.values = [torch.empty(size) for _ in model.blocks]
        ids = torch.tensor(ids)
        chunk = max(16, min(512, CHUNK_SCORES // self.n))
        for start in range(0, self.n, chunk):
            end = min(self.n, start + chunk)
            cos, sin = model.angles(torch.arange(start, end)[None])
            mask = torch.full((end - start, end), llama.MASKED).triu(start + 1)
            x = model.embed(ids[start:end])[None]
            for i, block in enumerate(model.blocks):
                q, k, v = block.project(x, cos, sin)
                self.keys[i][:, :, start:end], self.values[i][:, :, start:end] = k, v
                p = torch.softmax(q @ self.keys[i][:, :, None, :end].transpose(-1, -2) + mask, -1)
                x = block.finish(x, p @ self.values[i][:, :, None, :end])

    def logits(self, ids, visit=None):
        """Logits [question][t][vocabulary] of questions ids [question][t], each after the context.

        visit(layer, q, scores), if given, gets the queries and the scores
        [question][kv][group][t][n + t] before the softmax and returns what to use instead.
        """
        model, (_, t) = self.model, ids.shape
        cos, sin = model.angles(torch.arange(self.n, self.n + t)[None])
        mask = torch.full((t, t), llama.MASKED).triu(1)
        x = model.embed(ids)
        for i, block in enumerate(model.blocks):
            q, k, v = block.project(x, cos, sin)
            old = q @ self.keys[i][:, :, None].transpose(-1, -2)
            new = q @ k[:, :, None].transpose(-1, -2) + mask
            scores = torch.cat((old, new), -1)
            if visit:
                scores = visit(i, q, scores)
            p = torch.softmax(scores, -1)
            x = block.finish(x, p[..., :self.n] @ self.values[i][:, :, None]
                             + p[..., self.n:] @ v[:, :, None])
        return model.head(model.norm(x))


def split_document(doc):
    """The context of a document, and (ids of question and answer, answer) of its questions.

    The parts of a list are one answer, which stands where the first one does.
    """
    questions, start = [], doc.question_start
    for answer in doc.answers:
        end = answer.start + answer.length
        if answer.follows:
            ids, first = questions.pop()
            answer = copy.copy(first)
            answer.length, start = end - first.start, first.start + first.length - len(ids)
        questions.append((doc.ids[start:end], answer))
        start = end
    return doc.ids[:doc.question_start], questions


def exact_matches(model, doc):
    """(right answers, right tokens, answers, tokens) when every question follows the context."""
    ids, questions = split_document(doc)
    with torch.no_grad():
        context = Context(model, ids)
        groups = {}
        for question, answer in questions:
            groups.setdefault((len(question), answer.length), []).append(question)
        result = [0, 0, 0, 0]
        for (_, n), members in groups.items():
            members = torch.tensor(members)
            right = context.logits(members)[:, -n - 1:-1].argmax(-1) == members[:, -n:]
            result[0] += int(right.all(1).sum())
            result[1] += int(right.sum())
            result[2] += len(members)
            result[3] += right.numel()
    return result


KV_LENGTHS = {"kv8": (8, 8), "kv4": (4, 4), "kv16": (16, 16), "kv36": (36, 36),
              "uuid": ("uuid", "uuid")}
QUESTIONS = 16  # of kv_retrieval and two_stage_retr per context


def named_sample(task, rng, length, variant):
    """4 to 8 named pass keys or needles."""
    n = rng.randint(4, 8)
    if task == "passkeys":
        cost = its.passkey_items(rng, 2, variant)[0].cost()
        return tasks.passkey_document(rng, length + (n - 1) * cost, n, n, variant=variant)
    language = "german" if task == "needles_de" else "english"
    cost = its.needle_items(rng, 1, variant, language)[0].cost()
    return tasks.needle_document(rng, length + (n - 1) * cost, n, n, variant=variant,
                                 language=language)


def two_stage_sample(task, rng, length, variant):
    keys = {"two_random": "random", "two_far": "far"}.get(task, "consecutive")
    room = QUESTIONS * tasks.QUESTION_TOKENS
    return tasks.two_stage_document(rng, length - tasks.QUESTION_TOKENS + room, room, keys,
                                    task == "two_direct", variant=variant)


def kv_sample(task, rng, length, variant):
    lengths = KV_LENGTHS[task]
    pair = its.kv_pairs(rng, 1, *lengths)[0]
    cost = its.kv_item(rng, *pair, its.NEXT, variant).cost()
    return tasks.kv_document(rng, length + (QUESTIONS - 1) * cost, QUESTIONS, *lengths, before=30,
                             variant=variant)


def niah_sample(task, rng, length, variant):
    """Lists of four values, of one key or of four."""
    n_keys, n_values = {"niah_values": (1, 4), "niah_keys": (4, 1)}[task]
    keys = ruler.word_keys(rng, n_keys)
    return ruler.niah_document(rng, length, keys, n_values, [keys], "numbers", variant=variant)


SAMPLES = {
    "passkey": lambda task, rng, length, variant: tasks.passkey_document(
        rng, length, 1, 1, variant=variant),
    "number": lambda task, rng, length, variant: tasks.number_string_document(
        rng, length, variant=variant),
    "needle": lambda task, rng, length, variant: tasks.needle_document(
        rng, length, 1, 1, variant=variant),
    "passkeys": named_sample, "needles": named_sample, "needles_de": named_sample,
    "two": two_stage_sample, "two_random": two_stage_sample, "two_far": two_stage_sample,
    "two_direct": two_stage_sample,
    "mixed": lambda task, rng, length, variant: tasks.mixed_document(rng, length),
    **{task: kv_sample for task in KV_LENGTHS},
    "niah_values": niah_sample, "niah_keys": niah_sample,
    "vt": lambda task, rng, length, variant: ruler.vt_document(rng, length, [4], variant=variant),
    "cwe": lambda task, rng, length, variant: ruler.training_cwe(rng, length, {}),
    "fwe": lambda task, rng, length, variant: ruler.training_fwe(rng, length, {}),
}


def sample(task, rng, length, variant=""):
    """A document of one evaluation task whose context and one question take `length` tokens.

    variant is the wording of the questions: "", "_2" or "_3".
    """
    return SAMPLES[task](task, rng, length, variant)


def accuracy(model, task, length, n_wanted, seed=5, variant=""):
    """(exact match, token accuracy, number of answers)."""
    rng = random.Random("%s/%s/%d" % (seed, task, length))
    total = [0, 0, 0, 0]
    while total[2] < n_wanted:
        total = [a + b for a, b in zip(total, exact_matches(
            model, sample(task, rng, length, variant)))]
    return total[0] / total[2], total[1] / total[3], total[2]


def perplexity(model, length, n_texts=4):
    """Of filler text, per token."""
    rng, total = random.Random("text/%d" % length), 0.0
    for _ in range(n_texts):
        ids = torch.tensor(tasks.text_document(rng, length, 1.0).ids)[None]
        with torch.no_grad():
            states, _, _ = model(ids, torch.arange(length)[None])
            total += F.cross_entropy(model.head(states)[0, :-1], ids[0, 1:]).item()
    return math.exp(total / n_texts)


def quick_report(model, ruler_tasks=(), length=512, n=24):
    """One line for the training log."""
    model.eval()
    parts = []
    for task in ("kv8", "kv16", "passkeys", "number", "needles", "two", "two_direct", "mixed") \
            + tuple(ruler_tasks):
        exact, token, count = accuracy(model, task, length, n)
        parts.append("%s %.2f/%.2f(%d)" % (task, exact, token, count))
    model.train()
    return " ".join(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", help="or a GGUF file of export.py")
    parser.add_argument("--lengths", default="1024,4096")
    parser.add_argument("--tasks", default="passkey,passkeys,kv8")
    parser.add_argument("-n", type=int, default=40, help="answers per cell")
    parser.add_argument("--wording", type=int, default=1, choices=(1, 2, 3))
    parser.add_argument("--perplexity", action="store_true", help="of filler text as well")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    model = load_model(arguments.checkpoint)
    model.eval()
    for length in map(int, arguments.lengths.split(",")):
        if arguments.perplexity:
            print("T %6d  perplexity of filler %.2f" % (length, perplexity(model, length)))
        for task in arguments.tasks.split(","):
            exact, token, n = accuracy(model, task, length, arguments.n,
                                       variant="" if arguments.wording == 1
                                       else "_%d" % arguments.wording)
            print("T %6d  %-9s exact %.3f  token %.4f  n %d" % (length, task, exact, token, n),
                  flush=True)


if __name__ == "__main__":
    main()
