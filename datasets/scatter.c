/* Items in groups, scattered over filler: places, questions. */
#include "scatter.h"

#include <assert.h>

int kvl_scatter_fail_memory(const struct kvl_scatter *s)
{
    return kvl_fail(s->err, KVL_ENOMEM, "a context of %d tokens: out of memory",
                    s->req->length_tok);
}

/* ---- places -------------------------------------------------------------------------------- */

static void scatter_sort(int32_t *at, int32_t n)
{
    for (int32_t i = 1; i < n; i++)
        for (int32_t j = i; j > 0 && at[j - 1] > at[j]; j--) {
            int32_t swap = at[j];
            at[j] = at[j - 1];
            at[j - 1] = swap;
        }
}

/* A random place in each equal part of the context, dealt out at random, then put in order within each
 * group.  With a depth group 0 lies there and behind it, and the others are dealt out. */
static void scatter_positions(const struct kvl_scatter *s, int32_t *at)
{
    const struct kvl_task_request *req = s->req;
    int32_t n = s->n_groups * s->per_group, n_fixed = 0;
    struct kvl_rng rng;
    kvl_rng_seed(&rng, kvl_seed_str(req->seed, "places"));
    if (req->depth >= 0.0) {
        int32_t first = (int32_t)kvl_fit_position(req);
        n_fixed = s->per_group;
        at[0] = first;
        kvl_fit_strata(&rng, KVL_MAX(req->length_tok - first, n_fixed), at + 1, n_fixed - 1);
        for (int32_t i = 1; i < n_fixed; i++) at[i] += first;
    }
    kvl_fit_strata(&rng, req->length_tok, at + n_fixed, n - n_fixed);
    kvl_rng_shuffle(&rng, at + n_fixed, n - n_fixed);
    for (int32_t i = n_fixed; i < n; i += s->per_group) scatter_sort(at + i, s->per_group);
}

static int scatter_place(const struct kvl_scatter *s, struct kvl_fit_item *item)
{
    int32_t n = s->n_groups * s->per_group;
    if (n > s->req->length_tok)
        return kvl_fail(s->err, KVL_EINVAL, "length %d is too short for %d items",
                        s->req->length_tok, n);
    int32_t *at = kvl_alloc((size_t)n, sizeof *at);
    if (!at) return kvl_scatter_fail_memory(s);
    scatter_positions(s, at);
    for (int32_t i = 0; i < n; i++)
        item[i] = (struct kvl_fit_item){ .text = s->item[i].text.data,
                                         .len = s->item[i].text.len,
                                         .at = at[i] };
    kvl_free(at);
    return KVL_OK;
}

/* ---- questions ----------------------------------------------------------------------------- */

static int scatter_ask(const struct kvl_scatter *s, int32_t i, const struct kvl_fit_item *item,
                       const struct kvl_tokens *context, struct kvl_question *q)
{
    struct kvl_part part[KVL_PARTS];
    struct kvl_buf text = { 0 };
    int32_t first = i * s->asked, n = s->asked * s->per_group;
    assert(n <= KVL_PARTS);
    int rc = s->ask(s, first, &text);
    *q = (struct kvl_question){ .text = text.data };
    if (rc != KVL_OK) return kvl_scatter_fail_memory(s);
    q->n_prefix = kvl_text_prefix(q->text);
    for (int32_t k = 0; k < n; k++) {
        int32_t at = first * s->per_group + k;
        const struct kvl_scatter_item *of = &s->item[at];
        size_t begin = item[at].begin;
        part[k] =
            (struct kvl_part){ .text = of->part, .span = { begin + of->begin, begin + of->end } };
    }
    KVL_TRY(kvl_parts_say(s->req, part, n, s->quote, s->max_new, q, s->err));
    kvl_parts_evidence(part, n, q);
    q->depth = kvl_fit_depth(context, q);
    return KVL_OK;
}

/* ---- the sample ---------------------------------------------------------------------------- */

static int scatter_fit(const struct kvl_scatter *s, struct kvl_fit_item *item,
                       struct kvl_sample *out)
{
    const struct kvl_task_request *req = s->req;
    struct kvl_buf intro = { 0 };
    if (kvl_text_fill(s->intro, NULL, 0, &intro) != KVL_OK) return kvl_scatter_fail_memory(s);
    struct kvl_fit fit = { .tokenizer = req->tokenizer,
                           .length_tok = req->length_tok,
                           .seed = kvl_seed_str(req->seed, "filler"),
                           .text = &kvl_text_english,
                           .prose = s->prose,
                           .intro = intro.data,
                           .item = item,
                           .n_items = s->n_groups * s->per_group };
    int rc = kvl_fit_sample(&fit, req->n_questions, out, s->err);
    kvl_buf_free(&intro);
    return rc;
}

static int scatter_build(struct kvl_scatter *s, struct kvl_fit_item *item, struct kvl_sample *out)
{
    KVL_TRY(s->draw(s));
    KVL_TRY(scatter_place(s, item));
    KVL_TRY(scatter_fit(s, item, out));
    for (int32_t i = 0; i < out->n_questions; i++)
        KVL_TRY(scatter_ask(s, i, item, &out->tokens, &out->question[i]));
    return KVL_OK;
}

static int scatter_check(const struct kvl_scatter *s)
{
    int32_t questions = s->req->n_questions;
    int64_t wanted = (int64_t)questions * s->asked;
    KVL_TRY(kvl_fit_check(s->req, s->err));
    if (wanted > s->n_groups && s->asked == 1)
        return kvl_fail(s->err, KVL_EINVAL,
                        "%d questions with %s=%d, want %s=%d or fewer questions", questions,
                        s->option, s->n_groups, s->option, questions);
    if (wanted > s->n_groups)
        return kvl_fail(s->err, KVL_EINVAL,
                        "%d questions about %d %s each with %s=%d, want %s=%lld or fewer questions",
                        questions, s->asked, s->option, s->option, s->n_groups, s->option,
                        (long long)wanted);
    return KVL_OK;
}

int kvl_scatter_generate(struct kvl_scatter *s, struct kvl_sample *out)
{
    struct kvl_sample sample = { 0 };
    KVL_TRY(scatter_check(s));
    size_t n = (size_t)s->n_groups * (size_t)s->per_group;
    struct kvl_fit_item *item = kvl_alloc(n, sizeof *item);
    s->item = kvl_alloc(n, sizeof *s->item);
    int rc = item && s->item ? scatter_build(s, item, &sample) : kvl_scatter_fail_memory(s);
    for (size_t i = 0; s->item && i < n; i++) kvl_buf_free(&s->item[i].text);
    kvl_free(s->item);
    kvl_free(item);
    if (rc == KVL_OK)
        *out = sample;
    else
        kvl_sample_free(&sample);
    return rc;
}
