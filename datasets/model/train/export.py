"""Writes a checkpoint as a GGUF file: python3 export.py CHECKPOINT FILE

load_gguf reads such a file, so that training can go on from it.
"""
import argparse
import math
import random
import struct

import numpy as np
import torch

import model as llama
from gguf import (BOOL, F32, I32, STRING, TENSOR_F16, TENSOR_F32, U32, Reader, Writer, halves,
                  neighbouring_pairs)
from kinds import training_document
from tasks import VOCAB
from tokenizer import BOS, EOS, N_CONTROL, PAD

NORMAL, CONTROL = 1, 3
NO_ROTATION = 1e30  # divides the frequency of a pair that does not rotate
MATRICES = (("v", "attn_v"), ("o", "attn_output"), ("gate", "ffn_gate"), ("up", "ffn_up"),
            ("down", "ffn_down"))


def widen(weight, filler):
    """Rows of the whole vocabulary from those of the trained tokens; filler(n) gives the rest."""
    n_tokens = len(VOCAB.tokenizer.tokens)
    rows = filler(n_tokens)
    rows[VOCAB.full_ids] = weight
    return rows


def sample_states(model, seed, n_texts=160, length=512):
    """Last hidden states [token][dim] of texts like those of training."""
    rng, states = random.Random(seed), []
    mix = {"kv": 2, "passkey": 2, "needle": 2, "two_stage": 2, "mixed": 2, "niah": 2, "vt": 2,
           "cwe": 2, "fwe": 2, "text": 10}
    with torch.no_grad():
        for _ in range(n_texts):
            ids = torch.tensor(training_document(rng, length, mix).ids)[None]
            states.append(model(ids, torch.arange(ids.shape[1])[None])[0][0])
    return torch.cat(states).double()


def unlikely_row(model, margin=20.0, steps=30):
    """The output row of tokens that training never saw: far below the likely ones everywhere.

    The padding token, which is never right, is unlikely, but there are more than a thousand unused
    tokens.  From its row on, Newton's method looks for a row whose logit is at least `margin` below
    the logarithm of the sum of the others'; other texts verify it.
    """
    head = model.head.weight.detach().double()
    states = sample_states(model, "export")
    wanted = torch.logsumexp(states @ head.T, 1) - margin
    row, ridge = head[PAD], 1e-4 * torch.eye(head.shape[1], dtype=torch.double)

    def loss(row):
        return (states @ row - wanted).clamp(min=0).pow(2).mean() + 1e-4 * row.pow(2).sum()

    for _ in range(steps):
        missed = states[states @ row > wanted]
        short = (states @ row - wanted).clamp(min=0)
        slope = states.T @ short / len(states) + ridge @ row
        step = torch.linalg.solve(missed.T @ missed / len(states) + ridge, slope)
        lengths = [0.5 ** k for k in range(12) if loss(row - 0.5 ** k * step) < loss(row)]
        if not lengths:
            break
        row = row - lengths[0] * step
    check = sample_states(model, "check")
    rest = torch.logsumexp(check @ head.T, 1)
    n_unused = len(VOCAB.tokenizer.tokens) - VOCAB.size
    rows = []
    for candidate in (row, head[PAD]):
        mass = (check @ candidate - rest).exp() * n_unused
        rows.append((mass.mean().item(), mass.max().item(), candidate))
    mean, largest, row = min(rows, key=lambda entry: entry[0])
    print("weight of all unused tokens together: mean %.1e, largest %.1e" % (mean, largest))
    return row.float().numpy()


def describe(gguf, shape, name):
    gguf.set("general.architecture", STRING, "llama")
    gguf.set("general.name", STRING, name)
    gguf.set("general.license", STRING, "apache-2.0")
    gguf.set("general.file_type", U32, 1)
    for key, value in (("context_length", 131072), ("embedding_length", shape["dim"]),
                       ("block_count", shape["layers"]), ("feed_forward_length", shape["ff"]),
                       ("attention.head_count", shape["heads"]),
                       ("attention.head_count_kv", shape["kv_heads"]),
                       ("attention.key_length", shape["head_dim"]),
                       ("attention.value_length", shape["head_dim"]),
                       ("rope.dimension_count", shape["head_dim"]),
                       ("vocab_size", len(VOCAB.tokenizer.tokens))):
        gguf.set("llama." + key, U32, value)
    gguf.set("llama.attention.layer_norm_rms_epsilon", F32, llama.NORM_EPS)
    gguf.set("llama.rope.freq_base", F32, shape["rope_theta"])


def describe_tokenizer(gguf):
    tokenizer = VOCAB.tokenizer
    types = [CONTROL] * N_CONTROL + [NORMAL] * (len(tokenizer.tokens) - N_CONTROL)
    gguf.set("tokenizer.ggml.model", STRING, "gpt2")
    gguf.set("tokenizer.ggml.pre", STRING, "gpt-2")
    gguf.set_array("tokenizer.ggml.tokens", STRING, tokenizer.tokens)
    gguf.set_array("tokenizer.ggml.token_type", I32, types)
    gguf.set_array("tokenizer.ggml.merges", STRING, [" ".join(pair) for pair in tokenizer.merges])
    for key, value in (("bos", BOS), ("eos", EOS), ("padding", PAD)):
        gguf.set("tokenizer.ggml.%s_token_id" % key, U32, value)
    gguf.set("tokenizer.ggml.add_bos_token", BOOL, True)
    gguf.set("tokenizer.ggml.add_eos_token", BOOL, False)
    gguf.set("tokenizer.ggml.add_space_prefix", BOOL, False)


def export(model, path, name):
    shape = model.shape
    weights = {key: value.detach().float().numpy() for key, value in model.state_dict().items()}
    gguf = Writer()
    describe(gguf, shape, name)
    describe_tokenizer(gguf)

    draw = np.random.default_rng(0)
    head = weights["head.weight"]
    gguf.add("token_embd.weight",
             widen(weights["embed.weight"], lambda n: draw.normal(size=(n, shape["dim"]))),
             TENSOR_F16)
    gguf.add("output.weight", widen(head, lambda n: np.repeat(unlikely_row(model)[None], n, 0)),
             TENSOR_F16)
    gguf.add("output_norm.weight", weights["norm.weight"], TENSOR_F32)
    factors = np.ones(shape["head_dim"] // 2)
    factors[shape["rotating_pairs"]:] = NO_ROTATION
    gguf.add("rope_freqs.weight", factors, TENSOR_F32)
    for i in range(shape["layers"]):
        ours, theirs = "blocks.%d." % i, "blk.%d." % i
        gguf.add(theirs + "attn_norm.weight", weights[ours + "attn_norm.weight"], TENSOR_F32)
        gguf.add(theirs + "ffn_norm.weight", weights[ours + "ffn_norm.weight"], TENSOR_F32)
        for key, n_heads in (("q", shape["heads"]), ("k", shape["kv_heads"])):
            gguf.add(theirs + "attn_%s.weight" % key,
                     neighbouring_pairs(weights[ours + key + ".weight"], n_heads), TENSOR_F16)
        for key, tensor in MATRICES:
            gguf.add(theirs + tensor + ".weight", weights[ours + key + ".weight"], TENSOR_F16)
    gguf.write(path)


def load_gguf(path):
    """The model in a file that export() wrote."""
    try:
        file = Reader(path)
    except (struct.error, ValueError, KeyError):
        raise SystemExit("%s is cut off, or not a file of export.py" % path)
    told, tensors = file.metadata, file.tensors
    if told.get("tokenizer.ggml.tokens") != VOCAB.tokenizer.tokens:
        raise SystemExit("%s has another vocabulary than this folder" % path)
    shape = {"dim": told["llama.embedding_length"], "layers": told["llama.block_count"],
             "heads": told["llama.attention.head_count"],
             "kv_heads": told["llama.attention.head_count_kv"],
             "head_dim": told["llama.attention.key_length"],
             "ff": told["llama.feed_forward_length"], "rope_theta": told["llama.rope.freq_base"],
             "rotating_pairs": int((tensors["rope_freqs.weight"] == 1).sum())}
    weights = {"embed.weight": tensors["token_embd.weight"][VOCAB.full_ids],
               "head.weight": tensors["output.weight"][VOCAB.full_ids],
               "norm.weight": tensors["output_norm.weight"]}
    for i in range(shape["layers"]):
        ours, theirs = "blocks.%d." % i, "blk.%d." % i
        for name in ("attn_norm.weight", "ffn_norm.weight"):
            weights[ours + name] = tensors[theirs + name]
        for key, n_heads in (("q", shape["heads"]), ("k", shape["kv_heads"])):
            weights[ours + key + ".weight"] = halves(tensors[theirs + "attn_%s.weight" % key],
                                                     n_heads)
        for key, tensor in MATRICES:
            weights[ours + key + ".weight"] = tensors[theirs + tensor + ".weight"]
    model = llama.Model(shape, VOCAB.size)
    model.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in weights.items()})
    return model


def load_model(path):
    """The model of a checkpoint, or of a file that export() wrote."""
    try:
        return load_gguf(path) if path.endswith(".gguf") else llama.load(path, VOCAB.size)[0]
    except OSError as error:
        raise SystemExit(error)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("file")
    arguments = parser.parse_args()
    model, checkpoint = llama.load(arguments.checkpoint, VOCAB.size)
    export(model, arguments.file, checkpoint["config"]["name"])


if __name__ == "__main__":
    main()
