/* Decoding on a GPU without its host: how often a token waits, and that hooks which run ahead of the device
 * (KVL_CAP_ASYNC) answer, count and refuse what they do when they are waited for.  Exit status 77: there is
 * no GPU here.
 *
 * Everything is small for the GPU that tests/ops/cuda_host plays. */
#include "conformance/rig.h"
#include "policy_spec.h"
#include "registry.h"

#ifdef KVL_TEST_CUDA
#include "cuda_host_control.h"
#endif

enum { MAX_TOK = 160, N_WARM = 4 };

/* The emulated GPU, which is slow, looks at the costs of one policy of so many, with KVL_LONG of all. */
#ifdef KVL_TEST_CUDA
enum { SHARE = 3 };
#else
enum { SHARE = 1 };
#endif

static struct kvl_registry *registry;

static const struct kvl_policy *policy_named(const char *name)
{
    struct kvl_err err = { 0 };
    const struct kvl_policy *p = NULL;
    RIG_OK(&err, kvl_registry_find_policy(registry, name, &p, &err));
    return p;
}

/* ---- a policy that says its lists in every way --------------------------------------- */

/* By random scores of tokens or pages. */
enum toy_way {
    TOY_TOKENS,       /* of the positions before the current one */
    TOY_TOKENS_EARLY, /* of the first half */
    TOY_TOKENS_WITH,  /* the current one competes */
    TOY_TOKENS_ALL,   /* as many as there are */
    TOY_TOKENS_NONE,  /* none */
    TOY_PAGES,        /* the newest one forced */
    TOY_PAGES_TWO,    /* one and the newest */
    TOY_PAGES_ALL,
    TOY_PAGES_FREE, /* the newest one competes */
    TOY_LAYER,      /* one list of tokens */
    TOY_LAYER_PAGES,
    TOY_Q_HEAD,
    TOY_SHARED,   /* with the layer behind */
    TOY_SEGMENTS, /* and a range in another segment */
    TOY_WEIGHTED, /* log-weights, which the host reads */
    TOY_LISTS,    /* operators' indices, given as lists */
    TOY_EVICTED,  /* over lanes that have lost tokens */
    TOY_KEEPS,    /* evicts: tokens of one lane by name, of the other by scores */
    TOY_LOOKS,    /* at two arrays, one behind the other */
    TOY_NAN,
    TOY_NAN_LATE, /* in the second one */
    TOY_LIAR,     /* looks at scores without waiting */
};

static const char *const toy_names[] = { "tokens",      "tokens_early", "tokens_with", "tokens_all",
                                         "tokens_none", "pages",        "pages_two",   "pages_all",
                                         "pages_free",  "layer",        "layer_pages", "q_head",
                                         "shared",      "segments",     "weighted",    "lists",
                                         "evicted",     "keeps",        "looks",       "nan",
                                         "nan_late",    "liar",         NULL };

struct toy_opts {
    int32_t way, at, layer;
};

static const struct kvl_opt toy_options[] = {
    { .name = "way",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct toy_opts, way),
      .def = "tokens",
      .choices = toy_names,
      .help = "how lists are given" },
    { .name = "at",
      .type = KVL_OPT_INT,
      .off = offsetof(struct toy_opts, at),
      .def = "0",
      .min = 0,
      .max = MAX_TOK,
      .help = "position of a NaN" },
    { .name = "layer",
      .type = KVL_OPT_INT,
      .off = offsetof(struct toy_opts, layer),
      .def = "0",
      .min = 0,
      .max = MAX_TOK,
      .help = "layer of a NaN; those before give lists" },
    { 0 },
};

enum { TOY_PAGE = 8, TOY_K = 5 };

static int toy_plan(struct kvl_plan *plan)
{
    plan->replay = KVL_REPLAY_NONE;
    return KVL_OK;
}

/* [n_lists][n] */
static float *toy_scores(struct kvl_pctx *ctx, const struct kvl_step *step, int32_t n_lists,
                         int32_t n)
{
    size_t all = (size_t)n_lists * (size_t)n;
    float *score;
    if (kvl_scratch_get(ctx, all, &score) != KVL_OK) return NULL;
    struct kvl_random_fill_args fill = {
        .y = score, .n = all, .seed = kvl_seed_mix((uint64_t)step->layer, (uint64_t)step->pos)
    };
    return ctx->ops->random_fill(&fill) == KVL_OK ? score : NULL;
}

static int toy_tokens(struct kvl_pctx *ctx, const struct kvl_step *step, enum kvl_scope scope,
                      int32_t n, int32_t k, struct kvl_sel *sel)
{
    int32_t lists = scope == KVL_SCOPE_LAYER     ? 1
                    : scope == KVL_SCOPE_KV_HEAD ? ctx->shape->n_kv_heads
                                                 : ctx->shape->n_heads;
    float *score = toy_scores(ctx, step, lists, n);
    if (!score) return KVL_ENOMEM;
    return kvl_sel_top_tokens(sel, scope, score, n, k);
}

static int toy_pages(struct kvl_pctx *ctx, const struct kvl_step *step, enum kvl_scope scope,
                     int32_t k, bool last, struct kvl_sel *sel)
{
    int32_t n = step->pos / TOY_PAGE + 1;
    float *score = toy_scores(ctx, step, scope == KVL_SCOPE_LAYER ? 1 : ctx->shape->n_kv_heads, n);
    if (!score) return KVL_ENOMEM;
    return kvl_sel_top_pages(sel, scope, score, n, KVL_MIN(k, n), TOY_PAGE, last);
}

/* What a policy does that names lists itself; it may give what an operator wrote to a builder. */
static int toy_lists(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_sel *sel)
{
    int32_t lists = ctx->shape->n_kv_heads;
    float *score = toy_scores(ctx, step, lists, step->pos);
    int32_t *index;
    if (!score) return KVL_ENOMEM;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)lists * TOY_K, &index));
    KVL_TRY(ctx->ops->topk(&(struct kvl_topk_args){ .index = index,
                                                    .x = score,
                                                    .x_stride = (size_t)step->pos,
                                                    .n_rows = lists,
                                                    .n = step->pos,
                                                    .k = TOY_K }));
    for (int32_t h = 0; h < lists; h++)
        KVL_TRY(kvl_sel_tokens(sel, KVL_SCOPE_KV_HEAD, h, index + h * TOY_K, TOY_K));
    return KVL_OK;
}

/* The best of n scores, brought to the host. */
static int toy_best(struct kvl_pctx *ctx, const float *score, int32_t n, int32_t *index)
{
    KVL_TRY(ctx->ops->topk(&(struct kvl_topk_args){
        .index = index, .x = score, .x_stride = (size_t)n, .n_rows = 1, .n = n, .k = TOY_K }));
    return kvl_look_at(ctx, index, TOY_K, sizeof *index);
}

/* What two lists name. */
static int toy_looks(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_sel *sel)
{
    const struct toy_opts *o = ctx->opts;
    float *score = toy_scores(ctx, step, 2, step->pos), nan = NAN;
    bool late = o->way == TOY_NAN_LATE && step->pos == o->at && step->layer == o->layer;
    int32_t *index, *named, n = 0;
    if (!score) return KVL_ENOMEM;
    KVL_TRY(kvl_scratch_get(ctx, 2 * TOY_K, &index));
    KVL_TRY(kvl_scratch_get(ctx, 2 * TOY_K, &named));
    KVL_TRY(toy_best(ctx, score, step->pos, index));
    score += step->pos;
    if (late) KVL_TRY(ctx->ops->add(&(struct kvl_add_args){ .y = score + 3, .x = &nan, .n = 1 }));
    KVL_TRY(toy_best(ctx, score, step->pos, index + TOY_K));
    if (late) return kvl_fail(ctx->err, KVL_EPOLICY, "a NaN was not told");
    for (int32_t a = 0, b = 0; a < TOY_K || b < TOY_K; n++) {
        int32_t x = a < TOY_K ? index[a] : INT32_MAX, y = b < TOY_K ? index[TOY_K + b] : INT32_MAX;
        named[n] = KVL_MIN(x, y);
        a += x <= y;
        b += y <= x;
    }
    return kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, named, n);
}

static int toy_weighted(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_sel *sel)
{
    const float weight[TOY_K] = { 0.5f, -0.25f, 1.0f, 0.0f, -1.0f };
    KVL_TRY(toy_tokens(ctx, step, KVL_SCOPE_KV_HEAD, step->pos, TOY_K, sel));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++)
        KVL_TRY(kvl_sel_log_weights(sel, KVL_SCOPE_KV_HEAD, h, weight, TOY_K));
    return KVL_OK;
}

/* Early tokens by score, late ones by range. */
static int toy_segments(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_sel *sel)
{
    KVL_TRY(toy_tokens(ctx, step, KVL_SCOPE_KV_HEAD, step->pos / 2, TOY_K, sel));
    KVL_TRY(kvl_sel_segment(sel));
    return kvl_sel_range(sel, KVL_SCOPE_LAYER, 0, step->pos - 3, step->pos + 1);
}

static int toy_nan(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_sel *sel)
{
    const struct toy_opts *o = ctx->opts;
    if (step->layer < o->layer) return toy_lists(ctx, step, sel);
    float *score = toy_scores(ctx, step, 1, step->pos), nan = NAN;
    if (!score) return KVL_ENOMEM;
    if (step->pos == o->at && step->layer == o->layer)
        KVL_TRY(ctx->ops->add(&(struct kvl_add_args){ .y = score + 3, .x = &nan, .n = 1 }));
    return kvl_sel_top_tokens(sel, KVL_SCOPE_LAYER, score, step->pos, TOY_K);
}

/* The largest score, found by the host. */
static int toy_liar(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_sel *sel)
{
    float *score = toy_scores(ctx, step, 1, step->pos);
    int32_t best = 0;
    if (!score) return KVL_ENOMEM;
    for (int32_t i = 1; i < step->pos; i++)
        if (score[i] > score[best]) best = i;
    return kvl_sel_tokens(sel, KVL_SCOPE_LAYER, 0, &best, 1);
}

static int toy_select(struct kvl_pctx *ctx, const struct kvl_step *step, const struct kvl_query *q,
                      struct kvl_sel *sel)
{
    const struct toy_opts *o = ctx->opts;
    const enum kvl_scope layer = KVL_SCOPE_LAYER, head = KVL_SCOPE_KV_HEAD;
    int32_t n = step->pos;
    (void)q;
    switch ((enum toy_way)o->way) {
    case TOY_TOKENS: return toy_tokens(ctx, step, head, n, TOY_K, sel);
    case TOY_TOKENS_EARLY: return toy_tokens(ctx, step, head, n / 2, TOY_K, sel);
    case TOY_TOKENS_WITH: return toy_tokens(ctx, step, head, n + 1, TOY_K, sel);
    case TOY_TOKENS_ALL: return toy_tokens(ctx, step, head, n, n, sel);
    case TOY_TOKENS_NONE: return toy_tokens(ctx, step, head, n, 0, sel);
    case TOY_PAGES: return toy_pages(ctx, step, head, TOY_K, true, sel);
    case TOY_PAGES_TWO: return toy_pages(ctx, step, head, 2, true, sel);
    case TOY_PAGES_ALL: return toy_pages(ctx, step, head, n, true, sel);
    case TOY_PAGES_FREE: return toy_pages(ctx, step, head, TOY_K, false, sel);
    case TOY_LAYER: return toy_tokens(ctx, step, layer, n, TOY_K, sel);
    case TOY_LAYER_PAGES: return toy_pages(ctx, step, layer, TOY_K, true, sel);
    case TOY_Q_HEAD: return toy_tokens(ctx, step, KVL_SCOPE_Q_HEAD, n, TOY_K, sel);
    case TOY_SHARED:
        KVL_TRY(toy_tokens(ctx, step, head, n, TOY_K, sel));
        return kvl_sel_share(sel, KVL_MIN(step->layer + 1, ctx->shape->n_layers - 1), 2);
    case TOY_SEGMENTS: return toy_segments(ctx, step, sel);
    case TOY_WEIGHTED: return toy_weighted(ctx, step, sel);
    case TOY_LISTS: return toy_lists(ctx, step, sel);
    case TOY_EVICTED: return toy_pages(ctx, step, head, TOY_K, true, sel);
    case TOY_KEEPS: return KVL_OK;
    case TOY_LOOKS:
    case TOY_NAN_LATE: return toy_looks(ctx, step, sel);
    case TOY_NAN: return toy_nan(ctx, step, sel);
    default: return toy_liar(ctx, step, sel);
    }
}

/* Every other token of lane 0, others in the next layer, the best 20 of lane 1 and the newest. */
static int toy_keeps(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    const int32_t *live;
    int32_t n, m = 0;
    for (int32_t h = 0; h < 2; h++) {
        KVL_TRY(kvl_live(ctx, step->layer, h, &live, &n));
        if (n < 22) continue;
        float *score = toy_scores(ctx, step, 1, n);
        int32_t *pos;
        if (!score) return KVL_ENOMEM;
        KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &pos));
        for (int32_t i = step->layer % 2; h == 0 && i < n; i += 2) pos[m++] = live[i];
        if (h == 0) KVL_TRY(kvl_keep_tokens(keep, h, pos, m));
        if (h == 1) KVL_TRY(kvl_keep_top(keep, h, score, n - 1, 20));
        KVL_TRY(kvl_keep_range(keep, h, step->pos, step->pos + 1));
    }
    return KVL_OK;
}

static int toy_evict(struct kvl_pctx *ctx, const struct kvl_step *step, struct kvl_keep *keep)
{
    const struct toy_opts *o = ctx->opts;
    int32_t end = step->pos + step->n_tok;
    if (o->way == TOY_KEEPS)
        return step->n_tok > 1 || step->replay ? KVL_OK : toy_keeps(ctx, step, keep);
    if (o->way != TOY_EVICTED || end < 40) return KVL_OK;
    KVL_TRY(kvl_keep_range(keep, 0, 0, 11));
    return kvl_keep_range(keep, 0, 14, end);
}

static const struct kvl_policy toy = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "toy",
    .title = "t",
    .paper = "p",
    .help = "h",
    .version = 1,
    .caps = KVL_CAP_SELECTS | KVL_CAP_EVICTS | KVL_CAP_ASYNC,
    .opts = toy_options,
    .opts_size = sizeof(struct toy_opts),
    .plan = toy_plan,
    .select = toy_select,
    .evict = toy_evict,
};

/* ---- what a token costs beside its work ------------------------------------------------ */

/* Waits, kernels, bytes that cross to and from the device. */
enum { COST_WAITS, COST_LAUNCHES, COST_UP, COST_DOWN, COSTS };

static const char *const cost_names[COSTS] = { "waits", "kernels", "bytes to the device",
                                               "bytes from the device" };

static void cost_now(const struct rig *r, int64_t out[COSTS])
{
    struct kvl_device_traffic t;
    kvl_engine_device(r->engine)->traffic(&t);
    out[COST_WAITS] = t.n_syncs;
    out[COST_LAUNCHES] = t.n_launches;
    out[COST_UP] = t.h2d_bytes;
    out[COST_DOWN] = t.d2h_bytes;
}

/* No memory moves by itself: what both sides touch is there twice, and copies are given. */
static void check_managed(void)
{
#ifdef KVL_TEST_CUDA
    struct kvl_emu_counts c;
    kvl_emu_counts(&c);
    assert_int_equal(c.managed_bytes, 0);
#endif
}

static int compare_int64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Of a token: the middle one of n, since workspace that grows costs too. */
static void cost_of(struct rig *r, const struct rig_run *run, int n, int64_t out[COSTS])
{
    enum { MOST = 5 };
    int64_t cost[COSTS][MOST], before[COSTS], after[COSTS];
    float *logits = rig_logits(r, N_WARM);
    struct rig_session rs = rig_start(r, run);
    const int32_t *id = run->id + run->n_ctx;
    rig_decode(r, &rs, id, N_WARM, logits);
    assert_in_range(n, 1, MOST);
    for (int i = 0; i < n; i++) {
        cost_now(r, before);
        rig_decode(r, &rs, id + N_WARM + i, 1, logits);
        cost_now(r, after);
        for (int c = 0; c < COSTS; c++) cost[c][i] = after[c] - before[c];
    }
    check_managed();
    for (int c = 0; c < COSTS; c++) {
        qsort(cost[c], (size_t)n, sizeof **cost, compare_int64);
        out[c] = cost[c][n / 2];
    }
    kvl_free(logits);
    rig_end(&rs);
}

static int waits_of(struct rig *r, const struct rig_run *run)
{
    int64_t cost[COSTS];
    cost_of(r, run, 3, cost);
    return (int)cost[COST_WAITS];
}

static const struct rig_desc waits_desc = { .llama = { .n_layers = 6, .seed = 4 },
                                            .kv_type = KVL_KV_F16,
                                            .device = "cuda" };

/* Waits are what they are, the others at most. */
static void test_costs(void **state)
{
    (void)state;
    static const struct {
        const char *name, *options;
        int64_t most[COSTS];
    } want[] = {
        /* waits, kernels, bytes up (ids, lists, tables of new blocks), bytes down (logits, marks) */
        { "full", "", { 1, 63, 392, 1036 } },
        { "snapkv", "", { 1, 63, 392, 1036 } },
        { "knorm", "", { 1, 63, 392, 1036 } },
        { "adakv(snapkv)", "", { 1, 63, 392, 1036 } },
        { "expected_attention", "", { 1, 63, 392, 1036 } },
        { "keydiff", "", { 1, 63, 392, 1036 } },
        { "lagkv", "", { 1, 63, 392, 1036 } },
        { "chunkkv", "", { 1, 63, 392, 1036 } },
        { "pyramidkv", "", { 1, 63, 392, 1036 } },
        { "kvzip", "", { 1, 63, 392, 1036 } },
        { "duo_attention", "", { 1, 75, 744, 1036 } },
        { "streaming_llm", "", { 1, 75, 2744, 1036 } },
        { "streaming_llm", "positions=original", { 1, 75, 776, 1036 } },
        { "context_shift", "", { 1, 63, 1592, 1036 } },
        { "self_extend", "group_size=4,window_size=16", { 1, 69, 4616, 1036 } },
        { "quest", "page=4", { 1, 78, 392, 1036 } },
        { "quest", "page=4,reduce=mean_q,dense_layers=0", { 1, 81, 392, 1036 } },
        { "oracle", "", { 1, 93, 392, 1036 } },
        { "oracle", "scope=layer", { 1, 93, 392, 1036 } },
        { "random", "", { 1, 75, 392, 1036 } },
        { "random", "mode=evict", { 1, 63, 392, 1036 } },
        /* What both choose of a layer comes down, and what moves goes up. */
        { "h2o", "", { 1, 90, 2888, 1756 } },
        { "tova", "", { 1, 96, 3504, 1780 } },
        /* Hooks that look: what they look at comes down, what they write goes up.  Two waits a layer are 13; above that are
         * pqcache and shadowkv (once in the token), magicpig, sparq, and infllm with its blocks on the host. */
        { "brute_offload", "", { 1, 63, 584, 1036 } },
        { "fastgen", "", { 9, 83, 7012, 4876 } },
        { "h2o_sim", "", { 13, 81, 2784, 6412 } },
        { "infinigen", "", { 12, 169, 56676, 2596 } },
        { "infllm", "", { 13, 117, 1696, 12604 } },
        { "ktransformers", "", { 13, 105, 1752, 2188 } },
        { "magicpig", "", { 16, 204, 14800, 51084 } },
        { "pqcache", "", { 14, 171, 22960, 2188 } },
        { "retroinfer", "", { 13, 123, 1520, 12172 } },
        { "rocketkv", "", { 7, 117, 12536, 2572 } },
        { "shadowkv", "", { 14, 171, 39496, 11148 } },
        { "sparq", "", { 49, 99, 14792, 21388 } },
        { "twilight", "", { 11, 143, 3424, 2636 } },
        { "vattention", "", { 7, 93, 3572, 11020 } },
        { "omnikv", "filter_layers=1,num_wait_load_layers=0", { 3, 66, 1672, 1228 } },
        { "omnikv", "filter_layers=1+3,num_wait_load_layers=0", { 5, 69, 1472, 1420 } },
        /* Pages that are wanted are found on the host, which waits once a layer for what is wanted, and for fetches under
         * way where it looks at more than one array. */
        { "quest", "page=4,dense_layers=0,offload=true", { 8, 87, 16896, 1420 } },
        { "omnikv", "filter_layers=1,num_wait_load_layers=0,offload=true", { 4, 67, 17352, 1228 } },
        { "arkvale", "page_size=4", { 8, 81, 6304, 2572 } },
        { "infllm", "offload=true", { 19, 123, 10864, 12604 } },
    };
    int32_t id[MAX_TOK];
    struct rig r;
    bool failed = false;
    rig_open(&r, &waits_desc);
    rig_tokens(id, MAX_TOK, 7);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
        if (i % SHARE != 0 && !getenv("KVL_LONG")) continue;
        const struct rig_run run = { .policy = policy_named(want[i].name),
                                     .options = want[i].options,
                                     .budget = strcmp(want[i].name, "full") == 0 ? 0 : 32,
                                     .id = id,
                                     .n_ctx = 90 };
        int64_t got[COSTS];
        cost_of(&r, &run, 5, got);
        for (int c = 0; c < COSTS; c++) {
            int64_t most = want[i].most[c];
            if (c == COST_WAITS ? got[c] != most : got[c] > most)
                print_error("%s %s: %lld %s for a token, want %s%lld\n", want[i].name,
                            want[i].options, (long long)got[c], cost_names[c],
                            c == COST_WAITS ? "" : "at most ", (long long)most),
                    failed = true;
        }
    }
    rig_close(&r);
    assert_false(failed);
}

/* Lists that stay on the device, and some that cannot. */
static void test_waits_of_lists(void **state)
{
    (void)state;
    int32_t id[MAX_TOK];
    struct rig r;
    rig_open(&r, &waits_desc);
    rig_tokens(id, MAX_TOK, 7);
    for (int way = 0; way < TOY_NAN; way++) {
        bool stays = way <= TOY_TOKENS_EARLY || (way >= TOY_TOKENS_ALL && way <= TOY_PAGES_ALL) ||
                     way == TOY_LAYER || way == TOY_LAYER_PAGES || way == TOY_KEEPS;
        char options[64];
        snprintf(options, sizeof options, "way=%s", toy_names[way]);
        const struct rig_run run = {
            .policy = &toy, .options = options, .budget = 32, .id = id, .n_ctx = 60
        };
        int got = waits_of(&r, &run);
        if ((got == 1) != stays) fail_msg("%s: a token waits %d times", options, got);
    }
    rig_close(&r);
}

/* ---- the same answers ---------------------------------------------------------------- */

struct answers {
    float *logits; /* [n_steps][n_vocab] */
    struct kvl_counters count;
};

/* The question as a block, then tokens. */
static void answers_get(struct rig *r, const struct rig_run *run, struct answers *out)
{
    struct rig_session rs = rig_start(r, run);
    int32_t n_block = 3;
    const int32_t *id = run->id + run->n_ctx;
    out->logits = rig_logits(r, run->n_steps);
    RIG_OK(&r->err, kvl_session_extend_logits(rs.s, id, n_block, out->logits, &r->err));
    rig_decode(r, &rs, id + n_block, run->n_steps - n_block,
               out->logits + (size_t)n_block * (size_t)rig_shape(r)->n_vocab);
    out->count = *kvl_session_counters(rs.s);
    rig_end(&rs);
}

static void expect_counts(const char *what, const struct kvl_counters *a,
                          const struct kvl_counters *b)
{
    const struct {
        const char *name;
        int64_t a, b;
    } rows[] = {
        { "n_tokens", a->n_tokens, b->n_tokens },
        { "attended_tok", a->attended_tok, b->attended_tok },
        { "attended_lanes", a->attended_lanes, b->attended_lanes },
        { "dense_tok", a->dense_tok, b->dense_tok },
        { "dense_lanes", a->dense_lanes, b->dense_lanes },
        { "kv_read_bytes", a->kv_read_bytes, b->kv_read_bytes },
        { "index_read_bytes", a->index_read_bytes, b->index_read_bytes },
        { "n_select", a->n_select, b->n_select },
        { "n_evicted", a->n_evicted, b->n_evicted },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].a != rows[i].b)
            fail_msg("%s: %s is %lld ahead of the device, %lld without", what, rows[i].name,
                     (long long)rows[i].a, (long long)rows[i].b);
}

/* Engines that run ahead, that wait, and the CPU's. */
struct three {
    struct rig ahead, waits, cpu;
};

static void three_open(struct three *t, enum kvl_kv_type type)
{
    struct rig_desc d = { .llama = { .n_layers = 3, .n_kv_heads = 2, .seed = 5 },
                          .kv_type = type,
                          .device = "cuda" };
    rig_open(&t->ahead, &d);
    d.wait_hooks = true;
    rig_open(&t->waits, &d);
    d.device = "cpu";
    rig_open(&t->cpu, &d);
}

static void three_close(struct three *t)
{
    rig_close(&t->ahead);
    rig_close(&t->waits);
    rig_close(&t->cpu);
}

/* A rounded key may turn a choice over: logits are the CPU's where keys are not rounded. */
static void expect_three(struct three *t, const struct rig_run *run)
{
    struct answers ahead, waits, cpu;
    char what[96];
    snprintf(what, sizeof what, "%s %s, budget %d", run->policy->name, run->options, run->budget);
    answers_get(&t->ahead, run, &ahead);
    answers_get(&t->waits, run, &waits);
    answers_get(&t->cpu, run, &cpu);
    rig_expect_same(&t->ahead, ahead.logits, waits.logits, run->n_steps, what);
    if (kvl_store_desc(kvl_engine_store(t->cpu.engine))->type == KVL_KV_F32)
        rig_expect_near(&t->ahead, ahead.logits, cpu.logits, run->n_steps, 1e-3, what);
    expect_counts(what, &ahead.count, &waits.count);
    expect_counts(what, &ahead.count, &cpu.count);
    kvl_free(ahead.logits);
    kvl_free(waits.logits);
    kvl_free(cpu.logits);
}

static void test_answers(void **state)
{
    (void)state;
    static const struct {
        const char *name, *options;
        int32_t budget;
    } runs[] = {
        { "quest", "page=4,dense_layers=0", 8 }, /* two pages */
        { "quest", "page=4", 36 },               /* first all pages fit, then not */
        { "quest", "page=4,reduce=none", 12 },
        { "oracle", "", 1 },
        { "oracle", "", 20 },
        { "oracle", "scope=layer,reduce=max", 34 },
        { "random", "", 31 },
        { "streaming_llm", "", 12 },
        { "duo_attention", "", 16 },
        { "h2o", "", 16 },
        { "tova", "", 16 },
        { "omnikv", "filter_layers=1,num_wait_load_layers=0", 12 },
        { "omnikv", "filter_layers=1,num_wait_load_layers=0,selector=exp,lazy=true", 12 },
        /* What the conformance suite, with defaults, does not reach of hooks that look at one array. */
        { "rocketkv", "multi_turn=true,page=4", 24 },
        { "arkvale", "page_size=4,replace=score", 24 },
        { "arkvale", "page_size=4,reduce=none,replace=lru", 24 },
        { "ktransformers", "head_select_mode=SHARED,block_size=4", 24 },
        { "ktransformers", "token_step=2,block_size=4", 24 },
        { "sparq", "reallocation=false", 16 },
        { "h2o_sim", "variant=lm_eval", 16 },
        { "fastgen", "recovery=renorm", 24 },
    };
    enum { N_RUNS = sizeof runs / sizeof runs[0], N_KEYS = 3 }; /* that look at keys */
    int32_t id[MAX_TOK];
    struct three t, rounded;
    three_open(&t, KVL_KV_F32);
    three_open(&rounded, KVL_KV_F16);
    rig_tokens(id, MAX_TOK, 9);
    for (int i = 0; i < N_RUNS + N_KEYS; i++)
        expect_three(i < N_RUNS ? &t : &rounded,
                     &(struct rig_run){ .policy = policy_named(runs[i % N_RUNS].name),
                                        .options = runs[i % N_RUNS].options,
                                        .budget = runs[i % N_RUNS].budget,
                                        .id = id,
                                        .n_ctx = 30,
                                        .n_steps = 8 });
    three_close(&rounded);
    for (int way = 0; way < TOY_NAN; way++) {
        char options[64];
        snprintf(options, sizeof options, "way=%s", toy_names[way]);
        expect_three(&t, &(struct rig_run){ .policy = &toy,
                                            .options = options,
                                            .budget = 32,
                                            .id = id,
                                            .n_ctx = 30,
                                            .n_steps = 8 });
    }
    three_close(&t);
}

/* ---- a NaN, a lie -------------------------------------------------------------------- */

/* One of two sessions meets a NaN: it is named, and nothing of it stays for the
 * next call. */
static void test_nan_of_a_row(void **state)
{
    (void)state;
    int32_t id[MAX_TOK], n_ctx = 30;
    struct rig_session rs[2];
    struct rig r;
    char options[64], position[32];
    rig_open(&r, &waits_desc);
    rig_tokens(id, MAX_TOK, 9);
    float *logits = rig_logits(&r, 2);
    for (int bad = 0; bad < 2; bad++) {
        struct rig_run run = { .policy = &toy, .budget = 32, .id = id, .options = options };
        for (int i = 0; i < 2; i++) {
            run.n_ctx = n_ctx + i;
            snprintf(options, sizeof options, "way=nan,at=%d", i == bad ? run.n_ctx : 0);
            rs[i] = rig_start(&r, &run);
        }
        struct kvl_session *both[] = { rs[0].s, rs[1].s };
        assert_int_equal(kvl_session_decode(both, 2, id, logits, &r.err), KVL_EPOLICY);
        snprintf(position, sizeof position, "position %d", n_ctx + bad);
        if (!strstr(r.err.msg, "toy") || !strstr(r.err.msg, "not a number") ||
            !strstr(r.err.msg, position))
            fail_msg("row %d: \"%s\"", bad, r.err.msg);
        kvl_err_clear(&r.err);
        assert_int_equal(kvl_session_decode(both, 2, id, logits, &r.err), KVL_EINTERNAL);
        kvl_err_clear(&r.err);
        for (int i = 0; i < 2; i++) rig_end(&rs[i]);
        snprintf(options, sizeof options, "way=tokens");
        kvl_free(rig_run(&r, &run));
    }
    kvl_free(logits);
    rig_close(&r);
}

/* The first of the rows is named, whenever it was found and however many steps it has had: row 1 looks before
 * it meets a NaN of its own. */
static void test_nan_of_two_rows(void **state)
{
    (void)state;
    static const char *const options[] = { "way=nan,at=33,layer=0", "way=nan,at=34,layer=1" };
    int32_t id[MAX_TOK];
    struct rig_session rs[2];
    struct rig r;
    rig_open(&r, &waits_desc);
    rig_tokens(id, MAX_TOK, 9);
    float *logits = rig_logits(&r, 3);
    for (int i = 0; i < 2; i++) {
        const struct rig_run run = {
            .policy = &toy, .budget = 32, .id = id, .n_ctx = 30 + i, .options = options[i]
        };
        rs[i] = rig_start(&r, &run);
        rig_decode(&r, &rs[i], id, 3, logits);
    }
    struct kvl_session *both[] = { rs[0].s, rs[1].s };
    assert_int_equal(kvl_session_decode(both, 2, id, logits, &r.err), KVL_EPOLICY);
    if (!strstr(r.err.msg, "position 33")) fail_msg("\"%s\"", r.err.msg);
    for (int i = 0; i < 2; i++) rig_end(&rs[i]);
    kvl_free(logits);
    rig_close(&r);
}

/* In a block of tokens the first one that meets it is named. */
static void test_nan_in_a_block(void **state)
{
    (void)state;
    int32_t id[MAX_TOK];
    struct rig r;
    const struct rig_run run = {
        .policy = &toy, .budget = 32, .id = id, .n_ctx = 30, .options = "way=nan,at=33"
    };
    rig_open(&r, &waits_desc);
    rig_tokens(id, MAX_TOK, 9);
    struct rig_session rs = rig_start(&r, &run);
    assert_int_equal(kvl_session_extend(rs.s, id + 30, 8, &r.err), KVL_EPOLICY);
    if (!strstr(r.err.msg, "not a number") || !strstr(r.err.msg, "position 33"))
        fail_msg("\"%s\"", r.err.msg);
    kvl_err_clear(&r.err);
    rig_end(&rs);
    rig_close(&r);
}

/* Who has looked already is told of a NaN that comes later where it looks. */
static void test_nan_behind_a_look(void **state)
{
    (void)state;
    int32_t id[MAX_TOK];
    struct rig r;
    const struct rig_run run = {
        .policy = &toy, .budget = 32, .id = id, .n_ctx = 30, .options = "way=nan_late,at=32,layer=1"
    };
    rig_open(&r, &waits_desc);
    rig_tokens(id, MAX_TOK, 9);
    float *logits = rig_logits(&r, 2);
    struct rig_session rs = rig_start(&r, &run);
    rig_decode(&r, &rs, id, 2, logits);
    assert_int_equal(kvl_session_decode(&rs.s, 1, id, logits, &r.err), KVL_EPOLICY);
    if (!strstr(r.err.msg, "not a number") || !strstr(r.err.msg, "layer 1, position 32"))
        fail_msg("\"%s\"", r.err.msg);
    kvl_err_clear(&r.err);
    rig_end(&rs);
    kvl_free(logits);
    rig_close(&r);
}

/* Who looks without waiting sees what is not there yet: under the emulation always. */
static void test_liar(void **state)
{
    (void)state;
#ifdef KVL_TEST_CUDA
    int32_t id[MAX_TOK];
    struct three t;
    const struct rig_run run = {
        .policy = &toy, .budget = 32, .id = id, .n_ctx = 30, .n_steps = 6, .options = "way=liar"
    };
    three_open(&t, KVL_KV_F32);
    rig_tokens(id, MAX_TOK, 9);
    float *ahead = rig_run(&t.ahead, &run), *waits = rig_run(&t.waits, &run);
    assert_true(rig_distance(&t.ahead, ahead, waits, run.n_steps) > 1e-3);
    kvl_free(ahead);
    kvl_free(waits);
    three_close(&t);
#else
    skip();
#endif
}

int main(void)
{
    struct kvl_err err = { 0 };
    const struct kvl_device *dev;
    setenv("KVL_CUDA_CHECKS", "0", 1); /* they wait */
    if (kvl_device_open("cuda", &dev, &err) != KVL_OK) {
        fprintf(stderr, "test_gpu_steps: skipped: %s\n", err.msg);
        return 77;
    }
    RIG_OK(&err, kvl_registry_create(&registry, &err));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_costs),
        cmocka_unit_test(test_waits_of_lists),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_nan_of_a_row),
        cmocka_unit_test(test_nan_of_two_rows),
        cmocka_unit_test(test_nan_in_a_block),
        cmocka_unit_test(test_nan_behind_a_look),
        cmocka_unit_test(test_liar),
    };
    int rc = cmocka_run_group_tests_name("gpu_steps", tests, NULL, NULL);
    kvl_registry_destroy(registry);
    return rc;
}
