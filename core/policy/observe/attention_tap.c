/* Taps: what attention read, by what it was chosen, what was kept; and full attention to compare
 * with.  Nothing here runs in a session without a tap. */
#include "policy_impl.h"

#include <math.h>
#include <string.h>

int32_t kvl_scope_lists(const struct kvl_shape *sh, enum kvl_scope scope)
{
    return scope == KVL_SCOPE_LAYER ? 1
                                    : (scope == KVL_SCOPE_KV_HEAD ? sh->n_kv_heads : sh->n_heads);
}

/* A tap is of one session: forks of it are not listened to unless they are given a tap of their
 * own. */
void kvl_session_tap(struct kvl_session *s, const struct kvl_tap *tap)
{
    s->tap = tap ? *tap : (struct kvl_tap){ 0 };
}

/* Steps under the policy before this position; -1 at attach and without a policy. */
static int32_t tap_index(const struct kvl_session *s, int32_t pos)
{
    return s->planned ? pos - s->ctx.context_tok : -1;
}

/* ---- reads ----------------------------------------------------------------------------------------- */

/* In the step arena: a tap that wants more than one layer copies. */
int kvl_reads_get(struct kvl_engine *e, struct kvl_reads *out)
{
    size_t heads = (size_t)e->model->shape.n_heads;
    *out =
        (struct kvl_reads){ .pos = kvl_arena_get(&e->step, heads, sizeof *out->pos),
                            .n = kvl_arena_get(&e->step, heads, sizeof *out->n),
                            .log_weight = kvl_arena_get(&e->step, heads, sizeof *out->log_weight) };
    if (!out->pos || !out->n || !out->log_weight) return KVL_ENOMEM;
    memset(out->n, 0, heads * sizeof *out->n);
    for (size_t h = 0; h < heads; h++) out->log_weight[h] = NULL;
    return KVL_OK;
}

/* Two segments of a selection as one: each ascends, neither overlaps the other. */
static int reads_merge(struct kvl_engine *e, struct kvl_reads *reads, int32_t q_head,
                       const int32_t *pos, const float *log_weight, int32_t n)
{
    int32_t n_old = reads->n[q_head], i = 0, j = 0;
    const int32_t *old = reads->pos[q_head];
    const float *old_weight = reads->log_weight[q_head];
    bool weighted = old_weight || log_weight;
    int32_t *all = kvl_arena_get(&e->step, (size_t)n_old + (size_t)n, sizeof *all);
    float *weight = kvl_arena_get(&e->step, (size_t)n_old + (size_t)n, sizeof *weight);
    if (!all || !weight) return KVL_ENOMEM;
    for (int32_t k = 0; k < n_old + n; k++) {
        bool from_old = j == n || (i < n_old && old[i] < pos[j]);
        /* A segment without weights has log-weight 0 beside one that has some. */
        const float *w = from_old ? old_weight : log_weight;
        weight[k] = w ? w[from_old ? i : j] : 0.0f;
        all[k] = from_old ? old[i++] : pos[j++];
    }
    reads->pos[q_head] = all;
    reads->n[q_head] = n_old + n;
    reads->log_weight[q_head] = weighted ? weight : NULL;
    return KVL_OK;
}

/* One segment is the usual case, and is not copied. */
int kvl_reads_add(struct kvl_engine *e, struct kvl_reads *reads, int32_t q_head, const int32_t *pos,
                  const float *log_weight, int32_t n)
{
    if (reads->n[q_head] > 0) return reads_merge(e, reads, q_head, pos, log_weight, n);
    reads->pos[q_head] = pos;
    reads->n[q_head] = n;
    reads->log_weight[q_head] = log_weight;
    return KVL_OK;
}

/* Queries, output and lists of one row and layer, as attention had them: a listener can work the output out
 * once more. */
int kvl_tap_read(struct kvl_session *s, int32_t layer, int32_t pos, bool dense, const float *q,
                 const float *out, const struct kvl_reads *reads, struct kvl_err *err)
{
    struct kvl_tap_read r = { .session = s,
                              .layer = layer,
                              .index = tap_index(s, pos),
                              .pos = pos,
                              .dense = dense,
                              .q = q,
                              .out = out,
                              .read = reads->pos,
                              .n_read = reads->n,
                              .log_weight = reads->log_weight,
                              .alpha = reads->alpha,
                              .mean = reads->mean,
                              .given = reads->given };
    int rc = s->tap.read(s->tap.user, &r, err);
    return rc == KVL_OK ? KVL_OK : kvl_fail(err, rc, "a tap ended the call");
}

/* ---- inside hooks ----------------------------------------------------------------------------------- */

/* A policy that ignores the status that its builder returned must not hide it. */
static int tap_done(struct kvl_session *s, int rc)
{
    if (s->tap_rc == KVL_OK) s->tap_rc = rc;
    return rc;
}

/* Position and step are those of the running hook, whatever the caller knows. */
int kvl_tap_score(struct kvl_session *s, const struct kvl_tap_score *score)
{
    if (!s->tap.score) return KVL_OK;
    struct kvl_tap_score t = *score;
    t.session = s;
    t.pos = s->host.n_visible - 1;
    t.index = tap_index(s, t.pos);
    return tap_done(s, s->tap.score(s->tap.user, &t, s->ctx.err));
}

bool kvl_tap_listens(const struct kvl_pctx *ctx)
{
    return ctx->host->session->tap.score != NULL;
}

/* Checked with or without a listener: a trace must not find errors that a run does not have. */
int kvl_tap_scores(const struct kvl_pctx *ctx, const struct kvl_step *step,
                   const struct kvl_scored *scored)
{
    struct kvl_session *s = ctx->host->session;
    int32_t n_pos = step->pos + 1;
    if (scored->scope < KVL_SCOPE_LAYER || scored->scope > KVL_SCOPE_Q_HEAD ||
        scored->unit_tok < 1 || scored->first_tok < 0 || scored->n < 0 || scored->n > n_pos)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "%d scores of units of %d from position %d on, scope %d; want at most %d "
                        "of 1 or more from 0 or more, scope 0 to 2",
                        scored->n, scored->unit_tok, scored->first_tok, (int)scored->scope, n_pos);
    if (!s->tap.score) return KVL_OK;
    return kvl_tap_score(s, &(struct kvl_tap_score){
                                .layer = kvl_layer_of(ctx, step->layer),
                                .scope = scored->scope,
                                .n_lists = kvl_scope_lists(&s->engine->model->shape, scored->scope),
                                .unit_tok = scored->unit_tok,
                                .first_tok = scored->first_tok,
                                .n = scored->n,
                                .score = scored->score });
}

/* Tells of an eviction as it was carried out, by whichever hook it was decided. */
int kvl_tap_keep(struct kvl_session *s, int32_t layer, int32_t kv_head, const int32_t *kept,
                 int32_t n_kept)
{
    if (!s->tap.keep) return KVL_OK;
    struct kvl_tap_keep t = { .session = s,
                              .layer = layer,
                              .kv_head = kv_head,
                              .pos = s->host.n_visible - 1,
                              .kept = kept,
                              .n_kept = n_kept };
    t.index = tap_index(s, t.pos);
    return tap_done(s, s->tap.keep(s->tap.user, &t, s->ctx.err));
}

/* ---- full attention ---------------------------------------------------------------------------------- */

/* One past the last position of a lane of a window; *first is the first that it holds. */
static int32_t full_end(const struct kvl_session *s, int32_t layer, int32_t kv_head, int32_t *first)
{
    struct kvl_lane lane = kvl_seq_lane(s->seq, layer, kv_head);
    *first = lane.n_slots > 0 ? kvl_lane_pos(&lane, 0)[0] : 0;
    return *first + lane.n_slots;
}

/* What is compared with must hold everything; what a policy evicted cannot be attended any more. */
static int full_check(const struct kvl_session *s, int32_t layer, int32_t n_pos,
                      struct kvl_err *err)
{
    const struct kvl_shape *sh = &s->engine->model->shape;
    if (layer < 0 || layer >= sh->n_layers)
        return kvl_fail(err, KVL_EINVAL, "full attention of layer %d, want 0 to %d", layer,
                        sh->n_layers - 1);
    for (int32_t h = 0; h < sh->n_kv_heads; h++) {
        int32_t n = kvl_seq_len(s->seq, layer, h), window = kvl_window_of(s->engine, layer);
        if (window > 0) {
            int32_t first;
            n = full_end(s, layer, h, &first);
            if (n_pos > n || KVL_MAX(0, n_pos - window) < first)
                return kvl_fail(err, KVL_EINVAL,
                                "full attention over %d positions, layer %d holds %d to %d", n_pos,
                                layer, first, n - 1);
        } else if (!kvl_lane_is_whole(s, layer, h))
            return kvl_fail(err, KVL_EINVAL,
                            "full attention over layer %d, kv head %d, from which tokens were "
                            "evicted; want a session that keeps all",
                            layer, h);
        if (n_pos < 1 || n_pos > n)
            return kvl_fail(err, KVL_EINVAL,
                            "full attention over %d positions, want 1 to %d, which layer %d holds",
                            n_pos, n, layer);
    }
    return KVL_OK;
}

/* What a sink takes of weights and output. */
static void full_sinks(const struct kvl_engine *e, int32_t layer, int32_t n, const float *lse,
                       float *probs, float *out)
{
    const struct kvl_shape *sh = &e->model->shape;
    kvl_sinks_take(e, layer, lse, probs, n);
    for (int32_t h = 0; h < sh->n_heads; h++) {
        float left = 1 / (1 + expf(kvl_layer_sinks(e, layer)[h] - lse[h]));
        for (int32_t c = 0; c < sh->head_dim; c++) *out++ *= left;
    }
}

/* One job per kv head over all its slots: weights and output come from the same pass. */
static int full_run(struct kvl_session *s, int32_t layer, const float *q, int32_t n_pos,
                    float *probs, float *out, float *lse, struct kvl_lane *lane,
                    struct kvl_attn_job *job)
{
    struct kvl_engine *e = s->engine;
    const struct kvl_shape *sh = &e->model->shape;
    int32_t group = kvl_group(sh), window = kvl_window_of(e, layer);
    int32_t n = window > 0 ? KVL_MIN(window, n_pos) : n_pos;
    size_t dim = (size_t)sh->head_dim;
    /* One run for all jobs: lanes of a window hold the same positions. */
    struct kvl_run run = { 0, n };
    for (int32_t h = 0; h < sh->n_kv_heads; h++) {
        size_t first = (size_t)h * (size_t)group;
        lane[h] = kvl_seq_lane(s->seq, layer, h);
        job[h] = (struct kvl_attn_job){ .out = out + first * dim,
                                        .lse = lse + first,
                                        .q = q + first * dim,
                                        .lane = &lane[h],
                                        .n_slots = n,
                                        .n_heads = group,
                                        .probs = probs + first * (size_t)n };
        if (window == 0) continue;
        (void)full_end(s, layer, h, &run.slot);
        run.slot = n_pos - n - run.slot; /* the same in all lanes */
        job[h].runs = &run;
        job[h].n_runs = 1;
    }
    KVL_TRY(
        e->now->attn_decode(&(struct kvl_attn_decode_args){ .jobs = job,
                                                            .n_jobs = sh->n_kv_heads,
                                                            .head_dim = sh->head_dim,
                                                            .scale = e->scale,
                                                            .cap = e->cap,
                                                            .rope = kvl_layer_rope(e, layer) }));
    if (e->sinks) full_sinks(e, layer, n, lse, probs, out);
    /* Rows of n become rows of n_pos in the same memory: from the last on, or a row would overwrite
     * one that has not moved. */
    for (size_t h = (size_t)sh->n_heads; n < n_pos && h-- > 0;) {
        float *row = probs + h * (size_t)n_pos;
        memmove(row + (n_pos - n), probs + h * (size_t)n, (size_t)n * sizeof *row);
        memset(row, 0, (size_t)(n_pos - n) * sizeof *row);
    }
    return KVL_OK;
}

/* The engine's own workspace may be in use: this may be called from a tap. */
int kvl_session_full_attention(struct kvl_session *s, int32_t layer, const float *q, int32_t n_pos,
                               float *probs, float *out, struct kvl_err *err)
{
    KVL_TRY(full_check(s, layer, n_pos, err));
    const struct kvl_shape *sh = &s->engine->model->shape;
    size_t heads = (size_t)sh->n_heads, lanes = (size_t)sh->n_kv_heads;
    struct kvl_lane *lane = kvl_alloc(lanes, sizeof *lane);
    struct kvl_attn_job *job = kvl_alloc(lanes, sizeof *job);
    float *lse = kvl_alloc(heads, sizeof *lse);
    /* The operator always writes an output; without a caller that wants it, it needs a place. */
    float *values = out ? NULL : kvl_alloc(heads * (size_t)sh->head_dim, sizeof *values);
    int rc = KVL_ENOMEM;
    if (lane && job && lse && (out || values))
        rc = full_run(s, layer, q, n_pos, probs, out ? out : values, lse, lane, job);
    kvl_free(lane);
    kvl_free(job);
    kvl_free(lse);
    kvl_free(values);
    if (rc == KVL_OK) return KVL_OK;
    return kvl_fail(err, rc, "full attention over %d positions: %s", n_pos, kvl_status_name(rc));
}

/* ---- what a policy tells ---------------------------------------------------------------------------- */

/* Without a listener there is no room, and a method then fills in nothing: a run that is not traced
 * pays nothing. */
int kvl_tap_room(const struct kvl_pctx *ctx, const struct kvl_step *step, enum kvl_scope scope,
                 float **out)
{
    int64_t n = kvl_scope_lists(ctx->shape, scope) * ((int64_t)step->pos + 1);
    float *room = NULL;
    if (kvl_tap_listens(ctx)) KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &room));
    for (int64_t i = 0; room && i < n; i++) room[i] = -INFINITY;
    *out = room;
    return KVL_OK;
}

int kvl_tap_positions(const struct kvl_pctx *ctx, const struct kvl_step *step, enum kvl_scope scope,
                      const float *score)
{
    struct kvl_scored all = { .scope = scope, .unit_tok = 1, .n = step->pos + 1, .score = score };
    return score ? kvl_tap_scores(ctx, step, &all) : KVL_OK;
}
