/* Cells, keys, seeds and shares of a sweep. */
#include "forecast.h"
#include "kvl/kvstore.h"

#include "gguf_writer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

struct plan_test {
    struct kvl_registry *registry;
    struct kvl_model *model;
    struct kvl_sweep s;
    struct kvl_work *work;
    struct kvl_err err;
};

static const struct kvl_where plan_where = { "here", 2, NULL };

static void plan_open_arch(struct plan_test *t, const char *arch)
{
    char path[] = "/tmp/kvl-plan-XXXXXX";
    struct kvl_buf file = { 0 };
    struct gw_llama llama = { .arch = arch, .n_ctx = 2048 };
    *t = (struct plan_test){ 0 };
    assert_int_equal(kvl_registry_create(&t->registry, &t->err), KVL_OK);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    gw_llama(&llama, &file);
    assert_true(gw_save(&file, path));
    kvl_buf_free(&file);
    int rc = kvl_model_open(path, &t->model, &t->err);
    unlink(path);
    if (rc != KVL_OK) fail_msg("%s", t->err.msg);
}

static void plan_open(struct plan_test *t)
{
    plan_open_arch(t, "llama");
}

static int plan_make(struct plan_test *t, const char *text)
{
    char path[] = "/tmp/kvl-plan-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    kvl_work_destroy(t->work);
    t->work = NULL;
    kvl_sweep_free(&t->s);
    kvl_err_clear(&t->err);
    int rc = kvl_sweep_load(path, NULL, t->registry, NULL, 0, &t->s, &t->err);
    unlink(path);
    if (rc == KVL_OK) rc = kvl_work_create(&t->s, t->model, &plan_where, false, &t->work, &t->err);
    return rc;
}

static void plan_ok(struct plan_test *t, const char *text)
{
    if (plan_make(t, text) != KVL_OK) fail_msg("%s", t->err.msg);
}

static void plan_close(struct plan_test *t)
{
    kvl_work_destroy(t->work);
    kvl_sweep_free(&t->s);
    kvl_model_close(t->model);
    kvl_registry_destroy(t->registry);
}

static struct kvl_outcome *outcomes_of(struct kvl_state *s, size_t cell)
{
    struct kvl_outcome *o;
    struct kvl_quality_means *q;
    assert_int_equal(kvl_state_own(s, cell, &o, &q, NULL), KVL_OK);
    return o;
}

static bool plan_has_id(const struct kvl_work *w, const char *id)
{
    for (size_t i = 0; i < w->n_cells; i++)
        if (strcmp(w->cell[i].id, id) == 0) return true;
    return false;
}

#define PLAN_SMALL                                                                                 \
    "model: m\ntasks: [{task: passkey, keys: 2}, kv_retrieval]\nlengths: [512, 768]\n"             \
    "policies: [full, quest, snapkv]\nbudgets: [64, 128]\ncontexts: 2\nquestions: 2\n"

/* 2 tasks x 2 lengths x (1 + 2 + 2); full has no budget. */
static void test_product(void **state)
{
    struct plan_test t;
    (void)state;
    plan_open(&t);
    plan_ok(&t, PLAN_SMALL);
    assert_int_equal(t.work->n_groups, 4);
    assert_int_equal(t.work->n_cells, 20);
    for (size_t i = 0; i < 20; i++) {
        const struct kvl_cell *c = &t.work->cell[i];
        bool full = strcmp(c->policy->policy->name, "full") == 0;
        assert_string_equal(c->budget, full ? "-" : (c->budget_tok == 64 ? "64" : "128"));
        assert_int_equal(strlen(c->id), KVL_CELL_ID - 1);
        for (size_t j = 0; j < i; j++) assert_string_not_equal(c->id, t.work->cell[j].id);
    }
    plan_close(&t);
}

/* 100,000 cells took 811 MB. */
static void test_many(void **state)
{
    enum { BUDGETS = 3125, MOST_MB = 200 };
    struct plan_test t;
    struct kvl_state done;
    struct kvl_buf text = { 0 };
    struct rusage used;
    (void)state;
    plan_open(&t);
    kvl_buf_adds(&text, "model: m\ntasks: [{task: passkey, keys: 2}, kv_retrieval]\n"
                        "lengths: [512, 768]\ncontexts: 50\nquestions: 2\n"
                        "protocols: [question_in_prefill, question_after_compress]\n"
                        "policies: [quest, snapkv, random, tova]\nbudgets: [");
    for (int i = 0; i < BUDGETS; i++) kvl_buf_printf(&text, "%s%d", i ? ", " : "", 64 + i);
    kvl_buf_adds(&text, "]\n");
    plan_ok(&t, text.data);
    assert_int_equal(t.work->n_cells, 100000);
    assert_int_equal(kvl_state_create(t.work, false, false, &done, &t.err), KVL_OK);
    assert_int_equal(getrusage(RUSAGE_SELF, &used), 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    if (used.ru_maxrss / 1000 >= MOST_MB) fail_msg("%ld MB", used.ru_maxrss / 1000);
#endif
    /* Cells of other tasks and protocols have the same plans, those of other budgets and lengths others. */
    const struct kvl_cell *c = t.work->cell;
    size_t protocol = 4 * BUDGETS, length = 2 * protocol, task = 2 * length;
    assert_ptr_equal(c[7].planned, c[protocol + 7].planned);
    assert_ptr_equal(c[7].planned, c[task + 7].planned);
    assert_ptr_not_equal(c[7].planned, c[8].planned);
    assert_ptr_not_equal(c[7].planned, c[length + 7].planned);
    kvl_state_free(&done);
    kvl_buf_free(&text);
    plan_close(&t);
}

/* The random model's factors of RoPE for short contexts are for 512 tokens. */
static void test_longest_session(void **state)
{
#define PLAN_SHORT                                                                                 \
    "model: m\ntasks: [passkey]\nlengths: [384]\npolicies: [full]\ncontexts: 1\nquestions: 1\n"
    struct plan_test t;
    char id[KVL_CELL_ID];
    (void)state;
    plan_open_arch(&t, "phi3");
    plan_ok(&t, PLAN_SHORT);
    strcpy(id, t.work->cell[0].id);
    plan_ok(&t, PLAN_SHORT "max_tok: 513\n");
    assert_true(plan_has_id(t.work, id));
    plan_ok(&t, PLAN_SHORT "max_tok: 512\n");
    assert_false(plan_has_id(t.work, id));
    assert_non_null(strstr(t.work->cell[0].key, ";rope=short;"));
    assert_int_equal(plan_make(&t, "model: m\ntasks: [passkey]\nlengths: [510]\npolicies: [full]\n"
                                   "contexts: 1\nquestions: 1\nmax_tok: 512\n"),
                     KVL_EINVAL);
    assert_non_null(strstr(t.err.msg, "max_tok 512 turns heads by the factors for at most 512"));
    plan_close(&t);
}

/* What may change an answer changes the id; what may not does not. */
static void test_ids(void **state)
{
    static const char *const changes[] = { "seed: 2\n", "kv_type: f32\n", "prefill_type: bf16\n",
                                           "decode_act: q8\n", "window: off\n" };
    static const char *const keeps[] = {
        "name: other\n",       "threads: 1\n",       "chunk_tok: 64\n", "log: x\n",
        "kv_limit_mib: 100\n", "batch: 2\n",         "max_tok: 600\n",  "prefill_type: f32\n",
        "decode_act: q16\n",   "prefill_kv: host\n", "window: auto\n"
    };
    struct plan_test t;
    char id[KVL_CELL_ID], text[1024];
    (void)state;
    plan_open(&t);
    plan_ok(&t, PLAN_SMALL);
    strcpy(id, t.work->cell[3].id);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        snprintf(text, sizeof text, "%s%s", PLAN_SMALL, changes[i]);
        plan_ok(&t, text);
        assert_false(plan_has_id(t.work, id));
    }
    for (size_t i = 0; i < sizeof keeps / sizeof keeps[0]; i++) {
        snprintf(text, sizeof text, "%s%s", PLAN_SMALL, keeps[i]);
        plan_ok(&t, text);
        assert_string_equal(t.work->cell[3].id, id);
    }
    /* A sweep with more in it has the same cell, by the same seeds. */
    plan_ok(&t, "model: m\ntasks: [kv_retrieval, {task: passkey, keys: [1, 2]}]\n"
                "lengths: [768, 512]\npolicies: ['*']\nbudgets: [32, 64, 128]\ncontexts: 2\n"
                "questions: 1\n");
    assert_false(plan_has_id(t.work, id)); /* other questions */
    plan_ok(&t, "model: m\ntasks: [kv_retrieval, {task: passkey, keys: 2}]\nlengths: [768, 512]\n"
                "policies: ['*']\nbudgets: [32, 64, 128]\ncontexts: 2\nquestions: 2\n");
    assert_true(plan_has_id(t.work, id));
    plan_close(&t);
}

/* The cells once more, as another program has them. */
static void plan_again(struct plan_test *t)
{
    kvl_work_destroy(t->work);
    assert_int_equal(kvl_work_create(&t->s, t->model, &plan_where, false, &t->work, &t->err),
                     KVL_OK);
}

/* Cells that are others than before, of the points that they were: only the code is another. */
static size_t plan_n_edited(struct plan_test *t, char (*id)[KVL_CELL_ID])
{
    size_t n = 0;
    for (size_t i = 0; i < t->work->n_cells; i++) {
        assert_memory_equal(t->work->cell[i].id, id[i], KVL_POINT_DIGITS);
        n += strcmp(t->work->cell[i].id, id[i]) != 0;
    }
    return n;
}

/* An edited method is another cell wherever it runs, wrapped or alone, and nowhere else; so is a task.
 * Any commit was a new version of everything. */
static void test_code_in_ids(void **state)
{
    struct plan_test t;
    char id[64][KVL_CELL_ID];
    struct kvl_code code;
    (void)state;
    plan_open(&t);
    plan_ok(&t, "model: m\ntasks: [passkey, kv_retrieval]\nlengths: [512]\ncontexts: 1\n"
                "policies: [full, snapkv, 'adakv(snapkv)', quest]\nbudgets: [64]\n");
    size_t n = t.work->n_cells;
    assert_int_equal(n, 8);
    for (size_t i = 0; i < n; i++) strcpy(id[i], t.work->cell[i].id);
    plan_again(&t);
    assert_int_equal(plan_n_edited(&t, id), 0);
    assert_true(kvl_code_of_key(t.work->cell[0].key, &code));
    assert_true(code.engine == kvl_code_engine() && code.method != 0 && code.task != 0);
    assert_int_equal(code.cuda, 0);

    t.s.policies.v[3].code ^= 1;
    plan_again(&t);
    assert_int_equal(plan_n_edited(&t, id), 2);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(strcmp(t.work->cell[i].id, id[i]) != 0,
                         strcmp(t.work->cell[i].policy->policy->name, "quest") == 0);
    t.s.policies.v[3].code ^= 1;
    t.s.tasks.v[1].code ^= 1;
    plan_again(&t);
    assert_int_equal(plan_n_edited(&t, id), 4);
    plan_close(&t);
}

/* Where the code of a key begins and ends, whatever its options say; a key of an older log has none. */
static void test_key_code(void **state)
{
    struct kvl_code code = { 1, 2, 3, 0 }, got;
    struct kvl_buf key = { 0 };
    char a[KVL_CELL_ID], b[KVL_CELL_ID];
    (void)state;
    assert_int_equal(kvl_buf_adds(&key, "kind=cell;options=x;code=9"), KVL_OK);
    size_t n = key.len;
    assert_int_equal(kvl_code_print(&code, &key), KVL_OK);
    assert_true(kvl_code_of_key(key.data, &got));
    assert_true(got.engine == 1 && got.method == 2 && got.task == 3 && got.cuda == 0);
    kvl_cell_id(key.data, a);
    key.len = n;
    code.cuda = 0xfedcba9876543210;
    assert_int_equal(kvl_code_print(&code, &key), KVL_OK);
    assert_true(kvl_code_of_key(key.data, &got));
    assert_true(got.task == 3 && got.cuda == code.cuda);
    kvl_cell_id(key.data, b);
    assert_memory_equal(a, b, KVL_POINT_DIGITS);
    assert_string_not_equal(a, b);
    assert_true(kvl_point_number(a) == kvl_point_number(b));
    assert_int_equal(kvl_point_len(a), KVL_POINT_DIGITS);
    assert_int_equal(kvl_point_len("0123456789abcdef"), 16);         /* of an older log */
    assert_int_equal(kvl_point_len("a-name-of-another-progra"), 24); /* of another program */
    assert_false(kvl_code_of_key("kind=cell;options=x", &got));
    kvl_buf_free(&key);
}

static void test_seeds(void **state)
{
    struct plan_test t;
    (void)state;
    plan_open(&t);
    plan_ok(&t, PLAN_SMALL);
    const struct kvl_point *a = &t.s.tasks.v[0], *b = &t.s.tasks.v[1];
    uint64_t seed = kvl_context_seed(&t.s, a, 512, KVL_DEPTH_SPREAD, 0);
    assert_true(seed == kvl_context_seed(&t.s, a, 512, KVL_DEPTH_SPREAD, 0));
    assert_true(seed != kvl_context_seed(&t.s, b, 512, KVL_DEPTH_SPREAD, 0));
    assert_true(seed != kvl_context_seed(&t.s, a, 513, KVL_DEPTH_SPREAD, 0));
    assert_true(seed != kvl_context_seed(&t.s, a, 512, 0.0, 0));
    assert_true(seed != kvl_context_seed(&t.s, a, 512, KVL_DEPTH_SPREAD, 1));
    plan_close(&t);
}

/* A budget written in two ways is one cell; so is a policy that "*" names again. */
static void test_same_cell_once(void **state)
{
    struct plan_test t;
    (void)state;
    plan_open(&t);
    plan_ok(&t, "model: m\ntasks: [passkey]\nlengths: [512]\nbudgets: [64, 12.5%]\n"
                "policies: [snapkv, snapkv, 'snapkv:kernel=7']\n");
    assert_int_equal(t.work->n_cells, 1);
    plan_close(&t);
}

static void plan_equal_works(struct plan_test *t, const char *once, const char *twice)
{
    char id[16][KVL_CELL_ID];
    plan_ok(t, once);
    size_t n = t->work->n_cells, n_groups = t->work->n_groups;
    assert_in_range(n, 1, 16);
    for (size_t i = 0; i < n; i++) strcpy(id[i], t->work->cell[i].id);
    plan_ok(t, twice);
    assert_int_equal(t->work->n_cells, n);
    assert_int_equal(t->work->n_groups, n_groups);
    for (size_t i = 0, c = 0; i < n_groups; i++) {
        assert_int_equal(t->work->group[i].first, c);
        c += t->work->group[i].n;
    }
    for (size_t i = 0; i < n; i++) assert_true(plan_has_id(t->work, id[i]));
}

/* A length, a depth or a task that stands twice was prefilled and answered twice, at every start. */
static void test_same_group_once(void **state)
{
    struct plan_test t;
    (void)state;
    plan_open(&t);
    plan_equal_works(&t,
                     "model: m\ntasks: [passkey]\nlengths: [512, 768]\npolicies: [full, snapkv]\n"
                     "budgets: [64]\nspeed: {lengths: [512], steps: 2, repeats: 2}\n",
                     "model: m\ntasks: [passkey, {task: passkey, keys: 1}]\n"
                     "lengths: [512, 512, 768, 512]\ndepths: [spread, spread]\n"
                     "policies: [full, snapkv]\nbudgets: [64]\n"
                     "speed: {lengths: [512, 512], steps: 2, repeats: 2}\n");
    plan_close(&t);
}

/* What the store keeps for any cell of the sweep costs the time of all: other speed cells, while the
 * answers stay what they are. */
static void test_speed_key(void **state)
{
#define PLAN_SPEED                                                                                 \
    "model: m\ntasks: [passkey]\nlengths: [512]\nbudgets: [64]\n"                                  \
    "speed: {policies: [full], lengths: [512], steps: 2, repeats: 1}\n"
    struct plan_test t;
    char quality[KVL_CELL_ID], speed[KVL_CELL_ID];
    (void)state;
    plan_open(&t);
    plan_ok(&t, PLAN_SPEED "policies: [full]\n");
    assert_int_equal(t.work->n_cells, 2);
    strcpy(quality, t.work->cell[0].id);
    strcpy(speed, t.work->cell[1].id);
    assert_true(t.work->cell[1].speed);
    plan_ok(&t, PLAN_SPEED "policies: [full, full]\n");
    assert_true(plan_has_id(t.work, speed));
    plan_ok(&t, PLAN_SPEED "policies: [full, snapkv]\n"); /* observes a window */
    assert_true(t.work->window > 0);
    assert_true(plan_has_id(t.work, quality));
    assert_false(plan_has_id(t.work, speed));
    plan_close(&t);
}

static void test_exclude(void **state)
{
    struct plan_test t;
    (void)state;
    plan_open(&t);
    plan_ok(&t, PLAN_SMALL "exclude: [{policy: quest, budget: [64]}, {length: 768, task: "
                           "kv_retrieval}]\n");
    /* 20 - 4 (quest 64) - 5 (kv_retrieval 768) + 1 (both) */
    assert_int_equal(t.work->n_cells, 12);
    assert_int_equal(t.work->n_groups, 3);
    assert_int_equal(plan_make(&t, PLAN_SMALL "exclude: [{length: [512, 768]}]\n"), KVL_EINVAL);
    plan_close(&t);
}

/* What a policy refuses is a cell with a reason; what a task refuses is a configuration error. */
static void test_refused(void **state)
{
    struct plan_test t;
    (void)state;
    plan_open(&t);
    plan_ok(&t, "model: m\ntasks: [passkey]\nlengths: [512]\nbudgets: [16]\n"
                "policies: [quest, snapkv]\n");
    assert_int_equal(t.work->n_cells, 2);
    assert_null(t.work->cell[0].planned);
    assert_int_equal(t.work->cell[0].refused->code, KVL_EINVAL);
    assert_non_null(strstr(t.work->cell[0].refused->msg, "budget 16"));
    assert_non_null(t.work->cell[1].planned);
    assert_int_equal(plan_make(&t, "model: m\ntasks: [passkey]\nlengths: [512]\nquestions: 3\n"
                                   "policies: [full]\n"),
                     KVL_EINVAL);
    assert_non_null(strstr(t.err.msg, "3 questions"));
    assert_int_equal(plan_make(&t, "model: m\ntasks: [passkey]\nlengths: [2049]\n"
                                   "policies: [full]\n"),
                     KVL_EINVAL);
    assert_non_null(strstr(t.err.msg, "2049 tokens, the model's context is 2048"));
    assert_int_equal(plan_make(&t, "model: m\ntasks: [passkey]\nlengths: [2047]\n"
                                   "policies: [full]\n"),
                     KVL_EINVAL);
    assert_non_null(strstr(t.err.msg, "of question and answer"));
    plan_close(&t);
}

/* A context that the policy reads itself makes other cells, and costs a prefill each. */
static void test_own_prefill(void **state)
{
    struct plan_test t;
    struct kvl_estimate e;
    (void)state;
    plan_open(&t);
    plan_ok(&t, "model: m\ntasks: [passkey]\nlengths: [512]\nbudgets: [64]\ncontexts: 2\n"
                "policies: [{policy: streaming_llm, prefill: [shared, own]}]\n");
    assert_int_equal(t.work->n_cells, 2);
    assert_string_not_equal(t.work->cell[0].id, t.work->cell[1].id);
    assert_false(kvl_planned_own_prefill(t.work->cell[0].planned));
    assert_true(kvl_planned_own_prefill(t.work->cell[1].planned));
    kvl_group_estimate(t.work, &t.work->group[0], &e);
    assert_int_equal(e.prefill_tok, 2 * 2 * 512);
    plan_ok(&t, "model: m\ntasks: [passkey]\nlengths: [512]\nbudgets: [64]\ncontexts: 2\n"
                "policies: ['streaming_llm:prefill=own', {policy: quest, prefill: [own, shared]}]\n"
                "protocols: [question_after_compress]\n");
    assert_int_equal(t.work->n_cells, 3);
    kvl_group_estimate(t.work, &t.work->group[0], &e);
    assert_int_equal(e.prefill_tok, 2 * 2 * 512); /* one of its own, one that is shared */
    assert_null(t.work->cell[1].planned);
    assert_string_equal(t.work->cell[1].refused->msg,
                        "quest cannot do its own prefill; give prefill: shared");
    assert_string_not_equal(t.work->cell[1].id, t.work->cell[2].id);
    plan_close(&t);
}

/* ---- observers ---------------------------------------------------------------------------------- */

/* Every prefill had the column sums of the whole sweep: time for nothing, and methods were refused when
 * other lengths had used them up. */
static void test_prefills_observe_for_their_group(void **state)
{
    struct plan_test t;
    (void)state;
    plan_open(&t);
    plan_ok(&t, "model: m\ntasks: [passkey]\nlengths: [600, 700, 800, 900, 1000, 1100]\n"
                "budgets: [20%, 30%, 40%]\npolicies: [infllm, h2o, snapkv]\n");
    assert_int_equal(t.work->n_groups, 6);
    for (size_t i = 0; i < t.work->n_groups; i++) {
        const struct kvl_observer_set *o = &t.work->group[i].observers;
        assert_int_equal(o->n_columns, 3 + 1);
        assert_int_equal(o->column[0].param, 0); /* h2o: all queries */
        assert_int_equal(o->window, 32);
    }
    for (size_t i = 0; i < t.work->n_cells; i++) assert_non_null(t.work->cell[i].planned);
    plan_ok(&t,
            "model: m\ntasks: [passkey]\nlengths: [1000]\npolicies: [infllm, h2o]\n"
            "budgets: [100, 120, 140, 160, 180, 200, 220, 240, 260, 280, 300, 320, 340, 360, 380,"
            " 400, 420]\n");
    assert_non_null(strstr(t.work->cell[16].refused->msg, "at most 16 different column sums"));
    plan_close(&t);
}

/* ---- what is left ------------------------------------------------------------------------------- */

/* Contexts that cells lack, and times. */
static int32_t plan_wanted(const struct plan_test *t, const struct kvl_state *s)
{
    int32_t n = 0;
    for (size_t c = 0; c < t->work->n_cells; c++)
        for (int32_t i = 0; i < (t->work->cell[c].speed ? 1 : t->work->sweep->contexts); i++)
            n += kvl_state_wants(s, i, c);
    return n;
}

/* What a log has was measured as left to do: a sweep that was all but done showed hours. */
static void test_left(void **state)
{
    struct plan_test t;
    struct kvl_state s;
    (void)state;
    plan_open(&t);
    plan_ok(&t, "model: m\ntasks: [{task: passkey, keys: 2}]\nlengths: [512]\nbudgets: [64]\n"
                "policies: [full, snapkv]\ncontexts: 4\nquestions: 2\n"
                "speed: {lengths: [512], steps: 2, repeats: 1}\n");
    assert_int_equal(kvl_state_create(t.work, false, false, &s, &t.err), KVL_OK);
    assert_int_equal(plan_wanted(&t, &s), 2 * 4 + 2);
    /* Three of four contexts have all answers. */
    for (size_t c = 0; c < 2; c++)
        for (size_t i = 0; i < 6; i++) outcomes_of(&s, c)[i].have = true;
    assert_int_equal(plan_wanted(&t, &s), 2 * 1 + 2);
    s.cell[2].done = s.cell[3].failed = true;
    assert_int_equal(plan_wanted(&t, &s), 2);
    /* A cell that failed wants nothing; the context is prefilled for the other one. */
    s.cell[0].failed = true;
    assert_int_equal(plan_wanted(&t, &s), 1);
    assert_true(kvl_state_wants_any(&s, &t.work->group[0], 3));
    s.cell[1].done = true;
    assert_int_equal(plan_wanted(&t, &s), 0);
    kvl_state_free(&s);
    plan_close(&t);
}

/* ---- memory ------------------------------------------------------------------------------------ */

/* Bytes that a sequence of n tokens takes in a store like the sweep's. */
static size_t plan_held(const struct plan_test *t, int32_t n)
{
    const struct kvl_shape *s = kvl_model_shape(t->model);
    struct kvl_store_desc desc = { .n_layers = s->n_layers,
                                   .n_kv_heads = s->n_kv_heads,
                                   .head_dim = s->head_dim,
                                   .type = t->s.kv_type,
                                   .raw_keys = t->work->raw_keys };
    struct kvl_store *store;
    struct kvl_seq *seq;
    struct kvl_seq_stats stats;
    float *row = kvl_alloc((size_t)n * (size_t)(s->n_kv_heads * s->head_dim), sizeof *row);
    int32_t *pos = kvl_alloc((size_t)n, sizeof *pos);
    assert_true(row && pos);
    for (int32_t i = 0; i < n; i++) pos[i] = i;
    assert_int_equal(kvl_store_create(&desc, &store, NULL), KVL_OK);
    assert_int_equal(kvl_seq_create(store, &seq, NULL), KVL_OK);
    for (int32_t l = 0; l < s->n_layers; l++)
        assert_int_equal(kvl_seq_append(seq, l, n, pos, row, desc.raw_keys ? row : NULL, row, NULL),
                         KVL_OK);
    kvl_seq_stats(seq, &stats);
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
    kvl_free(row);
    kvl_free(pos);
    return stats.physical_bytes;
}

static struct kvl_memory plan_memory_of(struct plan_test *t, struct kvl_state *s)
{
    struct kvl_runner r = { .work = t->work, .state = s };
    struct kvl_memory m;
    if (kvl_memory_plan(&r, t->work->sweep->kv_type, &m, &t->err) != KVL_OK)
        fail_msg("%s", t->err.msg);
    return m;
}

/* The longest context that is wanted and held whole, as the store will count it. */
static void test_memory(void **state)
{
    struct plan_test t;
    struct kvl_state s;
    (void)state;
    plan_open(&t);
    for (int raw = 0; raw < 2; raw++) {
        plan_ok(&t, raw ? "model: m\ntasks: [passkey]\nlengths: [512, 700]\nbudgets: [64]\n"
                          "kv_type: f32\npolicies: [{policy: streaming_llm, prefill: own}, full]\n"
                        : "model: m\ntasks: [passkey]\nlengths: [512, 700]\npolicies: [full]\n");
        assert_int_equal(t.work->raw_keys, raw);
        assert_int_equal(kvl_state_create(t.work, false, false, &s, &t.err), KVL_OK);
        struct kvl_memory m = plan_memory_of(&t, &s);
        assert_int_equal(m.length_tok, 700);
        assert_int_equal(m.footprint.kv_bytes, plan_held(&t, 700));
        int64_t most = kvl_memory_fits_tok(
            &m, (int64_t)(m.footprint.kv_bytes + m.footprint.work_bytes + m.cell_bytes) - 1);
        /* What is left of the budget, for each question; full attention adds nothing. */
        assert_int_equal(m.cell_bytes, raw ? plan_held(&t, 64) : 0);
        assert_int_equal(m.own_bytes, m.cell_bytes * (size_t)t.work->sweep->questions);
        assert_int_equal(most, 700 / 16 * 16);
        assert_true(plan_held(&t, (int32_t)most) < m.footprint.kv_bytes);
        for (size_t c = 0; c < t.work->n_cells; c++) s.cell[c].done = t.work->cell[c].length == 700;
        assert_int_equal(plan_memory_of(&t, &s).length_tok, 512);
        for (size_t c = 0; raw && c < t.work->n_cells; c++) /* what is left drops what it reads */
            s.cell[c].done = strcmp(t.work->cell[c].policy->policy->name, "full") == 0;
        if (raw) assert_int_equal(plan_memory_of(&t, &s).length_tok, 0);
        kvl_state_free(&s);
    }
    plan_close(&t);
}

/* A context that a policy reads itself was counted twice where no other is held: what fitted before was refused. */
static void test_memory_own(void **state)
{
    struct plan_test t;
    struct kvl_state s;
    (void)state;
    plan_open(&t);
    for (size_t others = 0; others < 3; others++) {
        static const char *const policies[] = { "minference", "minference, full",
                                                "minference, 'minference:sink=8'" };
        char text[256];
        snprintf(text, sizeof text,
                 "model: m\ntasks: [passkey]\nlengths: [700]\nbudgets: [128]\npolicies: [%s]\n",
                 policies[others]);
        plan_ok(&t, text);
        assert_int_equal(kvl_state_create(t.work, false, false, &s, &t.err), KVL_OK);
        struct kvl_memory m = plan_memory_of(&t, &s);
        const size_t held = plan_held(&t, 700), n_answers = (size_t)t.work->sweep->questions;
        const size_t rest = kvl_planned_table_bytes(t.work->cell[0].planned, 1, KVL_KV_F16, 700);
        assert_int_equal(m.footprint.kv_bytes, held);
        assert_int_equal(m.cell_bytes, (others == 1 ? held : 0) + rest);
        /* Answers fork it. */
        assert_int_equal(m.own_bytes,
                         (others > 0 ? held : 0) + (1 + others / 2) * rest * n_answers);
        /* All 700 tokens are one chunk of it. */
        const struct kvl_engine_desc d = { .model = t.model,
                                           .kv_type = KVL_KV_F16,
                                           .chunk_tok = 700 };
        struct kvl_footprint want;
        assert_int_equal(kvl_footprint(&d, 700, &want, &t.err), KVL_OK);
        assert_int_equal(m.footprint.work_bytes, want.work_bytes);
        kvl_state_free(&s);
    }
    plan_close(&t);
}

static void test_memory_check(void **state)
{
    struct kvl_sweep s = { .name = (char *)(uintptr_t) "x" };
    struct kvl_memory m = { .length_tok = 4000,
                            .footprint = {
                                .kv_bytes = 250 << 20, .block_bytes = 1 << 20, .block_tok = 16 } };
    struct kvl_err err = { 0 };
    (void)state;
    assert_int_equal(kvl_memory_check(&m, &s, 0, "memory", "", &err), KVL_OK); /* not known */
    assert_int_equal(kvl_memory_check(&m, &s, 250 << 20, "memory", "", &err), KVL_OK);
    assert_int_equal(kvl_memory_check(&m, &s, (250 << 20) - 1, "GPU memory", ", or none", &err),
                     KVL_ENOMEM);
    assert_string_equal(err.msg, "x: lengths: 4000 tokens: their keys and values take 0.2 GiB, 0.2 "
                                 "GiB of GPU memory are free: want at most 3984 tokens, or none");
}

/* ---- records of this run, from workers --------------------------------------------------------- */

/* Adds a record of a cell; false: an error that was known. */
static bool plan_add(struct kvl_state *s, json_t *record)
{
    bool repeated;
    assert_non_null(record);
    assert_int_equal(kvl_state_add(s, record, &repeated, NULL), KVL_OK);
    json_decref(record);
    return !repeated;
}

/* They count whatever the run is called, and a failure is one once. */
static void test_added(void **state)
{
    struct plan_test t;
    struct kvl_state s;
    (void)state;
    plan_open(&t);
    plan_ok(&t, "model: m\ntasks: [{task: passkey, keys: 2}]\nlengths: [512]\nbudgets: [64]\n"
                "policies: [full, snapkv]\ncontexts: 2\nquestions: 2\n");
    assert_int_equal(kvl_state_create(t.work, false, false, &s, &t.err), KVL_OK);
    const char *first = t.work->cell[0].id, *second = t.work->cell[1].id;
    for (int i = 0; i < 2; i++)
        assert_true(plan_add(&s, json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:n}", "kind", "sample",
                                           "run", "?", "cell", first, "context", 1, "question", i,
                                           "official", 0.5, "error")));
    assert_true(s.cell[0].outcome[3].have && s.cell[0].outcome[3].official == 0.5);
    assert_false(s.cell[0].outcome[0].have || s.cell[1].outcome[3].have);
    for (int i = 0; i < 2; i++) {
        json_t *error = kvl_record_error("?", &t.work->cell[1], i, -1, KVL_EPOLICY, "crashed");
        assert_true(plan_add(&s, error) == (i == 0));
    }
    assert_true(s.cell[1].failed && !s.cell[0].failed);
    assert_true(plan_add(&s, json_pack("{s:s, s:s, s:s, s:i, s:i, s:s}", "kind", "sample", "run",
                                       "?", "cell", second, "context", 0, "question", 0, "error",
                                       "out of luck")));
    assert_true(s.cell[1].outcome[0].have && s.cell[1].outcome[0].failed);
    kvl_state_free(&s);
    plan_close(&t);
}

/* ---- shares ---------------------------------------------------------------------------------- */

/* Every group belongs to exactly one share, whatever their number. */
static void test_shards(void **state)
{
    struct plan_test t;
    (void)state;
    plan_open(&t);
    for (int32_t n = 1; n <= 6; n++) {
        int owners[8] = { 0 };
        for (int32_t i = 0; i < n; i++) {
            plan_ok(&t, PLAN_SMALL "speed: {lengths: [512, 768], steps: 2, warmup: 1}\n");
            assert_int_equal(t.work->n_groups, 6);
            assert_int_equal(
                kvl_work_shard(t.work, (struct kvl_shard){ .index = i, .count = n }, &t.err),
                KVL_OK);
            for (size_t g = 0; g < 6; g++) owners[g] += t.work->group[g].mine;
        }
        for (size_t g = 0; g < 6; g++) assert_int_equal(owners[g], 1);
    }
    plan_close(&t);
}

/* The plan is the same for every shard, and another one where cells, their dealing or their number differ; the
 * machine is no part of it. */
static void test_plan_hash(void **state)
{
    static const char *const text[] = { PLAN_SMALL "speed: {lengths: [512], steps: 2, warmup: 1}\n",
                                        PLAN_SMALL "speed: {lengths: [512], steps: 3, warmup: 1}\n",
                                        PLAN_SMALL };
    struct plan_test t;
    char first[KVL_PLAN_HASH], hash[KVL_PLAN_HASH];
    (void)state;
    plan_open(&t);
    for (int32_t i = 0; i < 3; i++) {
        const struct kvl_where there = { "there", 2 + i, i ? "a GPU" : NULL };
        plan_ok(&t, text[0]);
        kvl_work_destroy(t.work);
        assert_int_equal(kvl_work_create(&t.s, t.model, &there, false, &t.work, &t.err), KVL_OK);
        assert_int_equal(
            kvl_work_shard(t.work, (struct kvl_shard){ .index = i, .count = 3 }, &t.err), KVL_OK);
        assert_int_equal(kvl_work_plan(t.work, i ? hash : first, &t.err), KVL_OK);
        if (i) assert_string_equal(hash, first);
    }
    for (int32_t n = 1; n <= 4; n++)
        for (size_t k = 0; k < 3; k++) {
            plan_ok(&t, text[k]);
            assert_int_equal(kvl_work_shard(t.work, (struct kvl_shard){ .count = n }, &t.err),
                             KVL_OK);
            assert_int_equal(kvl_work_plan(t.work, hash, &t.err), KVL_OK);
            assert_int_equal(strcmp(hash, first) == 0, n == 3 && k == 0);
        }
    plan_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_product),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_longest_session),
        cmocka_unit_test(test_code_in_ids),
        cmocka_unit_test(test_key_code),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_same_cell_once),
        cmocka_unit_test(test_same_group_once),
        cmocka_unit_test(test_speed_key),
        cmocka_unit_test(test_exclude),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_memory_own),
        cmocka_unit_test(test_memory_check),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_plan_hash),
        cmocka_unit_test(test_left),
        cmocka_unit_test(test_added),
        cmocka_unit_test(test_own_prefill),
        cmocka_unit_test(test_prefills_observe_for_their_group),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
