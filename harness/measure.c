/* Evidence recall and bytes. */
#include "measure.h"

#include <string.h>
#include <sys/resource.h>

/* ---- evidence -------------------------------------------------------------------------------- */

/* First token that ends after byte `at`: tokens cover [begin[i], begin[i + 1]). */
static int32_t watch_token(const struct kvl_tokens *t, size_t at)
{
    int32_t lo = 0, hi = t->n;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (mid + 1 < t->n && t->begin[mid + 1] <= at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static int watch_add(struct kvl_watch *w, const struct kvl_tokens *t, struct kvl_span span)
{
    int32_t first = watch_token(t, span.begin), last = watch_token(t, span.end - 1);
    int32_t *pos = kvl_alloc((size_t)(w->n + last - first + 1), sizeof *pos);
    if (!pos) return KVL_ENOMEM;
    if (w->n > 0) memcpy(pos, w->pos, (size_t)w->n * sizeof *pos);
    kvl_free(w->pos);
    w->pos = pos;
    w->first[w->n_spans] = w->n;
    w->count[w->n_spans++] = last - first + 1;
    for (int32_t i = first; i <= last; i++) w->pos[w->n++] = i;
    return KVL_OK;
}

int kvl_watch_create(const struct kvl_tokens *context, const struct kvl_question *q,
                     struct kvl_watch *out, struct kvl_err *err)
{
    struct kvl_watch w = { 0 };
    int rc = KVL_OK;
    if (q->n_evidence > 0) {
        const struct kvl_evidence *e = &q->evidence[q->n_evidence - 1];
        w.kind = e->kind;
        for (int32_t i = 0; i < e->n_spans && rc == KVL_OK; i++)
            if (e->span[i].end > e->span[i].begin) rc = watch_add(&w, context, e->span[i]);
    }
    if (rc != KVL_OK) {
        kvl_watch_free(&w);
        return kvl_fail(err, rc, "out of memory for the evidence of a question");
    }
    *out = w;
    return KVL_OK;
}

void kvl_watch_free(struct kvl_watch *w)
{
    kvl_free(w->pos);
    *w = (struct kvl_watch){ 0 };
}

/* ---- recall ---------------------------------------------------------------------------------- */

int kvl_recall_create(const struct kvl_shape *shape, struct kvl_recall *out, struct kvl_err *err)
{
    struct kvl_recall r = { .n_layers = shape->n_layers, .n_kv_heads = shape->n_kv_heads };
    r.lane = kvl_alloc((size_t)r.n_layers * (size_t)r.n_kv_heads, sizeof *r.lane);
    if (!r.lane) return kvl_fail(err, KVL_ENOMEM, "out of memory for recall");
    *out = r;
    return KVL_OK;
}

void kvl_recall_free(struct kvl_recall *r)
{
    kvl_free(r->lane);
    *r = (struct kvl_recall){ 0 };
}

/* Attended positions of a span, in the union of n_heads rows of hits. */
static int32_t recall_span(const struct kvl_watch *w, const uint8_t *hit, int32_t n_heads,
                           int32_t span)
{
    int32_t n = 0;
    for (int32_t i = w->first[span]; i < w->first[span] + w->count[span]; i++) {
        bool any = false;
        for (int32_t h = 0; h < n_heads && !any; h++)
            any = hit[(size_t)h * (size_t)w->n + (size_t)i] != 0;
        n += any;
    }
    return n;
}

static bool recall_layer(const struct kvl_watch *w, const uint8_t *hit, int32_t n_heads)
{
    bool all = true, any = false;
    for (int32_t s = 0; s < w->n_spans; s++) {
        bool whole = recall_span(w, hit, n_heads, s) == w->count[s];
        all = all && whole;
        any = any || whole;
    }
    return w->kind == KVL_EVIDENCE_ANY ? any : all;
}

/* Share of the evidence that one lane attended; of the best span where one is enough. */
static double recall_lane(const struct kvl_watch *w, const uint8_t *hit)
{
    double best = 0.0;
    int32_t n = 0;
    for (int32_t s = 0; s < w->n_spans; s++) {
        int32_t got = recall_span(w, hit, 1, s);
        best = KVL_MAX(best, (double)got / w->count[s]);
        n += got;
    }
    return w->kind == KVL_EVIDENCE_ANY ? best : (double)n / w->n;
}

void kvl_recall_add(struct kvl_recall *r, const struct kvl_watch *watch, const uint8_t *hit,
                    const uint8_t *dense)
{
    bool found = false, all_dense = true;
    size_t layer = (size_t)r->n_kv_heads * (size_t)watch->n;
    if (watch->n == 0) return;
    for (int32_t l = 0; l < r->n_layers; l++) all_dense = all_dense && dense[l];
    for (int32_t l = 0; l < r->n_layers; l++) {
        const uint8_t *rows = hit + (size_t)l * layer;
        if (!found && (!dense[l] || all_dense)) found = recall_layer(watch, rows, r->n_kv_heads);
        for (int32_t h = 0; h < r->n_kv_heads; h++)
            r->lane[l * r->n_kv_heads + h] +=
                recall_lane(watch, rows + (size_t)h * (size_t)watch->n);
    }
    r->n_steps++;
    r->n_hit += found;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* How large a block of another form would be is known to the store alone. */
static int units_block(const struct kvl_store_desc *have, bool raw, size_t *out,
                       struct kvl_err *err)
{
    struct kvl_store_desc desc = *have;
    struct kvl_store_stats stats;
    struct kvl_store *store;
    desc.raw_keys = raw;
    KVL_TRY(kvl_store_create(&desc, &store, err));
    kvl_store_stats(store, &stats);
    kvl_store_destroy(store);
    *out = stats.block_bytes;
    return KVL_OK;
}

int kvl_kv_units(const struct kvl_store *store, struct kvl_kv_units *out, struct kvl_err *err)
{
    const struct kvl_store_desc *desc = kvl_store_desc(store);
    size_t row = (size_t)desc->head_dim * (desc->type == KVL_KV_F16 ? 2u : 4u);
    struct kvl_kv_units units = { .slot = { 2 * row, 3 * row } };
    KVL_TRY(units_block(desc, false, &units.block[0], err));
    KVL_TRY(units_block(desc, true, &units.block[1], err));
    *out = units;
    return KVL_OK;
}

void kvl_kv_measure(const struct kvl_session *s, const struct kvl_kv_units *units, bool raw_keys,
                    int64_t shared_blocks, struct kvl_kv_bytes *out)
{
    struct kvl_seq_stats stats;
    kvl_seq_stats(kvl_session_seq(s), &stats);
    /* Blocks of the attached parent are shared with its other forks; they are the policy's own. */
    int64_t common = KVL_MIN(stats.n_shared, shared_blocks);
    double block = (double)units->block[raw_keys];
    *out = (struct kvl_kv_bytes){
        .logical = (double)stats.n_slots * (double)units->slot[raw_keys],
        .physical = (double)stats.n_blocks * block,
        .own = (double)(stats.n_blocks - common) * block,
        .meta = (double)kvl_session_meta_bytes(s),
    };
}

int64_t kvl_rss_peak_bytes(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
    return (int64_t)usage.ru_maxrss * 1024;
}
