/* The list of models says what the table of architectures computes, no more and no less. */
#include "arch.h"
#include "kvl/gguf.h"
#include "model_list.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static const struct kvl_arch *arch_of(const char *name)
{
    const struct kvl_str s = { name, strlen(name) };
    return kvl_arch_find(&s);
}

static void test_listed(void **state)
{
    (void)state;
    for (int32_t i = 0; kvl_family_at(i); i++)
        if (!arch_of(kvl_family_at(i)->arch))
            fail_msg("%s: no architecture %s", kvl_family_at(i)->family, kvl_family_at(i)->arch);
    for (int32_t i = 0; kvl_refused_family_at(i); i++) {
        const char *arch = kvl_refused_family_at(i)->arch;
        if (arch && arch_of(arch)) fail_msg("%s is computed, but listed as refused", arch);
    }
}

/* Every architecture has a model in the list. */
static void test_all_listed(void **state)
{
    char names[1024];
    (void)state;
    kvl_arch_names(names, sizeof names);
    assert_true(strlen(names) + 1 < sizeof names);
    for (char *name = strtok(names, ", "); name; name = strtok(NULL, ", ")) {
        bool found = false;
        for (int32_t i = 0; kvl_family_at(i) && !found; i++)
            found = strcmp(kvl_family_at(i)->arch, name) == 0;
        if (!found) fail_msg("no model of architecture %s in the list", name);
    }
}

/* Mistral-7B: 131072 bytes a token, 4 GiB at 32K. */
static void test_memory(void **state)
{
    (void)state;
    for (int32_t i = 0; kvl_family_at(i); i++)
        if (strncmp(kvl_family_at(i)->model, "Mistral-7B", 10) == 0)
            assert_true(kvl_family_kv_gib(kvl_family_at(i), 32768) == 4.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_listed),
        cmocka_unit_test(test_all_listed),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
