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
        kvl_record_item(&all, json_real(round(t->nll[i] * 1e5) / 1e5));
    return all;
}

/* Four digits: what is compared may be as small as rounding. */
static json_t *text_kl(const struct kvl_text_result *t)
{
    json_t *all = json_array();
    for (int32_t i = 0; i < t->n_tok; i++) {
        double v = t->kl[i], unit = v > 0.0 ? pow(10.0, 3.0 - floor(log10(v))) : 1.0;
        kvl_record_item(&all, kvl_record_real(round(v * unit) / unit));
    }
    return all;
}

static json_t *text_same(const struct kvl_text_result *t)
{
    json_t *all = json_array();
    for (int32_t i = 0; i < t->n_tok; i++) kvl_record_item(&all, json_integer(t->same[i]));
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
        kvl_record_item(&curve, json_pack("[i, o]", mark, kvl_record_real(sum / mark)));
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
        kvl_record_item(&blocks, kvl_record_real(text_mean(t->nll + from, to - from)));
    }
    return blocks;
}

/* Whether full attention ran the same tokens. */
static bool text_compared(const struct kvl_text_result *t)
{
    return t->kl && !t->error;
}

static double text_same_mean(const struct kvl_text_result *t)
{
    double same = 0.0;
    for (int32_t i = 0; i < t->n_tok; i++) same += t->same[i];
    return same / t->n_tok;
}

json_t *kvl_record_nll(const char *run, const struct kvl_text_result *t)
{
    const struct kvl_outcome *o = &t->observed;
    json_t *r = kvl_record_start("nll", run);
#define NLL KVL_PUT
#include "fields.def"
    return r;
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
        kvl_record_item(&curve, json_pack("[i, o]", mark, mean));
    }
    return curve;
}

/* What a cell of texts adds up to. */
struct texts_sum {
    size_t n; /* texts with a score */
    int32_t n_tok;
    struct kvl_interval nll;
};

static int texts_sum(const json_t *texts, const char *id, struct texts_sum *out)
{
    struct texts_sum sum = { 0 };
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        if (!text_scored(text)) continue;
        sum.n++;
        sum.n_tok = (int32_t)json_integer_value(json_object_get(text, "n_tok"));
    }
    KVL_TRY(texts_interval(texts, "nll_mean", "block_nll", sum.n, KVL_RANGE_ANY, id, &sum.nll));
    *out = sum;
    return KVL_OK;
}

static json_t *texts_nll(const struct texts_sum *sum)
{
    return json_pack("{s:o, s:o, s:o, s:s}", "mean", kvl_record_real(sum->nll.mean), "lo",
                     kvl_record_real(sum->nll.lo), "hi", kvl_record_real(sum->nll.hi), "over",
                     sum->n > 1 ? "texts" : "blocks");
}

static json_t *texts_ppl(const struct texts_sum *sum)
{
    return json_pack("{s:o, s:o, s:o}", "value", kvl_record_real(exp(sum->nll.mean)), "lo",
                     kvl_record_real(exp(sum->nll.lo)), "hi", kvl_record_real(exp(sum->nll.hi)));
}

/* Mean of a field that compares with full attention, over texts; null where no text was compared. */
static json_t *texts_compared(const json_t *texts, const char *mean, struct kvl_range range,
                              const char *id)
{
    struct kvl_interval v;
    if (isnan(texts_mean(texts, mean))) return json_null();
    if (texts_interval(texts, mean, NULL, 0, range, id, &v) != KVL_OK) return NULL;
    return json_pack("{s:o, s:o, s:o}", "mean", kvl_record_real(v.mean), "lo",
                     kvl_record_real(v.lo), "hi", kvl_record_real(v.hi));
}

static json_t *texts_kl_curve(const json_t *texts, int32_t n_tok)
{
    return isnan(texts_mean(texts, "kl_mean")) ? json_null()
                                               : texts_curve(texts, "kl_curve", n_tok);
}

static json_t *texts_observed(const json_t *texts)
{
    struct kvl_outcome o = { 0 };
#define OBSERVED(member, name, ...) o.member = texts_mean(texts, #name);
#define TIER(member, name, ...)     o.tiers[KVL_TIER_##member] = texts_mean(texts, "tiers." #name);
#include "fields.def"
    return kvl_record_observed(&o, KVL_OF_PERPLEXITY);
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
    struct texts_sum sum;
    if (texts_sum(texts, c->id, &sum) != KVL_OK) return NULL;
    json_t *r = kvl_record_start("perplexity", run);
#define PERPLEXITY KVL_PUT
#include "fields.def"
    return r;
}
