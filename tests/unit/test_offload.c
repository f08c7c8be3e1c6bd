/* Lanes in the host tier: random selections against a naive model of the cache, answers against those
 * without offloading, attention that never touches a block of the host, counts in closed form.  With
 * KVL_TEST_CUDA on the (emulated) GPU. */
#include "conformance/rig.h"
#include "lane.h"

enum { N_CTX = 150, N_STEPS = 14, N_ALL = N_CTX + N_STEPS + 32, MAX_UNITS = N_ALL };

/* ---- policies of the test's own ------------------------------------------------------------- */

enum kind { EVERYTHING, DENSE, LAYER_PAGES, KV_TOKENS, Q_TOKENS, SEGMENTS, CONSTANT, N_KINDS };

static struct {
    bool on;
    struct kvl_offload o;
    enum kind kind;
    bool evicts, scores, late; /* late: names layers in a step */
    uint64_t seed;
    int32_t (*script)(int32_t index, int32_t *unit); /* pages of unit_tok, for all heads */
    /* fetched ahead, in one layer, for the same lanes of another */
    int32_t ahead[8], n_ahead, ahead_from, ahead_to;
} cfg;

static int test_plan(struct kvl_plan *plan)
{
    plan->raw_keys = cfg.kind == CONSTANT;
    return cfg.on ? kvl_plan_offload(plan, &cfg.o) : KVL_OK;
}

static const uint8_t some_layers[] = { 0, 1, 0 };

/* Plans all layers, and names them once all of the context was seen. */
static int naming_plan(struct kvl_plan *plan)
{
    struct kvl_offload o = cfg.o;
    o.layers = NULL;
    return kvl_plan_offload(plan, &o);
}

static int naming_prefilled(struct kvl_pctx *ctx, int32_t layer)
{
    return layer < 2 ? KVL_OK : kvl_offload_layers(ctx, some_layers);
}

static float unit_score(int32_t layer, int32_t head, int32_t unit)
{
    return (float)(kvl_seed_mix(cfg.seed, (uint64_t)(layer * 64 + head) * 1024 + (uint64_t)unit) %
                   97);
}

/* Positions below `end`, a third of them, in clusters. */
static int32_t random_tokens(int32_t layer, int32_t list, int32_t end, int32_t from, int32_t *pos)
{
    struct kvl_rng rng;
    int32_t n = 0;
    kvl_rng_seed(&rng, kvl_seed_mix(cfg.seed, (uint64_t)(end * 256 + layer * 32 + list)));
    for (int32_t p = from; p < end; p += 6) {
        bool here = kvl_rng_below(&rng, 3) == 0;
        for (int32_t i = p; i < KVL_MIN(p + 6, end); i++)
            if (here && kvl_rng_below(&rng, 4) > 0) pos[n++] = i;
    }
    return n;
}

static int32_t only_live(const struct kvl_pctx *ctx, int32_t layer, int32_t head, int32_t *pos,
                         int32_t n)
{
    const int32_t *live;
    int32_t n_live, m = 0, j = 0;
    if (kvl_live(ctx, layer, head, &live, &n_live) != KVL_OK) return 0;
    for (int32_t i = 0; i < n; i++) {
        while (j < n_live && live[j] < pos[i]) j++;
        if (j < n_live && live[j] == pos[i]) pos[m++] = pos[i];
    }
    return m;
}

static int sel_random(struct kvl_pctx *ctx, const struct kvl_step *step, enum kvl_scope scope,
                      int32_t from, int32_t end, struct kvl_sel *sel)
{
    int32_t pos[N_ALL], group = ctx->shape->n_heads / ctx->shape->n_kv_heads;
    int32_t lists = scope == KVL_SCOPE_Q_HEAD ? ctx->shape->n_heads : ctx->shape->n_kv_heads;
    for (int32_t i = 0; i < lists; i++) {
        int32_t n = random_tokens(step->layer, i, end, from, pos);
        n = only_live(ctx, step->layer, scope == KVL_SCOPE_Q_HEAD ? i / group : i, pos, n);
        KVL_TRY(kvl_sel_tokens(sel, scope, i, pos, n));
    }
    return KVL_OK;
}

static int test_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                       struct kvl_sel *sel)
{
    int32_t unit[MAX_UNITS], n = step->pos + 1, half = n / 2;
    (void)q;
    if (cfg.late) KVL_TRY(kvl_offload_layers(ctx, some_layers));
    for (int32_t h = 0; cfg.scores && cfg.on && h < ctx->shape->n_kv_heads; h++) {
        float score[MAX_UNITS];
        int32_t units = KVL_MAX(n - cfg.o.origin, 0) / cfg.o.unit_tok;
        for (int32_t u = 0; u < units; u++) score[u] = unit_score(step->layer, h, u);
        KVL_TRY(kvl_offload_scores(ctx, step->layer, h, score, units));
    }
    for (int32_t h = 0; cfg.n_ahead && step->layer == cfg.ahead_from && h < ctx->shape->n_kv_heads;
         h++)
        KVL_TRY(kvl_prefetch(ctx, cfg.ahead_to, h, cfg.ahead, cfg.n_ahead));
    if (cfg.script)
        return kvl_sel_pages(sel, KVL_SCOPE_LAYER, 0, cfg.o.unit_tok, unit,
                             cfg.script(step->index, unit));
    switch (cfg.kind) {
    case LAYER_PAGES:
        n = 0;
        for (int32_t p = 0; p <= step->pos / 7; p++)
            if (kvl_seed_mix(cfg.seed, (uint64_t)(step->pos * 64 + p)) % 3 == 0) unit[n++] = p;
        return kvl_sel_pages(sel, KVL_SCOPE_LAYER, 0, 7, unit, n);
    case KV_TOKENS: return sel_random(ctx, step, KVL_SCOPE_KV_HEAD, 0, n, sel);
    case Q_TOKENS: return sel_random(ctx, step, KVL_SCOPE_Q_HEAD, 0, n, sel);
    case SEGMENTS:
        KVL_TRY(sel_random(ctx, step, KVL_SCOPE_Q_HEAD, half, n, sel));
        KVL_TRY(kvl_sel_segment(sel));
        return sel_random(ctx, step, KVL_SCOPE_KV_HEAD, 0, half, sel);
    case CONSTANT:
        KVL_TRY(sel_random(ctx, step, KVL_SCOPE_KV_HEAD, 0, n, sel));
        return kvl_sel_positions(sel, KVL_POS_CONSTANT, 9);
    default: return KVL_OK;
    }
}

static int test_schedule(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    (void)ctx;
    return cfg.kind == DENSE && step->layer < 2 ? KVL_DENSE : KVL_SELECT;
}

/* A random eighth of a lane goes after every step. */
static int test_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    int32_t pos[N_ALL];
    if (!cfg.evicts || step->replay) return KVL_OK;
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++) {
        const int32_t *live;
        int32_t n, m = 0;
        KVL_TRY(kvl_live(ctx, step->layer, h, &live, &n));
        for (int32_t i = 0; i < n; i++)
            if (kvl_seed_mix(cfg.seed, (uint64_t)(step->pos * 4096 + live[i] * 8 + h)) % 8)
                pos[m++] = live[i];
        KVL_TRY(kvl_keep_tokens(keep, h, pos, m));
    }
    return KVL_OK;
}

struct sums {
    double total;
};

static int test_observe(struct kvl_pctx *ctx, const struct kvl_step *step,
                        const float *const *probs, const int32_t *n, const float *lse)
{
    struct sums *s = ctx->state;
    (void)step;
    for (int32_t h = 0; h < ctx->shape->n_heads; h++) {
        for (int32_t i = 0; i < n[h]; i++) s->total += (double)probs[h][i] * (i % 7);
        s->total += (double)lse[h];
    }
    return KVL_OK;
}

static int observing_plan(struct kvl_plan *plan)
{
    plan->state_bytes = sizeof(struct sums);
    return test_plan(plan);
}

static int test_report(struct kvl_pctx *ctx, struct kvl_report *r)
{
    return kvl_report_num(r, "total", ((struct sums *)ctx->state)->total);
}

RIG_POLICY(tiered, .caps = KVL_CAP_SELECTS | KVL_CAP_OFFLOADS, .plan = test_plan,
           .schedule = test_schedule, .select = test_select);
RIG_POLICY(naming, .caps = KVL_CAP_SELECTS | KVL_CAP_OFFLOADS, .plan = naming_plan,
           .prefilled = naming_prefilled, .select = test_select);
RIG_POLICY(shrinking, .caps = KVL_CAP_SELECTS | KVL_CAP_EVICTS | KVL_CAP_OFFLOADS,
           .plan = test_plan, .select = test_select, .evict = test_evict);
RIG_POLICY(observing, .caps = KVL_CAP_SELECTS | KVL_CAP_OFFLOADS, .plan = observing_plan,
           .select = test_select, .observe = test_observe, .report = test_report);
RIG_POLICY(unlicensed, .caps = KVL_CAP_SELECTS, .plan = test_plan, .select = test_select);

/* ---- attention that looks where it reads -------------------------------------------------------- */

enum { MAX_WATCHED = 4 };
static const struct kvl_session *watched[MAX_WATCHED];
static int n_watched;

static int32_t host_first(void)
{
    int32_t inside = KVL_MAX(cfg.o.keep_first - cfg.o.origin, 0);
    return cfg.o.origin + (inside + cfg.o.unit_tok - 1) / cfg.o.unit_tok * cfg.o.unit_tok;
}

static int32_t host_end(int32_t n_pos)
{
    if (cfg.o.context_only) n_pos = KVL_MIN(n_pos, N_CTX);
    int32_t inside = KVL_MAX(n_pos - cfg.o.keep_last - cfg.o.origin, 0);
    return KVL_MAX(cfg.o.origin + inside / cfg.o.unit_tok * cfg.o.unit_tok, host_first());
}

static bool layer_offloads(int32_t layer)
{
    return !cfg.o.layers || cfg.o.layers[layer];
}

static int32_t newest(const struct kvl_seq *seq, int32_t layer, int32_t head)
{
    int32_t pos[N_ALL], n = kvl_seq_len(seq, layer, head), max = -1;
    kvl_seq_positions(seq, layer, head, pos);
    for (int32_t i = 0; i < n; i++) max = KVL_MAX(max, pos[i]);
    return max;
}

/* On a device a block of the store may be read at positions that are there alone.  On the CPU, where both tiers are the same
 * memory, nothing but blocks of the store is read: nothing was copied. */
static void expect_on_device(const struct rig *r, const uint8_t *block, int32_t pos)
{
    const struct kvl_shape *sh = rig_shape(r);
    bool apart = kvl_engine_device(r->engine)->discrete;
    for (int i = 0; i < n_watched; i++)
        for (int32_t l = 0; l < sh->n_layers; l++)
            for (int32_t h = 0; h < sh->n_kv_heads; h++) {
                const struct kvl_seq *seq = kvl_session_seq(watched[i]);
                struct kvl_lane lane = kvl_seq_lane(seq, l, h);
                int32_t shift = lane.layout->block_shift;
                for (int32_t b = 0; b << shift < lane.n_slots; b++) {
                    if (lane.blocks[b] != block) continue;
                    if (!apart) return;
                    if (!layer_offloads(l)) continue;
                    if (pos >= host_first() && pos < host_end(newest(seq, l, h) + 1))
                        fail_msg("attention read position %d of layer %d from the host", pos, l);
                }
            }
    if (!apart && n_watched > 0) fail_msg("attention read a copy of position %d", pos);
}

static const struct rig *watching_rig;
static const struct kvl_ops *watched_ops;

static int watching_attn_decode(const struct kvl_attn_decode_args *a)
{
    for (int32_t j = 0; cfg.on && j < a->n_jobs; j++) {
        const struct kvl_attn_job *job = &a->jobs[j];
        struct kvl_run all = { 0, job->n_slots };
        const struct kvl_run *runs = job->runs ? job->runs : &all;
        int32_t shift = job->lane->layout->block_shift, mask = (1 << shift) - 1;
        for (int32_t i = 0; i < (job->runs ? job->n_runs : 1); i++)
            for (int32_t s = runs[i].slot; s < runs[i].slot + runs[i].n; s++)
                expect_on_device(watching_rig, job->lane->blocks[s >> shift],
                                 kvl_lane_pos(job->lane, s >> shift)[s & mask]);
    }
    return watched_ops->attn_decode(a);
}

/* ---- rig ---------------------------------------------------------------------------------------------- */

static int32_t ids[N_ALL];
static struct kvl_ops watching;

static void open_rig(struct rig *r, enum kvl_kv_type type)
{
    rig_open(r, &(struct rig_desc){ .llama = { .n_layers = 3, .head_dim = 32, .seed = 5 },
                                    .kv_type = type });
    kvl_engine_destroy(r->engine);
    const struct kvl_device *device = rig_device(&(struct rig_desc){ 0 }, &r->err);
    watched_ops = device ? device->ops_now : &kvl_ops_cpu;
    watching = *watched_ops;
    watching.attn_decode = watching_attn_decode;
    watching_rig = r;
    struct kvl_engine_desc desc = {
        .model = r->model, .ops = &watching, .kv_type = type, .raw_keys = true, .device = device
    };
    desc.observers.window = 64;
    RIG_OK(&r->err, kvl_engine_create(&desc, &r->engine, &r->err));
    rig_tokens(ids, N_ALL, 77);
}

static struct rig_session start(struct rig *r, const struct kvl_policy *policy, enum kvl_exec exec)
{
    struct rig_session rs = rig_start(
        r, &(struct rig_run){ .policy = policy, .id = ids, .n_ctx = N_CTX, .exec = exec });
    n_watched = 0;
    watched[n_watched++] = rs.s;
    return rs;
}

static float *run_steps(struct rig *r, const struct kvl_policy *policy, enum kvl_exec exec)
{
    struct rig_session rs = start(r, policy, exec);
    float *logits = rig_logits(r, N_STEPS);
    rig_decode(r, &rs, ids + N_CTX, N_STEPS, logits);
    n_watched = 0;
    rig_end(&rs);
    return logits;
}

static int64_t slot_bytes(const struct rig *r)
{
    const struct kvl_store_desc *d = kvl_store_desc(kvl_engine_store(r->engine));
    return (int64_t)kvl_kv_slot_bytes(d->type, d->head_dim, false);
}

/* ---- the naive model -------------------------------------------------------------------------------- */

struct naive_unit {
    int32_t unit;
    int64_t last, uses;
};

struct naive_lane {
    struct naive_unit in[MAX_UNITS];
    int32_t n;
    int64_t clock;
};

static struct {
    struct naive_lane lane[3][2];
    int64_t hits, misses, slots;
} naive;

static bool goes_first(int32_t layer, int32_t head, const struct naive_unit *a,
                       const struct naive_unit *b)
{
    float x = unit_score(layer, head, a->unit), y = unit_score(layer, head, b->unit);
    if (cfg.o.replace == KVL_REPLACE_LFU && a->uses != b->uses) return a->uses < b->uses;
    if (cfg.o.replace == KVL_REPLACE_SCORE && x != y) return x < y;
    return a->last != b->last ? a->last < b->last : a->unit < b->unit;
}

static void naive_miss(struct naive_lane *a, int32_t layer, int32_t head, int32_t unit)
{
    struct naive_unit new = { unit, a->clock, 1 };
    int32_t victim = -1;
    naive.misses++;
    naive.slots += cfg.o.unit_tok;
    if (a->n < cfg.o.cache_tok / cfg.o.unit_tok) {
        a->in[a->n++] = new;
        return;
    }
    for (int32_t i = 0; i < a->n; i++)
        if (a->in[i].last != a->clock &&
            (victim < 0 || goes_first(layer, head, &a->in[i], &a->in[victim])))
            victim = i;
    if (victim >= 0) a->in[victim] = new;
}

static void naive_request(int32_t layer, int32_t head, const int32_t *unit, int32_t n)
{
    struct naive_lane *a = &naive.lane[layer][head];
    bool have[MAX_UNITS] = { false };
    a->clock++;
    for (int32_t j = 0; j < n; j++)
        for (int32_t i = 0; i < a->n; i++)
            if (a->in[i].unit == unit[j]) {
                have[unit[j]] = true;
                a->in[i].last = a->clock;
                a->in[i].uses++;
                naive.hits++;
            }
    for (int32_t j = 0; j < n; j++)
        if (!have[unit[j]]) naive_miss(a, layer, head, unit[j]);
}

/* What attention read, head by head, is the request. */
static int naive_tap(void *user, const struct kvl_tap_read *t, struct kvl_err *err)
{
    (void)user;
    (void)err;
    for (int32_t h = 0; h < 2 && layer_offloads(t->layer); h++) {
        int32_t unit[MAX_UNITS], n = 0;
        bool named[MAX_UNITS] = { false };
        for (int32_t j = 2 * h; j < 2 * h + 2; j++)
            for (int32_t i = 0; i < t->n_read[j]; i++) {
                int32_t p = t->read[j][i], u = (p - cfg.o.origin) / cfg.o.unit_tok;
                if (p < host_first() || p >= host_end(t->pos + 1) || named[u]) continue;
                named[u] = true;
                unit[n++] = u;
            }
        naive_request(t->layer, h, unit, n);
    }
    return KVL_OK;
}

static void expect_naive(struct rig *r)
{
    struct rig_session rs = start(r, &tiered, KVL_EXEC_REAL);
    const struct kvl_counters *c = kvl_session_counters(rs.s);
    float *logits = rig_logits(r, 1);
    memset(&naive, 0, sizeof naive);
    kvl_session_tap(rs.s, &(struct kvl_tap){ .read = naive_tap });
    for (int32_t i = 0; i < N_STEPS; i++) {
        rig_decode(r, &rs, ids + N_CTX + i, 1, logits);
        assert_int_equal(c->cache_misses, naive.misses);
        assert_int_equal(c->cache_hits, naive.hits);
        assert_int_equal(c->h2d_bytes, naive.slots * slot_bytes(r));
    }
    kvl_free(logits);
    rig_end(&rs);
}

/* ---- tests --------------------------------------------------------------------------------------------- */

static const struct kvl_offload sizes[] = {
    { .keep_first = 0, .keep_last = 1, .unit_tok = 1, .cache_tok = 0 },
    { .keep_first = 3, .keep_last = 20, .unit_tok = 1, .cache_tok = 40 },
    { .keep_first = 5, .keep_last = 17, .unit_tok = 3, .cache_tok = 31 },
    { .keep_first = 4, .keep_last = 9, .unit_tok = 4, .cache_tok = 4 },
    { .keep_first = 0, .keep_last = 30, .unit_tok = 16, .cache_tok = 64 },
    { .keep_first = 33, .keep_last = 33, .unit_tok = 20, .cache_tok = 60 },
    { .keep_first = 16, .keep_last = 16, .unit_tok = 32, .cache_tok = 1 << 20 },
    { .keep_first = 0, .keep_last = 200, .unit_tok = 8, .cache_tok = 16 },
    { .keep_first = 1, .keep_last = 1, .unit_tok = 150, .cache_tok = 150 },
    { .keep_first = 0, .keep_last = 12, .origin = 11, .unit_tok = 8, .cache_tok = 32 },
    { .keep_first = 20, .keep_last = 12, .origin = 5, .unit_tok = 6, .cache_tok = 0 },
    { .keep_last = 1, .origin = 500, .unit_tok = 6, .cache_tok = 12 },
    { .unit_tok = 1, .cache_tok = 40, .context_only = true },
    { .keep_first = 3, .keep_last = 5, .unit_tok = 7, .cache_tok = 21, .context_only = true },
};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

/* An emulated GPU is slow: fewer of them there, and unless KVL_LONG is set each size in one turn alone. */
#ifdef KVL_TEST_CUDA
enum { N_TYPES = 2, KIND_STEP = 3, N_TURNS = 12, MANY = 0 };
#else
enum { N_TYPES = 4, KIND_STEP = 1, N_TURNS = 52, MANY = 1 };
#endif

static bool in_turn(int size, int turn)
{
    return MANY || getenv("KVL_LONG") || size * 5 % N_SIZES % N_TURNS == turn;
}

/* Any size of units and caches, any kind of list: the same bits. */
static void test_answers_do_not_depend_on_it(void **state)
{
    const enum kvl_kv_type types[] = { KVL_KV_BF16, kvl_kv_pair(KVL_KV_Q8_0, KVL_KV_Q4_0_TURNED),
                                       KVL_KV_F16, KVL_KV_F32 };
    int turn = 0;
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        struct rig r;
        open_rig(&r, types[t]);
        for (int k = 0; k < N_KINDS; k += KIND_STEP)
            for (int evicts = 0; evicts < 2; evicts++) {
                const struct kvl_policy *policy = evicts ? &shrinking : &tiered;
                cfg.kind = (enum kind)k;
                cfg.evicts = evicts;
                cfg.seed = (uint64_t)(17 + k);
                cfg.on = false;
                if (evicts && k == LAYER_PAGES) continue; /* names pages of which nothing is left */
                float *want = run_steps(&r, policy, KVL_EXEC_REAL);
                cfg.on = true;
                for (int i = 0; i < N_SIZES; i++) {
                    if (!in_turn(i, turn)) continue;
                    cfg.o = sizes[i];
                    float *got = run_steps(&r, policy, KVL_EXEC_REAL);
                    rig_expect_same(&r, want, got, N_STEPS, "offloaded or not");
                    kvl_free(got);
                }
                turn++;
                kvl_free(want);
            }
        rig_close(&r);
        memset(&cfg, 0, sizeof cfg);
    }
    assert_int_equal(turn, N_TURNS);
}

static void test_cache_is_the_naive_one(void **state)
{
    const enum kind kinds[] = { EVERYTHING, DENSE, LAYER_PAGES, KV_TOKENS, Q_TOKENS };
    struct rig r;
    (void)state;
    if (!MANY) skip();
    open_rig(&r, KVL_KV_F32);
    cfg.on = true;
    for (int k = 0; k < 5; k++)
        for (int i = 0; i < N_SIZES; i++)
            for (int replace = KVL_REPLACE_LRU; replace <= KVL_REPLACE_SCORE; replace++) {
                cfg.kind = kinds[k];
                cfg.seed = (uint64_t)(100 * k + i);
                cfg.o = sizes[i];
                cfg.o.replace = (enum kvl_replace)replace;
                cfg.scores = replace == KVL_REPLACE_SCORE;
                expect_naive(&r);
            }
    memset(&cfg, 0, sizeof cfg);
    rig_close(&r);
}

/* The example of InfLLM's cache: three units, five requests. */
static int32_t lru_script(int32_t index, int32_t *unit)
{
    static const int32_t request[][2] = { { 0, 1 }, { 1, 2 }, { 1, 3 }, { 0, 3 }, { 0, 2 } };
    if (index >= 5) { /* asks for one unit: what is left */
        unit[0] = index - 5;
        return 1;
    }
    unit[0] = request[index][0];
    unit[1] = request[index][1];
    return 2;
}

static void test_lru_golden(void **state)
{
    static const int misses[] = { 2, 1, 1, 1, 1 };
    struct rig r;
    (void)state;
    open_rig(&r, KVL_KV_F32);
    cfg.on = true;
    cfg.script = lru_script;
    cfg.o = (struct kvl_offload){ .keep_last = 60, .unit_tok = 4, .cache_tok = 12 };
    struct rig_session rs = start(&r, &tiered, KVL_EXEC_REAL);
    const struct kvl_counters *c = kvl_session_counters(rs.s);
    float *logits = rig_logits(&r, 4);
    int64_t before = 0;
    for (int i = 0; i < 5; i++) {
        rig_decode(&r, &rs, ids + N_CTX + i, 1, logits);
        assert_int_equal(c->cache_misses - before, 6 * misses[i]);
        assert_int_equal(c->h2d_calls, i * 3 + 3);
        before = c->cache_misses;
    }
    /* 0, 2, 3 are left: of units 0, 1, 2, 3 asked for now, one misses, and 2 is not its victim. */
    static const int more[] = { 0, 1, 1, 1 };
    struct rig_session child = rig_fork(&r, &rs);
    watched[n_watched++] = child.s;
    rig_decode(&r, &child, ids + N_CTX + 5, 2, logits); /* asks for 0, then 1: 2 or 3 leaves */
    assert_int_equal(kvl_session_counters(child.s)->cache_misses - before, 6 * (more[0] + more[1]));
    /* 3 was asked for last at the fourth step: it left for 1. */
    rig_decode(&r, &child, ids + N_CTX + 7, 1, logits); /* 2 */
    assert_int_equal(kvl_session_counters(child.s)->cache_misses - before, 6);
    rig_decode(&r, &child, ids + N_CTX + 8, 1, logits); /* 3 */
    assert_int_equal(kvl_session_counters(child.s)->cache_misses - before, 12);
    n_watched = 0;
    rig_end(&child);
    rig_end(&rs);
    kvl_free(logits);
    memset(&cfg, 0, sizeof cfg);
    rig_close(&r);
}

static int32_t same_script(int32_t index, int32_t *unit)
{
    (void)index;
    for (int32_t i = 0; i < 4; i++) unit[i] = 2 * i + 1;
    return 4;
}

/* The same selection twice misses nothing; with a cache that is too small, all of it, and answers and
 * bytes say so: units x tokens x bytes. */
static void test_bytes_in_closed_form(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r, KVL_KV_F16);
    cfg.on = true;
    cfg.script = same_script;
    for (int32_t fits = 0; fits < 2; fits++) {
        cfg.o = (struct kvl_offload){
            .keep_first = 3, .keep_last = 21, .unit_tok = 5, .cache_tok = fits ? 20 : 0
        };
        struct rig_session rs = start(&r, &tiered, KVL_EXEC_REAL);
        const struct kvl_counters *c = kvl_session_counters(rs.s);
        float *logits = rig_logits(&r, N_STEPS);
        int64_t lanes = 6, unit = 5 * slot_bytes(&r), steps = fits ? 1 : N_STEPS;
        assert_int_equal(c->d2h_bytes, lanes * (125 - 5) * slot_bytes(&r));
        rig_decode(&r, &rs, ids + N_CTX, N_STEPS, logits);
        assert_int_equal(c->h2d_bytes, steps * lanes * 4 * unit);
        assert_int_equal(c->h2d_calls, steps * 3);
        assert_int_equal(c->cache_misses, steps * lanes * 4);
        assert_int_equal(c->cache_hits, (N_STEPS - steps) * lanes * 4);
        /* 164 tokens: units below 140 are on the host. */
        assert_int_equal(c->d2h_bytes, lanes * (140 - 5) * slot_bytes(&r));
        assert_int_equal(c->host_bytes, lanes * (140 - 5) * slot_bytes(&r));
        int64_t resident = lanes * (N_CTX + N_STEPS - 135) * slot_bytes(&r);
        assert_int_equal(c->device_bytes, resident + (fits ? lanes * 4 * unit : 0));
        /* Staged units of one layer at a time; before a unit left, four more tokens were here. */
        assert_in_range(c->device_peak_bytes, resident + (fits ? lanes : 2) * 4 * unit,
                        resident + (fits ? lanes : 2) * 4 * unit + lanes * 4 * slot_bytes(&r));
        kvl_session_reset_counters(rs.s);
        assert_int_equal(c->h2d_bytes, 0);
        assert_int_equal(c->device_bytes, resident + (fits ? lanes * 4 * unit : 0));
        kvl_free(logits);
        rig_end(&rs);
    }
    n_watched = 0;
    memset(&cfg, 0, sizeof cfg);
    rig_close(&r);
}

/* Only named layers are offloaded, by the plan or later. */
static void expect_one_layer(const struct kvl_policy *policy)
{
    struct rig r;
    open_rig(&r, KVL_KV_F32);
    cfg.on = true;
    cfg.o = (struct kvl_offload){ .layers = some_layers, .keep_last = 10, .unit_tok = 10 };
    struct rig_session rs = start(&r, policy, KVL_EXEC_REAL);
    const struct kvl_counters *c = kvl_session_counters(rs.s);
    float *logits = rig_logits(&r, 1);
    rig_decode(&r, &rs, ids + N_CTX, 1, logits);
    assert_int_equal(c->h2d_bytes, 2 * 140 * slot_bytes(&r));
    assert_int_equal(c->host_bytes, 2 * 140 * slot_bytes(&r));
    assert_int_equal(c->h2d_calls, 1);
    kvl_free(logits);
    rig_end(&rs);
    n_watched = 0;
    memset(&cfg, 0, sizeof cfg);
    rig_close(&r);
}

static void test_layers(void **state)
{
    (void)state;
    expect_one_layer(&tiered);
    expect_one_layer(&naming);
}

/* Fetched ahead of the second layer: units 2 and 3, of which the script names 3, and on the device. */
static void test_prefetch(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r, KVL_KV_F32);
    cfg.on = true;
    cfg.script = same_script;
    cfg.ahead[0] = 10;
    cfg.ahead[1] = 15;
    cfg.ahead[2] = 19;
    cfg.ahead[3] = N_CTX - 1;
    cfg.n_ahead = 4;
    cfg.ahead_to = 1;
    cfg.o = (struct kvl_offload){ .keep_last = 21, .unit_tok = 5 };
    for (cfg.o.cache_tok = 0; cfg.o.cache_tok <= 40; cfg.o.cache_tok += 40) {
        int64_t unit = 5 * slot_bytes(&r), first = cfg.o.cache_tok ? 1 : 2;
        struct rig_session rs = start(&r, &tiered, KVL_EXEC_REAL);
        const struct kvl_counters *c = kvl_session_counters(rs.s);
        float *logits = rig_logits(&r, 2);
        rig_decode(&r, &rs, ids + N_CTX, 1, logits);
        assert_int_equal(c->prefetch_bytes, 2 * 2 * unit);
        assert_int_equal(c->prefetch_wrong_bytes, 2 * unit);
        assert_int_equal(c->cache_misses, 2 * 11);
        assert_int_equal(c->cache_hits, 2);
        assert_int_equal(c->h2d_bytes, 2 * 13 * unit);
        assert_int_equal(c->h2d_calls, 4);
        rig_decode(&r, &rs, ids + N_CTX + 1, 1, logits);
        /* What stayed in a cache is not fetched again, right or wrong. */
        assert_int_equal(c->prefetch_bytes, first * 2 * 2 * unit);
        assert_int_equal(c->prefetch_wrong_bytes, first * 2 * unit);
        assert_int_equal(c->h2d_bytes, first * 2 * 13 * unit);
        kvl_free(logits);
        rig_end(&rs);
    }
    n_watched = 0;
    memset(&cfg, 0, sizeof cfg);
    rig_close(&r);
}

/* The counts that do not depend on time, the first of them n_tokens. */
static void expect_same_counts(const struct rig_session *a, const struct rig_session *b)
{
    struct kvl_counters x = *kvl_session_counters(a->s), y = *kvl_session_counters(b->s);
    assert_int_equal(x.h2d_bytes, y.h2d_bytes);
    assert_int_equal(x.h2d_calls, y.h2d_calls);
    assert_int_equal(x.d2h_bytes, y.d2h_bytes);
    assert_int_equal(x.cache_hits, y.cache_hits);
    assert_int_equal(x.cache_misses, y.cache_misses);
    assert_int_equal(x.device_bytes, y.device_bytes);
    assert_int_equal(x.host_bytes, y.host_bytes);
    assert_true(x.cache_misses > 0);
}

/* A fork has a cache of its own that begins as its parent's: it goes on as if alone, and so do the
 * others of its batch. */
static void expect_forks_alone(enum kvl_replace replace)
{
    struct rig r;
    open_rig(&r, KVL_KV_F32);
    size_t n_vocab = (size_t)rig_shape(&r)->n_vocab;
    cfg.on = true;
    cfg.kind = Q_TOKENS;
    cfg.o = sizes[2];
    cfg.o.replace = replace;
    cfg.scores = replace == KVL_REPLACE_SCORE;
    float *alone = rig_logits(&r, N_STEPS), *both = rig_logits(&r, 4);
    struct rig_session a = start(&r, &tiered, KVL_EXEC_REAL);
    rig_decode(&r, &a, ids + N_CTX, N_STEPS, alone);
    struct rig_session b = start(&r, &tiered, KVL_EXEC_REAL);
    rig_decode(&r, &b, ids + N_CTX, 4, both);
    struct rig_session c = rig_fork(&r, &b), d = rig_fork(&r, &b);
    watched[1] = c.s;
    watched[2] = d.s;
    n_watched = 3;
    for (int32_t i = 4; i < N_STEPS; i++) {
        struct kvl_session *batch[] = { c.s, d.s };
        int32_t id[] = { ids[N_CTX + i], ids[i] };
        RIG_OK(&r.err, kvl_session_decode(batch, 2, id, both, &r.err));
        rig_expect_same(&r, alone + (size_t)i * n_vocab, both, 1, "in a batch or alone");
    }
    expect_same_counts(&a, &c);
    n_watched = 0;
    rig_end(&d);
    rig_end(&c);
    rig_end(&b);
    rig_end(&a);
    kvl_free(alone);
    kvl_free(both);
    memset(&cfg, 0, sizeof cfg);
    rig_close(&r);
}

static void test_forks_and_batches(void **state)
{
    (void)state;
    for (int replace = KVL_REPLACE_LRU; replace <= KVL_REPLACE_SCORE; replace++)
        expect_forks_alone((enum kvl_replace)replace);
}

/* A block of tokens is as many steps. */
static void test_blocks_are_steps(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r, KVL_KV_F32);
    cfg.on = true;
    cfg.kind = KV_TOKENS;
    cfg.o = sizes[4];
    float *one = rig_logits(&r, 1), *all = rig_logits(&r, 1);
    struct rig_session a = start(&r, &tiered, KVL_EXEC_REAL);
    for (int32_t i = 0; i < N_STEPS; i++)
        RIG_OK(&r.err, kvl_session_extend(a.s, ids + N_CTX + i, 1, &r.err));
    rig_decode(&r, &a, ids, 1, one);
    struct rig_session b = start(&r, &tiered, KVL_EXEC_REAL);
    RIG_OK(&r.err, kvl_session_extend(b.s, ids + N_CTX, N_STEPS, &r.err));
    rig_decode(&r, &b, ids, 1, all);
    rig_expect_same(&r, one, all, 1, "a block and steps");
    expect_same_counts(&a, &b);
    n_watched = 0;
    rig_end(&b);
    rig_end(&a);
    kvl_free(one);
    kvl_free(all);
    memset(&cfg, 0, sizeof cfg);
    rig_close(&r);
}

/* What the last tokens of a block guess for a layer behind does not make its tokens old before they are
 * there. */
static void test_guesses_of_a_block(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r, KVL_KV_F32);
    cfg.on = true;
    cfg.kind = EVERYTHING;
    cfg.ahead[0] = 3;
    cfg.n_ahead = 1;
    cfg.ahead_to = 1;
    cfg.o = (struct kvl_offload){ .keep_last = 1, .unit_tok = 4, .cache_tok = 400 };
    float *one = rig_logits(&r, 1), *all = rig_logits(&r, 1);
    struct rig_session a = start(&r, &tiered, KVL_EXEC_REAL);
    for (int32_t i = 0; i < N_STEPS; i++)
        RIG_OK(&r.err, kvl_session_extend(a.s, ids + N_CTX + i, 1, &r.err));
    rig_decode(&r, &a, ids, 1, one);
    struct rig_session b = start(&r, &tiered, KVL_EXEC_REAL);
    RIG_OK(&r.err, kvl_session_extend(b.s, ids + N_CTX, N_STEPS, &r.err));
    rig_decode(&r, &b, ids, 1, all);
    rig_expect_same(&r, one, all, 1, "a block and steps");
    assert_int_equal(kvl_session_counters(a.s)->d2h_bytes, kvl_session_counters(b.s)->d2h_bytes);
    assert_int_equal(kvl_session_counters(a.s)->cache_misses,
                     kvl_session_counters(b.s)->cache_misses);
    n_watched = 0;
    rig_end(&b);
    rig_end(&a);
    kvl_free(one);
    kvl_free(all);
    memset(&cfg, 0, sizeof cfg);
    rig_close(&r);
}

/* A guess at the next step waits in staging while its session is forked: both have it. */
static void test_guess_waits_in_a_fork(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r, KVL_KV_F32);
    size_t n_vocab = (size_t)rig_shape(&r)->n_vocab;
    cfg.on = true;
    cfg.kind = KV_TOKENS;
    cfg.ahead[0] = 3;
    cfg.ahead[1] = 40;
    cfg.n_ahead = 2;
    cfg.ahead_from = 2;
    cfg.ahead_to = 0;
    cfg.o = (struct kvl_offload){ .keep_last = 20, .unit_tok = 4 };
    float *alone = rig_logits(&r, 6), *fork = rig_logits(&r, 3);
    struct rig_session a = start(&r, &tiered, KVL_EXEC_REAL);
    rig_decode(&r, &a, ids + N_CTX, 6, alone);
    struct rig_session b = start(&r, &tiered, KVL_EXEC_REAL);
    rig_decode(&r, &b, ids + N_CTX, 3, fork);
    struct rig_session c = rig_fork(&r, &b);
    watched[0] = c.s;
    rig_decode(&r, &c, ids + N_CTX + 3, 3, fork);
    rig_expect_same(&r, alone + 3 * n_vocab, fork, 3, "a fork");
    expect_same_counts(&a, &c);
    watched[0] = b.s;
    rig_decode(&r, &b, ids + N_CTX + 3, 3, fork);
    rig_expect_same(&r, alone + 3 * n_vocab, fork, 3, "its parent");
    n_watched = 0;
    rig_end(&c);
    rig_end(&b);
    rig_end(&a);
    kvl_free(alone);
    kvl_free(fork);
    memset(&cfg, 0, sizeof cfg);
    rig_close(&r);
}

static void collect(void *user, const char *name, double value)
{
    (void)name;
    *(double *)user = value;
}

static double observed_total(struct rig *r)
{
    double total = -1;
    struct rig_session rs = start(r, &observing, KVL_EXEC_REAL);
    float *logits = rig_logits(r, N_STEPS);
    rig_decode(r, &rs, ids + N_CTX, N_STEPS, logits);
    RIG_OK(&r->err, kvl_session_report(
                        rs.s, &(struct kvl_report_to){ .user = &total, .num = collect }, &r->err));
    kvl_free(logits);
    n_watched = 0;
    rig_end(&rs);
    return total;
}

static void test_observed_weights_are_the_same(void **state)
{
    const enum kind kinds[] = { EVERYTHING, KV_TOKENS, SEGMENTS };
    struct rig r;
    (void)state;
    open_rig(&r, KVL_KV_F32);
    for (int k = 0; k < 3; k++) {
        cfg.kind = kinds[k];
        cfg.on = false;
        double want = observed_total(&r);
        cfg.on = true;
        cfg.o = sizes[2];
        assert_true(observed_total(&r) == want);
    }
    memset(&cfg, 0, sizeof cfg);
    rig_close(&r);
}

static void test_masked_has_no_tiers(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r, KVL_KV_F32);
    cfg.on = true;
    cfg.kind = Q_TOKENS;
    cfg.o = sizes[1];
    cfg.ahead[0] = 3;
    cfg.n_ahead = 1;
    cfg.ahead_to = 1;
    float *real = run_steps(&r, &tiered, KVL_EXEC_REAL);
    float *masked = run_steps(&r, &tiered, KVL_EXEC_MASKED);
    rig_expect_near(&r, real, masked, N_STEPS, 1e-4, "masked");
    kvl_free(real);
    kvl_free(masked);
    memset(&cfg, 0, sizeof cfg);
    rig_close(&r);
}

/* ---- refusals ------------------------------------------------------------------------------------------- */

static void expect_refused(struct rig *r, const struct kvl_policy *policy, const char *what)
{
    struct kvl_planned *p = NULL;
    struct kvl_err err = { 0 };
    int rc = kvl_planned_create(policy, rig_shape(r), NULL, 0, N_CTX, &p, &err);
    assert_int_equal(rc, KVL_EPOLICY);
    if (!strstr(err.msg, what)) fail_msg("\"%s\", want \"%s\" in it", err.msg, what);
}

static void test_wrong_plans_are_refused(void **state)
{
    static const struct {
        struct kvl_offload o;
        const char *what;
    } wrong[] = {
        { { .keep_first = -1, .keep_last = 1, .unit_tok = 1 }, "first -1" },
        { { .keep_last = 0, .unit_tok = 1 }, "last 0" },
        { { .keep_last = -1, .unit_tok = 1, .context_only = true }, "last -1" },
        { { .keep_last = 1, .unit_tok = 0 }, "units of 0" },
        { { .keep_last = 1, .origin = -5, .unit_tok = 1 }, "position -5" },
        { { .keep_last = 1, .unit_tok = 8, .cache_tok = -1 }, "cache of -1" },
        { { .keep_last = 1, .unit_tok = 8, .cache_tok = 7 }, "holds no unit of 8" },
        { { .keep_last = 1, .unit_tok = 8, .replace = (enum kvl_replace)3 }, "replacement 3" },
    };
    struct rig r;
    (void)state;
    open_rig(&r, KVL_KV_F32);
    cfg.on = true;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        cfg.o = wrong[i].o;
        expect_refused(&r, &tiered, wrong[i].what);
    }
    cfg.o = sizes[0];
    expect_refused(&r, &unlicensed, "without KVL_CAP_OFFLOADS");
    memset(&cfg, 0, sizeof cfg);
    rig_close(&r);
}

static void expect_step_refused(struct rig *r, const char *what)
{
    struct kvl_err err = { 0 };
    struct rig_session rs = start(r, &tiered, KVL_EXEC_REAL);
    float *logits = rig_logits(r, 1);
    assert_int_equal(kvl_session_decode(&rs.s, 1, &ids[N_CTX], logits, &err), KVL_EPOLICY);
    if (!strstr(err.msg, what)) fail_msg("\"%s\", want \"%s\" in it", err.msg, what);
    kvl_free(logits);
    n_watched = 0;
    rig_end(&rs);
}

static void test_wrong_calls_are_refused(void **state)
{
    struct rig r;
    (void)state;
    open_rig(&r, KVL_KV_F32);
    cfg.on = true;
    cfg.kind = KV_TOKENS;
    cfg.o = sizes[1];
    cfg.n_ahead = 1;
    cfg.ahead[0] = N_CTX + 1;
    expect_step_refused(&r, "position 151 fetched ahead, want 0 to 150");
    cfg.n_ahead = 0;
    cfg.scores = true; /* of a cache without scores */
    expect_step_refused(&r, "no replacement by score");
    cfg.scores = false;
    cfg.late = true;
    expect_step_refused(&r, "after the context");
    memset(&cfg, 0, sizeof cfg);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_do_not_depend_on_it),
        cmocka_unit_test(test_cache_is_the_naive_one),
        cmocka_unit_test(test_lru_golden),
        cmocka_unit_test(test_bytes_in_closed_form),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_prefetch),
        cmocka_unit_test(test_forks_and_batches),
        cmocka_unit_test(test_blocks_are_steps),
        cmocka_unit_test(test_guesses_of_a_block),
        cmocka_unit_test(test_guess_waits_in_a_fork),
        cmocka_unit_test(test_observed_weights_are_the_same),
        cmocka_unit_test(test_masked_has_no_tiers),
        cmocka_unit_test(test_wrong_plans_are_refused),
        cmocka_unit_test(test_wrong_calls_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
