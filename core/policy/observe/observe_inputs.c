/* KVL_OBS_INPUTS: scores that a method makes of what enters each layer.
 *
 * The inputs of a context are larger than its keys and values, so they are not kept: a scorer of the method sees them go
 * by, and its scores lie where column sums do, in rows of kv heads.  What it multiplies with belongs to the engine, so that
 * plans of any number share it. */
#include "policy_impl.h"

#include "kvl/fpenv.h"

#include <math.h>
#include <string.h>

/* ---- plan and engine ------------------------------------------------------------------------------- */

/* A copy in the plan's memory: sets of observers borrow it until an engine knows it. */
int kvl_plan_inputs(struct kvl_plan *plan, const struct kvl_input_scorer *scorer)
{
    if (plan->own_prefill)
        return kvl_fail(plan->err, KVL_EPOLICY,
                        "observer \"inputs\", but the policy does its own prefill");
    if (scorer->key < 0 || !scorer->load || !scorer->score || scorer->bytes == 0)
        return kvl_fail(plan->err, KVL_EPOLICY,
                        "a scorer of inputs with key %d, %zu bytes%s, want a key and bytes of 0 "
                        "and 1 or more, load and score",
                        scorer->key, scorer->bytes,
                        scorer->load && scorer->score ? "" : ", without load or score");
    struct kvl_input_scorer *mine = kvl_arena_get(&plan->p->masks, 1, sizeof *mine);
    if (!mine) return kvl_fail(plan->err, KVL_ENOMEM, "out of memory for a scorer");
    *mine = *scorer;
    const struct kvl_observer_set one = { .n_columns = 1,
                                          .column = { { KVL_OBS_INPUTS, scorer->key } },
                                          .scorer = { mine } };
    return kvl_observer_set_merge(&plan->p->observers, &one, plan->err);
}

static struct kvl_loaded_scorer *scorer_find(const struct kvl_engine *e, int32_t key)
{
    struct kvl_loaded_scorer *l = e->scorers;
    while (l && l->scorer.key != key) l = l->next;
    return l;
}

static int scorer_load(struct kvl_engine *e, const struct kvl_input_scorer *scorer,
                       struct kvl_err *err)
{
    struct kvl_loaded_scorer *l = kvl_alloc(1, sizeof *l);
    if (!l) return kvl_fail(err, KVL_ENOMEM, "out of memory for a scorer of inputs");
    *l = (struct kvl_loaded_scorer){ .next = e->scorers, .scorer = *scorer };
    e->scorers = l; /* kvl_scorers_free takes it back in any case */
    l->memory = e->dev->alloc(KVL_PLACE_TABLE, scorer->bytes, 1);
    if (!l->memory)
        return kvl_fail(err, KVL_ENOMEM, "out of memory for a scorer of inputs of %zu bytes",
                        scorer->bytes);
    int rc = kvl_engine_host(e, l->memory, scorer->bytes, true);
    KVL_TRY(kvl_engine_failed(e, "a scorer of inputs", rc, err));
    rc = kvl_fp_kept(scorer->load(scorer, &e->model->shape, l->memory, err), KVL_EPOLICY, err);
    if (e->dev->settle) e->dev->settle();
    if (rc == KVL_OK) return KVL_OK;
    e->scorers = l->next; /* another try loads it again */
    e->dev->free(KVL_PLACE_TABLE, l->memory);
    kvl_free(l);
    return rc;
}

int kvl_scorers_load(struct kvl_engine *e, struct kvl_observer_set *set, struct kvl_err *err)
{
    for (int32_t i = 0; i < set->n_columns; i++) {
        const struct kvl_input_scorer *scorer = set->scorer[i];
        set->scorer[i] = NULL;
        if (set->column[i].what != KVL_OBS_INPUTS || scorer_find(e, set->column[i].param)) continue;
        if (!scorer)
            return kvl_fail(err, KVL_EINTERNAL, "inputs of key %d without their scorer",
                            set->column[i].param);
        KVL_TRY(scorer_load(e, scorer, err));
    }
    return KVL_OK;
}

void kvl_scorers_free(struct kvl_engine *e)
{
    while (e->scorers) {
        struct kvl_loaded_scorer *l = e->scorers;
        e->scorers = l->next;
        e->dev->free(KVL_PLACE_TABLE, l->memory);
        kvl_free(l);
    }
}

/* ---- scores -------------------------------------------------------------------------------------------- */

/* score [n_kv_heads][n], in scratch that the caller may read; ctx has its operators wait. */
static int scorer_run(const struct kvl_pctx *ctx, const struct kvl_loaded_scorer *l, int32_t layer,
                      const float *x, int32_t n, float *score)
{
    struct kvl_engine *e = ctx->host->session->engine;
    size_t n_embd = (size_t)e->model->shape.n_embd;
    int rc = kvl_engine_host(e, l->memory, l->scorer.bytes, false);
    if (rc == KVL_OK && l->scorer.looks)
        rc = kvl_engine_host(e, (float *)(uintptr_t)x, (size_t)n * n_embd * sizeof *x, false);
    KVL_TRY(kvl_engine_failed(e, "inputs of a layer", rc, ctx->err));
    rc = l->scorer.score(ctx, l->memory, layer, x, n, score);
    KVL_TRY(kvl_fp_kept(rc, KVL_EPOLICY, ctx->err));
    for (size_t i = 0; i < (size_t)ctx->shape->n_kv_heads * (size_t)n; i++)
        if (isnan(score[i]))
            return kvl_fail(ctx->err, KVL_ENUMERIC, "a score of an input of layer %d is a NaN",
                            layer);
    return KVL_OK;
}

/* The session has no policy yet, so the context is the model's. */
static int inputs_of(struct kvl_session *s, int32_t column, int32_t layer, int32_t first, int32_t n,
                     struct kvl_err *err)
{
    struct kvl_engine *e = s->engine;
    const struct kvl_shape *sh = &e->model->shape;
    struct kvl_observers *o = s->obs;
    struct kvl_host host = { .session = s };
    struct kvl_pctx ctx = { .shape = sh, .ops = e->now, .err = err, .host = &host };
    const float *x = e->xn + (size_t)first * (size_t)sh->n_embd;
    float *score, *to = o->columns[column].sum +
                        (size_t)layer * (size_t)sh->n_heads * (size_t)o->n_tok + o->n_seen;
    KVL_TRY(kvl_engine_wait(e, err));
    kvl_arena_reset(&e->scratch);
    KVL_TRY(kvl_scratch_get(&ctx, (size_t)sh->n_kv_heads * (size_t)n, &score));
    KVL_TRY(scorer_run(&ctx, scorer_find(e, o->set.column[column].param), layer, x, n, score));
    for (int32_t h = 0; h < sh->n_kv_heads; h++) {
        size_t bytes = (size_t)n * sizeof *score;
        float *row = to + (size_t)h * (size_t)o->n_tok;
        KVL_TRY(
            kvl_engine_failed(e, "scores of inputs", kvl_engine_host(e, row, bytes, true), err));
        memcpy(row, score + (size_t)h * (size_t)n, bytes);
    }
    if (e->dev->settle) e->dev->settle();
    return KVL_OK;
}

int kvl_observers_inputs(struct kvl_session *s, int32_t layer, int32_t first, int32_t n,
                         struct kvl_err *err)
{
    for (int32_t i = 0; i < s->obs->set.n_columns; i++)
        if (s->obs->set.column[i].what == KVL_OBS_INPUTS)
            KVL_TRY(inputs_of(s, i, layer, first, n, err));
    return KVL_OK;
}

int kvl_step_inputs(const struct kvl_pctx *ctx, int32_t layer, int32_t key, float *score)
{
    const struct kvl_session *s = ctx->host->session;
    if (!ctx->host->input || ctx->host->ahead)
        return kvl_fail(ctx->err, KVL_EPOLICY,
                        "the input of a token is there in append of a step, without "
                        "KVL_CAP_ASYNC");
    KVL_TRY(kvl_obs_check_layer(ctx, &layer));
    if (!kvl_observer_set_has(&s->planned->p.observers, KVL_OBS_INPUTS, key))
        return kvl_fail(ctx->err, KVL_EPOLICY, "inputs of key %d were not asked for in plan", key);
    return scorer_run(ctx, scorer_find(s->engine, key), layer, ctx->host->input, 1, score);
}
