#!/usr/bin/env python3
"""Models as folders of Hugging Face's form, made from GGUF files, against logits of another implementation.

    python3 hf_folders.py KVLAB FOLDER [NAME ...]

FOLDER has NAME.gguf (float weights) and NAME.json (ids, rows, hf_f64_logits: logits of these rows, computed in
double from the weights as Hugging Face keeps them).  Of each the script writes a folder as its models are published
(names of tensors, fused and interleaved rows, norms less one, experts apart, config.json), and compares what kvlab
says of the folder with these logits.  Wants numpy.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

import numpy as np

LIMIT = 1e-4


# ---- GGUF ---------------------------------------------------------------------------------------

def read_gguf(path):
    data = open(path, "rb").read()
    at = 0

    def take(form):
        nonlocal at
        value = struct.unpack_from("<" + form, data, at)[0]
        at += struct.calcsize("<" + form)
        return value

    def text():
        nonlocal at
        n = take("Q")
        at += n
        return data[at - n:at].decode()

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            kind, n = take("I"), take("Q")
            return [value(kind) for _ in range(n)]
        return take("BbHhIif?__QqdX"[kind])

    assert take("I") == 0x46554747
    take("I")
    n_tensors, n_keys = take("Q"), take("Q")
    keys = {}
    for _ in range(n_keys):
        name = text()
        keys[name] = value(take("I"))
    infos = []
    for _ in range(n_tensors):
        name = text()
        dims = [take("Q") for _ in range(take("I"))]
        assert take("I") == 0, name + " is not F32"
        infos.append((name, dims, take("Q")))
    start = (at + 31) // 32 * 32
    tensors = {name: np.frombuffer(data, np.float32, int(np.prod(dims)), start + offset).reshape(dims[::-1])
               for name, dims, offset in infos}
    return keys, tensors


# ---- layouts ------------------------------------------------------------------------------------

def halves(w, heads):
    """Rows of pairs that are neighbours -> pairs half a head apart."""
    shape = w.shape
    return w.reshape(heads, shape[0] // heads // 2, 2, *shape[1:]).swapaxes(1, 2).reshape(shape)


def interleaved(w, heads):
    """q | k | v -> [head][q, k, v]"""
    shape = w.shape
    return w.reshape(3, heads, shape[0] // 3 // heads, *shape[1:]).swapaxes(0, 1).reshape(shape)


def grouped(q, k, v, heads, kv):
    """-> [kv head][its queries, k, v]"""
    dim = q.shape[0] // heads
    cut = lambda w, n: w.reshape(kv, n, dim, *w.shape[1:])
    return np.concatenate([cut(q, heads // kv), cut(k, 1), cut(v, 1)], axis=1).reshape(-1, *q.shape[1:])


# ---- families -----------------------------------------------------------------------------------

COMMON = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
          "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
          "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "attn_qkv": "self_attn.qkv_proj",
          "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
GEMMA = {**COMMON, "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
         "post_ffw_norm": "post_feedforward_layernorm"}
FUSED = {**COMMON, "ffn_up": "mlp.gate_up_proj"}
GLM4 = {**FUSED, "post_attention_norm": "post_self_attn_layernorm", "post_ffw_norm": "post_mlp_layernorm"}
INTERN = {**COMMON, "attn_norm": "attention_norm", "ffn_norm": "ffn_norm", "attn_output": "attention.wo",
          "ffn_gate": "feed_forward.w1", "ffn_up": "feed_forward.w3", "ffn_down": "feed_forward.w2"}
NEOX = {**COMMON, "attn_qkv": "attention.query_key_value", "attn_output": "attention.dense",
        "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"}
MIXTRAL = {**COMMON, "ffn_gate_inp": "block_sparse_moe.gate", "ffn_gate_exps": "block_sparse_moe.experts.%d.w1",
           "ffn_up_exps": "block_sparse_moe.experts.%d.w3", "ffn_down_exps": "block_sparse_moe.experts.%d.w2"}
QWEN_MOE = {**COMMON, "ffn_gate_inp": "mlp.gate", "ffn_gate_exps": "mlp.experts.%d.gate_proj",
            "ffn_up_exps": "mlp.experts.%d.up_proj", "ffn_down_exps": "mlp.experts.%d.down_proj"}
LONG, SHORT = [1.5 + .3 * i for i in range(8)], [1 + .1 * i for i in range(8)]


def longrope(orig, n=8):
    return dict(original_max_position_embeddings=orig, rope_scaling=dict(
        type="longrope", short_factor=SHORT[:n], long_factor=LONG[:n]))


GEMMA_WORDS = dict(hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=16, sliding_window=8,
                   tie_word_embeddings=True)
# The file's name -> class, names inside layers, names outside, what config.json says beside sizes.
MODELS = {
    "llama": ("LlamaForCausalLM", COMMON, OUTER, {}),
    "llama-head-dim-24--linear-8--tied--biases": ("LlamaForCausalLM", COMMON, OUTER, dict(
        head_dim=24, rope_scaling=dict(type="linear", factor=8.0), tie_word_embeddings=True, attention_bias=True,
        mlp_bias=True)),
    "llama-llama3-scaling": ("LlamaForCausalLM", COMMON, OUTER, dict(rope_scaling=dict(
        rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=32))),
    "llama-yarn-4x-of-16": ("LlamaForCausalLM", COMMON, OUTER, dict(rope_parameters=dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=256, rope_theta=10000.0))),
    "mistral-window-8": ("MistralForCausalLM", COMMON, OUTER, dict(sliding_window=8)),
    "qwen2": ("Qwen2ForCausalLM", COMMON, OUTER, dict(sliding_window=8, use_sliding_window=False)),
    "qwen3-head-dim-24": ("Qwen3ForCausalLM", COMMON, OUTER, dict(head_dim=24)),
    "internlm2--weights-of-a-llama": ("InternLM2ForCausalLM", INTERN, {
        "token_embd": "model.tok_embeddings", "output_norm": "model.norm", "output": "output"}, {}),
    "smollm3": ("SmolLM3ForCausalLM", COMMON, OUTER, dict(tie_word_embeddings=False, no_rope_layers=[1, 1, 1, 0])),
    "phi3-longrope-long": ("Phi3ForCausalLM", FUSED, OUTER, longrope(32)),
    # phi3-longrope-short is not here: short factors are for sessions that stay short, kvlab logits asks for none.
    "phi3-partial-0-75--phi-4-mini": ("Phi3ForCausalLM", FUSED, OUTER, dict(partial_rotary_factor=.75,
                                                                           **longrope(32, 6))),
    "gemma2-window-8": ("Gemma2ForCausalLM", GEMMA, OUTER, dict(
        head_dim=16, attn_logit_softcapping=5.0, final_logit_softcapping=3.0, **GEMMA_WORDS)),
    "gemma3-text-window-8": ("Gemma3ForCausalLM", GEMMA, OUTER, dict(
        head_dim=16, rope_theta=1e6, rope_local_base_freq=1e4, rope_scaling=dict(rope_type="linear", factor=8.0),
        sliding_window_pattern=6, **GEMMA_WORDS)),
    "glm--glm-4-9b-chat-hf": ("GlmForCausalLM", FUSED, OUTER, dict(head_dim=16, attention_bias=True)),
    "glm4": ("Glm4ForCausalLM", GLM4, OUTER, dict(head_dim=16, attention_bias=True)),
    "mixtral": ("MixtralForCausalLM", MIXTRAL, OUTER, dict(num_local_experts=4, num_experts_per_tok=2,
                                                          sliding_window=None)),
    "qwen3moe": ("Qwen3MoeForCausalLM", QWEN_MOE, OUTER, dict(
        head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True)),
}
# Other forms of files above: NAME@FORM.
OLD_GLM = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
           "attn_qkv": "self_attention.query_key_value", "attn_output": "self_attention.dense",
           "ffn_up": "mlp.dense_h_to_4h", "ffn_down": "mlp.dense_4h_to_h"}
MODELS["glm--glm-4-9b-chat-hf@own"] = ("ChatGLMModel", OLD_GLM, {
    "token_embd": "transformer.embedding.word_embeddings", "output_norm": "transformer.encoder.final_layernorm",
    "output": "transformer.output_layer"}, dict(num_layers=4, ffn_hidden_size=96, padded_vocab_size=97, seq_length=64,
                                                kv_channels=16, multi_query_attention=True, multi_query_group_num=2,
                                                layernorm_epsilon=1e-5, rope_ratio=0.02, rope_theta=500000.0))
MODELS["gemma3-text-window-8@several"] = ("Gemma3ForConditionalGeneration", GEMMA, {
    "token_embd": "language_model.model.embed_tokens", "output_norm": "language_model.model.norm"},
    MODELS["gemma3-text-window-8"][3])
for parallel in (True, False):
    MODELS["gpt-neox-parallel-%s" % parallel] = ("GPTNeoXForCausalLM", NEOX, {
        "token_embd": "gpt_neox.embed_in", "output_norm": "gpt_neox.final_layer_norm", "output": "embed_out"},
        dict(use_parallel_residual=parallel, rotary_pct=.25, layer_norm_eps=1e-5, hidden_act="gelu"))


def convert(keys, tensors, kind, inner, outer):
    arch = keys["general.architecture"]
    heads, kv = keys[arch + ".attention.head_count"], keys[arch + ".attention.head_count_kv"]
    moved = arch in ("llama", "internlm2", "smollm3")  # what the converter to GGUF permutes
    out, before = {}, {"GPTNeoXForCausalLM": "gpt_neox.layers.%s.", "ChatGLMModel": "transformer.encoder.layers.%s.",
                   "Gemma3ForConditionalGeneration": "language_model.model.layers.%s."}.get(kind, "model.layers.%s.")
    for name, w in tensors.items():
        if name.startswith("rope_f"):
            continue
        if arch.startswith("gemma") and "norm" in name:
            w = w - 1
        if not name.startswith("blk."):
            stem, end = name.rsplit(".", 1)
            out[outer[stem] + "." + end] = w
            continue
        _, layer, stem, end = name.split(".")
        if moved and stem in ("attn_q", "attn_k"):
            w = halves(w, heads if stem == "attn_q" else kv)
        if arch == "gptneox" and stem == "attn_qkv":
            w = interleaved(w, heads)
        path = before % layer + inner[stem] + "." + end
        if "%d" in path:
            for e in range(w.shape[0]):
                out[path % e] = w[e]
        else:
            out[path] = w
        if kind == "GlmForCausalLM" and stem == "attn_qkv":  # apart in the folder
            dim = w.shape[0] // (heads + 2 * kv)
            del out[path]
            for part, x in zip("qkv", np.split(w, [heads * dim, (heads + kv) * dim])):
                out[before % layer + "self_attn.%s_proj.%s" % (part, end)] = x
    if arch == "internlm2":
        for layer in range(keys[arch + ".block_count"]):
            q, k, v = (out.pop("model.layers.%d.self_attn.%s_proj.weight" % (layer, c)) for c in "qkv")
            out["model.layers.%d.attention.wqkv.weight" % layer] = grouped(q, k, v, heads, kv)
    return out


def config(keys, kind, words):
    arch = keys["general.architecture"]
    key = lambda tail: keys[arch + "." + tail]
    c = dict(architectures=[kind], hidden_act="silu", hidden_size=key("embedding_length"),
             intermediate_size=key("feed_forward_length"), num_hidden_layers=key("block_count"),
             num_attention_heads=key("attention.head_count"), num_key_value_heads=key("attention.head_count_kv"),
             vocab_size=key("vocab_size"), max_position_embeddings=key("context_length"), rms_norm_eps=1e-5,
             rope_theta=10000.0, tie_word_embeddings=False)
    c.update(words)
    if kind == "ChatGLMModel":  # its own names alone
        for word in ("intermediate_size", "num_hidden_layers", "num_key_value_heads", "vocab_size", "rms_norm_eps",
                     "max_position_embeddings", "hidden_act"):
            del c[word]
    if kind == "Gemma3ForConditionalGeneration":
        del c["architectures"]
        c = dict(architectures=[kind], text_config=c, vision_config={})
    return c


def write_safetensors(path, tensors):
    head, at, names = {}, 0, sorted(tensors)
    for name in names:
        is_bytes = tensors[name].dtype == np.uint8
        n = tensors[name].size * (1 if is_bytes else 4)
        head[name] = dict(dtype="U8" if is_bytes else "F32", shape=list(tensors[name].shape), data_offsets=[at, at + n])
        at += n
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            kind = np.uint8 if tensors[name].dtype == np.uint8 else np.float32
            f.write(np.ascontiguousarray(tensors[name], kind).tobytes())


def write_tokenizer(folder, tokens):
    special = [dict(id=i, content=tokens[i], single_word=False, lstrip=False, rstrip=False, normalized=False,
                    special=True) for i in range(3)]
    steps = [dict(type="Prepend", prepend="\u2581"),
             dict(type="Replace", pattern=dict(String=" "), content="\u2581")]
    v = dict(added_tokens=special, normalizer=dict(type="Sequence", normalizers=steps), pre_tokenizer=None,
             post_processor=None, decoder=None,
             model=dict(type="BPE", unk_token="<unk>", byte_fallback=True, fuse_unk=True, merges=[],
                        vocab={t: i for i, t in enumerate(tokens)}))
    with open(os.path.join(folder, "tokenizer.json"), "w") as f:
        json.dump(v, f)


def check(kvlab, folder, name):
    path = os.path.join(folder, name.split("@")[0])
    keys, tensors = read_gguf(path + ".gguf")
    want = json.load(open(path + ".json"))
    kind, inner, outer, words = MODELS[name]
    with tempfile.TemporaryDirectory() as tmp:
        write_safetensors(os.path.join(tmp, "model.safetensors"), convert(keys, tensors, kind, inner, outer))
        json.dump(config(keys, kind, words), open(os.path.join(tmp, "config.json"), "w"))
        write_tokenizer(tmp, keys["tokenizer.ggml.tokens"])
        out = os.path.join(tmp, "logits.npy")
        run = subprocess.run([kvlab, "logits", "--model", tmp, "--kv-type", "f32", "--ids",
                              ",".join(map(str, want["ids"])), "--out", out], capture_output=True, text=True)
        if run.returncode:
            print("%-44s %s" % (name, run.stderr.strip()))
            return False
        diff = np.abs(np.load(out)[want["rows"]] - np.array(want["hf_f64_logits"])).max()
    print("%-44s largest difference %.2e%s" % (name, diff, "" if diff < LIMIT else ": too much"))
    return diff < LIMIT


if __name__ == "__main__":
    names = sys.argv[3:] or [n for n in MODELS if os.path.exists(os.path.join(sys.argv[2], n.split("@")[0] + ".gguf"))]
    results = [check(sys.argv[1], sys.argv[2], n) for n in names]
    sys.exit(0 if results and all(results) else 1)
