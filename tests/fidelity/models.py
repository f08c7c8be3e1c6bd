"""Random Llama models: the same weights as a GGUF file and as a model of transformers."""
import os
import pathlib
import sys

import numpy as np

SOURCES = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCES / "datasets" / "model" / "train"))

from gguf import BOOL, F32, I32, STRING, TENSOR_F32, U32, Writer, neighbouring_pairs  # noqa: E402
from tokenizer import BOS, EOS, N_CONTROL, PAD, byte_characters  # noqa: E402

# Control tokens, a token per byte, and others that no text has: contexts repeat no token up to this
# length, since keys of equal tokens have equal norms in the first layer.
N_TOKENS = 2048
TOKENS = ["<pad>", "<bos>", "<eos>"] + list(byte_characters().values())
TOKENS += ["<%d>" % i for i in range(len(TOKENS), N_TOKENS)]
CONTEXT = 8192  # tokens that the models are for
NORMAL, CONTROL = 1, 3

# Query heads, kv heads, channels of a head, layers, width, tied embeddings, base of RoPE, factor of a
# linear scaling of its positions.
SHAPES = {
    "mha": dict(heads=4, kv_heads=4, head_dim=16, layers=3, dim=64, tied=False, base=1e4, linear=1),
    "gqa": dict(heads=8, kv_heads=2, head_dim=32, layers=4, dim=192, tied=True, base=5e5, linear=1),
    "wide": dict(heads=6, kv_heads=2, head_dim=64, layers=3, dim=128, tied=False, base=1e4, linear=2),
    "mqa": dict(heads=4, kv_heads=1, head_dim=48, layers=5, dim=96, tied=True, base=1e4, linear=1),
}
NORM_EPS = 1e-5
# Deviation of a query's channels, and of those of the first and last kv head's keys: attention is neither
# even nor a point, and heads want different numbers of tokens.
SHARP, SHARP_HEADS = 1.5, (2.5, 0.3)


def encode(text):
    """Token ids of a text: every byte is a token."""
    return [byte + N_CONTROL for byte in text.encode()]


def random_context(seed, n):
    draw = np.random.default_rng([seed, n])
    ids = np.arange(N_CONTROL, N_TOKENS)
    rounds = [draw.permutation(ids) for _ in range(-(-n // len(ids)))]
    return [BOS] + np.concatenate(rounds)[:n - 1].tolist()


def weights(shape, seed):
    """Names as in transformers."""
    draw = np.random.default_rng(seed)

    def matrix(rows, columns, gain=1.0):
        return (draw.normal(size=(rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

    def norm():
        return draw.uniform(0.5, 1.5, shape["dim"]).astype(np.float32)

    heads = np.linspace(*SHARP_HEADS, shape["kv_heads"]).astype(np.float32)
    heads = np.repeat(heads, shape["head_dim"])[:, None]
    dim, width = shape["dim"], 2 * shape["dim"]
    q, kv = shape["heads"] * shape["head_dim"], shape["kv_heads"] * shape["head_dim"]
    out = {"model.embed_tokens.weight": matrix(N_TOKENS, dim, np.sqrt(dim)),
           "model.norm.weight": norm()}
    if not shape["tied"]:
        out["lm_head.weight"] = matrix(N_TOKENS, dim)
    for i in range(shape["layers"]):
        layer = "model.layers.%d." % i
        out.update({
            layer + "input_layernorm.weight": norm(),
            layer + "post_attention_layernorm.weight": norm(),
            layer + "self_attn.q_proj.weight": matrix(q, dim, SHARP),
            layer + "self_attn.k_proj.weight": matrix(kv, dim) * heads,
            layer + "self_attn.v_proj.weight": matrix(kv, dim),
            layer + "self_attn.o_proj.weight": matrix(dim, q),
            layer + "mlp.gate_proj.weight": matrix(width, dim),
            layer + "mlp.up_proj.weight": matrix(width, dim),
            layer + "mlp.down_proj.weight": matrix(dim, width)})
    return out


def random_vectors(path, shape, seed):
    """A vector per layer and kv head: a file for kvlab, whose channels stand as in the GGUF file, and the same, to be
    subtracted, for transformers."""
    import torch

    n = shape["kv_heads"] * shape["head_dim"]
    draw = np.random.default_rng([seed, 7]).normal(size=(shape["layers"], n)).astype(np.float32)
    with open(path, "w") as out:
        for layer, vectors in enumerate(draw):
            turned = neighbouring_pairs(vectors[:, None], shape["kv_heads"])[:, 0]
            for head, vector in enumerate(turned.reshape(shape["kv_heads"], -1)):
                print(layer, head, *("%.9g" % x for x in vector), file=out)
    heads = draw.reshape(shape["layers"], shape["kv_heads"], -1)
    return path, -torch.from_numpy(heads)


def random_gates(path, shape, seed):
    """A number from 0 to 1 per layer and kv head: a file for kvlab, and the same."""
    gates = np.random.default_rng([seed, 9]).uniform(size=(shape["layers"], shape["kv_heads"]))
    with open(path, "w") as out:
        for layer in gates:
            print(*("%.9g" % x for x in layer), file=out)
    return path, gates


def random_networks(folder, shape, seed, hidden=None):
    """A linear map, or one with a hidden layer, per layer, as KVzap saves them, and the same for transformers."""
    import torch
    from kvpress.presses.kvzap_press import KVzapConfig, KVzapModel
    from safetensors.torch import save_file

    torch.manual_seed(seed)
    networks = KVzapModel(KVzapConfig(input_dim=shape["dim"], output_dim=shape["kv_heads"], hidden_dim=hidden,
                                      n_modules=shape["layers"])).eval()
    os.mkdir(folder)
    save_file(networks.state_dict(), os.path.join(folder, "model.safetensors"))
    return folder, networks


GGUF_NAMES = (("input_layernorm", "attn_norm"), ("post_attention_layernorm", "ffn_norm"),
              ("self_attn.q_proj", "attn_q"), ("self_attn.k_proj", "attn_k"),
              ("self_attn.v_proj", "attn_v"), ("self_attn.o_proj", "attn_output"),
              ("mlp.gate_proj", "ffn_gate"), ("mlp.up_proj", "ffn_up"),
              ("mlp.down_proj", "ffn_down"))


def describe(gguf, shape, name):
    gguf.set("general.architecture", STRING, "llama")
    gguf.set("general.name", STRING, name)
    for key, value in (("context_length", CONTEXT), ("embedding_length", shape["dim"]),
                       ("block_count", shape["layers"]), ("feed_forward_length", 2 * shape["dim"]),
                       ("attention.head_count", shape["heads"]),
                       ("attention.head_count_kv", shape["kv_heads"]),
                       ("attention.key_length", shape["head_dim"]),
                       ("attention.value_length", shape["head_dim"]),
                       ("rope.dimension_count", shape["head_dim"]), ("vocab_size", N_TOKENS)):
        gguf.set("llama." + key, U32, value)
    gguf.set("llama.attention.layer_norm_rms_epsilon", F32, NORM_EPS)
    gguf.set("llama.rope.freq_base", F32, shape["base"])
    if shape["linear"] != 1:
        gguf.set("llama.rope.scaling.type", STRING, "linear")
        gguf.set("llama.rope.scaling.factor", F32, shape["linear"])
    gguf.set("tokenizer.ggml.model", STRING, "gpt2")
    gguf.set("tokenizer.ggml.pre", STRING, "gpt-2")
    gguf.set_array("tokenizer.ggml.tokens", STRING, TOKENS)
    gguf.set_array("tokenizer.ggml.token_type", I32,
                   [CONTROL] * N_CONTROL + [NORMAL] * (N_TOKENS - N_CONTROL))
    gguf.set_array("tokenizer.ggml.merges", STRING, [])
    for key, value in (("bos", BOS), ("eos", EOS), ("padding", PAD)):
        gguf.set("tokenizer.ggml.%s_token_id" % key, U32, value)
    gguf.set("tokenizer.ggml.add_bos_token", BOOL, True)


def write_gguf(path, shape, weight, name):
    gguf = Writer()
    describe(gguf, shape, name)
    gguf.add("token_embd.weight", weight["model.embed_tokens.weight"], TENSOR_F32)
    gguf.add("output_norm.weight", weight["model.norm.weight"], TENSOR_F32)
    if not shape["tied"]:
        gguf.add("output.weight", weight["lm_head.weight"], TENSOR_F32)
    for i in range(shape["layers"]):
        for theirs, ours in GGUF_NAMES:
            w = weight["model.layers.%d.%s.weight" % (i, theirs)]
            if ours == "attn_q":
                w = neighbouring_pairs(w, shape["heads"])
            if ours == "attn_k":
                w = neighbouring_pairs(w, shape["kv_heads"])
            gguf.add("blk.%d.%s.weight" % (i, ours), w, TENSOR_F32)
    gguf.write(path)


def transformers_model(shape, weight):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    scaling = {"rope_type": "linear", "factor": float(shape["linear"])}
    config = LlamaConfig(
        vocab_size=N_TOKENS, hidden_size=shape["dim"], intermediate_size=2 * shape["dim"],
        num_hidden_layers=shape["layers"], num_attention_heads=shape["heads"],
        num_key_value_heads=shape["kv_heads"], head_dim=shape["head_dim"],
        max_position_embeddings=CONTEXT, rms_norm_eps=NORM_EPS, rope_theta=shape["base"],
        rope_scaling=scaling if shape["linear"] != 1 else None,
        tie_word_embeddings=shape["tied"], attn_implementation="sdpa")
    model = LlamaForCausalLM(config).eval()
    missing, extra = model.load_state_dict(
        {name: torch.from_numpy(w) for name, w in weight.items()}, strict=False)
    if extra or set(missing) - ({"lm_head.weight"} if shape["tied"] else set()):
        raise SystemExit("transformers has other weights: %s are not set, %s unknown"
                         % (missing, extra))
    return model
