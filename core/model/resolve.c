/* From a selection to attention: positions become runs of slots, lists become jobs.
 *
 * For every segment and kv head the query group reads one list (scopes layer and kv head) or one
 * list per query head.  The current token is added to the first segment when no list of the head has
 * it.  Under the mask oracle nothing was evicted, and the same lists become masks over full
 * attention, run at once.
 *
 * Counted here, never by the policy: unique tokens attended per lane, bytes read, and which of the
 * probed positions were read. */
#include "model/host.h"

#include <math.h>
#include <string.h>

/* One list of one head, as positions; `everything` has no array unless somebody needs it. */
struct items {
    bool everything;
    const int32_t *pos;  /* ascending; NULL for everything of a whole lane */
    const int32_t *slot; /* of each, where known */
    int32_t n;
    const float *log_weight; /* [n] or NULL */
};

/* What stays the same while one kv head is resolved. */
struct head {
    const struct kvl_resolve *r;
    struct kvl_engine *e;
    struct kvl_session *s;
    int32_t layer, kv_head;
    bool whole;   /* slot == position, nothing evicted */
    int32_t live; /* slots of the lane */
};

static int no_memory(const struct head *h)
{
    return kvl_fail(h->r->sel->err, KVL_ENOMEM, "out of memory to resolve a selection of layer %d",
                    h->layer);
}

/* ---- lists to positions -------------------------------------------------------------------------- */

static const struct kvl_sel_list *segment_list(const struct kvl_segment *g, const struct head *h,
                                               int32_t q_head)
{
    if (g->scope == KVL_SCOPE_LAYER) return &g->list[0];
    return &g->list[g->scope == KVL_SCOPE_KV_HEAD ? h->kv_head : q_head];
}

static bool list_has_current(const struct kvl_segment *g, const struct kvl_sel_list *l,
                             int32_t current)
{
    return l->n > 0 && l->item[l->n - 1] == current / g->page_tok;
}

/* No segment reads the current token for this query head. */
static bool current_is_missing(const struct head *h, int32_t q_head)
{
    const struct kvl_sel *sel = h->r->sel;
    for (int32_t i = 0; i < sel->n_seg; i++) {
        const struct kvl_segment *g = &sel->seg[i];
        if (g->everything) return false;
        if (list_has_current(g, segment_list(g, h, q_head), sel->n_pos - 1)) return false;
    }
    return true;
}

/* Positions of one page that exist; of an evicted lane, those that are live. */
static int32_t page_positions(const struct head *h, int32_t page, int32_t page_tok, int32_t *out)
{
    int32_t first = page * page_tok;
    int32_t last = KVL_MIN(first + page_tok, h->r->sel->n_pos);
    int32_t n = 0;
    for (int32_t p = first; p < last; p++)
        if (h->whole || kvl_lane_has(h->s, h->layer, h->kv_head, p)) out[n++] = p;
    return n;
}

static int items_everything(const struct head *h, bool want_positions, struct items *out)
{
    *out = (struct items){ .everything = true, .n = h->live };
    if (h->s->dead || (want_positions && !h->whole)) {
        out->pos = kvl_live_positions(h->s, h->layer, h->kv_head, &out->n, &out->slot);
        if (!out->pos) return no_memory(h);
    }
    return KVL_OK;
}

static int items_from_pages(const struct head *h, const struct kvl_segment *g,
                            const struct kvl_sel_list *l, int32_t *pos, int32_t *n)
{
    *n = 0;
    for (int32_t i = 0; i < l->n; i++) *n += page_positions(h, l->item[i], g->page_tok, pos + *n);
    return KVL_OK;
}

static int items_check_live(const struct head *h, const int32_t *pos, int32_t n)
{
    if (h->whole) return KVL_OK;
    for (int32_t i = 0; i < n; i++)
        if (!kvl_lane_has(h->s, h->layer, h->kv_head, pos[i]))
            return kvl_fail(h->r->sel->err, KVL_EPOLICY,
                            "position %d was evicted from layer %d, kv head %d", pos[i], h->layer,
                            h->kv_head);
    return KVL_OK;
}

/* The list of one segment for one query head, with the current token where it belongs. */
static int items_of(const struct head *h, int32_t i_seg, int32_t q_head, struct items *out)
{
    const struct kvl_sel *sel = h->r->sel;
    const struct kvl_segment *g = &sel->seg[i_seg];
    if (g->everything) return items_everything(h, g->mode == KVL_POS_IN_CACHE || h->r->probs, out);
    const struct kvl_sel_list *l = segment_list(g, h, q_head);
    size_t room = KVL_MIN((size_t)l->n * (size_t)g->page_tok, (size_t)sel->n_pos) + 1;
    int32_t *pos = kvl_arena_get(&h->e->step, room, sizeof *pos);
    if (!pos) return no_memory(h);
    int32_t n = l->n;
    if (g->page_tok > 1) {
        KVL_TRY(items_from_pages(h, g, l, pos, &n));
    } else {
        KVL_TRY(items_check_live(h, l->item, l->n));
        if (n > 0) memcpy(pos, l->item, (size_t)n * sizeof *pos);
    }
    if (i_seg == 0 && current_is_missing(h, q_head)) pos[n++] = sel->n_pos - 1;
    /* A list of all there is goes the same way as "everything": same order, same rounding. */
    bool all = n == h->live && !l->log_weight && !h->s->dead && h->whole;
    *out = (struct items){ .everything = all, .pos = pos, .n = n, .log_weight = l->log_weight };
    return KVL_OK;
}

/* ---- positions to slots ---------------------------------------------------------------------------- */

static const struct kvl_run *runs_of(const struct head *h, const struct items *it, int32_t *n_runs)
{
    const int32_t *slot = h->whole ? it->pos : it->slot;
    if (!slot) {
        int32_t *found = kvl_arena_get(&h->e->step, (size_t)it->n + 1, sizeof *found);
        if (!found) return NULL;
        kvl_seq_find(h->s->seq, h->layer, h->kv_head, it->pos, it->n, found);
        slot = found;
    }
    struct kvl_run *run = kvl_arena_get(&h->e->step, (size_t)it->n + 1, sizeof *run);
    if (!run) return NULL;
    int32_t m = 0;
    for (int32_t i = 0; i < it->n; i++) {
        if (m > 0 && run[m - 1].slot + run[m - 1].n == slot[i])
            run[m - 1].n++;
        else
            run[m++] = (struct kvl_run){ slot[i], 1 };
    }
    *n_runs = m;
    return run;
}

/* Positions at which the keys of a list are read, in list order (slot order for everything). */
static int job_positions(const struct head *h, const struct kvl_segment *g, const struct items *it,
                         struct kvl_attn_job *job)
{
    int32_t *pos = kvl_arena_get(&h->e->step, (size_t)it->n + 1, sizeof *pos);
    if (!pos) return no_memory(h);
    for (int32_t i = 0; i < it->n; i++) pos[i] = g->mode == KVL_POS_IN_CACHE ? i : 0;
    job->pos = pos;
    job->q_pos = g->mode == KVL_POS_IN_CACHE ? it->n - 1 : g->arg;
    return KVL_OK;
}

/* `data` with room for one more than n items, moved when it had to grow; NULL leaves it as it was. */
static void *grown(void *data, int32_t *cap, int32_t n, size_t item)
{
    if (n < *cap) return data;
    int32_t more = *cap ? *cap * 2 : 256;
    void *bigger = kvl_alloc((size_t)more, item);
    if (!bigger) return NULL;
    if (n > 0) memcpy(bigger, data, (size_t)n * item);
    kvl_free(data);
    *cap = more;
    return bigger;
}

static int push_job(const struct head *h, const struct kvl_attn_job *job)
{
    struct kvl_engine *e = h->e;
    struct kvl_attn_job *jobs = grown(e->job, &e->cap_jobs, e->n_jobs, sizeof *jobs);
    if (!jobs) return no_memory(h);
    e->job = jobs;
    struct kvl_job_src *src = grown(e->job_src, &e->cap_src, e->n_jobs, sizeof *src);
    if (!src) return no_memory(h);
    e->job_src = src;
    e->job[e->n_jobs] = *job;
    e->job_src[e->n_jobs++] = (struct kvl_job_src){ h->s, h->layer, h->kv_head };
    return KVL_OK;
}

static int real_job(const struct head *h, const struct kvl_segment *g, const struct items *it,
                    struct kvl_attn_job job)
{
    job.n_slots = it->n;
    job.log_weight = it->log_weight;
    if (!it->everything || (it->pos && !h->whole)) {
        job.runs = runs_of(h, it, &job.n_runs);
        if (!job.runs) return no_memory(h);
    }
    if (g->mode != KVL_POS_ORIGINAL) KVL_TRY(job_positions(h, g, it, &job));
    return push_job(h, &job);
}

/* ---- the mask oracle ------------------------------------------------------------------------------- */

static int masked_job(const struct head *h, const struct kvl_segment *g, const struct items *it,
                      const struct kvl_attn_job *job)
{
    if (it->log_weight)
        return kvl_fail(h->r->sel->err, KVL_EINVAL, "the mask oracle has no log-weights");
    int32_t n = kvl_seq_len(h->s->seq, h->layer, h->kv_head);
    uint8_t *mask = kvl_arena_get(&h->e->step, (size_t)n + 1, sizeof *mask);
    int32_t *pos = kvl_arena_get(&h->e->step, (size_t)n + 1, sizeof *pos);
    if (!mask || !pos) return no_memory(h);
    memset(mask, 0, (size_t)n);
    memset(pos, 0, (size_t)n * sizeof *pos);
    for (int32_t i = 0; i < it->n; i++) {
        mask[it->pos[i]] = 1;
        pos[it->pos[i]] = g->mode == KVL_POS_IN_CACHE ? i : 0;
    }
    struct kvl_lane lane = kvl_seq_lane(h->s->seq, h->layer, h->kv_head);
    struct kvl_attn_masked_args a = { .out = job->out,
                                      .lse = job->lse,
                                      .q = job->q,
                                      .lane = &lane,
                                      .mask = mask,
                                      .n_slots = n,
                                      .n_heads = job->n_heads,
                                      .head_dim = h->e->model->shape.head_dim,
                                      .scale = h->e->scale,
                                      .inv_freq = h->e->model->w.inv_freq,
                                      .style = KVL_ROPE_NORM };
    if (g->mode != KVL_POS_ORIGINAL) {
        a.pos = pos;
        a.q_pos = g->mode == KVL_POS_IN_CACHE ? it->n - 1 : g->arg;
    }
    if (!job->probs) return h->e->ops->attn_masked(&a);
    size_t heads = (size_t)job->n_heads, slots = (size_t)n;
    a.probs = kvl_arena_get(&h->e->step, heads * slots + 1, sizeof *a.probs);
    if (!a.probs) return no_memory(h);
    KVL_TRY(h->e->ops->attn_masked(&a));
    for (size_t j = 0; j < heads; j++)
        for (int32_t i = 0; i < it->n; i++)
            job->probs[j * (size_t)it->n + (size_t)i] = a.probs[j * slots + (size_t)it->pos[i]];
    return KVL_OK;
}

/* ---- counting ---------------------------------------------------------------------------------------- */

static bool items_have(const struct head *h, const struct items *it, int32_t pos)
{
    if (it->everything && !it->pos) return kvl_lane_has(h->s, h->layer, h->kv_head, pos);
    int32_t lo = 0, hi = it->n;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (it->pos[mid] < pos)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < it->n && it->pos[lo] == pos;
}

static void probe_items(const struct head *h, const struct items *it)
{
    struct kvl_probe *pr = &h->s->probe;
    size_t lane = (size_t)h->layer * (size_t)h->e->model->shape.n_kv_heads + (size_t)h->kv_head;
    uint8_t *hit = pr->hit + lane * (size_t)pr->n;
    for (int32_t i = 0; i < pr->n; i++)
        if (!hit[i] && items_have(h, it, pr->pos[i])) hit[i] = 1;
}

static void count_read(const struct head *h, const struct items *it)
{
    const struct kvl_store_desc *d = kvl_store_desc(h->e->store);
    int64_t elem = kvl_kv_elem_bytes(d->type);
    h->s->count.kv_read_bytes += 2 * elem * d->head_dim * (int64_t)it->n;
    if (h->s->probe.n > 0) probe_items(h, it);
}

static void count_attended(const struct head *h, int32_t n_unique)
{
    struct kvl_counters *c = &h->s->count;
    if (h->r->sel->dense) {
        c->dense_tok += n_unique;
        c->dense_lanes++;
    } else {
        c->attended_tok += n_unique;
        c->attended_lanes++;
    }
}

/* Size of the union of the lists of a query group. */
static int count_union(const struct head *h, const struct items *lists, int32_t n_lists,
                       int32_t *out)
{
    *out = lists[0].n;
    if (n_lists == 1) return KVL_OK;
    size_t total = 0;
    for (int32_t i = 0; i < n_lists; i++) {
        total += (size_t)lists[i].n;
        if (!lists[i].pos) return KVL_OK; /* everything */
    }
    int32_t *all = kvl_arena_get(&h->e->step, total + 1, sizeof *all);
    const int32_t *order;
    if (!all) return no_memory(h);
    int32_t n = 0;
    for (int32_t i = 0; i < n_lists; i++) {
        memcpy(all + n, lists[i].pos, (size_t)lists[i].n * sizeof *all);
        n += lists[i].n;
    }
    if (kvl_sort_order(&h->e->step, all, n, &order) != KVL_OK) return no_memory(h);
    *out = 0;
    for (int32_t i = 0; i < n; i++) *out += i == 0 || all[order[i]] != all[order[i - 1]];
    return KVL_OK;
}

/* What a list reads, for the tap of its query heads. */
static int tap_list(const struct head *h, int32_t first_head, int32_t n_heads,
                    const struct items *it)
{
    const int32_t *pos = it->pos;
    int32_t n = it->n;
    if (!pos) pos = kvl_live_positions(h->s, h->layer, h->kv_head, &n, NULL);
    if (!pos) return no_memory(h);
    for (int32_t j = first_head; j < first_head + n_heads; j++)
        if (kvl_reads_add(h->e, h->r->reads, j, pos, n) != KVL_OK) return no_memory(h);
    return KVL_OK;
}

/* ---- one head, one row ----------------------------------------------------------------------------- */

/* One segment of one kv head: results for its query group into out [group][head_dim], lse. */
static int resolve_segment(const struct head *h, int32_t i_seg, float *out, float *lse,
                           int32_t *n_unique)
{
    const struct kvl_shape *sh = &h->e->model->shape;
    const struct kvl_segment *g = &h->r->sel->seg[i_seg];
    int32_t group = kvl_group(sh), first = h->kv_head * group;
    bool per_query_head = !g->everything && g->scope == KVL_SCOPE_Q_HEAD;
    int32_t n_lists = per_query_head ? group : 1, n_heads = per_query_head ? 1 : group;
    struct items *lists = kvl_arena_get(&h->e->step, (size_t)n_lists, sizeof *lists);
    if (!lists) return no_memory(h);
    for (int32_t i = 0; i < n_lists; i++) {
        KVL_TRY(items_of(h, i_seg, first + i, &lists[i]));
        if (h->r->reads) KVL_TRY(tap_list(h, first + i * n_heads, n_heads, &lists[i]));
        size_t at = (size_t)(i * n_heads) * (size_t)sh->head_dim;
        const float *q = g->mode == KVL_POS_ORIGINAL ? h->r->q : h->r->q_raw;
        struct kvl_attn_job job = { .out = out + at,
                                    .lse = lse + i * n_heads,
                                    .n_heads = n_heads,
                                    .q = q + (size_t)first * (size_t)sh->head_dim + at };
        if (h->r->probs) {
            float *probs =
                kvl_arena_get(&h->e->step, (size_t)n_heads * (size_t)lists[i].n + 1, sizeof *probs);
            if (!probs) return no_memory(h);
            job.probs = probs;
            for (int32_t j = 0; j < n_heads; j++) {
                h->r->probs[first + i * n_heads + j] = probs + (size_t)j * (size_t)lists[i].n;
                h->r->n_probs[first + i * n_heads + j] = lists[i].n;
            }
        }
        KVL_TRY(h->s->dead ? masked_job(h, g, &lists[i], &job) : real_job(h, g, &lists[i], job));
        count_read(h, &lists[i]);
    }
    return count_union(h, lists, n_lists, n_unique);
}

/* What is in two segments would be counted twice.  Lists of the whole group are the same for all its
 * heads unless a segment has lists per query head. */
static int check_disjoint(const struct head *h, int32_t q_head)
{
    const struct kvl_sel *sel = h->r->sel;
    struct items it[KVL_MAX_SEGMENTS];
    const int32_t *order;
    int32_t n = 0;
    size_t total = 0;
    for (int32_t i = 0; i < sel->n_seg; i++) {
        KVL_TRY(items_of(h, i, q_head, &it[i]));
        total += (size_t)it[i].n;
    }
    int32_t *all = kvl_arena_get(&h->e->step, total + 1, sizeof *all);
    if (!all) return no_memory(h);
    for (int32_t i = 0; i < sel->n_seg; i++) {
        if (it[i].n > 0) memcpy(all + n, it[i].pos, (size_t)it[i].n * sizeof *all);
        n += it[i].n;
    }
    if (kvl_sort_order(&h->e->step, all, n, &order) != KVL_OK) return no_memory(h);
    for (int32_t i = 1; i < n; i++)
        if (all[order[i]] == all[order[i - 1]])
            return kvl_fail(sel->err, KVL_EPOLICY, "position %d is in two segments", all[order[i]]);
    return KVL_OK;
}

static int check_segments(const struct head *h)
{
    const struct kvl_sel *sel = h->r->sel;
    int32_t group = kvl_group(&h->e->model->shape), n = 1;
    for (int32_t i = 0; i < sel->n_seg; i++)
        if (sel->seg[i].scope == KVL_SCOPE_Q_HEAD) n = group;
    for (int32_t i = 0; i < n; i++) KVL_TRY(check_disjoint(h, h->kv_head * group + i));
    return KVL_OK;
}

static int push_merge(const struct head *h, const struct kvl_attn_merge_args *m)
{
    struct kvl_engine *e = h->e;
    struct kvl_attn_merge_args *merge = grown(e->merge, &e->cap_merges, e->n_merges, sizeof *merge);
    if (!merge) return no_memory(h);
    e->merge = merge;
    e->merge[e->n_merges++] = *m;
    return KVL_OK;
}

/* ---- weights of several segments ------------------------------------------------------------------- */

/* Joins of a head's query group, whose merged log-sum-exp will be in lse. */
static int joins_get(const struct head *h, const float *lse, struct kvl_probs_join **out)
{
    size_t group = (size_t)kvl_group(&h->e->model->shape);
    *out = kvl_arena_get(&h->e->step, group, sizeof **out);
    if (!*out) return no_memory(h);
    for (size_t j = 0; j < group; j++) (*out)[j] = (struct kvl_probs_join){ .lse = lse + j };
    return KVL_OK;
}

/* The segment just resolved: its weights are those within the segment. */
static void joins_add(const struct head *h, struct kvl_probs_join *joins, const float *lse)
{
    int32_t group = kvl_group(&h->e->model->shape), first = h->kv_head * group;
    for (int32_t j = 0; j < group; j++) {
        int32_t at = joins[j].n_parts++;
        joins[j].part[at].probs = h->r->probs[first + j];
        joins[j].part[at].n = h->r->n_probs[first + j];
        joins[j].part[at].lse = lse + j;
    }
}

/* Observe will get rows of all segments, filled by kvl_resolve_join. */
static int joins_close(const struct head *h, struct kvl_probs_join *joins)
{
    int32_t group = kvl_group(&h->e->model->shape), first = h->kv_head * group;
    for (int32_t j = 0; j < group; j++) {
        int32_t n = 0;
        for (int32_t i = 0; i < joins[j].n_parts; i++) n += joins[j].part[i].n;
        joins[j].out = kvl_arena_get(&h->e->step, (size_t)n + 1, sizeof *joins[j].out);
        if (!joins[j].out) return no_memory(h);
        joins[j].next = h->e->joins;
        h->e->joins = &joins[j];
        h->r->probs[first + j] = joins[j].out;
        h->r->n_probs[first + j] = n;
    }
    return KVL_OK;
}

/* A segment's share of the whole is exp(its lse - lse); an empty one has none. */
void kvl_resolve_join(struct kvl_engine *e)
{
    for (const struct kvl_probs_join *j = e->joins; j; j = j->next) {
        float *out = j->out;
        for (int32_t i = 0; i < j->n_parts; i++) {
            float share = expf(*j->part[i].lse - *j->lse);
            for (int32_t t = 0; t < j->part[i].n; t++) *out++ = share * j->part[i].probs[t];
        }
    }
}

static int resolve_head(const struct head *h)
{
    const struct kvl_shape *sh = &h->e->model->shape;
    const struct kvl_sel *sel = h->r->sel;
    int32_t group = kvl_group(sh), attended = 0, n;
    size_t floats = (size_t)group * (size_t)sh->head_dim;
    float *out = h->r->out + (size_t)h->kv_head * floats, *lse = h->r->lse + h->kv_head * group;
    if (sel->n_seg == 1) {
        KVL_TRY(resolve_segment(h, 0, out, lse, &attended));
        count_attended(h, attended);
        return KVL_OK;
    }
    KVL_TRY(check_segments(h));
    struct kvl_probs_join *joins = NULL;
    if (h->r->probs) KVL_TRY(joins_get(h, lse, &joins));
    const float **part = kvl_arena_get(&h->e->step, (size_t)sel->n_seg, sizeof *part);
    const float **part_lse = kvl_arena_get(&h->e->step, (size_t)sel->n_seg, sizeof *part_lse);
    if (!part || !part_lse) return no_memory(h);
    for (int32_t i = 0; i < sel->n_seg; i++) {
        float *o = kvl_arena_get(&h->e->step, floats, sizeof *o);
        float *l = kvl_arena_get(&h->e->step, (size_t)group, sizeof *l);
        if (!o || !l) return no_memory(h);
        KVL_TRY(resolve_segment(h, i, o, l, &n));
        if (joins) joins_add(h, joins, l);
        part[i] = o;
        part_lse[i] = l;
        attended += n; /* segments do not overlap */
    }
    count_attended(h, attended);
    if (joins) KVL_TRY(joins_close(h, joins));
    return push_merge(h, &(struct kvl_attn_merge_args){ .out = out,
                                                        .lse = lse,
                                                        .part = part,
                                                        .part_lse = part_lse,
                                                        .n_parts = sel->n_seg,
                                                        .n_heads = group,
                                                        .head_dim = sh->head_dim });
}

int kvl_resolve(const struct kvl_resolve *r)
{
    struct kvl_session *s = r->sel->s;
    const struct kvl_shape *sh = &s->engine->model->shape;
    if (s->probe.n > 0) {
        size_t lanes = (size_t)sh->n_kv_heads * (size_t)s->probe.n;
        memset(s->probe.hit + (size_t)r->sel->layer * lanes, 0, lanes);
        s->probe.dense[r->sel->layer] = r->sel->dense;
    }
    for (int32_t h = 0; h < sh->n_kv_heads; h++) {
        struct head head = { .r = r, .e = s->engine, .s = s, .layer = r->sel->layer, .kv_head = h };
        head.whole = kvl_lane_is_whole(s, head.layer, h);
        head.live = kvl_seq_len(s->seq, head.layer, h);
        KVL_TRY(resolve_head(&head));
    }
    return KVL_OK;
}
