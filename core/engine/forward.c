/* The forward pass: policy/hooks.c calls the hooks.
 *
 *   embed
 *   per layer:  norm, q k v, rope, append, select, attention, observe, evict, out, mlp
 *   logits
 *
 * Layers go one by one through a whole chunk: what is evicted from a layer concerns no other.  Prefill
 * and extend multiply rows in tiles (gemm), decode reads the weights in their own type (gemv); within a
 * mode a row never depends on its neighbours. */
#include "forward.h"

#include "attend_host.h"
#include "layer.h"
#include "local.h"

#include <math.h>
#include <string.h>

/* Floats: a mebibyte, what a core's second-level cache holds. */
enum { WAITING_WEIGHTS = 256 * 1024 };

/* Infinities and NaN survive a multiplication by zero. */
static bool all_finite(const float *x, size_t n)
{
    float sum = 0.0f;
    for (size_t i = 0; i < n; i++) sum += x[i] * 0.0f;
    return sum == 0.0f;
}

/* Marks a NaN or infinity among n numbers on a device; the mark is read when the call ends.  A decode step is not
 * checked here: what goes wrong in it shows in its logits, which are. */
static int check_later(const struct kvl_forward *f, const float *x, size_t n)
{
    const struct kvl_device *dev = f->e->dev;
    if (f->mode == KVL_DECODE || !dev->check_finite) return KVL_OK;
    return kvl_given(f, "check of a layer", dev->check_finite(x, n));
}

/* ---- attention under a policy -------------------------------------------------------------------------- */

/* Adds the time since *t0 to a counter and moves *t0 on; fetches have a counter of their own. */
static void lap(const struct kvl_forward *f, uint64_t *t0, uint64_t *counter)
{
    if (!f->timed) return;
    uint64_t t = kvl_now_ns();
    /* Not below zero: fetches are timed by clock readings of their own. */
    if (counter) *counter += t - *t0 - KVL_MIN(t - *t0, f->e->fetch_ns);
    f->e->fetch_ns = 0;
    *t0 = t;
}

/* Layers by the model's numbers; hooks.c makes them the policy's. */
static struct kvl_step row_step(const struct kvl_row *row, int32_t layer)
{
    return (struct kvl_step){ .layer = layer, .index = row->index, .pos = row->pos, .n_tok = 1 };
}

/* Work that several policies share is attributed to no policy. */
static void no_hook(const struct kvl_forward *f)
{
    if (f->n > 1 && f->mode == KVL_DECODE) kvl_watch_policy(f->e, NULL);
}

/* A layer of a window has nothing for a policy. */
static const struct kvl_policy *row_policy(const struct kvl_forward *f, const struct kvl_row *row,
                                           int32_t layer)
{
    return row->s->planned && kvl_window_of(f->e, layer) == 0 ? row->s->planned->policy : NULL;
}

static int row_append_hook(const struct kvl_forward *f, const struct kvl_row *row, int32_t i,
                           int32_t layer)
{
    struct kvl_engine *e = f->e;
    const struct kvl_shape *sh = &e->model->shape;
    size_t n = (size_t)sh->n_kv_heads * (size_t)sh->head_dim, at = (size_t)i * n;
    struct kvl_step step = row_step(row, layer);
    return kvl_call_append(row, &step, e->k + at, e->v + at, f->err);
}

/* Tables have a row for the token before its hook runs, which may write it.  Ageing comes after the append: only with
 * the new token stored is the oldest of the newest keep_last one too many. */
static int row_append(const struct kvl_forward *f, const struct kvl_row *row, int32_t i,
                      int32_t layer)
{
    struct kvl_session *s = row->s;
    if (s->dead) KVL_TRY(kvl_session_reserve_dead(s, row->pos + 1, f->err));
    for (int32_t t = 0; s->planned && t < s->planned->p.n_tables; t++)
        kvl_row_table_append(s->host.table[t], layer, row->pos + 1);
    const struct kvl_policy *p = row_policy(f, row, layer);
    KVL_TRY(kvl_append_rows(f, s, layer, i, 1, p && p->append));
    return kvl_offload_age(s, layer, row->pos + 1, f->err);
}

/* It looks at nothing that a device wrote. */
static int row_schedule(const struct kvl_forward *f, const struct kvl_row *row, int32_t layer,
                        struct kvl_sel *sel)
{
    struct kvl_session *s = row->s;
    struct kvl_step step = row_step(row, layer);
    if (!s->planned->policy->schedule) return KVL_OK;
    int schedule = kvl_call_schedule(s, &step, f->err);
    int what = schedule < 0 ? schedule : schedule & ~KVL_UNOBSERVED;
    if (what != KVL_DENSE && what != KVL_SELECT)
        return kvl_hook_failed(s, "schedule", layer, schedule);
    sel->dense = what == KVL_DENSE;
    sel->unobserved = schedule != what;
    return KVL_OK;
}

/* schedule and select: what this token reads in this layer. */
static int row_select(const struct kvl_forward *f, const struct kvl_row *row, int32_t i,
                      int32_t layer, struct kvl_sel *sel)
{
    struct kvl_session *s = row->s;
    const struct kvl_shape *sh = &f->e->model->shape;
    const struct kvl_policy *p = s->planned->policy;
    struct kvl_step step = row_step(row, layer);
    KVL_TRY(row_schedule(f, row, layer, sel));
    /* A wrapper that changes selections is asked in every layer: what its inner policy shares is
     * loaded where that one is asked (kvl_inner_select). */
    if (sel->dense || !p->select || (!kvl_policy_reselects(p) && kvl_sel_load(sel, row)))
        return KVL_OK;
    size_t q = (size_t)i * (size_t)sh->n_heads * (size_t)sh->head_dim;
    struct kvl_query query = { .q = f->e->q + q,
                               .q_raw = f->e->q_raw + q,
                               .x = f->e->xn + (size_t)i * (size_t)sh->n_embd,
                               .x_prev = kvl_seen_as(s->planned, layer) > 0
                                             ? f->e->x_prev + (size_t)i * (size_t)sh->n_embd
                                             : NULL };
    return kvl_call_select(row, &step, &query, sel, f->err);
}

/* Arrays of pointers for the host, weights for operators: they are of different arenas, since what operators
 * write must not be read by the host unasked. */
static int observed_get(const struct kvl_forward *f, bool wanted, struct kvl_observed *ob)
{
    size_t heads = (size_t)f->e->model->shape.n_heads;
    struct kvl_arena *a = &f->e->step;
    *ob = (struct kvl_observed){ .lse = kvl_arena_get(&f->e->results, heads, sizeof *ob->lse) };
    if (wanted) {
        ob->probs = kvl_arena_get(a, heads, sizeof *ob->probs);
        ob->n = kvl_arena_get(a, heads, sizeof *ob->n);
    }
    if (!ob->lse || (wanted && (!ob->probs || !ob->n)))
        return kvl_fail(f->err, KVL_ENOMEM, "out of memory for a token");
    return KVL_OK;
}

/* A selection that cannot be carried out is the fault of the hook that made it, and is told so. */
static int row_resolve(const struct kvl_forward *f, struct kvl_row *row, int32_t i,
                       struct kvl_sel *sel)
{
    const struct kvl_shape *sh = &f->e->model->shape;
    size_t q = (size_t)i * (size_t)sh->n_heads * (size_t)sh->head_dim;
    struct kvl_resolve r = { .sel = sel,
                             .row = row,
                             .q = f->e->q + q,
                             .q_raw = f->e->q_raw + q,
                             .out = f->e->att + q,
                             .lse = row->ob.lse,
                             .probs = row->ob.probs,
                             .n_probs = row->ob.n,
                             .reads = row->s->tap.read ? &row->reads : NULL };
    int rc = kvl_resolve(&r);
    if (rc == KVL_OK) return KVL_OK;
    return row->s->planned ? kvl_hook_failed(row->s, "selection", sel->layer, rc) : rc;
}

/* A call that failed may have left jobs of rows that are gone. */
static void jobs_clear(struct kvl_engine *e)
{
    e->n_jobs = e->n_merges = 0;
    e->joins = NULL;
    e->residuals = NULL;
    kvl_hosted_clear(e);
}

/* Runs the gathered jobs; lanes are looked up now, since appends may have moved block tables.  Under
 * the mask oracle the jobs have run already, and only merges are left. */
static int flush_attention(const struct kvl_forward *f, int32_t layer)
{
    struct kvl_engine *e = f->e;
    struct kvl_lane *lane = kvl_arena_get(&e->step, (size_t)e->n_jobs, sizeof *lane);
    if (!lane) return kvl_fail(f->err, KVL_ENOMEM, "out of memory for attention");
    for (int32_t j = 0; j < e->n_jobs; j++) {
        const struct kvl_job_src *src = &e->job_src[j];
        lane[j] = kvl_reads_copies(src->session, src->layer)
                      ? kvl_tier_view(src->session->tier, src->layer, src->kv_head)
                      : kvl_seq_lane(src->session->seq, src->layer, src->kv_head);
        e->job[j].lane = &lane[j];
        kvl_count_walked(src->session, &e->job[j]);
    }
    struct kvl_attn_decode_args args = { .jobs = e->job,
                                         .n_jobs = e->n_jobs,
                                         .head_dim = e->model->shape.head_dim,
                                         .scale = e->scale,
                                         .cap = e->cap,
                                         .rope = kvl_layer_rope(e, layer) };
    int rc = kvl_hosted_queries(e);
    if (rc == KVL_OK && e->n_jobs > 0) rc = e->ops->attn_decode(&args);
    if (rc == KVL_OK) rc = kvl_hosted_run(e, args.rope);
    /* Linked only now: the array may have moved while it grew. */
    for (int32_t m = 1; m < e->n_merges; m++) e->merge[m - 1].next = &e->merge[m];
    if (rc == KVL_OK && e->n_merges > 0) rc = e->ops->attn_merge(e->merge);
    e->pending = true;
    if (rc == KVL_OK) rc = kvl_resolve_finish(e);
    jobs_clear(e);
    return kvl_given(f, "attention", rc);
}

static int row_observe(const struct kvl_forward *f, const struct kvl_row *row, int32_t layer)
{
    struct kvl_step step = row_step(row, layer);
    return kvl_call_observe(row, &step, f->err);
}

/* A tap is a listener of tests and traces: everything is waited for. */
static int row_tap(const struct kvl_forward *f, const struct kvl_row *row, int32_t i, int32_t layer)
{
    const struct kvl_shape *sh = &f->e->model->shape;
    size_t q = (size_t)i * (size_t)sh->n_heads * (size_t)sh->head_dim;
    float *query = f->e->q + q, *att = f->e->att + q;
    size_t bytes = (size_t)sh->n_heads * (size_t)sh->head_dim * sizeof *att;
    KVL_TRY(kvl_engine_wait(f->e, f->err));
    int rc = kvl_engine_host(f->e, query, bytes, false);
    if (rc == KVL_OK) rc = kvl_engine_host(f->e, att, bytes, false);
    KVL_TRY(kvl_engine_failed(f->e, "what a tap sees", rc, f->err));
    return kvl_tap_read(row->s, layer, row->pos, row->dense, query, att, &row->reads, f->err);
}

/* While decoding what is chosen on the device may be carried out late: the layer is not read again before the next
 * token. */
static int row_evict(const struct kvl_forward *f, const struct kvl_row *row, int32_t layer)
{
    struct kvl_step step = row_step(row, layer);
    KVL_TRY(kvl_step_hook_begin(row, f->err));
    bool late = f->mode == KVL_DECODE;
    return kvl_hook_done(row->s, "evict", layer, kvl_evict_layer(row->s, &step, late));
}

static bool evicts(const struct kvl_session *s)
{
    return s->planned && s->planned->policy->evict;
}

/* Eviction comes after every token of a block, not at its end. */
static bool evicts_in_block(const struct kvl_forward *f, const struct kvl_session *s, int32_t layer)
{
    return kvl_window_of(f->e, layer) == 0 && f->mode == KVL_EXTEND && evicts(s) &&
           s->planned->own_prefill;
}

/* One token, one layer: its keys are stored, it chooses, its attention is gathered.  Returns through
 * *waits how many weights will lie there for observe. */
static int row_gather(const struct kvl_forward *f, int32_t i, int32_t layer, size_t *waits)
{
    struct kvl_row *row = &f->e->row[i];
    struct kvl_session *s = row->s;
    struct kvl_counters *c = &s->count;
    const struct kvl_policy *p = row_policy(f, row, layer);
    uint64_t t = f->timed ? kvl_now_ns() : 0;
    KVL_TRY(row_append(f, row, i, layer));
    lap(f, &t, NULL);
    if (p && p->append) KVL_TRY(row_append_hook(f, row, i, layer));
    lap(f, &t, &c->meta_ns);
    struct kvl_sel sel;
    kvl_sel_init(&sel, s, layer, row->pos + 1, f->err);
    if (p) KVL_TRY(row_select(f, row, i, layer, &sel));
    KVL_TRY(observed_get(f, p && p->observe && !sel.unobserved, &row->ob));
    row->dense = sel.dense || !p;
    if (s->tap.read && kvl_reads_get(f->e, &row->reads) != KVL_OK)
        return kvl_fail(f->err, KVL_ENOMEM, "out of memory to tap a token");
    KVL_TRY(row_resolve(f, row, i, &sel));
    for (int32_t h = 0; row->ob.n && h < f->e->model->shape.n_heads; h++)
        *waits += (size_t)row->ob.n[h];
    lap(f, &t, &c->select_ns);
    return KVL_OK;
}

/* Attention of the rows first .. last - 1, and what follows it, row by row. */
static int rows_settle(const struct kvl_forward *f, int32_t first, int32_t last, int32_t layer)
{
    struct kvl_counters *c = &f->e->row[first].s->count;
    uint64_t t = f->timed ? kvl_now_ns() : 0;
    no_hook(f);
    KVL_TRY(flush_attention(f, layer));
    lap(f, &t, &c->attend_ns);
    for (int32_t i = first; i < last; i++) {
        const struct kvl_row *row = &f->e->row[i];
        /* Hooks below read keys where they lie and never through the view, so its places may go. */
        if (kvl_offloads(row->s, layer)) kvl_tier_settle(row->s->tier, layer);
        if (row->s->tap.read) KVL_TRY(row_tap(f, row, i, layer));
        if (row->ob.n) KVL_TRY(row_observe(f, row, layer));
        lap(f, &t, &c->meta_ns);
        if (evicts_in_block(f, row->s, layer)) KVL_TRY(row_evict(f, row, layer));
        lap(f, &t, &c->evict_ns);
    }
    return KVL_OK;
}

/* The next token of a block must not choose before observe and evict saw what this one read, nor read through the
 * same cache of the host tier.  Rows of a decode step are of different sessions: their attention is one
 * call, as long as the weights that wait for observe stay in the second-level cache. */
static bool rows_must_settle(const struct kvl_forward *f, const struct kvl_row *row, int32_t layer,
                             size_t waits)
{
    const struct kvl_session *s = row->s;
    if (s->tap.read || waits > WAITING_WEIGHTS) return true;
    return f->mode == KVL_EXTEND &&
           (row->ob.n || evicts_in_block(f, s, layer) || kvl_offloads(s, layer));
}

/* Eviction: after every decoded token, after the last one of a block.  A layer of a window forgets by itself. */
static int evict_rows(const struct kvl_forward *f, int32_t layer)
{
    bool local = kvl_window_of(f->e, layer) > 0;
    for (int32_t i = f->mode == KVL_EXTEND ? f->n - 1 : 0; i < f->n; i++) {
        const struct kvl_row *row = &f->e->row[i];
        if (local) kvl_local_forget(row->s, layer, row->pos + 1, false);
        if (local || f->more) continue;
        if (evicts(row->s) && !evicts_in_block(f, row->s, layer)) KVL_TRY(row_evict(f, row, layer));
    }
    return KVL_OK;
}

/* Rows wait for their attention as long as they may, so that it is one call; scratch memory is given back in
 * between. The layer's input is kept by changing places with that of the layer before: methods guess from it. */
static int attend_policy(const struct kvl_forward *f, int32_t layer)
{
    struct kvl_engine *e = f->e;
    struct kvl_counters *c = &e->row[0].s->count;
    int32_t first = 0; /* of the rows that wait for their attention */
    size_t waits = 0;
    jobs_clear(e);
    for (int32_t i = 0; i < f->n; i++) {
        if (i > first && kvl_seq_seals(e->row[i].s->seq, layer, 1)) { /* rows before read it open */
            KVL_TRY(rows_settle(f, first, i, layer));
            first = i;
            waits = 0;
        }
        if (first == i) KVL_TRY(kvl_step_reset(e, f->err));
        KVL_TRY(row_gather(f, i, layer, &waits));
        if (i < f->n - 1 && !rows_must_settle(f, &e->row[i], layer, waits)) continue;
        KVL_TRY(rows_settle(f, first, i + 1, layer));
        first = i + 1;
        waits = 0;
    }
    uint64_t t = f->timed ? kvl_now_ns() : 0;
    if (kvl_window_of(e, layer) == 0) { /* the MLP norms its input into xn anew: any room will do */
        float *input = e->xn;
        e->xn = e->x_prev;
        e->x_prev = input;
    }
    KVL_TRY(evict_rows(f, layer));
    lap(f, &t, &c->evict_ns);
    no_hook(f);
    return KVL_OK;
}

/* What elements of a part must stay below; 0: they may be of any size.  A turn may bring a piece's elements together. */
static float part_most(const struct kvl_kv_facts *t, int32_t head_dim)
{
    return t->turn == KVL_TURN_NONE ? t->most : t->most / sqrtf((float)head_dim);
}

/* Keys or values of this call that the store cannot hold would be infinite there: attention then is NaN or, where
 * infinities are negative, silently without them. */
static int rows_fit(const struct kvl_forward *f, int32_t layer)
{
    const struct kvl_engine *e = f->e;
    const struct kvl_shape *sh = &e->model->shape;
    enum kvl_kv_type type = kvl_store_desc(e->store)->type;
    size_t n = (size_t)f->n * (size_t)sh->n_kv_heads * (size_t)sh->head_dim;
    for (int part = 0; part < 2; part++) {
        const float *x = part ? e->v : e->k;
        const struct kvl_kv_facts *t = kvl_kv_facts(part ? kvl_kv_values(type) : kvl_kv_keys(type));
        float most = 0.0f, limit = part_most(t, sh->head_dim);
        for (size_t i = 0; limit > 0 && i < n; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        /* What is infinite or NaN already did not come of the type: run_layer tells of it. */
        if (limit > 0 && most >= limit && isfinite(most))
            return kvl_fail(f->err, KVL_EINVAL,
                            "%s of layer %d are as large as %.6g, which does not fit into %s; want "
                            "--kv-type bf16 or f32 (kv_type of a sweep)",
                            part ? "values" : "keys", layer, (double)most, t->name);
    }
    return KVL_OK;
}

/* ---- a layer, the model ---------------------------------------------------------------------------------- */

static void tick(struct kvl_engine *e, int32_t n_tok)
{
    e->tick.done += n_tok;
    if (e->tick.run) e->tick.run(e->tick.done, e->tick.all, e->tick.user);
}

void kvl_forward_begin(struct kvl_engine *e, int32_t n)
{
    e->tick.done = 0;
    e->tick.all = (int64_t)n * e->model->shape.n_layers;
    tick(e, 0);
}

/* On the host every layer is checked, which costs little there and names the layer. A device is asked once per
 * call. */
static int run_layer(const struct kvl_forward *f, int32_t layer)
{
    struct kvl_engine *e = f->e;
    const struct kvl_layer_weights *w = &e->model->w.layer[layer];
    /* Asked in every layer, since a chunk of a long context may take minutes. */
    if (e->stop && *e->stop) return kvl_fail(f->err, KVL_ESTOP, "stopped by a signal");
    KVL_TRY(kvl_layer_project(f, layer));
    if (!e->dev->discrete) KVL_TRY(rows_fit(f, layer));
    KVL_TRY(f->mode == KVL_PREFILL ? kvl_attend_prefill(f, layer) : attend_policy(f, layer));
    KVL_TRY(kvl_layer_finish(f, w));
    if (f->mode != KVL_DECODE) tick(e, f->n);
    size_t n = (size_t)f->n * (size_t)e->model->shape.n_embd;
    if (e->dev->discrete) return check_later(f, e->x, n);
    if (!all_finite(e->x, n))
        return kvl_fail(f->err, KVL_ENUMERIC,
                        "layer %d gave infinity or NaN at position %d or after", layer,
                        e->row[0].pos);
    return KVL_OK;
}

/* The last place where a NaN can be noticed before it becomes an answer. */
int kvl_forward_logits(const struct kvl_forward *f, int32_t n, float *out)
{
    struct kvl_engine *e = f->e;
    int rc = kvl_layer_logits(f, n, out);
    if (rc != KVL_OK) kvl_marks_drop(e); /* they are not the next call's */
    KVL_TRY(rc);
    KVL_TRY(kvl_marks_check(e, f->err));
    if (!all_finite(out, (size_t)n * (size_t)e->model->shape.n_vocab))
        return kvl_fail(f->err, KVL_ENUMERIC, "a logit is infinite or NaN at position %d or after",
                        e->row[0].pos);
    return KVL_OK;
}

/* The marks that the layers left, on a device that says so only now. */
static int rows_finite(const struct kvl_forward *f)
{
    struct kvl_engine *e = f->e;
    bool finite = true;
    if (f->mode == KVL_DECODE || !e->dev->finite) return KVL_OK;
    KVL_TRY(kvl_given(f, "check of the layers", e->dev->finite(&finite)));
    KVL_TRY(kvl_marks_check(e, f->err));
    if (finite) return KVL_OK;
    enum kvl_kv_type type = kvl_store_desc(e->store)->type;
    return kvl_fail(f->err, KVL_ENUMERIC, "a layer gave infinity or NaN at position %d or after%s",
                    e->row[0].pos,
                    kvl_kv_keys(type) == KVL_KV_F16
                        ? "; keys beyond 65504 do not fit into f16: try --kv-type bf16"
                        : "");
}

/* A call that ended early takes its marks along: they are not the next one's. */
static int rows_ended(const struct kvl_forward *f, int rc)
{
    bool ignored;
    if (f->mode != KVL_DECODE && f->e->dev->finite) (void)f->e->dev->finite(&ignored);
    kvl_marks_drop(f->e);
    return rc;
}

/* In one copy; a step of decoding brings it along with what its operators upload. */
int kvl_forward_give(const struct kvl_forward *f)
{
    struct kvl_engine *e = f->e;
    size_t bytes = (size_t)f->n * sizeof *e->both;
    memcpy(e->both, e->id, bytes);
    memcpy(e->both + f->n, e->pos, bytes);
    return kvl_given(f, "tokens and positions",
                     e->dev->copy(e->given, e->both, 2 * bytes, KVL_STREAM_MAIN));
}

int kvl_forward_layers(const struct kvl_forward *f, int32_t first, int32_t end)
{
    int rc = KVL_OK;
    for (int32_t l = first; rc == KVL_OK && l < end; l++) rc = run_layer(f, l);
    return rc == KVL_OK ? rows_finite(f) : rows_ended(f, rc);
}

/* A step that ended early may have left evictions and results: nothing of them belongs to this one. */
int kvl_forward_rows(const struct kvl_forward *f)
{
    KVL_TRY(kvl_step_reset(f->e, f->err)); /* before something is under way */
    kvl_evict_forget(f->e);
    KVL_TRY(kvl_forward_give(f));
    KVL_TRY(kvl_forward_embed(f));
    return kvl_forward_layers(f, 0, f->e->model->shape.n_layers);
}

/* Logits of the last token alone, or of all: a vocabulary is wide, and logits of a whole context are for perplexity
 * only. */
int kvl_prefill_logits(const struct kvl_prefill *p, const struct kvl_forward *f, int32_t at)
{
    size_t skip = p->last_only ? 0 : (size_t)at * (size_t)f->e->model->shape.n_vocab;
    int32_t n = p->last_only ? at + f->n == p->n : f->n;
    return p->logits && n > 0 ? kvl_forward_logits(f, n, p->logits + skip) : KVL_OK;
}
