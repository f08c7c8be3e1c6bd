/* weights.h - the shape and the weights of a model in a GGUF file.
 *
 * Its architecture is a row of arch.h's table.  Matrices have any type of kvl/wtypes.def and stay in the file;
 * vectors must be F32.  A file with anything that would change the result and that kvlab does
 * not compute (keys of other architectures, tensors of no known meaning) is refused, and so is a weight that is
 * not finite.
 *
 * Errors: KVL_EMODEL naming the key or tensor; KVL_ENOMEM.
 * Thread-safe: read-only after loading.
 */
#ifndef KVL_WEIGHTS_H
#define KVL_WEIGHTS_H

#include "arch.h"

struct kvl_gguf;

struct kvl_hparams {
    int32_t n_layers, n_embd, n_heads, n_kv_heads;
    int32_t head_dim;                  /* even; n_heads * head_dim may differ from n_embd */
    int32_t n_rot;                     /* the first elements of a head that turn; even */
    int32_t n_ff;                      /* of an expert, where there are experts */
    int32_t n_experts, n_experts_used; /* 0: none */
    int32_t n_vocab, n_ctx_train;
    double norm_eps;
};

/* What a model lacks is NULL; a matrix that it lacks has no data. */
struct kvl_layer_weights {
    const float *attn_norm, *ffn_norm;           /* [n_embd] */
    const float *attn_norm_bias, *ffn_norm_bias; /* the same, of layer norms */
    const float *attn_post_norm, *ffn_post_norm; /* the same, of what a part adds */
    const float *attn_q_norm, *attn_k_norm;      /* [head_dim], of every head before it turns */
    const float *attn_q_bias;                    /* [n_heads * head_dim] */
    const float *attn_k_bias, *attn_v_bias;      /* [n_kv_heads * head_dim] */
    const float *attn_output_bias;               /* [n_embd] */
    const float *attn_sinks;          /* [n_heads] a logit that every softmax has besides */
    int32_t window;                   /* a token reads those less than this before it; 0 = all */
    struct kvl_weight attn_q;         /* [n_heads * head_dim][n_embd] */
    struct kvl_weight attn_k, attn_v; /* [n_kv_heads * head_dim][n_embd] */
    struct kvl_weight attn_output;    /* [n_embd][n_heads * head_dim] */
    const struct kvl_rope *rope;      /* how this layer turns: one of struct kvl_weights */
    const struct kvl_rope *rope_long; /* in sessions beyond kvl_weights.n_ctx_short, or NULL */
    /* Of experts: those of the first, then those of the second, ... */
    const float *ffn_gate_bias, *ffn_up_bias; /* [n_ff] */
    const float *ffn_down_bias;               /* [n_embd] */
    struct kvl_weight ffn_gate, ffn_up;       /* [n_ff][n_embd] */
    struct kvl_weight ffn_down;               /* [n_embd][n_ff] */
    struct kvl_weight router;                 /* [n_experts][n_embd] */
    const float *router_bias;                 /* [n_experts] */
};

/* The ways in which layers may turn. */
enum kvl_rope_kind {
    KVL_ROPE_GLOBAL, /* what the keys say */
    KVL_ROPE_LONG,   /* the same with the factors for long contexts */
    KVL_ROPE_LOCAL,  /* layers with a window where these turn otherwise */
    KVL_ROPE_NOT,    /* not at all */
    KVL_ROPE_KINDS,
};

/* Everything but `layer` and frequencies is borrowed from the file, which must stay open. */
struct kvl_weights {
    const struct kvl_arch *arch;
    struct kvl_hparams hparams;
    struct kvl_weight embed;  /* [n_vocab][n_embd] */
    struct kvl_weight output; /* [n_vocab][n_embd]; equal to embed in a tied model */
    struct kvl_weight
        positions; /* [n_ctx_train][n_embd], added to embeddings; without data: none */
    const float *output_norm, *output_norm_bias; /* [n_embd] */
    struct kvl_rope *rope;                       /* [KVL_ROPE_KINDS] */
    double *freq;                                /* [n_freqs] frequencies of all of them */
    size_t n_freqs;
    int32_t n_ctx_short; /* longest context of the short factors of LongRoPE; 0: there are none */
    bool rope_dynamic;   /* frequencies are known up to n_ctx_train alone */
    bool dual_chunks;    /* beyond n_ctx_train attention is by chunks, which is not computed */
    float scale;         /* of q.k */
    float cap;           /* logits become cap * tanh(logit / cap); 0 = none */
    struct kvl_layer_weights *layer; /* [n_layers] */
    bool tied;
    /* the whole */
    bool parallel;     /* attention and MLP of a layer read and add to the same */
    bool experts_norm; /* weights of the chosen experts sum to 1 */
    float embed_scale; /* 1 = none */
    float final_cap;   /* logits become final_cap * tanh(logit / final_cap); 0 = none */
};

/* Rows first .. first + n - 1 of a matrix. */
struct kvl_weight kvl_weight_rows(const struct kvl_weight *w, int32_t first, int32_t n);

/* Fills `out`, which kvl_weights_free releases: what keys and shapes say.  The data is not looked at. */
int kvl_weights_find(const struct kvl_gguf *file, struct kvl_weights *out, struct kvl_err *err);
/* Reads all bytes once: every weight is finite, and `hash` (NULL: not wanted) is kvl_gguf_hash's. */
int kvl_weights_scan(const struct kvl_gguf *file, char hash[33], struct kvl_err *err);
/* Both. */
int kvl_weights_load(const struct kvl_gguf *file, struct kvl_weights *out, struct kvl_err *err);
void kvl_weights_free(struct kvl_weights *w);

#endif
