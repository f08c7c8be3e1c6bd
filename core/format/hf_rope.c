/* What config.json says of positions -> keys and tensors of a GGUF file. */
#include "hf_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double rope_zero = 0, rope_one = 1;
#define HF_MAX_BASE 1e15

/* rope_parameters (transformers 5) or rope_scaling; NULL: neither. */
static const json_t *rope_object(const struct hf *h)
{
    if (kvl_hf_has(h->config, "rope_parameters"))
        return json_object_get(h->config, "rope_parameters");
    return kvl_hf_has(h->config, "rope_scaling") ? json_object_get(h->config, "rope_scaling")
                                                 : NULL;
}

static const char *rope_type(const json_t *rope)
{
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    if (!type) type = json_string_value(json_object_get(rope, "type"));
    return type ? type : "default";
}

/* A word that is not read would be lost in silence. */
static int rope_check_words(struct hf *h, const json_t *rope)
{
    static const char *const known[] = {
        "rope_type",        "type",        "rope_theta",      "factor",
        "attention_factor", "beta_fast",   "beta_slow",       "original_max_position_embeddings",
        "short_factor",     "long_factor", "low_freq_factor", "high_freq_factor",
        "mscale",           "truncate",    "mscale_all_dim",  "partial_rotary_factor",
        "finetuned",
    };
    char shown[GGUF_SHOWN + 4];
    const char *word;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)rope, word, v)
    {
        bool is = json_is_null(v);
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            is |= strcmp(word, known[i]) == 0;
        if (!is)
            return kvl_fail(h->err, KVL_EMODEL, "config.json: \"%s\" in %s is not supported",
                            kvl_gguf_show(word, strlen(word), shown),
                            kvl_hf_has(h->config, "rope_parameters") ? "rope_parameters"
                                                                     : "rope_scaling");
    }
    return KVL_OK;
}

/* ---- the kinds of scaling -------------------------------------------------------------------- */

static int rope_floats(struct hf *h, const char *name, int32_t n, float **out)
{
    struct hf_floats *f = &h->more[h->n_more++];
    snprintf(f->name, sizeof f->name, "%s", name);
    f->n = n;
    f->x = kvl_alloc((size_t)n, sizeof *f->x);
    *out = f->x;
    return f->x ? KVL_OK : KVL_ENOMEM;
}

static int rope_none(struct hf *h, const json_t *rope)
{
    (void)rope;
    return kvl_hf_str(h, ".rope.scaling.type", "none", 4);
}

static int rope_linear(struct hf *h, const json_t *rope)
{
    double factor;
    KVL_TRY(kvl_hf_num(h, rope, "factor", NULL, &factor));
    KVL_TRY(kvl_hf_str(h, ".rope.scaling.type", "linear", 6));
    return kvl_hf_f32(h, ".rope.scaling.factor", factor);
}

/* Changes nothing up to the context length; beyond it the engine refuses. */
static int rope_dynamic(struct hf *h, const json_t *rope)
{
    double factor;
    KVL_TRY(kvl_hf_num(h, rope, "factor", NULL, &factor));
    KVL_TRY(kvl_hf_str(h, ".rope.scaling.type", "dynamic", 7));
    return kvl_hf_f32(h, ".rope.scaling.factor", factor);
}

/* Divisors of the frequencies: 1 for waves shorter than orig / high, the factor for those longer than orig / low. */
static int rope_llama3(struct hf *h, const json_t *rope)
{
    double factor, low, high, orig, base;
    float *x;
    KVL_TRY(kvl_hf_num(h, rope, "factor", NULL, &factor));
    KVL_TRY(kvl_hf_num(h, rope, "low_freq_factor", NULL, &low));
    KVL_TRY(kvl_hf_num(h, rope, "high_freq_factor", NULL, &high));
    KVL_TRY(kvl_hf_num(h, rope, "original_max_position_embeddings", NULL, &orig));
    base = h->rope_base;
    if (!(factor > 0) || !(low > 0) || !(high > low) || !(orig > 0))
        return kvl_fail(h->err, KVL_EMODEL,
                        "config.json: llama3 scaling with factor %g, low_freq_factor %g, "
                        "high_freq_factor %g and original_max_position_embeddings %g",
                        factor, low, high, orig);
    KVL_TRY(rope_floats(h, "rope_freqs.weight", h->n_rot / 2, &x));
    for (int32_t i = 0; i < h->n_rot / 2; i++) {
        double wave = 2 * 3.14159265358979323846 * pow(base, 2.0 * i / h->n_rot);
        double s = (orig / wave - low) / (high - low);
        double divisor = wave < orig / high  ? 1
                         : wave > orig / low ? factor
                                             : 1 / ((1 - s) / factor + s);
        x[i] = (float)divisor;
    }
    return KVL_OK;
}

/* g(m) of the paper's magnitude */
static double rope_mscale(double m, double factor)
{
    return factor <= 1 ? 1 : 1 + 0.1 * m * log(factor);
}

/* A GGUF file's attn_factor multiplies g(1), which the reader adds. */
static int rope_yarn(struct hf *h, const json_t *rope)
{
    double factor, orig, fast, slow, m, all, mag;
    const double ctx = h->n_ctx, usual_fast = 32;
    KVL_TRY(kvl_hf_num(h, rope, "factor", NULL, &factor));
    KVL_TRY(kvl_hf_num(h, rope, "original_max_position_embeddings", &ctx, &orig));
    KVL_TRY(kvl_hf_num(h, rope, "beta_fast", &usual_fast, &fast));
    KVL_TRY(kvl_hf_num(h, rope, "beta_slow", &rope_one, &slow));
    KVL_TRY(kvl_hf_num(h, rope, "mscale", &rope_zero, &m));
    KVL_TRY(kvl_hf_num(h, rope, "mscale_all_dim", &rope_zero, &all));
    double one = rope_mscale(1, factor);
    double by_m = m > 0 && all > 0 ? rope_mscale(m, factor) / rope_mscale(all, factor) : one;
    KVL_TRY(kvl_hf_num(h, rope, "attention_factor", &by_m, &mag));
    if (!(factor > 0) || !(orig >= 1 && orig <= 1e9) || !(mag > 0))
        return kvl_fail(h->err, KVL_EMODEL,
                        "config.json: yarn with factor %g, original_max_position_embeddings %g, "
                        "attention_factor %g",
                        factor, orig, mag);
    bool whole = !json_is_false(json_object_get(rope, "truncate"));
    KVL_TRY(kvl_hf_bool(h, ".rope.scaling.yarn_truncate", whole));
    if (fast != 32.0) KVL_TRY(kvl_hf_f32(h, ".rope.scaling.yarn_beta_fast", fast));
    if (slow != 1.0) KVL_TRY(kvl_hf_f32(h, ".rope.scaling.yarn_beta_slow", slow));
    KVL_TRY(kvl_hf_str(h, ".rope.scaling.type", "yarn", 4));
    KVL_TRY(kvl_hf_f32(h, ".rope.scaling.factor", factor));
    KVL_TRY(kvl_hf_u32(h, ".rope.scaling.original_context_length", (uint32_t)orig));
    return mag == one ? KVL_OK : kvl_hf_f32(h, ".rope.scaling.attn_factor", mag / one);
}

static int rope_factors(struct hf *h, const json_t *rope, const char *key, const char *name)
{
    const json_t *list = json_object_get(rope, key);
    int32_t n = h->n_rot / 2;
    float *x;
    KVL_TRY(rope_floats(h, name, n, &x));
    for (int32_t i = 0; i < n; i++) {
        x[i] = (float)json_number_value(json_array_get(list, (size_t)i));
        if (json_array_size(list) != (size_t)n || !(x[i] > 0))
            return kvl_fail(h->err, KVL_EMODEL, "config.json: %s is no list of %d numbers above 0",
                            key, n);
    }
    return KVL_OK;
}

static int rope_longrope(struct hf *h, const json_t *rope)
{
    double orig, mag, factor;
    KVL_TRY(kvl_hf_num(h, rope, "original_max_position_embeddings", &rope_zero, &orig));
    if (orig <= 0)
        KVL_TRY(kvl_hf_num(h, h->config, "original_max_position_embeddings", NULL, &orig));
    if (!(orig > 1 && orig <= 1e9))
        return kvl_fail(h->err, KVL_EMODEL, "config.json: original_max_position_embeddings is %g",
                        orig);
    double ratio = h->n_ctx / orig;
    KVL_TRY(kvl_hf_num(h, rope, "factor", &ratio, &factor));
    double usual = factor <= 1 ? 1 : sqrt(1 + log(factor) / log(orig));
    KVL_TRY(kvl_hf_num(h, rope, "attention_factor", &usual, &mag));
    KVL_TRY(rope_factors(h, rope, "long_factor", "rope_factors_long.weight"));
    KVL_TRY(rope_factors(h, rope, "short_factor", "rope_factors_short.weight"));
    KVL_TRY(kvl_hf_u32(h, ".rope.scaling.original_context_length", (uint32_t)orig));
    return kvl_hf_f32(h, ".rope.scaling.attn_factor", mag);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static int rope_scaling(struct hf *h, const json_t *rope)
{
    static const struct {
        const char *type;
        int (*fill)(struct hf *h, const json_t *rope);
    } row[] = {
        { "default", rope_none },      { "linear", rope_linear }, { "llama3", rope_llama3 },
        { "longrope", rope_longrope }, { "su", rope_longrope },   { "yarn", rope_yarn },
        { "dynamic", rope_dynamic },
    };
    const char *type = rope_type(rope);
    char shown[GGUF_SHOWN + 4];
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        if (strcmp(type, row[i].type) == 0) return row[i].fill(h, rope);
    return kvl_fail(h->err, KVL_EMODEL, "config.json: rope_type is \"%s\", which is not supported",
                    kvl_gguf_show(type, strlen(type), shown));
}

/* rope_local_base_freq, or what rope_parameters says of layers with a window. */
static int rope_local_base(struct hf *h)
{
    const json_t *rope = json_object_get(rope_object(h), "sliding_attention");
    const double usual = 10000;
    double top, base;
    KVL_TRY(rope_check_words(h, rope));
    if (strcmp(rope_type(rope), "default") != 0)
        return kvl_fail(h->err, KVL_EMODEL,
                        "config.json: rope_type of sliding_attention is not default");
    KVL_TRY(kvl_hf_num(h, h->config, "rope_local_base_freq", &usual, &top));
    KVL_TRY(kvl_hf_num(h, rope, "rope_theta", &top, &base));
    return kvl_hf_f32(h, ".rope.freq_base_swa", base);
}

static int rope_base(struct hf *h, const json_t *rope)
{
    const double usual = 10000;
    double top, ratio;
    const char *key = kvl_hf_has(h->config, "rotary_emb_base") ? "rotary_emb_base" : "rope_theta";
    KVL_TRY(kvl_hf_num(h, h->config, "rope_ratio", &rope_one, &ratio)); /* GLM's own */
    KVL_TRY(kvl_hf_num(h, h->config, key, &usual, &top));
    KVL_TRY(kvl_hf_num(h, rope, "rope_theta", &top, &h->rope_base));
    if (h->is->flags & HF_OLD_GLM) h->rope_base *= ratio;
    if (!(h->rope_base > 0 && h->rope_base <= HF_MAX_BASE))
        return kvl_fail(h->err, KVL_EMODEL,
                        "config.json: rope_theta is %g, want a number above 0 and at most %g",
                        h->rope_base, HF_MAX_BASE);
    return kvl_hf_f32(h, ".rope.freq_base", h->rope_base);
}

static int rope_dims(struct hf *h, const json_t *rope)
{
    double top, partial;
    const char *key = kvl_hf_has(h->config, "rotary_pct") ? "rotary_pct" : "partial_rotary_factor";
    KVL_TRY(kvl_hf_num(h, h->config, key, &rope_one, &top));
    KVL_TRY(kvl_hf_num(h, rope, "partial_rotary_factor", &top, &partial));
    h->n_rot = (int32_t)(partial * h->head_dim);
    if (partial > 0 && partial <= 1 && h->n_rot >= 2 && h->n_rot % 2 == 0)
        return kvl_hf_u32(h, ".rope.dimension_count", (uint32_t)h->n_rot);
    return kvl_fail(h->err, KVL_EMODEL, "config.json: %s is %g of a head of %d elements", key,
                    partial, h->head_dim);
}

/* no_rope_layers[i] is 1 where layer i turns, whatever its name says; without it every fourth, or as no_rope_layer_interval says, does not. */
int kvl_hf_turns(struct hf *h, int32_t layer, bool *out)
{
    const json_t *list = json_object_get(h->config, "no_rope_layers"), *v;
    const int32_t usual = 4;
    int32_t step;
    if (!kvl_hf_has(h->config, "no_rope_layers")) {
        KVL_TRY(kvl_hf_int(h, h->config, "no_rope_layer_interval", &usual, &step));
        if (step < 1)
            return kvl_fail(h->err, KVL_EMODEL,
                            "config.json: no_rope_layer_interval is 0, want 1 or more");
        *out = (layer + 1) % step != 0;
        return KVL_OK;
    }
    v = json_array_get(list, (size_t)layer);
    if (!json_is_boolean(v) && json_integer_value(v) != 1 &&
        !(json_is_integer(v) && json_integer_value(v) == 0))
        return kvl_fail(
            h->err, KVL_EMODEL,
            "config.json: no_rope_layers[%d] is no 0 or 1, want one for each of %d layers", layer,
            h->n_layers);
    *out = json_is_true(v) || json_integer_value(v) == 1;
    return KVL_OK;
}

/* The architecture's row says that every fourth layer does not turn: other patterns need their key. */
static int rope_layers(struct hf *h)
{
    uint8_t *turns = kvl_alloc((size_t)h->n_layers, 1);
    bool usual = true, it = true;
    int rc = turns ? KVL_OK : KVL_ENOMEM;
    for (int32_t i = 0; i < h->n_layers && rc == KVL_OK; i++) {
        rc = kvl_hf_turns(h, i, &it);
        turns[i] = it;
        usual = usual && it == ((i + 1) % 4 != 0);
    }
    if (rc == KVL_OK && !usual)
        rc = kvl_hf_bools(h, ".rope.layer_pattern", turns, (size_t)h->n_layers);
    kvl_free(turns);
    return rc;
}

int kvl_hf_rope(struct hf *h)
{
    const json_t *rope = rope_object(h);
    bool two = strcmp(h->is->arch, "gemma3") == 0;
    if (h->is->flags & HF_OPT) return KVL_OK; /* positions are learned */
    if (h->is->flags & HF_STILL) KVL_TRY(rope_layers(h));
    if (two) KVL_TRY(rope_local_base(h));
    if (two && json_object_get(rope, "full_attention"))
        rope = json_object_get(rope, "full_attention");
    KVL_TRY(rope_check_words(h, rope));
    KVL_TRY(rope_base(h, rope));
    KVL_TRY(rope_dims(h, rope));
    return rope_scaling(h, rope);
}
