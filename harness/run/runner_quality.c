/* Reference passes of a cell. */
#include "runner_context.h"

/* The cell is made of what the log says, as after a restart. */
static int quality_append(struct kvl_runner *r, size_t cell, int32_t context, int32_t question,
                          const struct kvl_quality_result *result, const char *error,
                          struct kvl_err *err)
{
    const struct kvl_quality *want = &r->work->sweep->quality;
    struct kvl_outcome *outcome;
    struct kvl_quality_means *quality;
    KVL_TRY(kvl_state_own(r->state, cell, &outcome, &quality, err));
    json_t *record = kvl_record_quality(kvl_log_run(r->log), &r->work->cell[cell], context,
                                        question, want, result, error);
    json_incref(record);
    int rc = kvl_runner_append(r, record, err);
    if (rc == KVL_OK) kvl_quality_of(record, &quality[context * want->questions + question]);
    json_decref(record);
    r->stats.n_quality += rc == KVL_OK;
    return rc;
}

int kvl_runner_quality(struct kvl_runner *r, size_t cell, int32_t context, int32_t question,
                       struct kvl_quality_run *run, const struct kvl_err *failed,
                       struct kvl_err *err)
{
    struct kvl_quality_result result = { 0 };
    struct kvl_err why = *failed;
    run->want = &r->work->sweep->quality;
    run->shape = kvl_model_shape(r->work->model);
    run->logits = r->room.logits; /* there is room for KVL_ASK_MAX rows */
    KVL_TRY(kvl_quality_create(run->want, run->shape, &result, err));
    if (why.code == KVL_OK) why.code = kvl_quality_measure(run, &result, &why);
    const char *message = why.msg[0] ? why.msg : kvl_status_name(why.code);
    int rc = kvl_runner_ends(why.code) ? kvl_fail(err, why.code, "%s", message)
                                       : quality_append(r, cell, context, question, &result,
                                                        why.code == KVL_OK ? NULL : message, err);
    kvl_quality_free(&result);
    return rc;
}
