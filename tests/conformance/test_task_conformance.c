/* What every task promises, checked for every task that the program has, or for one of them or a
 * plug-in:
 *
 *     test_task_conformance [NAME | plug-in.so]
 *
 * under the tokenizer of the shipped models, and one that has a token for each byte. */
#include "conformance/check_task.h"
#include "registry.h"

enum { MAX_TESTS = 1024, TASK_TOKENIZERS = 2 };

static struct {
    struct task_subject s;
    task_check check;
} cases[MAX_TESTS];
static struct CMUnitTest tests[MAX_TESTS];
static char names[MAX_TESTS][128];
static size_t n_tests;

static void run(void **state)
{
    size_t i = (size_t)(uintptr_t)*state - 1;
    struct kvl_err err = { 0 };
    if (cases[i].check(&cases[i].s, &err) != KVL_OK) fail_msg("%s: %s", names[i], err.msg);
}

static void add(const struct kvl_task *task)
{
    for (int32_t k = 0; k < n_tokenizers && k < TASK_TOKENIZERS; k++)
        for (int32_t p = 0; p < N_TASK_PROMISES && n_tests < MAX_TESTS; p++) {
            /* A task that reads files can be asked for nothing but what it is. */
            if (task->open && task_promises[p].check != check_task_description) continue;
            size_t i = n_tests++;
            cases[i].s = (struct task_subject){ task, tokenizers[k].name, tokenizers[k].t };
            cases[i].check = task_promises[p].check;
            snprintf(names[i], sizeof names[i], "%s, %s: %s", task->name, tokenizers[k].name,
                     task_promises[p].name);
            tests[i] = (struct CMUnitTest){ .name = names[i],
                                            .test_func = run,
                                            .initial_state = (void *)(uintptr_t)(i + 1) };
        }
}

/* A name, or the path of a plug-in, whose task is then one of the registry. */
static int add_named(struct kvl_registry *r, const char *text, struct kvl_err *err)
{
    const struct kvl_task *task;
    size_t len = strlen(text);
    if (!strchr(text, '/') && (len < 3 || strcmp(text + len - 3, ".so") != 0)) {
        KVL_TRY(kvl_registry_find_task(r, text, &task, err));
        add(task);
        return KVL_OK;
    }
    KVL_TRY(kvl_registry_task_plugin(r, text, err));
    for (size_t i = 0; i < kvl_registry_n_tasks(r); i++)
        if (kvl_registry_task_origin(r, i)) add(kvl_registry_task(r, i));
    return KVL_OK;
}

int main(int argc, char **argv)
{
    struct kvl_registry *r;
    struct kvl_err err = { 0 };
    int rc = kvl_registry_create(&r, &err);
    open_tokenizers(NULL);
    if (rc == KVL_OK && argc > 1) rc = add_named(r, argv[1], &err);
    for (size_t i = 0; rc == KVL_OK && argc < 2 && i < kvl_registry_n_tasks(r); i++)
        add(kvl_registry_task(r, i));
    if (rc != KVL_OK) {
        print_error("%s\n", err.msg);
        return 1;
    }
    int failed = _cmocka_run_group_tests("task conformance", tests, n_tests, NULL, NULL);
    close_tokenizers(NULL);
    kvl_registry_destroy(r);
    return failed;
}
