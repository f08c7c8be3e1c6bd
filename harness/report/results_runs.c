/* Runs of logs: which is the newest, and what code it tells. */
#include "code.h"
#include "results_parts.h"

#include <stdlib.h>
#include <string.h>

/* By time; those of one second in the order of the logs. */
static int run_order(const void *a, const void *b, void *runs)
{
    size_t i = *(const size_t *)a, j = *(const size_t *)b;
    int c = strcmp(kvl_json_text(json_array_get(runs, i), "t_start"),
                   kvl_json_text(json_array_get(runs, j), "t_start"));
    return c ? c : (i > j) - (i < j);
}

/* The newest run, and the code that each engine, policy and task has in the newest run that tells. */
int kvl_results_runs(struct kvl_results *r, struct kvl_err *err)
{
    size_t n = json_array_size(r->runs);
    size_t *run = kvl_alloc(n + 1, sizeof *run);
    int failed = run ? 0 : -1;
    for (size_t i = 0; run && i < n; i++) run[i] = i;
    if (run) qsort_r(run, n, sizeof *run, run_order, r->runs);
    for (size_t i = 0; run && i < n; i++) {
        r->newest_run = json_array_get(r->runs, run[i]);
        json_t *code = json_object_get(r->newest_run, "sources");
        if (code) failed |= json_object_update_recursive(r->code, code);
    }
    kvl_free(run);
    return failed ? kvl_results_memory(err) : KVL_OK;
}

const json_t *kvl_result_run(const struct kvl_results *r, const char *id)
{
    for (size_t i = json_array_size(r->runs); i-- > 0;) {
        const json_t *run = json_array_get(r->runs, i);
        if (strcmp(kvl_json_text(run, "run"), id) == 0) return run;
    }
    return NULL;
}

const char *kvl_result_model(const struct kvl_results *r, const char *run)
{
    return kvl_json_text(kvl_result_run(r, run), "model.name");
}

const char *kvl_result_kv_type(const struct kvl_results *r, const char *run)
{
    return kvl_json_text(kvl_result_run(r, run), "store.kv_type");
}

/* Whether a hash is the one that the newest runs tell; what they do not tell is taken to be. */
static bool code_is(const struct kvl_results *r, const char *group, const char *name, uint64_t hash)
{
    const json_t *in = group ? json_object_get(r->code, group) : r->code;
    const char *text = json_string_value(json_object_get(in, name));
    return !text || strtoull(text, NULL, 16) == hash;
}

/* Logs that were written before keys had the code tell the build. */
bool kvl_record_stale(const struct kvl_results *r, const json_t *record)
{
    struct kvl_code code;
    if (!r->newest_run) return false;
    if (!kvl_code_of_key(kvl_json_text(record, "key"), &code))
        return strcmp(kvl_json_text(record, "code"), kvl_json_text(r->newest_run, "kvlab.git")) !=
               0;
    return !code_is(r, NULL, "engine", code.engine) ||
           !code_is(r, "policies", kvl_json_text(record, "policy"), code.method) ||
           !code_is(r, "tasks", kvl_json_text(record, "task"), code.task) ||
           (code.cuda && !code_is(r, NULL, "cuda", code.cuda));
}
