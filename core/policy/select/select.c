/* The selection builder: what a policy's select hook may say, and the checks on it.
 *
 * Items live in the engine's step arena, as ascending positions or pages.  Whether a position is
 * live in its lane is checked when the selection is resolved (resolve.c). */
#include "policy_impl.h"

#include <math.h>
#include <string.h>

/* A policy that names nothing reads everything: the hook may return at once where a budget holds all. */
void kvl_sel_init(struct kvl_sel *sel, struct kvl_session *s, int32_t layer, int32_t n_pos,
                  struct kvl_err *err)
{
    *sel = (struct kvl_sel){ .s = s, .err = err, .layer = layer, .n_pos = n_pos, .n_seg = 1 };
    sel->seg[0] = (struct kvl_segment){ .everything = true, .page_tok = 1 };
}

static const char *scope_name(enum kvl_scope scope)
{
    static const char *const names[] = { "layer", "kv head", "query head" };
    return names[scope];
}

/* The segment being built, made ready for lists of this scope and unit; page_tok 0: ranges, of any unit.  The first call
 * decides the scope of a segment and the first items their unit: lists of one segment are read by one kind of job. */
static int sel_segment_for(struct kvl_sel *sel, enum kvl_scope scope, int32_t page_tok,
                           struct kvl_segment **out)
{
    struct kvl_segment *g = &sel->seg[sel->n_seg - 1];
    if (scope < KVL_SCOPE_LAYER || scope > KVL_SCOPE_Q_HEAD)
        return kvl_fail(sel->err, KVL_EPOLICY, "scope %d, want layer, kv head or query head",
                        (int)scope);
    if (!g->list) {
        g->n_lists = kvl_scope_lists(&sel->s->engine->model->shape, scope);
        g->list = kvl_arena_get(&sel->s->engine->step, (size_t)g->n_lists, sizeof *g->list);
        if (!g->list) return kvl_fail(sel->err, KVL_ENOMEM, "out of memory for a selection");
        memset(g->list, 0, (size_t)g->n_lists * sizeof *g->list);
        g->everything = false;
        g->scope = scope;
    }
    if (page_tok > 0 && !g->has_unit) g->page_tok = page_tok;
    g->has_unit = g->has_unit || page_tok > 0;
    if (g->scope != scope || (page_tok > 0 && g->page_tok != page_tok))
        return kvl_fail(sel->err, KVL_EPOLICY,
                        "a segment has lists per %s of %d tokens an item, then one per %s of %d",
                        scope_name(g->scope), g->page_tok, scope_name(scope),
                        page_tok > 0 ? page_tok : 1);
    *out = g;
    return KVL_OK;
}

/* Lists are numbered by the scope: one for the layer, one per kv head or per query head. */
static int sel_check_list(const struct kvl_sel *sel, const struct kvl_segment *g, int32_t list)
{
    if (list >= 0 && list < g->n_lists) return KVL_OK;
    return kvl_fail(sel->err, KVL_EPOLICY, "list %d, want 0 to %d (one per %s)", list,
                    g->n_lists - 1, scope_name(g->scope));
}

/* Items once per list: two calls would have to be merged, and a method that makes them twice is likely wrong. */
static int sel_list_for(struct kvl_sel *sel, struct kvl_segment *g, int32_t list,
                        struct kvl_sel_list **out)
{
    KVL_TRY(sel_check_list(sel, g, list));
    if (g->list[list].items)
        return kvl_fail(sel->err, KVL_EPOLICY, "list %d of this segment is given twice", list);
    *out = &g->list[list];
    return KVL_OK;
}

/* Checked when they are given, and not when they are used: the message then names the call of the method. */
static int sel_check_items(struct kvl_sel *sel, const char *what, const int32_t *item, int32_t n,
                           int32_t limit)
{
    if (n < 0) return kvl_fail(sel->err, KVL_EPOLICY, "%d %ss, want 0 or more", n, what);
    for (int32_t i = 0; i < n; i++) {
        if (item[i] < 0 || item[i] >= limit)
            return kvl_fail(sel->err, KVL_EPOLICY, "%s %d out of range, want 0 to %d", what,
                            item[i], limit - 1);
        if (i > 0 && item[i] <= item[i - 1])
            return kvl_fail(sel->err, KVL_EPOLICY, "%s %d after %d, want ascending and unique",
                            what, item[i], item[i - 1]);
    }
    return KVL_OK;
}

/* Items beside ranges are brought into one order once the selection is complete (sel_mix). */
static void sel_has_items(struct kvl_sel_list *l)
{
    l->given = l->items = true;
    l->loose = l->range != NULL;
}

/* Copied: scratch of the method lives as long as its hook, the selection until attention has run. */
static int sel_copy_items(struct kvl_sel *sel, struct kvl_sel_list *l, const int32_t *item,
                          int32_t n)
{
    int32_t *copy = kvl_arena_get(&sel->s->engine->step, (size_t)n + 1, sizeof *copy);
    if (!copy) return kvl_fail(sel->err, KVL_ENOMEM, "out of memory for %d items", n);
    if (n > 0) memcpy(copy, item, (size_t)n * sizeof *copy);
    l->item = copy;
    l->n = n;
    sel_has_items(l);
    return KVL_OK;
}

/* The page of the current token counts, full or not. */
static int32_t pages_of(int32_t n_pos, int32_t page_tok)
{
    return n_pos / page_tok + (n_pos % page_tok != 0);
}

/* On a GPU that runs after the hook the list is waited for, and nothing else is. */
int kvl_sel_tokens(struct kvl_sel *sel, enum kvl_scope scope, int32_t list, const int32_t *pos,
                   int32_t n)
{
    struct kvl_segment *g;
    struct kvl_sel_list *l;
    KVL_TRY(sel_segment_for(sel, scope, 1, &g));
    KVL_TRY(sel_list_for(sel, g, list, &l));
    KVL_TRY(kvl_session_look_at(sel->s, pos, n, sizeof *pos, sel->err));
    KVL_TRY(sel_check_items(sel, "position", pos, n, sel->n_pos));
    return sel_copy_items(sel, l, pos, n);
}

int kvl_sel_pages(struct kvl_sel *sel, enum kvl_scope scope, int32_t list, int32_t page_tok,
                  const int32_t *page, int32_t n)
{
    struct kvl_segment *g;
    struct kvl_sel_list *l;
    if (page_tok < 1)
        return kvl_fail(sel->err, KVL_EPOLICY, "pages of %d tokens, want at least 1", page_tok);
    KVL_TRY(sel_segment_for(sel, scope, page_tok, &g));
    KVL_TRY(sel_list_for(sel, g, list, &l));
    KVL_TRY(kvl_session_look_at(sel->s, page, n, sizeof *page, sel->err));
    KVL_TRY(sel_check_items(sel, "page", page, n, pages_of(sel->n_pos, page_tok)));
    return sel_copy_items(sel, l, page, n);
}

/* Room for one more range of a list. */
static int sel_range_room(struct kvl_sel *sel, struct kvl_sel_list *l)
{
    if (l->n_ranges < l->cap_ranges) return KVL_OK;
    int32_t cap = l->cap_ranges ? 2 * l->cap_ranges : 8;
    struct kvl_run *more = kvl_arena_get(&sel->s->engine->step, (size_t)cap, sizeof *more);
    if (!more) return kvl_fail(sel->err, KVL_ENOMEM, "out of memory for %d ranges", cap);
    if (l->n_ranges > 0) memcpy(more, l->range, (size_t)l->n_ranges * sizeof *more);
    l->range = more;
    l->cap_ranges = cap;
    return KVL_OK;
}

/* Ranges that come in order and apart stay as they are, and one that goes on from the last makes it longer;
 * others are sorted later. `open` is what lets a shared range grow with the steps that it serves. */
static int sel_add_range(struct kvl_sel *sel, struct kvl_sel_list *l, int32_t first, int32_t last)
{
    if (l->log_weight || l->keys)
        return kvl_fail(sel->err, KVL_EPOLICY,
                        "range [%d, %d) in a list with weights or keys of its own", first, last);
    KVL_TRY(sel_range_room(sel, l));
    l->given = true;
    struct kvl_run *before = l->n_ranges > 0 ? &l->range[l->n_ranges - 1] : NULL;
    l->loose = l->loose || l->items || (before && first < before->slot + before->n);
    /* An empty range gives its list all the same: to read nothing but the current token is an
     * answer. */
    if (first == last) return KVL_OK;
    l->open = l->open || last == sel->n_pos;
    if (before && first == before->slot + before->n)
        before->n += last - first;
    else
        l->range[l->n_ranges++] = (struct kvl_run){ first, last - first };
    return KVL_OK;
}

/* KVL_ALL_LISTS is resolved here, so that lists that differ in their items may share ranges. */
int kvl_sel_range(struct kvl_sel *sel, enum kvl_scope scope, int32_t list, int32_t first,
                  int32_t last)
{
    struct kvl_segment *g;
    if (first < 0 || last < first || last > sel->n_pos)
        return kvl_fail(sel->err, KVL_EPOLICY, "range [%d, %d), want 0 <= first <= last <= %d",
                        first, last, sel->n_pos);
    KVL_TRY(sel_segment_for(sel, scope, 0, &g));
    if (list != KVL_ALL_LISTS) KVL_TRY(sel_check_list(sel, g, list));
    int32_t from = list == KVL_ALL_LISTS ? 0 : list;
    int32_t end = list == KVL_ALL_LISTS ? g->n_lists : list + 1;
    for (int32_t i = from; i < end; i++) KVL_TRY(sel_add_range(sel, &g->list[i], first, last));
    return KVL_OK;
}

int kvl_sel_first(struct kvl_sel *sel, enum kvl_scope scope, int32_t list, int32_t n)
{
    return kvl_sel_range(sel, scope, list, 0, KVL_MIN(n, sel->n_pos));
}

int kvl_sel_recent(struct kvl_sel *sel, enum kvl_scope scope, int32_t list, int32_t n)
{
    return kvl_sel_range(sel, scope, list, KVL_MAX(0, sel->n_pos - n), sel->n_pos);
}

/* ---- lists of items and ranges ----------------------------------------------------------------- */

/* Items as ranges, after those that there are. */
static int mix_items(struct kvl_sel *sel, const struct kvl_segment *g, struct kvl_sel_list *l)
{
    size_t n = (size_t)l->n_ranges + (size_t)l->n;
    struct kvl_run *all = kvl_arena_get(&sel->s->engine->step, n + 1, sizeof *all);
    if (!all) return kvl_fail(sel->err, KVL_ENOMEM, "out of memory for %zu ranges", n);
    memcpy(all, l->range, (size_t)l->n_ranges * sizeof *all);
    for (int32_t i = 0; i < l->n; i++) {
        int32_t first = l->item[i] * g->page_tok;
        all[l->n_ranges + i] = (struct kvl_run){ first, KVL_MIN(g->page_tok, sel->n_pos - first) };
    }
    l->range = all;
    l->n_ranges = l->cap_ranges = (int32_t)n;
    return KVL_OK;
}

/* Ranges in ascending order, apart from each other. */
static int mix_list(struct kvl_sel *sel, const struct kvl_segment *g, struct kvl_sel_list *l)
{
    struct kvl_arena *mem = &sel->s->engine->step;
    const int32_t *order;
    KVL_TRY(mix_items(sel, g, l));
    int32_t n = l->n_ranges, m = 0;
    struct kvl_run *out = kvl_arena_get(mem, (size_t)n + 1, sizeof *out);
    int32_t *first = kvl_arena_get(mem, (size_t)n + 1, sizeof *first);
    for (int32_t i = 0; first && i < n; i++) first[i] = l->range[i].slot;
    if (!out || !first || kvl_sort_order(mem, first, n, &order) != KVL_OK)
        return kvl_fail(sel->err, KVL_ENOMEM, "out of memory for %d ranges", n);
    for (int32_t i = 0; i < n; i++) {
        struct kvl_run r = l->range[order[i]];
        int32_t end = m > 0 ? out[m - 1].slot + out[m - 1].n : -1;
        /* Neighbours are joined, too: a run more costs attention a look-up, and nothing tells them
         * apart. */
        if (m > 0 && r.slot <= end)
            out[m - 1].n += KVL_MAX(0, r.slot + r.n - end);
        else
            out[m++] = r;
    }
    l->range = out;
    l->n_ranges = m;
    l->loose = false;
    return KVL_OK;
}

/* Items that come with ranges lie in them from here on; they have to be there for that. */
static int sel_mix(struct kvl_sel *sel)
{
    for (int32_t i = 0; i < sel->n_seg; i++) {
        struct kvl_segment *g = &sel->seg[i];
        for (int32_t j = 0; j < g->n_lists; j++) {
            if (!g->list[j].loose) continue;
            KVL_TRY(kvl_sel_look(sel));
            KVL_TRY(mix_list(sel, g, &g->list[j]));
        }
    }
    return KVL_OK;
}

/* Where the items of a segment's lists are on their way to. */
static struct kvl_pieces sel_top_piece(const struct kvl_segment *g)
{
    return (struct kvl_pieces){ .data = (uint8_t *)(uintptr_t)g->top,
                                .bytes = (size_t)g->n_lists * (size_t)g->n_top * sizeof *g->top,
                                .n = 1 };
}

/* They are there. */
static int sel_fill_top(struct kvl_sel *sel, struct kvl_segment *g)
{
    struct kvl_engine *e = sel->s->engine;
    int32_t k = g->n_top;
    for (int32_t i = 0; i < g->n_lists; i++) {
        int32_t *item = kvl_arena_get(&e->step, (size_t)k + 1, sizeof *item);
        if (!item) return kvl_fail(sel->err, KVL_ENOMEM, "out of memory for %d items", k);
        /* In memory of their own, where the forced page has its place after them. */
        memcpy(item, g->top + (size_t)i * (size_t)k, (size_t)k * sizeof *item);
        if (g->forced >= 0) item[k] = g->forced;
        g->list[i].item = item;
    }
    g->top = NULL;
    return KVL_OK;
}

/* What the device chose comes over once, for all lists of a segment. */
int kvl_sel_look(struct kvl_sel *sel)
{
    struct kvl_pieces list[KVL_MAX_SEGMENTS];
    int32_t n = 0;
    for (int32_t i = 0; i < sel->n_seg; i++)
        if (sel->seg[i].top) list[n++] = sel_top_piece(&sel->seg[i]);
    if (n == 0) return KVL_OK;
    KVL_TRY(kvl_session_look_back(sel->s, list, n, sel->err));
    for (int32_t i = 0; i < sel->n_seg; i++)
        if (sel->seg[i].top) KVL_TRY(sel_fill_top(sel, &sel->seg[i]));
    return KVL_OK;
}

/* The k best of n items for every list; `forced` >= 0 is appended to each. */
static int sel_top(struct kvl_sel *sel, enum kvl_scope scope, int32_t page_tok, const float *score,
                   int32_t n, size_t stride, int32_t k, int32_t forced)
{
    struct kvl_engine *e = sel->s->engine;
    bool ahead = sel->s->host.ahead;
    struct kvl_segment *g;
    KVL_TRY(sel_segment_for(sel, scope, page_tok, &g));
    k = KVL_MIN(k, n);
    /* An operator writes them; the host looks only where it must (kvl_sel_look). */
    int32_t *index = kvl_arena_get(&e->results, (size_t)g->n_lists * (size_t)k + 1, sizeof *index);
    if (!index) return kvl_fail(sel->err, KVL_ENOMEM, "out of memory for the %d best", k);
    int rc = (ahead ? e->ops : e->now)
                 ->topk(&(struct kvl_topk_args){ .index = index,
                                                 .x = score,
                                                 .x_stride = stride,
                                                 .n_rows = g->n_lists,
                                                 .n = n,
                                                 .k = k });
    if (rc == KVL_ENUMERIC) return kvl_fail(sel->err, KVL_EPOLICY, "a score is not a number (NaN)");
    if (rc != KVL_OK) return kvl_fail(sel->err, rc, "top-%d of %d scores", k, n);
    for (int32_t i = 0; i < g->n_lists; i++) {
        struct kvl_sel_list *l;
        KVL_TRY(sel_list_for(sel, g, i, &l));
        l->n = k + (forced >= 0);
        sel_has_items(l);
    }
    g->top = index;
    g->n_top = k;
    g->n_scored = n;
    g->forced = forced;
    if (!ahead) KVL_TRY(kvl_sel_look(sel));
    /* A trace gets all scores of a list (`stride`), the forced page's among them, though it did not
     * compete. */
    return kvl_tap_score(sel->s, &(struct kvl_tap_score){ .layer = sel->layer,
                                                          .scope = scope,
                                                          .n_lists = g->n_lists,
                                                          .unit_tok = page_tok,
                                                          .n = (int32_t)stride,
                                                          .score = score });
}

int kvl_sel_top_tokens(struct kvl_sel *sel, enum kvl_scope scope, const float *score, int32_t n,
                       int32_t k)
{
    if (n < 0 || n > sel->n_pos || k < 0)
        return kvl_fail(sel->err, KVL_EPOLICY, "the %d best of %d positions, want n <= %d, k >= 0",
                        k, n, sel->n_pos);
    return sel_top(sel, scope, 1, score, n, (size_t)n, k, -1);
}

/* The newest page is forced in and does not compete: it is not full, and its score says little. */
int kvl_sel_top_pages(struct kvl_sel *sel, enum kvl_scope scope, const float *score,
                      int32_t n_pages, int32_t k, int32_t page_tok, bool last)
{
    if (page_tok < 1 || n_pages != pages_of(sel->n_pos, page_tok) || k < (last ? 1 : 0))
        return kvl_fail(sel->err, KVL_EPOLICY,
                        "the %d best of %d pages of %d tokens, want %d pages and k >= %d", k,
                        n_pages, page_tok, page_tok < 1 ? 0 : pages_of(sel->n_pos, page_tok),
                        last ? 1 : 0);
    int32_t forced = last ? n_pages - 1 : -1;
    return sel_top(sel, scope, page_tok, score, n_pages - (last ? 1 : 0), (size_t)n_pages,
                   k - (last ? 1 : 0), forced);
}

/* Keys are stored as RoPE turned them. Other positions turn them anew, which needs those before it. */
int kvl_sel_positions(struct kvl_sel *sel, enum kvl_pos_mode mode, int32_t arg)
{
    if (mode < KVL_POS_ORIGINAL || mode > KVL_POS_GROUPED)
        return kvl_fail(sel->err, KVL_EPOLICY, "position mode %d, want 0 to %d", (int)mode,
                        KVL_POS_GROUPED);
    if (mode != KVL_POS_ORIGINAL && !sel->s->planned->raw_keys)
        return kvl_fail(sel->err, KVL_EPOLICY,
                        "other positions need keys before RoPE: set plan->raw_keys");
    if (mode == KVL_POS_GROUPED && arg < 1)
        return kvl_fail(sel->err, KVL_EPOLICY, "positions in groups of %d, want 1 or more", arg);
    if (arg < 0)
        return kvl_fail(sel->err, KVL_EPOLICY, "positions at distance %d, want 0 or more", arg);
    sel->seg[sel->n_seg - 1].mode = mode;
    sel->seg[sel->n_seg - 1].arg = arg;
    return KVL_OK;
}

int kvl_sel_query_position(struct kvl_sel *sel, int32_t pos)
{
    if (pos < 0)
        return kvl_fail(sel->err, KVL_EPOLICY, "query at position %d, want 0 or more", pos);
    sel->seg[sel->n_seg - 1].q_pos = pos;
    sel->seg[sel->n_seg - 1].has_q_pos = true;
    return KVL_OK;
}

/* A list with weights has no ranges: a weight belongs to an item, and ranges are merged. */
int kvl_sel_log_weights(struct kvl_sel *sel, enum kvl_scope scope, int32_t list,
                        const float *log_weight, int32_t n)
{
    struct kvl_segment *g = &sel->seg[sel->n_seg - 1];
    if (!g->list || g->scope != scope || g->page_tok != 1 || list < 0 || list >= g->n_lists ||
        !g->list[list].given || g->list[list].range || g->list[list].n != n)
        return kvl_fail(
            sel->err, KVL_EPOLICY,
            "%d log-weights for list %d: want a token list of that length, given before", n, list);
    KVL_TRY(kvl_session_look_at(sel->s, log_weight, n, sizeof *log_weight, sel->err));
    for (int32_t i = 0; i < n; i++)
        if (!isfinite(log_weight[i]))
            return kvl_fail(sel->err, KVL_EPOLICY, "log-weight %d is %g, want a finite number", i,
                            (double)log_weight[i]);
    float *copy = kvl_arena_get(&sel->s->engine->step, (size_t)n + 1, sizeof *copy);
    if (!copy) return kvl_fail(sel->err, KVL_ENOMEM, "out of memory for %d log-weights", n);
    if (n > 0) memcpy(copy, log_weight, (size_t)n * sizeof *copy);
    copy[n] = 0.0f; /* the current token, should the engine add it */
    g->list[list].log_weight = copy;
    return KVL_OK;
}

/* Carried out after all merges (engine/resolve.c); checked here, since a NaN would spoil the layer
 * and not the list. */
int kvl_sel_residual(struct kvl_sel *sel, const float *alpha, const float *value)
{
    const struct kvl_shape *sh = &sel->s->engine->model->shape;
    size_t n_heads = (size_t)sh->n_heads, n = (size_t)sh->n_kv_heads * (size_t)sh->head_dim;
    if (sel->residual_alpha) return kvl_fail(sel->err, KVL_EPOLICY, "a residual is given twice");
    KVL_TRY(kvl_session_look_at(sel->s, alpha, sh->n_heads, sizeof *alpha, sel->err));
    KVL_TRY(kvl_session_look_at(sel->s, value, sh->n_kv_heads, (size_t)sh->head_dim * sizeof *value,
                                sel->err));
    for (size_t i = 0; i < n_heads; i++)
        if (!(alpha[i] >= 0.0f && alpha[i] <= 1.0f))
            return kvl_fail(sel->err, KVL_EPOLICY, "residual: alpha %zu is %g, want 0 to 1", i,
                            (double)alpha[i]);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(value[i]))
            return kvl_fail(sel->err, KVL_EPOLICY,
                            "residual: value %zu is %g, want a finite number", i, (double)value[i]);
    float *copy = kvl_arena_get(&sel->s->engine->step, n_heads + n, sizeof *copy);
    if (!copy) return kvl_fail(sel->err, KVL_ENOMEM, "out of memory for a residual");
    memcpy(copy, alpha, n_heads * sizeof *copy);
    memcpy(copy + n_heads, value, n * sizeof *copy);
    sel->residual_alpha = copy;
    sel->residual_value = copy + n_heads;
    return KVL_OK;
}

/* After "everything" another segment could only overlap. */
int kvl_sel_segment(struct kvl_sel *sel)
{
    if (sel->n_seg == KVL_MAX_SEGMENTS)
        return kvl_fail(sel->err, KVL_EPOLICY, "more than %d segments", KVL_MAX_SEGMENTS);
    if (sel->seg[sel->n_seg - 1].everything)
        return kvl_fail(sel->err, KVL_EPOLICY,
                        "another segment after one that has everything: name its items first");
    sel->seg[sel->n_seg++] = (struct kvl_segment){ .page_tok = 1 };
    return KVL_OK;
}

/* Layers as the policy counts them, kept as the model does: in between may lie layers of a window. */
int kvl_sel_share(struct kvl_sel *sel, int32_t layer_last, int32_t n_steps)
{
    const struct kvl_planned *p = sel->s->planned;
    int32_t seen = kvl_seen_as(p, sel->layer);
    if (layer_last < seen || layer_last >= p->shape.n_layers || n_steps < 1)
        return kvl_fail(sel->err, KVL_EPOLICY,
                        "shared up to layer %d for %d steps, want layer %d to %d, at least 1 step",
                        layer_last, n_steps, seen, p->shape.n_layers - 1);
    sel->share_layer = p->layer_of ? p->layer_of[layer_last] : layer_last;
    sel->share_steps = n_steps;
    return KVL_OK;
}

/* A query position belongs to grouped positions, and to one step. */
static int sel_check_positions(const struct kvl_sel *sel, const struct kvl_segment *g)
{
    bool grouped = g->mode == KVL_POS_GROUPED;
    if (grouped != g->has_q_pos)
        return kvl_fail(sel->err, KVL_EPOLICY,
                        "grouped positions and a query position go together, a segment has only "
                        "one of them");
    if (grouped && sel->share_steps > 1)
        return kvl_fail(sel->err, KVL_EPOLICY,
                        "a query position, which is this step's alone, is shared with %d steps",
                        sel->share_steps);
    return KVL_OK;
}

/* Keys that were given are those of one layer and step, at their own positions. */
static int sel_check_keys(const struct kvl_sel *sel, const struct kvl_segment *g)
{
    for (int32_t j = 0; j < g->n_lists; j++) {
        if (!g->list[j].keys) continue;
        if (sel->share_steps > 0)
            return kvl_fail(sel->err, KVL_EPOLICY,
                            "a selection with given keys, which are this layer's alone, is shared");
        if (g->mode != KVL_POS_ORIGINAL)
            return kvl_fail(sel->err, KVL_EPOLICY,
                            "given keys at other than their original positions");
    }
    return KVL_OK;
}

/* What belongs together can only be checked when all of it was said. What is of this query, layer or step alone
 * cannot be shared with others. */
int kvl_sel_complete(struct kvl_sel *sel)
{
    if (sel->pseudo && sel->share_steps > 0)
        return kvl_fail(sel->err, KVL_EPOLICY,
                        "a selection with pseudo-entries, which are this query's alone, is shared");
    if (sel->residual_alpha && sel->share_steps > 0)
        return kvl_fail(sel->err, KVL_EPOLICY,
                        "a selection with a residual, which is this query's alone, is shared");
    for (int32_t i = 0; i < sel->n_seg; i++) {
        const struct kvl_segment *g = &sel->seg[i];
        KVL_TRY(sel_check_positions(sel, g));
        if (g->everything) continue;
        if (!g->list) return kvl_fail(sel->err, KVL_EPOLICY, "segment %d names no list", i);
        KVL_TRY(sel_check_keys(sel, g));
        for (int32_t j = 0; j < g->n_lists; j++)
            if (!g->list[j].given)
                return kvl_fail(sel->err, KVL_EPOLICY, "list %d of %d (one per %s) is missing", j,
                                g->n_lists, scope_name(g->scope));
    }
    /* Last, since it waits for lists that are still on the device: a selection that is refused has
     * not waited. */
    return sel_mix(sel);
}
