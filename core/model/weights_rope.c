/* How the heads of every layer turn with their position: which frequencies, which part of a head, what factor.
 *
 * YaRN: Peng et al. 2023, section 3.2-3.4.  LongRoPE: Ding et al. 2024, with the two sets of factors of Phi-3. */
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
        { "linear", KVL_SCALING_LINEAR },   { "none", KVL_SCALING_NONE },
        { "yarn", KVL_SCALING_YARN },       { "longrope", KVL_SCALING_LONGROPE },
        { "dynamic", KVL_SCALING_DYNAMIC },
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
                    "key \"%s\" is \"%s\", want \"none\", \"linear\", \"yarn\", \"longrope\" or "
                    "\"dynamic\"",
                    key, kvl_gguf_show(type.s, type.len, shown));
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

static int rope_yarn(struct kvl_loader *l)
{
    struct kvl_rope_keys *r = &l->rope;
    const double fast = 32, slow = 1;
    KVL_TRY(kvl_key_positive(l, "rope.scaling.yarn_beta_fast", &fast, 1e9, &r->beta_fast));
    KVL_TRY(kvl_key_positive(l, "rope.scaling.yarn_beta_slow", &slow, 1e9, &r->beta_slow));
    return kvl_key_bool(l, "rope.scaling.yarn_truncate", !l->w->arch->exact_yarn, &r->truncate);
}

/* Of layers with a window. */
static int rope_local(struct kvl_loader *l)
{
    const struct kvl_arch *a = l->w->arch;
    const double base = a->local_base > 0 ? a->local_base : l->rope.base;
    double *local = &l->rope.base_local;
    KVL_TRY(kvl_key_positive(l, "rope.freq_base_swa", &base, 1e15, local));
    if (a->local_base > 0 || fabs(*local - base) <= 1e-6 * base) return KVL_OK;
    return kvl_fail(l->err, KVL_EMODEL, "key \"%s\" is %g, a %s model turns all layers by %g",
                    kvl_key_of(l, "rope.freq_base_swa"), *local, a->name, base);
}

/* Where no layer turns, a key that says how would be lost. */
static int rope_none(struct kvl_loader *l)
{
    const char *all = kvl_key_of(l, "rope.");
    size_t n = strlen(all);
    char shown[GGUF_SHOWN + 4];
    for (size_t i = 0; i < l->g->n_keys; i++) {
        const struct kvl_str *key = &l->g->key[i].name;
        if (key->len > n && memcmp(key->s, all, n) == 0)
            return kvl_fail(l->err, KVL_EMODEL, "key \"%s\" is there: no layer of a %s model turns",
                            kvl_gguf_show(key->s, key->len, shown), l->w->arch->name);
    }
    return KVL_OK;
}

int kvl_load_rope_keys(struct kvl_loader *l)
{
    struct kvl_rope_keys *r = &l->rope;
    const double base = 10000, one = 1;
    int64_t n_ctx = l->w->hparams.n_ctx_train;
    if (l->w->arch->nope_step == 1) KVL_TRY(rope_none(l));
    KVL_TRY(rope_scaling(l));
    KVL_TRY(rope_dimensions(l));
    bool given = kvl_gguf_has(l->g, kvl_key_of(l, "rope.scaling.factor"));
    const char *factor = given ? "rope.scaling.factor" : "rope.scale_linear";
    KVL_TRY(kvl_key_positive(l, "rope.freq_base", &base, 1e15, &r->base));
    KVL_TRY(kvl_key_positive(l, factor, &one, 1e9, &r->factor));
    given = kvl_gguf_has(l->g, kvl_key_of(l, "rope.scaling.attn_factor"));
    KVL_TRY(kvl_key_positive(l, "rope.scaling.attn_factor", &one, 1e3, &r->attn_factor));
    if (!given) r->attn_factor = 0;
    l->w->rope_dynamic = r->scaling == KVL_SCALING_DYNAMIC && r->factor > 1;
    KVL_TRY(rope_yarn(l));
    KVL_TRY(rope_local(l));
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
    double low = yarn_pair(r, n_rot, r->beta_fast), high = yarn_pair(r, n_rot, r->beta_slow);
    low = fmax(r->truncate ? floor(low) : low, 0);
    high = fmin(r->truncate ? ceil(high) : high, n_rot - 1);
    double divided = fmin(fmax((i - low) / fmax(high - low, 0.001), 0), 1);
    return 1 - divided + divided / r->factor;
}

static double rope_share(const struct kvl_rope_keys *r, int32_t n_rot, int32_t i)
{
    if (r->scaling == KVL_SCALING_YARN) return yarn_share(r, n_rot, i);
    return r->scaling == KVL_SCALING_LINEAR ? 1 / r->factor : 1;
}

/* Of LongRoPE, where the file does not say: by how much the context grew. */
static double long_mag(const struct kvl_rope_keys *r, int32_t n_ctx)
{
    double growth = (double)n_ctx / r->n_ctx_orig;
    return growth > 1 ? sqrt(1 + log(growth) / log(r->n_ctx_orig)) : 1;
}

static double rope_mag(const struct kvl_loader *l)
{
    const struct kvl_rope_keys *r = &l->rope;
    bool given = r->attn_factor > 0;
    double yarn = r->scaling == KVL_SCALING_YARN && r->factor > 1 ? 1 + 0.1 * log(r->factor) : 1;
    if (!given && l->w->n_ctx_short > 0) return long_mag(r, l->w->hparams.n_ctx_train);
    return yarn * (given ? r->attn_factor : 1);
}

/* theta_i = base^(-2i / n_rot), less what scaling takes, / divisor[i], which tensor `name` gives or NULL. */
static int load_frequencies(struct kvl_loader *l, enum kvl_rope_kind kind, const char *name)
{
    struct kvl_weights *w = l->w;
    const float *divisor = NULL;
    int32_t n_rot = w->hparams.n_rot;
    double *freq = w->freq + (size_t)kind * (size_t)n_rot / 2;
    bool local = kind == KVL_ROPE_LOCAL;
    if (name) KVL_TRY(kvl_take_vector(l, name, n_rot / 2, &divisor));
    for (int32_t i = 0; i < n_rot / 2; i++) {
        double d = divisor ? (double)divisor[i] : 1;
        if (!(d > 0))
            return kvl_fail(l->err, KVL_EMODEL, "tensor \"%s\" element %d is %g, want above 0",
                            name, i, d);
        freq[i] = pow(local ? l->rope.base_local : l->rope.base, -2.0 * i / n_rot) *
                  (local ? 1 : rope_share(&l->rope, n_rot, i)) / d;
        if (!isfinite(freq[i]))
            return kvl_fail(l->err, KVL_EMODEL,
                            "frequency %d of the rotation is %g: base %g, scaling factor %g, "
                            "divisor %g",
                            i, freq[i], l->rope.base, l->rope.factor, d);
    }
    w->rope[kind].mag = local ? 1 : (float)rope_mag(l);
    return KVL_OK;
}

/* ---- layers --------------------------------------------------------------------------------------- */

/* rope.layer_pattern, of folders alone: one bool per layer, whether it turns; NULL: the row says. */
static int layer_pattern(struct kvl_loader *l, const uint8_t **out)
{
    const char *key = kvl_key_of(l, "rope.layer_pattern");
    enum kvl_gguf_type elem;
    const void *data;
    int64_t n;
    *out = NULL;
    if (l->w->arch->nope_step < 2 || !kvl_gguf_has(l->g, key)) return KVL_OK;
    KVL_TRY(kvl_gguf_arr(l->g, key, &elem, &n, &data, l->err));
    if (n != l->w->hparams.n_layers || elem != KVL_GGUF_BOOL)
        return kvl_fail(l->err, KVL_EMODEL,
                        "key \"%s\" has %lld elements of type %s, want %d bools", key, (long long)n,
                        kvl_gguf_type_name((uint32_t)elem), l->w->hparams.n_layers);
    *out = data;
    return KVL_OK;
}

static enum kvl_rope_kind layer_kind(const struct kvl_weights *w, const uint8_t *turns,
                                     int32_t layer)
{
    int32_t step = w->arch->nope_step;
    bool still = turns ? !turns[layer] : step > 0 && (layer + 1) % step == 0;
    if (still) return KVL_ROPE_NOT;
    return w->arch->local_base > 0 && w->layer[layer].window > 0 ? KVL_ROPE_LOCAL : KVL_ROPE_GLOBAL;
}

static int alloc_ropes(struct kvl_loader *l)
{
    struct kvl_weights *w = l->w;
    size_t n = (size_t)w->hparams.n_rot / 2;
    w->n_freqs = KVL_ROPE_KINDS * n;
    w->rope = kvl_alloc(KVL_ROPE_KINDS, sizeof *w->rope);
    w->freq = kvl_alloc(w->n_freqs, sizeof *w->freq); /* zero: nothing turns */
    if (!w->rope || !w->freq) return kvl_fail(l->err, KVL_ENOMEM, "no memory for frequencies");
    for (int32_t k = 0; k < KVL_ROPE_KINDS; k++)
        w->rope[k] = (struct kvl_rope){ .inv_freq = w->freq + (size_t)k * n,
                                        .n_rot = w->hparams.n_rot,
                                        .style = l->g->hf_dir ? w->arch->hf_rope : w->arch->rope,
                                        .mag = 1 };
    return KVL_OK;
}

/* One set of factors for contexts up to the original one, one for longer ones. */
static int load_long(struct kvl_loader *l)
{
    struct kvl_weights *w = l->w;
    if (l->rope.n_ctx_orig < 2)
        return kvl_fail(l->err, KVL_EMODEL, "key \"%s\" is %d, want 2 or more",
                        kvl_key_of(l, "rope.scaling.original_context_length"), l->rope.n_ctx_orig);
    w->n_ctx_short = l->rope.n_ctx_orig;
    KVL_TRY(load_frequencies(l, KVL_ROPE_GLOBAL, "rope_factors_short.weight"));
    return load_frequencies(l, KVL_ROPE_LONG, "rope_factors_long.weight");
}

int kvl_load_ropes(struct kvl_loader *l)
{
    struct kvl_weights *w = l->w;
    bool divided = kvl_gguf_tensor(l->g, "rope_freqs.weight");
    bool factors = l->rope.scaling == KVL_SCALING_LONGROPE ||
                   kvl_gguf_tensor(l->g, "rope_factors_short.weight") ||
                   kvl_gguf_tensor(l->g, "rope_factors_long.weight");
    const uint8_t *turns;
    KVL_TRY(layer_pattern(l, &turns));
    KVL_TRY(alloc_ropes(l));
    KVL_TRY(factors ? load_long(l)
                    : load_frequencies(l, KVL_ROPE_GLOBAL, divided ? "rope_freqs.weight" : NULL));
    if (w->arch->local_base > 0) KVL_TRY(load_frequencies(l, KVL_ROPE_LOCAL, NULL));
    for (int32_t i = 0; i < w->hparams.n_layers; i++) {
        enum kvl_rope_kind kind = layer_kind(w, turns, i);
        w->layer[i].rope = &w->rope[kind];
        if (factors && kind == KVL_ROPE_GLOBAL) w->layer[i].rope_long = &w->rope[KVL_ROPE_LONG];
    }
    return KVL_OK;
}
