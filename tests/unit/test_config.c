/* Sweep files: what is taken, and what is refused with which message. */
#include "config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define KV_TYPES                                                                                   \
    "f32, f16, bf16, q8_0, q4_0, q8_0+hadamard, q4_0+hadamard, fp8_e4m3, turboquant4, "            \
    "turboquant3, kivi4, kivi2"

struct config_test {
    struct kvl_registry *registry;
    char path[64];
    struct kvl_sweep s;
    struct kvl_err err;
    struct kvl_yaml_override override[8];
    size_t n_overrides;
};

static void config_open(struct config_test *t)
{
    *t = (struct config_test){ 0 };
    assert_int_equal(kvl_registry_create(&t->registry, &t->err), KVL_OK);
    strcpy(t->path, "/tmp/kvl-config-XXXXXX");
    int fd = mkstemp(t->path);
    assert_true(fd >= 0);
    close(fd);
}

static void config_close(struct config_test *t)
{
    kvl_sweep_free(&t->s);
    kvl_registry_destroy(t->registry);
    unlink(t->path);
}

static void config_set(struct config_test *t, const char *path, const char *text)
{
    t->override[t->n_overrides++] =
        (struct kvl_yaml_override){ .path = path, .text = text, .flag = path };
}

static int config_load_bytes(struct config_test *t, const char *text, size_t n)
{
    FILE *f = fopen(t->path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
    kvl_err_clear(&t->err);
    kvl_sweep_free(&t->s);
    return kvl_sweep_load(t->path, NULL, t->registry, t->override, t->n_overrides, &t->s, &t->err);
}

static int config_load(struct config_test *t, const char *text)
{
    return config_load_bytes(t, text, strlen(text));
}

/* Refused, and the message after the file's name is this one. */
static void config_refused(struct config_test *t, const char *text, const char *want)
{
    char full[1200];
    assert_int_equal(config_load(t, text), KVL_EINVAL);
    snprintf(full, sizeof full, "%s%s", t->path, want);
    assert_string_equal(t->err.msg, full);
}

#define CONFIG_HEAD                                                                                \
    "model: m.gguf\n"                                                                              \
    "tasks: [passkey]\n"                                                                           \
    "policies: [full]\n"

/* ---- what is taken --------------------------------------------------------------------------- */

static void test_defaults(void **state)
{
    struct config_test t;
    (void)state;
    config_open(&t);
    assert_int_equal(config_load(&t, CONFIG_HEAD "lengths: 1024\n"), KVL_OK);
    assert_string_equal(t.s.name, t.path + strlen("/tmp/"));
    assert_string_equal(t.s.model, "/tmp/m.gguf"); /* relative to the file */
    assert_int_equal(t.s.seed, 1);
    assert_int_equal(t.s.kv_type, KVL_KV_F16);
    assert_int_equal(t.s.contexts, 8);
    assert_int_equal(t.s.questions, 1);
    assert_int_equal(t.s.lengths.n, 1);
    assert_int_equal(t.s.depths.n, 1);
    assert_true(t.s.depths.v[0] < 0.0);
    assert_int_equal(t.s.protocols.n, 1);
    assert_int_equal(t.s.protocols.v[0], KVL_QUESTION_IN_PREFILL);
    assert_false(t.s.speed.on);
    assert_string_equal(t.s.tasks.v[0].options, "keys=1,digits=5,wording=1");
    assert_int_equal(strlen(t.s.hash), 32);
    config_close(&t);
}

static void test_ranges(void **state)
{
    struct config_test t;
    static const int32_t lengths[] = { 1024, 2048, 4096, 5000, 5100, 5200 };
    static const char *const budgets[] = { "64", "128", "25%", "7" };
    (void)state;
    config_open(&t);
    assert_int_equal(config_load(&t, "model: /x/m.gguf\ntasks: [passkey]\npolicies: [quest]\n"
                                     "lengths: [1024..4096*2, 5000..5299+100]\n"
                                     "budgets: [64..200*2, 25%, 7..7+1]\n"),
                     KVL_OK);
    assert_string_equal(t.s.model, "/x/m.gguf");
    assert_int_equal(t.s.lengths.n, 6);
    for (size_t i = 0; i < 6; i++) assert_int_equal(t.s.lengths.v[i], lengths[i]);
    assert_int_equal(t.s.budgets.n, 4);
    for (size_t i = 0; i < 4; i++) assert_string_equal(t.s.budgets.v[i], budgets[i]);
    config_close(&t);
}

/* Lists of option values are axes; "*" is every policy there is. */
static void test_axes(void **state)
{
    struct config_test t;
    static const char *const want[] = { "page=16,reduce=sum", "page=16,reduce=max",
                                        "page=32,reduce=sum", "page=32,reduce=max" };
    (void)state;
    config_open(&t);
    assert_int_equal(config_load(&t, "model: m.gguf\n"
                                     "tasks: [{task: passkey, keys: [1, 4]}, "
                                     "'kv_retrieval:key_digits=6']\n"
                                     "policies:\n"
                                     "  - {policy: quest, page: [16, 32], reduce: [sum, max]}\n"
                                     "  - '*'\n"
                                     "lengths: [1024]\nbudgets: [64]\n"),
                     KVL_OK);
    assert_int_equal(t.s.tasks.n, 3);
    assert_string_equal(t.s.tasks.v[1].options, "keys=4,digits=5,wording=1");
    assert_string_equal(t.s.tasks.v[2].options,
                        "key_digits=6,value_digits=8,uuid=false,pairs=auto,wording=1");
    assert_int_equal(t.s.policies.n, 4 + kvl_registry_n_policies(t.registry));
    for (size_t i = 0; i < 4; i++) assert_string_equal(t.s.policies.v[i].options, want[i]);
    const struct kvl_policy *first = NULL; /* with the one that it wraps */
    const char *name = kvl_registry_policy(t.registry, 0)->name;
    assert_int_equal(kvl_registry_find_policy(t.registry, name, &first, NULL), KVL_OK);
    assert_ptr_equal(t.s.policies.v[4].policy, first);
    assert_string_equal(t.s.policies.v[4].options, "");
    config_close(&t);
}

static void test_overrides(void **state)
{
    struct config_test t;
    (void)state;
    config_open(&t);
    config_set(&t, "lengths", "[8, 9]");
    config_set(&t, "speed.steps", "5");
    config_set(&t, "lengths", "7");
    config_set(&t, "model", "\"other.gguf\"");
    assert_int_equal(config_load(&t, CONFIG_HEAD "lengths: 1024\n"
                                                 "speed: {lengths: 64, steps: 99}\n"),
                     KVL_OK);
    assert_int_equal(t.s.lengths.n, 1); /* the last one wins */
    assert_int_equal(t.s.lengths.v[0], 7);
    assert_int_equal(t.s.speed.steps, 5);
    assert_string_equal(t.s.model, "other.gguf"); /* relative to where the program runs */
    config_set(&t, "speed.stps", "5");
    assert_int_equal(config_load(&t, CONFIG_HEAD "lengths: 1024\n"), KVL_EINVAL);
    assert_string_equal(t.err.msg,
                        "speed.stps: no key \"speed.stps\", did you mean \"speed.steps\"?");
    config_close(&t);
}

/* The resolved text is a sweep file of the same sweep. */
static void test_text_round_trip(void **state)
{
    struct config_test t;
    char text[4096], hash[33];
    (void)state;
    config_open(&t);
    assert_int_equal(
        config_load(
            &t,
            "model: '/a b/\"m\\.gguf'\nname: x\nlog: l\n"
            "tasks: [{task: passkey, keys: 4}]\n"
            "policies: [full, {policy: quest, page: [8..32*2]},\n"
            "  {policy: streaming_llm, sink: 2, prefill: [own, shared]}]\n"
            "lengths: 64..256*2\nbudgets: [64, 12.5%]\nthreads: 3\n"
            "depths: [spread, 0.25]\nkv_limit_mib: 9\nkv_type: {k: q8_0, v: q4_0+hadamard}\nbatch: "
            "5\n"
            "prefill_type: bf16\ndevice: cuda:2..3\n"
            "protocols: [question_as_decode]\n"
            "exclude: [{policy: quest, budget: 64}, {length: 64, depth: "
            "0.25, protocol: question_as_decode}]\n"
            "quality: {top: [1, 20]}\n"
            "speed: {lengths: 128, policies: ['*'], budgets: 32}\n"),
        KVL_OK);
    assert_true(t.s.gpus.first == 2 && t.s.gpus.n == 2); /* no part of what a sweep is */
    snprintf(text, sizeof text, "%s", t.s.text);
    snprintf(hash, sizeof hash, "%s", t.s.hash);
    assert_int_equal(config_load(&t, text), KVL_OK);
    assert_string_equal(t.s.text, text);
    assert_string_equal(t.s.hash, hash);
    assert_string_equal(t.s.model, "/a b/\"m\\.gguf");
    assert_string_equal(t.s.device, "cuda");
    assert_int_equal(t.s.policies.n, 6);
    assert_false(t.s.policies.v[0].own);
    assert_true(t.s.policies.v[4].own);
    assert_false(t.s.policies.v[5].own);
    assert_string_equal(t.s.policies.v[4].options, "sink=2");
    assert_string_equal(t.s.policies.v[5].options, "sink=2");
    assert_int_equal(t.s.n_exclude, 2);
    assert_int_equal(t.s.quality.questions, 1);
    assert_int_equal(t.s.quality.steps, 8);
    assert_int_equal(t.s.quality.top.n, 2);
    assert_int_equal(t.s.quality.top.v[1], 20);
    config_close(&t);
}

/* ---- what is refused ------------------------------------------------------------------------- */

static void test_refused(void **state)
{
    static const struct {
        const char *text, *want;
    } rows[] = {
        { CONFIG_HEAD "lenghts: 1024\n", ":4: no key \"lenghts\", did you mean \"lengths\"?" },
        { CONFIG_HEAD "lengths: 1\nlengths: 2\n", ":5: lengths: stands twice, first in line 4" },
        { CONFIG_HEAD "lengths: []\n", ":4: lengths: is an empty list, want at least one value" },
        { CONFIG_HEAD "lengths: {a: 1}\n", ":4: lengths: is a mapping, want a single value" },
        { CONFIG_HEAD "lengths: [[1]]\n", ":4: lengths: is a list, want a single value" },
        { CONFIG_HEAD "lengths: 1e3\n",
          ":4: lengths: \"1e3\" is no length, want 1 to 16777216 tokens" },
        { CONFIG_HEAD "lengths: 0\n",
          ":4: lengths: \"0\" is no length, want 1 to 16777216 tokens" },
        { CONFIG_HEAD "lengths: 9223372036854775808\n",
          ":4: lengths: \"9223372036854775808\" is no length, want 1 to 16777216 tokens" },
        { CONFIG_HEAD "lengths: 8..4*2\n",
          ":4: lengths: \"8..4*2\" is no range, want first..last*factor or first..last+step" },
        { CONFIG_HEAD "lengths: 8..9*1\n",
          ":4: lengths: \"8..9*1\" is no range, want first..last*factor or first..last+step" },
        { CONFIG_HEAD "lengths: 1..2000+1\n",
          ":4: lengths: range \"1..2000+1\" has more than 1000 values" },
        { CONFIG_HEAD "lengths: 64\ndepths: 1.5\n",
          ":5: depths: \"1.5\" is no depth, want \"spread\" or 0 to 1" },
        { CONFIG_HEAD "lengths: 64\ndepths: nan\n",
          ":5: depths: \"nan\" is no depth, want \"spread\" or 0 to 1" },
        { CONFIG_HEAD "lengths: 64\nprotocols: question_in_prefil\n",
          ":5: protocols: no protocol \"question_in_prefil\", did you mean "
          "\"question_in_prefill\"?" },
        { CONFIG_HEAD "lengths: 64\nbudgets: 120%\n",
          ":5: budgets: budget \"120%\": want tokens per lane (256) or a part of the context "
          "(25%)" },
        { CONFIG_HEAD "lengths: 64\ncontexts: -1\n",
          ":5: contexts: \"-1\" is out of range, want 1 to 100000" },
        { CONFIG_HEAD "lengths: 64\nseed: 1.5\n",
          ":5: seed: \"1.5\" is out of range, want 0 to 9223372036854775807" },
        { CONFIG_HEAD "lengths: 64\nkv_type: f8\n",
          ":5: kv_type: \"f8\" is no element type, want one of " KV_TYPES ", or {k: .., v: ..}" },
        { CONFIG_HEAD "lengths: 64\nkv_type: {k: f16, v: q4}\n",
          ":5: kv_type.v: \"q4\" is no element type, want one of " KV_TYPES },
        { CONFIG_HEAD "lengths: 64\nkv_type: {k: f16, w: q4_0}\n",
          ":5: no key \"kv_type.w\", did you mean \"kv_type.k\"?" },
        { CONFIG_HEAD "lengths: 64\nprefill_type: f16\n",
          ":5: prefill_type: \"f16\" is no arithmetic of prefill, want f32, bf16 or blas" },
        { CONFIG_HEAD "lengths: 64\ndevice: gpu\n",
          ":5: device: \"gpu\" is no device, want cpu, cuda, hybrid or cpu-hybrid; GPUs by number "
          "as in "
          "cuda:0..7" },
        { CONFIG_HEAD "lengths: 64\nspeed: {policies: [{policy: quest, prefill: both}]}\n",
          ":5: speed.policies: quest: prefill \"both\": want own or shared" },
        { CONFIG_HEAD "lengths: 64\nspeed: {policies: ['quest:prefill=own,prefill=own']}\n",
          ":5: speed.policies: quest: option \"prefill\" stands twice" },
        { CONFIG_HEAD "lengths: 64\nquality: {top: [10, 10]}\n",
          ":5: quality.top: 10 after 10, want them ascending" },
        { CONFIG_HEAD "lengths: 64\nquality: {top: [1..9+1]}\n",
          ":5: quality.top: more than 8 values" },
        { CONFIG_HEAD "lengths: 64\nquality: {top: 0}\n",
          ":5: quality.top: \"0\" is no number, want 1 to 16777216" },
        { CONFIG_HEAD "lengths: 64\nquality: {steps: 0}\n",
          ":5: quality.steps: \"0\" is out of range, want 1 to 4096" },
        { CONFIG_HEAD "lengths: 64\nquality: {question: 1}\n",
          ":5: no key \"quality.question\", did you mean \"quality.questions\"?" },
        { CONFIG_HEAD "lengths: 64\nquality: {questions: 2}\n",
          ": quality.questions: 2 of a context that is asked 1" },
        { CONFIG_HEAD "lengths: 64\nname: a/b\n",
          ":5: name: \"a/b\" has a slash, want a plain name" },
        { CONFIG_HEAD "lengths: 64\nexclude: [{polcy: full}]\n",
          ":5: no key \"exclude.polcy\", did you mean \"exclude.policy\"?" },
        { CONFIG_HEAD "lengths: 64\nexclude: [{policy: ful}]\n",
          ":5: exclude.policy: policy \"ful\" does not exist, did you mean \"full\"?" },
        { CONFIG_HEAD "lengths: 64\nexclude: [{}]\n",
          ":5: exclude: an empty rule would leave out every cell" },
        { CONFIG_HEAD "lengths: 64\nspeed: {lengths: 64, step: 1}\n",
          ":5: no key \"speed.step\", did you mean \"speed.steps\"?" },
        { CONFIG_HEAD "lengths: 64\nspeed: 3\n",
          ":5: speed: want keys with values (\"name: value\")" },
        { CONFIG_HEAD "lengths: 64\nspeed: {steps: 3}\n",
          ": speed.lengths: is missing, want a list of tokens" },
        { CONFIG_HEAD, ": lengths: is missing, want a list of tokens" },
        { "tasks: [passkey]\npolicies: [full]\nlengths: 64\n",
          ": model: is missing, want the path of a GGUF file" },
        { "model: m\npolicies: [full]\nlengths: 64\n",
          ": tasks: is missing, want a list of kvlab list tasks" },
        { "model: m\ntasks: [passkey]\nlengths: 64\n",
          ": policies: is missing, want a list of kvlab list policies" },
        { "model: m\ntasks: [passkey]\npolicies: [full, quest]\nlengths: 64\n",
          ": budgets: is missing, want a list of tokens per lane" },
        { "model: m\ntasks: [paskey]\n",
          ":2: tasks: task \"paskey\" does not exist, did you mean \"passkey\"?" },
        { "model: m\ntasks:\n  - {task: passkey, kees: 4}\n",
          ":3: tasks: passkey: no option \"kees\", did you mean \"keys\"? (there are: keys, "
          "digits, wording, prose)" },
        { "model: m\ntasks:\n  - {task: passkey, keys: 400}\n",
          ":3: tasks: passkey: option \"keys\": \"400\" is out of range, want a whole number from "
          "1 "
          "to 32" },
        { "model: m\ntasks: [{keys: 4}]\n",
          ":2: tasks: an entry has no \"task\", want {task: name, ...}" },
        { "model: m\ntasks: [{task: passkey, keys: 4, keys: 5}]\n",
          ":2: tasks: option \"keys\" stands twice" },
        { "model: m\npolicies: [quset]\n",
          ":2: policies: policy \"quset\" does not exist, did you mean \"quest\"?" },
        { "model: m\npolicies: [{policy: full, page: 4}]\n",
          ":2: policies: full: no option \"page\": there are none" },
        { "model: m\npolicies: [{policy: quest, page: \"8,16\"}]\n",
          ":2: policies: \"8,16\" has a comma, want [a, b] for several values" },
        { "model: [a, b]\n", ":1: model: is a list, want a single value" },
        { "model: \"a\\0b\"\n", ":1: model: has a zero byte, want text" },
        { "- 1\n", ":1: want keys with values (\"name: value\")" },
        { "model: m\n---\nmodel: n\n", ":3: a second document begins, want one" },
    };
    struct config_test t;
    (void)state;
    config_open(&t);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        config_refused(&t, rows[i].text, rows[i].want);
    config_close(&t);
}

/* Not YAML, not UTF-8, nested without end: an error with a place, never a crash. */
static void test_hostile(void **state)
{
    struct config_test t;
    (void)state;
    config_open(&t);
    assert_int_equal(config_load(&t, "model: [\n"), KVL_EINVAL);
    assert_non_null(strstr(t.err.msg, ":2: "));
    assert_int_equal(config_load_bytes(&t, "model: \xff\xfe\n", 10), KVL_EINVAL);
    assert_int_equal(config_load(&t, "lengths: &a [*a]\n"), KVL_EINVAL);
    assert_int_equal(config_load(&t, "\xef\xbb\xbf" CONFIG_HEAD "lengths: 64\n"), KVL_OK);
    kvl_err_clear(&t.err);
    assert_int_equal(kvl_sweep_load("/nowhere/x.yaml", NULL, t.registry, NULL, 0, &t.s, &t.err),
                     KVL_EINVAL);
    assert_string_equal(t.err.msg, "/nowhere/x.yaml: cannot open: No such file or directory");
    config_close(&t);
}

/* `n` of the lists or mappings in one another, as a value of `lengths`. */
static char *config_nested(struct kvl_buf *b, const char *open, const char *shut, int n)
{
    b->len = 0;
    assert_int_equal(kvl_buf_adds(b, CONFIG_HEAD "lengths: "), KVL_OK);
    for (int i = 0; i < n; i++) assert_int_equal(kvl_buf_adds(b, open), KVL_OK);
    assert_int_equal(kvl_buf_adds(b, "64"), KVL_OK);
    for (int i = 0; i < n; i++) assert_int_equal(kvl_buf_adds(b, shut), KVL_OK);
    assert_int_equal(kvl_buf_adds(b, "\n"), KVL_OK);
    return b->data;
}

/* What is nested 100,000 deep took libyaml 15 s. */
static void test_depth(void **state)
{
    (void)state;
    static const char *const kind[][2] = { { "[", "]" }, { "{a: ", "}" }, { "[{a: ", "}]" } };
    struct config_test t;
    struct kvl_buf b = { 0 };
    config_open(&t);
    for (size_t k = 0; k < sizeof kind / sizeof kind[0]; k++) {
        int levels = (int)strlen(kind[k][1]); /* of one of them */
        for (int n = 0; n < 4; n++) {
            static const int depth[] = { 30, 32, 1000, 100000 }; /* the file is a mapping itself */
            const char *text = config_nested(&b, kind[k][0], kind[k][1], depth[n] / levels);
            clock_t start = clock();
            int rc = config_load(&t, text);
            assert_true(clock() - start < CLOCKS_PER_SEC);
            assert_int_equal(rc, KVL_EINVAL);
            bool deep = strstr(t.err.msg, ": lists and mappings nested in more than 32 others");
            assert_int_equal(deep, depth[n] >= 32);
        }
    }
    /* Indented, each on a line of its own. */
    b.len = 0;
    for (int i = 0; i < 300; i++) assert_int_equal(kvl_buf_printf(&b, "%*sa:\n", i, ""), KVL_OK);
    assert_int_equal(config_load(&t, b.data), KVL_EINVAL);
    assert_non_null(strstr(t.err.msg, ":33: lists and mappings nested in more than 32 others"));
    kvl_buf_free(&b);
    config_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_axes),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_text_round_trip),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_depth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
