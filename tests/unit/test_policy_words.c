/* Policies as they are written: "outer(inner:options):options" in words, sweep files and exclusions. */
#include "config.h"
#include "kvl/model.h"
#include "policy_spec.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct kvl_registry *registry;

static int open_registry(void **state)
{
    struct kvl_err err = { 0 };
    (void)state;
    return kvl_registry_create(&registry, &err);
}

static int close_registry(void **state)
{
    (void)state;
    kvl_registry_destroy(registry);
    return 0;
}

/* ---- words ------------------------------------------------------------------------------------- */

static void test_words(void **state)
{
    static const struct {
        const char *text, *name, *options, *budget;
    } rows[] = {
        { "snapkv", "snapkv", "", NULL },
        { "snapkv:window=16,budget=64", "snapkv", "window=16", "64" },
        { "adakv", "adakv(snapkv)", "", NULL },
        { "adakv:floor_alpha=0.5", "adakv(snapkv)", "floor_alpha=0.5", NULL },
        { "adakv(snapkv)", "adakv(snapkv)", "", NULL },
        { "adakv(snapkv):", "adakv(snapkv)", "", NULL },
        { "adakv(random)", "adakv(random)", "", NULL },
        { "adakv(snapkv:window=16,kernel=5):floor_alpha=0.2,budget=25%", "adakv(snapkv)",
          "floor_alpha=0.2,snapkv.window=16,snapkv.kernel=5", "25%" },
        { "adakv(snapkv:kernel=5):snapkv.window=16", "adakv(snapkv)",
          "snapkv.window=16,snapkv.kernel=5", NULL },
        { "adakv:snapkv.window=16", "adakv(snapkv)", "snapkv.window=16", NULL },
        { "twilight", "twilight(quest)", "", NULL },
        { "twilight(random:mode=select,scope=layer):p=0.9", "twilight(random)",
          "p=0.9,random.mode=select,random.scope=layer", NULL },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvl_policy_spec s;
        struct kvl_err err = { 0 };
        if (kvl_policy_spec_parse(registry, rows[i].text, &s, &err) != KVL_OK)
            fail_msg("%s: %s", rows[i].text, err.msg);
        assert_string_equal(s.policy->name, rows[i].name);
        assert_string_equal(s.options.data, rows[i].options);
        if (rows[i].budget) assert_string_equal(s.budget.data, rows[i].budget);
        if (!rows[i].budget) assert_null(s.budget.data);
        kvl_policy_spec_free(&s);
    }
}

static void test_words_that_are_none(void **state)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        { "adakv(snapkv", "parentheses do not match" },
        { "adakv(snapkv:window=16", "parentheses do not match" },
        { "adakv)snapkv(", "parentheses do not match" },
        { "adakvsnapkv)", "parentheses do not match" },
        { "adakv(snapkv)x", "parentheses do not match" },
        { "adakv(snapkv)(quest)", "parentheses" },
        { "adakv(", "parentheses do not match" },
        { "adakv()", "policy \"\" does not exist" },
        { "adakv(snapkw)", "did you mean \"snapkv\"?" },
        { "adakw(snapkv)", "did you mean \"adakv\"?" },
        { "snapkv(adakv)", "snapkv wraps no other policy" },
        { "adakv(quest)", "adakv works on scores, quest gives none" },
        { "adakv(kvzip)", "kvzip gives every lane a budget of its own" },
        { "twilight(magicpig)", "what magicpig selects is more than a list of tokens" },
        { "adakv(h2o)", "h2o evicts at every step" },
        { "twilight(snapkv)", "twilight works on selections, snapkv makes none" },
        { "twilight(h2o_sim)", "looks at the weights of what it selected" },
        { "chunkkv(adakv)", "one level" },
        { "chunkkv(adakv(snapkv))", "parentheses in parentheses" },
        { "adakv(snapkv:widow=3)", "did you mean \"snapkv.window\"?" },
        { "adakv(snapkv:window=3):snapkv.window=4", "stands twice" },
        { "adakv(snapkv:window)", "snapkv.window" },
        { "adakv:window=16", "no option \"window\"" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct kvl_policy_spec s;
        struct kvl_err err = { 0 };
        assert_int_equal(kvl_policy_spec_parse(registry, rows[i].text, &s, &err), KVL_EINVAL);
        if (!strstr(err.msg, rows[i].says))
            fail_msg("%s: \"%s\" does not say \"%s\"", rows[i].text, err.msg, rows[i].says);
    }
}

/* The same two are the same object: cells of equal policies share tables, and ids. */
static void test_one_object_per_pair(void **state)
{
    const struct kvl_policy *a, *b, *c, *outer, *inner;
    (void)state;
    assert_int_equal(kvl_registry_find_policy(registry, "adakv", &a, NULL), KVL_OK);
    assert_int_equal(kvl_registry_find_policy(registry, "adakv(snapkv)", &b, NULL), KVL_OK);
    assert_int_equal(kvl_registry_find_policy(registry, "adakv(random)", &c, NULL), KVL_OK);
    assert_ptr_equal(a, b);
    assert_ptr_not_equal(a, c);
    assert_true(kvl_policy_parts(c, &outer, &inner));
    assert_string_equal(outer->name, "adakv");
    assert_string_equal(inner->name, "random");
    /* The code of both parts: an edit of either is another policy. */
    uint64_t both = kvl_registry_code(registry, a);
    assert_true(both != 0 && both != kvl_registry_code(registry, c));
    assert_true(both != kvl_registry_code(registry, outer));
    assert_true(kvl_registry_code(registry, inner) != kvl_registry_code(registry, outer));
}

static void test_outside(void **state)
{
    (void)state;
    assert_int_equal(kvl_outside("a(b:c):d", ":"), 6);
    assert_int_equal(kvl_outside("a(b,c),d", ";,"), 6);
    assert_int_equal(kvl_outside("a(b,c", ","), 5);
    assert_int_equal(kvl_outside("", ","), 0);
}

/* ---- sweep files --------------------------------------------------------------------------------- */

static int load(const char *text, struct kvl_sweep *s, struct kvl_err *err)
{
    char path[] = "/tmp/kvl-words-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    memset(s, 0, sizeof *s);
    int rc = kvl_sweep_load(path, NULL, registry, NULL, 0, s, err);
    unlink(path);
    return rc;
}

#define HEAD "model: m.gguf\ntasks: [passkey]\nlengths: [1024]\nbudgets: [64]\n"

static void test_sweep_files(void **state)
{
    static const char *const want[][2] = {
        { "adakv(snapkv)", "" },
        { "adakv(snapkv)", "" },
        { "adakv(random)", "floor_alpha=0.5,random.mode=evict" },
        { "adakv(snapkv)", "snapkv.window=8,snapkv.kernel=5" },
        { "adakv(snapkv)", "floor_alpha=0.1,snapkv.window=8,snapkv.kernel=3" },
        { "adakv(snapkv)", "floor_alpha=0.1,snapkv.window=16,snapkv.kernel=3" },
        { "adakv(snapkv)", "floor_alpha=0.2,snapkv.window=8,snapkv.kernel=3" },
        { "adakv(snapkv)", "floor_alpha=0.2,snapkv.window=16,snapkv.kernel=3" },
    };
    struct kvl_sweep s;
    struct kvl_err err = { 0 };
    (void)state;
    int rc = load(HEAD "policies:\n"
                       "  - adakv\n"
                       "  - adakv(snapkv)\n"
                       "  - adakv(random:mode=evict):floor_alpha=0.5\n"
                       "  - \"adakv(snapkv:window=8,kernel=5)\"\n"
                       "  - {policy: 'adakv(snapkv:kernel=3)', floor_alpha: [0.1, 0.2], "
                       "snapkv.window: [8, 16]}\n"
                       "exclude: [{policy: adakv}, {policy: [twilight, adakv(random)]}]\n",
                  &s, &err);
    if (rc != KVL_OK) fail_msg("%s", err.msg);
    assert_int_equal(s.policies.n, sizeof want / sizeof want[0]);
    for (size_t i = 0; i < s.policies.n; i++) {
        assert_string_equal(s.policies.v[i].policy->name, want[i][0]);
        assert_string_equal(s.policies.v[i].options, want[i][1]);
    }
    assert_string_equal(s.exclude[0].policies.v[0], "adakv(snapkv)"); /* written out */
    assert_string_equal(s.exclude[1].policies.v[0], "twilight(quest)");
    assert_string_equal(s.exclude[1].policies.v[1], "adakv(random)");
    assert_non_null(strstr(s.text, "\"adakv(snapkv):snapkv.window=8,snapkv.kernel=5\""));
    kvl_sweep_free(&s);
}

/* A flow list is cut at commas before anybody sees parentheses. */
static void test_sweep_files_refused(void **state)
{
    static const char *const rows[][2] = {
        { "policies: [adakv(snapkv:window=8,kernel=5)]\n", "parentheses do not match" },
        { "policies: [adakv(quest)]\n", "quest gives none" },
        { "policies: [adakv(nosuch)]\n", "\"nosuch\" does not exist" },
        { "policies: [{policy: adakv, quest.page: 8}]\n", "no option \"quest.page\"" },
        { "policies: [full]\nexclude: [{policy: adakv(quest)}]\n", "quest gives none" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[256];
        struct kvl_sweep s;
        struct kvl_err err = { 0 };
        snprintf(text, sizeof text, HEAD "%s", rows[i][0]);
        assert_int_equal(load(text, &s, &err), KVL_EINVAL);
        if (!strstr(err.msg, rows[i][1]))
            fail_msg("%s\"%s\" does not say \"%s\"", rows[i][0], err.msg, rows[i][1]);
        kvl_sweep_free(&s);
    }
}

/* ---- lists ------------------------------------------------------------------------------------- */

static void test_lists(void **state)
{
    static const struct {
        const char *text;
        size_t n;
    } rows[] = {
        { "quest", 5 },
        { "", 0 },
        { "quest,snapkv", 5 },
        { "quest:page=16,snapkv", 13 },
        { "quest:page=16,dense_layers=2,snapkv:window=8", 28 },
        { "quest:page=16,adakv(snapkv:window=16,kernel=5):floor_alpha=0.2", 13 },
        { "adakv(snapkv:window=16,kernel=5):floor_alpha=0.2,budget=9,quest", 57 },
        { "adakv(snapkv),quest", 13 },
        { "adakv:snapkv.window=16,floor_alpha=0.5,quest:page=8", 38 },
        { "quest,page=16", 13 }, /* for an error that says so */
        { "quest,,snapkv", 5 },
        { "quest,", 5 },
        { "perplexity:text=a:b,mode=decode,needle", 31 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (kvl_list_word(rows[i].text) != rows[i].n)
            fail_msg("%s: %zu, want %zu", rows[i].text, kvl_list_word(rows[i].text), rows[i].n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_words_that_are_none),
        cmocka_unit_test(test_one_object_per_pair),
        cmocka_unit_test(test_outside),
        cmocka_unit_test(test_sweep_files),
        cmocka_unit_test(test_sweep_files_refused),
    };
    return cmocka_run_group_tests(tests, open_registry, close_registry);
}
