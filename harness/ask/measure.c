/* Evidence recall and bytes. */
#include "measure.h"

#include <ctype.h>
#include <string.h>

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

/* Bytes of the expected answer that one of its tokens adds to part [at, at + len) of the gold text, counted
 * from the part's begin; empty when none. */
static struct kvl_span watch_gold(const struct kvl_question *q, const struct kvl_tokens *answer,
                                  int32_t step, struct kvl_span part)
{
    const char *at = strstr(q->answer, q->gold);
    if (!at) return (struct kvl_span){ 0, 0 };
    size_t gold = (size_t)(at - q->answer);
    size_t begin = answer->begin[step];
    size_t end = step + 1 < answer->n ? answer->begin[step + 1] : strlen(q->answer);
    begin = KVL_MAX(begin, gold + part.begin);
    end = KVL_MIN(end, gold + part.end);
    if (end <= begin) return (struct kvl_span){ 0, 0 };
    return (struct kvl_span){ begin - gold - part.begin, end - gold - part.begin };
}

static bool watch_word(const char *gold, size_t at, size_t len)
{
    bool before = at > 0 && isalnum((unsigned char)gold[at - 1]);
    return !before && !isalnum((unsigned char)gold[at + len]);
}

/* What of the gold text a span spells: all of it, or a part where there are several. */
static bool watch_copies(const struct kvl_watch *w, const struct kvl_sample *s,
                         const struct kvl_question *q, struct kvl_span span, struct kvl_span *part)
{
    size_t len = span.end - span.begin, gold = strlen(q->gold);
    for (size_t at = 0; at + len <= gold; at++) {
        if (w->n_stages == 1 && len < gold) return false;
        *part = (struct kvl_span){ at, at + len };
        if (memcmp(s->context + span.begin, q->gold + at, len) == 0 && watch_word(q->gold, at, len))
            return true;
    }
    return false;
}

/* What the steps of the stage need of its span i. */
static void watch_steps(struct kvl_watch *w, int32_t i, const struct kvl_sample *s,
                        const struct kvl_question *q, const struct kvl_tokens *answer,
                        struct kvl_span span)
{
    int32_t first = w->pos[w->first[i]];
    struct kvl_span whole, part;
    bool copies = watch_copies(w, s, q, span, &whole);
    for (int32_t step = 0; step < w->n_steps; step++) {
        int32_t *from = &w->from[step * w->n_spans + i], *to = &w->to[step * w->n_spans + i];
        const struct kvl_watch_stage *stage = kvl_watch_stage_at(w, step);
        *from = *to = 0;
        if (!stage || i < stage->span || i >= stage->span + stage->n_spans) continue;
        *to = w->count[i];
        if (!copies) continue;
        part = watch_gold(q, answer, step, whole);
        *to = 0;
        if (part.end > part.begin)
            *to = watch_token(&s->tokens, span.begin + part.end - 1) - first + 1;
    }
}

bool kvl_text_holds(const char *text, size_t n, const char *word)
{
    size_t len = strlen(word);
    for (size_t i = 0; i + len <= n; i++) {
        if (memcmp(text + i, word, len) != 0) continue;
        bool before = i > 0 && isalnum((unsigned char)text[i - 1]);
        bool behind = i + len < n && isalnum((unsigned char)text[i + len]);
        if (!before && !behind) return true;
    }
    return false;
}

/* The first step of the expected answer that runs when the text before it holds `after`. */
static int32_t watch_first(const struct kvl_question *q, const struct kvl_tokens *answer,
                           const char *after)
{
    int32_t step = 0;
    if (!after[0]) return 0;
    while (step < answer->n && !kvl_text_holds(q->answer, answer->begin[step], after)) step++;
    return step;
}

const struct kvl_watch_stage *kvl_watch_stage_at(const struct kvl_watch *w, int32_t step)
{
    const struct kvl_watch_stage *at = NULL;
    for (int32_t i = 0; i < w->n_stages; i++)
        if (step >= w->stage[i].first_step) at = &w->stage[i];
    return at;
}

bool kvl_watch_reads(const struct kvl_watch *w)
{
    return w->n_stages > 0 && w->stage[w->n_stages - 1].after[0];
}

/* Of groups that are needed from the same text on, the last one counts. */
static bool watch_counts(const struct kvl_question *q, int32_t i)
{
    return i == q->n_evidence - 1 || strcmp(q->evidence[i].after, q->evidence[i + 1].after) != 0;
}

static int watch_add_stage(struct kvl_watch *w, const struct kvl_sample *s,
                           const struct kvl_question *q, const struct kvl_tokens *answer,
                           const struct kvl_evidence *e)
{
    struct kvl_watch_stage *stage = &w->stage[w->n_stages++];
    *stage = (struct kvl_watch_stage){ .kind = e->kind,
                                       .span = w->n_spans,
                                       .n_spans = e->n_spans,
                                       .first_step = watch_first(q, answer, e->after) };
    memcpy(stage->after, e->after, sizeof stage->after);
    for (int32_t i = 0; i < e->n_spans; i++) KVL_TRY(watch_add(w, &s->tokens, e->span[i]));
    return KVL_OK;
}

static int watch_fill(struct kvl_watch *w, const struct kvl_sample *s, const struct kvl_question *q,
                      const struct kvl_tokens *answer)
{
    struct kvl_span span[KVL_WATCH_SPANS];
    for (int32_t i = 0; i < q->n_evidence; i++) {
        const struct kvl_evidence *e = &q->evidence[i];
        if (!watch_counts(q, i)) continue;
        memcpy(span + w->n_spans, e->span, (size_t)e->n_spans * sizeof *span);
        KVL_TRY(watch_add_stage(w, s, q, answer, e));
    }
    size_t cells = (size_t)answer->n * (size_t)w->n_spans;
    w->n_steps = answer->n;
    w->from = kvl_alloc(cells, sizeof *w->from);
    w->to = kvl_alloc(cells, sizeof *w->to);
    if (!w->from || !w->to) return KVL_ENOMEM;
    for (int32_t i = 0; i < w->n_spans; i++) watch_steps(w, i, s, q, answer, span[i]);
    return KVL_OK;
}

int kvl_watch_create(const struct kvl_sample *sample, const struct kvl_question *q,
                     const struct kvl_tokens *answer, struct kvl_watch *out, struct kvl_err *err)
{
    struct kvl_watch w = { 0 };
    if (q->n_evidence > 0 && watch_fill(&w, sample, q, answer) != KVL_OK) {
        kvl_watch_free(&w);
        return kvl_fail(err, KVL_ENOMEM, "out of memory for the evidence of a question");
    }
    *out = w;
    return KVL_OK;
}

void kvl_watch_free(struct kvl_watch *w)
{
    kvl_free(w->pos);
    kvl_free(w->from);
    kvl_free(w->to);
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

/* Attended tokens from..to-1 of a span, in the union of n_heads rows of hits. */
static int32_t recall_span(const struct kvl_watch *w, const uint8_t *hit, int32_t n_heads,
                           int32_t span, int32_t from, int32_t to)
{
    int32_t n = 0;
    for (int32_t i = w->first[span] + from; i < w->first[span] + to; i++) {
        bool any = false;
        for (int32_t h = 0; h < n_heads && !any; h++)
            any = hit[(size_t)h * (size_t)w->n + (size_t)i] != 0;
        n += any;
    }
    return n;
}

/* What an answer step needs was attended by the union of a layer's heads. */
static bool recall_layer(const struct kvl_watch *w, const struct kvl_watch_stage *stage,
                         const uint8_t *hit, int32_t n_heads, int32_t step)
{
    bool all = true, any = false;
    for (int32_t s = 0; s < w->n_spans; s++) {
        int32_t from = w->from[step * w->n_spans + s], to = w->to[step * w->n_spans + s];
        if (from == to) continue;
        bool whole = recall_span(w, hit, n_heads, s, from, to) == to - from;
        all = all && whole;
        any = any || whole;
    }
    return stage->kind == KVL_EVIDENCE_ANY ? any : all;
}

static bool recall_needs(const struct kvl_watch *w, int32_t step)
{
    for (int32_t s = 0; s < w->n_spans; s++)
        if (w->from[step * w->n_spans + s] < w->to[step * w->n_spans + s]) return true;
    return false;
}

/* Share of the evidence that one lane attended; of the best span where one is enough. */
static double recall_lane(const struct kvl_watch *w, const struct kvl_watch_stage *stage,
                          const uint8_t *hit)
{
    double best = 0.0;
    int32_t n = 0, all = 0;
    for (int32_t s = stage->span; s < stage->span + stage->n_spans; s++) {
        int32_t got = recall_span(w, hit, 1, s, 0, w->count[s]);
        best = KVL_MAX(best, (double)got / w->count[s]);
        n += got;
        all += w->count[s];
    }
    return stage->kind == KVL_EVIDENCE_ANY ? best : (double)n / all;
}

/* The stage that the answer so far has come to; -1: none yet. */
static int32_t recall_stage(const struct kvl_watch *w, const char *text, size_t n)
{
    int32_t at = -1;
    for (int32_t i = 0; i < w->n_stages; i++)
        if (!w->stage[i].after[0] || kvl_text_holds(text, n, w->stage[i].after)) at = i;
    return at;
}

void kvl_recall_add(struct kvl_recall *r, const struct kvl_watch *watch, const char *text, size_t n,
                    const uint8_t *hit, const uint8_t *dense)
{
    bool found = false, all_dense = true;
    size_t layer = (size_t)r->n_kv_heads * (size_t)watch->n;
    int32_t at = recall_stage(watch, text, n);
    if (at < 0) return;
    if (at != r->stage) r->n_seen = 0;
    r->stage = at;
    /* The answer may take other words to the text than expected; from there on both go in step. */
    const struct kvl_watch_stage *stage = &watch->stage[at];
    int32_t step = stage->first_step + r->n_seen++;
    if (step >= watch->n_steps || kvl_watch_stage_at(watch, step) != stage ||
        !recall_needs(watch, step))
        return;
    for (int32_t l = 0; l < r->n_layers; l++) all_dense = all_dense && dense[l];
    for (int32_t l = 0; l < r->n_layers; l++) {
        const uint8_t *rows = hit + (size_t)l * layer;
        if (!found && (!dense[l] || all_dense))
            found = recall_layer(watch, stage, rows, r->n_kv_heads, step);
        for (int32_t h = 0; h < r->n_kv_heads; h++)
            r->lane[l * r->n_kv_heads + h] +=
                recall_lane(watch, stage, rows + (size_t)h * (size_t)watch->n);
    }
    r->n_steps++;
    r->n_hit += found;
}

/* ---- bytes ----------------------------------------------------------------------------------- */

/* How large a block of another form would be is known to the store alone. */
static int units_block(const struct kvl_store_desc *have, bool raw, struct kvl_kv_units *out,
                       struct kvl_err *err)
{
    struct kvl_store_desc desc = *have;
    struct kvl_store_stats stats;
    struct kvl_store *store;
    desc.raw_keys = raw;
    KVL_TRY(kvl_store_create(&desc, &store, err));
    kvl_store_stats(store, &stats);
    kvl_store_destroy(store);
    out->block[raw] = stats.block_bytes;
    out->sealed_block[raw] = stats.sealed_block_bytes;
    return KVL_OK;
}

int kvl_kv_units(const struct kvl_store *store, struct kvl_kv_units *out, struct kvl_err *err)
{
    const struct kvl_store_desc *desc = kvl_store_desc(store);
    struct kvl_kv_units units = { 0 };
    for (int raw = 0; raw < 2; raw++) {
        units.slot[raw] = kvl_kv_slot_bytes(kvl_kv_open(desc->type), desc->head_dim, raw);
        units.sealed_slot[raw] = kvl_kv_slot_bytes(desc->type, desc->head_dim, raw);
        KVL_TRY(units_block(desc, raw, &units, err));
    }
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
    double block = (double)units->block[raw_keys], sealed = (double)units->sealed_block[raw_keys];
    double physical =
        (double)(stats.n_blocks - stats.n_sealed) * block + (double)stats.n_sealed * sealed;
    double shared = block; /* in the mean */
    if (stats.n_sealed_shared > 0)
        shared += (sealed - block) * (double)stats.n_sealed_shared / (double)stats.n_shared;
    *out = (struct kvl_kv_bytes){
        .logical = (double)(stats.n_slots - stats.n_sealed_slots) * (double)units->slot[raw_keys] +
                   (double)stats.n_sealed_slots * (double)units->sealed_slot[raw_keys],
        .physical = physical,
        .own = physical - (double)common * shared,
        .meta = (double)kvl_session_meta_bytes(s),
    };
}
