"""kvlab beside kvpress and transformers on a real model: the same weights, the same prompt ids.

Both programs read the weights of a GGUF file of Llama or Qwen 2 as 32-bit floats, which are written to a folder once.
Contexts are those of a task of kvlab.  Compared are logits, the positions kept of a context by every method that both
have, and answers token by token with the question behind the compressed context and within it; and kvlab with the
file's own weights against itself.  What is done is kept in a log: a run that was cut goes on.
tests/fidelity/real.sh installs what this needs.

Exit code 1 where kept positions differ and are not known to.
"""
import argparse
import hashlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import compare
import one_prefill
from floats import floats_of, transformers_model
from presses import SETTINGS, kept_of
from report import table
from sets import DIFFERENT, EQUAL, Tally, compare as compare_sets

TASK = "things:keys=8"
# Methods that evict once: what happens while decoding is then attention alone, in both programs.
ONCE = r"^(snapkv|pyramidkv|adakv|chunkkv|expected_attention|keydiff|knorm|lagkv|kvzip$|tova)"
# Methods whose sets are compared between the file's weights and their floats, too.
BLOCKS = r"^(snapkv|adakv.snapkv|expected_attention$|keydiff:block=0$|knorm|tova|kvzip$)"
LONGEST = 32  # tokens of an answer, where kvlab's all ended before the task's limit
# Presses that score a part of the context at a time: the script hears the last part's scores.
PARTS = "scores of each chunk are not heard: ties are not told from differences"
PROTOCOLS = {"after": "question_after_compress", "in": "question_in_prefill"}


class Log:
    """What is done: a line of JSON per part, with what it is of."""

    def __init__(self, path):
        self.path, self.done, self.lock = path, {}, threading.Lock()
        if os.path.exists(path):
            with open(path) as file:
                for line in filter(str.strip, file):
                    self.read(line)
            with open(path, "a") as file:
                file.write("\n")  # a run that was cut may have left half a line
        os.makedirs(os.path.dirname(path), exist_ok=True)

    def read(self, line):
        try:
            key, value = json.loads(line)
        except ValueError:
            return
        self.done[json.dumps(key)] = value

    def get(self, *key):
        return self.done.get(json.dumps(key))

    def put(self, value, *key):
        with self.lock, open(self.path, "a") as file:
            self.done[json.dumps(key)] = value
            file.write(json.dumps([key, value]) + "\n")
        return value

    def once(self, make, *key):
        found = self.get(*key)
        return found if found is not None else self.put(make(), *key)


def name_of(ids):
    return hashlib.sha1(json.dumps(ids).encode()).hexdigest()[:12]


# ---- prompts -----------------------------------------------------------------------------------------------


class Prompts:
    """Contexts of a task with their questions, as kvlab sends them."""

    def __init__(self, kvlab, model, a, log):
        self.all = log.once(lambda: self.ask(kvlab, model, a), "prompts", a.task, a.length, a.contexts, a.questions)

    @staticmethod
    def ask(kvlab, model, a):
        out, log = [], os.path.join(kvlab.work, "prompts.jsonl.zst")
        kvlab.sweep(model, a, log, "question_after_compress", ["full"], None)
        for s in samples(log):
            ids = kvlab.run("show", log, s["cell"], "--context", str(s["context"]), "--question", str(s["question"]),
                            "--ids")
            ids = [int(i) for i in re.split(r"[,\s]+", ids.strip())]
            out.append(dict(context=ids[:s["context_tok"]], question=ids[s["context_tok"]:],
                            at=[s["context"], s["question"]], gold=s["gold"]))
        return out

    def contexts(self):
        return list({tuple(p["context"]): p["context"] for p in self.all}.values())


def samples(log):
    text = subprocess.run(["zstd", "-dcq", log], stdout=subprocess.PIPE, check=True).stdout
    return [r for r in map(json.loads, text.splitlines()) if r["kind"] == "sample"]


# ---- the noise floor -----------------------------------------------------------------------------------------


def noise(kvlab, model, ids):
    """Keys and values in other types against 32-bit floats: what differs less between methods means nothing."""
    exact, rows = kvlab.logits_of(model, ids, "f32"), []
    for kv_type in ("f16", "bf16", "q8_0"):
        other = kvlab.logits_of(model, ids, kv_type)
        kl = [divergence(p, q) for p, q in zip(exact, other)]
        rows.append([kv_type, len(ids), sum(kl) / len(kl), max(kl),
                     100 * float((exact.argmax(-1) == other.argmax(-1)).mean())])
        print("%s: KL %.1e" % (kv_type, rows[-1][2]), file=sys.stderr)
    return rows


def divergence(p, q):
    """KL of the softmax of two rows of logits, in nats."""
    import numpy

    p, q = (row.astype(numpy.float64) - numpy.logaddexp.reduce(row.astype(numpy.float64)) for row in (p, q))
    return max(float((numpy.exp(p) * (p - q)).sum()), 0.0)


# ---- logits ----------------------------------------------------------------------------------------------

PIECE = 512  # tokens that transformers reads at a time: attention's scores of all at once would not fit


def logits_row(kvlab, files, theirs, ids):
    """[tokens, largest logit, then for each of kvlab's files: largest difference, same best token in %, mean KL]"""
    import torch
    from transformers import DynamicCache

    ours, cache = [kvlab.logits_of(file, ids, "f32") for file in files], DynamicCache()
    apart, alike, kl, largest = [0.0] * len(files), [0] * len(files), [0.0] * len(files), 0.0
    theirs.model.config._attn_implementation = "sdpa"
    for layer in theirs.layers:
        layer.masked_key_indices = None
    for first in range(0, len(ids), PIECE):
        with torch.no_grad():
            rows = theirs.model(torch.tensor([ids[first:first + PIECE]]), past_key_values=cache).logits[0].numpy()
        largest = max(largest, float(abs(rows).max()))
        for i, logits in enumerate(ours):
            mine = logits[first:first + len(rows)]
            apart[i] = max(apart[i], float(abs(mine - rows).max()))
            alike[i] += int((mine.argmax(-1) == rows.argmax(-1)).sum())
            kl[i] += sum(divergence(p, q) for p, q in zip(rows, mine))
    out = [len(ids), largest]
    for row in zip(apart, alike, kl):
        out += [row[0], 100 * row[1] / len(ids), row[2] / len(ids)]
    return out


# ---- positions kept --------------------------------------------------------------------------------------


def policy_of(setting, ratio):
    return setting.policy % ratio if "%s" in setting.policy else setting.policy


def kept_of_all(kvlab, path, theirs, settings, ids, ratio, log):
    """Verdicts of each setting, one prefill for all presses that allow it, as far as the log has none."""
    n_lanes, n_kv_heads = len(theirs.layers) * theirs.n_kv_heads, theirs.n_kv_heads

    def key(setting):
        return "kept", setting.policy, setting.press, name_of(ids), ratio

    def ours_of(s, n, r):
        def kept():
            return list(map(sorted, kvlab.kept(path, ids, policy_of(s, r), n, n_lanes, n_kv_heads, s.steps)))
        return list(map(set, log.once(kept, "kvlab", *key(s)[1:])))

    cases = [(s, *s.count(len(ids), ratio, n_lanes)) for s in settings if log.get(*key(s)) is None]
    cases = [(s, n, r) for s, n, r in cases if s.least <= n < len(ids)]
    with ThreadPoolExecutor(1) as pool:
        ours = {key(s): pool.submit(ours_of, s, n, r) for s, n, r in cases}
        for group in together(theirs, cases):
            if len(group) == 1:
                (s, n, r), = group
                kept, scores = theirs.kept(s, ids, r, n)
                found = [(s, kept, scores)]
            else:
                where, presses = theirs.positions(ids, "sdpa"), [s.make(theirs.kvpress, r) for s, n, r in group]
                heard = [compare.Scores(p, len(theirs.layers), n, s.scope) for p, (s, n, r) in zip(presses, group)]
                cuts = one_prefill.prefill(theirs, presses, ids)
                found = [(s, cut.kept(where, n_kv_heads, len(ids)), scores)
                         for (s, _, _), cut, scores in zip(group, cuts, heard)]
            for s, kept, scores in found:
                verdicts = compare_sets(kept, ours[key(s)].result(), scores.lanes(s), scores.cuts(),
                                        compare.grouping(s.scope, n_kv_heads), scores.chunk)
                log.put(verdicts, *key(s))
                print("%s: %d of %d sets differ" % (s.policy, sum(v == DIFFERENT for v, _ in verdicts), len(verdicts)),
                      file=sys.stderr)
    out = []
    for s in settings:
        tally = Tally()
        tally.add(log.get(*key(s)) or ())
        out.append(tally)
    return out


def together(theirs, cases):
    """Groups of cases: those that one prefill serves, and the others one by one."""
    shared = [(s, n, r) for s, n, r in cases if not s.steps and s.attention == "sdpa"
              and one_prefill.shares(s.make(theirs.kvpress, r))]
    shared = shared if len(shared) > 1 else []
    return ([shared] if shared else []) + [[case] for case in cases if case not in shared]


def blocks_differ(kvlab, files, theirs, settings, ids, ratio, log):
    """Per setting (sets, those that kvlab keeps otherwise of a file with weights in blocks than of its floats, tokens)."""
    n_lanes, rows = len(theirs.layers) * theirs.n_kv_heads, []
    for s in settings:
        n, _ = s.count(len(ids), ratio, n_lanes)[:2]
        if not re.search(BLOCKS, s.policy) or not s.least <= n < len(ids):
            continue

        def both():
            one, other = (kvlab.kept(file, ids, s.policy, n, n_lanes, theirs.n_kv_heads) for file in files)
            return [len(one), sum(a != b for a, b in zip(one, other)), sum(len(a - b) for a, b in zip(one, other)),
                    sum(map(len, one))]
        rows.append([s.policy] + log.once(both, "blocks", s.policy, name_of(ids), ratio))
    return rows


# ---- answers ---------------------------------------------------------------------------------------------


def answers(kvlab, path, theirs, prompts, a, settings, ends, log):
    """A row per setting and protocol: answers alike, right answers and seconds of both."""
    rows, budget = [], kept_of(a.length, a.ratios[-1]) + 1
    for name, protocol in PROTOCOLS.items():
        key = ["answers", [name_of(p["context"] + p["question"]) for p in prompts.all], budget, name]
        ours = log.once(lambda: kvlab_answers(kvlab, path, a, protocol, settings, budget), *key,
                        [s.policy for s in settings if s])
        for p in prompts.all:
            missing = [s for s in settings if log.get(*key, words(s), p["at"]) is None]
            if missing:
                kvpress_answers(kvlab, path, theirs, p, name, missing, budget, ends,
                                {words(s): ours[words(s)]["%d %d" % tuple(p["at"])] for s in missing},
                                lambda row, s: log.put(row, *key, words(s), p["at"]))
        for s in settings:
            one = [log.get(*key, words(s), p["at"]) for p in prompts.all]
            mine = ours[words(s)].values()
            rows.append((words(s), s.press if s else "none", name, len(one), sum(r["alike"] for r in one),
                         sum(r["mine"] for r in one), sum(r["right"] for r in one),
                         sum(m["seconds"] for m in mine) / len(one), sum(r["seconds"] for r in one) / len(one),
                         sum(r["cut"] for r in one) / len(one)))
    return rows


def words(setting):
    return setting.policy if setting else "full"


def asked(setting, n, budget, theirs):
    """(tokens of n that kvlab keeps where budget - 1 are wanted, the ratio for kvpress)"""
    return setting.count(n, 1 - (budget - 0.5) / n, len(theirs.layers) * theirs.n_kv_heads)[:2]


def kvlab_answers(kvlab, path, a, protocol, settings, budget):
    """{policy: {"context question": what it answered}}, all policies on one prefill."""
    log = os.path.join(kvlab.work, "answers.jsonl.zst")
    kvlab.sweep(path, a, log, protocol, [words(s) for s in settings], budget)
    found, out = samples(log), {}
    os.remove(log)
    # Cells stand in the order in which their policies were asked for.
    order = list(dict.fromkeys(r["cell"] for r in found))
    if len(order) != len(settings):
        compare.stop("%d cells of kvlab, want %d" % (len(order), len(settings)))
    names = dict(zip(order, [words(s) for s in settings]))
    for s in found:
        out.setdefault(names[s["cell"]], {})["%d %d" % (s["context"], s["question"])] = dict(
            ids=s["ids"], ended=s["stop"] != "length", text=s["prediction"], seconds=s["wall_ns"] / 1e9)
    return out


def kvpress_answers(kvlab, path, theirs, p, name, settings, budget, ends, ours, put):
    context, question = p["context"], p["question"]
    if name == "in":
        context, question = context + question[:-1], question[-1:]
    presses = [s.make(theirs.kvpress, asked(s, len(context), budget, theirs)[1]) if s else None for s in settings]
    cuts = one_prefill.prefill(theirs, presses, context)
    most = max((len(o["ids"]) for o in ours.values() if not o["ended"]), default=LONGEST)
    for s, cut in zip(settings, cuts):
        begin, mine = time.time(), ours[words(s)]
        said = one_prefill.greedy(theirs, cut, question, len(context), most, ends)
        put(dict(alike=said == mine["ids"], mine=p["gold"] in mine["text"], right=p["gold"] in kvlab.text(path, said),
                 seconds=time.time() - begin, cut=cut.seconds, ids=said), s)
    print("%s %s: answers of %d methods" % (name, p["at"], len(settings)), file=sys.stderr)


class Kvlab(compare.Kvlab):
    peak_kib = 0

    def run(self, *arguments):
        """As compare.Kvlab, and watches the memory of the program: what a parent is told of a child counts the parent's, too."""
        with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as wrong:
            child = subprocess.Popen([self.program, *arguments], stdout=said, stderr=wrong)
            while child.poll() is None:
                self.peak_kib = max(self.peak_kib, high_water(child.pid))
                time.sleep(0.02)
            said.seek(0)
            wrong.seek(0)
            if child.returncode:
                compare.stop("kvlab %s: exit code %d: %s" % (" ".join(a if len(a) < 99 else "..." for a in arguments),
                                                             child.returncode, wrong.read().strip()))
            return said.read()

    def logits_of(self, model, ids, kv_type):
        import numpy

        out = os.path.join(self.work, "typed.npy")
        self.run("logits", "-m", model, "--ids", ",".join(map(str, ids)), "--kv-type", kv_type, "--threads", "1",
                 "--out", out)
        values = numpy.load(out)
        os.remove(out)
        return values

    def sweep(self, model, a, log, protocol, policies, budget):
        self.run("run", "-m", model, "-t", a.task, *(word for p in policies for word in ("-P", p)), "--length",
                 str(a.length), "--contexts", str(a.contexts), "--questions", str(a.questions), "--kv-type", "f32",
                 "--threads", "1", "--jobs", "1", "--quiet", "--protocol", protocol, "--log", log,
                 *(["--budget", str(budget)] if budget else []))

    def text(self, model, ids):
        file = os.path.join(self.work, "ids")
        with open(file, "w") as out:
            out.write(" ".join(map(str, ids)))
        return self.run("tokenize", "-m", model, "--decode", file)

    def ids(self, model, file, *more):
        return [int(i) for i in self.run("tokenize", "-m", model, "--ids", *more, file).split()]

    def words(self, model):
        """What KVzipPress asks for, in kvlab's words and the model's tokens."""
        kvlab = self

        class Words(compare.Words):
            def encode(self, text, **_):
                import torch

                said = ""
                if text.startswith("\n\nRepeat"):
                    said = compare.ZIP_NEXT if "starting with" in text else compare.ZIP_FIRST
                file = os.path.join(kvlab.work, "words")
                with open(file, "w") as out:
                    out.write(said)
                return torch.tensor([kvlab.ids(model, file, "--continue") if said else []], dtype=torch.long)
        return Words


def high_water(pid):
    """KiB that a process had at most, once it runs its own program."""
    try:
        if "kvlab" not in os.readlink("/proc/%d/exe" % pid):
            return 0
        with open("/proc/%d/status" % pid) as file:
            return next((int(line.split()[1]) for line in file if line.startswith("VmHWM")), 0)
    except OSError:
        return 0


# ---- the whole -------------------------------------------------------------------------------------------


def page(a, about, logits, floor, tallies, blocks, rows, peak):
    lines = ["### %s" % os.path.basename(a.model), "",
             "%s: %s; %s. `%s`, %d contexts of %d tokens, %d questions each, of which %s go; one thread."
             % (about["day"], about["kvlab"], ", ".join(about["packages"]), a.task, a.contexts, a.length,
                a.questions, ", ".join("%g" % r for r in a.ratios)), "",
             "Logits on prose, kvlab beside transformers, which has the floats: kvlab with the same floats, and with the file's blocks.", "",
             "| tokens | largest logit | floats: apart | same best | KL, nats | blocks: apart | same best | KL, nats |",
             "|---|---|---|---|---|---|---|---|"]
    lines += ["| %d | %.1f | %.1e | %.2f %% | %.1e | %.1e | %.2f %% | %.1e |" % tuple(row) for row in logits]
    if floor:
        lines += ["", "The noise floor, kvlab with keys and values in these types against itself with 32-bit floats:", "",
                  "| type | tokens of prose | KL, nats, mean | most | same best token |", "|---|---|---|---|---|"]
        lines += ["| %s | %d | %.1e | %.1e | %.2f %% |" % tuple(row) for row in floor]
    if tallies:
        lines += ["", "Positions kept, of the floats on both sides:", "", table(tallies), ""]
    if blocks:
        lines += ["Positions that kvlab keeps of the file's blocks, and not of its floats:", "",
                  "| kvlab | sets | not the same | tokens | of |", "|---|---|---|---|---|"]
        lines += ["| `%s` | %d | %d | %d | %d |" % tuple(row) for row in blocks] + [""]
    if rows:
        lines += ["Answers at ratio %g, of the floats on both sides: *alike* token by token; right answers of both; seconds of an answer once the context is read, "
                  "kvlab's with its share of the choosing; *choosing*: what kvpress' press takes besides, for all questions of a context." % a.ratios[-1], "",
                  "| kvlab | kvpress | question | n | alike | right: kvlab | right: kvpress | s: kvlab | s: kvpress | choosing |",
                  "|---|---|---|---|---|---|---|---|---|---|"]
        lines += ["| `%s` | `%s` | %s | %d | %d | %d | %d | %.1f | %.1f | %.1f |" % row for row in rows]
        lines += ["", "Peak memory: kvlab %d MiB (all its runs), the process with transformers and kvpress %d MiB." % tuple(peak)]
    return "\n".join(lines) + "\n"


def parse():
    p = argparse.ArgumentParser(prog="tests/fidelity/real.sh", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, help="GGUF file of Llama or Qwen 2")
    p.add_argument("--text", required=True, help="a text for logits")
    p.add_argument("--task", default=TASK)
    p.add_argument("--length", type=int, default=512)
    p.add_argument("--contexts", type=int, default=2)
    p.add_argument("--questions", type=int, default=4)
    p.add_argument("--ratios", type=compare.numbers(float, 0.01, 0.99, "shares that go"), default=[0.5, 0.8])
    p.add_argument("--logits", type=lambda t: [int(n) for n in t.split(",") if n], default=[64, 512, 2048])
    p.add_argument("--noise", type=int, default=512, help="tokens of the text for the noise floor; 0: none")
    p.add_argument("--only", type=compare.pattern, default="", help="methods or presses that have this")
    p.add_argument("--no-sets", action="store_true")
    p.add_argument("--no-answers", action="store_true")
    p.add_argument("--cache", required=True, help="folder for weights as floats and the log")
    p.add_argument("--out", help="write the tables to this file of their own, too")
    p.add_argument("--check", action="store_true", help=argparse.SUPPRESS)  # the arguments, no more
    return p.parse_args()


def measure(a, kvlab, log, about):
    """The page, and what differs."""
    floats = floats_of(a.model, a.cache)
    theirs = compare.Kvpress(transformers_model(floats))
    theirs.kvpress.presses.kvzip_press.AutoTokenizer = kvlab.words(a.model)
    prose = kvlab.ids(a.model, a.text)
    logits = [log.once(lambda: logits_row(kvlab, [floats, a.model], theirs, prose[:n]), "logits", name_of(prose[:n]))
              for n in a.logits]
    floor = log.once(lambda: noise(kvlab, a.model, prose[:a.noise]), "noise", name_of(prose[:a.noise])) if a.noise else []
    prompts = Prompts(kvlab, floats, a, log)
    settings = [replace(s, known=PARTS) if s.press.startswith("ChunkPress(") else s
                for s in SETTINGS if re.search(a.only, s.policy + " " + s.press) and not s.given]
    tallies, blocks, rows = [], [], []
    if not a.no_sets:
        tallies = [(s, Tally()) for s in settings]
        for ids in prompts.contexts():
            for ratio in a.ratios:
                for (_, total), tally in zip(tallies, kept_of_all(kvlab, floats, theirs, settings, ids, ratio, log)):
                    total.merge(tally)
        blocks = blocks_differ(kvlab, [floats, a.model], theirs, settings, prompts.contexts()[0], a.ratios[-1], log)
    if not a.no_answers:
        said = re.search(r"^ends(.*)$", kvlab.run("tokenize", "-m", a.model, "--info"), re.M).group(1)
        budget = kept_of(a.length, a.ratios[-1]) + 1
        once = [s for s in settings if re.search(ONCE, s.policy) and not s.known and s.least < budget and
                all(asked(s, len(ids), budget, theirs)[0] == budget - 1 for ids in prompts.contexts())]
        rows = answers(kvlab, floats, theirs, prompts, a, [None] + once,
                       {int(i) for i in re.findall(r"(\d+) <", said)}, log)
    peak = [kvlab.peak_kib // 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024]
    peak = log.put([max(pair) for pair in zip(peak, log.get("peak") or peak)], "peak")
    return page(a, about, logits, floor, tallies, blocks, rows, peak), tallies


def scripts():
    """The scripts that the log's verdicts come from."""
    folder, sums = os.path.dirname(os.path.abspath(__file__)), hashlib.sha1()
    for name in sorted(f for f in os.listdir(folder) if f.endswith(".py")):
        with open(os.path.join(folder, name), "rb") as file:
            sums.update(file.read())
    return sums.hexdigest()


def main():
    a = parse()
    if a.check:
        return 0
    program = os.environ.get("KVLAB", "")
    if not os.access(program, os.X_OK):
        compare.stop("KVLAB=%s: no such program, want kvlab" % program, 2)
    with tempfile.TemporaryDirectory() as work:
        compare.prepare()
        kvlab = Kvlab(program, work)
        about = compare.versions(kvlab)
        source = os.stat(a.model)
        of = [about["kvlab"], about["packages"], os.path.realpath(a.model), source.st_size, int(source.st_mtime), scripts()]
        log = Log(os.path.join(a.cache, "%s-%s.jsonl" % (os.path.basename(a.model), name_of(of))))
        text, tallies = measure(a, kvlab, log, about)
    print(text)
    if a.out:
        with open(a.out, "w") as file:
            file.write(text)
    wrong = ["%s: %d of %d sets differ" % (s.policy, t.different, t.compared) for s, t in tallies
             if t.different and not s.known]
    for line in wrong:
        print("fidelity: " + line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
