/* Records of texts that are predicted token by token. */
#include "record_text.h"

#include "json.h"
#include "record_parts.h"
#include "stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A text is cut into so many blocks for an interval where a cell has no second one. */
enum { TEXT_BLOCKS = 16 };

int32_t kvl_curve_mark(int32_t mark, int32_t n)
{
    if (mark >= n) return 0;
    bool power = (mark & (mark - 1)) == 0; /* 0 and 1 as well */
    int32_t next = mark < 3 ? mark + 1 : power ? mark + mark / 2 : mark / 3 * 4;
    return KVL_MIN(next, n);
}

/* ---- nll ------------------------------------------------------------------------------------- */

static double text_mean(const double *v, int32_t n)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) sum += v[i];
    return n > 0 ? sum / n : KVL_NAN;
}

/* Five decimals: finer than logits of single precision are. */
static json_t *text_tokens(const struct kvl_text_result *t)
{
    json_t *all = json_array();
    for (int32_t i = 0; i < t->n_tok; i++)
        if (json_array_append_new(all, json_real(round(t->nll[i] * 1e5) / 1e5)) != 0) {
            json_decref(all);
            return NULL;
        }
    return all;
}

/* Four digits: what is compared may be as small as rounding. */
static json_t *text_kl(const struct kvl_text_result *t)
{
    json_t *all = json_array();
    for (int32_t i = 0; i < t->n_tok; i++) {
        double v = t->kl[i], unit = v > 0.0 ? pow(10.0, 3.0 - floor(log10(v))) : 1.0;
        if (json_array_append_new(all, kvl_record_real(round(v * unit) / unit)) != 0) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

static json_t *text_same(const struct kvl_text_result *t)
{
    json_t *all = json_array();
    for (int32_t i = 0; i < t->n_tok; i++)
        if (json_array_append_new(all, json_integer(t->same[i])) != 0) {
            json_decref(all);
            return NULL;
        }
    return all;
}

/* [[tokens, mean of the first so many], ...] */
static json_t *text_curve(const double *v, int32_t n)
{
    json_t *curve = json_array();
    double sum = 0.0;
    int32_t i = 0;
    for (int32_t mark = 0; (mark = kvl_curve_mark(mark, n)) > 0;) {
        for (; i < mark; i++) sum += v[i];
        if (json_array_append_new(curve, json_pack("[i, o]", mark, kvl_record_real(sum / mark))) !=
            0) {
            json_decref(curve);
            return NULL;
        }
    }
    return curve;
}

/* Means of equal stretches, as far as there are tokens. */
static json_t *text_blocks(const struct kvl_text_result *t)
{
    json_t *blocks = json_array();
    for (int64_t b = 0; b < TEXT_BLOCKS; b++) {
        int32_t from = (int32_t)(b * t->n_tok / TEXT_BLOCKS);
        int32_t to = (int32_t)((b + 1) * t->n_tok / TEXT_BLOCKS);
        if (from == to) continue;
        if (json_array_append_new(blocks, kvl_record_real(text_mean(t->nll + from, to - from)))) {
            json_decref(blocks);
            return NULL;
        }
    }
    return blocks;
}

/* What full attention makes of the same tokens. */
static json_t *text_compared(const struct kvl_text_result *t)
{
    bool known = t->kl && !t->error;
    double same = 0.0;
    for (int32_t i = 0; known && i < t->n_tok; i++) same += t->same[i];
    return json_pack("{s:o, s:o, s:o, s:o, s:o}", "kl_nats", known ? text_kl(t) : json_null(),
                     "kl_mean", known ? kvl_record_real(text_mean(t->kl, t->n_tok)) : json_null(),
                     "kl_curve", known ? text_curve(t->kl, t->n_tok) : json_null(), "top1",
                     known ? text_same(t) : json_null(), "top1_mean",
                     known ? kvl_record_real(same / t->n_tok) : json_null());
}

json_t *kvl_record_nll(const char *run, const struct kvl_text_result *t)
{
    const struct kvl_outcome *o = &t->observed;
    char seed[17];
    snprintf(seed, sizeof seed, "%016llx", (unsigned long long)t->seed);
    json_t *what = json_pack("{s:s, s:i, s:s, s:i, s:i, s:i}", "cell", t->cell->id, "context",
                             t->context, "seed", seed, "text_tok", t->text_tok, "first_tok",
                             t->first_tok, "n_tok", t->n_tok);
    json_t *scores =
        json_pack("{s:o, s:o, s:o, s:o}", "nll", t->error ? json_null() : text_tokens(t),
                  "nll_mean", t->error ? json_null() : kvl_record_real(text_mean(t->nll, t->n_tok)),
                  "curve", t->error ? json_null() : text_curve(t->nll, t->n_tok), "block_nll",
                  t->error ? json_null() : text_blocks(t));
    scores = kvl_record_add(scores, text_compared(t));
    json_t *cost =
        json_pack("{s:o, s:o, s:o}", "wall_ns", kvl_record_real(o->wall_ns), "prefill_ns",
                  kvl_record_ns(o->prefill_ns), "error", kvl_record_path_text(t->error));
    json_t *r = kvl_record_add(kvl_record_add(kvl_record_start("nll", run), what), scores);
    r = kvl_record_add(kvl_record_add(r, kvl_record_observed(o)), kvl_record_method(&o->method));
    return kvl_record_add(r, cost);
}

/* ---- perplexity ------------------------------------------------------------------------------ */

static bool text_scored(const json_t *text)
{
    return json_is_number(json_object_get(text, "nll_mean"));
}

/* Mean of a field over the texts that have it. */
static double texts_mean(const json_t *texts, const char *field)
{
    double sum = 0.0;
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(texts); i++) {
        double v = kvl_json_number(json_array_get(texts, i), field);
        if (isnan(v) || !text_scored(json_array_get(texts, i))) continue;
        sum += v;
        n++;
    }
    return n ? sum / (double)n : KVL_NAN;
}

/* Values whose mean is bootstrapped: the texts, or the blocks (NULL: there are none) of the only one. */
static size_t texts_values(const json_t *texts, const char *mean, const char *of_blocks,
                           size_t n_scored, double *value, int64_t *cluster)
{
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        const json_t *blocks = of_blocks ? json_object_get(text, of_blocks) : NULL;
        if (!text_scored(text) || isnan(kvl_json_number(text, mean))) continue;
        if (n_scored > 1 || !of_blocks) {
            cluster[n] = (int64_t)n;
            value[n++] = kvl_json_number(text, mean);
            continue;
        }
        for (size_t b = 0; b < json_array_size(blocks) && b < TEXT_BLOCKS; b++) {
            cluster[n] = (int64_t)n;
            value[n++] = json_number_value(json_array_get(blocks, b));
        }
    }
    return n;
}

static int texts_interval(const json_t *texts, const char *mean, const char *of_blocks,
                          size_t n_scored, struct kvl_range range, const char *id,
                          struct kvl_interval *out)
{
    size_t room = json_array_size(texts) + TEXT_BLOCKS;
    double *value = kvl_alloc(room, sizeof *value);
    int64_t *cluster = kvl_alloc(room, sizeof *cluster);
    int rc = value && cluster ? KVL_OK : KVL_ENOMEM;
    if (rc == KVL_OK) {
        size_t n = texts_values(texts, mean, of_blocks, n_scored, value, cluster);
        rc = kvl_mean_interval(value, cluster, n, range, kvl_point_number(id), out);
        out->mean = texts_mean(texts, mean);
    }
    kvl_free(value);
    kvl_free(cluster);
    return rc;
}

/* Running means of the field `name`. */
static json_t *texts_curve(const json_t *texts, const char *name, int32_t n_tok)
{
    json_t *curve = json_array();
    size_t row = 0;
    for (int32_t mark = 0; (mark = kvl_curve_mark(mark, n_tok)) > 0; row++) {
        double sum = 0.0;
        size_t n = 0;
        for (size_t i = 0; i < json_array_size(texts); i++) {
            const json_t *text = json_array_get(texts, i);
            const json_t *point = json_array_get(json_object_get(text, name), row);
            if (!text_scored(text) || !point) continue;
            sum += json_number_value(json_array_get(point, 1));
            n++;
        }
        json_t *mean = kvl_record_real(n ? sum / (double)n : KVL_NAN);
        if (json_array_append_new(curve, json_pack("[i, o]", mark, mean)) != 0) {
            json_decref(curve);
            return NULL;
        }
    }
    return curve;
}

static json_t *texts_scores(const json_t *texts, const char *id)
{
    size_t n = 0, all = json_array_size(texts);
    struct kvl_interval v;
    int32_t n_tok = 0;
    for (size_t i = 0; i < all; i++) {
        const json_t *text = json_array_get(texts, i);
        if (!text_scored(text)) continue;
        n++;
        n_tok = (int32_t)json_integer_value(json_object_get(text, "n_tok"));
    }
    if (texts_interval(texts, "nll_mean", "block_nll", n, KVL_RANGE_ANY, id, &v) != KVL_OK)
        return NULL;
    json_t *nll = json_pack("{s:o, s:o, s:o, s:s}", "mean", kvl_record_real(v.mean), "lo",
                            kvl_record_real(v.lo), "hi", kvl_record_real(v.hi), "over",
                            n > 1 ? "texts" : "blocks");
    json_t *ppl = json_pack("{s:o, s:o, s:o}", "value", kvl_record_real(exp(v.mean)), "lo",
                            kvl_record_real(exp(v.lo)), "hi", kvl_record_real(exp(v.hi)));
    return json_pack("{s:I, s:I, s:I, s:I, s:o, s:o, s:o}", "n", (json_int_t)n, "n_contexts",
                     (json_int_t)n, "n_errors", (json_int_t)(all - n), "n_tok",
                     (json_int_t)n_tok * (json_int_t)n, "nll", nll, "ppl", ppl, "curve",
                     texts_curve(texts, "curve", n_tok));
}

static json_t *texts_mean_of(const json_t *texts, const char *mean, struct kvl_range range,
                             const char *id)
{
    struct kvl_interval v;
    if (texts_interval(texts, mean, NULL, 0, range, id, &v) != KVL_OK) return NULL;
    return json_pack("{s:o, s:o, s:o}", "mean", kvl_record_real(v.mean), "lo",
                     kvl_record_real(v.lo), "hi", kvl_record_real(v.hi));
}

/* Beside full attention on the same tokens; null where no text was compared. */
static json_t *texts_compared(const json_t *texts, const char *id)
{
    if (isnan(texts_mean(texts, "kl_mean")))
        return json_pack("{s:n, s:n, s:n}", "kl_nats", "kl_curve", "top1");
    int32_t n_tok = 0;
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        if (text_scored(text)) n_tok = (int32_t)json_integer_value(json_object_get(text, "n_tok"));
    }
    return json_pack("{s:o, s:o, s:o}", "kl_nats",
                     texts_mean_of(texts, "kl_mean", KVL_RANGE_ABOVE, id), "kl_curve",
                     texts_curve(texts, "kl_curve", n_tok), "top1",
                     texts_mean_of(texts, "top1_mean", KVL_RANGE_SHARE, id));
}

static json_t *texts_observed(const json_t *texts)
{
    struct kvl_outcome o = {
        .attended_tok = texts_mean(texts, "attended_tok"),
        .dense_tok = texts_mean(texts, "dense_tok"),
        .window_tok = texts_mean(texts, "window_tok"),
        .kv_read = texts_mean(texts, "kv_read_bytes_per_tok"),
        .index_read = texts_mean(texts, "index_read_bytes_per_tok"),
        .kv_logical = texts_mean(texts, "kv_logical_bytes"),
        .kv_physical = texts_mean(texts, "kv_physical_bytes"),
        .kv_own = texts_mean(texts, "kv_own_bytes"),
        .meta = texts_mean(texts, "meta_bytes"),
    };
    for (int i = 0; i < KVL_N_TIERS; i++) {
        char field[64];
        snprintf(field, sizeof field, "tiers.%s", kvl_tiers_name[i]);
        o.tiers[i] = texts_mean(texts, field);
    }
    return kvl_record_observed(&o);
}

static json_t *texts_method(const json_t *texts)
{
    struct kvl_method_sum all = { 0 };
    for (size_t i = 0; i < json_array_size(texts); i++) {
        struct kvl_method one = { 0 };
        if (!text_scored(json_array_get(texts, i))) continue;
        kvl_method_of(json_array_get(texts, i), &one);
        kvl_method_add(&all, &one);
        kvl_method_free(&one);
    }
    return kvl_record_method_sum(&all);
}

json_t *kvl_record_perplexity(const char *run, const struct kvl_cell *c, const json_t *texts)
{
    double wall = texts_mean(texts, "wall_ns"), n = (double)json_array_size(texts);
    json_t *r = kvl_record_add(kvl_record_start("perplexity", run), kvl_record_point(c));
    r = kvl_record_add(r, json_pack("{s:s}", "protocol", kvl_protocol_name(c->protocol)));
    r = kvl_record_add(kvl_record_add(r, texts_scores(texts, c->id)), texts_compared(texts, c->id));
    r = kvl_record_add(kvl_record_add(r, texts_observed(texts)), texts_method(texts));
    return kvl_record_add(r, json_pack("{s:o, s:o}", "wall_s", kvl_record_real(wall * n * 1e-9),
                                       "t_end", kvl_record_now()));
}
