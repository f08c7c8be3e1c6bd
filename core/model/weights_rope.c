/* How the heads of every layer turn with their position: which frequencies, which part of a head, what factor.
 *
 * YaRN: Peng et al. 2023, section 3.2-3.4. */
#include "weights_impl.h"

#include <math.h>
#include <string.h>

/* ---- keys ----------------------------------------------------------------------------------------- */

static int rope_scaling(struct kvl_loader *l)
{
    static const struct {
        const char *name;
        enum kvl_rope_scaling scaling;
    } row[] = {
        { "linear", KVL_SCALING_LINEAR },
        { "none", KVL_SCALING_NONE },
        { "yarn", KVL_SCALING_YARN },
    };
    const char *key = kvl_key_of(l, "rope.scaling.type");
    struct kvl_str type = { "linear", 6 };
    char shown[GGUF_SHOWN + 4];
    if (kvl_gguf_has(l->g, key)) KVL_TRY(kvl_gguf_str(l->g, key, &type, l->err));
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        if (strlen(row[i].name) == type.len && memcmp(row[i].name, type.s, type.len) == 0) {
            l->rope.scaling = row[i].scaling;
            return KVL_OK;
        }
    return kvl_fail(l->err, KVL_EMODEL,
                    "key \"%s\" is \"%s\", want \"none\", \"linear\" or \"yarn\"", key,
                    kvl_gguf_show(type.s, type.len, shown));
}

static int rope_dimensions(struct kvl_loader *l)
{
    struct kvl_hparams *h = &l->w->hparams;
    int64_t def = h->head_dim;
    KVL_TRY(kvl_key_count(l, "rope.dimension_count", KVL_MAX_WIDTH, &def, &h->n_rot));
    if (h->n_rot % 2 == 0 && h->n_rot <= h->head_dim) return KVL_OK;
    return kvl_fail(l->err, KVL_EMODEL,
                    "key \"%s\" is %d, want an even number, at most the head dimension %d",
                    kvl_key_of(l, "rope.dimension_count"), h->n_rot, h->head_dim);
}

int kvl_load_rope_keys(struct kvl_loader *l)
{
    struct kvl_rope_keys *r = &l->rope;
    const double base = 10000, one = 1, fast = 32;
    int64_t n_ctx = l->w->hparams.n_ctx_train;
    KVL_TRY(rope_scaling(l));
    KVL_TRY(rope_dimensions(l));
    bool given = kvl_gguf_has(l->g, kvl_key_of(l, "rope.scaling.factor"));
    const char *factor = given ? "rope.scaling.factor" : "rope.scale_linear";
    KVL_TRY(kvl_key_positive(l, "rope.freq_base", &base, 1e15, &r->base));
    KVL_TRY(kvl_key_positive(l, factor, &one, 1e9, &r->factor));
    KVL_TRY(kvl_key_positive(l, "rope.scaling.attn_factor", &one, 1e3, &r->attn_factor));
    KVL_TRY(kvl_key_positive(l, "rope.scaling.yarn_beta_fast", &fast, 1e9, &r->beta_fast));
    KVL_TRY(kvl_key_positive(l, "rope.scaling.yarn_beta_slow", &one, 1e9, &r->beta_slow));
    KVL_TRY(kvl_key_usual(l, "rope.scaling.yarn_ext_factor", 1));
    KVL_TRY(kvl_key_usual(l, "rope.scaling.yarn_attn_factor", 1));
    KVL_TRY(kvl_key_usual(l, "rope.scaling.yarn_log_multiplier", 0));
    return kvl_key_count(l, "rope.scaling.original_context_length", KVL_MAX_CONTEXT, &n_ctx,
                         &r->n_ctx_orig);
}

/* ---- frequencies ------------------------------------------------------------------------------------ */

/* The pair, as a fraction, that turns `rotations` times within the original context. */
static double yarn_pair(const struct kvl_rope_keys *r, int32_t n_rot, double rotations)
{
    const double pi = 3.14159265358979323846;
    return n_rot * log(r->n_ctx_orig / (2 * pi * rotations)) / (2 * log(r->base));
}

/* What is left of a frequency: fast pairs keep theirs, slow ones are divided, those between are mixed. */
static double yarn_share(const struct kvl_rope_keys *r, int32_t n_rot, int32_t i)
{
    double low = floor(yarn_pair(r, n_rot, r->beta_fast));
    double high = ceil(yarn_pair(r, n_rot, r->beta_slow));
    low = fmax(low, 0);
    high = fmin(high, n_rot - 1);
    double divided = fmin(fmax((i - low) / fmax(high - low, 0.001), 0), 1);
    return 1 - divided + divided / r->factor;
}

static double rope_share(const struct kvl_rope_keys *r, int32_t n_rot, int32_t i)
{
    if (r->scaling == KVL_SCALING_NONE) return 1;
    return r->scaling == KVL_SCALING_YARN ? yarn_share(r, n_rot, i) : 1 / r->factor;
}

static float rope_mag(const struct kvl_rope_keys *r)
{
    bool yarn = r->scaling == KVL_SCALING_YARN && r->factor > 1;
    return (float)(r->attn_factor * (yarn ? 1 + 0.1 * log(r->factor) : 1));
}

/* theta_i = base^(-2i / n_rot), less what scaling takes, / rope_freqs[i] */
static int load_frequencies(struct kvl_loader *l, double *freq)
{
    const struct kvl_weights *w = l->w;
    int32_t n_rot = w->hparams.n_rot;
    for (int32_t i = 0; i < n_rot / 2; i++) {
        double divisor = w->rope_freqs ? (double)w->rope_freqs[i] : 1;
        if (!(divisor > 0))
            return kvl_fail(l->err, KVL_EMODEL,
                            "tensor \"rope_freqs.weight\" element %d is %g, want above 0", i,
                            divisor);
        freq[i] = pow(l->rope.base, -2.0 * i / n_rot) * rope_share(&l->rope, n_rot, i) / divisor;
        if (!isfinite(freq[i]))
            return kvl_fail(l->err, KVL_EMODEL,
                            "frequency %d of the rotation is %g: base %g, scaling factor %g, "
                            "divisor %g",
                            i, freq[i], l->rope.base, l->rope.factor, divisor);
    }
    return KVL_OK;
}

/* ---- layers --------------------------------------------------------------------------------------- */

static enum kvl_rope_kind layer_kind(const struct kvl_weights *w, int32_t layer)
{
    int32_t step = w->arch->nope_step;
    return step > 0 && (layer + 1) % step == 0 ? KVL_ROPE_NOT : KVL_ROPE_GLOBAL;
}

int kvl_load_ropes(struct kvl_loader *l)
{
    struct kvl_weights *w = l->w;
    size_t n = (size_t)w->hparams.n_rot / 2;
    if (kvl_gguf_tensor(l->g, "rope_freqs.weight"))
        KVL_TRY(kvl_take_vector(l, "rope_freqs.weight", (int64_t)n, &w->rope_freqs));
    w->n_freqs = KVL_ROPE_KINDS * n;
    w->rope = kvl_alloc(KVL_ROPE_KINDS, sizeof *w->rope);
    w->freq = kvl_alloc(w->n_freqs, sizeof *w->freq); /* zero: nothing turns */
    if (!w->rope || !w->freq) return kvl_fail(l->err, KVL_ENOMEM, "no memory for frequencies");
    for (int32_t k = 0; k < KVL_ROPE_KINDS; k++)
        w->rope[k] = (struct kvl_rope){ .inv_freq = w->freq + (size_t)k * n,
                                        .n_rot = w->hparams.n_rot,
                                        .style = l->g->hf_dir ? w->arch->hf_rope : w->arch->rope,
                                        .mag = 1 };
    KVL_TRY(load_frequencies(l, w->freq + KVL_ROPE_GLOBAL * n));
    w->rope[KVL_ROPE_GLOBAL].mag = rope_mag(&l->rope);
    for (int32_t i = 0; i < w->hparams.n_layers; i++) w->layer[i].rope = &w->rope[layer_kind(w, i)];
    return KVL_OK;
}
