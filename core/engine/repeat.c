/* KVL_OBS_REPLAY: the context once more, after itself (KVzip); KVL_OBS_REREAD (KVCompose).
 *
 * Chunk by chunk a fork of the session is asked to write down what it has read, and is given the chunk:
 * what its queries look up in the chunk is what a model needs of it to say it again.  The hidden states
 * see the whole cache, as in any prefill; the weights that are scored are those of a softmax over the
 * first keys of the context, the chunk's own and those of the repetition up to the query.  A second reading is a
 * repetition in one chunk without a request.
 *
 * Tokens of a chunk's repetition lie at the positions after the context, and go with the fork.  Both
 * kinds of score are made in one pass where the engine keeps both. */
#include "repeat.h"
#include "forward.h"

#include <math.h>
#include <string.h>

enum { REPEAT_REMIND = 8 }; /* tokens before a chunk that follow the request */

/* ---- a chunk ---------------------------------------------------------------------------------------------- */

/* Request, the tokens before the chunk, the chunk: *n of them in r->id. */
static int repeat_tokens(struct kvl_repeat *r, const int32_t *id, int32_t *n, struct kvl_err *err)
{
    static const char first[] =
        "\n\nNow write down the whole text above once more, word for word:\n\n";
    static const char next[] =
        "\n\nNow write down the text above once more, word for word, from here on: ";
    const char *text = !r->asks ? "" : r->first == 0 ? first : next;
    struct kvl_tokens request = { 0 };
    int32_t remind = r->first == 0 ? 0 : KVL_MIN(REPEAT_REMIND, r->first);
    int32_t from = r->first - remind;
    KVL_TRY(
        kvl_encode(r->e->model->tokenizer, text, strlen(text), KVL_ENCODE_CONTINUE, &request, err));
    kvl_free(r->id);
    *n = request.n + r->last - from;
    r->id = kvl_alloc((size_t)*n, sizeof *r->id);
    if (r->id) {
        memcpy(r->id, request.id, (size_t)request.n * sizeof *r->id);
        memcpy(r->id + request.n, id + from, (size_t)(r->last - from) * sizeof *r->id);
    }
    kvl_tokens_free(&request);
    return r->id ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "out of memory to repeat a context");
}

static int repeat_run(struct kvl_repeat *r, const struct kvl_session *s, struct kvl_err *err)
{
    struct kvl_session *fork;
    int32_t n;
    KVL_TRY(repeat_tokens(r, s->id, &n, err));
    KVL_TRY(kvl_session_fork(s, &fork, err));
    kvl_observers_unref(fork->obs);
    /* The repetition is no part of the context: observers must not count its queries. */
    fork->obs = NULL;
    fork->repeat = r;
    const struct kvl_prefill p = { .id = r->id, .n = n, .last_only = true };
    int rc = kvl_prefill_run(fork, &p, err);
    kvl_session_destroy(fork);
    return rc;
}

/* Scores of a lane's part of the chunk from the peaks of its query heads: the largest of the group, or all of them. */
static void repeat_reduce(const struct kvl_repeat *r, int kind, int32_t layer, int32_t kv_head,
                          const float *factor)
{
    const struct kvl_shape *sh = &r->e->model->shape;
    size_t m = (size_t)(r->last - r->first), group = (size_t)kvl_group(sh);
    size_t lane = (size_t)layer * (size_t)sh->n_kv_heads + (size_t)kv_head;
    const float *peak = r->peak[kind] + lane * group * m;
    bool each = kvl_repeat_kind[kind] == KVL_OBS_REREAD; /* the chunk is the context */
    float *score = r->score[kind] + lane * (each ? group : 1) * (size_t)r->n_ctx + (size_t)r->first;
    for (size_t i = 0; each && i < group * m; i++) score[i] = expf(peak[i]);
    for (size_t i = 0; !each && i < group * m; i++) {
        float x = expf(peak[i]) * (factor ? factor[i] : 1);
        /* Scores begin as zero, which no weight is below. */
        score[i % m] = x > score[i % m] ? x : score[i % m];
    }
}

/* KVzip+: what a value weighs after the output projection, [group][chunk]. The session has no
 * policy yet, so calls of kvl/policy.h take the model's numbers of layers. */
static int repeat_norms(const struct kvl_repeat *r, struct kvl_session *s, int32_t layer,
                        int32_t kv_head, const float **out, struct kvl_err *err)
{
    const struct kvl_shape *sh = &r->e->model->shape;
    int32_t m = r->last - r->first;
    struct kvl_host host = { .session = s };
    struct kvl_pctx ctx = { .shape = sh, .ops = r->e->now, .err = err, .host = &host };
    KVL_TRY(kvl_engine_wait(r->e, err));
    kvl_arena_reset(&r->e->scratch);
    float *values, *norms;
    KVL_TRY(kvl_scratch_get(&ctx, (size_t)m * (size_t)sh->head_dim, &values));
    KVL_TRY(kvl_scratch_get(&ctx, (size_t)m * (size_t)kvl_group(sh), &norms));
    KVL_TRY(kvl_seq_read(s->seq, layer, kv_head, KVL_PART_V, r->first, m, values, err));
    *out = norms;
    return kvl_output_norms(&ctx, layer, kv_head, values, m, 2, norms);
}

static int repeat_chunk(struct kvl_repeat *r, struct kvl_session *s, struct kvl_err *err)
{
    const struct kvl_shape *sh = &r->e->model->shape;
    size_t peaks = (size_t)sh->n_layers * (size_t)sh->n_heads * (size_t)(r->last - r->first);
    for (int kind = 0; kind < KVL_REPEAT_KINDS; kind++)
        for (size_t i = 0; r->peak[kind] && i < peaks; i++) r->peak[kind][i] = -INFINITY;
    KVL_TRY(repeat_run(r, s, err));
    KVL_TRY(kvl_engine_wait(r->e, err));
    for (int kind = 0; kind < KVL_REPEAT_KINDS; kind++)
        for (int32_t l = 0; r->peak[kind] && l < sh->n_layers; l++)
            for (int32_t h = 0; kvl_window_of(r->e, l) == 0 && h < sh->n_kv_heads; h++) {
                const float *factor = NULL;
                if (kvl_repeat_kind[kind] == KVL_OBS_REPLAY_PLUS)
                    KVL_TRY(repeat_norms(r, s, l, h, &factor, err));
                repeat_reduce(r, kind, l, h, factor);
            }
    return KVL_OK;
}

/* ---- all of it ---------------------------------------------------------------------------------------------- */

static bool repeat_wanted(const struct kvl_session *s, enum kvl_observer what, int32_t param)
{
    return kvl_observer_set_has(&s->obs->set, what, param) &&
           !kvl_observers_repeated(s, what, param);
}

static int repeat_memory(struct kvl_repeat *r, const struct kvl_session *s, int32_t param)
{
    const struct kvl_shape *sh = &r->e->model->shape;
    const struct kvl_device *dev = r->e->dev;
    size_t layers = (size_t)sh->n_layers,
           chunk = (size_t)(param > 0 ? KVL_MIN(param, s->n_pos) : s->n_pos);
    for (int kind = 0; kind < KVL_REPEAT_KINDS; kind++) {
        if (!repeat_wanted(s, kvl_repeat_kind[kind], param)) continue;
        r->peak[kind] =
            dev->alloc(KVL_PLACE_SHARED, layers * (size_t)sh->n_heads * chunk, sizeof(float));
        size_t rows = (size_t)kvl_replay_rows(sh, kvl_repeat_kind[kind]);
        r->score[kind] =
            dev->alloc(KVL_PLACE_SHARED, layers * rows * (size_t)s->n_pos, sizeof(float));
        if (!r->peak[kind] || !r->score[kind]) return KVL_ENOMEM;
    }
    return KVL_OK;
}

/* Hands the scores of one kind to the observers. */
static int repeat_keep(struct kvl_repeat *r, struct kvl_session *s, int kind, int32_t param,
                       uint64_t ns)
{
    if (!r->score[kind]) return KVL_OK;
    struct kvl_repeated *done = kvl_alloc(1, sizeof *done);
    if (!done) return KVL_ENOMEM;
    *done = (struct kvl_repeated){ .next = s->obs->repeats,
                                   .what = kvl_repeat_kind[kind],
                                   .param = param,
                                   .n_tok = s->n_pos,
                                   .score = r->score[kind],
                                   .ns = ns };
    r->score[kind] = NULL;
    s->obs->repeats = done;
    return KVL_OK;
}

/* Chunk by chunk, and each chunk's scores are of its own tokens alone, as the method defines them: the memory is that of
 * one chunk, whatever the context's length. */
static int repeat_make(struct kvl_session *s, int32_t param, struct kvl_err *err)
{
    struct kvl_repeat r = { .e = s->engine, .n_ctx = s->n_pos, .asks = param > 0 };
    uint64_t t0 = kvl_now_ns();
    int rc = repeat_memory(&r, s, param);
    if (rc != KVL_OK) kvl_fail(err, rc, "out of memory to repeat a context of %d tokens", s->n_pos);
    for (; rc == KVL_OK && r.last < s->n_pos; r.first = r.last) {
        r.last = param > 0 ? KVL_MIN(s->n_pos, r.last + param) : s->n_pos;
        rc = repeat_chunk(&r, s, err);
    }
    uint64_t ns = kvl_now_ns() - t0;
    for (int kind = 0; kind < KVL_REPEAT_KINDS; kind++) {
        if (rc == KVL_OK) rc = repeat_keep(&r, s, kind, param, ns);
        r.e->dev->free(KVL_PLACE_SHARED, r.peak[kind]);
        r.e->dev->free(KVL_PLACE_SHARED, r.score[kind]);
    }
    kvl_free(r.id);
    return rc;
}

int kvl_repeat_ready(struct kvl_session *s, const struct kvl_observer_set *set, uint64_t *ns,
                     struct kvl_err *err)
{
    for (int32_t i = 0; i < set->n_columns; i++) {
        enum kvl_observer what = set->column[i].what;
        int32_t param = set->column[i].param;
        if (!kvl_observes_replay(what)) continue;
        if (repeat_wanted(s, what, param)) KVL_TRY(repeat_make(s, param, err));
        *ns += kvl_observers_repeated(s, what, param)->ns;
    }
    return KVL_OK;
}
