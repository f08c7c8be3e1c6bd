/* Filter layers of a model, by what lists keep and by answers. */
#include "measure_tables.h"

#include "kvl/model_tables.h"

#include <math.h>
#include <string.h>

static const double tables_same = 0.99; /* of the answer tokens */

void kvl_model_tables_destroy(struct kvl_model_tables *t)
{
    if (!t) return;
    for (int32_t i = 0; t->set && i < t->n_sets; i++) kvl_free(t->set[i].filter);
    kvl_capture_destroy(t->capture);
    kvl_free(t->kept);
    kvl_free(t->set);
    kvl_free(t->logits);
    kvl_free(t);
}

static const struct kvl_shape *tables_shape(const struct kvl_model_tables *t)
{
    return kvl_model_shape(kvl_engine_model(t->engine));
}

int kvl_model_tables_create(struct kvl_engine *engine, const struct kvl_policy *omnikv,
                            double share, int32_t max_tok, struct kvl_model_tables **out,
                            struct kvl_err *err)
{
    const struct kvl_shape *sh = kvl_model_shape(kvl_engine_model(engine));
    size_t n = (size_t)sh->n_layers;
    struct kvl_model_tables *t = kvl_alloc(1, sizeof *t);
    if (!t) return kvl_fail(err, KVL_ENOMEM, "out of memory for tables");
    t->engine = engine;
    t->omnikv = omnikv;
    t->share = share;
    t->kept = kvl_alloc(n * n, sizeof *t->kept);
    t->set = kvl_alloc(n, sizeof *t->set);
    t->logits = kvl_alloc((size_t)sh->n_vocab, sizeof *t->logits);
    int rc = t->kept && t->set && t->logits ? kvl_capture_create(sh, max_tok, &t->capture, err)
                                            : kvl_fail(err, KVL_ENOMEM, "out of memory for tables");
    if (rc != KVL_OK) {
        kvl_model_tables_destroy(t);
        return rc;
    }
    *out = t;
    return KVL_OK;
}

/* ---- what layers keep --------------------------------------------------------------------------- */

static int tables_prefill(const struct kvl_model_tables *t, const struct kvl_table_text *text,
                          struct kvl_session **out, struct kvl_err *err)
{
    KVL_TRY(kvl_session_create(t->engine, out, err));
    int rc = kvl_session_prefill(*out, text->id, text->n_context, NULL, false, err);
    if (rc == KVL_OK) return rc;
    kvl_session_destroy(*out);
    return rc;
}

int kvl_model_tables_capture(struct kvl_model_tables *t, const struct kvl_table_text *text,
                             struct kvl_err *err)
{
    struct kvl_session *s;
    KVL_TRY(tables_prefill(t, text, &s, err));
    int rc = kvl_capture_context(t->capture, s, t->share, text->id + text->n_context,
                                 text->n - text->n_context, t->logits, err);
    kvl_session_destroy(s);
    return rc;
}

/* ---- sets --------------------------------------------------------------------------------------- */

static bool tables_set_known(const struct kvl_model_tables *t, const uint8_t *filter)
{
    size_t n = (size_t)tables_shape(t)->n_layers;
    return t->n_sets > 0 && memcmp(t->set[t->n_sets - 1].filter, filter, n) == 0;
}

/* The best set for every number of dense layers; one that the number before had already is not
 * repeated. */
int kvl_model_tables_search(struct kvl_model_tables *t, struct kvl_err *err)
{
    int32_t n = tables_shape(t)->n_layers, wait = n >= 16; /* as omnikv has it */
    if (n < 2)
        return kvl_fail(err, KVL_EINVAL, "a model of %d layer: want 2 or more for filter layers",
                        n);
    /* As the file has them, so that who reads it finds the same sets. */
    for (int32_t i = 0; i < n * n; i++)
        t->kept[i] =
            nearbyint(1e6 * t->capture->kept[i] / KVL_MAX(1, t->capture->n_contexts)) / 1e6;
    for (int32_t dense = wait + 1; dense < n; dense++) {
        struct kvl_filter_set *set = &t->set[t->n_sets];
        uint8_t *filter = kvl_alloc((size_t)n, 1);
        if (!filter) return kvl_fail(err, KVL_ENOMEM, "out of memory for filter layers");
        double kept = 0.0;
        int rc = kvl_filter_layers(t->kept, n, dense, wait, filter, &kept, err);
        if (rc != KVL_OK || tables_set_known(t, filter)) {
            kvl_free(filter);
            KVL_TRY(rc);
            continue;
        }
        *set = (struct kvl_filter_set){ .dense = dense, .filter = filter, .kept = kept };
        t->n_sets++;
    }
    return KVL_OK;
}

int kvl_filter_set_print(const struct kvl_filter_set *set, int32_t n_layers, struct kvl_buf *out)
{
    bool first = true;
    for (int32_t l = 0; l < n_layers; l++) {
        if (!set->filter[l]) continue;
        KVL_TRY(kvl_buf_printf(out, "%s%d", first ? "" : "+", l));
        first = false;
    }
    return KVL_OK;
}

/* ---- answers ------------------------------------------------------------------------------------ */

/* Feeds question and answer; token i of the answer is what the step before it found likeliest: best
 * [n_answer]. */
static int tables_answer(const struct kvl_model_tables *t, struct kvl_session *s,
                         const struct kvl_table_text *text, int32_t *best, struct kvl_err *err)
{
    int32_t first = text->n - text->n_answer;
    for (int32_t i = text->n_context; i < text->n - 1; i++) {
        KVL_TRY(kvl_session_decode(&s, 1, text->id + i, t->logits, err));
        if (i + 1 >= first) best[i + 1 - first] = kvl_argmax(t->logits, tables_shape(t)->n_vocab);
    }
    return KVL_OK;
}

static int tables_try(const struct kvl_model_tables *t, const struct kvl_session *context,
                      const struct kvl_planned *planned, const struct kvl_table_text *text,
                      int32_t *best, struct kvl_err *err)
{
    struct kvl_session *s;
    KVL_TRY(kvl_session_fork(context, &s, err));
    int rc = planned ? kvl_session_attach(s, planned, 1, KVL_EXEC_REAL, err) : KVL_OK;
    if (rc == KVL_OK) rc = tables_answer(t, s, text, best, err);
    kvl_session_destroy(s);
    return rc;
}

static int tables_plan(const struct kvl_model_tables *t, const struct kvl_filter_set *set,
                       const struct kvl_table_text *text, struct kvl_planned **out,
                       struct kvl_err *err)
{
    struct kvl_buf options = { 0 };
    int32_t k = KVL_MAX(1, (int32_t)(t->share * text->n_context));
    int rc = kvl_buf_printf(&options, "num_of_selected_tokens=%d,filter_layers=", k);
    if (rc == KVL_OK) rc = kvl_filter_set_print(set, tables_shape(t)->n_layers, &options);
    rc = rc == KVL_OK
             ? kvl_planned_create(t->omnikv, tables_shape(t), options.data,
                                  k + 1 + text->n - text->n_context, text->n_context, out, err)
             : kvl_fail(err, rc, "out of memory for options");
    kvl_buf_free(&options);
    return rc;
}

static int tables_compare_set(const struct kvl_model_tables *t, struct kvl_filter_set *set,
                              const struct kvl_session *context, const struct kvl_table_text *text,
                              const int32_t *want, int32_t *best, struct kvl_err *err)
{
    struct kvl_planned *planned;
    KVL_TRY(tables_plan(t, set, text, &planned, err));
    int rc = tables_try(t, context, planned, text, best, err);
    for (int32_t i = 0; i < text->n_answer && rc == KVL_OK; i++) set->n_same += best[i] == want[i];
    kvl_planned_destroy(planned);
    return rc;
}

int kvl_model_tables_compare(struct kvl_model_tables *t, const struct kvl_table_text *text,
                             struct kvl_err *err)
{
    struct kvl_session *context = NULL;
    int32_t *want = kvl_alloc(2 * (size_t)text->n, sizeof *want),
            *best = want ? want + text->n : NULL;
    int rc = want ? tables_prefill(t, text, &context, err)
                  : kvl_fail(err, KVL_ENOMEM, "out of memory for answers");
    bool there = rc == KVL_OK;
    if (rc == KVL_OK) rc = tables_try(t, context, NULL, text, want, err);
    for (int32_t i = 0; i < t->n_sets && rc == KVL_OK; i++)
        rc = tables_compare_set(t, &t->set[i], context, text, want, best, err);
    t->n_answer += text->n_answer;
    if (there) kvl_session_destroy(context);
    kvl_free(want);
    return rc;
}

void kvl_model_tables_choose(struct kvl_model_tables *t)
{
    t->chosen = 0;
    for (int32_t i = 0; i < t->n_sets; i++) {
        if (t->set[i].n_same > t->set[t->chosen].n_same) t->chosen = i;
        if ((double)t->set[i].n_same >= tables_same * (double)t->n_answer) return;
    }
}
