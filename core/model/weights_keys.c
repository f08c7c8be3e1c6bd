/* The keys of a model file that say how it is computed: read, or refused. */
#include "weights_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

const char *kvl_key_of(struct kvl_loader *l, const char *tail)
{
    char *key = l->key[l->i_key ^= 1];
    snprintf(key, sizeof l->key[0], "%s.%s", l->w->arch->name, tail);
    return key;
}

int kvl_key_count(struct kvl_loader *l, const char *tail, int64_t max, const int64_t *def,
                  int32_t *out)
{
    const char *key = kvl_key_of(l, tail);
    const struct gguf_key *k = kvl_gguf_find_key(l->g, key, strlen(key));
    int64_t v = 0, first = 0;
    if (!k || k->type != KVL_GGUF_ARR) {
        KVL_TRY(kvl_gguf_i64(l->g, key, 1, max, def, &v, l->err));
        *out = (int32_t)v;
        return KVL_OK;
    }
    for (uint64_t i = 0; i < k->n; i++) {
        if (!kvl_gguf_int_elem(k->elem, k->data, i, &v)) break;
        if (i == 0) first = v;
        if (v != first || v < 1 || v > max) break;
        if (i + 1 == k->n) {
            *out = (int32_t)v;
            return KVL_OK;
        }
    }
    return kvl_fail(l->err, KVL_EMODEL,
                    "key \"%s\" at offset %zu differs between layers or is not 1 to %lld", key,
                    k->at, (long long)max);
}

int kvl_key_positive(struct kvl_loader *l, const char *tail, const double *def, double max,
                     double *out)
{
    const char *key = kvl_key_of(l, tail);
    KVL_TRY(kvl_gguf_f64(l->g, key, def, out, l->err));
    if (isfinite(*out) && *out > 0 && *out <= max) return KVL_OK;
    return kvl_fail(l->err, KVL_EMODEL, "key \"%s\" is %g, want above 0 and at most %g", key, *out,
                    max);
}

int kvl_key_bool(struct kvl_loader *l, const char *tail, bool def, bool *out)
{
    return kvl_gguf_bool(l->g, kvl_key_of(l, tail), def, out, l->err);
}

int kvl_key_usual(struct kvl_loader *l, const char *tail, double usual)
{
    const char *key = kvl_key_of(l, tail);
    double v;
    KVL_TRY(kvl_gguf_f64(l->g, key, &usual, &v, l->err));
    if (fabs(v - usual) <= 1e-5 * usual) return KVL_OK;
    return kvl_fail(l->err, KVL_EMODEL, "key \"%s\" is %g, only %g is supported", key, v, usual);
}

/* ---- what is not computed ----------------------------------------------------------------------- */

/* Keys that change the computation: each must be absent or say that nothing is changed. */
static int check_integers(struct kvl_loader *l)
{
    static const struct {
        const char *key;
        int64_t min, max;
        bool own; /* the architecture's name comes before it */
    } row[] = {
        { "general.quantization_version", 2, 2, false },
        { "expert_shared_count", 0, 0, true },
        { "expert_shared_feed_forward_length", 0, 0, true },
        { "expert_group_count", 0, 1, true },
        { "expert_group_used_count", 0, 1, true },
        { "interleave_moe_layer_step", 0, 1, true },
        { "leading_dense_block_count", 0, 0, true },
        { "nextn_predict_layers", 0, 0, true },
        { "attention.temperature_length", 0, 0, true },
        { "attention.shared_kv_layers", 0, 0, true },
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const char *key = row[i].own ? kvl_key_of(l, row[i].key) : row[i].key;
        int64_t v;
        KVL_TRY(kvl_gguf_i64(l->g, key, row[i].min, row[i].max, &row[i].max, &v, l->err));
    }
    return KVL_OK;
}

static int check_flags(struct kvl_loader *l)
{
    static const struct {
        const char *key;
        bool want;
    } flag[] = {
        { "attention.causal", true },
    };
    for (size_t i = 0; i < sizeof flag / sizeof flag[0]; i++) {
        bool v;
        KVL_TRY(kvl_key_bool(l, flag[i].key, flag[i].want, &v));
        if (v != flag[i].want)
            return kvl_fail(l->err, KVL_EMODEL, "key \"%s\" is %s, only %s is supported",
                            kvl_key_of(l, flag[i].key), v ? "true" : "false", v ? "false" : "true");
    }
    return KVL_OK;
}

/* Factors are 1, and limits 0 (none), where nothing is changed. */
static int check_scales(struct kvl_loader *l)
{
    static const struct {
        const char *key;
        double usual;
    } row[] = {
        { "logit_scale", 1 },
        { "embedding_scale", 1 },
        { "residual_scale", 1 },
        { "router_logit_softcapping", 0 },
        { "expert_weights_scale", 1 },
        { "attention.output_scale", 1 },
        { "attention.temperature_scale", 0 },
        { "attention.clamp_kqv", 0 },
        { "attention.max_alibi_bias", 0 },
        { "rope.scaling.yarn_ext_factor", 1 },
        { "rope.scaling.yarn_attn_factor", 1 },
        { "rope.scaling.yarn_log_multiplier", 0 },
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        KVL_TRY(kvl_key_usual(l, row[i].key, row[i].usual));
    return KVL_OK;
}

/* Several positions of one token (mrope). */
static int check_sections(struct kvl_loader *l)
{
    const char *key = kvl_key_of(l, "rope.dimension_sections");
    if (!kvl_gguf_has(l->g, key)) return KVL_OK;
    return kvl_fail(l->err, KVL_EMODEL,
                    "key \"%s\" is there: positions of several sections are not supported", key);
}

int kvl_key_neutral(struct kvl_loader *l)
{
    KVL_TRY(check_integers(l));
    KVL_TRY(check_flags(l));
    KVL_TRY(check_scales(l));
    return check_sections(l);
}
