/* Which positions of a lane are there: whole lanes, evicted lanes, lanes under the mask oracle. */
#include "session_impl.h"

#include <string.h>

static const uint8_t *dead_row(const struct kvl_session *s, int32_t layer, int32_t kv_head)
{
    const struct kvl_shape *sh = &s->engine->model->shape;
    return s->dead +
           ((size_t)layer * (size_t)sh->n_kv_heads + (size_t)kv_head) * (size_t)s->dead_cap;
}

bool kvl_lane_is_whole(const struct kvl_session *s, int32_t layer, int32_t kv_head)
{
    struct kvl_lane lane = kvl_seq_lane(s->seq, layer, kv_head);
    if (s->dead) return false;
    /* Sorted, unique and without a gap at the end: every position is there. */
    int32_t n = lane.n_slots;
    if (!lane.sorted || n == 0) return n == 0;
    const struct kvl_layout *lo = lane.layout;
    int32_t last = n - 1;
    return kvl_lane_pos(&lane, last >> lo->block_shift)[last & (lo->block_tok - 1)] == last;
}

bool kvl_lane_has(const struct kvl_session *s, int32_t layer, int32_t kv_head, int32_t pos)
{
    if (s->dead) {
        return pos >= 0 && pos < kvl_seq_len(s->seq, layer, kv_head) &&
               !dead_row(s, layer, kv_head)[pos];
    }
    if (kvl_lane_is_whole(s, layer, kv_head))
        return pos >= 0 && pos < kvl_seq_len(s->seq, layer, kv_head);
    int32_t slot;
    return kvl_seq_find(s->seq, layer, kv_head, &pos, 1, &slot) == 1;
}

/* Merges two neighbouring ascending runs of `from` into `to`. */
static void merge_runs(const int32_t *v, const int32_t *from, int32_t *to, int32_t a, int32_t mid,
                       int32_t b)
{
    int32_t i = a, j = mid;
    for (int32_t k = a; k < b; k++)
        to[k] = j == b || (i < mid && v[from[i]] < v[from[j]]) ? from[i++] : from[j++];
}

/* Natural merge sort: lists of a group, one after the other, are a few ascending runs. */
int kvl_sort_order(struct kvl_arena *a, const int32_t *v, int32_t n, const int32_t **order)
{
    int32_t *cur = kvl_arena_get(a, (size_t)n + 1, sizeof *cur);
    int32_t *other = kvl_arena_get(a, (size_t)n + 1, sizeof *other);
    int32_t *start = kvl_arena_get(a, (size_t)n + 2, sizeof *start);
    if (!cur || !other || !start) return KVL_ENOMEM;
    int32_t n_runs = 0;
    for (int32_t i = 0; i < n; i++) {
        cur[i] = i;
        if (i == 0 || v[i] < v[i - 1]) start[n_runs++] = i;
    }
    start[n_runs] = n;
    while (n_runs > 1) {
        int32_t m = 0;
        for (int32_t r = 0; r < n_runs; r += 2) {
            int32_t lo = start[r], mid = start[r + 1], hi = r + 2 <= n_runs ? start[r + 2] : mid;
            merge_runs(v, cur, other, lo, mid, hi);
            start[m++] = lo;
        }
        start[m] = n;
        n_runs = m;
        int32_t *t = cur;
        cur = other;
        other = t;
    }
    *order = cur;
    return KVL_OK;
}

static const int32_t *live_under_mask(struct kvl_session *s, int32_t layer, int32_t kv_head,
                                      int32_t *n)
{
    int32_t len = kvl_seq_len(s->seq, layer, kv_head);
    int32_t *pos = kvl_arena_get(&s->engine->step, (size_t)len + 1, sizeof *pos);
    if (!pos) return NULL;
    const uint8_t *dead = dead_row(s, layer, kv_head);
    *n = 0;
    for (int32_t i = 0; i < len; i++)
        if (!dead[i]) pos[(*n)++] = i;
    return pos;
}

const int32_t *kvl_live_positions(struct kvl_session *s, int32_t layer, int32_t kv_head, int32_t *n,
                                  const int32_t **slot)
{
    if (slot) *slot = NULL;
    if (s->dead) return live_under_mask(s, layer, kv_head, n);
    struct kvl_arena *a = &s->engine->step;
    *n = kvl_seq_len(s->seq, layer, kv_head);
    int32_t *pos = kvl_arena_get(a, (size_t)*n + 1, sizeof *pos);
    int32_t *slots = kvl_arena_get(a, (size_t)*n + 1, sizeof *slots);
    if (!pos || !slots) return NULL;
    kvl_seq_ranks(s->seq, layer, kv_head, pos, slots);
    if (slot) *slot = slots;
    return pos;
}

const int32_t *kvl_live_view(struct kvl_session *s, int32_t layer, int32_t kv_head, int32_t *n)
{
    if (s->dead) return live_under_mask(s, layer, kv_head, n);
    const int32_t *order = kvl_seq_order(s->seq, layer, kv_head);
    *n = kvl_seq_len(s->seq, layer, kv_head);
    if (order) return order;
    int32_t *pos = kvl_arena_get(&s->engine->step, (size_t)*n + 1, sizeof *pos);
    if (pos) kvl_seq_positions(s->seq, layer, kv_head, pos);
    return pos;
}

/* ---- rows that close ranks ------------------------------------------------------------------------- */

int32_t kvl_lane_runs(const int32_t *gone, int32_t n_gone, int32_t n_live, struct kvl_rows_run *run)
{
    int32_t n_runs = 0;
    for (int32_t i = 0; i < n_gone; i++) {
        int32_t from = gone[i] + 1, end = i + 1 < n_gone ? gone[i + 1] : n_live;
        if (from < end)
            run[n_runs++] =
                (struct kvl_rows_run){ .from = from, .to = from - (i + 1), .n = end - from };
    }
    return n_runs;
}

void kvl_lane_rows_keep(const struct kvl_rows_lane *l, const struct kvl_rows_run *run)
{
    size_t size = (size_t)l->elem_bytes;
    for (int32_t c = 0; c < l->n_columns; c++) {
        uint8_t *column = l->data + (size_t)c * l->column_bytes;
        for (int32_t i = 0; i < l->n_runs; i++)
            memmove(column + (size_t)run[i].to * size, column + (size_t)run[i].from * size,
                    (size_t)run[i].n * size);
        memset(column + (size_t)l->n_kept * size, 0, (size_t)(l->n_live - l->n_kept) * size);
    }
}
