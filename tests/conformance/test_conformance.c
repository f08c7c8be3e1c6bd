/* What every policy promises, checked for every policy that the build found, or for one of them or a
 * plug-in:
 *
 *     test_conformance [NAME | OUTER(INNER) | plug-in.so]
 *
 * A policy that wraps others is checked over the one that it usually wraps, and over another.
 *
 * Each check runs on small random models (query groups of 1, 2 and 4; f32 and f16 caches; of other architectures one
 * in turn, or with KVL_LONG all) and on the shipped model where it is there; on the device that KVL_TEST_DEVICE names, where it is set.  Nothing
 * here knows a method: a check asks the policy's own description what applies to it. */
#include "conformance/check_ahead.h"
#include "conformance/check_blocks.h"
#include "conformance/check_cost.h"
#include "conformance/check_describe.h"
#include "conformance/check_device.h"
#include "conformance/check_execution.h"
#include "conformance/check_hybrid.h"
#include "conformance/check_isolation.h"
#include "conformance/check_tables.h"
#include "conformance/check_taps.h"

#include <dlfcn.h>

#define KVL_POLICY_X(stem) extern const struct kvl_policy *const kvl_policy_##stem;
#include "kvl_policies.def"
#undef KVL_POLICY_X

static const char ahead_name[] = "hooks that look at nothing";

static const struct {
    const char *name;
    CMUnitTestFunction run;
    bool few; /* of those that the emulated GPU has time for, of few methods */
} checks[] = {
    { ahead_name, check_runs_ahead, true },
    { "a device answers as the CPU", check_device, true },
    { "description is complete", check_description, false },
    { "bad options and budgets are refused", check_options, false },
    { "budget for everything equals full", check_whole_budget_is_full, false },
    { "real equals masked", check_real_equals_masked, true },
    { "attention on the host equals fetched", check_hybrid, false },
    { "every choice runs", check_every_choice, false },
    { "positions go on", check_positions_go_on, false },
    { "raw keys", check_raw_keys, false },
    { "forks", check_forks, true },
    { "one prefill serves many", check_prefill_serves_many, false },
    { "a question in a fork", check_question, true },
    { "sessions do not meet", check_sessions_do_not_meet, false },
    { "batch equals alone", check_batch, true },
    { "chunks of the prefill do not matter", check_chunks, false },
    { "a prefill layer by layer", check_layers, true },
    { "threads do not matter", check_threads, false },
    { "seed", check_seed, false },
    { "budget is kept, bytes are counted", check_budget_is_kept, false },
    { "memory", check_memory, false },
    { "blocks are causal", check_blocks_are_causal, false },
    { "block equals steps", check_block_equals_steps, false },
    { "taps tell what was read", check_taps_tell_what_was_read, false },
    { "taps: real equals masked", check_taps_real_equals_masked, false },
    { "taps equal the probe", check_taps_equal_probe, false },
    { "budgets share tables", check_budgets_share, false },
    { "own prefill", check_own_prefill, false },
    { "own prefill is steps", check_own_prefill_is_steps, false },
    { "own prefill: refusals", check_own_prefill_refusals, false },
};
enum { N_CHECKS = sizeof checks / sizeof checks[0], MAX_SUBJECTS = 256 };

static struct subject subjects[MAX_SUBJECTS];
static struct CMUnitTest tests[MAX_SUBJECTS * N_CHECKS];
static char names[MAX_SUBJECTS * N_CHECKS][96];

static struct subject found[MAX_SUBJECTS]; /* as they are, wrappers without what they wrap */
static int n_found;

static void built_in(void)
{
#define KVL_POLICY_X(stem) found[n_found++] = (struct subject){ kvl_policy_##stem, #stem };
#include "kvl_policies.def"
#undef KVL_POLICY_X
}

static bool is_word(const char *name, const char *text, size_t n)
{
    return strlen(name) == n && strncmp(name, text, n) == 0;
}

static const struct kvl_policy *find(const char *text, size_t n)
{
    for (int i = 0; i < n_found; i++)
        if (is_word(found[i].policy->name, text, n)) return found[i].policy;
    print_error("no policy \"%.*s\"\n", (int)n, text);
    return NULL;
}

/* outer(inner) as a subject; NULL: these two do not go together, or have no plan together. */
static const struct kvl_policy *compose(const struct subject *outer, const struct kvl_policy *inner)
{
    static const struct kvl_shape shape = { .n_layers = 2,
                                            .n_heads = 4,
                                            .n_kv_heads = 2,
                                            .group = 2,
                                            .head_dim = 16,
                                            .n_embd = 64,
                                            .n_vocab = 300,
                                            .scale = .25f };
    const struct kvl_policy *p;
    struct kvl_planned *planned = NULL;
    struct kvl_err err = { 0 };
    if (!inner || kvl_policy_compose(outer->policy, inner, &p, &err) != KVL_OK) return NULL;
    if (kvl_planned_create(p, &shape, "", 48, 150, &planned, &err) == KVL_OK) {
        kvl_planned_destroy(planned);
        return p;
    }
    kvl_policy_decompose(p);
    return NULL;
}

/* Nothing but what every inner policy does, so that what is special about one is not the wrapper's. */
static bool is_plain(const struct kvl_policy *p)
{
    uint32_t plain = KVL_CAP_EVICTS | KVL_CAP_SELECTS | KVL_CAP_SHARES_META | KVL_CAP_ASYNC;
    return (p->caps & ~plain) == 0 && !p->inner && p->prefill == KVL_PREFILL_SHARED;
}

/* Subjects of a policy: itself, or two that it wraps. */
static int subjects_of(const struct subject *s, int n)
{
    const struct kvl_policy *p = s->policy;
    if (!p->inner) {
        subjects[n] = *s;
        return n + 1;
    }
    size_t len = strcspn(p->inner, ":");
    const struct kvl_policy *usual = find(p->inner, len), *other = NULL;
    subjects[n].policy = compose(s, usual);
    if (!subjects[n].policy) return 0;
    for (int i = 0; i < n_found && !other; i++)
        if (is_plain(found[i].policy) && found[i].policy != usual)
            other = compose(s, found[i].policy);
    subjects[n + 1].policy = other;
    return n + (other ? 2 : 1);
}

static int plug_in(const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct kvl_policy *const *p = library ? dlsym(library, "kvl_plugin_policy") : NULL;
    if (!p) {
        print_error("%s: %s\n", path, dlerror());
        return 0;
    }
    return subjects_of(&(struct subject){ .policy = *p }, 0);
}

/* "name", "outer(inner)" or the path of a plug-in. */
static int named(const char *text)
{
    size_t len = strlen(text), n = strcspn(text, "(");
    if (strchr(text, '/') || (len > 3 && strcmp(text + len - 3, ".so") == 0)) return plug_in(text);
    for (int i = 0; i < n_found; i++) {
        if (!is_word(found[i].policy->name, text, n)) continue;
        if (n == len) return subjects_of(&found[i], 0);
        subjects[0].policy = compose(&found[i], find(text + n + 1, len - n - 2));
        return subjects[0].policy ? 1 : 0;
    }
    return find(text, n) ? 1 : 0;
}

static int everything(void)
{
    int n = 0;
    for (int i = 0; i < n_found; i++) {
        n = subjects_of(&found[i], n);
        if (n == 0) return 0;
    }
    return n;
}

/* On the emulated GPU, which is slow: unless KVL_LONG is set, one check of every method, and more of some that
 * between them reach most operators. */
static bool emulated(void)
{
#ifdef KVL_TEST_CUDA
    setenv("KVL_TEST_DEVICE", "cuda", 0);
    return !getenv("KVL_LONG");
#else
    return false;
#endif
}

/* Whether the emulated GPU has time for a check of a method. */
static bool is_one_of_few(const struct kvl_policy *policy, int check)
{
    static const char *const few[] = { "h2o", "quest", "host_loop" };
    if (checks[check].run == check_device) return true; /* every method */
    if (checks[check].name == ahead_name) return (policy->caps & KVL_CAP_ASYNC) != 0;
    if (checks[check].run == check_hybrid) return (policy->caps & KVL_CAP_OFFLOADS) != 0;
    for (size_t i = 0; i < sizeof few / sizeof few[0]; i++)
        if (strcmp(few[i], policy->name) == 0) return checks[check].few;
    return false;
}

int main(int argc, char **argv)
{
    bool few = emulated();
    built_in();
    int n_subjects = argc > 1 ? named(argv[1]) : everything();
    size_t n = 0;
    if (n_subjects == 0) return 1;
    arch_turn = (unsigned)(kvl_seed_str(0, subjects[0].policy->name) % 1000);
    for (int i = 0; i < n_subjects; i++)
        for (int c = 0; c < N_CHECKS; c++) {
            if (few && !is_one_of_few(subjects[i].policy, c)) continue;
            snprintf(names[n], sizeof names[n], "%s: %s", subjects[i].policy->name, checks[c].name);
            tests[n] = (struct CMUnitTest){ .name = names[n],
                                            .test_func = checks[c].run,
                                            .initial_state = &subjects[i] };
            n++;
        }
    return n > 0 ? _cmocka_run_group_tests("conformance", tests, n, NULL, close_opened) : 77;
}
