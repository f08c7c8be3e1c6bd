/* What unfinished cells have so far: contexts are the outer loop, so that all cells of a sweep end together, after
 * hours.  Reports show these records until the cell's own one follows. */
#include "commit.h"

#include "record_text.h"

#include <string.h>

/* Not more often than after so large a part of the time that the run has taken: the log stays small. */
enum { SO_FAR_PART = 20 };

static json_t *so_far_texts(const struct kvl_runner *r, size_t cell)
{
    json_t *texts = json_array(), *record = NULL;
    int failed = texts ? 0 : -1;
    for (size_t i = 0; i < json_array_size(r->state->cell[cell].text); i++) {
        json_t *text = json_array_get(r->state->cell[cell].text, i);
        if (!json_is_null(text)) failed |= json_array_append(texts, text);
    }
    if (!failed) record = kvl_record_perplexity(kvl_log_run(r->log), &r->work->cell[cell], texts);
    json_decref(texts);
    return record;
}

/* The record of the cell as if questions without an answer were not there. */
static json_t *so_far_answers(const struct kvl_runner *r, size_t cell)
{
    const struct kvl_sweep *s = r->work->sweep;
    const struct kvl_progress_cell *p = &r->state->cell[cell];
    size_t n = (size_t)s->contexts * (size_t)s->questions;
    size_t n_passes = p->quality ? (size_t)s->contexts * (size_t)s->quality.questions : 0;
    struct kvl_outcome *outcome = kvl_alloc(n, sizeof *outcome);
    struct kvl_quality_means *quality = kvl_alloc(n_passes + 1, sizeof *quality);
    json_t *record = NULL;
    if (outcome && quality) {
        memcpy(outcome, p->outcome, n * sizeof *outcome);
        if (n_passes) memcpy(quality, p->quality, n_passes * sizeof *quality);
        for (size_t i = 0; i < n; i++)
            if (!outcome[i].have) outcome[i].failed = outcome[i].absent = true;
        for (size_t i = 0; i < n_passes; i++)
            if (!quality[i].have) quality[i].failed = quality[i].absent = true;
        record = kvl_record_cell(kvl_log_run(r->log), s, &r->work->cell[cell], outcome,
                                 p->quality ? quality : NULL);
    }
    kvl_free(outcome);
    kvl_free(quality);
    return record;
}

static int so_far_cell(struct kvl_runner *r, size_t cell, struct kvl_err *err)
{
    struct kvl_progress_cell *p = &r->state->cell[cell];
    struct kvl_state_amount n = kvl_state_amount(r->state, cell);
    if (p->done || p->failed || n.have == p->told) return KVL_OK;
    json_t *so_far = p->text ? so_far_texts(r, cell) : so_far_answers(r, cell);
    if (!so_far) return kvl_fail(err, KVL_ENOMEM, "out of memory for a record");
    p->told = n.have;
    return kvl_runner_append(
        r, kvl_record_partial(kvl_log_run(r->log), &r->work->cell[cell], n.planned, so_far), err);
}

int kvl_runner_so_far(struct kvl_runner *r, const struct kvl_group *g, bool now,
                      struct kvl_err *err)
{
    uint64_t t = kvl_now_ns();
    if (g->speed || (!now && t < r->t_so_far)) return KVL_OK;
    r->t_so_far = t + KVL_MAX(KVL_SO_FAR_NS, (t - r->t_begun) / SO_FAR_PART);
    for (size_t c = g->first; c < g->first + g->n; c++) KVL_TRY(so_far_cell(r, c, err));
    return kvl_log_commit(r->log, err);
}
