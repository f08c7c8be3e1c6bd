/* Blocks of two sizes (core/kv/seal.c): against a list of what every slot must hold, quantised here by hand; and engines with
 * such a store, whatever the lengths of their chunks. */
#include "store.h"

#include "conformance/rig.h"
#include "half.h"
#include "kvl/policy.h"

enum { DIM = 32, LONGEST = 420, HEADS = 2, LAST = 128 };

/* Keys and values of a lane as they must be read, by slot. */
struct lane {
    int32_t n, n_sealed, pos[LONGEST];
    float k[LONGEST][DIM], v[LONGEST][DIM];
};

struct model {
    enum kvl_kv_type type;
    struct lane lane[HEADS];
};

static struct kvl_err err;

/* ---- by hand ------------------------------------------------------------------------------------------------ */

static float half_of(float x)
{
    return kvl_f16_to_f32(kvl_f32_to_f16(x));
}

static int levels(enum kvl_kv_type type)
{
    return type == KVL_KV_KIVI4 ? 15 : 3;
}

/* 32 numbers, `step` apart: 0 to `most` steps above the least. */
static void quantise(float *x, int step, int most)
{
    float low = x[0], high = x[0];
    for (int i = 0; i < 32; i++) {
        low = x[i * step] < low ? x[i * step] : low;
        high = x[i * step] > high ? x[i * step] : high;
    }
    float by = half_of((high - low) / (float)most);
    low = half_of(low);
    for (int i = 0; i < 32; i++) {
        float q = by > 0 ? nearbyintf((x[i * step] - low) / by) : 0;
        q = q < 0 ? 0 : q > (float)most ? (float)most : q;
        x[i * step] = low + by * q;
    }
}

static void seal(struct lane *l, enum kvl_kv_type type)
{
    int32_t blocks = (l->n + 31) / 32, want = blocks - 1 - LAST / 32;
    for (; l->n_sealed < want; l->n_sealed++) {
        int32_t at = 32 * l->n_sealed;
        for (int c = 0; c < DIM; c++) quantise(&l->k[at][c], DIM, levels(kvl_kv_keys(type)));
        for (int i = 0; i < 32; i++) quantise(l->v[at + i], 1, levels(kvl_kv_values(type)));
    }
}

static void model_add(struct model *m, int32_t pos, const float *k, const float *v)
{
    for (int h = 0; h < HEADS; h++) {
        struct lane *l = &m->lane[h];
        for (int c = 0; c < DIM; c++) {
            l->k[l->n][c] = half_of(k[h * DIM + c]);
            l->v[l->n][c] = half_of(v[h * DIM + c]);
        }
        l->pos[l->n++] = pos;
        seal(l, m->type);
    }
}

/* Behind the first slot that goes, and behind the blocks that a lane so short has sealed, all is quantised anew. */
static void model_keep(struct model *m, int h, const int32_t *pos, int32_t n)
{
    struct lane *l = &m->lane[h];
    int32_t first = l->n, to = 0, blocks = (n + 31) / 32;
    for (int32_t i = 0; i < l->n; i++) {
        bool stays = to < n && pos[to] == l->pos[i];
        if (!stays && first == l->n) first = i;
        if (!stays) continue;
        l->pos[to] = l->pos[i];
        memmove(l->k[to], l->k[i], sizeof l->k[i]);
        memmove(l->v[to++], l->v[i], sizeof l->v[i]);
    }
    l->n = n;
    l->n_sealed = KVL_MIN(l->n_sealed, KVL_MIN(first / 32, KVL_MAX(0, blocks - 1 - LAST / 32)));
    seal(l, m->type);
    for (int32_t i = 32 * l->n_sealed; i < n; i++) /* opened again: in 16 bits */
        for (int c = 0; c < DIM; c++) {
            l->k[i][c] = half_of(l->k[i][c]);
            l->v[i][c] = half_of(l->v[i][c]);
        }
}

static void compare(const struct kvl_seq *seq, const struct model *m)
{
    float row[DIM];
    RIG_OK(&err, kvl_store_check(seq->store, &err));
    for (int h = 0; h < HEADS; h++) {
        const struct lane *l = &m->lane[h];
        struct kvl_lane lane = kvl_seq_lane(seq, 0, h);
        int32_t pos[LONGEST];
        assert_int_equal(kvl_seq_len(seq, 0, h), l->n);
        assert_int_equal(lane.n_sealed, l->n_sealed);
        kvl_seq_positions(seq, 0, h, pos);
        assert_memory_equal(pos, l->pos, (size_t)l->n * sizeof *pos);
        for (int32_t s = 0; s < l->n; s++)
            for (int part = 0; part < 2; part++) {
                RIG_OK(&err, kvl_seq_read(seq, 0, h, (enum kvl_kv_part)part, s, 1, row, &err));
                for (int c = 0; c < DIM; c++)
                    if (row[c] + 0.0f != (part ? l->v : l->k)[s][c] + 0.0f)
                        fail_msg("head %d, slot %d of %d, part %d, channel %d: %.9g, want %.9g", h,
                                 s, l->n, part, c, (double)row[c],
                                 (double)(part ? l->v : l->k)[s][c]);
            }
    }
}

/* ---- a store ------------------------------------------------------------------------------------------------ */

static struct kvl_store *store_of(enum kvl_kv_type type, size_t limit)
{
    struct kvl_store *store;
    const struct kvl_store_desc d = {
        .n_layers = 1, .n_kv_heads = HEADS, .head_dim = DIM, .type = type, .limit_bytes = limit
    };
    RIG_OK(&err, kvl_store_create(&d, &store, &err));
    assert_int_equal(kvl_store_desc(store)->block_tok, 32);
    return store;
}

static void random_rows(struct kvl_rng *r, float *x, int32_t n)
{
    for (int32_t i = 0; i < n * HEADS * DIM; i++) {
        x[i] = (float)(kvl_rng_f64(r) * 2 - 1);
        if (i % DIM == 3) x[i] *= 40; /* a channel that stands out */
    }
}

/* Up to n slots behind the last, in one append. */
static void add(struct kvl_seq *seq, struct model *m, struct kvl_rng *r, int32_t n)
{
    static float k[LONGEST * HEADS * DIM], v[LONGEST * HEADS * DIM];
    int32_t pos[LONGEST], last = m->lane[0].n ? m->lane[0].pos[m->lane[0].n - 1] : -1;
    last = KVL_MAX(last, m->lane[1].n ? m->lane[1].pos[m->lane[1].n - 1] : -1);
    random_rows(r, k, n);
    random_rows(r, v, n);
    for (int32_t i = 0; i < n; i++) pos[i] = last + 1 + i;
    RIG_OK(&err, kvl_seq_append(seq, 0, n, pos, k, NULL, v, &err));
    for (int32_t i = 0; i < n; i++) model_add(m, pos[i], k + i * HEADS * DIM, v + i * HEADS * DIM);
}

static int32_t longest(const struct model *m)
{
    return KVL_MAX(m->lane[0].n, m->lane[1].n);
}

static const enum kvl_kv_type types[] = { KVL_KV_KIVI4, KVL_KV_KIVI2,
                                          KVL_KV_KIVI4 | (KVL_KV_KIVI2 + 1) << 8 };
enum { N_TYPES = sizeof types / sizeof *types };

/* Appends of any length leave the same, and the bytes are those of so many blocks. */
static void test_appends(void **state)
{
    struct kvl_rng r;
    (void)state;
    kvl_rng_seed(&r, 3);
    for (int t = 0; t < N_TYPES; t++) {
        struct kvl_store *store = store_of(types[t], 0);
        struct model *m = kvl_alloc(1, sizeof *m);
        struct kvl_seq *seq;
        m->type = types[t];
        RIG_OK(&err, kvl_seq_create(store, &seq, &err));
        while (longest(m) < 400) {
            int32_t n = 1 + (int32_t)kvl_rng_below(&r, kvl_rng_below(&r, 2) ? 3 : 90);
            n = KVL_MIN(n, 400 - longest(m));
            add(seq, m, &r, n);
            compare(seq, m);
        }
        assert_int_equal(m->lane[0].n_sealed, 13 - 1 - 4);
        kvl_seq_destroy(seq);
        kvl_store_destroy(store);
        kvl_free(m);
    }
}

/* Neither side of a fork sees what the other seals or evicts. */
static void test_forks_and_evictions(void **state)
{
    struct kvl_rng r;
    (void)state;
    kvl_rng_seed(&r, 4);
    for (int round = 0; round < 12; round++) {
        struct kvl_store *store = store_of(types[round % N_TYPES], 0);
        struct model *m = kvl_alloc(2, sizeof *m);
        struct kvl_seq *seq[2];
        m->type = types[round % N_TYPES];
        RIG_OK(&err, kvl_seq_create(store, &seq[0], &err));
        add(seq[0], m, &r, 150 + (int32_t)kvl_rng_below(&r, 150));
        RIG_OK(&err, kvl_seq_fork(seq[0], &seq[1], &err));
        m[1] = m[0];
        for (int step = 0; step < 8; step++) {
            int side = (int)kvl_rng_below(&r, 2), h = (int)kvl_rng_below(&r, HEADS);
            if (kvl_rng_below(&r, 3) == 0) {
                struct lane *l = &m[side].lane[h];
                int32_t pos[LONGEST], n = 0;
                uint32_t of = 1 + kvl_rng_below(&r, 40);
                for (int32_t i = 0; i < l->n; i++)
                    if (kvl_rng_below(&r, of) || of == 1) pos[n++] = l->pos[i];
                if (of == 1) n /= 2; /* from the end on */
                RIG_OK(&err, kvl_seq_keep(seq[side], 0, h, pos, n, &err));
                model_keep(&m[side], h, pos, n);
            } else {
                add(seq[side], &m[side], &r, 1 + (int32_t)kvl_rng_below(&r, 14));
            }
            compare(seq[0], &m[0]);
            compare(seq[1], &m[1]);
        }
        kvl_seq_destroy(seq[0]);
        kvl_seq_destroy(seq[1]);
        kvl_store_destroy(store);
        kvl_free(m);
    }
}

/* A lane that loses its end has fewer sealed blocks: some are opened, long before the first slot that goes. */
static void test_end_evicted(void **state)
{
    static const int32_t keep[] = { 319, 288, 170, 31 };
    struct kvl_rng r;
    (void)state;
    kvl_rng_seed(&r, 5);
    for (size_t i = 0; i < sizeof keep / sizeof *keep; i++) {
        struct kvl_store *store = store_of(types[i % N_TYPES], 0);
        struct model *m = kvl_alloc(1, sizeof *m);
        struct kvl_seq *seq;
        m->type = types[i % N_TYPES];
        RIG_OK(&err, kvl_seq_create(store, &seq, &err));
        add(seq, m, &r, 320);
        assert_int_equal(m->lane[0].n_sealed, 5);
        int32_t pos[LONGEST];
        memcpy(pos, m->lane[0].pos, sizeof pos);
        RIG_OK(&err, kvl_seq_keep(seq, 0, 0, pos, keep[i], &err));
        model_keep(m, 0, pos, keep[i]);
        compare(seq, m);
        kvl_seq_destroy(seq);
        kvl_store_destroy(store);
        kvl_free(m);
    }
}

/* What has no room leaves the sequence as it was; what cannot be is refused. */
static void test_refused(void **state)
{
    struct kvl_rng r;
    (void)state;
    kvl_rng_seed(&r, 5);
    struct model *m = kvl_alloc(1, sizeof *m);
    struct kvl_store *store = store_of(KVL_KV_KIVI4, 60000);
    struct kvl_store_stats stats;
    struct kvl_seq *seq;
    m->type = KVL_KV_KIVI4;
    RIG_OK(&err, kvl_seq_create(store, &seq, &err));
    const float row[HEADS * DIM] = { 1 };
    int rc = KVL_OK;
    while (longest(m) < 400 && rc == KVL_OK) {
        kvl_store_stats(store, &stats);
        assert_true(stats.bytes <= 60000 && stats.peak_bytes <= 60000);
        int32_t pos = longest(m);
        rc = kvl_seq_append(seq, 0, 1, &pos, row, NULL, row, &err);
        if (rc == KVL_OK) model_add(m, pos, row, row);
        compare(seq, m);
    }
    assert_int_equal(rc, KVL_ENOMEM);
    assert_true(m->lane[0].n_sealed > 0);
    kvl_err_clear(&err);
    int32_t old = 3;
    assert_int_equal(kvl_seq_append(seq, 0, 1, &old, row, NULL, row, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "positions from 3 on do not ascend"));
    kvl_err_clear(&err);
    assert_int_equal(kvl_seq_truncate(seq, 2, &err), KVL_EINVAL);
    assert_string_equal(err.msg, "truncate of kivi4, whose blocks are sealed");
    kvl_err_clear(&err);
    assert_int_equal(kvl_kv_check(KVL_KV_KIVI2, 80, &err), KVL_EINVAL);
    assert_non_null(strstr(err.msg, "kivi2: a head has 80 elements, want a multiple of 32"));
    kvl_err_clear(&err);
    compare(seq, m);
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
    kvl_free(m);
}

/* ---- engines ------------------------------------------------------------------------------------------------ */

enum { N_CTX = 330, N_MORE = 40 };

static struct gw_llama small_llama(void)
{
    return (
        struct gw_llama){ .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .seed = 7 };
}

/* Logits of the context's last token and of those behind it, which come as a block or one by one; a snapshot between. */
static float *engine_logits_of(const struct rig_desc *desc, bool one_by_one, const char *snapshot)
{
    struct rig r;
    int32_t id[N_CTX + N_MORE];
    struct kvl_session *s;
    rig_tokens(id, N_CTX + N_MORE, 9);
    rig_open(&r, desc);
    size_t n_vocab = (size_t)rig_shape(&r)->n_vocab;
    float *out = kvl_alloc(n_vocab * (1 + N_MORE), sizeof *out);
    RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
    RIG_OK(&r.err, kvl_session_prefill(s, id, N_CTX, out, true, &r.err));
    if (snapshot) {
        RIG_OK(&r.err, kvl_session_save(s, snapshot, "key", &r.err));
        kvl_session_destroy(s);
        RIG_OK(&r.err, kvl_session_load(r.engine, snapshot, "key", &s, &r.err));
        assert_non_null(s);
        RIG_OK(&r.err, kvl_store_check(kvl_engine_store(r.engine), &r.err));
    }
    if (!one_by_one)
        RIG_OK(&r.err, kvl_session_extend_logits(s, id + N_CTX, N_MORE, out + n_vocab, &r.err));
    for (int32_t i = 0; one_by_one && i < N_MORE; i++)
        RIG_OK(&r.err, kvl_session_extend_logits(s, id + N_CTX + i, 1,
                                                 out + (size_t)(1 + i) * n_vocab, &r.err));
    const struct kvl_counters *n = kvl_session_counters(s);
    assert_int_equal(n->kv_walked_bytes, n->kv_read_bytes);
    assert_int_equal(kvl_seq_lane(kvl_session_seq(s), 1, 1).n_sealed, 7); /* of 12 blocks */
    RIG_OK(&r.err, kvl_store_check(kvl_engine_store(r.engine), &r.err));
    kvl_session_destroy(s);
    rig_close(&r);
    return out;
}

static float *engine_logits(int32_t chunk, bool one_by_one, const char *snapshot)
{
    return engine_logits_of(
        &(struct rig_desc){
            .llama = small_llama(), .kv_type = KVL_KV_KIVI2, .device = "cpu", .chunk_tok = chunk },
        one_by_one, snapshot);
}

static void expect_same(const float *want, float *got, const char *what)
{
    size_t n = (1 + N_MORE) * (size_t)GW_VOCAB;
    for (size_t i = 0; i < n; i++)
        if (want[i] != got[i])
            fail_msg("%s: token %zu, logit %zu is %.9g, want %.9g", what, i / GW_VOCAB,
                     i % GW_VOCAB, (double)got[i], (double)want[i]);
    kvl_free(got);
}

/* A token reads the same in 16 bits whatever came with it. */
static void test_chunks(void **state)
{
    (void)state;
    char path[] = "/tmp/kvl-sealed-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    float *want = engine_logits(512, false, NULL);
    expect_same(want, engine_logits(7, false, NULL), "chunks of 7");
    expect_same(want, engine_logits(100, true, NULL), "chunks of 100, then one by one");
    expect_same(want, engine_logits(0, false, path), "a snapshot between");
    unlink(path);
    kvl_free(want);
}

/* A layer of a window longer than what stays open, and pairs of which one side seals. */
static void test_windows_and_pairs(void **state)
{
    static const uint8_t local[] = { 1, 0 };
    const enum kvl_kv_type of[] = { KVL_KV_KIVI4, kvl_kv_pair(KVL_KV_F16, KVL_KV_KIVI2),
                                    kvl_kv_pair(KVL_KV_KIVI4, KVL_KV_Q4_0_TURNED),
                                    kvl_kv_pair(KVL_KV_TURBOQUANT3, KVL_KV_KIVI4),
                                    kvl_kv_pair(KVL_KV_KIVI2, KVL_KV_F32) };
    char path[] = "/tmp/kvl-sealed-XXXXXX";
    int fd = mkstemp(path);
    (void)state;
    assert_true(fd >= 0);
    close(fd);
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct rig_desc d = { .llama = small_llama(), .kv_type = of[i], .device = "cpu" };
        d.llama.window = 200;
        d.llama.local = local;
        float *want = engine_logits_of(&d, false, NULL);
        d.chunk_tok = 7;
        expect_same(want, engine_logits_of(&d, false, NULL), "chunks of 7");
        /* Chunks of 20 read in 16 bits what others read sealed. */
        d.prefill_kv_host = true;
        d.chunk_tok = 20;
        expect_same(want, engine_logits_of(&d, false, NULL), "layer by layer, chunks of 20");
        d.prefill_kv_host = false;
        d.no_raw_keys = true;
        expect_same(want, engine_logits_of(&d, true, NULL), "one by one");
        expect_same(want, engine_logits_of(&d, false, path), "a snapshot between");
        kvl_free(want);
    }
    unlink(path);
}

static int evict_nothing(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    (void)ctx;
    (void)step;
    (void)keep;
    return KVL_OK;
}

static int score_even(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *sc)
{
    (void)layer;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        for (int32_t i = 0; i < sc->n_tok; i++)
            sc->score[h * sc->n_tok + i] = (float)(i % 3 != h % 3);
    return KVL_OK;
}

RIG_POLICY(stepwise, .caps = KVL_CAP_EVICTS, .evict = evict_nothing);
RIG_POLICY(once, .caps = KVL_CAP_EVICTS, .score = score_even);

/* One that evicts at every step is refused; one that evicts once is served, and its bytes are those of what stays. */
static void test_policies(void **state)
{
    struct rig r;
    int32_t id[N_CTX + N_MORE];
    struct kvl_session *s;
    struct kvl_planned *p;
    (void)state;
    rig_tokens(id, N_CTX + N_MORE, 9);
    rig_open(
        &r, &(struct rig_desc){ .llama = small_llama(), .kv_type = KVL_KV_KIVI4, .device = "cpu" });
    RIG_OK(&r.err, kvl_session_create(r.engine, &s, &r.err));
    RIG_OK(&r.err, kvl_session_prefill(s, id, N_CTX, NULL, true, &r.err));
    RIG_OK(&r.err, kvl_planned_create(&stepwise, rig_shape(&r), "", 200, N_CTX, &p, &r.err));
    assert_int_equal(kvl_session_attach(s, p, 1, KVL_EXEC_REAL, &r.err), KVL_EINVAL);
    assert_non_null(strstr(r.err.msg,
                           "stepwise may evict at any step, which is not served of kivi4, "
                           "whose keys are quantised 32 tokens together, and anew "
                           "after every eviction; want a kv_type"));
    kvl_err_clear(&r.err);
    kvl_planned_destroy(p);
    RIG_OK(&r.err, kvl_planned_create(&once, rig_shape(&r), "", 200, N_CTX, &p, &r.err));
    RIG_OK(&r.err, kvl_session_attach(s, p, 1, KVL_EXEC_REAL, &r.err));
    RIG_OK(&r.err, kvl_session_extend(s, id + N_CTX, N_MORE, &r.err));
    RIG_OK(&r.err, kvl_store_check(kvl_engine_store(r.engine), &r.err));
    const struct kvl_counters *n = kvl_session_counters(s);
    assert_int_equal(n->kv_walked_bytes, n->kv_read_bytes);
    assert_int_equal(kvl_seq_len(kvl_session_seq(s), 0, 0), 200 + N_MORE);
    assert_int_equal(kvl_seq_lane(kvl_session_seq(s), 0, 0).n_sealed, 8 - 1 - 4);
    kvl_session_destroy(s);
    kvl_planned_destroy(p);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_appends),     cmocka_unit_test(test_forks_and_evictions),
        cmocka_unit_test(test_end_evicted), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_chunks),      cmocka_unit_test(test_windows_and_pairs),
        cmocka_unit_test(test_policies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
