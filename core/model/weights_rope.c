/* How the heads of every layer turn with their position. */
#include "weights_impl.h"

#include <math.h>
#include <string.h>

int kvl_load_rope_keys(struct kvl_loader *l)
{
    struct kvl_hparams *h = &l->w->hparams;
    const char *type_key = kvl_key_of(l, "rope.scaling.type");
    const double base = 10000, one = 1;
    struct kvl_str type = { "linear", 6 };
    char shown[GGUF_SHOWN + 4];
    if (kvl_gguf_has(l->g, type_key)) KVL_TRY(kvl_gguf_str(l->g, type_key, &type, l->err));
    bool none = type.len == 4 && memcmp(type.s, "none", 4) == 0;
    if (!none && !(type.len == 6 && memcmp(type.s, "linear", 6) == 0))
        return kvl_fail(l->err, KVL_EMODEL, "key \"%s\" is \"%s\", want \"none\" or \"linear\"",
                        type_key, kvl_gguf_show(type.s, type.len, shown));
    bool given = kvl_gguf_has(l->g, kvl_key_of(l, "rope.scaling.factor"));
    const char *factor = given ? "rope.scaling.factor" : "rope.scale_linear";
    KVL_TRY(kvl_key_positive(l, "rope.freq_base", &base, 1e15, &h->freq_base));
    KVL_TRY(kvl_key_positive(l, factor, &one, 1e9, &h->rope_factor));
    if (none) h->rope_factor = 1;
    return kvl_key_usual(l, "rope.scaling.attn_factor", 1);
}

/* theta_i = base^(-2i / n_rot) / rope_freqs[i] / factor */
static int load_frequencies(struct kvl_loader *l, struct kvl_rope *rope, double *freq)
{
    struct kvl_weights *w = l->w;
    const struct kvl_hparams *h = &w->hparams;
    *rope = (struct kvl_rope){ .inv_freq = freq,
                               .n_rot = h->head_dim,
                               .style = l->g->hf_dir ? w->arch->hf_rope : w->arch->rope,
                               .mag = 1 };
    for (int32_t i = 0; i < rope->n_rot / 2; i++) {
        double divisor = w->rope_freqs ? (double)w->rope_freqs[i] : 1;
        if (!(divisor > 0))
            return kvl_fail(l->err, KVL_EMODEL,
                            "tensor \"rope_freqs.weight\" element %d is %g, want above 0", i,
                            divisor);
        freq[i] = pow(h->freq_base, -2.0 * i / rope->n_rot) / divisor / h->rope_factor;
        if (!isfinite(freq[i]))
            return kvl_fail(
                l->err, KVL_EMODEL,
                "tensor \"rope_freqs.weight\" element %d is %g: the frequency overflows", i,
                divisor);
    }
    return KVL_OK;
}

int kvl_load_ropes(struct kvl_loader *l)
{
    struct kvl_weights *w = l->w;
    if (kvl_gguf_tensor(l->g, "rope_freqs.weight"))
        KVL_TRY(kvl_take_vector(l, "rope_freqs.weight", w->hparams.head_dim / 2, &w->rope_freqs));
    w->n_ropes = 1;
    w->n_freqs = (size_t)w->n_ropes * (size_t)w->hparams.head_dim / 2;
    w->rope = kvl_alloc((size_t)w->n_ropes, sizeof *w->rope);
    w->freq = kvl_alloc(w->n_freqs, sizeof *w->freq);
    if (!w->rope || !w->freq) return kvl_fail(l->err, KVL_ENOMEM, "no memory for frequencies");
    KVL_TRY(load_frequencies(l, &w->rope[0], w->freq));
    for (int32_t i = 0; i < w->hparams.n_layers; i++) w->layer[i].rope = &w->rope[0];
    return KVL_OK;
}
