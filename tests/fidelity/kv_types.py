#!/usr/bin/env python3
"""kv_types.py - quantised keys and values beside llama.cpp's: the same model file, the same token ids, dense.

  tests/fidelity/kv_types.py KVLAB MODEL.gguf TEXT.txt TOKENS [TYPE...]

TYPE: f16, q8_0, q4_0, or two with a slash between, keys first; f16 comes first and is what each side's others are
compared with.  Prints rows of a Markdown table: perplexity, KL and likeliest tokens against that side's own f16, then the two
sides against each other, and how many tokens of a greedy answer are the same.

Wants numpy and the package llama-cpp-cffi (its extension _llama_cpp_cpu, in the folder $LLAMA_CPP).  Where an older C++
library lacks __cxa_call_terminate, a shared object that defines it (abort) goes into LD_PRELOAD.
"""
import os
import re
import subprocess
import sys
import tempfile

import numpy as np

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8}
GREEDY = 48


class Llama:
    """The model of a file in llama.cpp, one context at a time."""

    def __init__(self, path):
        sys.path.insert(0, os.environ["LLAMA_CPP"])
        import _llama_cpp_cpu as module

        self.lib, self.ffi = module.lib, module.ffi
        self.lib.llama_backend_init()
        params = self.lib.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = self.lib.llama_model_load_from_file(path.encode(), params)
        self.vocab = self.lib.llama_model_get_vocab(self.model)
        self.n_vocab = self.lib.llama_vocab_n_tokens(self.vocab)

    def tokens(self, text, n):
        data = text.encode()
        room = self.ffi.new("llama_token[]", len(data) + 8)
        got = self.lib.llama_tokenize(self.vocab, data, len(data), room, len(data) + 8, True, False)
        return [room[i] for i in range(got)][:n]

    def open(self, kv_type, n):
        keys, _, values = kv_type.partition("/")
        p = self.lib.llama_context_default_params()
        p.n_ctx, p.n_batch, p.n_ubatch, p.flash_attn = n, n, n, True
        p.n_threads = p.n_threads_batch = 1
        p.type_k, p.type_v = TYPES[keys], TYPES[values or keys]
        self.context = self.lib.llama_init_from_model(self.model, p)

    def close(self):
        self.lib.llama_free(self.context)

    def run(self, ids, at):
        batch = self.lib.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, at + i, 1, 1
            batch.seq_id[i][0] = 0
        assert self.lib.llama_decode(self.context, batch) == 0
        size = 4 * self.n_vocab * len(ids)
        out = np.frombuffer(self.ffi.buffer(self.lib.llama_get_logits(self.context), size), np.float32)
        self.lib.llama_batch_free(batch)
        return out.reshape(len(ids), self.n_vocab).copy()


def of_llama(llama, ids, kv_type):
    llama.open(kv_type, len(ids) + GREEDY)
    logits = llama.run(ids, 0)
    said, token = [], int(logits[-1].argmax())
    while len(said) < GREEDY:
        said.append(token)
        token = int(llama.run([token], len(ids) + len(said) - 1)[0].argmax())
    llama.close()
    return logits, said


def of_kvlab(kvlab, model, ids, kv_type):
    text = ",".join(map(str, ids))
    how = ["--model", model, "--ids", text, "--kv-type", kv_type, "--threads", "1"]
    with tempfile.TemporaryDirectory() as folder:
        out = os.path.join(folder, "x.npy")
        subprocess.run([kvlab, "logits", *how, "--out", out], check=True, stdout=subprocess.DEVNULL)
        logits = np.load(out)
    answer = subprocess.run([kvlab, "generate", *how, "--show-ids", "-n", str(GREEDY)], check=True,
                            capture_output=True, text=True).stdout
    return logits, [int(x) for x in re.findall(r"\d+", answer)][:GREEDY]


def log_softmax(logits):
    x = logits.astype(np.float64)
    x -= x.max(1, keepdims=True)
    return x - np.log(np.exp(x).sum(1, keepdims=True))


def kl(p, q):
    return (np.exp(p) * (p - q)).sum(1)[:-1].mean()


def same(p, q):
    return (p.argmax(1) == q.argmax(1))[:-1].mean()


def nll(p, ids):
    return -p[np.arange(len(ids) - 1), ids[1:]]


def prefix(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


def main():
    kvlab, model, text, n = sys.argv[1:5]
    types = sys.argv[5:] or ["f16", "q8_0", "q8_0/q4_0", "q4_0"]
    llama = Llama(model)
    ids = llama.tokens(open(text, encoding="utf-8").read()[:40 * int(n)], int(n))
    first = {}
    for kv_type in types:
        sides = [of_llama(llama, ids, kv_type), of_kvlab(kvlab, model, ids, kv_type)]
        logs = [log_softmax(s[0]) for s in sides]
        first = first or dict(enumerate(logs))
        row = [kv_type]
        for i, log in enumerate(logs):
            d = nll(log, ids) - nll(first[i], ids)
            row += [f"{np.exp(nll(log, ids).mean()):.2f}", f"{kl(first[i], log):.4f}", f"{same(first[i], log):.3f}",
                    f"{d.mean():+.3f} ± {1.96 * d.std(ddof=1) / len(d) ** 0.5:.3f}"]
        row += [f"{kl(*logs):.4f}", f"{same(*logs):.3f}", f"{prefix(sides[0][1], sides[1][1])} of {GREEDY}"]
        print("| " + " | ".join(row) + " |", flush=True)


main()
