/* Attention where blocks lie: what the host tier holds is attended by the CPU's operators, the rest by the
 * device, and the two are merged by their log-sum-exp (as KTransformers does).
 *
 * A list is cut into its entries on the device and those on the host, both in the order of the list: two jobs
 * and a merge, device first.  What the policy gave per entry (weights, keys, positions) is cut with it; the
 * weights that come out are put in order again after the merge.
 *
 * Keys and values do not travel.  On a device with memory of its own the queries of a layer come down in
 * one copy, for which the host waits; the device has its jobs before the host begins with its own, and
 * the host's results go up in one copy, before the merges.  On the CPU the same is counted, and nothing is
 * copied.  Answers depend on which blocks have moved, in the order of sums alone. */
#include "attend_host.h"

#include <math.h>
#include <string.h>

enum { DEVICE = 0, HOST, SIDES };
enum { ROPED = 0, RAW, QUERIES };

/* One list that has entries on the host.  Lies in the memory of the flush, as all that is not said to lie
 * elsewhere. */
struct kvl_split {
    struct kvl_split *next;
    struct kvl_session *session;
    struct kvl_attn_job whole; /* its results; not its lists */
    struct kvl_attn_job host;
    struct kvl_lane lane;
    /* Entries that lie together, in the order of the list: piece[0] on the device, piece[1] on the host, and
     * so on. */
    int32_t *piece;
    int32_t n_pieces, n[SIDES];
    const float *device_probs; /* [n_heads][n[DEVICE]], in the arena of results */
    size_t q_at, results_at;   /* floats from the first of all queries, of the host's results */
    const float *part[SIDES], *part_lse[SIDES]; /* what is merged, the host's last */
    struct kvl_attn_merge_args merge;
};

struct kvl_hosted {
    struct kvl_arena memory; /* the host's, until clear */
    struct kvl_split *splits;
    const struct kvl_row *row; /* that split a list last */
    bool sent[QUERIES];        /* of it */
    struct {
        int32_t first, end; /* rows whose queries come down */
        float *q;           /* pinned: [cap_rows of the engine][n_heads * head_dim] */
        size_t cap;
    } query[QUERIES];
    size_t n_results, cap_results;
    float *results; /* pinned: for each split out [n_heads][head_dim], lse [n_heads] */
};

/* ---- life ------------------------------------------------------------------------------------------ */

struct kvl_hosted *kvl_hosted_create(void)
{
    return kvl_alloc(1, sizeof(struct kvl_hosted));
}

void kvl_hosted_destroy(struct kvl_engine *e)
{
    struct kvl_hosted *o = e->hosted;
    if (!o) return;
    for (int i = 0; i < QUERIES; i++) e->dev->free(KVL_PLACE_PINNED, o->query[i].q);
    e->dev->free(KVL_PLACE_PINNED, o->results);
    kvl_arena_free(&o->memory);
    kvl_free(o);
}

void kvl_hosted_clear(struct kvl_engine *e)
{
    struct kvl_hosted *o = e->hosted;
    if (!o) return;
    o->splits = NULL;
    o->row = NULL;
    o->n_results = 0;
    for (int i = 0; i < QUERIES; i++) o->query[i].first = o->query[i].end = 0;
    kvl_arena_reset(&o->memory);
}

/* Runs of both sides, in the order of the list. */
struct cut {
    struct kvl_split *split;
    struct kvl_run *run[SIDES];
    int32_t n_runs[SIDES];
};

static void cut_add(struct cut *c, int side, int32_t slot, int32_t n)
{
    struct kvl_split *s = c->split;
    struct kvl_run *run = c->run[side];
    int32_t m = c->n_runs[side];
    while (s->n_pieces == 0 || (s->n_pieces - 1) % SIDES != side) s->piece[s->n_pieces++] = 0;
    s->piece[s->n_pieces - 1] += n;
    s->n[side] += n;
    if (m > 0 && run[m - 1].slot + run[m - 1].n == slot)
        run[m - 1].n += n;
    else
        run[c->n_runs[side]++] = (struct kvl_run){ slot, n };
}

/* What of a list lies in one block goes to one side. */
static void cut_runs(const struct kvl_head *h, struct cut *c, const struct kvl_run *run,
                     int32_t n_runs)
{
    const struct kvl_layout *l = c->split->lane.layout;
    for (int32_t i = 0; i < n_runs; i++)
        for (int32_t slot = run[i].slot, end = slot + run[i].n, n; slot < end; slot += n) {
            n = KVL_MIN(end - slot, l->block_tok - (slot & (l->block_tok - 1)));
            bool host = kvl_tier_host_block(h->s->tier, h->s->seq, h->layer, h->kv_head,
                                            slot >> l->block_shift);
            cut_add(c, host ? HOST : DEVICE, slot, n);
        }
}

/* Room for all pieces: no more than blocks that a run touches. */
static int cut_room(const struct kvl_head *h, struct cut *c, const struct kvl_run *run,
                    int32_t n_runs)
{
    struct kvl_arena *a = &h->e->hosted->memory;
    struct kvl_split *s = kvl_arena_get(a, 1, sizeof *s);
    if (!s) return kvl_head_list_no_memory(h);
    *s = (struct kvl_split){ .lane = kvl_tier_view(h->s->tier, h->layer, h->kv_head) };
    size_t room = 1;
    for (int32_t i = 0; i < n_runs; i++)
        room += KVL_MIN((size_t)run[i].n, (size_t)(run[i].n >> s->lane.layout->block_shift) + 2);
    *c = (struct cut){ .split = s };
    s->piece = kvl_arena_get(a, room, sizeof *s->piece);
    for (int side = 0; side < SIDES; side++)
        c->run[side] = kvl_arena_get(a, room, sizeof *c->run[side]);
    return s->piece && c->run[DEVICE] && c->run[HOST] ? KVL_OK : kvl_head_list_no_memory(h);
}

/* The rows of one side, of `bytes` each; NULL where there are none. */
static int cut_rows(const struct kvl_head *h, const struct kvl_split *s, int side, const void *from,
                    size_t bytes, const void **out)
{
    *out = NULL;
    if (!from || s->n[side] == 0) return KVL_OK;
    const uint8_t *at = from;
    uint8_t *to = kvl_arena_get(side == HOST ? &h->e->hosted->memory : &h->e->step,
                                (size_t)s->n[side], bytes);
    if (!to) return kvl_head_list_no_memory(h);
    *out = to;
    for (int32_t i = 0; i < s->n_pieces; i++) {
        size_t n = (size_t)s->piece[i] * bytes;
        if (i % SIDES == side) {
            memcpy(to, at, n);
            to += n;
        }
        at += n;
    }
    return KVL_OK;
}

/* `from`, cut: what is read of one side. */
static int cut_job(const struct kvl_head *h, const struct cut *c, int side,
                   const struct kvl_attn_job *from, struct kvl_attn_job *out)
{
    const void *weight, *pos, *keys;
    size_t dim = (size_t)h->e->model->shape.head_dim;
    KVL_TRY(cut_rows(h, c->split, side, from->log_weight, sizeof *from->log_weight, &weight));
    KVL_TRY(cut_rows(h, c->split, side, from->pos, sizeof *from->pos, &pos));
    KVL_TRY(cut_rows(h, c->split, side, from->keys, dim * sizeof *from->keys, &keys));
    *out = (struct kvl_attn_job){ .q = from->q,
                                  .runs = c->run[side],
                                  .n_runs = c->n_runs[side],
                                  .n_slots = c->split->n[side],
                                  .n_heads = from->n_heads,
                                  .log_weight = weight,
                                  .pos = pos,
                                  .q_pos = from->q_pos,
                                  .keys = keys };
    return KVL_OK;
}

static float *floats(struct kvl_arena *a, int32_t n_heads, int32_t n)
{
    return kvl_arena_get(a, (size_t)n_heads * (size_t)n + 1, sizeof(float));
}

/* Where the device's share of the results goes. */
static int device_results(const struct kvl_head *h, struct kvl_split *s, struct kvl_attn_job *job)
{
    struct kvl_arena *results = &h->e->results;
    job->out = floats(results, job->n_heads, h->e->model->shape.head_dim);
    job->lse = floats(results, job->n_heads, 1);
    if (!job->out || !job->lse) return kvl_head_list_no_memory(h);
    s->part[DEVICE] = job->out;
    s->part_lse[DEVICE] = job->lse;
    if (!s->whole.probs) return KVL_OK;
    s->device_probs = job->probs = floats(results, job->n_heads, job->n_slots);
    return job->probs ? KVL_OK : kvl_head_list_no_memory(h);
}

/* ---- counting -------------------------------------------------------------------------------------- */

/* What travels for a list: results up, and with the first of its row the queries down. */
static void count_split(const struct kvl_head *h, const struct kvl_split *s)
{
    const struct kvl_shape *sh = &h->e->model->shape;
    struct kvl_counters *c = &h->s->count;
    struct kvl_hosted *o = h->e->hosted;
    int kind = s->whole.pos ? RAW : ROPED;
    int64_t n = s->n[HOST], key = s->whole.keys ? 0 : kvl_key_bytes(h->e);
    int64_t q_floats = (int64_t)sh->n_heads * sh->head_dim;
    c->host_attend_tok += n;
    c->host_attend_bytes += n * (key + kvl_value_bytes(h->e));
    c->h2d_bytes += (int64_t)sizeof(float) * s->whole.n_heads * (sh->head_dim + 1);
    if (o->row != h->r->row) {
        o->row = h->r->row;
        o->sent[ROPED] = o->sent[RAW] = false;
        c->h2d_calls++;
    }
    if (o->sent[kind]) return;
    o->sent[kind] = true;
    c->d2h_calls++;
    c->d2h_bytes += (int64_t)sizeof(float) * q_floats;
    int32_t row = (int32_t)((h->r->q - h->e->q) / q_floats);
    bool none = o->query[kind].end == 0;
    o->query[kind].first = none ? row : KVL_MIN(o->query[kind].first, row);
    o->query[kind].end = KVL_MAX(o->query[kind].end, row + 1);
}

/* ---- one list -------------------------------------------------------------------------------------- */

/* A job of attention becomes two, by where the blocks of its runs lie, and their results are merged as segments are.
 * The host's half is not run here: halves of all lanes of the layer run together, while the device computes its own. */
int kvl_hosted_split(const struct kvl_head *h, struct kvl_attn_job *job, bool *device)
{
    const struct kvl_shape *sh = &h->e->model->shape;
    struct kvl_hosted *o = h->e->hosted;
    const struct kvl_run all = { 0, job->n_slots }, *run = job->runs ? job->runs : &all;
    int32_t n_runs = job->runs ? job->n_runs : 1;
    struct cut c;
    KVL_TRY(cut_room(h, &c, run, n_runs));
    cut_runs(h, &c, run, n_runs);
    struct kvl_split *s = c.split;
    if (s->n[HOST] == 0) return KVL_OK;
    s->whole = *job;
    s->session = h->s;
    s->q_at = (size_t)(job->q - (job->pos ? h->e->q_raw : h->e->q));
    s->results_at = o->n_results;
    o->n_results += (size_t)job->n_heads * ((size_t)sh->head_dim + 1);
    KVL_TRY(cut_job(h, &c, HOST, &s->whole, &s->host));
    KVL_TRY(cut_job(h, &c, DEVICE, &s->whole, job));
    *device = s->n[DEVICE] > 0;
    if (*device) KVL_TRY(device_results(h, s, job));
    if (s->whole.probs) {
        s->host.probs = floats(&o->memory, job->n_heads, s->n[HOST]);
        if (!s->host.probs) return kvl_head_list_no_memory(h);
    }
    count_split(h, s);
    s->next = o->splits;
    o->splits = s;
    return KVL_OK;
}

/* ---- both sides at work ---------------------------------------------------------------------------- */

/* Room for n floats of pinned memory; what was there is lost. */
static int pinned(const struct kvl_engine *e, float **p, size_t *cap, size_t n)
{
    if (n <= *cap) return KVL_OK;
    e->dev->free(KVL_PLACE_PINNED, *p);
    *cap = 0;
    *p = e->dev->alloc(KVL_PLACE_PINNED, n, sizeof **p);
    if (!*p) return e->dev->error()[0] ? KVL_EDEVICE : KVL_ENOMEM;
    *cap = n;
    return KVL_OK;
}

int kvl_hosted_queries(struct kvl_engine *e)
{
    struct kvl_hosted *o = e->hosted;
    const struct kvl_shape *sh = &e->model->shape;
    size_t row = (size_t)sh->n_heads * (size_t)sh->head_dim;
    if (!o || !o->splits || !e->dev->discrete) return KVL_OK;
    for (int i = 0; i < QUERIES; i++) {
        size_t first = (size_t)o->query[i].first, n = (size_t)o->query[i].end - first;
        const float *q = i == RAW ? e->q_raw : e->q;
        if (n == 0) continue;
        KVL_TRY(pinned(e, &o->query[i].q, &o->query[i].cap, (size_t)e->cap_rows * row));
        KVL_TRY(
            kvl_engine_copy(e, o->query[i].q + first * row, q + first * row, n * row * sizeof *q));
    }
    return kvl_engine_rest(e);
}

/* Where the host writes, and where the device will read: one and the same on the CPU. */
static int results_get(struct kvl_engine *e, float **host, float **device)
{
    struct kvl_hosted *o = e->hosted;
    if (!e->dev->discrete) {
        *device = *host = kvl_arena_get(&o->memory, o->n_results, sizeof **host);
        return *host ? KVL_OK : KVL_ENOMEM;
    }
    KVL_TRY(pinned(e, &o->results, &o->cap_results, o->n_results));
    *host = o->results;
    *device = kvl_arena_get(&e->results, o->n_results, sizeof **device);
    return *device ? KVL_OK : KVL_ENOMEM;
}

/* Device first; a list that the device has nothing of has one part. */
static void split_merge(struct kvl_split *s, int32_t head_dim)
{
    int32_t first = s->n[DEVICE] > 0 ? DEVICE : HOST;
    s->merge = (struct kvl_attn_merge_args){ .next = s->next ? &s->next->merge : NULL,
                                             .out = s->whole.out,
                                             .lse = s->whole.lse,
                                             .part = s->part + first,
                                             .part_lse = s->part_lse + first,
                                             .n_parts = SIDES - first,
                                             .n_heads = s->whole.n_heads,
                                             .head_dim = head_dim };
}

/* Slots slot .. slot + n - 1 of a job. */
static int64_t walked(const struct kvl_attn_job *job, int32_t slot, int32_t n)
{
    size_t key = 0;
    if (!job->keys)
        key = kvl_lane_bytes(job->lane, job->pos ? KVL_PART_K_RAW : KVL_PART_K, slot, n);
    return (int64_t)(key + kvl_lane_bytes(job->lane, KVL_PART_V, slot, n));
}

static int32_t job_slots(const struct kvl_attn_job *job)
{
    int32_t n = 0;
    if (!job->runs) return job->n_slots;
    for (int32_t i = 0; i < job->n_runs; i++) n += job->runs[i].n;
    return n;
}

/* Of a lane with blocks of two sizes. */
static int64_t walked_mixed(const struct kvl_attn_job *job)
{
    int64_t bytes = 0;
    if (!job->runs && !job->page) return walked(job, 0, job->n_slots);
    for (int32_t i = 0; job->runs && i < job->n_runs; i++)
        bytes += walked(job, job->runs[i].slot, job->runs[i].n);
    if (job->runs) return bytes;
    for (int32_t i = 0; i < job->n_pages; i++)
        bytes += walked(job, job->page[i] * job->page_tok, job->page_tok);
    return bytes + walked(job, job->tail, job->n_slots - job->n_pages * job->page_tok);
}

/* The rows that an operator reads for a job: from its runs and the layout by which it finds them, whatever the type says. */
void kvl_count_walked(struct kvl_session *s, const struct kvl_attn_job *job)
{
    s->count.kv_walked_bytes +=
        job->lane->n_sealed > 0 ? walked_mixed(job) : walked(job, 0, job_slots(job));
}

/* The jobs of the host, and the merges. */
static struct kvl_attn_job *host_jobs(struct kvl_engine *e, float *host, const float *device,
                                      int32_t *n)
{
    struct kvl_hosted *o = e->hosted;
    *n = 0;
    for (const struct kvl_split *s = o->splits; s; s = s->next) ++*n;
    struct kvl_attn_job *jobs = kvl_arena_get(&o->memory, (size_t)*n, sizeof *jobs), *job = jobs;
    for (struct kvl_split *s = o->splits; jobs && s; s = s->next) {
        int kind = s->whole.pos ? RAW : ROPED;
        const float *q = kind == RAW ? e->q_raw : e->q;
        size_t n_out = (size_t)s->host.n_heads * (size_t)e->model->shape.head_dim;
        s->host.q = (e->dev->discrete ? o->query[kind].q : q) + s->q_at;
        s->host.lane = &s->lane;
        kvl_count_walked(s->session, &s->host);
        s->host.out = host + s->results_at;
        s->host.lse = s->host.out + n_out;
        s->part[HOST] = device + s->results_at;
        s->part_lse[HOST] = s->part[HOST] + n_out;
        split_merge(s, e->model->shape.head_dim);
        *job++ = s->host;
    }
    return jobs;
}

/* One call for all halves of a layer, then one copy of their results: a call and a copy per lane would cost more than the
 * attention of short lists. */
int kvl_hosted_run(struct kvl_engine *e, const struct kvl_rope *rope)
{
    struct kvl_hosted *o = e->hosted;
    const struct kvl_ops *ops = e->dev->discrete ? kvl_device_cpu()->ops : e->ops;
    float *host, *device;
    int32_t n;
    if (!o || !o->splits) return KVL_OK;
    KVL_TRY(results_get(e, &host, &device));
    struct kvl_attn_job *jobs = host_jobs(e, host, device, &n);
    if (!jobs) return KVL_ENOMEM;
    KVL_TRY(ops->attn_decode(&(struct kvl_attn_decode_args){ .jobs = jobs,
                                                             .n_jobs = n,
                                                             .head_dim = e->model->shape.head_dim,
                                                             .scale = e->scale,
                                                             .cap = e->cap,
                                                             .rope = rope }));
    if (e->dev->discrete) KVL_TRY(kvl_engine_copy(e, device, host, o->n_results * sizeof *host));
    return e->ops->attn_merge(&o->splits->merge);
}

/* ---- weights that a hook asks for -------------------------------------------------------------------- */

bool kvl_hosted_has_probs(const struct kvl_engine *e)
{
    for (const struct kvl_split *s = e->hosted ? e->hosted->splits : NULL; s; s = s->next)
        if (s->whole.probs) return true;
    return false;
}

/* A side's share of the whole is exp(its lse - lse), as for segments. */
static void split_probs(const struct kvl_split *s, size_t head, float *out)
{
    const float *from[SIDES] = { s->device_probs, s->host.probs };
    const float lse = s->whole.lse[head];
    float share[SIDES] = { 0, expf(s->host.lse[head] - lse) };
    if (s->device_probs) share[DEVICE] = expf(s->part_lse[DEVICE][head] - lse);
    for (int side = 0; side < SIDES; side++)
        if (from[side]) from[side] += head * (size_t)s->n[side];
    for (int32_t i = 0; i < s->n_pieces; i++)
        for (int32_t t = 0; t < s->piece[i]; t++) *out++ = share[i % SIDES] * *from[i % SIDES]++;
}

void kvl_hosted_probs(const struct kvl_engine *e)
{
    for (const struct kvl_split *s = e->hosted ? e->hosted->splits : NULL; s; s = s->next)
        for (int32_t j = 0; s->whole.probs && j < s->whole.n_heads; j++)
            split_probs(s, (size_t)j,
                        s->whole.probs + (size_t)j * (size_t)(s->n[DEVICE] + s->n[HOST]));
}
