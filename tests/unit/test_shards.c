/* Which share of a sweep a process has: flags and what schedulers say. */
#include "log_shards.h"
#include "sweep_plan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void shard_is(const char *text, int32_t index, int32_t count)
{
    struct kvl_shard shard;
    struct kvl_err err = { 0 };
    assert_int_equal(kvl_shard_parse(text, &shard, &err), KVL_OK);
    assert_int_equal(shard.index, index);
    assert_int_equal(shard.count, count);
}

static void test_shard_text(void **state)
{
    static const char *const bad[] = { "", "1", "4/4", "-1/4", "1/0", "a/b", "1/4x", "1//4" };
    struct kvl_shard shard;
    (void)state;
    shard_is("0/4", 0, 4);
    shard_is("3/4", 3, 4);
    shard_is("none", 0, 1);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct kvl_err err = { 0 };
        assert_int_equal(kvl_shard_parse(bad[i], &shard, &err), KVL_EINVAL);
    }
    unsetenv("SLURM_ARRAY_TASK_ID");
    shard_is(NULL, 0, 1);
    setenv("SLURM_ARRAY_TASK_ID", "7", 1);
    setenv("SLURM_ARRAY_TASK_COUNT", "4", 1);
    setenv("SLURM_ARRAY_TASK_MIN", "3", 1);
    setenv("SLURM_ARRAY_TASK_STEP", "2", 1);
    shard_is(NULL, 2, 4);
    shard_is("0/9", 0, 9);
    /* What is no number, or none of the array's, made each task run everything, or another's share. */
    static const char *const wrong[][2] = {
        { "SLURM_ARRAY_TASK_ID", "x" },       { "SLURM_ARRAY_TASK_ID", "" },
        { "SLURM_ARRAY_TASK_ID", "8" },       { "SLURM_ARRAY_TASK_ID", "99" },
        { "SLURM_ARRAY_TASK_COUNT", "four" }, { "SLURM_ARRAY_TASK_MIN", "3.5" },
        { "SLURM_ARRAY_TASK_STEP", "0" }
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct kvl_err err = { 0 };
        char *before = strdup(getenv(wrong[i][0]));
        setenv(wrong[i][0], wrong[i][1], 1);
        assert_int_equal(kvl_shard_parse(NULL, &shard, &err), KVL_EINVAL);
        assert_non_null(strstr(err.msg, "SLURM_ARRAY_TASK_"));
        shard_is("none", 0, 1);
        setenv(wrong[i][0], before, 1);
        free(before);
    }
    shard_is(NULL, 2, 4);
    setenv("SLURM_ARRAY_TASK_COUNT", "1", 1);
    shard_is(NULL, 0, 1);
    unsetenv("SLURM_ARRAY_TASK_ID");
    unsetenv("SLURM_ARRAY_TASK_COUNT");
    unsetenv("SLURM_ARRAY_TASK_MIN");
    unsetenv("SLURM_ARRAY_TASK_STEP");
}

/* Sets variables of a list "A=1 B=2", asks, and takes them away again. */
static int shard_with(const char *list, const char *flag, struct kvl_shard *shard,
                      struct kvl_err *err)
{
    char *copy = strdup(list), *at = NULL;
    for (char *word = strtok_r(copy, " ", &at); word; word = strtok_r(NULL, " ", &at)) {
        char *value = strchr(word, '=');
        *value = '\0';
        setenv(word, value + 1, 1);
    }
    *err = (struct kvl_err){ 0 };
    int rc = kvl_shard_parse(flag, shard, err);
    memcpy(copy, list, strlen(list));
    for (char *word = strtok_r(copy, " ", &at); word; word = strtok_r(NULL, " ", &at)) {
        word[strcspn(word, "=")] = '\0';
        unsetenv(word);
    }
    free(copy);
    return rc;
}

/* Who is asked first, and what counts as an answer. */
static void test_shard_from(void **state)
{
#define ARRAY                                                                                      \
    "SLURM_ARRAY_TASK_ID=2 SLURM_ARRAY_TASK_COUNT=4 SLURM_ARRAY_TASK_MIN=0 "                       \
    "SLURM_ARRAY_TASK_MAX=3 "
#define SRUN "SLURM_JOB_ID=9 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=5 "
#define OMPI "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=6 "
#define PMI  "PMI_RANK=4 PMI_SIZE=7 "
#define KUBE "JOB_COMPLETION_INDEX=5 JOB_COMPLETIONS=8 "
    static const struct {
        const char *env, *flag;
        int32_t index, count;
        const char *from;
    } good[] = {
        { ARRAY SRUN OMPI PMI KUBE "KVLAB_SHARD=1/2", "0/3", 0, 3, "--shard" },
        { ARRAY SRUN OMPI PMI KUBE "KVLAB_SHARD=1/2", "auto", 1, 2, "KVLAB_SHARD" },
        { ARRAY SRUN OMPI PMI KUBE "KVLAB_SHARD=1/2", NULL, 1, 2, "KVLAB_SHARD" },
        { ARRAY SRUN OMPI PMI KUBE, "auto", 2, 4, "SLURM_ARRAY_TASK_ID" },
        { SRUN OMPI PMI KUBE, "auto", 1, 5, "SLURM_PROCID" },
        { "SLURM_PROCID=1 SLURM_NTASKS=5", NULL, 1, 5, "SLURM_PROCID" },
        { OMPI PMI KUBE, "auto", 3, 6, "OMPI_COMM_WORLD_RANK" },
        { PMI KUBE, "auto", 4, 7, "PMI_RANK" },
        { KUBE, "auto", 5, 8, "JOB_COMPLETION_INDEX" },
        { ARRAY "KVLAB_SHARD=none", NULL, 0, 1, NULL },
        { ARRAY, "none", 0, 1, NULL },
        { ARRAY "KVLAB_SHARD=", NULL, 2, 4, "SLURM_ARRAY_TASK_ID" },
        /* A job of one task may start several processes; its script is one, whatever srun would start. */
        { "SLURM_ARRAY_TASK_ID=7 SLURM_ARRAY_TASK_COUNT=1 " SRUN, NULL, 1, 5, "SLURM_PROCID" },
        { "SLURM_JOB_ID=9 SLURM_PROCID=0 SLURM_NTASKS=5", NULL, 0, 1, NULL },
        /* Of N: the number counts as it is, so that some tasks of an array can be repeated. */
        { "SLURM_ARRAY_TASK_ID=7 SLURM_ARRAY_TASK_COUNT=2 SLURM_ARRAY_TASK_MIN=3 "
          "SLURM_ARRAY_TASK_MAX=7",
          "auto/64", 7, 64, "SLURM_ARRAY_TASK_ID" },
        { "SLURM_ARRAY_TASK_ID=7 SLURM_ARRAY_TASK_COUNT=1 KVLAB_SHARD=auto/64", NULL, 7, 64,
          "SLURM_ARRAY_TASK_ID" },
        { "SLURM_ARRAY_TASK_ID=999 KVLAB_SHARD_OFFSET=3000", "auto/4000", 3999, 4000,
          "SLURM_ARRAY_TASK_ID" },
        { "SLURM_ARRAY_TASK_ID=64 KVLAB_SHARD_OFFSET=-1", "auto/64", 63, 64,
          "SLURM_ARRAY_TASK_ID" },
        { "JOB_COMPLETION_INDEX=5", "auto/8", 5, 8, "JOB_COMPLETION_INDEX" },
    };
    static const struct {
        const char *env, *flag, *says;
    } bad[] = {
        { "SLURM_ARRAY_TASK_ID=7 SLURM_ARRAY_TASK_COUNT=2 SLURM_ARRAY_TASK_MIN=3 "
          "SLURM_ARRAY_TASK_MAX=7",
          NULL, "gaps" },
        { "SLURM_ARRAY_TASK_ID=3 SLURM_ARRAY_TASK_COUNT=2 SLURM_ARRAY_TASK_MIN=3 "
          "SLURM_ARRAY_TASK_MAX=7",
          "auto", "gaps" },
        { "SLURM_ARRAY_TASK_ID=3", NULL, "of how many" },
        { "JOB_COMPLETION_INDEX=3", NULL, "of how many" },
        { "PMI_RANK=4 PMI_SIZE=4", NULL, "PMI_RANK" },
        { "PMI_RANK=x PMI_SIZE=4", NULL, "PMI_RANK" },
        { "KVLAB_SHARD=4/4", NULL, "KVLAB_SHARD: \"4/4\"" },
        { "KVLAB_SHARD=1/2/", "auto", "KVLAB_SHARD" },
        { ARRAY "KVLAB_SHARD_OFFSET=10", NULL, "auto/N" },
        { ARRAY "KVLAB_SHARD_OFFSET=10", "auto/12", "0 to 11" },
        { ARRAY "KVLAB_SHARD_OFFSET=9223372036854775807", "auto/12", "KVLAB_SHARD_OFFSET" },
        { "SLURM_ARRAY_TASK_ID=9223372036854775807", "auto/12", "0 to 11" },
        { "HOME=/", "auto/4", "no scheduler" },
        { "HOME=/", "auto/0", "want i/n" },
        { "HOME=/", "auto/x", "want i/n" },
    };
    struct kvl_shard shard;
    struct kvl_err err;
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        int rc = shard_with(good[i].env, good[i].flag, &shard, &err);
        if (rc != KVL_OK || shard.index != good[i].index || shard.count != good[i].count)
            fail_msg("%s with %s: %d/%d %s", good[i].env, good[i].flag, shard.index, shard.count,
                     err.msg);
        if (!good[i].from)
            assert_null(shard.from);
        else
            assert_string_equal(shard.from, good[i].from);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int rc = shard_with(bad[i].env, bad[i].flag, &shard, &err);
        if (rc != KVL_EINVAL || !strstr(err.msg, bad[i].says))
            fail_msg("%s with %s: %d %s", bad[i].env, bad[i].flag, rc, err.msg);
    }
}

static void ranges_are(const char *want, const int64_t *number, size_t n)
{
    struct kvl_log_ranges r = { 0 };
    for (size_t i = 0; i < n; i++) assert_int_equal(kvl_log_ranges_add(&r, number[i]), KVL_OK);
    assert_string_equal(r.text.len ? r.text.data : "", want);
    kvl_buf_free(&r.text);
}

static void test_ranges(void **state)
{
    static const int64_t number[] = { 0, 1, 2, 3, 5, 7, 8, 9, 20, 21, 1000 };
    (void)state;
    ranges_are("", number, 0);
    ranges_are("0", number, 1);
    ranges_are("0-1", number, 2);
    ranges_are("0-3", number, 4);
    ranges_are("3,5,7-9", number + 3, 5);
    ranges_are("0-3,5,7-9,20-21,1000", number, 11);
}

static void test_shard_of_run(void **state)
{
    static const char *const bad[] = { "",     "3",   "3/",    "/4",  "4/4",
                                       "-1/4", "a/4", "3/4/5", "1/0", "3/9x" };
    int64_t index, count;
    (void)state;
    assert_true(kvl_log_shard("3/64", &index, &count));
    assert_int_equal(index, 3);
    assert_int_equal(count, 64);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_false(kvl_log_shard(bad[i], &index, &count));
}

/* What is set where the tests run is nothing to them. */
static int shards_alone(void **state)
{
    static const char *const names[] = { "KVLAB_SHARD",          "KVLAB_SHARD_OFFSET",
                                         "SLURM_ARRAY_TASK_ID",  "SLURM_PROCID",
                                         "SLURM_JOB_ID",         "SLURM_STEP_ID",
                                         "OMPI_COMM_WORLD_RANK", "PMI_RANK",
                                         "JOB_COMPLETION_INDEX", "SLURM_ARRAY_TASK_MAX" };
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) unsetenv(names[i]);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shard_text),
        cmocka_unit_test(test_shard_from),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_shard_of_run),
    };
    return cmocka_run_group_tests(tests, shards_alone, NULL);
}
