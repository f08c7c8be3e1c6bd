/* Which share of a sweep this process has, by its flag or by what a scheduler says. */
#include "sweep_plan.h"

#include <stdlib.h>
#include <string.h>

enum { SHARD_MAX = 1000000 };

/* Schedulers in the order in which they are asked. */
static const struct shard_source {
    const char *index, *count;
} shard_sources[] = {
    { "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT" }, { "SLURM_PROCID", "SLURM_NTASKS" },
    { "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE" },  { "PMI_RANK", "PMI_SIZE" },
    { "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS" },
};
enum { SHARD_SOURCES = sizeof shard_sources / sizeof shard_sources[0] };

/* Not set: *out as it is. */
static int shard_env(const char *name, int64_t *out, struct kvl_err *err)
{
    const char *text = getenv(name);
    if (!text || kvl_parse_i64(text, out) == KVL_OK) return KVL_OK;
    return kvl_fail(err, KVL_EINVAL, "%s=%s: is no number, want --shard i/n or none", name, text);
}

/* Ids of an array may begin anywhere and go in steps.  One with gaps repeats some tasks of a larger array, whose
 * number of tasks it does not know. */
static int shard_array(int64_t id, int64_t count, int64_t *index, struct kvl_err *err)
{
    int64_t min = 0, step = 1, max;
    KVL_TRY(shard_env("SLURM_ARRAY_TASK_MIN", &min, err));
    KVL_TRY(shard_env("SLURM_ARRAY_TASK_STEP", &step, err));
    bool counts = step >= 1 && step <= SHARD_MAX && count >= 1 && count <= SHARD_MAX &&
                  min >= -SHARD_MAX && min <= SHARD_MAX && id >= min && (id - min) % step == 0;
    max = counts ? min + (count - 1) * step : 0;
    int64_t last = max;
    KVL_TRY(shard_env("SLURM_ARRAY_TASK_MAX", &last, err));
    if (counts && last != max)
        return kvl_fail(err, KVL_EINVAL,
                        "SLURM_ARRAY_TASK_ID %lld of %lld from %lld to %lld: an array with gaps "
                        "does not say of how many, want --shard auto/N",
                        (long long)id, (long long)count, (long long)min, (long long)last);
    if (!counts || id > max)
        return kvl_fail(err, KVL_EINVAL,
                        "SLURM_ARRAY_TASK_ID %lld of %lld from %lld in steps of %lld: want --shard "
                        "i/n",
                        (long long)id, (long long)count, (long long)min, (long long)step);
    *index = (id - min) / step;
    return KVL_OK;
}

/* In the script of a job, before srun, Slurm numbers one process and counts those that srun would start. */
static bool shard_in_script(const struct shard_source *s, int64_t index)
{
    return strcmp(s->index, "SLURM_PROCID") == 0 && index == 0 && getenv("SLURM_JOB_ID") &&
           !getenv("SLURM_STEP_ID");
}

/* Of `of` shards (0: of as many as the source counts). *found: the source says which. */
static int shard_ask(const struct shard_source *s, int64_t of, int64_t offset, bool *found,
                     struct kvl_shard *out, struct kvl_err *err)
{
    int64_t index = INT64_MIN, count = of ? of : -1;
    *found = false;
    KVL_TRY(shard_env(s->index, &index, err));
    if (index == INT64_MIN || shard_in_script(s, index)) return KVL_OK;
    if (!of) KVL_TRY(shard_env(s->count, &count, err));
    if (count == 1 && !of) return KVL_OK;
    if (count == -1)
        return kvl_fail(err, KVL_EINVAL, "%s=%lld and no %s: of how many? want --shard auto/N",
                        s->index, (long long)index, s->count);
    if (!of && s == &shard_sources[0]) KVL_TRY(shard_array(index, count, &index, err));
    if (of) index = index < SHARD_MAX && index > -SHARD_MAX ? index + offset : -1;
    if (count < 1 || count > SHARD_MAX || index < 0 || index >= count)
        return kvl_fail(err, KVL_EINVAL,
                        "%s=%s, KVLAB_SHARD_OFFSET %lld, %lld shards: want a sum from 0 to %lld",
                        s->index, getenv(s->index), (long long)offset, (long long)count,
                        (long long)count - 1);
    *found = true;
    *out = (struct kvl_shard){ .index = (int32_t)index, .count = (int32_t)count, .from = s->index };
    return KVL_OK;
}

static int shard_auto(int64_t of, struct kvl_shard *out, struct kvl_err *err)
{
    int64_t offset = 0;
    bool found = false;
    KVL_TRY(shard_env("KVLAB_SHARD_OFFSET", &offset, err));
    if (offset < -SHARD_MAX || offset > SHARD_MAX || (offset && !of))
        return kvl_fail(err, KVL_EINVAL,
                        "KVLAB_SHARD_OFFSET=%lld: want a small number, and --shard auto/N",
                        (long long)offset);
    for (size_t i = 0; i < SHARD_SOURCES && !found; i++)
        KVL_TRY(shard_ask(&shard_sources[i], of, offset, &found, out, err));
    if (found || !of) return KVL_OK;
    return kvl_fail(
        err, KVL_EINVAL,
        "--shard auto/%lld: no scheduler says which one (SLURM_ARRAY_TASK_ID, SLURM_PROCID, "
        "OMPI_COMM_WORLD_RANK, PMI_RANK, JOB_COMPLETION_INDEX), want --shard i/%lld",
        (long long)of, (long long)of);
}

/* "first/second"; auto: first is that word, *index = -1. */
static bool shard_pair(const char *text, int64_t *index, int64_t *count)
{
    char first[16];
    const char *slash = strchr(text, '/');
    size_t n = slash ? (size_t)(slash - text) : sizeof first;
    if (n >= sizeof first) return false;
    memcpy(first, text, n);
    first[n] = '\0';
    if (kvl_parse_i64(slash + 1, count) != KVL_OK || *count < 1 || *count > SHARD_MAX) return false;
    *index = -1;
    if (strcmp(first, "auto") == 0) return true;
    return kvl_parse_i64(first, index) == KVL_OK && *index >= 0 && *index < *count;
}

int kvl_shard_parse(const char *text, struct kvl_shard *out, struct kvl_err *err)
{
    const char *env = getenv("KVLAB_SHARD"), *from = "--shard";
    int64_t index, count;
    *out = (struct kvl_shard){ .count = 1 };
    if ((!text || strcmp(text, "auto") == 0) && env && *env) {
        text = env;
        from = "KVLAB_SHARD";
    }
    if (!text || strcmp(text, "auto") == 0) return shard_auto(0, out, err);
    if (strcmp(text, "none") == 0) return KVL_OK;
    if (!shard_pair(text, &index, &count))
        return kvl_fail(
            err, KVL_EINVAL,
            "%s: \"%s\": want i/n with 0 <= i < n (0/4 is the first of four), auto, auto/n or none",
            from, text);
    if (index < 0) return shard_auto(count, out, err);
    *out = (struct kvl_shard){ .index = (int32_t)index, .count = (int32_t)count, .from = from };
    return KVL_OK;
}
