/* From what ran to the log: records, the errors of cells, the commit of a group. */
#include "commit.h"

#include "record_text.h"

#include <string.h>

static int commit_append(struct kvl_runner *r, json_t *record, struct kvl_err *err)
{
    if (!record) return kvl_fail(err, KVL_ENOMEM, "out of memory for a record");
    int rc = kvl_log_append(r->log, record, err);
    json_decref(record);
    return rc;
}

static int commit_announce(struct kvl_runner *r, struct kvl_err *err)
{
    if (r->announced) return KVL_OK;
    KVL_TRY(commit_append(r, kvl_record_run(kvl_log_run(r->log), r->info), err));
    r->announced = true;
    return KVL_OK;
}

int kvl_runner_append(struct kvl_runner *r, json_t *record, struct kvl_err *err)
{
    int rc = commit_announce(r, err);
    if (rc == KVL_OK) return commit_append(r, record, err);
    json_decref(record);
    return rc;
}

/* Who reads the log later sees which of its cells are of other code by the code of its newest run: what is
 * kept is marked even where this run adds nothing. */
static int commit_mark_kept(struct kvl_runner *r, struct kvl_err *err)
{
    if (kvl_state_n_kept(r->state) == 0) return KVL_OK;
    json_t *code = kvl_record_sources(r->work->sweep);
    bool known = code && json_equal(code, r->state->newest_sources);
    json_decref(code);
    return known ? KVL_OK : commit_announce(r, err);
}

/* A shard that gets nothing says so, or it would seem not to have run. */
static int commit_mark_empty(struct kvl_runner *r, struct kvl_err *err)
{
    const struct kvl_work *w = r->work;
    bool empty = w->shard.count > 1 && !r->state->newest_sources;
    for (size_t i = 0; i < w->n_groups; i++) empty = empty && !w->group[i].mine;
    return empty ? commit_announce(r, err) : KVL_OK;
}

int kvl_runner_mark(struct kvl_runner *r, struct kvl_err *err)
{
    KVL_TRY(commit_mark_kept(r, err));
    return commit_mark_empty(r, err);
}

int kvl_runner_cell_error(struct kvl_runner *r, size_t cell, int32_t context,
                          const struct kvl_err *why, struct kvl_err *err)
{
    const char *run = kvl_log_run(r->log);
    r->state->cell[cell].failed = true;
    r->stats.n_errors++;
    r->progress.n_errors++;
    r->progress.n_done++;
    return kvl_runner_append(r,
                             kvl_record_error(run, &r->work->cell[cell], context, -1, why->code,
                                              why->msg[0] ? why->msg : kvl_status_name(why->code)),
                             err);
}

int kvl_runner_group_failed(struct kvl_runner *r, const struct kvl_group *g, int32_t context,
                            struct kvl_err *err)
{
    struct kvl_err why = *err;
    kvl_err_clear(err);
    for (size_t i = g->first; i < g->first + g->n; i++)
        if (kvl_state_wants(r->state, context, i))
            KVL_TRY(kvl_runner_cell_error(r, i, context, &why, err));
    return kvl_log_commit(r->log, err);
}

/* Cells whose samples are all there without a record: cut off between two commits, or by a change of
 * what else the sweep holds. */
static int commit_cells(struct kvl_runner *r, const struct kvl_group *g, struct kvl_err *err)
{
    for (size_t c = g->first; c < g->first + g->n; c++) {
        struct kvl_progress_cell *p = &r->state->cell[c];
        if (p->done || p->failed || !kvl_state_complete(r->state, c)) continue;
        const struct kvl_cell *cell = &r->work->cell[c];
        const char *run = kvl_log_run(r->log);
        KVL_TRY(kvl_runner_append(
            r,
            p->text ? kvl_record_perplexity(run, cell, p->text)
                    : kvl_record_cell(run, r->work->sweep, cell, p->outcome, p->quality),
            err));
        p->done = true;
        r->progress.n_done++;
    }
    return KVL_OK;
}

int kvl_runner_finish(struct kvl_runner *r, const struct kvl_group *g, struct kvl_err *err)
{
    KVL_TRY(commit_cells(r, g, err));
    return kvl_log_commit(r->log, err);
}
