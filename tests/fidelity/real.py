"""kvlab beside kvpress and transformers on a real model: the same weights, the same prompt ids.

The weights of a GGUF file of Llama or Qwen 2 are dequantised to 32-bit floats for transformers; kvlab reads the file.
Contexts are those of a task of kvlab.  Compared are logits, the positions kept of a context by every method that both
have, and answers token by token with the question behind the compressed context and within it.
tests/fidelity/real.sh installs what this needs.

Exit code 1 where kept positions differ and are not known to.
"""
import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time

import compare
from presses import SETTINGS, kept_of
from report import table
from sets import Tally

TASK = "things:keys=8"
# Methods that evict once: what happens while decoding is then attention alone, in both programs.
ONCE = r"^(snapkv|pyramidkv|adakv|chunkkv|expected_attention|keydiff|knorm|lagkv|kvzip|tova)"
PROTOCOLS = {"after": "question_after_compress", "in": "question_in_prefill"}
NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


# ---- the model in transformers ---------------------------------------------------------------------------


def halves(w, n_heads):
    """Rows of q and k: GGUF turns neighbours together, transformers the two halves of a head."""
    rest = w.shape[1:]
    return w.reshape(n_heads, -1, 2, *rest).swapaxes(1, 2).reshape(w.shape)


def transformers_model(path):
    import gguf
    import torch
    import transformers

    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].parts[-1].tobytes().decode()
    if arch not in ("llama", "qwen2"):
        compare.stop("%s: architecture %s, want llama or qwen2" % (path, arch), 2)
    of = {name[len(arch) + 1:]: field.parts[-1].tolist()[0] for name, field in reader.fields.items()
          if name.startswith(arch + ".") and len(field.data) == 1}
    heads, kv_heads = of["attention.head_count"], of["attention.head_count_kv"]
    weight = {}
    for t in reader.tensors:
        w = gguf.quants.dequantize(t.data, t.tensor_type)
        parts = t.name.split(".")
        if parts[0] != "blk" and parts[0] not in TOP:
            continue
        name = TOP[parts[0]] if parts[0] in TOP else "model.layers.%s.%s" % (parts[1], NAMES[parts[2]])
        if arch == "llama" and parts[-2] in ("attn_q", "attn_k"):
            w = halves(w, heads if parts[-2] == "attn_q" else kv_heads)
        weight["%s.%s" % (name, parts[-1])] = torch.tensor(w, dtype=torch.float32)
    tied = "lm_head.weight" not in weight
    config = (transformers.LlamaConfig if arch == "llama" else transformers.Qwen2Config)(
        vocab_size=weight["model.embed_tokens.weight"].shape[0], hidden_size=of["embedding_length"],
        intermediate_size=of["feed_forward_length"], num_hidden_layers=of["block_count"],
        num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=of["context_length"],
        rms_norm_eps=of["attention.layer_norm_rms_epsilon"], rope_theta=of.get("rope.freq_base", 1e4),
        tie_word_embeddings=tied, attn_implementation="sdpa")
    model = getattr(transformers, "LlamaForCausalLM" if arch == "llama" else "Qwen2ForCausalLM")(config).eval()
    missing, extra = model.load_state_dict(weight, strict=False)
    if extra or set(missing) - ({"lm_head.weight"} if tied else set()):
        compare.stop("%s: transformers misses %s, does not know %s" % (path, missing, extra), 2)
    return model


# ---- prompts -----------------------------------------------------------------------------------------------


class Prompts:
    """Contexts of a task with their questions, as kvlab sends them."""

    def __init__(self, kvlab, model, length, contexts, questions):
        self.log = os.path.join(kvlab.work, "prompts.jsonl.zst")
        kvlab.run("run", "-m", model, "-t", TASK, "-P", "full", "--length", str(length), "--contexts", str(contexts),
                  "--questions", str(questions), "--kv-type", "f32", "--threads", "1", "--jobs", "1", "--quiet",
                  "--log", self.log, "--protocol", "question_after_compress")
        self.all = []
        for s in samples(self.log):
            ids = kvlab.run("show", self.log, s["cell"], "--context", str(s["context"]), "--question",
                            str(s["question"]), "--ids")
            ids = [int(i) for i in re.split(r"[,\s]+", ids.strip())]
            self.all.append(dict(context=ids[:s["context_tok"]], question=ids[s["context_tok"]:],
                                 at=(s["context"], s["question"]), gold=s["gold"]))

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
        rows.append((kv_type, len(ids), sum(kl) / len(kl), max(kl),
                     100 * float((exact.argmax(-1) == other.argmax(-1)).mean())))
        print("%s: KL %.1e" % (kv_type, rows[-1][2]), file=sys.stderr)
    return rows


def divergence(p, q):
    """KL of the softmax of two rows of logits, in nats."""
    import numpy

    p, q = (row.astype(numpy.float64) - numpy.logaddexp.reduce(row.astype(numpy.float64)) for row in (p, q))
    return max(float((numpy.exp(p) * (p - q)).sum()), 0.0)


# ---- answers ---------------------------------------------------------------------------------------------


def greedy(theirs, press, context, question, n_new, ends):
    """What transformers answers on a cache that a press cut: the question follows in one piece."""
    import torch
    from contextlib import nullcontext
    from transformers import DynamicCache

    model, cache = theirs.model, DynamicCache()
    model.config._attn_implementation = "sdpa"
    for layer in theirs.layers:
        layer.masked_key_indices = None
    with torch.no_grad():
        with press(model) if press else nullcontext():
            model(torch.tensor([context]), past_key_values=cache)
        ids, at, said = question, len(context), []
        while len(said) < n_new:
            where = torch.arange(at, at + len(ids))[None]
            logits = model(torch.tensor([ids]), past_key_values=cache, position_ids=where).logits[0, -1]
            at += len(ids)
            ids = [int(logits.argmax())]
            if ids[0] in ends:
                break
            said += ids
    return said


def answers(kvlab, path, theirs, prompts, length, ratio, contexts, questions, settings, ends):
    """A row per setting and protocol: answers alike, right answers and seconds of both."""
    rows = []
    budget = kept_of(length, ratio) + 1
    for name, protocol in PROTOCOLS.items():
        for setting in settings:
            log = os.path.join(kvlab.work, "answers.jsonl.zst")
            begin = time.time()
            kvlab.run("run", "-m", path, "-t", TASK, "-P", setting.policy if setting else "full", "--length",
                      str(length), "--contexts", str(contexts), "--questions", str(questions), "--budget",
                      str(budget), "--kv-type", "f32", "--threads", "1", "--jobs", "1", "--quiet", "--protocol",
                      protocol, "--log", log)
            ours_s = time.time() - begin
            ours = {(s["context"], s["question"]): s for s in samples(log)}
            os.remove(log)
            alike = right = theirs_s = 0
            for p in prompts.all:
                context, question = p["context"], p["question"]
                if name == "in":
                    context, question = context + question[:-1], question[-1:]
                begin = time.time()
                ratio_here = 1 - (budget - 1 + 0.5) / len(context)
                press = setting.make(theirs.kvpress, ratio_here) if setting else None
                mine = ours[p["at"]]
                said = greedy(theirs, press, context, question, max(len(mine["ids"]), 1), ends)
                theirs_s += time.time() - begin
                alike += said[:len(mine["ids"])] == mine["ids"]
                right += mine["gold"] in kvlab.text(path, said)
            rows.append((setting.policy if setting else "full", setting.press if setting else "none", name,
                         len(prompts.all), alike, sum(s["official"] for s in ours.values()), right, ours_s, theirs_s))
            print("%-8s %s: %d of %d answers alike" % (name, rows[-1][0], alike, len(prompts.all)), file=sys.stderr)
    return rows


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


def page(a, about, logits, floor, tallies, rows, peak):
    lines = ["### %s" % os.path.basename(a.model), "",
             "%s: %s; %s. `%s`, %d contexts of %d tokens, %d questions each, of which %s go; 32-bit floats on both sides, one "
             "thread." % (about["day"], about["kvlab"], ", ".join(about["packages"]), TASK, a.contexts, a.length,
                          a.questions, ", ".join("%g" % r for r in a.ratios)), "",
             "| tokens of prose | logits apart | largest logit | same best token |", "|---|---|---|---|"]
    lines += ["| %d | %.1e | %.1f | %.2f %% |" % row for row in logits]
    lines += ["", "The noise floor, kvlab with keys and values in these types against itself with 32-bit floats:", "",
              "| type | tokens of prose | KL, nats, mean | most | same best token |", "|---|---|---|---|---|"]
    lines += ["| %s | %d | %.1e | %.1e | %.2f %% |" % row for row in floor]
    if tallies:
        lines += ["", "Positions kept, by lane:", "", table(tallies), ""]
    if rows:
        lines += ["Answers at ratio %g: *alike* token by token; right answers of both; seconds of the whole, starts included."
                  % a.ratios[-1], "",
                  "| kvlab | kvpress | question | n | alike | right: kvlab | right: kvpress | s: kvlab | s: kvpress |",
                  "|---|---|---|---|---|---|---|---|---|"]
        lines += ["| `%s` | `%s` | %s | %d | %d | %d | %d | %.0f | %.0f |" % row for row in rows]
        lines += ["", "Peak memory: kvlab %d MiB (all its runs), the process with transformers and kvpress %d MiB." % peak]
    return "\n".join(lines) + "\n"


def parse():
    p = argparse.ArgumentParser(prog="tests/fidelity/real.sh", description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", required=True, help="GGUF file of Llama or Qwen 2")
    p.add_argument("--text", required=True, help="a text for logits")
    p.add_argument("--length", type=int, default=512)
    p.add_argument("--contexts", type=int, default=2)
    p.add_argument("--questions", type=int, default=4)
    p.add_argument("--ratios", type=lambda t: [float(r) for r in t.split(",")], default=[0.5, 0.8])
    p.add_argument("--logits", type=lambda t: [int(n) for n in t.split(",")], default=[64, 512, 2048])
    p.add_argument("--noise", type=int, default=512, help="tokens of the text for the noise floor")
    p.add_argument("--only", default="", help="methods or presses that have this")
    p.add_argument("--no-answers", action="store_true")
    p.add_argument("--out", help="write the tables there, too")
    return p.parse_args()


def main():
    a = parse()
    program = os.environ.get("KVLAB", "")
    if not os.access(program, os.X_OK):
        compare.stop("KVLAB=%s: no such program, want kvlab" % program, 2)
    with tempfile.TemporaryDirectory() as work:
        compare.prepare()
        kvlab = Kvlab(program, work)
        theirs = compare.Kvpress(transformers_model(a.model))
        theirs.kvpress.presses.kvzip_press.AutoTokenizer = kvlab.words(a.model)
        about, logits, tallies, rows = compare.versions(kvlab), [], [], []
        prose = kvlab.ids(a.model, a.text)
        for n in a.logits:
            mine, other = kvlab.logits(a.model, prose[:n]), theirs.logits(prose[:n])
            logits.append((n, float(abs(mine - other).max()), float(abs(other).max()),
                           100 * float((mine.argmax(-1) == other.argmax(-1)).mean())))
            print("logits of %d tokens: %.1e apart" % logits[-1][:2], file=sys.stderr)
        floor = noise(kvlab, a.model, prose[:a.noise])
        prompts = Prompts(kvlab, a.model, a.length, a.contexts, a.questions)
        settings = [s for s in SETTINGS if re.search(a.only, s.policy + " " + s.press) and not s.given]
        for setting in settings:
            tallies.append((setting, Tally()))
            compare.compare_setting(setting, kvlab, a.model, theirs, prompts.contexts(), a.ratios, tallies[-1][1])
            print("%s: %s" % (setting.policy, tallies[-1][1].sets), file=sys.stderr)
        once = [s for s in settings if re.search(ONCE, s.policy) and not s.known]
        if not a.no_answers:
            said = re.search(r"^ends(.*)$", kvlab.run("tokenize", "-m", a.model, "--info"), re.M).group(1)
            ends = {int(i) for i in re.findall(r"(\d+) <", said)}
            rows = answers(kvlab, a.model, theirs, prompts, a.length, a.ratios[-1], a.contexts, a.questions,
                           [None] + once, ends)
    peak = kvlab.peak_kib // 1024, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    text = page(a, about, logits, floor, tallies, rows, peak)
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
