/* What each head reads, as a selection says it: lists of pages and positions, checked against what is
 * live.
 *
 * In a lane that holds everything a slot is a position, and a list becomes runs at once: a page costs
 * as much as a token, and a list for the whole layer is made once for all its heads. */
#include "head_lists.h"

#include <string.h>

int kvl_head_list_no_memory(const struct kvl_head *h)
{
    return kvl_fail(h->r->sel->err, KVL_ENOMEM, "out of memory to resolve a selection of layer %d",
                    h->layer);
}

/* ---- lists -------------------------------------------------------------------------- */

static const struct kvl_sel_list *segment_list(const struct kvl_segment *g,
                                               const struct kvl_head *h, int32_t q_head)
{
    if (g->scope == KVL_SCOPE_LAYER) return &g->list[0];
    return &g->list[g->scope == KVL_SCOPE_KV_HEAD ? h->kv_head : q_head];
}

/* A complete list has its items in its ranges, where it has ranges at all. */
static int32_t list_entries(const struct kvl_sel_list *l)
{
    return l->range ? l->n_ranges : l->n;
}

/* Positions of entry i of a list: a token, a page or a range. */
static struct kvl_run list_entry(const struct kvl_head *h, const struct kvl_segment *g,
                                 const struct kvl_sel_list *l, int32_t i)
{
    int32_t n_pos = h->r->sel->n_pos;
    if (!l->range) {
        int32_t first = l->item[i] * g->page_tok;
        return (struct kvl_run){ first, KVL_MIN(g->page_tok, n_pos - first) };
    }
    struct kvl_run r = l->range[i];
    if (l->open && i == l->n_ranges - 1) r.n = n_pos - r.slot;
    return r;
}

/* Entries ascend, so the last one tells. */
static bool list_has_current(const struct kvl_head *h, const struct kvl_segment *g,
                             const struct kvl_sel_list *l)
{
    int32_t n = list_entries(l), n_pos = h->r->sel->n_pos;
    if (n == 0) return false;
    struct kvl_run last = list_entry(h, g, l, n - 1);
    return last.slot + last.n == n_pos;
}

/* No segment reads the current token for this query head. */
static bool current_is_missing(const struct kvl_head *h, int32_t q_head)
{
    const struct kvl_sel *sel = h->r->sel;
    for (int32_t i = 0; i < sel->n_seg; i++) {
        const struct kvl_segment *g = &sel->seg[i];
        if (g->everything) return false;
        if (list_has_current(h, g, segment_list(g, h, q_head))) return false;
    }
    return true;
}

/* What a layer of a window reads: neighbouring slots, the newest. */
static int items_local(const struct kvl_head *h, int32_t window, struct kvl_head_list *out)
{
    int32_t n = KVL_MIN(window, h->live), first = h->live - n;
    struct kvl_run *run = kvl_arena_get(&h->e->step, 1, sizeof *run);
    int32_t *pos = h->s->dead ? kvl_arena_get(&h->e->step, 2 * (size_t)n, sizeof *pos) : NULL;
    if (!run || (h->s->dead && !pos)) return kvl_head_list_no_memory(h);
    *run = (struct kvl_run){ first, n };
    *out = (struct kvl_head_list){ .run = run, .n_runs = 1, .n = n };
    out->shift = h->r->sel->n_pos - h->live;
    if (!pos) return KVL_OK;
    for (int32_t i = 0; i < n; i++) {
        pos[i] = h->r->sel->n_pos - n + i;
        pos[n + i] = first + i;
    }
    *out = (struct kvl_head_list){ .pos = pos, .slot = pos + n, .n = n };
    return KVL_OK;
}

/* No list is made: kernels go through the lane as it lies. Positions are only wanted where lists are
 * compared. */
static int items_everything(const struct kvl_head *h, bool want_positions,
                            struct kvl_head_list *out)
{
    int32_t window = kvl_window_of(h->e, h->layer);
    if (window > 0) return items_local(h, window, out);
    *out = (struct kvl_head_list){ .everything = true, .n = h->live };
    if (h->s->dead || (want_positions && !h->whole)) {
        out->pos = kvl_live_positions(h->s, h->layer, h->kv_head, &out->n, &out->slot);
        if (!out->pos) return kvl_head_list_no_memory(h);
    }
    return KVL_OK;
}

/* Positions of pages as far as they exist: the new n. */
static int32_t items_from_pages(const struct kvl_head *h, const struct kvl_segment *g,
                                const struct kvl_sel_list *l, int32_t *pos)
{
    int32_t n = 0;
    for (int32_t i = 0; i < l->n; i++) {
        int32_t first = l->item[i] * g->page_tok;
        int32_t last = KVL_MIN(first + g->page_tok, h->r->sel->n_pos);
        for (int32_t p = first; p < last; p++) pos[n++] = p;
    }
    return n;
}

/* Keeps those of *n positions of a lane with holes that are live; where `all` have to be, another is refused: only
 * here, and not when the list was given, since a shared list may meet a lane that has lost tokens since. Looked up
 * together, for a search goes on where the last one ended; *slot: where they are, NULL under the mask oracle. */
static int items_live(const struct kvl_head *h, bool all, int32_t *pos, int32_t *n,
                      const int32_t **slot)
{
    int32_t m = 0, *found = NULL;
    if (!h->s->dead) {
        found = kvl_arena_get(&h->e->step, (size_t)*n + 1, sizeof *found);
        if (!found) return kvl_head_list_no_memory(h);
        (void)kvl_seq_find(h->s->seq, h->layer, h->kv_head, pos, *n, found);
    }
    for (int32_t i = 0; i < *n; i++) {
        if (found ? found[i] >= 0 : kvl_lane_has(h->s, h->layer, h->kv_head, pos[i])) {
            if (found) found[m] = found[i];
            pos[m++] = pos[i];
        } else if (all) {
            return kvl_fail(h->r->sel->err, KVL_EPOLICY,
                            "position %d was evicted from layer %d, kv head %d", pos[i], h->layer,
                            h->kv_head);
        }
    }
    *n = m;
    *slot = found;
    return KVL_OK;
}

/* A list of a whole lane, with the current token after it where `current` is not negative. */
static int items_runs(const struct kvl_head *h, const struct kvl_segment *g,
                      const struct kvl_sel_list *l, int32_t current, struct kvl_head_list *out)
{
    int32_t m = 0, n = 0, n_entries = list_entries(l);
    struct kvl_run *run = kvl_arena_get(&h->e->step, (size_t)n_entries + 1, sizeof *run);
    if (!run) return kvl_head_list_no_memory(h);
    for (int32_t i = 0; i < n_entries + (current >= 0); i++) {
        struct kvl_run r = { current, 1 };
        if (i < n_entries) r = list_entry(h, g, l, i);
        n += r.n;
        if (m > 0 && run[m - 1].slot + run[m - 1].n == r.slot)
            run[m - 1].n += r.n;
        else
            run[m++] = r;
    }
    /* A list of all there is goes the same way as "everything": same order, same rounding. */
    bool all = n == h->live && !l->log_weight && !l->keys;
    *out = (struct kvl_head_list){ .everything = all,
                                   .run = run,
                                   .n_runs = m,
                                   .n = n,
                                   .log_weight = l->log_weight,
                                   .keys = l->keys,
                                   .n_keys = l->keys ? l->n : 0 };
    return KVL_OK;
}

int32_t kvl_lower_bound(const int32_t *v, int32_t n, int32_t x)
{
    int32_t lo = 0;
    while (lo < n) {
        int32_t mid = lo + (n - lo) / 2;
        if (v[mid] < x)
            lo = mid + 1;
        else
            n = mid;
    }
    return lo;
}

/* Ranges of a lane with holes, or under the mask oracle: what is live of them.  The current token is
 * the last of the live ones. */
static int items_ranges(const struct kvl_head *h, const struct kvl_segment *g,
                        const struct kvl_sel_list *l, int32_t current, struct kvl_head_list *out)
{
    int32_t n_live, n = 0, n_entries = list_entries(l);
    const int32_t *slot, *live = kvl_live_positions(h->s, h->layer, h->kv_head, &n_live, &slot);
    if (!live) return kvl_head_list_no_memory(h);
    int32_t *pos = kvl_arena_get(&h->e->step, (size_t)n_live + 1, sizeof *pos);
    int32_t *at = slot ? kvl_arena_get(&h->e->step, (size_t)n_live + 1, sizeof *at) : NULL;
    if (!pos || (slot && !at)) return kvl_head_list_no_memory(h);
    for (int32_t i = 0; i < n_entries + (current >= 0); i++) {
        struct kvl_run r = { current, 1 };
        if (i < n_entries) r = list_entry(h, g, l, i);
        int32_t from = kvl_lower_bound(live, n_live, r.slot);
        int32_t len = kvl_lower_bound(live, n_live, r.slot + r.n) - from;
        if (len == 0) continue;
        memcpy(pos + n, live + from, (size_t)len * sizeof *pos);
        if (at) memcpy(at + n, slot + from, (size_t)len * sizeof *at);
        n += len;
    }
    *out = (struct kvl_head_list){ .pos = pos, .slot = at, .n = n };
    return KVL_OK;
}

/* The same for a lane with holes, or under the mask oracle. */
static int items_positions(const struct kvl_head *h, const struct kvl_segment *g,
                           const struct kvl_sel_list *l, int32_t current, struct kvl_head_list *out)
{
    size_t room = KVL_MIN((size_t)l->n * (size_t)g->page_tok, (size_t)h->r->sel->n_pos) + 1;
    bool ranges = l->range != NULL, tokens = g->page_tok == 1;
    if (ranges && !(l->items && tokens)) return items_ranges(h, g, l, current, out);
    int32_t *pos = kvl_arena_get(&h->e->step, room, sizeof *pos), n = l->n;
    const int32_t *slot;
    if (!pos) return kvl_head_list_no_memory(h);
    if (!tokens)
        n = items_from_pages(h, g, l, pos);
    else if (n > 0)
        memcpy(pos, l->item, (size_t)n * sizeof *pos);
    if (current >= 0) pos[n++] = current;
    /* A page may have lost tokens, which leaves its others; a token that was named must be
     * there. */
    KVL_TRY(items_live(h, tokens, pos, &n, &slot));
    if (ranges) return items_ranges(h, g, l, current, out);
    *out = (struct kvl_head_list){ .pos = pos,
                                   .slot = slot,
                                   .n = n,
                                   .log_weight = l->log_weight,
                                   .keys = l->keys,
                                   .n_keys = l->keys ? l->n : 0 };
    return KVL_OK;
}

static int items_with(const struct kvl_head *h, int32_t i_seg, int32_t q_head, int32_t current,
                      struct kvl_head_list *out)
{
    const struct kvl_segment *g = &h->r->sel->seg[i_seg];
    bool moved = g->mode == KVL_POS_IN_CACHE || g->mode == KVL_POS_GROUPED;
    if (g->everything) return items_everything(h, moved || h->r->probs, out);
    const struct kvl_sel_list *l = segment_list(g, h, q_head);
    return h->whole ? items_runs(h, g, l, current, out) : items_positions(h, g, l, current, out);
}

/* A list of a whole lane that the host has not read; what follows its items ends with the current token. */
static void items_top(const struct kvl_head *h, const struct kvl_segment *g,
                      struct kvl_head_list *out)
{
    size_t list = g->scope == KVL_SCOPE_LAYER ? 0 : (size_t)h->kv_head;
    int32_t n_pos = h->r->sel->n_pos;
    int32_t tail = g->forced < 0 ? n_pos - 1 : g->forced * g->page_tok;
    *out = (struct kvl_head_list){ .page = g->top + list * (size_t)g->n_top,
                                   .n_pages = g->n_top,
                                   .page_tok = g->page_tok,
                                   .tail = tail,
                                   .n = g->n_top * g->page_tok + n_pos - tail };
    if (out->n == h->live) *out = (struct kvl_head_list){ .everything = true, .n = out->n };
}

/* The list of one segment for one query head, with the current token where it belongs. */
static int items_of(const struct kvl_head *h, int32_t i_seg, int32_t q_head,
                    struct kvl_head_list *out)
{
    if (h->r->sel->seg[i_seg].top) {
        items_top(h, &h->r->sel->seg[i_seg], out);
        return KVL_OK;
    }
    bool adds = i_seg == 0 && current_is_missing(h, q_head);
    return items_with(h, i_seg, q_head, adds ? h->r->sel->n_pos - 1 : -1, out);
}

int kvl_head_list_named(const struct kvl_head *h, int32_t i_seg, int32_t q_head,
                        struct kvl_head_list *out)
{
    return items_with(h, i_seg, q_head, -1, out);
}

/* A segment has a list per query head, not one for the group. */
bool kvl_head_list_split(const struct kvl_segment *g)
{
    return !g->everything && g->scope == KVL_SCOPE_Q_HEAD;
}

/* All lists of a head; those of `before`, another head of the layer, where they are the same. */
int kvl_head_list_get(struct kvl_head *h, const struct kvl_head *before)
{
    const struct kvl_sel *sel = h->r->sel;
    int32_t group = kvl_group(&h->e->model->shape);
    bool same = before && before->whole && h->whole;
    for (int32_t i = 0; i < sel->n_seg; i++)
        same = same && !sel->seg[i].everything && sel->seg[i].scope == KVL_SCOPE_LAYER;
    for (int32_t i = 0; i < sel->n_seg; i++) {
        int32_t n = kvl_head_list_split(&sel->seg[i]) ? group : 1;
        h->lists[i] =
            same ? before->lists[i] : kvl_arena_get(&h->e->step, (size_t)n, sizeof *h->lists[i]);
        if (!h->lists[i]) return kvl_head_list_no_memory(h);
        for (int32_t j = 0; !same && j < n; j++)
            KVL_TRY(items_of(h, i, h->kv_head * group + j, &h->lists[i][j]));
    }
    return KVL_OK;
}

/* ---- questions to lists -------------------------------------------------------------------------- */

/* Entry i of a list: where it begins, and how many positions it has. */
static struct kvl_run items_at(const struct kvl_head_list *it, int32_t i)
{
    if (it->run) return (struct kvl_run){ it->run[i].slot + it->shift, it->run[i].n };
    return (struct kvl_run){ it->pos[i], 1 };
}

static int32_t items_count(const struct kvl_head_list *it)
{
    return it->run ? it->n_runs : it->n;
}

bool kvl_head_list_have(const struct kvl_head *h, const struct kvl_head_list *it, int32_t pos)
{
    if (!it->run && !it->pos) return kvl_lane_has(h->s, h->layer, h->kv_head, pos);
    int32_t lo = 0, hi = items_count(it);
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        struct kvl_run r = items_at(it, mid);
        if (pos >= r.slot && pos < r.slot + r.n) return true;
        if (r.slot < pos)
            lo = mid + 1;
        else
            hi = mid;
    }
    return false;
}

/* Lists of several segments may name a token twice, and its weight would then count twice in the merge.  Sorted by where
 * they begin, runs overlap where one begins before the end of those before it; what is told is the union, and the first
 * slot that two runs have. */
int kvl_head_list_overlap(const struct kvl_head *h, const struct kvl_head_list *const *lists,
                          int32_t n_lists, struct kvl_overlap *out)
{
    size_t total = 0;
    for (int32_t i = 0; i < n_lists; i++) total += (size_t)items_count(lists[i]);
    struct kvl_run *all = kvl_arena_get(&h->e->step, total + 1, sizeof *all);
    int32_t *first = kvl_arena_get(&h->e->step, total + 1, sizeof *first), n = 0;
    const int32_t *order;
    if (!all || !first) return kvl_head_list_no_memory(h);
    for (int32_t i = 0; i < n_lists; i++)
        for (int32_t j = 0; j < items_count(lists[i]); j++, n++) {
            all[n] = items_at(lists[i], j);
            first[n] = all[n].slot;
        }
    if (kvl_sort_order(&h->e->step, first, n, &order) != KVL_OK) return kvl_head_list_no_memory(h);
    *out = (struct kvl_overlap){ .twice = -1 };
    for (int32_t i = 0, end = 0; i < n; i++) {
        struct kvl_run r = all[order[i]];
        int32_t from = KVL_MAX(r.slot, end), to = r.slot + r.n;
        if (r.slot < end && out->twice < 0) out->twice = r.slot;
        if (to <= end) continue;
        out->n += to - from;
        end = to;
    }
    return KVL_OK;
}

/* Positions of a list, where it has runs or nothing so far. */
int kvl_head_list_expand(const struct kvl_head *h, const struct kvl_head_list *it,
                         const int32_t **pos, int32_t *n)
{
    *pos = it->pos;
    *n = it->n;
    if (it->pos) return KVL_OK;
    if (!it->run) {
        *pos = kvl_live_positions(h->s, h->layer, h->kv_head, n, NULL);
        return *pos ? KVL_OK : kvl_head_list_no_memory(h);
    }
    int32_t *to = kvl_arena_get(&h->e->step, (size_t)it->n + 1, sizeof *to), m = 0;
    if (!to) return kvl_head_list_no_memory(h);
    for (int32_t i = 0; i < it->n_runs; i++)
        for (int32_t j = 0; j < it->run[i].n; j++) to[m++] = it->run[i].slot + it->shift + j;
    *pos = to;
    return KVL_OK;
}
