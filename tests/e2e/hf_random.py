#!/usr/bin/env python3
"""Random models of many sizes, made by transformers, as folders: kvlab's logits against transformers' in double.

    python3 hf_random.py KVLAB [REGEX [TOKENS]]

Every case is a class of transformers with words of its configuration; REGEX chooses cases by their text.  Contexts
have TOKENS tokens (70), more than the 32 or 48 at which scaled RoPE begins.  Angles of RoPE are in double too: in
float, as transformers has them, they err by 1e-4 of a logit at 700 tokens.  Wants
PyTorch and transformers 4.56: the environment that tests/fidelity/run.sh installs has both.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

here = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [here, os.path.join(here, "..", "fidelity")]
import old_torch

old_torch.install()
import numpy as np
import torch
import transformers

from hf_folders import LIMIT, write_safetensors, write_tokenizer

N_TOK = int(sys.argv[3]) if len(sys.argv) > 3 else 70
SMALL = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             vocab_size=131, max_position_embeddings=128, tie_word_embeddings=False, pad_token_id=0, bos_token_id=1,
             eos_token_id=2)
WIDE = dict(hidden_size=80, intermediate_size=72, num_attention_heads=8, num_key_value_heads=1, head_dim=20,
            num_hidden_layers=5, vocab_size=263)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=48)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)


def longrope(n):
    return dict(type="longrope", short_factor=[1 + .1 * i for i in range(n)],
                long_factor=[1.5 + .3 * i for i in range(n)])


LOCAL = ["sliding_attention", "full_attention"]
# class, words of its configuration
CASES = [
    ("Llama", {}), ("Llama", dict(WIDE, tie_word_embeddings=True)),
    ("Llama", dict(num_key_value_heads=4, attention_bias=True, mlp_bias=True, rope_theta=5e5)),
    ("Llama", dict(num_attention_heads=6, num_key_value_heads=3, head_dim=10, rope_scaling=LLAMA3)),
    ("Llama", dict(rope_scaling=dict(rope_type="linear", factor=3.0))),
    ("Llama", dict(rope_scaling=dict(rope_type="dynamic", factor=2.0))),
    ("Llama", dict(rope_scaling=YARN)), ("Llama", dict(rope_scaling=dict(YARN, attention_factor=1.3, beta_fast=16.0))),
    ("Llama", dict(rope_scaling=dict(YARN, mscale=0.7, mscale_all_dim=0.4))),
    ("Llama", dict(rope_scaling=dict(YARN, beta_slow=2.0), max_position_embeddings=256)),
    ("Mistral", dict(sliding_window=9)), ("Mistral", dict(WIDE, sliding_window=None)),
    ("Mixtral", dict(num_local_experts=5, num_experts_per_tok=2, sliding_window=None)),
    ("Mixtral", dict(num_local_experts=3, num_experts_per_tok=1, sliding_window=11)),
    ("Qwen2", {}), ("Qwen2", dict(num_attention_heads=8, num_key_value_heads=1, tie_word_embeddings=True)),
    ("Qwen2", dict(use_sliding_window=True, sliding_window=9, max_window_layers=1)),
    ("Qwen3", dict(head_dim=24)), ("Qwen3", dict(WIDE, attention_bias=True, tie_word_embeddings=True)),
    ("Qwen3", dict(head_dim=16, use_sliding_window=True, sliding_window=9, max_window_layers=2, rope_scaling=YARN)),
    ("Qwen3Moe", dict(head_dim=20, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=24,
                      norm_topk_prob=True)),
    ("Qwen3Moe", dict(head_dim=20, num_experts=4, num_experts_per_tok=1, moe_intermediate_size=40,
                      norm_topk_prob=False, tie_word_embeddings=True)),
    ("SmolLM3", dict(num_hidden_layers=9)), ("SmolLM3", dict(tie_word_embeddings=True, num_hidden_layers=4,
                                                             attention_bias=True)),
    ("Phi3", dict(sliding_window=None)), ("Phi3", dict(sliding_window=11, num_key_value_heads=4)),
    ("Phi3", dict(sliding_window=None, partial_rotary_factor=.75, tie_word_embeddings=True,
                  rope_scaling=longrope(6), original_max_position_embeddings=32)),
    ("Phi3", dict(sliding_window=None, rope_scaling=longrope(8), original_max_position_embeddings=48)),
    ("Gemma2", dict(head_dim=24, sliding_window=7, query_pre_attn_scalar=40, num_hidden_layers=4)),
    ("Gemma2", dict(WIDE, sliding_window=64, attn_logit_softcapping=None, final_logit_softcapping=None)),
    ("Gemma2", dict(head_dim=16, sliding_window=12, attn_logit_softcapping=2.0, final_logit_softcapping=3.0,
                    layer_types=(LOCAL * 2)[1:] + LOCAL[1:], num_hidden_layers=4)),
    ("Gemma3Text", dict(head_dim=24, sliding_window=7, num_hidden_layers=7)),
    ("Gemma3Text", dict(WIDE, sliding_window=9, rope_local_base_freq=500.0, query_pre_attn_scalar=77,
                        rope_scaling=dict(rope_type="linear", factor=8.0), layer_types=LOCAL * 2 + LOCAL[:1])),
    ("Glm", dict(head_dim=16)), ("Glm", dict(WIDE, attention_bias=True, partial_rotary_factor=.3)),
    ("Glm4", dict(head_dim=24)), ("Glm4", dict(head_dim=16, attention_bias=True, tie_word_embeddings=True,
                                               num_key_value_heads=1)),
    ("GPTNeoX", {}), ("GPTNeoX", dict(rotary_pct=1.0, use_parallel_residual=False, tie_word_embeddings=True)),
    ("GPTNeoX", dict(rotary_pct=.5, num_attention_heads=2, hidden_act="gelu", rotary_emb_base=500)),
    ("OPT", {}), ("OPT", dict(hidden_size=72, num_attention_heads=6, ffn_dim=50, num_hidden_layers=5,
                              max_position_embeddings=91, vocab_size=203)),
    ("OPT", dict(tie_word_embeddings=False)),
    ("GptOss", dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=8, head_dim=16, num_hidden_layers=4)),
    ("GptOss", dict(WIDE, num_local_experts=5, num_experts_per_tok=3, sliding_window=21, num_key_value_heads=2,
                    rope_scaling=dict(YARN, truncate=False, beta_fast=32.0, beta_slow=1.0))),
]
CASES.append(("GptOss", dict(num_local_experts=4, num_experts_per_tok=2, sliding_window=8, head_dim=16,
                             num_hidden_layers=4, mxfp4=True)))
float_of = torch.Tensor.float
FP4 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6])


def quantise(model, rng):
    """Experts of MXFP4, as gpt-oss is published: tensors of blocks and scales, and the model's weights made the same."""
    out = {}
    for key, p in model.named_parameters():
        if not key.endswith(("gate_up_proj", "down_proj")):
            continue
        n_x, cols, rows = p.shape
        blocks = rng.integers(0, 256, (n_x, rows, cols // 32, 16)).astype(np.uint8)
        scales = rng.integers(121, 124, (n_x, rows, cols // 32)).astype(np.uint8)
        code = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(n_x, rows, cols // 32, 32)
        value = np.where(code & 8, -1, 1) * FP4[code & 7] * 2.0 ** (scales[..., None].astype(int) - 127)
        with torch.no_grad():
            p.copy_(torch.from_numpy(value.reshape(n_x, rows, cols)).transpose(1, 2))
        out[key + "_blocks"], out[key + "_scales"] = blocks, scales
    return out


def exact_angles(model):
    """Position times frequency, which transformers computes by .float() in any model, in double."""
    def exact(forward):
        def call(*args, **words):
            torch.Tensor.float = torch.Tensor.double
            try:
                return forward(*args, **words)
            finally:
                torch.Tensor.float = float_of
        return call

    for module in model.modules():
        if hasattr(module, "inv_freq"):
            module.forward = exact(module.forward)


def make(kind, words, seed):
    """The model in double, its weights exact in float."""
    config = getattr(transformers, kind + "Config")
    name = "Gemma3" if kind == "Gemma3Text" else kind
    all_words = dict(SMALL, **words)
    if kind == "OPT":
        all_words = dict({k: v for k, v in all_words.items() if k != "intermediate_size"}, **dict(dict(ffn_dim=96), **words))
        all_words["word_embed_proj_dim"] = all_words["hidden_size"]
    all_words["max_position_embeddings"] = max(N_TOK, all_words["max_position_embeddings"])
    mxfp4 = all_words.pop("mxfp4", False)
    c = config(**all_words, attn_implementation="eager")
    model = getattr(transformers, name + "ForCausalLM")(c).double().eval()
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for key, p in model.named_parameters():
            shape, norm = tuple(p.shape), "norm" in key
            x = rng.uniform(-1, 1, shape).astype(np.float32)
            if norm and key.endswith("weight"):
                x = x * .3 + (0 if kind.startswith("Gemma") else 1)
            elif p.dim() == 1 or key.endswith("bias"):
                x = x * .3
            elif "embed_tokens" in key or "embed_in" in key:
                x = x * .7
            else:
                x = x * np.sqrt(3 / shape[-2 if "gate_up_proj" in key and kind == "GptOss" else -1])
            p.copy_(torch.from_numpy(x.astype(np.float32)).double())
    exact_angles(model)
    return c, model, quantise(model, rng) if mxfp4 else {}


def write(folder, c, model, quantised):
    tensors = {k: v.float().numpy() for k, v in model.state_dict().items() if not k.endswith("inv_freq")}
    if c.tie_word_embeddings:
        tensors = {k: v for k, v in tensors.items() if k not in ("lm_head.weight", "embed_out.weight")}
    words = c.to_dict()
    if quantised:
        tensors = {k: v for k, v in tensors.items() if k + "_blocks" not in quantised}
        tensors.update(quantised)
        words["quantization_config"] = dict(quant_method="mxfp4")
    write_safetensors(os.path.join(folder, "model.safetensors"), tensors)
    words["architectures"] = [type(model).__name__]
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(words, f)
    write_tokenizer(folder, ["<unk>", "<s>", "</s>"] + [chr(33 + i) for i in range(90)])


def check(kvlab, i):
    kind, words = CASES[i]
    c, model, quantised = make(kind, words, 100 + i)
    ids = [(7 * j * j + 3 * j + 5) % c.vocab_size for j in range(N_TOK)]
    with torch.no_grad():
        want = model(torch.tensor([ids])).logits[0].numpy()
    with tempfile.TemporaryDirectory() as tmp:
        write(tmp, c, model, quantised)
        out = os.path.join(tmp, "logits.npy")
        run = subprocess.run([kvlab, "logits", "--model", tmp, "--kv-type", "f32", "--ids", ",".join(map(str, ids)),
                              "--out", out], capture_output=True, text=True)
        if run.returncode:
            print("%s: %s" % (text(i), run.stderr.strip()))
            return False
        diff = np.abs(np.load(out) - want).max()
    print("%s: largest difference %.2e of %.2f%s" % (text(i), diff, want.std(), "" if diff < LIMIT else ": too much"))
    return diff < LIMIT


def text(i):
    return CASES[i][0] + " " + json.dumps(CASES[i][1])


if __name__ == "__main__":
    chosen = [i for i in range(len(CASES)) if re.search(sys.argv[2] if len(sys.argv) > 2 else "", text(i))]
    results = [check(sys.argv[1], i) for i in chosen]
    sys.exit(0 if results and all(results) else 1)
