"""A model of weights in blocks as 32-bit floats, for both programs.

kvlab multiplies weights in blocks by rounded activations; of floats it makes sums of products as transformers does, so
that what differs then is the order of sums.
"""
import os

import compare

NAMES = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def floats_of(path, folder):
    """The file of 32-bit floats of a GGUF file, written once to a folder."""
    import gguf
    import numpy

    source = os.stat(path)
    name = "%s-%d-%d.F32.gguf" % (os.path.basename(path).rsplit(".gguf", 1)[0], source.st_size, source.st_mtime)
    out = os.path.join(folder, name)
    if os.path.exists(out):
        return out
    os.makedirs(folder, exist_ok=True)
    part = "%s.part%d" % (out, os.getpid())
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(part, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key == "general.file_type":
            writer.add_file_type(gguf.LlamaFileType.ALL_F32)
        elif key != "general.architecture" and not key.startswith("GGUF."):
            writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
    shapes = [[int(n) for n in reversed(t.shape)] for t in reader.tensors]
    for t, shape in zip(reader.tensors, shapes):
        writer.add_tensor_info(t.name, shape, numpy.dtype("float32"), 4 * int(t.n_elements))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for t, shape in zip(reader.tensors, shapes):
        writer.write_tensor_data(gguf.quants.dequantize(t.data, t.tensor_type).astype("float32").reshape(shape))
    writer.close()
    os.rename(part, out)
    return out


def halves(w, n_heads):
    """Rows of q and k: GGUF turns neighbours together, transformers the two halves of a head."""
    rest = w.shape[1:]
    return w.reshape(n_heads, -1, 2, *rest).swapaxes(1, 2).reshape(w.shape)


def transformers_model(path):
    """The model of a file of floats."""
    import gguf
    import torch
    import transformers

    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    if arch not in ("llama", "qwen2"):
        compare.stop("%s: architecture %s, want llama or qwen2" % (path, arch), 2)
    scaled = reader.fields.get(arch + ".rope.scaling.type")
    if any(t.name.startswith("rope_") for t in reader.tensors) or scaled and scaled.contents() != "none":
        compare.stop("%s: its RoPE is scaled, which this script does not tell transformers; want a file without" % path, 2)
    of = {name[len(arch) + 1:]: field.contents() for name, field in reader.fields.items() if name.startswith(arch + ".")}
    heads, kv_heads = of["attention.head_count"], of["attention.head_count_kv"]
    weight = {}
    for t in reader.tensors:
        parts = t.name.split(".")
        if parts[0] != "blk" and parts[0] not in TOP:
            continue
        w = t.data
        name = TOP[parts[0]] if parts[0] in TOP else "model.layers.%s.%s" % (parts[1], NAMES[parts[2]])
        if arch == "llama" and parts[-2] in ("attn_q", "attn_k"):
            w = halves(w, heads if parts[-2] == "attn_q" else kv_heads)
        weight["%s.%s" % (name, parts[-1])] = torch.tensor(w)
    tied = "lm_head.weight" not in weight
    config = (transformers.LlamaConfig if arch == "llama" else transformers.Qwen2Config)(
        vocab_size=weight["model.embed_tokens.weight"].shape[0], hidden_size=of["embedding_length"],
        intermediate_size=of["feed_forward_length"], num_hidden_layers=of["block_count"],
        num_attention_heads=heads, num_key_value_heads=kv_heads, max_position_embeddings=of["context_length"],
        head_dim=of["embedding_length"] // heads,  # Qwen 2 has none of its own, and presses ask for it
        rms_norm_eps=of["attention.layer_norm_rms_epsilon"], rope_theta=of.get("rope.freq_base", 1e4),
        tie_word_embeddings=tied, attn_implementation="sdpa")
    model = getattr(transformers, "LlamaForCausalLM" if arch == "llama" else "Qwen2ForCausalLM")(config).eval()
    missing, extra = model.load_state_dict(weight, strict=False)
    if extra or set(missing) - ({"lm_head.weight"} if tied else set()):
        compare.stop("%s: transformers misses %s, does not know %s" % (path, missing, extra), 2)
    return model
