/* arch.h - the table of model architectures: what tells one from another, as data.
 *
 * A row is found by general.architecture, which is also what the file's keys begin with.  Everything that reads a
 * model (weights.c) or computes with it (core/policy, core/engine) takes what differs from the row and never asks for
 * a name.  core/README.md says how a row is added.
 *
 * Source: llama.cpp's converters, for what a GGUF file of each architecture holds.
 * Thread-safe: yes.
 */
#ifndef KVL_ARCH_H
#define KVL_ARCH_H

#include "kvl/ops.h"

struct kvl_str;

struct kvl_arch {
    const char *name; /* general.architecture of a GGUF file */
    const char
        *hf_name; /* architectures[0] of a folder of Hugging Face's; several with '|' between */
    enum kvl_rope_style rope;    /* which elements of a head turn together, in a GGUF file */
    enum kvl_rope_style hf_rope; /* and in such a folder */
    bool qkv_bias;               /* blk.i.attn_{q,k,v}.bias, added before the turn, are required */
};

/* NULL: no row has this name. */
const struct kvl_arch *kvl_arch_find(const struct kvl_str *name);

/* The names of all rows with ", " between them; returns `out`. */
const char *kvl_arch_names(char *out, size_t cap);

#endif
