/* Records of reference passes, and what they add up to in a cell's. */
#include "record.h"

#include "args.h"
#include "record_parts.h"
#include "stats.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { QUALITY_DIGITS = 4 }; /* of the numbers per layer and head: they are many */

/* ---- one question ------------------------------------------------------------------------------ */

/* In few digits, and 0 and 1 in one. */
static json_t *quality_number(double v)
{
    char text[32];
    double rounded;
    if (!isfinite(v)) return json_null();
    snprintf(text, sizeof text, "%.*g", QUALITY_DIGITS, v);
    if (kvl_parse_f64(text, &rounded) != KVL_OK) return json_null();
    return rounded <= 0.0 || (rounded >= 1.0 && rounded <= 1.0) ? json_integer((json_int_t)rounded)
                                                                : json_real(rounded);
}

/* [step][layer][head] */
static json_t *quality_heads(const struct kvl_quality_result *r, const float *v)
{
    json_t *steps = json_array();
    for (int32_t s = 0; s < r->n_steps; s++) {
        json_t *layers = json_array();
        for (int32_t l = 0; l < r->n_layers; l++) {
            json_t *heads = json_array();
            for (int32_t h = 0; h < r->n_heads; h++)
                kvl_record_item(&heads, quality_number((double)*v++));
            kvl_record_item(&layers, heads);
        }
        kvl_record_item(&steps, layers);
    }
    return steps;
}

/* [top][step][layer][head] */
static json_t *quality_recall(const struct kvl_quality_result *r)
{
    size_t plane = (size_t)r->max_steps * (size_t)r->n_layers * (size_t)r->n_heads;
    json_t *tops = json_array();
    for (int32_t t = 0; t < r->n_top; t++)
        kvl_record_item(&tops, quality_heads(r, r->recall + (size_t)t * plane));
    return tops;
}

static json_t *quality_dense(const struct kvl_quality_result *r)
{
    const uint8_t *v = r->dense;
    json_t *steps = json_array();
    for (int32_t s = 0; s < r->n_steps; s++) {
        json_t *layers = json_array();
        for (int32_t l = 0; l < r->n_layers; l++) kvl_record_item(&layers, json_integer(*v++));
        kvl_record_item(&steps, layers);
    }
    return steps;
}

static json_t *step_pos(const struct kvl_quality_result *r, int32_t s)
{
    return json_integer(r->pos[s]);
}

static json_t *step_kl(const struct kvl_quality_result *r, int32_t s)
{
    return quality_number(r->kl[s]);
}

static json_t *step_same(const struct kvl_quality_result *r, int32_t s)
{
    return json_integer(r->same[s]);
}

/* What there is one of per step. */
static json_t *quality_steps(const struct kvl_quality_result *r,
                             json_t *(*of)(const struct kvl_quality_result *r, int32_t s))
{
    json_t *list = json_array();
    for (int32_t s = 0; s < r->n_steps; s++) kvl_record_item(&list, of(r, s));
    return list;
}

static json_t *quality_tops(const struct kvl_quality *want)
{
    json_t *top = json_array();
    for (int32_t i = 0; i < want->top.n; i++) kvl_record_item(&top, json_integer(want->top.v[i]));
    return top;
}

json_t *kvl_record_quality(const char *run, const struct kvl_cell *c, int32_t context,
                           int32_t question, const struct kvl_quality *want,
                           const struct kvl_quality_result *result, const char *error)
{
    json_t *r = kvl_record_start("quality", run);
#define QUALITY KVL_PUT
#include "fields.def"
    return r;
}

/* ---- back from the log ------------------------------------------------------------------------- */

bool kvl_quality_fits(const json_t *quality, const struct kvl_quality *want)
{
    const json_t *top = json_object_get(quality, "top");
    if (json_integer_value(json_object_get(quality, "steps")) != want->steps ||
        json_array_size(top) != (size_t)want->top.n)
        return false;
    for (int32_t i = 0; i < want->top.n; i++)
        if (json_integer_value(json_array_get(top, (size_t)i)) != want->top.v[i]) return false;
    return true;
}

/* Mean of [step][layer][head] over the layers that are dense or those that are not. */
static double quality_mean(const json_t *v, const json_t *dense, bool of_dense)
{
    double sum = 0.0;
    size_t n = 0, s, l, h;
    const json_t *layers, *heads, *x;
    json_array_foreach(v, s, layers) json_array_foreach(layers, l, heads)
    {
        const json_t *flag = json_array_get(json_array_get(dense, s), l);
        if ((json_integer_value(flag) != 0) != of_dense) continue;
        json_array_foreach(heads, h, x)
        {
            if (!json_is_number(x)) continue;
            sum += json_number_value(x);
            n++;
        }
    }
    return n ? sum / (double)n : KVL_NAN;
}

static double quality_list_mean(const json_t *list)
{
    double sum = 0.0;
    size_t i;
    const json_t *x;
    json_array_foreach(list, i, x) sum += json_number_value(x);
    return i ? sum / (double)i : KVL_NAN;
}

void kvl_quality_of(const json_t *quality, struct kvl_quality_means *out)
{
    const json_t *dense = json_object_get(quality, "dense");
    const json_t *recall = json_object_get(quality, "recall");
    const json_t *mass = json_object_get(quality, "mass");
    const json_t *error = json_object_get(quality, "out_error");
    *out = (struct kvl_quality_means){
        .have = true,
        .failed = json_is_string(json_object_get(quality, "error")),
        .select = { .mass = quality_mean(mass, dense, false),
                    .error = quality_mean(error, dense, false) },
        .dense = { .mass = quality_mean(mass, dense, true),
                   .error = quality_mean(error, dense, true) },
        .kl = quality_list_mean(json_object_get(quality, "kl_nats")),
        .same = quality_list_mean(json_object_get(quality, "top1")),
    };
    for (size_t t = 0; t < KVL_QUALITY_TOPS; t++) {
        const json_t *of = json_array_get(recall, t);
        out->select.recall[t] = quality_mean(of, dense, false);
        out->dense.recall[t] = quality_mean(of, dense, true);
    }
}

/* ---- in a cell --------------------------------------------------------------------------------- */

struct quality_cell {
    const struct kvl_sweep *s;
    const struct kvl_cell *c;
    const struct kvl_quality_means *quality;
    struct kvl_record_column col;
};

/* The interval of the member at `off`. */
static json_t *quality_interval(struct quality_cell *q, size_t off, struct kvl_range range)
{
    size_t questions = (size_t)q->s->quality.questions;
    q->col.n = 0;
    for (size_t i = 0; i < (size_t)q->s->contexts * questions; i++) {
        double v;
        memcpy(&v, (const char *)&q->quality[i] + off, sizeof v);
        if (q->quality[i].failed || !isfinite(v)) continue;
        q->col.value[q->col.n] = v;
        q->col.context[q->col.n++] = q->col.text[i / questions];
    }
    return kvl_record_interval(&q->col, range, q->c->id);
}

/* Of the selecting layers or of the dense ones, whose means begin at `off`; null without any. */
static json_t *quality_layers(struct quality_cell *q, size_t off)
{
    json_t *mass =
        quality_interval(q, off + offsetof(struct kvl_quality_layers, mass), KVL_RANGE_SHARE);
    if (q->col.n == 0) {
        json_decref(mass);
        return json_null();
    }
    json_t *recall = json_array();
    for (int32_t t = 0; t < q->s->quality.top.n; t++)
        kvl_record_item(&recall,
                        quality_interval(q, off + (size_t)t * sizeof(double), KVL_RANGE_SHARE));
    return json_pack(
        "{s:o, s:o, s:o}", "recall", recall, "mass", mass, "out_error",
        quality_interval(q, off + offsetof(struct kvl_quality_layers, error), KVL_RANGE_ANY));
}

static json_t *quality_numbers(struct quality_cell *q)
{
    const struct kvl_quality *want = &q->s->quality;
    json_int_t n = 0, failed = 0;
    for (int32_t i = 0; i < q->s->contexts * want->questions; i++) {
        n += !q->quality[i].failed;
        failed += q->quality[i].failed && !q->quality[i].absent;
    }
    return json_pack(
        "{s:i, s:i, s:o, s:I, s:I, s:o, s:o, s:o, s:o}", "questions", want->questions, "steps",
        want->steps, "top", quality_tops(want), "n", n, "n_errors", failed, "select",
        quality_layers(q, offsetof(struct kvl_quality_means, select)), "dense",
        quality_layers(q, offsetof(struct kvl_quality_means, dense)), "kl_nats",
        quality_interval(q, offsetof(struct kvl_quality_means, kl), KVL_RANGE_ABOVE), "top1",
        quality_interval(q, offsetof(struct kvl_quality_means, same), KVL_RANGE_SHARE));
}

json_t *kvl_record_quality_cell(const struct kvl_sweep *s, const struct kvl_cell *c,
                                const struct kvl_quality_means *quality)
{
    struct quality_cell q = { .s = s, .c = c, .quality = quality };
    json_t *o = NULL;
    if (s->quality.questions == 0) return json_null();
    if (kvl_record_column_create(s, c->task, s->quality.questions, &q.col) == KVL_OK)
        o = quality_numbers(&q);
    kvl_record_column_free(&q.col);
    return o;
}
