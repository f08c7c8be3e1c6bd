/* Eviction: what a policy wants to keep, checked and carried out; one-shot eviction by scores. */
#include "head_lists.h"

#include <string.h>

enum { KEEP_RANGES = 8 };

struct keep_head {
    bool named;
    int32_t first[KEEP_RANGES], last[KEEP_RANGES]; /* [first, last) */
    int32_t n_ranges;
    const int32_t *token; /* ascending */
    int32_t n_tokens;
    const float *score; /* [n_scored] of kvl_keep_top, NULL: none */
    int32_t n_scored, n_best;
    const int32_t *best; /* [n_best] of the live tokens, by their number; on its way */
};

struct kvl_keep {
    struct kvl_session *s;
    struct kvl_err *err;
    int32_t layer, n_heads;
    bool late; /* what waits is carried out at the end of the step */
    struct keep_head *head;
    struct kvl_keep *next; /* of those that wait for the end of a step */
};

/* -1 names all heads; that the lanes may hold different positions is each call's own concern. */
static int keep_heads(struct kvl_keep *keep, int32_t kv_head, int32_t *from, int32_t *to)
{
    if (kv_head < -1 || kv_head >= keep->n_heads)
        return kvl_fail(keep->err, KVL_EPOLICY, "kv head %d, want 0 to %d or -1 for all", kv_head,
                        keep->n_heads - 1);
    *from = kv_head < 0 ? 0 : kv_head;
    *to = kv_head < 0 ? keep->n_heads : kv_head + 1;
    return KVL_OK;
}

/* Ranges name positions that may be gone already: they keep what is there. So only their bounds are checked. */
int kvl_keep_range(struct kvl_keep *keep, int32_t kv_head, int32_t first, int32_t last)
{
    int32_t from = 0, to = 0;
    KVL_TRY(keep_heads(keep, kv_head, &from, &to));
    if (first < 0 || last < first || last > keep->s->host.n_visible)
        return kvl_fail(keep->err, KVL_EPOLICY, "range [%d, %d), want 0 <= first <= last <= %d",
                        first, last, keep->s->host.n_visible);
    for (int32_t h = from; h < to; h++) {
        struct keep_head *k = &keep->head[h];
        if (k->n_ranges == KEEP_RANGES)
            return kvl_fail(keep->err, KVL_EPOLICY, "more than %d ranges for kv head %d",
                            KEEP_RANGES, h);
        k->named = true;
        k->first[k->n_ranges] = first;
        k->last[k->n_ranges++] = last;
    }
    return KVL_OK;
}

/* Both lists ascend: one walk finds every position among the live ones. */
static int keep_check(struct kvl_keep *keep, int32_t kv_head, const int32_t *pos, int32_t n)
{
    int32_t n_live, j = 0;
    if (n < 0) return kvl_fail(keep->err, KVL_EPOLICY, "%d positions, want 0 or more", n);
    const int32_t *live = kvl_live_view(keep->s, keep->layer, kv_head, &n_live);
    if (!live) return kvl_fail(keep->err, KVL_ENOMEM, "out of memory for %d positions", n);
    for (int32_t i = 0; i < n; i++) {
        if (i > 0 && pos[i] <= pos[i - 1])
            return kvl_fail(keep->err, KVL_EPOLICY,
                            "position %d after %d, want ascending and unique", pos[i], pos[i - 1]);
        while (j < n_live && live[j] < pos[i]) j++;
        if (j == n_live || live[j] != pos[i])
            return kvl_fail(keep->err, KVL_EPOLICY, "position %d is not live in kv head %d", pos[i],
                            kv_head);
    }
    return KVL_OK;
}

int kvl_keep_tokens(struct kvl_keep *keep, int32_t kv_head, const int32_t *pos, int32_t n)
{
    int32_t from = 0, to = 0;
    KVL_TRY(keep_heads(keep, kv_head, &from, &to));
    KVL_TRY(kvl_session_look_at(keep->s, pos, n, sizeof *pos, keep->err));
    for (int32_t h = from; h < to; h++) {
        struct keep_head *k = &keep->head[h];
        if (k->token || k->score)
            return kvl_fail(keep->err, KVL_EPOLICY, "tokens of kv head %d are given twice", h);
        KVL_TRY(keep_check(keep, h, pos, n));
        /* Beside lists that come late, this one has to last as long. */
        struct kvl_engine *e = keep->s->engine;
        int32_t *copy =
            kvl_arena_get(keep->late ? &e->late_lists : &e->step, (size_t)n + 1, sizeof *copy);
        if (!copy) return kvl_fail(keep->err, KVL_ENOMEM, "out of memory for %d positions", n);
        if (n > 0) memcpy(copy, pos, (size_t)n * sizeof *copy);
        k->named = true;
        k->token = copy;
        k->n_tokens = n;
    }
    return KVL_OK;
}

/* Nothing is chosen yet: heads whose scores lie in a row are chosen by one operator, once all of them are known
 * (keep_choose).  Scores are borrowed until then, which is before kvl_evict_layer returns. */
int kvl_keep_top(struct kvl_keep *keep, int32_t kv_head, const float *score, int32_t n, int32_t k)
{
    int32_t from = 0, to = 0, n_live;
    KVL_TRY(keep_heads(keep, kv_head, &from, &to));
    for (int32_t h = from; h < to; h++) {
        struct keep_head *head = &keep->head[h];
        if (head->token || head->score)
            return kvl_fail(keep->err, KVL_EPOLICY, "tokens of kv head %d are given twice", h);
        if (!kvl_live_view(keep->s, keep->layer, h, &n_live))
            return kvl_fail(keep->err, KVL_ENOMEM, "out of memory for %d positions", n);
        if (k < 0 || k > n || n > n_live)
            return kvl_fail(keep->err, KVL_EPOLICY,
                            "the %d best of the first %d live tokens of kv head %d, which has %d",
                            k, n, h, n_live);
        head->named = true;
        head->score = score;
        head->n_scored = n;
        head->n_best = k;
    }
    return KVL_OK;
}

/* The best of heads first .. first + n - 1, whose scores lie `stride` apart. */
static int keep_best(struct kvl_keep *keep, int32_t first, int32_t n, size_t stride)
{
    struct kvl_engine *e = keep->s->engine;
    struct keep_head *head = &keep->head[first];
    int32_t n_rows = stride > 0 ? n : 1, k = head->n_best;
    /* Results of this layer are gone when the next one begins; what is late has to last until the
     * step ends. */
    struct kvl_arena *a = keep->late ? &e->late : &e->results;
    int32_t *best = kvl_arena_get(a, (size_t)n_rows * (size_t)k + 1, sizeof *best);
    if (!best) return kvl_fail(keep->err, KVL_ENOMEM, "out of memory for the %d best", k);
    int rc = (keep->s->host.ahead ? e->ops : e->now)
                 ->topk(&(struct kvl_topk_args){ .index = best,
                                                 .x = head->score,
                                                 .x_stride =
                                                     stride > 0 ? stride : (size_t)head->n_scored,
                                                 .n_rows = n_rows,
                                                 .n = head->n_scored,
                                                 .k = k });
    if (rc == KVL_ENUMERIC)
        return kvl_fail(keep->err, KVL_EPOLICY, "a score is not a number (NaN)");
    if (rc != KVL_OK) return kvl_fail(keep->err, rc, "top-%d of %d scores", k, head->n_scored);
    for (int32_t h = 0; h < n; h++) head[h].best = best + (stride > 0 ? h * k : 0);
    return KVL_OK;
}

/* Heads that one top-k takes: as many scores, as many to keep, one stride (0: the same scores). */
static int keep_choose(struct kvl_keep *keep)
{
    for (int32_t h = 0, n; h < keep->n_heads; h += n) {
        const struct keep_head *a = &keep->head[h];
        int64_t stride = 0;
        for (n = 1; a->score && h + n < keep->n_heads; n++) {
            const struct keep_head *b = &a[n];
            if (!b->score || b->n_scored != a->n_scored || b->n_best != a->n_best) break;
            if (n == 1) stride = b->score - a->score;
            if (stride < 0 || b->score - b[-1].score != stride) break;
            /* Rows that overlap are no rows of a matrix. */
            if (stride > 0 && stride < a->n_scored) break;
        }
        if (a->score) KVL_TRY(keep_best(keep, h, n, (size_t)stride));
    }
    return KVL_OK;
}

/* ---- carrying it out ---------------------------------------------------------------------------- */

/* Positions of a lane in ascending order, and the ranks of those that go. */
struct lane_cut {
    const int32_t *live;
    int32_t n_live;
    int32_t *gone;
    int32_t n_gone;
};

static void cut_to(struct lane_cut *c, int32_t rank, int32_t end)
{
    for (; rank < end; rank++) c->gone[c->n_gone++] = rank;
}

/* Whether token i of a list is the live position of that rank: lists ascend, and all that they name is live. */
static bool keep_is(const struct keep_head *k, const struct lane_cut *c, int32_t i, int32_t rank)
{
    return k->best ? k->best[i] == rank : k->token[i] == c->live[rank];
}

/* The first token from i on before which more goes than so far: ranks less their place in the list never fall. */
static int32_t keep_next_gap(const struct keep_head *k, const struct lane_cut *c, int32_t i)
{
    int32_t end = k->n_tokens;
    while (i < end) {
        int32_t middle = i + (end - i) / 2;
        if (keep_is(k, c, middle, middle + c->n_gone))
            i = middle + 1;
        else
            end = middle;
    }
    return i;
}

/* Tokens, then ranges one after the other, as most methods name them: only what goes is walked.  False: named
 * otherwise. */
static bool keep_pieces(const struct keep_head *k, struct lane_cut *c)
{
    for (int32_t i = 0; (i = keep_next_gap(k, c, i)) < k->n_tokens;)
        while (!keep_is(k, c, i, i + c->n_gone)) cut_to(c, i + c->n_gone, i + c->n_gone + 1);
    int32_t rank = k->n_tokens + c->n_gone;
    for (int32_t r = 0; r < k->n_ranges; r++) {
        int32_t from = kvl_lower_bound(c->live, c->n_live, k->first[r]);
        int32_t to = kvl_lower_bound(c->live, c->n_live, k->last[r]);
        if (from == to) continue;
        if (from < rank) return false;
        cut_to(c, rank, from);
        rank = to;
    }
    cut_to(c, rank, c->n_live);
    return true;
}

/* At most KEEP_RANGES of them, in any order. */
static bool in_ranges(const struct keep_head *k, int32_t pos)
{
    for (int32_t i = 0; i < k->n_ranges; i++)
        if (pos >= k->first[i] && pos < k->last[i]) return true;
    return false;
}

/* In any order, ranges over each other: one by one. */
static void keep_named(const struct keep_head *k, struct lane_cut *c)
{
    for (int32_t rank = 0, j = 0; rank < c->n_live; rank++) {
        bool named = j < k->n_tokens && keep_is(k, c, j, rank);
        j += named;
        if (!named && !in_ranges(k, c->live[rank])) c->gone[c->n_gone++] = rank;
    }
}

/* The mask oracle evicts nothing: it marks, and full attention leaves out what is marked. */
static void mask_out(struct kvl_session *s, int32_t layer, int32_t kv_head,
                     const struct lane_cut *c)
{
    size_t lane = (size_t)layer * (size_t)s->engine->model->shape.n_kv_heads + (size_t)kv_head;
    uint8_t *dead = s->dead + lane * (size_t)s->dead_cap;
    for (int32_t i = 0; i < c->n_gone; i++) dead[c->live[c->gone[i]]] = 1;
}

/* What stays, for those who watch; NULL: nobody does. */
static int cut_kept(struct kvl_session *s, const struct lane_cut *c, const int32_t **kept)
{
    *kept = NULL;
    if (!s->tap.keep) return KVL_OK;
    int32_t n = 0, *pos = kvl_arena_get(&s->engine->step, (size_t)c->n_live + 1, sizeof *pos);
    if (!pos) return KVL_ENOMEM;
    for (int32_t rank = 0, i = 0; rank < c->n_live; rank++) {
        bool goes = i < c->n_gone && c->gone[i] == rank;
        i += goes;
        if (!goes) pos[n++] = c->live[rank];
    }
    *kept = pos;
    return KVL_OK;
}

/* What the device chose ascends and is of the lane: the walk over its gaps ends by that alone. */
static bool best_fits(const struct keep_head *k, int32_t n_live)
{
    const int32_t *best = k->best;
    int32_t n = k->n_tokens;
    bool fits = n <= n_live;
    if (!fits || !best || n == 0) return fits;
    fits = best[0] >= 0 && best[n - 1] < n_live;
    for (int32_t i = 1; i < n; i++) fits &= best[i - 1] < best[i];
    return fits;
}

/* Only what stays of a lane is named (keep_head); nothing happens where that is all. */
static int lane_keep(struct kvl_session *s, int32_t layer, int32_t kv_head,
                     const struct keep_head *k)
{
    struct lane_cut c = { 0 };
    const int32_t *kept;
    c.live = kvl_live_view(s, layer, kv_head, &c.n_live);
    if (!c.live) return kvl_fail(s->ctx.err, KVL_ENOMEM, "out of memory to evict");
    if (!best_fits(k, c.n_live))
        return kvl_fail(
            s->ctx.err, KVL_EINTERNAL,
            "kv head %d: %d tokens to keep of %d are chosen, want them ascending and each "
            "below %d",
            kv_head, k->n_tokens, c.n_live, c.n_live);
    size_t most = (size_t)(c.n_live - k->n_tokens);
    c.gone = kvl_arena_get(&s->engine->step, most + 1, sizeof *c.gone);
    if (!c.gone) return kvl_fail(s->ctx.err, KVL_ENOMEM, "out of memory to evict");
    if (!keep_pieces(k, &c)) {
        c.n_gone = 0;
        keep_named(k, &c);
    }
    if (c.n_gone == 0) return KVL_OK;
    if (cut_kept(s, &c, &kept) != KVL_OK)
        return kvl_fail(s->ctx.err, KVL_ENOMEM, "out of memory to evict");
    s->count.n_evicted += c.n_gone;
    if (s->dead)
        mask_out(s, layer, kv_head, &c);
    else
        KVL_TRY(kvl_seq_drop(s->seq, layer, kv_head, c.gone, c.n_gone, s->ctx.err));
    /* After the lane, which is cut as a whole or not at all: rows go only where their tokens
     * went. */
    s->engine->pending = true;
    KVL_TRY(kvl_row_table_drop(s, layer, kv_head, c.n_live, c.gone, c.n_gone));
    return kvl_tap_keep(s, layer, kv_head, kept, c.n_live - c.n_gone);
}

/* What was chosen is on its way. */
static bool keep_waits(const struct kvl_keep *keep)
{
    for (int32_t h = 0; h < keep->n_heads; h++)
        if (keep->head[h].score) return true;
    return false;
}

/* What was chosen is there. */
static int keep_lanes(struct kvl_keep *keep)
{
    for (int32_t h = 0; h < keep->n_heads; h++) {
        struct keep_head *k = &keep->head[h];
        if (k->score) k->n_tokens = k->n_best;
        if (k->named) KVL_TRY(lane_keep(keep->s, keep->layer, h, k));
    }
    return KVL_OK;
}

/* What lanes move goes together, of those before an error too: their positions are as if it had. */
static int moves_go(struct kvl_engine *e, int rc, struct kvl_err *err)
{
    int moved = kvl_store_release(e->store, rc == KVL_OK ? err : NULL);
    if (rc == KVL_OK) rc = moved;
    return rc == KVL_OK ? kvl_row_table_settle(e, err) : rc;
}

/* Lanes move their blocks together, and not one by one: on a GPU that is one launch for a layer. What a hook
 * that ran ahead of the device left to kvl_keep_top waits until the step's results are there, for all layers at
 * once. */
int kvl_evict_layer(struct kvl_session *s, const struct kvl_step *step, bool late)
{
    struct kvl_engine *e = s->engine;
    int32_t n_heads = e->model->shape.n_kv_heads;
    late = late && s->host.ahead;
    struct kvl_arena *lists = late ? &e->late_lists : &e->step;
    struct kvl_keep *keep = kvl_arena_get(lists, 1, sizeof *keep);
    struct keep_head *head = kvl_arena_get(lists, (size_t)n_heads, sizeof *head);
    if (!keep || !head) return kvl_fail(s->ctx.err, KVL_ENOMEM, "out of memory to evict");
    memset(head, 0, (size_t)n_heads * sizeof *head);
    *keep = (struct kvl_keep){ .s = s,
                               .err = s->ctx.err,
                               .layer = step->layer,
                               .n_heads = n_heads,
                               .late = late,
                               .head = head };
    KVL_TRY(kvl_call_evict(s, step, keep));
    KVL_TRY(keep_choose(keep));
    if (keep_waits(keep) && late) {
        /* Newest first: layers and rows do not depend on each other, so any order will do. */
        keep->next = e->late_first;
        e->late_first = keep;
        return KVL_OK;
    }
    if (keep_waits(keep)) KVL_TRY(kvl_session_look(s, keep->err));
    kvl_store_hold(e->store);
    return moves_go(e, keep_lanes(keep), keep->err);
}

/* Errors of the late part are those of the evict hook, whose layer they name. */
int kvl_evict_late(struct kvl_engine *e, struct kvl_err *err)
{
    int rc = KVL_OK;
    kvl_store_hold(e->store);
    for (struct kvl_keep *k = e->late_first; k && rc == KVL_OK; k = k->next) {
        /* The error that the hook was given may be of a call that has returned. */
        k->err = k->s->ctx.err = err;
        rc = kvl_hook_done(k->s, "evict", k->layer, keep_lanes(k));
    }
    rc = moves_go(e, rc, err);
    kvl_evict_forget(e);
    return rc;
}

/* Also after a step that failed, whose lists are of sessions that may be gone by the next. */
void kvl_evict_forget(struct kvl_engine *e)
{
    e->late_first = NULL;
    e->rows_moves = NULL;
    e->n_rows_moves = e->n_rows_runs = 0;
    kvl_arena_reset(&e->late_lists);
    kvl_arena_reset(&e->late);
}

/* ---- one-shot eviction by scores ------------------------------------------------------------------- */

/* What a lane keeps, protected ones included; all of n_tok or more is everything. */
static int32_t scores_keep(const struct kvl_scores *sc, int32_t kv_head)
{
    int32_t n = sc->keep_lane[kv_head] < 0 ? sc->keep_tok : sc->keep_lane[kv_head];
    return KVL_MIN(n, sc->n_tok);
}

/* Protected tokens are kept whatever they score, so they must fit; lanes may keep different numbers. */
static int scores_check(const struct kvl_scores *sc, int32_t n_kv_heads, struct kvl_err *err)
{
    int64_t guarded = (int64_t)sc->protect_first + sc->protect_last;
    if (sc->keep_tok < 0 || sc->protect_first < 0 || sc->protect_last < 0 || guarded > sc->keep_tok)
        return kvl_fail(err, KVL_EPOLICY,
                        "keeps %d tokens and protects the first %d and the last %d: want all >= 0 "
                        "and no more protected than kept",
                        sc->keep_tok, sc->protect_first, sc->protect_last);
    for (int32_t h = 0; h < n_kv_heads; h++)
        if (sc->keep_lane[h] < -1 || (sc->keep_lane[h] >= 0 && guarded > sc->keep_lane[h]))
            return kvl_fail(err, KVL_EPOLICY,
                            "kv head %d keeps %d tokens and protects the first %d and the last %d: "
                            "want no more protected than kept, or -1 for keep_tok",
                            h, sc->keep_lane[h], sc->protect_first, sc->protect_last);
    return KVL_OK;
}

/* Asks the policy for the scores of one layer. */
static int scores_ask(struct kvl_session *s, int32_t layer, struct kvl_scores *sc)
{
    struct kvl_engine *e = s->engine;
    int32_t heads = e->model->shape.n_kv_heads;
    size_t floats = (size_t)heads * (size_t)s->n_pos;
    *sc = (struct kvl_scores){ .n_tok = s->n_pos, .keep_tok = s->ctx.budget_tok };
    sc->score = kvl_arena_get(&e->results, floats + 1, sizeof *sc->score);
    sc->keep_lane = kvl_arena_get(&e->step, (size_t)heads, sizeof *sc->keep_lane);
    if (!sc->score || !sc->keep_lane)
        return kvl_fail(s->ctx.err, KVL_ENOMEM, "out of memory for scores");
    int rc = kvl_engine_host(e, sc->score, floats * sizeof *sc->score, true);
    KVL_TRY(kvl_engine_failed(e, "scores", rc, s->ctx.err));
    /* A token that a method leaves out has the score 0. */
    memset(sc->score, 0, floats * sizeof *sc->score);
    for (int32_t h = 0; h < heads; h++) sc->keep_lane[h] = -1;
    /* The method gets the struct to fill in, and with it two pointers that it must not change: what
     * they point to is ours. */
    const struct kvl_scores given = *sc;
    KVL_TRY(kvl_call_score(s, layer, sc));
    if (sc->score != given.score || sc->keep_lane != given.keep_lane || sc->n_tok != s->n_pos)
        return kvl_fail(s->ctx.err, KVL_EPOLICY,
                        "n_tok %d or the score buffer was changed, want %d "
                        "and the buffer as given",
                        sc->n_tok, s->n_pos);
    return scores_check(sc, heads, s->ctx.err);
}

/* What n lanes from `first` on keep, all of them `keep`: pos[lane]. */
static int scores_best(struct kvl_session *s, const struct kvl_scores *sc, int32_t first, int32_t n,
                       int32_t keep, int32_t **pos)
{
    struct kvl_engine *e = s->engine;
    int32_t middle = sc->n_tok - sc->protect_first - sc->protect_last;
    int32_t k = keep - sc->protect_first - sc->protect_last;
    int32_t *index = kvl_arena_get(&e->step, (size_t)n * (size_t)k + 1, sizeof *index);
    if (!index) return kvl_fail(s->ctx.err, KVL_ENOMEM, "out of memory for the %d best", k);
    const float *x = sc->score + (size_t)first * (size_t)sc->n_tok + sc->protect_first;
    int rc = e->now->topk(&(struct kvl_topk_args){
        .index = index, .x = x, .x_stride = (size_t)sc->n_tok, .n_rows = n, .n = middle, .k = k });
    if (rc == KVL_ENUMERIC)
        return kvl_fail(s->ctx.err, KVL_EPOLICY, "a score is not a number (NaN)");
    if (rc != KVL_OK) return kvl_fail(s->ctx.err, rc, "top-%d of %d scores", k, middle);
    for (int32_t h = first; h < first + n; h++) {
        int32_t *p = pos[h] = kvl_arena_get(&e->step, (size_t)keep + 1, sizeof *p);
        if (!p) return kvl_fail(s->ctx.err, KVL_ENOMEM, "out of memory to evict");
        /* topk gives indices in ascending order, so the three parts are one ascending list. */
        for (int32_t i = 0; i < sc->protect_first; i++) *p++ = i;
        for (int32_t i = 0; i < k; i++) *p++ = sc->protect_first + *index++;
        for (int32_t i = 0; i < sc->protect_last; i++) *p++ = sc->n_tok - sc->protect_last + i;
    }
    return KVL_OK;
}

/* Every lane was chosen before the first is cut, so that a NaN in the last evicts nothing from the others. */
static int scores_apply(struct kvl_session *s, int32_t layer, const struct kvl_scores *sc,
                        int32_t **pos)
{
    for (int32_t h = 0; h < s->engine->model->shape.n_kv_heads; h++) {
        const struct keep_head k = { .best = pos[h], .n_tokens = scores_keep(sc, h) };
        if (pos[h]) KVL_TRY(lane_keep(s, layer, h, &k));
    }
    return kvl_row_table_settle(s->engine, s->ctx.err);
}

/* Lanes that keep as many are chosen by one operator. Where everything stays, nothing is told to a trace: no
 * scores were needed. */
int kvl_score_layer(struct kvl_session *s, int32_t layer)
{
    struct kvl_engine *e = s->engine;
    int32_t heads = e->model->shape.n_kv_heads;
    struct kvl_scores sc;
    KVL_TRY(scores_ask(s, layer, &sc));
    int32_t **pos = kvl_arena_get(&e->step, (size_t)heads, sizeof *pos); /* NULL: everything */
    bool evicts = false;
    if (!pos) return kvl_fail(s->ctx.err, KVL_ENOMEM, "out of memory to evict");
    for (int32_t h = 0, n; h < heads; h += n) {
        int32_t keep = scores_keep(&sc, h);
        for (n = 1; h + n < heads && scores_keep(&sc, h + n) == keep;) n++;
        for (int32_t i = h; i < h + n; i++) pos[i] = NULL;
        if (keep == sc.n_tok) continue;
        KVL_TRY(scores_best(s, &sc, h, n, keep, pos));
        evicts = true;
    }
    if (!evicts) return KVL_OK;
    KVL_TRY(kvl_tap_score(s, &(struct kvl_tap_score){ .layer = layer,
                                                      .scope = KVL_SCOPE_KV_HEAD,
                                                      .n_lists = heads,
                                                      .unit_tok = 1,
                                                      .n = sc.n_tok,
                                                      .score = sc.score }));
    return scores_apply(s, layer, &sc, pos);
}
