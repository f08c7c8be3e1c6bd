/* From a selection to attention: lists become runs of slots, and jobs.
 *
 * For every segment and kv head the query group reads one list (scopes layer and kv head) or one
 * list per query head.  The current token is added to the first segment when no list of the head has
 * it.  Under the mask oracle nothing was evicted, and the same lists become masks over full
 * attention, run at once.
 *
 * Counted here, never by the policy: unique tokens attended per lane, bytes read, and which of the
 * probed positions were read. */
#include "attend_host.h"

#include <math.h>
#include <string.h>

/* ---- positions to slots ---------------------------------------------------------------------------- */

/* Kernels read runs: slots that follow each other come in one load, and lists of methods mostly are such runs. */
static const struct kvl_run *runs_of(const struct kvl_head *h, const struct kvl_head_list *it,
                                     int32_t *n_runs)
{
    const int32_t *slot = it->slot;
    *n_runs = it->n_runs;
    if (it->run) return it->run;
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

/* Where a key stands that is number `rank` of its list. */
static int32_t key_position(const struct kvl_segment *g, int32_t pos, int32_t rank)
{
    if (g->mode == KVL_POS_IN_CACHE) return rank;
    return g->mode == KVL_POS_GROUPED ? pos / g->arg : 0;
}

/* The query stands after all keys of the list, in its group, or at the given distance. */
static int32_t query_position(const struct kvl_segment *g, int32_t n)
{
    if (g->mode == KVL_POS_IN_CACHE) return n - 1;
    return g->mode == KVL_POS_GROUPED ? g->q_pos : g->arg;
}

/* Positions at which the keys of a list are read, in list order (slot order for everything). */
static int job_positions(const struct kvl_head *h, const struct kvl_segment *g,
                         const struct kvl_head_list *it, struct kvl_attn_job *job)
{
    int32_t *pos = kvl_arena_get(&h->e->step, (size_t)it->n + 1, sizeof *pos), n = it->n;
    const int32_t *own = NULL;
    if (!pos) return kvl_head_list_no_memory(h);
    if (g->mode == KVL_POS_GROUPED) KVL_TRY(kvl_head_list_expand(h, it, &own, &n));
    for (int32_t i = 0; i < n; i++) pos[i] = key_position(g, own ? own[i] : 0, i);
    job->pos = pos;
    job->q_pos = query_position(g, n);
    return KVL_OK;
}

/* `data` with room for one more than n items, moved when it had to grow; NULL leaves it as it was.
 * Room only grows, so that a decoded token soon allocates nothing. */
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

/* Jobs of all rows and heads are gathered first and run in one call. Views of lanes are taken then, since
 * appends of other rows may move tables. */
static int push_job(const struct kvl_head *h, const struct kvl_attn_job *job)
{
    struct kvl_engine *e = h->e;
    struct kvl_attn_job *jobs = grown(e->job, &e->cap_jobs, e->n_jobs, sizeof *jobs);
    if (!jobs) return kvl_head_list_no_memory(h);
    e->job = jobs;
    struct kvl_job_src *src = grown(e->job_src, &e->cap_src, e->n_jobs, sizeof *src);
    if (!src) return kvl_head_list_no_memory(h);
    e->job_src = src;
    e->job[e->n_jobs] = *job;
    e->job_src[e->n_jobs++] = (struct kvl_job_src){ h->s, h->layer, h->kv_head };
    return KVL_OK;
}

/* Pages go to the kernel as they are, and for a list of everything without positions it walks the lane as it lies.
 * In a layer on the host what is missing is fetched, or, where the device attends on the host, that part of the
 * job stays there. */
static int real_job(const struct kvl_head *h, const struct kvl_segment *g,
                    const struct kvl_head_list *it, struct kvl_attn_job job)
{
    job.n_slots = it->n;
    job.log_weight = it->log_weight;
    job.keys = it->keys;
    job.page = it->page;
    job.n_pages = it->n_pages;
    job.page_tok = it->page_tok;
    job.tail = it->tail;
    /* Only a plain list of a whole lane on the device stays pages (top_is_enough): none of what
     * follows can concern it. */
    if (it->page) return push_job(h, &job);
    if (kvl_reads_copies(h->s, h->layer)) {
        KVL_TRY(kvl_offload_runs(h, it, &job.runs, &job.n_runs));
    } else if (!it->everything || it->pos) {
        job.runs = runs_of(h, it, &job.n_runs);
        if (!job.runs) return kvl_head_list_no_memory(h);
    }
    if (g->mode != KVL_POS_ORIGINAL) KVL_TRY(job_positions(h, g, it, &job));
    bool device = true;
    if (h->e->hosted && kvl_offloads(h->s, h->layer)) KVL_TRY(kvl_hosted_split(h, &job, &device));
    return device ? push_job(h, &job) : KVL_OK;
}

/* ---- the mask oracle ------------------------------------------------------------------------------- */

/* The same list as a mask, a bias and positions over full attention: nothing of what makes the real job fast is
 * used, so that an error in it shows. */
static int masked_job(const struct kvl_head *h, const struct kvl_segment *g,
                      const struct kvl_head_list *it, const struct kvl_attn_job *job)
{
    int32_t n = kvl_seq_len(h->s->seq, h->layer, h->kv_head);
    uint8_t *mask = kvl_arena_get(&h->e->step, (size_t)n + 1, sizeof *mask);
    int32_t *pos = kvl_arena_get(&h->e->step, (size_t)n + 1, sizeof *pos);
    if (!mask || !pos) return kvl_head_list_no_memory(h);
    float *bias = it->log_weight ? kvl_arena_get(&h->e->step, (size_t)n, sizeof *bias) : NULL;
    if (it->log_weight && !bias) return kvl_head_list_no_memory(h);
    memset(mask, 0, (size_t)n);
    memset(pos, 0, (size_t)n * sizeof *pos);
    for (int32_t i = 0; i < it->n; i++) {
        int32_t at = it->slot ? it->slot[i] : it->pos[i];
        mask[at] = 1;
        pos[at] = key_position(g, it->pos[i], i);
        if (bias) bias[at] = it->log_weight[i];
    }
    /* By position, here and where weights are read: only policies give keys or ask for weights, and
     * in the layers that they see a slot is a position, since the oracle evicts nothing. */
    const float **keys = it->keys ? kvl_arena_get(&h->e->step, (size_t)n, sizeof *keys) : NULL;
    if (it->keys && !keys) return kvl_head_list_no_memory(h);
    for (int32_t i = 0; keys && i < n; i++) keys[i] = NULL;
    for (int32_t i = 0; keys && i < it->n; i++)
        keys[it->pos[i]] = it->keys + (size_t)i * (size_t)h->e->model->shape.head_dim;
    struct kvl_lane lane = kvl_seq_lane(h->s->seq, h->layer, h->kv_head);
    struct kvl_attn_masked_args a = { .out = job->out,
                                      .lse = job->lse,
                                      .q = job->q,
                                      .lane = &lane,
                                      .mask = mask,
                                      .bias = bias,
                                      .keys = keys,
                                      .n_slots = n,
                                      .n_heads = job->n_heads,
                                      .head_dim = h->e->model->shape.head_dim,
                                      .scale = h->e->scale,
                                      .cap = h->e->cap,
                                      .rope = kvl_layer_rope(h->e, h->layer) };
    if (g->mode != KVL_POS_ORIGINAL) {
        a.pos = pos;
        a.q_pos = query_position(g, it->n);
    }
    h->e->pending = true;
    if (!job->probs) return h->e->ops->attn_masked(&a);
    size_t heads = (size_t)job->n_heads, slots = (size_t)n;
    a.probs = kvl_arena_get(&h->e->step, heads * slots + 1, sizeof *a.probs);
    if (!a.probs) return kvl_head_list_no_memory(h);
    /* `now`, for the host picks the weights of the list out of all at once. */
    KVL_TRY(h->e->now->attn_masked(&a));
    for (size_t j = 0; j < heads; j++)
        for (int32_t i = 0; i < it->n; i++)
            job->probs[j * (size_t)it->n + (size_t)i] = a.probs[j * slots + (size_t)it->pos[i]];
    return KVL_OK;
}

/* ---- counting ---------------------------------------------------------------------------------------- */

/* Evidence that was read counts by lane, whatever the heads of its group read. */
static void probe_items(const struct kvl_head *h, const struct kvl_head_list *it)
{
    struct kvl_probe *pr = &h->s->probe;
    size_t lane = (size_t)h->layer * (size_t)h->e->model->shape.n_kv_heads + (size_t)h->kv_head;
    uint8_t *hit = pr->hit + lane * (size_t)pr->n;
    for (int32_t i = 0; i < pr->n; i++)
        if (!hit[i] && kvl_head_list_have(h, it, pr->pos[i])) hit[i] = 1;
}

/* Of a lane with blocks of two sizes: by where the slots of the list lie. */
static int read_mixed(const struct kvl_head *h, const struct kvl_head_list *it, int64_t *bytes)
{
    const struct kvl_lane lane = kvl_seq_lane(h->s->seq, h->layer, h->kv_head);
    struct kvl_run all = { .slot = 0, .n = it->n };
    const struct kvl_run *run = &all;
    int32_t n_runs = 1;
    if (!it->everything || it->pos) {
        struct kvl_head_list named = *it;
        if (it->page) KVL_TRY(kvl_head_list_expand(h, it, &named.pos, &named.n));
        run = runs_of(h, &named, &n_runs);
        if (!run) return kvl_head_list_no_memory(h);
    }
    for (int32_t i = 0; i < n_runs; i++) {
        if (it->n_keys == 0)
            *bytes += (int64_t)kvl_lane_bytes(&lane, KVL_PART_K, run[i].slot, run[i].n);
        *bytes += (int64_t)kvl_lane_bytes(&lane, KVL_PART_V, run[i].slot, run[i].n);
    }
    return KVL_OK;
}

/* Keys that the policy gave are not read from the store: their values alone are. */
static int count_read(const struct kvl_head *h, const struct kvl_head_list *it)
{
    int64_t bytes = 0;
    if (kvl_kv_seals(kvl_store_desc(h->e->store)->type))
        KVL_TRY(read_mixed(h, it, &bytes));
    else
        bytes = kvl_slot_bytes(h->e) * it->n - kvl_key_bytes(h->e) * (int64_t)it->n_keys;
    h->s->count.kv_read_bytes += bytes;
    h->s->count.given_keys += it->n_keys;
    if (h->s->probe.n > 0) probe_items(h, it);
    return KVL_OK;
}

/* Three kinds of layers are kept apart: of a window, dense by the schedule, and selected. A budget is of the
 * last kind. */
static void count_attended(const struct kvl_head *h, int32_t n_unique)
{
    struct kvl_counters *c = &h->s->count;
    if (kvl_window_of(h->e, h->layer) > 0) {
        c->window_tok += n_unique;
        c->window_lanes++;
    } else if (h->r->sel->dense) {
        c->dense_tok += n_unique;
        c->dense_lanes++;
    } else {
        c->attended_tok += n_unique;
        c->attended_lanes++;
    }
}

/* Size of the union of the lists of a query group. */
static int count_union(const struct kvl_head *h, const struct kvl_head_list *lists, int32_t n_lists,
                       int32_t *out)
{
    struct kvl_overlap overlap;
    *out = lists[0].n;
    if (n_lists == 1) return KVL_OK;
    const struct kvl_head_list **all = kvl_arena_get(&h->e->step, (size_t)n_lists, sizeof *all);
    if (!all) return kvl_head_list_no_memory(h);
    for (int32_t i = 0; i < n_lists; i++) {
        if (!lists[i].pos && !lists[i].run) return KVL_OK; /* everything */
        all[i] = &lists[i];
    }
    KVL_TRY(kvl_head_list_overlap(h, all, n_lists, &overlap));
    *out = overlap.n;
    return KVL_OK;
}

/* What a list reads, for the tap of its query heads. */
static int tap_list(const struct kvl_head *h, int32_t first_head, int32_t n_heads,
                    const struct kvl_head_list *it)
{
    const int32_t *pos;
    int32_t n;
    KVL_TRY(kvl_head_list_expand(h, it, &pos, &n));
    for (int32_t j = first_head; j < first_head + n_heads; j++)
        if (kvl_reads_add(h->e, h->r->reads, j, pos, it->log_weight, n) != KVL_OK)
            return kvl_head_list_no_memory(h);
    return KVL_OK;
}

/* ---- one head, one row ----------------------------------------------------------------------------- */

/* One segment of one kv head: results for its query group into out [group][head_dim] and lse, its own until segments
 * are merged.  Positions other than the original ones start from queries before RoPE. */
static int resolve_segment(const struct kvl_head *h, int32_t i_seg, float *out, float *lse,
                           int32_t *n_unique)
{
    const struct kvl_shape *sh = &h->e->model->shape;
    const struct kvl_segment *g = &h->r->sel->seg[i_seg];
    int32_t group = kvl_group(sh), first = h->kv_head * group;
    bool split = kvl_head_list_split(g);
    int32_t n_lists = split ? group : 1, n_heads = split ? 1 : group;
    const struct kvl_head_list *lists = h->lists[i_seg];
    for (int32_t i = 0; i < n_lists; i++) {
        if (h->r->reads) KVL_TRY(tap_list(h, first + i * n_heads, n_heads, &lists[i]));
        size_t at = (size_t)(i * n_heads) * (size_t)sh->head_dim;
        const float *q = g->mode == KVL_POS_ORIGINAL ? h->r->q : h->r->q_raw;
        struct kvl_attn_job job = { .out = out + at,
                                    .lse = lse + i * n_heads,
                                    .n_heads = n_heads,
                                    .q = q + (size_t)first * (size_t)sh->head_dim + at };
        if (lists[i].keys) KVL_TRY(kvl_keys_complete(h, &lists[i]));
        if (lists[i].keys && h->r->reads) h->r->reads->given = true;
        if (h->r->probs) {
            float *probs = kvl_arena_get(&h->e->results, (size_t)n_heads * (size_t)lists[i].n + 1,
                                         sizeof *probs);
            if (!probs) return kvl_head_list_no_memory(h);
            /* The next segment of the head writes its own over these entries; joins_add takes them
             * before. */
            job.probs = probs;
            for (int32_t j = 0; j < n_heads; j++) {
                h->r->probs[first + i * n_heads + j] = probs + (size_t)j * (size_t)lists[i].n;
                h->r->n_probs[first + i * n_heads + j] = lists[i].n;
            }
        }
        KVL_TRY(h->s->dead ? masked_job(h, g, &lists[i], &job) : real_job(h, g, &lists[i], job));
        KVL_TRY(count_read(h, &lists[i]));
    }
    return count_union(h, lists, n_lists, n_unique);
}

/* What is in two segments would be counted twice.  Lists of the whole group are the same for all its
 * heads unless a segment has lists per query head. */
static int check_segments(const struct kvl_head *h)
{
    const struct kvl_sel *sel = h->r->sel;
    const struct kvl_head_list *lists[KVL_MAX_SEGMENTS];
    int32_t group = kvl_group(&h->e->model->shape), n = 1;
    for (int32_t i = 0; i < sel->n_seg; i++)
        if (kvl_head_list_split(&sel->seg[i])) n = group;
    for (int32_t j = 0; j < n; j++) {
        struct kvl_overlap overlap;
        for (int32_t i = 0; i < sel->n_seg; i++)
            lists[i] = &h->lists[i][kvl_head_list_split(&sel->seg[i]) ? j : 0];
        KVL_TRY(kvl_head_list_overlap(h, lists, sel->n_seg, &overlap));
        if (overlap.twice >= 0)
            return kvl_fail(sel->err, KVL_EPOLICY, "position %d is in two segments", overlap.twice);
    }
    return KVL_OK;
}

static int push_merge(const struct kvl_head *h, const struct kvl_attn_merge_args *m)
{
    struct kvl_engine *e = h->e;
    struct kvl_attn_merge_args *merge = grown(e->merge, &e->cap_merges, e->n_merges, sizeof *merge);
    if (!merge) return kvl_head_list_no_memory(h);
    e->merge = merge;
    e->merge[e->n_merges++] = *m;
    return KVL_OK;
}

/* ---- weights of several segments ------------------------------------------------------------------- */

/* Joins of a head's query group, whose merged log-sum-exp will be in lse. */
static int joins_get(const struct kvl_head *h, const float *lse, struct kvl_probs_join **out)
{
    size_t group = (size_t)kvl_group(&h->e->model->shape);
    *out = kvl_arena_get(&h->e->step, group, sizeof **out);
    if (!*out) return kvl_head_list_no_memory(h);
    for (size_t j = 0; j < group; j++) (*out)[j] = (struct kvl_probs_join){ .lse = lse + j };
    return KVL_OK;
}

/* Adds the segment that was just resolved: its weights are normed within the segment, and its log-sum-exp brings them
 * to the scale of the whole once all segments are known (joins_close). */
static void joins_add(const struct kvl_head *h, struct kvl_probs_join *joins, const float *lse)
{
    int32_t group = kvl_group(&h->e->model->shape), first = h->kv_head * group;
    for (int32_t j = 0; j < group; j++) {
        int32_t at = joins[j].n_parts++;
        joins[j].part[at].probs = h->r->probs[first + j];
        joins[j].part[at].n = h->r->n_probs[first + j];
        joins[j].part[at].lse = lse + j;
    }
}

/* Observe will get rows of all segments, filled by resolve_join. */
static int joins_close(const struct kvl_head *h, struct kvl_probs_join *joins)
{
    int32_t group = kvl_group(&h->e->model->shape), first = h->kv_head * group;
    for (int32_t j = 0; j < group; j++) {
        int32_t n = 0;
        for (int32_t i = 0; i < joins[j].n_parts; i++) n += joins[j].part[i].n;
        /* Memory of the host, which makes them of the parts (resolve_join). */
        joins[j].out = kvl_arena_get(&h->e->step, (size_t)n + 1, sizeof *joins[j].out);
        if (!joins[j].out) return kvl_head_list_no_memory(h);
        joins[j].next = h->e->joins;
        h->e->joins = &joins[j];
        h->r->probs[first + j] = joins[j].out;
        h->r->n_probs[first + j] = n;
    }
    return KVL_OK;
}

/* A segment's share of the whole is exp(its lse - lse); an empty one has none. */
static void resolve_join(const struct kvl_engine *e)
{
    for (const struct kvl_probs_join *j = e->joins; j; j = j->next) {
        float *out = j->out;
        for (int32_t i = 0; i < j->n_parts; i++) {
            float share = expf(*j->part[i].lse - *j->lse);
            for (int32_t t = 0; t < j->part[i].n; t++) *out++ = share * j->part[i].probs[t];
        }
    }
}

/* ---- residual --------------------------------------------------------------------------------------- */

/* Not applied here: the residual is a weight of the merged output, which is there only when the jobs of all lanes have
 * run. */
static int push_residual(const struct kvl_head *h, float *out)
{
    const struct kvl_sel *sel = h->r->sel;
    size_t group = (size_t)kvl_group(&h->e->model->shape), kv_head = (size_t)h->kv_head;
    struct kvl_residual *r = kvl_arena_get(&h->e->step, 1, sizeof *r);
    if (!r) return kvl_head_list_no_memory(h);
    *r = (struct kvl_residual){ .next = h->e->residuals,
                                .out = out,
                                .alpha = sel->residual_alpha + kv_head * group,
                                .value = sel->residual_value +
                                         kv_head * (size_t)h->e->model->shape.head_dim };
    h->e->residuals = r;
    if (h->r->reads) {
        h->r->reads->alpha = sel->residual_alpha;
        h->r->reads->mean = sel->residual_value;
    }
    return KVL_OK;
}

static int resolve_residual(const struct kvl_engine *e)
{
    const struct kvl_shape *sh = &e->model->shape;
    size_t bytes = (size_t)kvl_group(sh) * (size_t)sh->head_dim * sizeof(float);
    for (const struct kvl_residual *r = e->residuals; r; r = r->next) {
        KVL_TRY(kvl_engine_host(e, r->out, bytes, true));
        for (int32_t j = 0; j < kvl_group(sh); j++) {
            float *out = r->out + (size_t)j * (size_t)sh->head_dim;
            for (int32_t c = 0; c < sh->head_dim; c++)
                out[c] = r->alpha[j] * out[c] + (1.0f - r->alpha[j]) * r->value[c];
        }
    }
    return KVL_OK;
}

int kvl_resolve_finish(struct kvl_engine *e)
{
    if (!e->joins && !e->residuals && !kvl_hosted_has_probs(e)) return KVL_OK;
    KVL_TRY(kvl_engine_sync(e));
    /* Lists that were split between device and host first, since a join may be made of them;
     * residuals last, since they weigh the merged output. */
    kvl_hosted_probs(e);
    resolve_join(e);
    return resolve_residual(e);
}

static int resolve_head(const struct kvl_head *h)
{
    const struct kvl_shape *sh = &h->e->model->shape;
    const struct kvl_sel *sel = h->r->sel;
    int32_t group = kvl_group(sh), attended = 0, n;
    size_t floats = (size_t)group * (size_t)sh->head_dim;
    float *out = h->r->out + (size_t)h->kv_head * floats, *lse = h->r->lse + h->kv_head * group;
    /* Before lists become runs, which name the places that the request gave its units. */
    if (kvl_offloads(h->s, h->layer)) KVL_TRY(kvl_offload_request(h));
    if (sel->residual_alpha) KVL_TRY(push_residual(h, out));
    bool pseudo = sel->pseudo && sel->pseudo[h->kv_head].n > 0;
    int32_t n_parts = sel->n_seg + pseudo + (h->e->sinks != NULL);
    /* One part is the result itself, written where it belongs. */
    if (n_parts == 1) {
        KVL_TRY(resolve_segment(h, 0, out, lse, &attended));
        count_attended(h, attended);
        return KVL_OK;
    }
    if (sel->n_seg > 1) KVL_TRY(check_segments(h)); /* else there are pseudo-entries, or a sink */
    struct kvl_probs_join *joins = NULL;
    if (h->r->probs) KVL_TRY(joins_get(h, lse, &joins));
    const float **part = kvl_arena_get(&h->e->step, (size_t)n_parts, sizeof *part);
    const float **part_lse = kvl_arena_get(&h->e->step, (size_t)n_parts, sizeof *part_lse);
    if (!part || !part_lse) return kvl_head_list_no_memory(h);
    if (h->e->sinks) {
        part[n_parts - 1] = h->e->nothing;
        part_lse[n_parts - 1] =
            h->e->sinks + (size_t)h->layer * (size_t)sh->n_heads + (size_t)(h->kv_head * group);
        if (h->r->reads) h->r->reads->given = true;
    }
    for (int32_t i = 0; i < sel->n_seg + pseudo; i++) {
        float *o = kvl_arena_get(&h->e->results, floats, sizeof *o);
        float *l = kvl_arena_get(&h->e->results, (size_t)group, sizeof *l);
        if (!o || !l) return kvl_head_list_no_memory(h);
        part[i] = o;
        part_lse[i] = l;
        if (i == sel->n_seg) {
            KVL_TRY(kvl_pseudo_attend(h, o, l));
            continue;
        }
        KVL_TRY(resolve_segment(h, i, o, l, &n));
        if (joins) joins_add(h, joins, l);
        attended += n; /* segments do not overlap */
    }
    count_attended(h, attended);
    if (joins) KVL_TRY(joins_close(h, joins));
    return push_merge(h, &(struct kvl_attn_merge_args){ .out = out,
                                                        .lse = lse,
                                                        .part = part,
                                                        .part_lse = part_lse,
                                                        .n_parts = n_parts,
                                                        .n_heads = group,
                                                        .head_dim = sh->head_dim });
}

/* A list that the host has not read can stay on the device only if its length is known in advance: what competed is of
 * one size and lies before the current token, and there is nothing else to the selection. */
static bool top_is_enough(const struct kvl_resolve *r)
{
    const struct kvl_sel *sel = r->sel;
    const struct kvl_segment *g = &sel->seg[0];
    bool plain = sel->n_seg == 1 && !sel->pseudo && !sel->residual_alpha && !r->probs;
    if (kvl_offloads(sel->s, sel->layer)) return false; /* requests are made on the host */
    if (!g->top || !plain || g->scope == KVL_SCOPE_Q_HEAD || g->mode != KVL_POS_ORIGINAL)
        return false;
    /* items_top adds the newest page or the current token after the list: a page that is not full
     * would make its length unknown, and a token that competed might be in the list already. */
    if (g->forced < 0 && (g->page_tok > 1 || g->n_scored == sel->n_pos)) return false;
    for (int32_t i = 0; i < g->n_lists; i++)
        if (g->list[i].log_weight || g->list[i].keys) return false;
    for (int32_t h = 0; h < sel->s->engine->model->shape.n_kv_heads; h++)
        if (!kvl_lane_is_whole(sel->s, sel->layer, h)) return false;
    return true;
}

/* Heads in order, each with the one before it at hand: lists that a layer's heads share are expanded once.  What the host
 * tier brings for all of them is awaited once, after the last. */
int kvl_resolve(const struct kvl_resolve *r)
{
    struct kvl_session *s = r->sel->s;
    const struct kvl_shape *sh = &s->engine->model->shape;
    if (!top_is_enough(r)) KVL_TRY(kvl_sel_look(r->sel));
    /* A probe tells of the newest step: what earlier ones read is wiped, layer by layer. */
    if (s->probe.n > 0) {
        size_t lanes = (size_t)sh->n_kv_heads * (size_t)s->probe.n;
        memset(s->probe.hit + (size_t)r->sel->layer * lanes, 0, lanes);
        s->probe.dense[r->sel->layer] =
            r->sel->dense || kvl_window_of(s->engine, r->sel->layer) > 0;
    }
    /* All that the heads of a layer bring counts as one call (offload.c). */
    s->host.fetched = false;
    struct kvl_head before, head;
    for (int32_t h = 0; h < sh->n_kv_heads; h++, before = head) {
        head = (struct kvl_head){
            .r = r, .e = s->engine, .s = s, .layer = r->sel->layer, .kv_head = h
        };
        head.whole = kvl_lane_is_whole(s, head.layer, h);
        head.live = kvl_seq_len(s->seq, head.layer, h);
        KVL_TRY(kvl_head_list_get(&head, h > 0 ? &before : NULL));
        KVL_TRY(resolve_head(&head));
    }
    return kvl_offload_await(&head);
}
