/* What policies read of a lane: which positions are live, stored keys and values of chosen ones. */
#include "policy_impl.h"

#include <string.h>

enum { READ_BATCH = 64 };

/* A method names lanes and positions, so everything is checked at run time. */
static int read_check(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, int32_t n,
                      bool raw)
{
    const struct kvl_shape *sh = ctx->shape;
    if (layer < 0 || layer >= sh->n_layers || kv_head < 0 || kv_head >= sh->n_kv_heads)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "keys or values of lane (%d, %d), the model has %d x %d", layer, kv_head,
                        sh->n_layers, sh->n_kv_heads);
    if (n < 0) return kvl_fail(ctx->err, KVL_EPOLICY, "%d keys or values, want 0 or more", n);
    if (raw && !ctx->host->session->planned->raw_keys)
        return kvl_fail(ctx->err, KVL_EPOLICY, "keys before RoPE were not asked for in plan");
    return KVL_OK;
}

/* Slots of a batch.  Under the mask oracle nothing was moved, and what was evicted counts as gone. */
static int read_slots(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                      const int32_t *pos, int32_t n, int32_t *slot)
{
    const struct kvl_session *s = ctx->host->session;
    (void)kvl_seq_find(s->seq, layer, kv_head, pos, n, slot);
    for (int32_t i = 0; i < n; i++)
        if (slot[i] < 0 || (s->dead && !kvl_lane_has(s, layer, kv_head, pos[i])))
            return kvl_fail(
                ctx->err, KVL_EPOLICY,
                "the key or value of position %d, which is not live in layer %d, kv head %d",
                pos[i], layer, kv_head);
    return KVL_OK;
}

/* n positions of a lane: a list, or, where there is none, `first` and up. */
struct read_which {
    const int32_t *pos;
    int32_t first, n;
};

/* What is read of a lane, and how: by the operators of the hook, which read at once on the CPU and
 * in order with the hook's other work where it runs ahead of a GPU. A hook that the engine waited
 * for looks at the rows next, so there the store reads, and waits, itself. */
struct read_lane {
    const struct kvl_pctx *ctx;
    int32_t layer, kv_head;
    enum kvl_kv_part part;
    bool by_store;
    struct kvl_lane lane;
};

static struct read_lane read_lane(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                                  enum kvl_kv_part part)
{
    const struct kvl_session *s = ctx->host->session;
    struct read_lane r = { .ctx = ctx, .layer = layer, .kv_head = kv_head, .part = part };
    r.by_store = s->engine->dev->discrete && !ctx->host->ahead;
    if (!r.by_store) r.lane = kvl_seq_lane(s->seq, layer, kv_head);
    return r;
}

/* Rows lie anywhere in memory: the processor does not guess the next ones. */
static void read_ask(const struct read_lane *r, const int32_t *slot, int32_t n)
{
    size_t row = r->lane.layout ? r->lane.layout->row_bytes[r->part] : 0;
    if (r->ctx->host->session->engine->dev->discrete) return;
    for (int32_t i = 0; i < n; i++)
        for (size_t o = 0; o < row; o += 64)
            __builtin_prefetch(kvl_lane_slot(&r->lane, r->part, slot[i]) + o);
}

struct read_batch {
    int32_t slot[READ_BATCH], n;
};

/* The batch from position number `at` on: none behind the last. */
static int read_next(const struct read_lane *r, const struct read_which *w, int32_t at,
                     struct read_batch *b)
{
    int32_t room[READ_BATCH];
    b->n = KVL_MAX(0, KVL_MIN(READ_BATCH, w->n - at));
    for (int32_t i = 0; !w->pos && i < b->n; i++) room[i] = w->first + at + i;
    if (b->n == 0) return KVL_OK;
    KVL_TRY(read_slots(r->ctx, r->layer, r->kv_head, w->pos ? w->pos + at : room, b->n, b->slot));
    read_ask(r, b->slot, b->n);
    return KVL_OK;
}

/* Slots slot .. slot + n - 1; a hook that runs ahead of a device has them once it looks. */
static int read_run(const struct read_lane *r, int32_t slot, int32_t n, float *out)
{
    const struct kvl_session *s = r->ctx->host->session;
    if (r->by_store)
        return kvl_seq_read(s->seq, r->layer, r->kv_head, r->part, slot, n, out, r->ctx->err);
    int rc = r->ctx->ops->lane_read(
        &(struct kvl_lane_read_args){ .out = out,
                                      .stride = (size_t)r->ctx->shape->head_dim,
                                      .lane = &r->lane,
                                      .part = r->part,
                                      .slot0 = slot,
                                      .n = n });
    return kvl_engine_failed(s->engine, "keys or values of a lane", rc, r->ctx->err);
}

/* In batches, whose slots are looked up together and read in runs: positions that follow each other mostly lie
 * so.  A batch is on its way from memory while the one before is read.  Counted by what was asked for, not by runs. */
static int read_part(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head,
                     const struct read_which *w, enum kvl_kv_part part, float *out)
{
    /* Batches keep slots on the stack, so that a hook may read a whole context without asking for
     * memory. */
    int32_t n = w->n;
    struct kvl_session *s = ctx->host->session;
    struct read_batch batch[2];
    size_t dim = (size_t)ctx->shape->head_dim;
    KVL_TRY(read_check(ctx, layer, kv_head, n, part == KVL_PART_K_RAW));
    /* After the check, which speaks of the policy's own numbers. */
    const struct read_lane lane = read_lane(ctx, kvl_layer_of(ctx, layer), kv_head, part);
    const bool sealed = lane.lane.layout && lane.lane.layout->sealed;
    KVL_TRY(read_next(&lane, w, 0, &batch[0]));
    for (int32_t at = 0, now = 0; at < n; at += READ_BATCH, now = !now) {
        const struct read_batch *b = &batch[now];
        KVL_TRY(read_next(&lane, w, at + READ_BATCH, &batch[!now]));
        for (int32_t i = 0, run; i < b->n; i += run) {
            for (run = 1; i + run < b->n && b->slot[i + run] == b->slot[i] + run;) run++;
            KVL_TRY(read_run(&lane, b->slot[i], run, out + (size_t)(at + i) * dim));
            if (sealed)
                s->count.index_read_bytes +=
                    (int64_t)kvl_lane_bytes(&lane.lane, part, b->slot[i], run);
        }
    }
    bool values = part == KVL_PART_V;
    if (!sealed)
        s->count.index_read_bytes +=
            n * (values ? kvl_value_bytes(s->engine) : kvl_key_bytes(s->engine));
    return KVL_OK;
}

int kvl_read_keys(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, const int32_t *pos,
                  int32_t n, bool raw, float *out)
{
    return read_part(ctx, layer, kv_head, &(struct read_which){ .pos = pos, .n = n },
                     raw ? KVL_PART_K_RAW : KVL_PART_K, out);
}

int kvl_read_values(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, const int32_t *pos,
                    int32_t n, float *out)
{
    return read_part(ctx, layer, kv_head, &(struct read_which){ .pos = pos, .n = n }, KVL_PART_V,
                     out);
}

/* Tokens of the context, or of those that a wrapper asks about: an inner policy counts the same way in both. */
static int read_span(const struct kvl_pctx *ctx, int32_t kv_head, int32_t first, int32_t n,
                     struct read_which *w)
{
    const struct kvl_asked *asked = ctx->host->asked;
    *w = (struct read_which){ .first = first, .n = n };
    /* A wrong head is refused by read_check, which says the same for both. */
    if (!asked || kv_head < 0 || kv_head >= ctx->shape->n_kv_heads) return KVL_OK;
    if (first < 0 || n < 0 || first > asked->n - n)
        return kvl_fail(ctx->err, KVL_EPOLICY, "tokens %d to %d of the %d that were asked about",
                        first, first + n, asked->n);
    w->pos = asked->pos + (size_t)kv_head * (size_t)asked->n + first;
    return KVL_OK;
}

int kvl_read_key_span(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, int32_t first,
                      int32_t n, bool raw, float *out)
{
    struct read_which w;
    KVL_TRY(read_span(ctx, kv_head, first, n, &w));
    return read_part(ctx, layer, kv_head, &w, raw ? KVL_PART_K_RAW : KVL_PART_K, out);
}

int kvl_read_value_span(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, int32_t first,
                        int32_t n, float *out)
{
    struct read_which w;
    KVL_TRY(read_span(ctx, kv_head, first, n, &w));
    return read_part(ctx, layer, kv_head, &w, KVL_PART_V, out);
}

/* A copy in the step arena: a hook may name them in lists that are read when the lane has grown.  What an eviction is told
 * is copied there. */
int kvl_live(const struct kvl_pctx *ctx, int32_t layer, int32_t kv_head, const int32_t **pos,
             int32_t *n)
{
    if (layer < 0 || layer >= ctx->shape->n_layers || kv_head < 0 ||
        kv_head >= ctx->shape->n_kv_heads)
        return kvl_fail(ctx->err, KVL_EPOLICY, "lane (%d, %d), the model has %d x %d", layer,
                        kv_head, ctx->shape->n_layers, ctx->shape->n_kv_heads);
    const struct kvl_asked *asked = ctx->host->asked;
    if (asked) {
        *pos = asked->pos + (size_t)kv_head * (size_t)asked->n;
        *n = asked->n;
        return KVL_OK;
    }
    struct kvl_session *s = ctx->host->session;
    layer = kvl_layer_of(ctx, layer);
    *pos = ctx->host->phase == HOOK_EVICT ? kvl_live_view(s, layer, kv_head, n)
                                          : kvl_live_positions(s, layer, kv_head, n, NULL);
    return *pos ? KVL_OK : kvl_fail(ctx->err, KVL_ENOMEM, "out of memory for live positions");
}
