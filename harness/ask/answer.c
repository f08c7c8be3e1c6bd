/* The decode loop over a batch of questions. */
#include "answer.h"

#include <string.h>

int kvl_ask_room_create(int32_t n_vocab, struct kvl_ask_room *out, struct kvl_err *err)
{
    out->stepped = NULL;
    out->logits = kvl_alloc(KVL_ASK_MAX * (size_t)n_vocab, sizeof *out->logits);
    if (!out->logits) return kvl_fail(err, KVL_ENOMEM, "out of memory for logits");
    return kvl_sampler_create(n_vocab, &out->sampler, err);
}

void kvl_ask_room_free(struct kvl_ask_room *r)
{
    kvl_free(r->logits);
    kvl_sampler_free(&r->sampler);
    r->logits = NULL;
}

int kvl_ask_begin(struct kvl_ask *a, const struct kvl_shape *shape, struct kvl_err *err)
{
    a->id = kvl_alloc((size_t)a->max_new + 1, sizeof *a->id);
    if (!a->id) return kvl_fail(err, KVL_ENOMEM, "out of memory for an answer");
    return kvl_recall_create(shape, &a->recall, err);
}

void kvl_ask_free(struct kvl_ask *a)
{
    kvl_session_destroy(a->session);
    kvl_recall_free(&a->recall);
    kvl_free(a->id);
    *a = (struct kvl_ask){ 0 };
}

/* The token that this step runs; the evidence is watched from the first answer step on. */
static int ask_next(struct kvl_ask *a, int32_t *out, struct kvl_err *err)
{
    if (a->i_feed == a->n_feed - 1 && a->watch && a->watch->n > 0)
        KVL_TRY(kvl_session_probe(a->session, a->watch->pos, a->watch->n, err));
    *out = a->i_feed < a->n_feed ? a->feed[a->i_feed] : a->id[a->n_id - 1];
    return KVL_OK;
}

/* Whether this step attended the evidence; what was generated so far says which it needs. */
static int ask_recall(struct kvl_ask *a, const struct kvl_tokenizer *tokenizer, struct kvl_err *err)
{
    const uint8_t *hit, *dense;
    struct kvl_buf text = { 0 };
    if (!a->watch || a->watch->n == 0) return KVL_OK;
    int rc = kvl_watch_reads(a->watch)
                 ? kvl_decode(tokenizer, a->id, a->n_id, false, false, &text, err)
                 : KVL_OK;
    if (rc == KVL_OK) {
        kvl_session_probe_hits(a->session, &hit, &dense);
        kvl_recall_add(&a->recall, a->watch, text.data, text.len, hit, dense);
    }
    kvl_buf_free(&text);
    return rc;
}

static int ask_take(struct kvl_ask *a, const struct kvl_tokenizer *tokenizer,
                    struct kvl_sampler *sampler, const float *logits, int32_t n_vocab,
                    struct kvl_err *err)
{
    if (a->i_feed < a->n_feed && ++a->i_feed < a->n_feed) return KVL_OK;
    KVL_TRY(ask_recall(a, tokenizer, err));
    int32_t id = kvl_sampler_token(sampler, a->sampling, a->stream, a->n_id, logits, n_vocab);
    a->end = a->prompt && kvl_prompt_ends(a->prompt, id);
    if (!a->end) a->id[a->n_id++] = id;
    a->done = a->end || a->n_id >= a->max_new;
    return KVL_OK;
}

/* One step of all that are not done. */
struct step {
    struct kvl_session *session[KVL_ASK_MAX];
    struct kvl_ask *who[KVL_ASK_MAX];
    int32_t id[KVL_ASK_MAX];
    int64_t read[KVL_ASK_MAX]; /* bytes, before the step */
    int32_t n;
};

int64_t kvl_ask_bytes_read(const struct kvl_session *s)
{
    const struct kvl_counters *n = kvl_session_counters(s);
    return n->kv_read_bytes + n->index_read_bytes;
}

static int step_gather(struct kvl_ask *const *ask, int32_t n, struct step *st, struct kvl_err *err)
{
    st->n = 0;
    for (int32_t i = 0; i < n; i++) {
        if (ask[i]->done) continue;
        KVL_TRY(ask_next(ask[i], &st->id[st->n], err));
        st->session[st->n] = ask[i]->session;
        st->read[st->n] = kvl_ask_bytes_read(ask[i]->session);
        st->who[st->n++] = ask[i];
    }
    return KVL_OK;
}

void kvl_ask_shares(struct kvl_session *const *session, int32_t n, const int64_t *read,
                    const struct kvl_model *model, double *share)
{
    double weights = (double)kvl_model_token_bytes(model), all = weights;
    for (int32_t i = 0; i < n; i++) {
        share[i] = (double)(kvl_ask_bytes_read(session[i]) - read[i]);
        all += share[i];
    }
    for (int32_t i = 0; i < n; i++) share[i] = (weights / n + share[i]) / all;
}

static void step_share(struct step *st, const struct kvl_model *model, uint64_t ns)
{
    double share[KVL_ASK_MAX];
    kvl_ask_shares(st->session, st->n, st->read, model, share);
    for (int32_t i = 0; i < st->n; i++) st->who[i]->wall_ns += (uint64_t)((double)ns * share[i]);
}

static int step_run(struct step *st, const struct kvl_model *model, struct kvl_ask_room *room,
                    struct kvl_err *err)
{
    int32_t n_vocab = kvl_model_shape(model)->n_vocab;
    uint64_t t0 = kvl_now_ns();
    KVL_TRY(kvl_session_decode(st->session, st->n, st->id, room->logits, err));
    step_share(st, model, kvl_now_ns() - t0);
    for (int32_t i = 0; i < st->n; i++)
        KVL_TRY(ask_take(st->who[i], kvl_model_tokenizer(model), &room->sampler,
                         room->logits + (size_t)i * (size_t)n_vocab, n_vocab, err));
    return KVL_OK;
}

int kvl_ask_decode(struct kvl_ask *const *ask, int32_t n, const struct kvl_model *model,
                   struct kvl_ask_room *room, struct kvl_err *err)
{
    struct step st;
    int32_t most = 0;
    for (int32_t i = 0; i < n; i++) most = KVL_MAX(most, ask[i]->n_feed + ask[i]->max_new - 1);
    KVL_TRY(step_gather(ask, n, &st, err));
    for (int32_t step = 1; st.n > 0; step++) {
        KVL_TRY(step_run(&st, model, room, err));
        if (room->stepped) room->stepped(room->user, step, most);
        KVL_TRY(step_gather(ask, n, &st, err));
    }
    return KVL_OK;
}
