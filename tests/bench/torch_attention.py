#!/usr/bin/env python3
"""torch_attention.py - what PyTorch's attention takes on a GPU, for `kvlab bench --device cuda --peer-json`.

One layer of Llama-3-8B's shape, batch 1, bf16: 32 query heads, 8 kv heads, 128 channels.  JSON lines on
standard output, one per backend, variant and depth:

  what     "decode attention": one query, all keys; "prefill attention": a chunk of queries against the
           keys before it, which is what ours takes longer at a depth than at the beginning
  variant  "enable_gqa": kv heads as they are; "repeat_kv": keys and values repeated for every query head first,
           inside the time
  seconds  median of the rounds

Backends that refuse a shape are left out, with a line on standard error.  Needs PyTorch 2.5 or newer and a
GPU; --device cpu --depths 256 only shows that it runs.
"""
import argparse
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
HEADS, KV_HEADS, DIM = 32, 8, 128


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--depths", default="16384,32768,65536,131072")
    p.add_argument("--prefill-depth", type=int, default=32768)
    p.add_argument("--chunk", type=int, default=2048)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--window", type=float, default=0.05, help="seconds of a round, at least")
    p.add_argument("--device", default="cuda")
    return p.parse_args()


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(run, a):
    """Median over rounds of the time of one run."""
    for _ in range(3):
        run()
    wait(a.device)
    rounds = []
    for _ in range(a.rounds):
        n, spent = 0, 0.0
        t0 = time.perf_counter()
        while spent < a.window:
            for _ in range(max(n, 1)):
                run()
                n += 1
            wait(a.device)
            spent = time.perf_counter() - t0
        rounds.append(spent / n)
    return statistics.median(rounds)


def tensors(n_q, n_k, a):
    def make(heads, n):
        return torch.randn(1, heads, n, DIM, dtype=torch.bfloat16, device=a.device)

    return make(HEADS, n_q), make(KV_HEADS, n_k), make(KV_HEADS, n_k)


def attend(q, k, v, variant, mask, causal):
    if variant == "enable_gqa":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True)
    k = k.repeat_interleave(HEADS // KV_HEADS, dim=1)
    v = v.repeat_interleave(HEADS // KV_HEADS, dim=1)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)


def timed(backend, variant, n_q, n_k, mask, causal, a):
    q, k, v = tensors(n_q, n_k, a)
    with sdpa_kernel(BACKENDS[backend]):
        return seconds(lambda: attend(q, k, v, variant, mask, causal), a)


def emit(what, variant, backend, depth, s, a):
    name = torch.cuda.get_device_name() if a.device == "cuda" else "cpu"
    print(json.dumps({"kind": "peer", "what": what, "variant": variant, "backend": backend, "depth_tok": depth,
                      "seconds": s, "gpu": name, "torch": torch.__version__, "cuda": torch.version.cuda}),
          flush=True)


def decode(a):
    for depth in map(int, a.depths.split(",")):
        for variant in ("enable_gqa", "repeat_kv"):
            for backend in BACKENDS:
                yield ("decode attention", variant, backend, depth,
                       lambda b=backend, w=variant, d=depth: timed(b, w, 1, d, None, False, a))


def prefill_seconds(backend, variant, a):
    """The keys before the chunk alone, which every query sees: no mask, so that flash takes it."""
    return timed(backend, variant, a.chunk, a.prefill_depth, None, False, a)


def prefill(a):
    for variant in ("enable_gqa", "repeat_kv"):
        for backend in BACKENDS:
            if backend == "math" and a.device == "cuda":
                continue  # a matrix of all scores
            yield ("prefill attention", variant, backend, a.prefill_depth,
                   lambda b=backend, w=variant: prefill_seconds(b, w, a))


def main():
    a = arguments()
    if a.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch_attention: PyTorch finds no GPU")
    with torch.inference_mode():
        for what, variant, backend, depth, run in [*decode(a), *prefill(a)]:
            try:
                s = run()
            except RuntimeError as e:
                reason = str(e).strip().splitlines()[0] if str(e).strip() else type(e).__name__
                print(f"torch_attention: {what}, {variant}, {backend}, {depth}: {reason}", file=sys.stderr)
                continue
            emit(what, variant, backend, depth, s, a)


if __name__ == "__main__":
    main()
