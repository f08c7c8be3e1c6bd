/* The rows of a call: whether a session takes them, and which token each is. */
#include "forward.h"

/* All limits in one place: the model's context, the short factors of LongRoPE, and 32-bit positions. */
int kvl_session_has_room(const struct kvl_session *s, int32_t n, struct kvl_err *err)
{
    const struct kvl_shape *sh = &s->engine->model->shape;
    if (s->failed) return kvl_fail(err, KVL_EINTERNAL, "a session that failed is used again");
    if (n < 1) return kvl_fail(err, KVL_EINVAL, "%d tokens, want at least 1", n);
    bool bounded =
        !s->engine->desc.allow_overlong && !s->repeat; /* a repetition may lie beyond it */
    if (bounded && n > sh->n_ctx_train - s->n_pos)
        return kvl_fail(err, KVL_EINVAL,
                        "%lld tokens, the model's context is %d (allow it with --allow-overlong)",
                        (long long)s->n_pos + n, sh->n_ctx_train);
    int32_t most = s->engine->model->w.n_ctx_short; /* of RoPE's factors for short contexts */
    if (most > 0 && !s->engine->rope_long && !s->repeat && n > most - s->n_pos)
        return kvl_fail(err, KVL_EINVAL,
                        "%lld tokens, this engine was made for at most %d: it turns heads by the "
                        "factors for short contexts",
                        (long long)s->n_pos + n, most);
    if (n > INT32_MAX - 65536 - s->n_pos)
        return kvl_fail(err, KVL_EINVAL, "%d tokens after %d: too many", n, s->n_pos);
    return KVL_OK;
}

/* Ids come from a tokenizer or from a user: one beyond the vocabulary would read outside the embedding. */
int kvl_session_check_tokens(const struct kvl_session *s, const int32_t *id, int32_t n,
                             struct kvl_err *err)
{
    const struct kvl_shape *sh = &s->engine->model->shape;
    KVL_TRY(kvl_session_has_room(s, n, err));
    for (int32_t i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= sh->n_vocab)
            return kvl_fail(err, KVL_EINVAL, "token id %d, want 0 to %d", id[i], sh->n_vocab - 1);
    return KVL_OK;
}

/* `ahead`: tokens of the same call before this one, which the session does not count yet. */
void kvl_row_set(struct kvl_engine *e, int32_t i, struct kvl_session *s, int32_t id, int32_t ahead)
{
    e->id[i] = id;
    e->pos[i] = s->n_pos + ahead;
    e->row[i] = (struct kvl_row){ .s = s, .index = s->index + ahead, .pos = s->n_pos + ahead };
}

void kvl_rows_set(struct kvl_session *s, const int32_t *id, int32_t n)
{
    for (int32_t i = 0; i < n; i++) kvl_row_set(s->engine, i, s, id[i], i);
}
