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

/* Fields that are not named in a row are zero, which means "as llama". */
struct kvl_arch {
    const char *name; /* general.architecture of a GGUF file */
    /* which elements of a head turn together: in a GGUF file, in such a folder */
    enum kvl_rope_style rope, hf_rope;
    /* attention */
    bool qkv_fused; /* attn_qkv: rows of q, k and v */
    bool qkv_bias;  /* biases of q, k and v are required; others may be there */
    bool qk_norm;   /* every head of q and k is normed before it turns */
    bool sinks;     /* attn_sinks */
    bool window;    /* attention.sliding_window means what window.h says; else it is refused */
    int32_t window_period;  /* of every p layers the last is global; 0: none is */
    int32_t window_default; /* where the file does not say, 0 = none */
    float cap;              /* of attention logits where the file does not say, 0 = none ever */
    int32_t wide_scale; /* with so many layers q.k is scaled as if heads were n_embd / n_heads */
    /* RoPE */
    int32_t nope_step; /* layers nope_step - 1, 2 nope_step - 1, ... do not turn; 0 = all do */
    bool positions;    /* position_embd: what is added to the embedding of a token at a position */
    double local_base; /* of layers with a window, if rope.freq_base_swa is absent; 0 = as all */
    bool exact_yarn;   /* the ends of YaRN's ramp are not rounded */
    /* MLP */
    enum kvl_act act;
    bool up_fused; /* ffn_up: rows of gate and up */
    bool no_gate;  /* down(act(up)) */
    enum kvl_arch_experts { KVL_EXPERTS_NONE, KVL_EXPERTS_MAY, KVL_EXPERTS_MUST } experts;
    /* the whole */
    bool layer_norm;      /* norms with mean and bias */
    const char *ffn_norm; /* the name of the norm before the MLP; NULL: ffn_norm */
    bool post_norms;      /* of what attention and MLP add */
    bool parallel;    /* attention and MLP read the same, unless use_parallel_residual says no */
    bool embed_scale; /* embeddings times sqrt(n_embd) */
    bool final_cap;   /* final_logit_softcapping is known */
    float final_cap_default; /* where the file does not say */
    bool untied;             /* output.weight is required */
};

/* NULL: no row has this name. */
const struct kvl_arch *kvl_arch_find(const struct kvl_str *name);

/* The names of all rows with ", " between them; returns `out`. */
const char *kvl_arch_names(char *out, size_t cap);

#endif
