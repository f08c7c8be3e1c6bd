"""Greedy continuations of kvlab beside those of llama.cpp's library: the same GGUF file, the same prompt ids.

Prompts are stretches of a text.  At the first token that differs a prompt ends: from there on the two read different
texts.  How far apart llama.cpp's own logits of the two tokens are says how close a choice it was.  llama.cpp beside itself,
with flash attention and without, says what its own rounding does.  tests/fidelity/llama.sh installs what this needs.

Exit code 1 where the two tokens of a first difference are further apart than --gap.
"""
import argparse
import ctypes
import datetime
import os
import statistics
import subprocess
import sys

import llama_cpp
import numpy as np


def kvlab(*arguments, text=None):
    done = subprocess.run([os.environ["KVLAB"], *arguments], input=text, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"llama: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout


def prompts_of(model, text, n, length):
    """n stretches of `length` tokens, evenly over the text, each from the start of a line on."""
    prompts = []
    for i in range(n):
        at = text.index("\n", len(text) * (2 * i + 1) // (2 * n)) + 1
        ids = kvlab("tokenize", "--model", model, "--ids", "--bos", "-", text=text[at:at + 16 * length]).split()
        prompts.append([int(x) for x in ids[:length]])
    return prompts


class Peer:
    def __init__(self, model, n_ctx, flash, threads):
        how = llama_cpp.llama_context_default_params()
        how.n_ctx = how.n_batch = n_ctx
        how.n_threads = how.n_threads_batch = threads
        how.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED if flash else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self.context = llama_cpp.llama_init_from_model(model, how)
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def logits(self, ids):
        tokens = (llama_cpp.llama_token * len(ids))(*ids)  # a batch points to them
        if llama_cpp.llama_decode(self.context, llama_cpp.llama_batch_get_one(tokens, len(ids))):
            sys.exit("llama: llama_decode failed")
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, -1), (self.n_vocab,))

    def greedy(self, prompt, n):
        """n tokens, and for each a function: how far below it another token was."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        ids, rows = [], []
        for _ in range(n):
            rows.append(self.logits(ids[-1:] or prompt).copy())
            ids.append(int(rows[-1].argmax()))
        return ids, lambda at, other: float(rows[at][ids[at]] - rows[at][other])


def compare(reference, others):
    """Where each first differs (None: nowhere), and how far apart its token was in the reference."""
    at, gaps = [], []
    for (ids, gap), other in zip(reference, others):
        first = next((i for i, pair in enumerate(zip(ids, other)) if pair[0] != pair[1]), None)
        at.append(first)
        if first is not None:
            gaps.append(gap(first, other[first]))
    return at, gaps


def row_of(name, what, at, gaps):
    apart = [x for x in at if x is not None]
    return [name, what, len(at), len(at) - len(apart), f"{statistics.median(apart):.0f}" if apart else "-",
            f"{statistics.median(gaps):.3f}" if gaps else "-", f"{max(gaps):.3f}" if gaps else "-"]


def rows_of(path, text, a):
    name = os.path.basename(path)
    prompts = prompts_of(path, text, a.prompts, a.length)
    model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
    if not model:
        sys.exit(f"llama: {path}: llama.cpp cannot load it")
    peers = [Peer(model, a.length + a.tokens + 8, flash, a.threads) for flash in (True, False)]
    reference = [peers[0].greedy(p, a.tokens) for p in prompts]
    other = [peers[1].greedy(p, a.tokens)[0] for p in prompts]
    rows, worst = [], 0
    for act in ("q8", "q16"):
        ours = [[int(x) for x in kvlab("generate", "--model", path, "--ids", ",".join(map(str, p)), "-n", str(a.tokens), "--ignore-end",
                                       "--show-ids", "--decode-act", act, "--threads", str(a.threads)).split()] for p in prompts]
        at, gaps = compare(reference, ours)
        rows.append(row_of(name, f"kvlab, `decode_act: {act}`", at, gaps))
        worst = max([worst, *gaps])
    rows.append(row_of(name, "llama.cpp without flash attention", *compare(reference, other)))
    for peer in peers:
        llama_cpp.llama_free(peer.context)
    llama_cpp.llama_model_free(model)
    return rows, worst


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", action="append", required=True, help="a GGUF file, again for more")
    p.add_argument("--text", required=True)
    p.add_argument("--prompts", type=int, default=20)
    p.add_argument("--length", type=int, default=64, help="tokens of a prompt")
    p.add_argument("--tokens", type=int, default=64, help="of its continuation")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--gap", type=float, default=0.6, help="logits that tokens of a first difference may be apart")
    a = p.parse_args()
    quiet = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    with open(a.text, encoding="utf-8") as f:
        text = f.read()
    rows, worst = [], 0
    for path in a.model:
        more, gap = rows_of(path, text, a)
        rows += more
        worst = max(worst, gap)
    version = kvlab("--version").strip()
    print(f"{datetime.date.today()}: {version}; llama-cpp-python {llama_cpp.__version__}. {a.prompts} prompts of {a.length} tokens of prose, "
          f"{a.tokens} tokens\neach, f16 keys and values, {a.threads} thread(s). Tokens count from 0.\n")
    print("| model | beside llama.cpp with flash attention | prompts | all tokens the same | first other token at (median) | "
          "logits apart there (median) | most |\n|---|---|---:|---:|---:|---:|---:|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    return 1 if worst > a.gap else 0


sys.exit(main())
