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
    const char *name;
    enum kvl_rope_style rope; /* which elements of a head turn together */
    bool qkv_bias;            /* blk.i.attn_{q,k,v}.bias, added before the turn */
    bool window; /* attention.sliding_window means what window.h says; else it is refused */
    int32_t window_period;  /* of every p layers the last is global; 0: none is */
    int32_t window_default; /* where the file does not say, 0 = none */
    bool sinks;             /* blk.i.attn_sinks.weight */
    float cap;              /* of attention logits where the file does not say, 0 = none ever */
};

/* NULL: no row has this name. */
const struct kvl_arch *kvl_arch_find(const struct kvl_str *name);

/* The names of all rows with ", " between them; returns `out`. */
const char *kvl_arch_names(char *out, size_t cap);

#endif
