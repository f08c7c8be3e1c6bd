/* Keys of the last step: found by walking along its positions and the new ones, which both ascend. */
#include "kept_keys.h"

#include <string.h>

/* Of a kv head: positions of the last step and where their keys are, and how many places were ever taken. */
struct kept_lane {
    int32_t *n, *n_slots, *pos, *slot; /* pos, slot [most] */
    float *key;                        /* [most][head_dim] */
};

enum { KEPT_HEAD = 2 }; /* n and n_slots */

static size_t kept_ints(int32_t most)
{
    return KEPT_HEAD + 2 * (size_t)most;
}

void kvl_plan_kept_keys(struct kvl_plan *plan, int32_t most, struct kvl_kept_keys *out)
{
    size_t floats = (size_t)most * (size_t)plan->shape->head_dim;
    out->most = most;
    kvl_plan_state(plan,
                   (size_t)plan->shape->n_kv_heads *
                       (kept_ints(most) * sizeof(int32_t) + floats * sizeof(float)),
                   &out->state);
}

static struct kept_lane kept_lane(const struct kvl_pctx *ctx, const struct kvl_kept_keys *k,
                                  int32_t layer, int32_t kv_head)
{
    size_t lanes = (size_t)ctx->shape->n_kv_heads, h = (size_t)kv_head, most = (size_t)k->most;
    int32_t *all = kvl_state_of(ctx, &k->state, layer), *own = all + h * kept_ints(k->most);
    float *key = (float *)(void *)(all + lanes * kept_ints(k->most));
    return (struct kept_lane){ .n = own,
                               .n_slots = own + 1,
                               .pos = own + KEPT_HEAD,
                               .slot = own + KEPT_HEAD + most,
                               .key = key + h * most * (size_t)ctx->shape->head_dim };
}

/* slot [n]: where the key of each position is, -1 where it is not; at [n] the others, n_new of them.  unused: places whose
 * positions are not named; returns how many. */
static int32_t kept_walk(const struct kept_lane *l, const int32_t *pos, int32_t n, int32_t *slot,
                         int32_t *at, int32_t *n_new, int32_t *unused)
{
    int32_t j = 0, n_unused = 0;
    *n_new = 0;
    for (int32_t i = 0; i < n; i++) {
        while (j < *l->n && l->pos[j] < pos[i]) unused[n_unused++] = l->slot[j++];
        bool there = j < *l->n && l->pos[j] == pos[i];
        slot[i] = there ? l->slot[j++] : -1;
        at[*n_new] = i;
        *n_new += !there;
    }
    while (j < *l->n) unused[n_unused++] = l->slot[j++];
    return n_unused;
}

/* New ones go where nothing is wanted any more, then behind all; places that no list has are lost until there is no room. */
static int kept_place(const struct kvl_pctx *ctx, const struct kvl_kept_keys *k,
                      const struct kept_lane *l, const int32_t *pos, int32_t n, int32_t *slot,
                      int32_t *at, int32_t *n_new)
{
    int32_t *unused;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)k->most, &unused));
    int32_t n_unused = kept_walk(l, pos, n, slot, at, n_new, unused);
    if (*l->n_slots + *n_new - KVL_MIN(*n_new, n_unused) > k->most) {
        *l->n = *l->n_slots = 0;
        n_unused = kept_walk(l, pos, n, slot, at, n_new, unused);
    }
    for (int32_t i = 0; i < *n_new; i++)
        slot[at[i]] = n_unused > 0 ? unused[--n_unused] : (*l->n_slots)++;
    return KVL_OK;
}

int kvl_kept_find(const struct kvl_pctx *ctx, const struct kvl_kept_keys *k, int32_t layer,
                  const int32_t *pos, int32_t n, struct kvl_kept_step *out)
{
    size_t lanes = (size_t)ctx->shape->n_kv_heads, all = lanes * (size_t)n;
    if (n < 0 || n > k->most)
        return kvl_fail(ctx->err, KVL_EPOLICY, "%d keys of a step, want 0 to %d", n, k->most);
    *out = (struct kvl_kept_step){ .n_all = n, .layer = layer };
    KVL_TRY(kvl_scratch_get(ctx, lanes, &out->n));
    KVL_TRY(kvl_scratch_get(ctx, all, &out->pos));
    KVL_TRY(kvl_scratch_get(ctx, all, &out->at));
    KVL_TRY(kvl_scratch_get(ctx, all, &out->slot));
    KVL_TRY(kvl_scratch_get(ctx, all * (size_t)ctx->shape->head_dim, &out->made));
    for (size_t h = 0; h < lanes; h++, pos += n) {
        struct kept_lane l = kept_lane(ctx, k, layer, (int32_t)h);
        int32_t *at = out->at + h * (size_t)n, *to = out->pos + h * (size_t)n;
        KVL_TRY(kept_place(ctx, k, &l, pos, n, out->slot + h * (size_t)n, at, &out->n[h]));
        for (int32_t i = 0; i < out->n[h]; i++) to[i] = pos[at[i]];
    }
    return KVL_OK;
}

int kvl_kept_take(const struct kvl_pctx *ctx, const struct kvl_kept_keys *k, const int32_t *pos,
                  const struct kvl_kept_step *step, float *key)
{
    size_t dim = (size_t)ctx->shape->head_dim, row = dim * sizeof *key, n = (size_t)step->n_all;
    size_t lanes = (size_t)ctx->shape->n_kv_heads;
    KVL_TRY(kvl_look_at(ctx, step->made, lanes * n * dim, sizeof *key)); /* once for all kv heads */
    for (size_t h = 0; h < lanes; h++) {
        struct kept_lane l = kept_lane(ctx, k, step->layer, (int32_t)h);
        const int32_t *slot = step->slot + h * n, *at = step->at + h * n;
        const float *made = step->made + h * n * dim;
        for (int32_t i = 0; i < step->n[h]; i++)
            memcpy(l.key + (size_t)slot[at[i]] * dim, made + (size_t)i * dim, row);
        for (size_t i = 0; i < n; i++)
            memcpy(key + (h * n + i) * dim, l.key + (size_t)slot[i] * dim, row);
        memcpy(l.pos, pos + h * n, n * sizeof *pos);
        memcpy(l.slot, slot, n * sizeof *slot);
        *l.n = step->n_all;
    }
    return KVL_OK;
}
