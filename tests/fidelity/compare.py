"""Compares kvlab's methods with kvpress' presses: positions kept, per layer and kv head.

Random Llama models, the same in both programs, read random tokens; every method that both have cuts
their caches to the same sizes.  The table says in how many sets the kept positions are the same.
Logits are compared with transformers, too.  tests/fidelity/run.sh installs what this needs.

Exit code 1 where anything differs that is not known to.
"""
import argparse
import datetime
import importlib.metadata
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import report
from one_prefill import Cut
from presses import ALL, CHUNKS, LANE, NOT_COMPARED, SETTINGS
from sets import Tally, compare

# PyramidKV numbers of 381 and 568 tokens end in a half.
LENGTHS, RATIOS = (260, 381, 568), (0.5, 0.7, 0.9)
MODELS = ("mha", "gqa", "wide", "mqa")  # of models.py, which wants NumPy
LONGEST = 8000  # the models' context
LOGITS_APART = 1e-4  # of the largest logit
ZIP_FIRST = "\n\nNow write down the whole text above once more, word for word:\n\n"  # as in repeat.c
ZIP_NEXT = "\n\nNow write down the text above once more, word for word, from here on: "


def stop(message, code=4):
    print("fidelity: " + message, file=sys.stderr)
    sys.exit(code)


# ---- kvlab ---------------------------------------------------------------------------------------------


class Kvlab:
    def __init__(self, program, work):
        self.program, self.work, self.number = program, work, itertools.count()

    def run(self, *arguments):
        run = subprocess.run([self.program, *arguments], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, encoding="utf-8")
        if run.returncode:
            stop("kvlab %s: exit code %d: %s" % (" ".join(a if len(a) < 99 else "..." for a in arguments),
                                                 run.returncode, run.stderr.strip()))
        return run.stdout

    def version(self):
        return self.run("--version").strip()

    def kept(self, model, ids, policy, n_kept, n_lanes, n_kv_heads, steps=0):
        """A set per lane; a lane that nothing left has no record.  With steps: what the last of them, which are the
        last of ids, left."""
        if "%d" in policy:
            policy %= n_kept
        more = [] if steps else ids[-1:]
        out = os.path.join(self.work, "%d.jsonl.zst" % next(self.number))
        self.run("trace", "-m", model, "--ids", ",".join(map(str, ids + more)), "--context",
                 str(len(ids) - steps), "--steps", str(max(1, steps)), "-P", policy, "--budget",
                 str(n_kept + 1 if not steps else len(ids) + 1), "--kv-type", "f32", "--threads", "1",
                 "--no-scores", "--out", out)
        text = subprocess.run(["zstd", "-dcq", out], stdout=subprocess.PIPE, check=True).stdout
        os.remove(out)
        lanes = [set(range(len(ids))) for _ in range(n_lanes)]
        for record in map(json.loads, text.splitlines()):
            if record["kind"] == "trace_keep" and record["index"] < steps:
                later = range(record["pos"] + 1, len(ids))
                lanes[record["layer"] * n_kv_heads + record["kv_head"]] = set(record["kept"]) | set(later)
        return lanes

    def logits(self, model, ids):
        import numpy

        out = os.path.join(self.work, "logits.npy")
        self.run("logits", "-m", model, "--ids", ",".join(map(str, ids)), "--kv-type", "f32",
                 "--threads", "1", "--out", out)
        values = numpy.load(out)
        os.remove(out)
        return values


# ---- kvpress -------------------------------------------------------------------------------------------


class Words:
    """In place of the tokenizer that KVzipPress loads: its requests become kvlab's."""

    chat_template = None

    @classmethod
    def from_pretrained(cls, *_, **__):
        return cls()

    def encode(self, text, **_):
        import torch
        from models import encode

        said = ""
        if text.startswith("\n\nRepeat"):
            said = ZIP_NEXT if "starting with" in text else ZIP_FIRST
        return torch.tensor([encode(said)], dtype=torch.long)


class Kvpress:
    """One model in transformers, and what presses leave of its cache."""

    def __init__(self, model):
        import kvpress

        kvpress.presses.kvzip_press.AutoTokenizer = Words
        self.kvpress, self.model = kvpress, model
        self.layers = [layer.self_attn for layer in model.model.layers]
        self.n_kv_heads = model.config.num_key_value_heads
        self.dense = {}

    def prefill(self, ids, attention, press=None):
        import torch
        from contextlib import nullcontext
        from transformers import DynamicCache

        self.model.config._attn_implementation = attention
        cache = DynamicCache()
        with torch.no_grad(), press(self.model) if press else nullcontext():
            logits = self.model(torch.tensor([ids]), past_key_values=cache).logits[0]
        return cache, logits

    def logits(self, ids):
        return self.prefill(ids, "sdpa")[1].numpy()

    def positions(self, ids, attention):
        """Per lane {bytes of a key: its position}."""
        key = attention, tuple(ids)
        if key not in self.dense:
            cache = self.prefill(ids, attention)[0]
            self.dense[key] = [rows(head) for layer in cache.layers for head in layer.keys[0]]
            if any(len(lane) != len(ids) for lane in self.dense[key]):
                stop("two positions have the same key")
        return self.dense[key]

    def kept(self, setting, ids, ratio, n_kept):
        """A set per lane, and the Scores that they come from."""
        if setting.steps:
            return self.kept_later(setting, ids, ratio if setting.by_ratio else n_kept, n_kept)
        where = self.positions(ids, setting.attention)
        press = setting.make(self.kvpress, ratio, *([self.given[setting.given][1]] if setting.given else []))
        scores = Scores(press, len(self.layers), n_kept, setting.scope)
        for layer in self.layers:
            layer.masked_key_indices = None
        cache = self.prefill(ids, setting.attention, press)[0]
        cut = Cut(cache, [layer.masked_key_indices for layer in self.layers])
        return cut.kept(where, self.n_kv_heads, len(ids)), scores

    def kept_later(self, setting, ids, what, n_kept):
        """The same of a press that cuts behind the last of ids, for the first time or behind the context, too."""
        import torch

        n = len(ids) - setting.steps
        more = [self.given[setting.given][1]] if setting.given else [n] if setting.cuts_context else []
        press = setting.make(self.kvpress, what, *more)
        if setting.masks:
            return self.masked_later(setting, ids, press)
        kept = [list(range(n)) for _ in range(len(self.layers) * self.n_kv_heads)]  # as they lie
        cutting = [press.prefilling_press, press.decoding_press] if setting.cuts_context else [press]
        scores = Scores(cutting[-1], len(self.layers), n_kept)

        def listen(compress, n_seen):
            def heard(module, hidden_states, keys, values, attentions, kwargs):
                if setting.placed:
                    everywhere = torch.arange(len(ids))[None]
                    kwargs = dict(kwargs, position_embeddings=self.model.model.rotary_emb(keys, everywhere))
                where = [rows(head) for head in keys[0]]
                out = compress(module, hidden_states, keys, values, attentions, kwargs)
                for head, left in enumerate(out[0][0]):
                    lane = module.layer_idx * self.n_kv_heads + head
                    was = kept[lane] + list(range(n_seen - (len(where[head]) - len(kept[lane])), n_seen))
                    kept[lane] = [was[where[head][key]] for key in rows(left)]
                return out
            return heard
        for one, n_seen in zip(cutting, [n, len(ids)] if setting.cuts_context else [len(ids)]):
            one.compress = listen(one.compress, n_seen)
        self.feed(setting, ids, press)
        if setting.cuts_context:  # scores are of what was left then, not of positions
            scores.by_layer = [None] * len(self.layers)
        return [set(lane) for lane in kept], scores

    def masked_later(self, setting, ids, press):
        """The same of a press that masks tokens step by step and drops none."""
        scores = Scores(press, len(self.layers), len(ids))
        self.feed(setting, ids, press)
        kept = [set(range(len(ids))) for _ in range(len(self.layers) * self.n_kv_heads)]
        for i, layer in enumerate(self.layers):
            if layer.masked_key_indices is None:
                continue
            for head, position in zip(*(part.tolist() for part in layer.masked_key_indices[1:])):
                kept[i * self.n_kv_heads + head].discard(position)
        return kept, scores

    def feed(self, setting, ids, press):
        """The context, then tokens one by one."""
        import torch
        from transformers import DynamicCache

        n, cache = len(ids) - setting.steps, DynamicCache()
        with torch.no_grad(), press(self.model):
            self.model.config._attn_implementation = setting.attention
            self.model(torch.tensor([ids[:n]]), past_key_values=cache)
            for at in range(n, len(ids)):
                self.model(torch.tensor([ids[at:at + 1]]), past_key_values=cache,
                           cache_position=torch.tensor([at]), position_ids=torch.tensor([[at]]))


def rows(head):
    return {row.tobytes(): i for i, row in enumerate(head.numpy())}


class Scores:
    """Listens to the scores of a press."""

    def __init__(self, press, n_layers, n_kept, scope=LANE):
        self.by_layer = [None] * n_layers
        self.closest = [None] * n_layers  # where a press judges in rounds
        self.n_kept = n_kept
        self.rounds = hasattr(press, "block_size")
        self.chunk = press.chunk_length if scope == CHUNKS else 1
        inner = getattr(press, "press", getattr(press, "base_press", press))
        if hasattr(inner, "score") and type(press).__name__ != "ChunkPress":  # it scores chunk by chunk
            inner.score = self.listen(inner.score)
        if hasattr(press, "compress_post"):
            self.listen_last(press)
        if hasattr(press, "compute_composite_scores"):
            self.listen_composite(press)

    def listen(self, score):
        def heard(module, *given, **named):
            out, at = score(module, *given, **named), module.layer_idx
            if not self.rounds:
                self.by_layer[at] = out[0].clone()
                return out
            ranked = out[0].sort(dim=-1, descending=True).values[:, self.n_kept - 1:self.n_kept + 1]
            largest = out[0].abs().amax(-1).tolist()
            cut = [(a - b) / most for (a, b), most in zip(ranked.tolist(), largest)]
            self.closest[at] = [min(pair) for pair in zip(cut, self.closest[at] or cut)]
            return out
        return heard

    def listen_last(self, press):
        choose = press.compress_post

        def heard(model):
            choose(model)
            self.by_layer = [score[0].clone() for score in press.score_val]
        press.compress_post = heard

    def listen_composite(self, press):
        """Where layers compete rank by rank, a token's score is that of its rank."""
        compose = press.compute_composite_scores

        def heard():
            compose()
            self.by_layer = [scores.clone() for scores in press.scores]
            for layer, by_rank in zip(self.by_layer, press.composite_scores_per_layer if press.structured else ()):
                for head in layer:
                    head[head.argsort(descending=True)] = by_rank.clone()
        press.compute_composite_scores = heard

    def lanes(self, setting):
        if any(score is None for score in self.by_layer):
            return None
        if setting.scope != CHUNKS:
            return [lane.tolist() for layer in self.by_layer for lane in layer]
        out = []
        for layer in self.by_layer:
            out += [chunk_means(layer.sum(0).tolist(), self.chunk)] * len(layer)
        return out

    def cuts(self):
        """Per lane the smallest distance of the last score that stays from the first that goes."""
        return [cut for layer in self.closest for cut in layer] if self.rounds else None


def chunk_means(scores, size):
    """Per token the mean of its chunk."""
    out = []
    for first in range(0, len(scores), size):
        chunk = scores[first:first + size]
        out += [sum(chunk) / len(chunk)] * len(chunk)
    return out


# ---- the comparison ------------------------------------------------------------------------------------


def grouping(scope, n_kv_heads):
    return {LANE: lambda lane: lane, ALL: lambda lane: 0}.get(scope, lambda lane: lane // n_kv_heads)


def compare_setting(setting, kvlab, path, theirs, contexts, ratios, tally):
    n_lanes, n_kv_heads = len(theirs.layers) * theirs.n_kv_heads, theirs.n_kv_heads
    cases = [(ids, *setting.count(len(ids), ratio, n_lanes)) for ids in contexts for ratio in ratios]
    cases = [case for case in cases if setting.least <= case[1] < len(case[0])]
    with ThreadPoolExecutor(2) as pool:  # which wait for kvlab
        policies = [setting.policy % (theirs.given[setting.given][0] if setting.given else ratio)
                    if "%s" in setting.policy else setting.policy for _, _, ratio in cases]
        ours = [pool.submit(kvlab.kept, path, ids, policy, n_kept, n_lanes, n_kv_heads, setting.steps)
                for (ids, n_kept, _), policy in zip(cases, policies)]
        for (ids, n_kept, ratio), mine in zip(cases, ours):
            kept, scores = theirs.kept(setting, ids, ratio, n_kept)
            tally.add(compare(kept, mine.result(), scores.lanes(setting), scores.cuts(),
                              grouping(setting.scope, n_kv_heads), scores.chunk))


def versions(kvlab):
    import torch
    from old_torch import is_old

    packages = ["%s %s" % (name, importlib.metadata.version(name))
                for name in ("kvpress", "transformers")]
    return dict(kvlab=kvlab.version(), packages=packages + ["torch " + torch.__version__],
                python=platform.python_version(), day=datetime.date.today().isoformat(), old=is_old())


def prepare():
    """Imports what is compared with."""
    import logging
    import old_torch

    old_torch.install()
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    old_torch.stand_in()
    import kvpress  # noqa: F401

    logging.getLogger("kvpress").setLevel(logging.ERROR)
    torch.set_num_threads(1)


def compare_model(name, arguments, program, work):
    """A tally per setting, and rows of logits, of one random model."""
    import models

    kvlab, shape, seed = Kvlab(program, work), models.SHAPES[name], MODELS.index(name)
    path = os.path.join(work, name + ".gguf")
    weight = models.weights(shape, seed)
    models.write_gguf(path, shape, weight, name)
    theirs = Kvpress(models.transformers_model(shape, weight))
    theirs.given = {"vectors": models.random_vectors(os.path.join(work, "vectors.txt"), shape, seed),
                    "gates": models.random_gates(os.path.join(work, "gates.txt"), shape, seed),
                    "maps": models.random_networks(os.path.join(work, "maps"), shape, seed),
                    "networks": models.random_networks(os.path.join(work, "networks"), shape, seed, 40)}
    contexts = [models.random_context(seed, n) for n in arguments.lengths]
    tallies, logits = [], []
    for ids in contexts:
        ours = kvlab.logits(path, ids)
        logits.append((name, len(ids), float(abs(ours - theirs.logits(ids)).max()),
                       float(abs(ours).max())))
    for setting in chosen(arguments):
        tallies.append(Tally())
        compare_setting(setting, kvlab, path, theirs, contexts, arguments.ratios, tallies[-1])
        print("%-5s %s: %s" % (name, setting.policy, tallies[-1].sets), file=sys.stderr)
    return tallies, logits


def chosen(arguments):
    return [s for s in SETTINGS if re.search(arguments.only, s.policy + " " + s.press)]


def compare_all(arguments, program, work):
    import models

    about = versions(Kvlab(program, work))
    totals, logits = [Tally() for _ in chosen(arguments)], []
    with ProcessPoolExecutor(arguments.jobs) as pool:
        folders = [tempfile.mkdtemp(dir=work) for _ in arguments.models]
        parts = [pool.submit(compare_model, name, arguments, program, folder)
                 for name, folder in zip(arguments.models, folders)]
        for part in parts:
            tallies, rows_of_logits = part.result()
            logits += rows_of_logits
            for total, tally in zip(totals, tallies):
                total.merge(tally)
    shapes = {name: models.SHAPES[name] for name in arguments.models}
    return about, shapes, list(zip(chosen(arguments), totals)), logits


def unheard():
    """Presses that neither a row nor the list of the others has; without kvpress (its own test) none."""
    try:
        import kvpress
    except ModuleNotFoundError:
        return []

    said = " ".join(s.press for s in SETTINGS)
    return [name for name in kvpress.__all__
            if name.endswith("Press") and name + "(" not in said and name not in NOT_COMPARED]


def failures(tallies, logits):
    """What differs and is not known to, a line each."""
    out = ["%s against %s: %d of %d sets differ" % (s.policy, s.press, t.different, t.compared)
           for s, t in tallies if t.different and not s.known]
    out += ["%s: kvpress has it, and no row here, nor a reason" % name for name in unheard()]
    out += ["%s against %s: nothing could be compared" % (s.policy, s.press)
            for s, t in tallies if not t.compared]
    out += ["logits of %s at %d tokens: %.2g apart" % (name, n, apart)
            for name, n, apart, largest in logits if not apart <= LOGITS_APART * largest]
    return out


# ---- arguments -----------------------------------------------------------------------------------------


def numbers(convert, least, most, what):
    def parse(text):
        try:
            out = [convert(part) for part in text.split(",")]
        except ValueError:
            out = []
        if not out or not all(least <= value <= most for value in out):
            raise argparse.ArgumentTypeError("%r: want %s from %g to %g, with commas"
                                             % (text, what, least, most))
        return out
    return parse


def pattern(text):
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError("%r: no regular expression: %s" % (text, error))
    if not any(re.search(text, s.policy + " " + s.press) for s in SETTINGS):
        raise argparse.ArgumentTypeError("%r: no method has this; tests/fidelity/run.sh --list shows them" % text)
    return text


def names(text):
    out = text.split(",")
    for name in out:
        if name not in MODELS:
            raise argparse.ArgumentTypeError("%r: want some of %s" % (name, ",".join(MODELS)))
    return out


def jobs(text):
    if not text.isdecimal() or not 1 <= int(text) <= 64:
        raise argparse.ArgumentTypeError("%r: want a number from 1 to 64" % text)
    return int(text)


class Parser(argparse.ArgumentParser):
    def error(self, message):
        stop(message + "; --help has the arguments", 2)


def parse(argv):
    p = Parser(prog="tests/fidelity/run.sh", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--only", type=pattern, default="", metavar="REGEX",
                   help="methods or presses that have this in their line of --list")
    p.add_argument("--models", type=names, default=MODELS, metavar="NAME,...",
                   help="some of the random models: " + ", ".join(MODELS))
    p.add_argument("--lengths", type=numbers(int, 64, LONGEST, "tokens"), default=LENGTHS,
                   metavar="N,...", help="tokens of the contexts (260,381,568)")
    p.add_argument("--ratios", type=numbers(float, 0.01, 0.99, "shares that go"), default=RATIOS,
                   metavar="R,...", help="kvpress' compression ratios (0.5,0.7,0.9)")
    p.add_argument("--jobs", type=jobs, default=min(len(MODELS), os.cpu_count() or 1), metavar="N",
                   help="models at the same time (one per core)")
    p.add_argument("--report", metavar="FILE.md", help="write the table there, too")
    p.add_argument("--list", action="store_true", help="list what is compared and stop")
    p.add_argument("--check", action="store_true", help=argparse.SUPPRESS)  # the arguments, no more
    return p.parse_args(argv)


def main():
    arguments = parse(sys.argv[1:])
    if arguments.list:
        for s in SETTINGS:
            print("%-62s %s" % (s.policy, s.press))
    if arguments.list or arguments.check:
        return 0
    program = os.environ.get("KVLAB", "")
    if not os.access(program, os.X_OK):
        stop("KVLAB=%s: no such program, want kvlab" % program, 2)
    with tempfile.TemporaryDirectory() as work:
        prepare()
        about, shapes, tallies, logits = compare_all(arguments, program, work)
    text = report.table(tallies)
    print(text)
    if arguments.report:
        kept = report.written_by_hand(arguments.report)
        with open(arguments.report, "w") as file:
            file.write(report.page(about, shapes, arguments.lengths, arguments.ratios, tallies, logits) + kept)
    wrong = failures(tallies, logits)
    for line in wrong:
        print("fidelity: " + line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
