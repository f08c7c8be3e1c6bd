/* What a selection under construction says, position by position, for policies that change what
 * another one chose. */
#include "head_lists.h"

#include <string.h>

/* Log-weights, keys, other positions: a list of positions would lose them. */
static bool segment_is_plain(const struct kvl_segment *g)
{
    for (int32_t i = 0; g->list && i < g->n_lists; i++)
        if (g->list[i].log_weight || g->list[i].keys) return false;
    return g->mode == KVL_POS_ORIGINAL;
}

/* Pseudo-entries and residuals have no positions, so a pruned list would lose what they stand for. */
static bool sel_is_plain(const struct kvl_sel *sel)
{
    for (int32_t i = 0; i < sel->n_seg; i++)
        if (!segment_is_plain(&sel->seg[i])) return false;
    return !sel->pseudo && !sel->residual_alpha;
}

/* Refused and not approximated: what a pruned selection would lose changes answers. */
static int view_check(const struct kvl_sel *sel, int32_t q_head)
{
    int32_t n_heads = sel->s->engine->model->shape.n_heads;
    if (q_head < 0 || q_head >= n_heads)
        return kvl_fail(sel->err, KVL_EPOLICY, "view of query head %d, want 0 to %d", q_head,
                        n_heads - 1);
    if (sel_is_plain(sel)) return KVL_OK;
    return kvl_fail(
        sel->err, KVL_EINVAL,
        "a selection with weights, keys, positions or entries of its own is more than a "
        "list of tokens, and cannot be viewed as one");
}

/* Ascending positions of all segments, which do not overlap. */
static int view_merge(const struct kvl_head *h, const struct kvl_head_list *part, int32_t n_parts,
                      const int32_t **pos, int32_t *n)
{
    const int32_t *from[KVL_MAX_SEGMENTS];
    int32_t len[KVL_MAX_SEGMENTS], total = 0, at = 0;
    for (int32_t i = 0; i < n_parts; i++) {
        KVL_TRY(kvl_head_list_expand(h, &part[i], &from[i], &len[i]));
        total += len[i];
    }
    *pos = from[0];
    *n = len[0];
    if (n_parts == 1) return KVL_OK;
    int32_t *all = kvl_arena_get(&h->e->step, (size_t)total + 1, sizeof *all);
    int32_t *out = kvl_arena_get(&h->e->step, (size_t)total + 1, sizeof *out);
    const int32_t *order;
    if (!all || !out) return kvl_head_list_no_memory(h);
    for (int32_t i = 0; i < n_parts; i++)
        for (int32_t j = 0; j < len[i]; j++) all[at++] = from[i][j];
    if (kvl_sort_order(&h->e->step, all, total, &order) != KVL_OK)
        return kvl_head_list_no_memory(h);
    for (int32_t i = 0; i < total; i++) out[i] = all[order[i]];
    *pos = out;
    *n = total;
    return KVL_OK;
}

/* Asked of a builder that is not done: it is completed and looked at first, for lists may still be on the
 * device. */
int kvl_sel_view(struct kvl_sel *sel, int32_t q_head, const int32_t **pos, int32_t *n)
{
    struct kvl_session *s = sel->s;
    KVL_TRY(view_check(sel, q_head));
    KVL_TRY(kvl_sel_complete(sel));
    KVL_TRY(kvl_sel_look(sel));
    struct kvl_resolve r = { .sel = sel };
    struct kvl_head h = { .r = &r, .e = s->engine, .s = s, .layer = sel->layer };
    struct kvl_head_list part[KVL_MAX_SEGMENTS];
    h.kv_head = q_head / kvl_group(&s->engine->model->shape);
    h.whole = kvl_lane_is_whole(s, h.layer, h.kv_head);
    h.live = kvl_seq_len(s->seq, h.layer, h.kv_head);
    for (int32_t i = 0; i < sel->n_seg; i++) KVL_TRY(kvl_head_list_named(&h, i, q_head, &part[i]));
    KVL_TRY(view_merge(&h, part, sel->n_seg, pos, n));
    /* Everything has the current token, but did not name it. */
    if (sel->seg[0].everything && *n > 0 && (*pos)[*n - 1] == sel->n_pos - 1) --*n;
    return KVL_OK;
}

/* Two ascending lists as one; out has room for both. */
static int32_t view_unite(const int32_t *a, int32_t n_a, const int32_t *b, int32_t n_b,
                          int32_t *out)
{
    int32_t n = 0, i = 0, j = 0;
    while (i < n_a || j < n_b) {
        int32_t pos = j == n_b || (i < n_a && a[i] < b[j]) ? a[i] : b[j];
        i += i < n_a && a[i] == pos;
        j += j < n_b && b[j] == pos;
        out[n++] = pos;
    }
    return n;
}

/* Heads of a group mostly read one list; then nothing is merged. The current token is added, since the engine
 * would. */
int kvl_sel_view_group(struct kvl_sel *sel, int32_t kv_head, const int32_t **pos, int32_t *n)
{
    int32_t group = kvl_group(&sel->s->engine->model->shape), n_list = 0, n_head;
    size_t room = (size_t)sel->n_pos + 1;
    int32_t *both = kvl_arena_get(&sel->s->engine->step, 2 * room, sizeof *both), *list = both;
    const int32_t *head;
    if (!both) return kvl_fail(sel->err, KVL_ENOMEM, "out of memory for a view");
    for (int32_t g = 0; g < group; g++) {
        KVL_TRY(kvl_sel_view(sel, kv_head * group + g, &head, &n_head));
        if (n_head == n_list && memcmp(head, list, (size_t)n_head * sizeof *head) == 0) continue;
        int32_t *merged = list == both ? both + room : both;
        n_list = view_unite(list, n_list, head, n_head, merged);
        list = merged;
    }
    if (n_list == 0 || list[n_list - 1] != sel->n_pos - 1) list[n_list++] = sel->n_pos - 1;
    *pos = list;
    *n = n_list;
    return KVL_OK;
}

/* Named nothing is not the same as named everything, which a builder begins with. */
int kvl_sel_clear(struct kvl_sel *sel)
{
    kvl_sel_init(sel, sel->s, sel->layer, sel->n_pos, sel->err);
    sel->seg[0].everything = false;
    return KVL_OK;
}
