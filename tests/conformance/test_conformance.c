/* What every policy promises, checked for every policy that the build found, or for one plug-in:
 *
 *     test_conformance [plug-in.so]
 *
 * Each check runs on small random models (query groups of 1, 2 and 4; f32 and f16 caches) and on the
 * shipped model where it is there.  Nothing here knows a method: a check asks the policy's own
 * description what applies to it. */
#include "conformance/check_blocks.h"
#include "conformance/check_cost.h"
#include "conformance/check_describe.h"
#include "conformance/check_execution.h"
#include "conformance/check_isolation.h"
#include "conformance/check_tables.h"
#include "conformance/check_taps.h"

#include <dlfcn.h>

#define KVL_POLICY_X(stem) extern const struct kvl_policy *const kvl_policy_##stem;
#include "kvl_policies.def"
#undef KVL_POLICY_X

static const struct {
    const char *name;
    CMUnitTestFunction run;
} checks[] = {
    { "description is complete", check_description },
    { "bad options and budgets are refused", check_options },
    { "budget for everything equals full", check_whole_budget_is_full },
    { "real equals masked", check_real_equals_masked },
    { "every choice runs", check_every_choice },
    { "positions go on", check_positions_go_on },
    { "raw keys", check_raw_keys },
    { "forks", check_forks },
    { "one prefill serves many", check_prefill_serves_many },
    { "sessions do not meet", check_sessions_do_not_meet },
    { "batch equals alone", check_batch },
    { "chunks of the prefill do not matter", check_chunks },
    { "threads do not matter", check_threads },
    { "seed", check_seed },
    { "budget is kept, bytes are counted", check_budget_is_kept },
    { "memory", check_memory },
    { "blocks are causal", check_blocks_are_causal },
    { "block equals steps", check_block_equals_steps },
    { "taps tell what was read", check_taps_tell_what_was_read },
    { "taps: real equals masked", check_taps_real_equals_masked },
    { "taps equal the probe", check_taps_equal_probe },
    { "budgets share tables", check_budgets_share },
    { "own prefill", check_own_prefill },
    { "own prefill is steps", check_own_prefill_is_steps },
    { "own prefill: refusals", check_own_prefill_refusals },
};
enum { N_CHECKS = sizeof checks / sizeof checks[0], MAX_SUBJECTS = 256 };

static struct subject subjects[MAX_SUBJECTS];
static struct CMUnitTest tests[MAX_SUBJECTS * N_CHECKS];
static char names[MAX_SUBJECTS * N_CHECKS][96];

static int built_in(void)
{
    int n = 0;
#define KVL_POLICY_X(stem) subjects[n++] = (struct subject){ kvl_policy_##stem, #stem };
#include "kvl_policies.def"
#undef KVL_POLICY_X
    return n;
}

static int plug_in(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct kvl_policy *const *p = library ? dlsym(library, "kvl_plugin_policy") : NULL;
    if (!p) {
        print_error("%s: %s\n", path, dlerror());
        return 0;
    }
    subjects[0] = (struct subject){ .policy = *p };
    return 1;
}

int main(int argc, char **argv)
{
    int n_subjects = argc > 1 ? plug_in(argv[1]) : built_in();
    size_t n = 0;
    if (n_subjects == 0) return 1;
    for (int i = 0; i < n_subjects; i++)
        for (int c = 0; c < N_CHECKS; c++, n++) {
            snprintf(names[n], sizeof names[n], "%s: %s", subjects[i].policy->name, checks[c].name);
            tests[n] = (struct CMUnitTest){ .name = names[n],
                                            .test_func = checks[c].run,
                                            .initial_state = &subjects[i] };
        }
    return _cmocka_run_group_tests("conformance", tests, n, NULL, NULL);
}
