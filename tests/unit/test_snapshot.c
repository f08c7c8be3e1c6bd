/* Snapshots: a loaded session is the saved one, bit for bit; a file that is not whole is refused. */
#include "conformance/rig.h"
#include "engine_impl.h"
#include "snapshot_file.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define KVL_POLICY_X(stem) extern const struct kvl_policy *const kvl_policy_##stem;
#include "kvl_policies.def"
#undef KVL_POLICY_X

static const struct kvl_policy *const *const policies[] = {
#define KVL_POLICY_X(stem) &kvl_policy_##stem,
#include "kvl_policies.def"
#undef KVL_POLICY_X
};
enum { N_POLICIES = sizeof policies / sizeof policies[0] };

enum {
    N_CTX = 300,
    N_QUESTION = 40,
    N_STEPS = 5,
    N_TOK = N_CTX + N_QUESTION + N_STEPS,
    BUDGET = 200
};

static const struct rig_desc descs[] = {
    { .llama = { .n_layers = 2, .n_kv_heads = 2, .seed = 41 }, .kv_type = KVL_KV_F16 },
    { .llama = { .n_layers = 3, .n_kv_heads = 1, .seed = 42 }, .kv_type = KVL_KV_F32 },
    { .llama = { .n_layers = 2, .n_kv_heads = 1, .seed = 43 }, .kv_type = KVL_KV_BF16 },
    { .llama = { .n_layers = 2, .n_kv_heads = 2, .head_dim = 32, .seed = 44 },
      .kv_type = KVL_KV_Q8_0 },
    { .llama = { .n_layers = 2, .n_kv_heads = 2, .head_dim = 64, .seed = 45 },
      .kv_type = KVL_KV_Q4_0_TURNED },
    { .llama = { .n_layers = 2, .n_kv_heads = 2, .head_dim = 32, .seed = 46 },
      .kv_type = KVL_KV_TURBOQUANT3 | (KVL_KV_FP8_E4M3 + 1) << 8 }, /* kvl_kv_pair */
};

struct stage {
    struct rig r;
    char dir[64], path[96];
    int32_t id[N_TOK];
    struct kvl_session *s; /* prefilled */
    struct kvl_buf key;
    struct kvl_err err;
};

/* Wrappers are nothing without what they wrap, which is here, too. */
static bool is_left_out(int i)
{
    return (*policies[i])->inner || (*policies[i])->prefill == KVL_PREFILL_OWN;
}

/* The engine observes what any policy here asks for. */
static void open_engine(struct rig *r, const struct kvl_engine_desc *with)
{
    struct kvl_engine_desc d = *with;
    struct kvl_err err = { 0 };
    d.model = r->model;
    for (int i = 0; i < 2 * N_POLICIES; i++) {
        int32_t n = i < N_POLICIES ? N_CTX : N_CTX + N_QUESTION; /* some ask by the length */
        struct kvl_planned *p;
        if (is_left_out(i % N_POLICIES)) continue;
        RIG_OK(&err, kvl_planned_create(*policies[i % N_POLICIES], rig_shape(r), "", BUDGET, n, &p,
                                        &err));
        RIG_OK(&err, kvl_observer_set_merge(&d.observers, kvl_planned_observers(p), &err));
        kvl_planned_destroy(p);
    }
    RIG_OK(&err, kvl_engine_create(&d, &r->engine, &err));
}

static void stage_open(struct stage *g, const struct rig_desc *desc, int32_t n)
{
    *g = (struct stage){ .dir = "/tmp/kvl-snapshot-XXXXXX" };
    assert_non_null(mkdtemp(g->dir));
    snprintf(g->path, sizeof g->path, "%s/a.snap", g->dir);
    rig_open(&g->r, desc);
    kvl_engine_destroy(g->r.engine);
    open_engine(&g->r, &(struct kvl_engine_desc){
                           .kv_type = desc->kv_type,
                           .raw_keys = !desc->no_raw_keys,
                           .observers = { .n_columns = 1, .column = { { KVL_OBS_LOGITS, 9 } } } });
    rig_tokens(g->id, N_TOK, 6);
    RIG_OK(&g->err, kvl_session_create(g->r.engine, &g->s, &g->err));
    RIG_OK(&g->err, kvl_session_prefill(g->s, g->id, n, NULL, true, &g->err));
    RIG_OK(&g->err, kvl_snapshot_key(g->r.engine, g->id, n, &g->key, &g->err));
}

static void stage_save(struct stage *g)
{
    RIG_OK(&g->err, kvl_session_save(g->s, g->path, g->key.data, &g->err));
}

static struct kvl_session *stage_load(struct stage *g)
{
    struct kvl_session *s = NULL;
    RIG_OK(&g->err, kvl_session_load(g->r.engine, g->path, g->key.data, &s, &g->err));
    assert_non_null(s);
    return s;
}

/* Nothing but `n_files` stays in the folder. */
static void expect_files(const struct stage *g, int n_files)
{
    DIR *d = opendir(g->dir);
    int n = -2; /* . and .. */
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    assert_int_equal(n, n_files);
}

static void stage_close(struct stage *g)
{
    struct kvl_store_stats st;
    kvl_session_destroy(g->s);
    kvl_store_stats(kvl_engine_store(g->r.engine), &st);
    assert_int_equal(st.n_blocks, 0);
    kvl_buf_free(&g->key);
    rig_close(&g->r);
    unlink(g->path);
    assert_int_equal(rmdir(g->dir), 0);
}

/* ---- the same, bit for bit ----------------------------------------------------------------------- */

/* Continued by a question, then under a policy; logits of its steps. */
static float *go_on(struct stage *g, const struct kvl_session *from,
                    const struct kvl_policy *policy, int32_t n_question)
{
    struct kvl_session *s;
    struct kvl_planned *p;
    float *logits = rig_logits(&g->r, N_STEPS + 1);
    RIG_OK(&g->err, kvl_session_fork(from, &s, &g->err));
    if (n_question > 0)
        RIG_OK(&g->err, kvl_session_prefill(s, g->id + N_CTX, n_question, logits, true, &g->err));
    RIG_OK(&g->err, kvl_planned_create(policy, rig_shape(&g->r), "", BUDGET, N_CTX + n_question, &p,
                                       &g->err));
    RIG_OK(&g->err, kvl_session_attach(s, p, 3, KVL_EXEC_REAL, &g->err));
    struct rig_session rs = { .s = s };
    size_t row = (size_t)rig_shape(&g->r)->n_vocab;
    rig_decode(&g->r, &rs, g->id + N_CTX + N_QUESTION, N_STEPS, logits + row);
    kvl_session_destroy(s);
    kvl_planned_destroy(p);
    return logits;
}

static void test_every_policy_goes_on_bit_for_bit(void **state)
{
    (void)state;
    for (size_t d = 0; d < sizeof descs / sizeof *descs; d++) {
        struct stage g;
        stage_open(&g, &descs[d], N_CTX);
        stage_save(&g);
        expect_files(&g, 1);
        struct kvl_session *loaded = stage_load(&g);
        assert_int_equal(kvl_session_len(loaded), N_CTX);
        for (int i = 0; i < N_POLICIES; i++)
            for (int32_t question = 0; question <= N_QUESTION && !is_left_out(i);
                 question += N_QUESTION) {
                float *want = go_on(&g, g.s, *policies[i], question);
                float *got = go_on(&g, loaded, *policies[i], question);
                rig_expect_same(&g.r, want, got, N_STEPS + 1, (*policies[i])->name);
                kvl_free(want);
                kvl_free(got);
            }
        kvl_session_destroy(loaded);
        stage_close(&g);
    }
}

static void expect_same_session(const struct stage *g, const struct kvl_session *a,
                                const struct kvl_session *b)
{
    const struct kvl_shape *sh = rig_shape(&g->r);
    struct kvl_err err = { 0 };
    size_t floats = (size_t)N_CTX * (size_t)sh->head_dim;
    float *x = rig_floats(floats), *y = rig_floats(floats);
    int parts = kvl_store_desc(kvl_engine_store(g->r.engine))->raw_keys ? 3 : 2;
    for (int32_t l = 0; l < sh->n_layers; l++)
        for (int32_t h = 0; h < sh->n_kv_heads; h++)
            for (int p = 0; p < parts; p++) {
                RIG_OK(&err, kvl_seq_read(kvl_session_seq(a), l, h, (enum kvl_kv_part)p, 0, N_CTX,
                                          x, &err));
                RIG_OK(&err, kvl_seq_read(kvl_session_seq(b), l, h, (enum kvl_kv_part)p, 0, N_CTX,
                                          y, &err));
                assert_memory_equal(x, y, floats * sizeof *x);
                assert_true(kvl_lane_is_whole(b, l, h));
            }
    kvl_free(x);
    kvl_free(y);
    size_t heads = (size_t)sh->n_layers * (size_t)sh->n_heads;
    assert_int_equal(a->obs->n_seen, b->obs->n_seen);
    assert_memory_equal(a->id, b->id, N_CTX * sizeof *a->id);
    assert_memory_equal(a->obs->ring, b->obs->ring,
                        heads * (size_t)a->obs->set.window * (size_t)sh->head_dim * sizeof(float));
    assert_memory_equal(a->obs->ring_lse, b->obs->ring_lse,
                        heads * (size_t)a->obs->set.window * sizeof(float));
    for (int32_t i = 0; i < a->obs->set.n_columns; i++) {
        size_t bytes = heads * (size_t)N_CTX * sizeof(float);
        if (a->obs->columns[i].sum) {
            assert_memory_equal(a->obs->columns[i].sum, b->obs->columns[i].sum, bytes);
            if (a->obs->columns[i].carry)
                assert_memory_equal(a->obs->columns[i].carry, b->obs->columns[i].carry, bytes);
        }
        bytes = heads * (size_t)sh->head_dim * sizeof(double);
        if (!a->obs->moments[i].sum) continue;
        assert_memory_equal(a->obs->moments[i].sum, b->obs->moments[i].sum, bytes);
        assert_memory_equal(a->obs->moments[i].product, b->obs->moments[i].product,
                            bytes * ((size_t)sh->head_dim + 1) / 2);
    }
}

/* What is in memory; and a snapshot of a loaded session is the same file. */
static void test_everything_comes_back(void **state)
{
    (void)state;
    for (size_t d = 0; d < sizeof descs / sizeof *descs; d++) {
        struct stage g;
        struct kvl_buf a = { 0 }, b = { 0 };
        stage_open(&g, &descs[d], N_CTX);
        assert_true(g.s->obs->set.n_columns > 0 && g.s->obs->set.window > 0);
        stage_save(&g);
        RIG_OK(&g.err, kvl_read_file(g.path, SIZE_MAX, &a, &g.err));
        struct kvl_session *loaded = stage_load(&g);
        expect_same_session(&g, g.s, loaded);
        RIG_OK(&g.err, kvl_session_save(loaded, g.path, g.key.data, &g.err)); /* over the old one */
        expect_files(&g, 1);
        RIG_OK(&g.err, kvl_read_file(g.path, SIZE_MAX, &b, &g.err));
        assert_int_equal(a.len, b.len);
        assert_memory_equal(a.data, b.data, a.len);
        kvl_buf_free(&a);
        kvl_buf_free(&b);
        kvl_session_destroy(loaded);
        stage_close(&g);
    }
}

/* An engine that observes nothing and keeps no raw keys; a block that is not full; one token. */
static void test_plain_engine(void **state)
{
    static const int32_t lengths[] = { 1, 37, 257 };
    (void)state;
    for (int i = 0; i < 3; i++) {
        struct stage g;
        struct kvl_engine_desc plain = { .kv_type = KVL_KV_F16 };
        stage_open(&g, &descs[0], 2);
        kvl_session_destroy(g.s);
        kvl_engine_destroy(g.r.engine);
        plain.model = g.r.model;
        RIG_OK(&g.err, kvl_engine_create(&plain, &g.r.engine, &g.err));
        RIG_OK(&g.err, kvl_session_create(g.r.engine, &g.s, &g.err));
        RIG_OK(&g.err, kvl_session_prefill(g.s, g.id, lengths[i], NULL, true, &g.err));
        stage_save(&g);
        struct rig_session a = { .s = g.s }, b = { .s = stage_load(&g) };
        float *want = rig_logits(&g.r, N_STEPS), *got = rig_logits(&g.r, N_STEPS);
        rig_decode(&g.r, &a, g.id + lengths[i], N_STEPS, want);
        rig_decode(&g.r, &b, g.id + lengths[i], N_STEPS, got);
        rig_expect_same(&g.r, want, got, N_STEPS, "saved and loaded");
        kvl_free(want);
        kvl_free(got);
        rig_end(&b);
        stage_close(&g);
    }
}

/* ---- keys --------------------------------------------------------------------------------------- */

static void expect_other_key(const struct stage *g, struct kvl_engine *e, const int32_t *id,
                             int32_t n, bool other)
{
    struct kvl_buf key = { 0 };
    struct kvl_err err = { 0 };
    RIG_OK(&err, kvl_snapshot_key(e, id, n, &key, &err));
    assert_int_equal(strcmp(key.data, g->key.data) != 0, other);
    kvl_buf_free(&key);
}

/* Whatever changes the bytes changes the key; chunks and limits do not. */
static void test_keys(void **state)
{
    struct stage g;
    (void)state;
    stage_open(&g, &descs[0], N_CTX);
    expect_other_key(&g, g.r.engine, g.id, N_CTX, false);
    expect_other_key(&g, g.r.engine, g.id, N_CTX - 1, true);
    g.id[N_CTX / 2] ^= 1;
    expect_other_key(&g, g.r.engine, g.id, N_CTX, true);
    g.id[N_CTX / 2] ^= 1;
    const struct kvl_engine_desc same = g.r.engine->desc;
    struct kvl_engine_desc other[8] = { same, same, same, same, same, same, same, same };
    other[0].kv_type = KVL_KV_F32;
    other[1].raw_keys = !same.raw_keys;
    other[2].observers.window++;
    other[3].observers.column[0].param++;
    other[4].observers.n_columns = 1; /* what is repeated has no bytes: not the last alone */
    other[5].prefill_type = KVL_PREFILL_BF16;
    other[6].prefill_type = KVL_PREFILL_BLAS;
    other[7].chunk_tok = 7;
    other[7].kv_limit_bytes = 1 << 30;
    for (int i = 0; i < 8; i++) {
        struct kvl_engine *e;
        RIG_OK(&g.err, kvl_engine_create(&other[i], &e, &g.err));
        expect_other_key(&g, e, g.id, N_CTX, i < 7);
        kvl_engine_destroy(e);
    }
    struct rig r;
    struct rig_desc model = descs[0];
    model.llama.seed++;
    rig_open(&r, &model);
    kvl_engine_destroy(r.engine);
    struct kvl_engine_desc d = same;
    d.model = r.model;
    RIG_OK(&g.err, kvl_engine_create(&d, &r.engine, &g.err));
    expect_other_key(&g, r.engine, g.id, N_CTX, true);
    rig_close(&r);
    stage_close(&g);
}

/* Keys that were turned by factors for short contexts are not those of long ones. */
static void test_rope_factors(void **state)
{
    struct stage g;
    struct rig_desc model = { .llama = { .arch = "phi3", .n_layers = 2 } };
    (void)state;
    stage_open(&g, &model, 8);
    struct kvl_engine_desc other = g.r.engine->desc;
    for (int longer = 0; longer < 2; longer++) {
        struct kvl_engine *e;
        other.max_tok = longer ? 513 : 512;
        RIG_OK(&g.err, kvl_engine_create(&other, &e, &g.err));
        expect_other_key(&g, e, g.id, 8, !longer); /* the stage's: as long as the model's context */
        kvl_engine_destroy(e);
    }
    stage_close(&g);
}

/* ---- what is refused -------------------------------------------------------------------------------- */

static void expect_refused(struct stage *g, const char *key, const char *needle)
{
    struct kvl_session *s = (struct kvl_session *)1;
    struct kvl_err err = { 0 };
    int rc = kvl_session_load(g->r.engine, g->path, key, &s, &err);
    if (rc != KVL_EIO) fail_msg("%s, want an error about %s", kvl_status_name(rc), needle);
    if (!strstr(err.msg, needle) || !strstr(err.msg, g->path) || strchr(err.msg, '\n'))
        fail_msg("message \"%s\", want one line with the path and \"%s\"", err.msg, needle);
    assert_ptr_equal(s, (struct kvl_session *)1);
}

static void test_missing_and_other_keys(void **state)
{
    struct stage g;
    struct kvl_session *s = (struct kvl_session *)1;
    (void)state;
    stage_open(&g, &descs[0], 40);
    RIG_OK(&g.err, kvl_session_load(g.r.engine, g.path, g.key.data, &s, &g.err));
    assert_null(s);
    stage_save(&g);
    struct kvl_buf other = { 0 };
    RIG_OK(&g.err, kvl_snapshot_key(g.r.engine, g.id, 39, &other, &g.err));
    expect_refused(&g, other.data, "want \"tokens 39");
    expect_refused(&g, "x", "delete the file");
    expect_refused(&g, "", "delete the file");
    unlink(g.path);
    assert_int_equal(mkdir(g.path, 0700), 0);
    expect_refused(&g, g.key.data, "cannot read");
    rmdir(g.path);
    kvl_buf_free(&other);
    stage_close(&g);
}

static void write_file(const char *path, const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

/* Any changed byte is refused. */
static void test_flipped_bytes(void **state)
{
    struct stage g;
    struct kvl_buf file = { 0 };
    int n_flips = 0;
    (void)state;
    stage_open(&g, &descs[0], 20);
    stage_save(&g);
    RIG_OK(&g.err, kvl_read_file(g.path, SIZE_MAX, &file, &g.err));
    size_t step = file.len / 1500 + 1;
    for (size_t at = 0; at < file.len; at += at < 600 || at + 64 > file.len ? 1 : step) {
        struct kvl_session *s = NULL;
        struct kvl_err err = { 0 };
        uint8_t was = (uint8_t)file.data[at];
        file.data[at] = (char)(was ^ (uint8_t)(1u << at % 8));
        write_file(g.path, file.data, file.len);
        file.data[at] = (char)was;
        int rc = kvl_session_load(g.r.engine, g.path, g.key.data, &s, &err);
        n_flips++;
        assert_int_equal(rc, KVL_EIO);
        assert_non_null(strstr(err.msg, "delete the file"));
    }
    assert_true(n_flips > 1000);
    kvl_buf_free(&file);
    stage_close(&g);
}

static void test_cut_and_grown_files(void **state)
{
    struct stage g;
    struct kvl_buf file = { 0 };
    (void)state;
    stage_open(&g, &descs[0], 20);
    stage_save(&g);
    RIG_OK(&g.err, kvl_read_file(g.path, SIZE_MAX, &file, &g.err));
    for (size_t n = 0; n < file.len; n += n < 500 || n + 40 > file.len ? 1 : 97) {
        write_file(g.path, file.data, n);
        expect_refused(&g, g.key.data, "ends too early");
    }
    size_t len = file.len;
    kvl_buf_add(&file, file.data, len < 9 ? len : 9);
    write_file(g.path, file.data, len + 1);
    expect_refused(&g, g.key.data, "follows");
    write_file(g.path, file.data, len + 9);
    expect_refused(&g, g.key.data, "follows");
    write_file(g.path, "GGUF, or anything else that is no snapshot", 42);
    expect_refused(&g, g.key.data, "not a snapshot");
    kvl_buf_free(&file);
    stage_close(&g);
}

/* ---- bodies that lie, with checksums that agree ---------------------------------------------------------- */

/* The body of a good file, decoded. */
static void body_of(struct stage *g, size_t n, struct kvl_buf *body)
{
    struct kvl_snapshot_reader *r;
    RIG_OK(&g->err, kvl_snapshot_open(g->path, g->key.data, &r, &g->err));
    char *bytes = kvl_alloc(n, 1);
    RIG_OK(&g->err, kvl_snapshot_get(r, bytes, n, &g->err));
    RIG_OK(&g->err, kvl_buf_add(body, bytes, n));
    kvl_free(bytes);
    kvl_snapshot_close_reader(r);
}

static void write_body(struct stage *g, const void *data, size_t n)
{
    struct kvl_snapshot_writer *w;
    RIG_OK(&g->err, kvl_snapshot_create(g->path, g->key.data, &w, &g->err));
    RIG_OK(&g->err, kvl_snapshot_put(w, data, n, 1, &g->err));
    RIG_OK(&g->err, kvl_snapshot_commit(w, &g->err));
    kvl_snapshot_close_writer(w);
}

enum { HEAD = 4 * (8 + 2 * KVL_MAX_COLUMNS + 3), HEAD_SEEN = HEAD / 4 - 2 };

/* A snapshot of 20 tokens, and its body. */
static void stage_body(struct stage *g, struct kvl_buf *body)
{
    stage_open(g, &descs[0], 20);
    const struct kvl_shape *sh = rig_shape(&g->r);
    const struct kvl_observers *o = g->s->obs;
    size_t heads = (size_t)(sh->n_layers * sh->n_heads), dim = (size_t)sh->head_dim;
    /* The ids, then a full block and four tokens, in f16: keys, values and keys before RoPE. */
    size_t n = HEAD + 20 * 4 + (size_t)(sh->n_layers * sh->n_kv_heads) * dim * 3 * 20 * 2;
    n += heads * 4 * (size_t)o->set.window * (dim + 1);
    for (int32_t i = 0; i < o->set.n_columns; i++) {
        if (o->columns[i].sum) n += heads * 4 * (o->columns[i].carry ? 2 : 1) * 20;
        if (o->moments[i].sum) n += heads * 8 * (dim + dim * (dim + 1) / 2);
    }
    stage_save(g);
    body_of(g, n, body);
    write_body(g, body->data, body->len);
    kvl_session_destroy(stage_load(g));
}

/* Every number of the head in turn, with values that would take all memory if they were believed.
 * Only one lie cannot be told from the truth: observers that have seen less. */
static void test_lying_bodies(void **state)
{
    static const int32_t lies[] = { INT32_MAX, -1, 0, 21, 500 };
    struct stage g;
    struct kvl_buf body = { 0 };
    (void)state;
    stage_body(&g, &body);
    for (size_t field = 0; field < HEAD / 4; field++)
        for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
            int32_t was;
            memcpy(&was, body.data + 4 * field, 4);
            if (was == lies[i] || (field == HEAD_SEEN && lies[i] == 0)) continue;
            memcpy(body.data + 4 * field, &lies[i], 4);
            write_body(&g, body.data, body.len);
            expect_refused(&g, g.key.data, "delete the file");
            memcpy(body.data + 4 * field, &was, 4);
        }
    write_body(&g, body.data, 0);
    expect_refused(&g, g.key.data, "damaged");
    kvl_buf_free(&body);
    stage_close(&g);
}

/* More content than it declares, in the last piece and in one of its own. */
static void test_body_with_more(void **state)
{
    struct stage g;
    struct kvl_buf body = { 0 };
    (void)state;
    stage_body(&g, &body);
    kvl_buf_adds(&body, "x");
    write_body(&g, body.data, body.len);
    expect_refused(&g, g.key.data, "too much");
    struct kvl_snapshot_writer *w;
    RIG_OK(&g.err, kvl_snapshot_create(g.path, g.key.data, &w, &g.err));
    RIG_OK(&g.err, kvl_snapshot_put(w, body.data, body.len - 1, 1, &g.err));
    RIG_OK(&g.err, kvl_snapshot_put(w, body.data, 4, 4, &g.err));
    RIG_OK(&g.err, kvl_snapshot_commit(w, &g.err));
    kvl_snapshot_close_writer(w);
    expect_refused(&g, g.key.data, "too much");
    kvl_buf_free(&body);
    stage_close(&g);
}

/* A key longer than any, in a file long enough to hold it. */
static void test_long_key(void **state)
{
    struct stage g;
    uint32_t n[] = { 1, 300000 };
    char *key = test_calloc(400000, 1);
    struct kvl_err err = { 0 };
    (void)state;
    stage_open(&g, &descs[0], 20);
    memcpy(key, "KVLSNAP\n", 8);
    memcpy(key + 8, n, sizeof n);
    write_file(g.path, key, 400000);
    expect_refused(&g, g.key.data, "too long");
    memset(key, 'k', 70000);
    assert_int_equal(kvl_session_save(g.s, g.path, key, &err), KVL_EINVAL);
    test_free(key);
    stage_close(&g);
}

/* ---- saving that cannot work ------------------------------------------------------------------------------- */

static void test_save_refuses(void **state)
{
    struct stage g;
    struct kvl_session *s;
    struct kvl_err err = { 0 };
    (void)state;
    stage_open(&g, &descs[0], 40);
    assert_int_equal(kvl_session_save(g.s, "/no/such/folder/a", g.key.data, &err), KVL_EIO);
    assert_non_null(strstr(err.msg, "/no/such/folder/a"));
    RIG_OK(&g.err, kvl_session_create(g.r.engine, &s, &g.err));
    err = (struct kvl_err){ 0 };
    assert_int_equal(kvl_session_save(s, g.path, g.key.data, &err), KVL_EINVAL);
    kvl_session_destroy(s);
    struct kvl_planned *p;
    RIG_OK(&g.err, kvl_planned_create(kvl_policy_full, rig_shape(&g.r), "", 0, 40, &p, &g.err));
    RIG_OK(&g.err, kvl_session_fork(g.s, &s, &g.err));
    RIG_OK(&g.err, kvl_session_attach(s, p, 1, KVL_EXEC_REAL, &g.err));
    err = (struct kvl_err){ 0 };
    assert_int_equal(kvl_session_save(s, g.path, g.key.data, &err), KVL_EINTERNAL);
    kvl_session_destroy(s);
    kvl_planned_destroy(p);
    expect_files(&g, 0);
    stage_close(&g);
}

/* A disk that is full: the old file stays, nothing else does. */
static void test_full_disk(void **state)
{
    struct stage g;
    struct rlimit was, small = { .rlim_cur = 30000 };
    struct kvl_err err = { 0 };
    (void)state;
    stage_open(&g, &descs[0], N_CTX);
    stage_save(&g);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    small.rlim_max = was.rlim_max;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    int rc = kvl_session_save(g.s, g.path, g.key.data, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(rc, KVL_EIO);
    assert_non_null(strstr(err.msg, "cannot write"));
    expect_files(&g, 1);
    kvl_session_destroy(stage_load(&g));
    stage_close(&g);
}

/* A store that is too small for what the file holds. */
static void test_store_limit(void **state)
{
    struct stage g;
    struct kvl_session *s = NULL;
    struct kvl_err err = { 0 };
    struct kvl_store_stats st;
    (void)state;
    stage_open(&g, &descs[0], N_CTX);
    stage_save(&g);
    struct kvl_engine_desc d = g.r.engine->desc;
    struct kvl_engine *e;
    d.kv_limit_bytes = 100000;
    RIG_OK(&g.err, kvl_engine_create(&d, &e, &g.err));
    assert_int_equal(kvl_session_load(e, g.path, g.key.data, &s, &err), KVL_ENOMEM);
    assert_null(s);
    kvl_store_stats(kvl_engine_store(e), &st);
    assert_int_equal(st.n_sequences, 0);
    assert_int_equal(st.n_blocks, 0);
    kvl_engine_destroy(e);
    stage_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_policy_goes_on_bit_for_bit),
        cmocka_unit_test(test_everything_comes_back),
        cmocka_unit_test(test_plain_engine),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_rope_factors),
        cmocka_unit_test(test_missing_and_other_keys),
        cmocka_unit_test(test_flipped_bytes),
        cmocka_unit_test(test_cut_and_grown_files),
        cmocka_unit_test(test_lying_bodies),
        cmocka_unit_test(test_body_with_more),
        cmocka_unit_test(test_long_key),
        cmocka_unit_test(test_save_refuses),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_store_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
