/* Which shards of sweeps are left. */
#include "results_left.h"

#include "json.h"
#include "results_amount.h"

#include <string.h>

static bool left_same(const json_t *a, const json_t *b)
{
    static const char *const key[] = { "sweep.name", "model.file" };
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++)
        if (strcmp(kvl_json_text(a, key[i]), kvl_json_text(b, key[i])) != 0) return false;
    return true;
}

/* Of two that began in the same millisecond, the one that is read later. */
static bool left_later(const json_t *a, const json_t *b)
{
    return !b || strcmp(kvl_json_text(a, "t_start"), kvl_json_text(b, "t_start")) >= 0;
}

/* The newest run of the sweep of `of`: of that shard, or of any (NULL). */
static json_t *left_newest(const struct kvl_results *r, const json_t *of, const char *shard)
{
    json_t *newest = NULL, *run;
    size_t i;
    json_array_foreach(r->runs, i, run)
    {
        bool fits = left_same(run, of) && kvl_results_run_says(run);
        if (fits && shard) fits = strcmp(kvl_json_text(run, "sweep.shard"), shard) == 0;
        if (fits && left_later(run, newest)) newest = run;
    }
    return newest;
}

static int left_of_run(const struct kvl_results *r, const json_t *run, bool *left,
                       struct kvl_err *err)
{
    struct kvl_results_amount n = { 0 };
    *left = true;
    if (!run) return KVL_OK;
    KVL_TRY(kvl_results_run_amount(r, run, &n, err));
    *left = n.done + n.stopped < n.cells;
    return KVL_OK;
}

/* mark [n]: shards that are left. */
static int left_mark(const struct kvl_results *r, const json_t *newest, bool *mark, int64_t n,
                     struct kvl_results_left *out, struct kvl_err *err)
{
    char shard[48];
    for (int64_t i = 0; i < n; i++) {
        bool left;
        snprintf(shard, sizeof shard, "%lld/%lld", (long long)i, (long long)n);
        KVL_TRY(left_of_run(r, left_newest(r, newest, shard), &left, err));
        mark[i] |= left;
        out->any |= left;
    }
    return KVL_OK;
}

/* Of a sweep once: when the run is its newest. */
static int left_sweep(const struct kvl_results *r, const json_t *run, bool **mark,
                      struct kvl_results_left *out, struct kvl_err *err)
{
    int64_t index, n;
    bool left;
    if (left_newest(r, run, NULL) != run) return KVL_OK;
    bool done;
    KVL_TRY(kvl_results_all_done(r, run, &done, err));
    if (done) return KVL_OK;
    if (!kvl_log_shard(kvl_json_text(run, "sweep.shard"), &index, &n)) {
        KVL_TRY(left_of_run(r, run, &left, err));
        out->any |= left;
        return KVL_OK;
    }
    if (!*mark) {
        out->shards = n;
        *mark = kvl_alloc((size_t)n, sizeof **mark);
        if (!*mark) return kvl_fail(err, KVL_ENOMEM, "no memory for %lld shards", (long long)n);
    }
    out->mixed |= n != out->shards;
    if (n != out->shards) {
        bool *own = kvl_alloc((size_t)n, sizeof *own);
        int rc = own ? left_mark(r, run, own, n, out, err)
                     : kvl_fail(err, KVL_ENOMEM, "no memory for %lld shards", (long long)n);
        kvl_free(own);
        return rc;
    }
    return left_mark(r, run, *mark, n, out, err);
}

/* What a method refuses by its options is an answer: no run of it would give another. */
static int64_t left_failed(const struct kvl_results *r)
{
    int64_t n = (int64_t)r->n_failed_samples;
    size_t i;
    json_t *e;
    json_array_foreach(r->errors, i, e)
    {
        bool refused = json_is_null(json_object_get(e, "context")) && kvl_json_text(e, "cell")[0] &&
                       strcmp(kvl_json_text(e, "status"), kvl_status_name(KVL_EINVAL)) == 0;
        n += !refused;
    }
    return n;
}

int kvl_results_left(const struct kvl_results *r, struct kvl_results_left *out, struct kvl_err *err)
{
    bool *mark = NULL;
    size_t i;
    json_t *run;
    int rc = KVL_OK;
    *out = (struct kvl_results_left){ .n_failed = left_failed(r) };
    json_array_foreach(r->runs, i, run)
    {
        if (rc == KVL_OK) rc = left_sweep(r, run, &mark, out, err);
    }
    for (int64_t k = 0; k < out->shards && rc == KVL_OK; k++)
        if (mark[k] && kvl_log_ranges_add(&out->number, k) != KVL_OK)
            rc = kvl_fail(err, KVL_ENOMEM, "no memory for the numbers of shards");
    kvl_free(mark);
    if (rc != KVL_OK) kvl_results_left_free(out);
    return rc;
}

void kvl_results_left_free(struct kvl_results_left *l)
{
    kvl_buf_free(&l->number.text);
    *l = (struct kvl_results_left){ 0 };
}
