/* What a model is, in lines for people. */
#include "model_impl.h"

#include <stdio.h>

static int about_shape(const struct kvl_model *m, struct kvl_buf *out)
{
    const struct kvl_hparams *h = &m->w.hparams;
    KVL_TRY(kvl_buf_printf(out,
                           "%-14s %d layers, %d query and %d kv heads of %d, embedding %d, "
                           "feed-forward %d",
                           "shape", h->n_layers, h->n_heads, h->n_kv_heads, h->head_dim, h->n_embd,
                           h->n_ff));
    if (h->n_experts)
        KVL_TRY(kvl_buf_printf(out, ", %d of %d experts", h->n_experts_used, h->n_experts));
    KVL_TRY(kvl_buf_printf(out, ", vocabulary %d\n", h->n_vocab));
    return kvl_buf_printf(out, "%-14s %d tokens%s\n", "context", h->n_ctx_train,
                          m->w.dual_chunks ? ", one chunk of dual chunks" : "");
}

/* The file's word, or what its tensors tell. */
static struct kvl_str about_scaling(const struct kvl_model *m)
{
    char key[96];
    struct kvl_str type = { "none", 4 };
    struct kvl_err ignored = { 0 };
    if (m->w.n_ctx_short) return (struct kvl_str){ "longrope", 8 };
    if (kvl_gguf_tensor(m->file, "rope_freqs.weight"))
        return (struct kvl_str){ "by rope_freqs", 13 };
    snprintf(key, sizeof key, "%s.rope.scaling.type", m->w.arch->name);
    if (kvl_gguf_has(m->file, key)) (void)kvl_gguf_str(m->file, key, &type, &ignored);
    return type;
}

static int about_rope(const struct kvl_model *m, struct kvl_buf *out)
{
    const struct kvl_weights *w = &m->w;
    const struct kvl_hparams *h = &w->hparams;
    struct kvl_str scaling = about_scaling(m);
    int32_t none = 0, local = 0;
    for (int32_t i = 0; i < h->n_layers; i++) {
        none += w->layer[i].rope == &w->rope[KVL_ROPE_NOT];
        local += w->layer[i].rope == &w->rope[KVL_ROPE_LOCAL];
    }
    if (w->positions.data)
        return kvl_buf_printf(out, "%-14s learned, %d of them; keys do not turn\n", "positions",
                              h->n_ctx_train);
    KVL_TRY(kvl_buf_printf(out, "%-14s RoPE of %d of %d elements, scaling %.*s", "positions",
                           h->n_rot, h->head_dim, (int)scaling.len, scaling.s));
    if (local) KVL_TRY(kvl_buf_printf(out, ", another base in %d layers", local));
    if (none) KVL_TRY(kvl_buf_printf(out, ", none in %d layers", none));
    return kvl_buf_adds(out, "\n");
}

static int about_windows(const struct kvl_model *m, struct kvl_buf *out)
{
    int32_t n = 0, window = 0, all = m->w.hparams.n_layers;
    for (int32_t i = 0; i < all; i++) {
        n += m->w.layer[i].window > 0;
        window = KVL_MAX(window, m->w.layer[i].window);
    }
    if (n == 0) return KVL_OK;
    return kvl_buf_printf(out, "%-14s of %d tokens in %d of %d layers\n", "window", window, n, all);
}

int kvl_model_about(const struct kvl_model *m, struct kvl_buf *out)
{
    KVL_TRY(about_shape(m, out));
    KVL_TRY(about_rope(m, out));
    return about_windows(m, out);
}
