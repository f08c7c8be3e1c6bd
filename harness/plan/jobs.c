/* How many processes answer the contexts of a sweep. */
#include "jobs.h"

#include "kvl/opt.h"

#include <string.h>

enum { JOBS_MAX = 1024 };

int kvl_jobs_parse(const char *text, int32_t *out, struct kvl_err *err)
{
    int64_t n = 0;
    bool is_auto = !text || strcmp(text, "auto") == 0;
    if (!is_auto && kvl_parse_i64(text, &n) != KVL_OK)
        return kvl_fail(err, KVL_EINVAL, "--jobs: \"%s\" is not a number, want auto or 1 to %d",
                        text, JOBS_MAX);
    if (!is_auto && (n < 1 || n > JOBS_MAX))
        return kvl_fail(err, KVL_EINVAL, "--jobs: \"%s\" is out of range, want auto or 1 to %d",
                        text, JOBS_MAX);
    *out = (int32_t)n;
    return KVL_OK;
}

/* How many there is memory for, at least one. */
static int32_t jobs_fit(const struct kvl_jobs_ask *a)
{
    if (a->free_bytes <= 0 || a->kv_bytes <= 0) return JOBS_MAX;
    int64_t one = KVL_MAX(KVL_MIN(a->free_bytes / a->kv_bytes, JOBS_MAX), 1);
    return (int32_t)(one * KVL_MAX(a->n_gpus, 1));
}

struct kvl_jobs kvl_jobs_choose(const struct kvl_jobs_ask *a)
{
    bool small = a->weight_bytes < KVL_JOBS_SMALL_BYTES && a->n_gpus == 0;
    int32_t want = a->asked ? a->asked : (small ? a->threads : KVL_MAX(a->n_gpus, 1));
    int32_t busy = KVL_MIN(want, KVL_MAX(a->n_contexts, 1));
    int32_t n = KVL_MIN(busy, jobs_fit(a));
    /* Who asks for workers gets one where there is work for one: a crash is not the sweep's then. */
    bool foreign = a->n_gpus > 0 || a->plugin || a->limit;
    bool apart = n > 1 || (a->asked > 1 && a->n_contexts > 0) || foreign;
    return (struct kvl_jobs){ .n = n,
                              .threads = KVL_MAX(a->threads / n, 1),
                              .apart = apart,
                              .left_out = busy - n,
                              .all_apart = foreign,
                              .watched = a->plugin };
}

bool kvl_work_compares(const struct kvl_work *w)
{
    const struct kvl_sweep *s = w->sweep;
    bool compares = s->quality.questions > 0;
    for (size_t i = 0; i < s->tasks.n; i++) compares |= kvl_point_reading(&s->tasks.v[i]) != NULL;
    return compares && w->only != KVL_ONLY_SPEED && kvl_kv_reference(s->kv_type) != s->kv_type;
}
