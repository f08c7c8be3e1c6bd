/* weights.h - the shape and the weights of a model in a GGUF file.
 *
 * Its architecture is a row of arch.h's table.  Matrices have any type of kvl/wtypes.def and stay in the file;
 * norms and rope_freqs must be F32.  A file with anything that would change the result and that
 * kvlab does not compute (experts, sliding windows, biases, other rope scalings, tensors of no known
 * meaning) is refused, and so is a weight that is not finite.
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
    int32_t head_dim; /* even; n_heads * head_dim may differ from n_embd */
    int32_t n_ff, n_vocab, n_ctx_train;
    double rms_eps, freq_base;
    double rope_factor; /* linear position scaling, 1 = none */
};

struct kvl_layer_weights {
    const float *attn_norm, *ffn_norm; /* [n_embd] */
    const float *attn_q_bias; /* [n_heads * head_dim]; biases are NULL where there are none */
    const float *attn_k_bias, *attn_v_bias; /* [n_kv_heads * head_dim] */
    struct kvl_weight attn_q;               /* [n_heads * head_dim][n_embd] */
    struct kvl_weight attn_k, attn_v;       /* [n_kv_heads * head_dim][n_embd] */
    struct kvl_weight attn_output;          /* [n_embd][n_heads * head_dim] */
    struct kvl_weight ffn_gate, ffn_up;     /* [n_ff][n_embd] */
    struct kvl_weight ffn_down;             /* [n_embd][n_ff] */
    const struct kvl_rope *rope;            /* how this layer turns: one of struct kvl_weights */
};

/* Everything but `layer` and frequencies is borrowed from the file, which must stay open. */
struct kvl_weights {
    const struct kvl_arch *arch;
    struct kvl_hparams hparams;
    struct kvl_weight embed;  /* [n_vocab][n_embd] */
    struct kvl_weight output; /* [n_vocab][n_embd]; equal to embed in a tied model */
    const float *output_norm; /* [n_embd] */
    const float *rope_freqs;  /* [head_dim / 2] divisors of the frequencies, or NULL */
    struct kvl_rope *rope;    /* [n_ropes] the ways in which layers turn */
    int32_t n_ropes;
    double *freq; /* [n_freqs] frequencies of all of them */
    size_t n_freqs;
    float scale;                     /* of q.k */
    struct kvl_layer_weights *layer; /* [n_layers] */
    bool tied;
};

/* Fills `out`, which kvl_weights_free releases.  Reads every weight once to see that it is finite. */
int kvl_weights_load(const struct kvl_gguf *file, struct kvl_weights *out, struct kvl_err *err);
void kvl_weights_free(struct kvl_weights *w);

#endif
