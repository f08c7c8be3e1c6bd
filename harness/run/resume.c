/* From the records of a log to what is left to do. */
#include "resume.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t state_samples(const struct kvl_state *s)
{
    return (size_t)s->work->sweep->contexts * (size_t)s->work->sweep->questions;
}

static size_t state_passes(const struct kvl_state *s)
{
    return (size_t)s->work->sweep->contexts * (size_t)s->work->sweep->quality.questions;
}

static int state_order(const void *a, const void *b, void *cells)
{
    const struct kvl_cell *c = cells;
    return strncmp(c[*(const size_t *)a].id, c[*(const size_t *)b].id, KVL_POINT_DIGITS);
}

static json_t *state_texts(int32_t contexts)
{
    json_t *texts = json_array();
    for (int32_t i = 0; i < contexts; i++)
        if (json_array_append_new(texts, json_null()) != 0) {
            json_decref(texts);
            return NULL;
        }
    return texts;
}

static void state_release(struct kvl_progress_cell *p)
{
    kvl_free((void *)(uintptr_t)p->outcome);
    kvl_free((void *)(uintptr_t)p->quality);
}

/* Outcomes and passes of a cell that nothing is known of. Questions that a task's files do not have are not waited
 * for. */
static int state_blank(const struct kvl_state *s, const struct kvl_point *task,
                       struct kvl_progress_cell *out, struct kvl_err *err)
{
    const struct kvl_sweep *sweep = s->work->sweep;
    int32_t n = sweep->questions, n_passes = sweep->quality.questions;
    struct kvl_outcome *o = kvl_alloc(state_samples(s), sizeof *o);
    struct kvl_quality_means *q = state_passes(s) ? kvl_alloc(state_passes(s), sizeof *q) : NULL;
    *out = (struct kvl_progress_cell){ .outcome = o, .quality = q };
    if (!o || (!q && state_passes(s) > 0))
        return kvl_fail(err, KVL_ENOMEM, "out of memory for samples");
    for (int32_t c = 0; task->source && c < sweep->contexts; c++) {
        for (int32_t i = kvl_point_questions(sweep, task, c); i < n; i++)
            o[(size_t)c * (size_t)n + (size_t)i] =
                (struct kvl_outcome){ .have = true, .failed = true, .absent = true };
        for (int32_t i = kvl_point_questions(sweep, task, c); q && i < n_passes; i++)
            q[(size_t)c * (size_t)n_passes + (size_t)i] =
                (struct kvl_quality_means){ .have = true, .failed = true, .absent = true };
    }
    return KVL_OK;
}

int kvl_state_own(struct kvl_state *s, size_t cell, struct kvl_outcome **outcome,
                  struct kvl_quality_means **quality, struct kvl_err *err)
{
    struct kvl_progress_cell *p = &s->cell[cell], own;
    if (!p->own && p->outcome) {
        int rc = state_blank(s, s->work->cell[cell].task, &own, err);
        p->outcome = rc == KVL_OK ? own.outcome : p->outcome;
        p->quality = rc == KVL_OK ? own.quality : p->quality;
        p->own = rc == KVL_OK;
        if (rc != KVL_OK) state_release(&own);
        KVL_TRY(rc);
    }
    *outcome = (struct kvl_outcome *)(uintptr_t)p->outcome;
    *quality = (struct kvl_quality_means *)(uintptr_t)p->quality;
    return KVL_OK;
}

static int state_fill(struct kvl_state *s, struct kvl_err *err)
{
    const struct kvl_work *w = s->work;
    const struct kvl_points *tasks = &w->sweep->tasks;
    s->cell = kvl_alloc(w->n_cells, sizeof *s->cell);
    s->by_id = kvl_alloc(w->n_cells, sizeof *s->by_id);
    s->blank = kvl_alloc(tasks->n, sizeof *s->blank);
    if (!s->cell || !s->by_id || !s->blank)
        return kvl_fail(err, KVL_ENOMEM, "out of memory for %zu cells", w->n_cells);
    for (size_t i = 0; i < tasks->n; i++)
        if (!kvl_point_reading(&tasks->v[i]))
            KVL_TRY(state_blank(s, &tasks->v[i], &s->blank[i], err));
    for (size_t i = 0; i < w->n_cells; i++) {
        s->by_id[i] = i;
        if (w->cell[i].speed) continue;
        if (kvl_point_reading(w->cell[i].task)) {
            if (!(s->cell[i].text = state_texts(w->sweep->contexts)))
                return kvl_fail(err, KVL_ENOMEM, "out of memory for texts");
            continue;
        }
        s->cell[i] = s->blank[w->cell[i].task - tasks->v];
    }
    qsort_r(s->by_id, w->n_cells, sizeof *s->by_id, state_order, w->cell);
    return KVL_OK;
}

int kvl_state_create(const struct kvl_work *work, bool accept_stale, bool retry,
                     struct kvl_state *out, struct kvl_err *err)
{
    struct kvl_state s = { .work = work, .accept_stale = accept_stale, .retry = retry };
    int rc = state_fill(&s, err);
    if (rc == KVL_OK)
        *out = s;
    else
        kvl_state_free(&s);
    return rc;
}

void kvl_state_free(struct kvl_state *s)
{
    for (size_t i = 0; s->cell && i < s->work->n_cells; i++) {
        struct kvl_progress_cell *p = &s->cell[i];
        for (size_t k = 0; p->own && k < state_samples(s); k++)
            kvl_outcome_free((struct kvl_outcome *)(uintptr_t)&p->outcome[k]);
        if (p->own) state_release(p);
        json_decref(p->text);
    }
    for (size_t i = 0; s->blank && i < s->work->sweep->tasks.n; i++) state_release(&s->blank[i]);
    kvl_free(s->blank);
    kvl_free(s->cell);
    kvl_free(s->by_id);
    json_decref(s->newest_sources);
    *s = (struct kvl_state){ 0 };
}

bool kvl_state_complete(const struct kvl_state *s, size_t cell)
{
    const struct kvl_progress_cell *p = &s->cell[cell];
    for (size_t i = 0; p->outcome && i < state_samples(s); i++)
        if (!p->outcome[i].have) return false;
    for (size_t i = 0; p->quality && i < state_passes(s); i++)
        if (!p->quality[i].have) return false;
    for (size_t i = 0; i < json_array_size(p->text); i++)
        if (json_is_null(json_array_get(p->text, i))) return false;
    return true;
}

struct kvl_state_amount kvl_state_amount(const struct kvl_state *s, size_t cell)
{
    const struct kvl_progress_cell *p = &s->cell[cell];
    struct kvl_state_amount n = { 0 };
    for (size_t i = 0; p->outcome && i < state_samples(s); i++) {
        n.planned += !p->outcome[i].absent;
        n.have += p->outcome[i].have && !p->outcome[i].absent;
    }
    for (size_t i = 0; i < json_array_size(p->text); i++) {
        n.planned++;
        n.have += !json_is_null(json_array_get(p->text, i));
    }
    return n;
}

/* ---- reading --------------------------------------------------------------------------------- */

/* The cell of the same point, by whatever code. */
static struct kvl_progress_cell *state_find(const struct kvl_state *s, const char *id, size_t *cell)
{
    size_t lo = 0, hi = s->work->n_cells;
    while (id && lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int order = strncmp(s->work->cell[s->by_id[mid]].id, id, KVL_POINT_DIGITS);
        if (order == 0) {
            *cell = s->by_id[mid];
            return &s->cell[*cell];
        }
        if (order < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

bool kvl_state_has(const struct kvl_state *s, const char *id)
{
    size_t cell;
    return state_find(s, id, &cell) != NULL;
}

static const char *record_string(const json_t *record, const char *field)
{
    const char *text = json_string_value(json_object_get(record, field));
    return text ? text : "";
}

static int state_sample(struct kvl_state *s, const json_t *record, struct kvl_err *err)
{
    size_t cell;
    const struct kvl_sweep *sweep = s->work->sweep;
    struct kvl_progress_cell *p = state_find(s, record_string(record, "cell"), &cell);
    json_int_t context = json_integer_value(json_object_get(record, "context"));
    json_int_t question = json_integer_value(json_object_get(record, "question"));
    if (!p || !p->outcome || context < 0 || question < 0 || context >= sweep->contexts ||
        question >= sweep->questions)
        return KVL_OK;
    struct kvl_outcome *o;
    struct kvl_quality_means *q;
    KVL_TRY(kvl_state_own(s, cell, &o, &q, err));
    o += context * sweep->questions + question;
    kvl_outcome_of(record, o);
    if (s->retry && o->failed) kvl_outcome_free(o);
    return KVL_OK;
}

static int state_quality(struct kvl_state *s, const json_t *record, struct kvl_err *err)
{
    size_t cell;
    const struct kvl_sweep *sweep = s->work->sweep;
    const struct kvl_quality *want = &sweep->quality;
    struct kvl_progress_cell *p = state_find(s, record_string(record, "cell"), &cell);
    json_int_t context = json_integer_value(json_object_get(record, "context"));
    json_int_t question = json_integer_value(json_object_get(record, "question"));
    if (!p || !p->quality || context < 0 || question < 0 || context >= sweep->contexts ||
        question >= want->questions || !kvl_quality_fits(record, want))
        return KVL_OK;
    struct kvl_outcome *o;
    struct kvl_quality_means *q;
    KVL_TRY(kvl_state_own(s, cell, &o, &q, err));
    q += context * want->questions + question;
    kvl_quality_of(record, q);
    if (s->retry && q->failed) *q = (struct kvl_quality_means){ 0 };
    return KVL_OK;
}

/* Whether a cell's record has the reference passes that are wanted. */
static bool state_has_quality(const struct kvl_state *s, const json_t *record)
{
    const struct kvl_quality *want = &s->work->sweep->quality;
    const json_t *quality = json_object_get(record, "quality");
    if (s->retry && json_integer_value(json_object_get(quality, "n_errors")) > 0) return false;
    return kvl_quality_fits(quality, want) &&
           json_integer_value(json_object_get(quality, "questions")) == want->questions;
}

int kvl_state_text(struct kvl_state *s, json_t *record, struct kvl_err *err)
{
    size_t cell;
    struct kvl_progress_cell *p = state_find(s, record_string(record, "cell"), &cell);
    json_int_t context = json_integer_value(json_object_get(record, "context"));
    bool failed = json_is_string(json_object_get(record, "error"));
    if (!p || context < 0 || (size_t)context >= json_array_size(p->text)) return KVL_OK;
    json_t *kept = json_null();
    if (!(s->retry && failed)) {
        kept = json_object();
        if (!kept || json_object_update(kept, record) != 0)
            return kvl_fail(err, KVL_ENOMEM, "out of memory for a text");
        static const char *const lists[] = { "nll", "kl_nats", "top1" };
        for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) json_object_del(kept, lists[i]);
    }
    json_array_set_new(p->text, (size_t)context, kept);
    return KVL_OK;
}

/* Warm-up steps took what the others did. */
static void state_timed(struct kvl_state *s, const json_t *record, struct kvl_progress_cell *p)
{
    const struct kvl_speed *speed = &s->work->sweep->speed;
    double steps = 0.0;
    size_t i;
    json_t *ns;
    json_array_foreach(json_object_get(record, "step_ns"), i, ns) steps += json_number_value(ns);
    p->timed_ns = json_number_value(json_object_get(record, "attach_ns")) +
                  steps * (1.0 + (double)speed->warmup / speed->steps);
    p->timed_prefill_ns = json_number_value(json_object_get(record, "prefill_ns"));
}

static void state_done(struct kvl_state *s, const json_t *record)
{
    size_t cell;
    struct kvl_progress_cell *p = state_find(s, record_string(record, "cell"), &cell);
    json_int_t errors = json_integer_value(json_object_get(record, "n_errors"));
    if (!p || (s->retry && errors > 0)) return;
    if (p->quality && !state_has_quality(s, record)) return;
    if (json_is_array(json_object_get(record, "step_ns"))) state_timed(s, record, p);
    p->done = p->aggregated = true;
    p->kept = p->failed = false; /* what failed before was done again */
}

static void state_error(struct kvl_state *s, const json_t *record)
{
    size_t cell;
    struct kvl_progress_cell *p = state_find(s, record_string(record, "cell"), &cell);
    if (p && !s->retry) p->failed = true;
}

/* A record of a point of this sweep by other code: only whole results are kept, since samples of two
 * versions do not make one cell. */
static void state_stale(struct kvl_state *s, const json_t *record, size_t cell)
{
    const char *kind = record_string(record, "kind");
    struct kvl_progress_cell *p = &s->cell[cell];
    bool error = strcmp(kind, "error") == 0, done = p->done;
    if (strcmp(kind, "cell") != 0 && strcmp(kind, "speed") != 0 &&
        strcmp(kind, "perplexity") != 0 && !error)
        return;
    if (!error) {
        p->stale = true;
        snprintf(s->stale_code, sizeof s->stale_code, "%s", record_string(record, "code"));
    }
    if (!s->accept_stale || done) return;
    if (error)
        state_error(s, record);
    else
        state_done(s, record);
    p->kept = p->done;
}

size_t kvl_state_n_stale(const struct kvl_state *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->work->n_cells; i++)
        n += s->cell[i].stale && (s->cell[i].kept || !s->cell[i].done);
    return n;
}

size_t kvl_state_n_kept(const struct kvl_state *s)
{
    size_t n = 0;
    for (size_t i = 0; i < s->work->n_cells; i++) n += s->cell[i].kept;
    return n;
}

static int state_take(struct kvl_state *s, json_t *record, struct kvl_err *err)
{
    const char *kind = record_string(record, "kind");
    if (strcmp(kind, "sample") == 0)
        return state_sample(s, record, err);
    else if (strcmp(kind, "quality") == 0)
        return state_quality(s, record, err);
    else if (strcmp(kind, "nll") == 0)
        return kvl_state_text(s, record, err);
    else if (strcmp(kind, "cell") == 0 || strcmp(kind, "speed") == 0 ||
             strcmp(kind, "perplexity") == 0)
        state_done(s, record);
    else if (strcmp(kind, "error") == 0)
        state_error(s, record);
    return KVL_OK;
}

int kvl_state_add(struct kvl_state *s, json_t *record, bool *repeated, struct kvl_err *err)
{
    size_t cell;
    const struct kvl_progress_cell *p = state_find(s, record_string(record, "cell"), &cell);
    *repeated = p && p->failed && strcmp(record_string(record, "kind"), "error") == 0;
    return state_take(s, record, err);
}

int kvl_state_read(json_t *record, void *user, struct kvl_err *err)
{
    struct kvl_state *s = user;
    size_t cell;
    const char *id = record_string(record, "cell");
    if (strcmp(record_string(record, "kind"), "run") == 0) {
        json_decref(s->newest_sources);
        s->newest_sources = json_incref(json_object_get(record, "sources"));
        return KVL_OK;
    }
    if (!state_find(s, id, &cell)) return KVL_OK;
    if (strcmp(s->work->cell[cell].id, id) == 0) return state_take(s, record, err);
    state_stale(s, record, cell);
    return KVL_OK;
}

/* ---- what is left ------------------------------------------------------------------------------ */

bool kvl_state_wants_quality(const struct kvl_state *s, size_t cell, int32_t context,
                             int32_t question)
{
    const struct kvl_quality_means *q = s->cell[cell].quality;
    return q && !q[context * s->work->sweep->quality.questions + question].have;
}

bool kvl_state_wants(const struct kvl_state *s, int32_t context, size_t cell)
{
    const struct kvl_progress_cell *p = &s->cell[cell];
    const struct kvl_sweep *sweep = s->work->sweep;
    if (!s->work->cell[cell].planned || p->done || p->failed) return false;
    if (p->text) return json_is_null(json_array_get(p->text, (size_t)context));
    for (int32_t q = 0; p->outcome && q < sweep->questions; q++)
        if (!p->outcome[context * sweep->questions + q].have) return true;
    for (int32_t q = 0; q < sweep->quality.questions; q++)
        if (kvl_state_wants_quality(s, cell, context, q)) return true;
    return !p->outcome;
}

bool kvl_state_wants_any(const struct kvl_state *s, const struct kvl_group *g, int32_t context)
{
    for (size_t i = g->first; i < g->first + g->n; i++)
        if (kvl_state_wants(s, context, i)) return true;
    return false;
}

bool kvl_state_shares(const struct kvl_state *s, const struct kvl_group *g, int32_t context)
{
    for (size_t i = g->first; i < g->first + g->n; i++)
        if (kvl_state_wants(s, context, i) &&
            (s->cell[i].quality || !kvl_planned_own_prefill(s->work->cell[i].planned)))
            return true;
    return false;
}
