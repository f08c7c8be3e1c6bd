/* What a selection may read that is not stored: keys that the policy gives in place of the stored ones,
 * and entries that stand for several tokens. */
#include "head_lists.h"

#include <math.h>
#include <string.h>

/* A NaN would reach every head of the merge and name no method. */
static int all_finite(struct kvl_sel *sel, const char *what, const float *x, size_t n)
{
    float zero[8] = { 0 }; /* no longer 0 after a NaN or an infinity */
    size_t at = 0;
    for (; at + 8 <= n; at += 8)
        for (size_t j = 0; j < 8; j++) zero[j] += x[at + j] * 0;
    for (size_t j = 0; j < 8; j++) at = zero[j] == 0 ? at : 0;
    for (size_t i = at; i < n; i++)
        if (!isfinite(x[i]))
            return kvl_fail(sel->err, KVL_EPOLICY, "%s %zu is %g, want a finite number", what, i,
                            (double)x[i]);
    return KVL_OK;
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* One list, one set of keys: a list of the whole layer would give the keys of one kv head to all of them. */
int kvl_sel_keys(struct kvl_sel *sel, enum kvl_scope scope, int32_t list, const float *keys,
                 int32_t n)
{
    struct kvl_segment *g = &sel->seg[sel->n_seg - 1];
    size_t dim = (size_t)sel->s->engine->model->shape.head_dim;
    if (scope == KVL_SCOPE_LAYER)
        return kvl_fail(sel->err, KVL_EPOLICY,
                        "keys for a list of the whole layer; want one per kv head or query head");
    if (!g->list || g->scope != scope || g->page_tok != 1 || list < 0 || list >= g->n_lists ||
        !g->list[list].given || g->list[list].range || g->list[list].n != n)
        return kvl_fail(sel->err, KVL_EPOLICY,
                        "%d keys for list %d: want a token list of that length, given before", n,
                        list);
    KVL_TRY(kvl_session_look_at(sel->s, keys, n, dim * sizeof *keys, sel->err));
    KVL_TRY(all_finite(sel, "element of given keys", keys, (size_t)n * dim));
    /* Room for the current token, should the engine add it. */
    float *copy = kvl_arena_get(&sel->s->engine->step, ((size_t)n + 1) * dim, sizeof *copy);
    if (!copy) return kvl_fail(sel->err, KVL_ENOMEM, "out of memory for %d keys", n);
    if (n > 0) memcpy(copy, keys, (size_t)n * dim * sizeof *copy);
    g->list[list].keys = copy;
    return KVL_OK;
}

/* The current token is stored already; the method could not have made its key. */
int kvl_keys_complete(const struct kvl_head *h, const struct kvl_head_list *it)
{
    int32_t dim = h->e->model->shape.head_dim, pos = h->r->sel->n_pos - 1, slot;
    if (it->n == it->n_keys) return KVL_OK;
    (void)kvl_seq_find(h->s->seq, h->layer, h->kv_head, &pos, 1, &slot);
    return kvl_seq_read(h->s->seq, h->layer, h->kv_head, KVL_PART_K, slot, 1,
                        it->keys + (size_t)it->n_keys * (size_t)dim, h->r->sel->err);
}

/* ---- pseudo-entries ---------------------------------------------------------------------------- */

/* Copied, as lists are: attention runs after the hook has returned. */
int kvl_sel_pseudo(struct kvl_sel *sel, int32_t kv_head, const float *logit, const float *value,
                   int32_t n)
{
    struct kvl_engine *e = sel->s->engine;
    const struct kvl_shape *sh = &e->model->shape;
    size_t n_logits = (size_t)kvl_group(sh) * (size_t)n,
           n_values = (size_t)n * (size_t)sh->head_dim;
    if (kv_head < 0 || kv_head >= sh->n_kv_heads || n < 0)
        return kvl_fail(sel->err, KVL_EPOLICY,
                        "%d pseudo-entries of kv head %d, want 0 or more of head 0 to %d", n,
                        kv_head, sh->n_kv_heads - 1);
    if (!sel->pseudo) {
        size_t heads = (size_t)sh->n_kv_heads;
        sel->pseudo = kvl_arena_get(&e->step, heads, sizeof *sel->pseudo);
        if (!sel->pseudo) return kvl_fail(sel->err, KVL_ENOMEM, "out of memory for a selection");
        memset(sel->pseudo, 0, heads * sizeof *sel->pseudo);
    }
    struct kvl_pseudo *p = &sel->pseudo[kv_head];
    if (p->logit)
        return kvl_fail(sel->err, KVL_EPOLICY, "pseudo-entries of kv head %d are given twice",
                        kv_head);
    KVL_TRY(kvl_session_look_at(sel->s, logit, n, (size_t)kvl_group(sh) * sizeof *logit, sel->err));
    KVL_TRY(kvl_session_look_at(sel->s, value, n, (size_t)sh->head_dim * sizeof *value, sel->err));
    KVL_TRY(all_finite(sel, "logit of a pseudo-entry", logit, n_logits));
    KVL_TRY(all_finite(sel, "value of a pseudo-entry", value, n_values));
    float *copy = kvl_arena_get(&e->step, n_logits + n_values + 1, sizeof *copy);
    if (!copy) return kvl_fail(sel->err, KVL_ENOMEM, "out of memory for %d pseudo-entries", n);
    if (n > 0) memcpy(copy, logit, n_logits * sizeof *copy);
    if (n > 0) memcpy(copy + n_logits, value, n_values * sizeof *copy);
    *p = (struct kvl_pseudo){ .logit = copy, .value = copy + n_logits, .n = n };
    return KVL_OK;
}

/* The values are read here and count as index bytes. What the logits were made of the method has counted. */
int kvl_pseudo_attend(const struct kvl_head *h, float *out, float *lse)
{
    const struct kvl_shape *sh = &h->e->model->shape;
    const struct kvl_pseudo *p = &h->r->sel->pseudo[h->kv_head];
    if (h->r->reads) h->r->reads->given = true;
    h->s->count.index_read_bytes += (int64_t)p->n * sh->head_dim * (int64_t)sizeof *p->value;
    h->e->pending = true;
    return h->e->ops->attn_pseudo(&(struct kvl_attn_pseudo_args){ .out = out,
                                                                  .lse = lse,
                                                                  .logit = p->logit,
                                                                  .value = p->value,
                                                                  .n = p->n,
                                                                  .n_heads = kvl_group(sh),
                                                                  .head_dim = sh->head_dim });
}
