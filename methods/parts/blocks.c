/* Blocks of tokens: sizes from a budget, what stands for a block, what preselect keeps, and what a step reads of the
 * blocks that are there. */
#include "blocks.h"
#include "unit_keys.h"

#include <math.h>
#include <string.h>

/* ---- plan ---------------------------------------------------------------------------------------- */

int32_t kvl_blocks_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct kvl_blocks *b = opts;
    (void)shape;
    if (b->second_block_count != KVL_AUTO) return 1;
    int64_t size = kvl_opt_given(b->block_size, 4), init = kvl_opt_given(b->init_block_num, 1);
    int64_t local = kvl_opt_given(b->local_windows_len, 0) / size;
    return (int32_t)KVL_MIN((init + local + 2) * size + b->token_step - 1, (int64_t)INT32_MAX);
}

static int blocks_sizes(const struct kvl_plan *plan, struct kvl_blocks *b)
{
    int32_t budget = plan->budget_tok;
    if (b->block_size == KVL_AUTO)
        for (b->block_size = 4; b->block_size < 128 && b->block_size * 64 <= budget;)
            b->block_size *= 2;
    int32_t published = b->block_size > 32 ? 1 : 64 / b->block_size;
    /* Blocks beside the current one. */
    int32_t room = KVL_MAX(0, (budget - (b->token_step - 1)) / b->block_size - 1);
    if (b->init_block_num == KVL_AUTO) b->init_block_num = KVL_MIN(published, KVL_MAX(1, room / 8));
    if (b->local_windows_len == KVL_AUTO) b->local_windows_len = room / 4 * b->block_size;
    b->local = b->local_windows_len / b->block_size;
    if (b->second_block_count == KVL_AUTO)
        b->second_block_count = room - b->init_block_num - b->local;
    if (b->second_block_count < 1)
        return kvl_fail(
            plan->err, KVL_EINVAL,
            "budget %d is %d blocks of %d besides the current one, init_block_num=%d and "
            "local_windows_len=%d leave none to pick; give a larger budget or smaller blocks",
            budget, room, b->block_size, b->init_block_num, b->local_windows_len);
    if (b->preselect_block_count == KVL_AUTO)
        b->preselect_block_count = b->init_block_num + b->second_block_count;
    return KVL_OK;
}

/* A block goes when it is not local any more. */
static int blocks_offload(struct kvl_plan *plan, const struct kvl_blocks *b)
{
    int64_t first = (int64_t)b->init_block_num * b->block_size, most = (int64_t)1 << 30;
    int64_t local = ((int64_t)b->local + 1) * b->block_size;
    uint8_t *layers;
    KVL_TRY(kvl_plan_layers(plan, "dense_layer_num", b->dense_layer_num, 1, &layers));
    return kvl_plan_offload(plan,
                            &(struct kvl_offload){ .layers = layers,
                                                   .keep_first = (int32_t)KVL_MIN(first, most),
                                                   .keep_last = (int32_t)KVL_MIN(local, most),
                                                   .unit_tok = b->block_size });
}

/* Checks representative_num, and asks for the attention of the last queries where tokens have an importance. */
static int blocks_representatives(struct kvl_plan *plan, struct kvl_blocks *b)
{
    static const char *const wants[] = { "1", "1", "2", "a number within the block size",
                                         "a divisor of the block size" };
    int32_t type = b->representative_type, own = type == KVL_BLOCK_QUEST ? 2 : 1, n;
    int32_t size = b->block_size;
    if (b->representative_num == KVL_AUTO) b->representative_num = own;
    n = b->representative_num;
    bool fits = type == KVL_BLOCK_DYNAMIC ? n <= size
                : type == KVL_BLOCK_FIXED ? size % n == 0
                                          : n == own;
    if (!fits)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "representative_num=%d with representative_type=%s and block_size=%d; "
                        "give %s",
                        n, KVL_BLOCK_TYPES[type], size, wants[type]);
    plan->replay = KVL_REPLAY_KEYS;
    if (!b->preselect_block && type != KVL_BLOCK_DYNAMIC) return KVL_OK;
    return kvl_plan_observe(plan, KVL_OBS_WINDOW, b->importance_window);
}

int kvl_plan_blocks(struct kvl_plan *plan, struct kvl_blocks *b, uint8_t **selects)
{
    KVL_TRY(kvl_plan_needs_budget(plan));
    KVL_TRY(blocks_sizes(plan, b));
    KVL_TRY(kvl_plan_layers(plan, "dense_layer_num", b->dense_layer_num, b->layer_step, selects));
    if (b->offload) KVL_TRY(blocks_offload(plan, b));
    return blocks_representatives(plan, b);
}

bool kvl_blocks_selects(const struct kvl_blocks *b, int32_t layer)
{
    return layer >= b->dense_layer_num && (layer - b->dense_layer_num) % b->layer_step == 0;
}

int kvl_blocks_schedule(struct kvl_pctx *ctx, const struct kvl_step *step)
{
    const struct kvl_blocks *b = ctx->opts;
    return step->layer < b->dense_layer_num ? KVL_DENSE : KVL_SELECT;
}

/* Of a layer: 1, or one for every kv head. */
static int32_t blocks_lists(const struct kvl_pctx *ctx, const struct kvl_blocks *b)
{
    return b->head_select_mode == 0 ? 1 : ctx->shape->n_kv_heads;
}

/* ---- representatives ----------------------------------------------------------------------------------- */

bool kvl_blocks_pair(const struct kvl_blocks *b)
{
    return b->representative_type == KVL_BLOCK_MAX || b->representative_type == KVL_BLOCK_QUEST;
}

int kvl_blocks_keys(const struct kvl_pctx *ctx, const struct kvl_blocks *b,
                    const struct kvl_step *step, const float *k)
{
    bool dynamic = b->representative_type == KVL_BLOCK_DYNAMIC,
         fixed = b->representative_type == KVL_BLOCK_FIXED;
    int32_t every = fixed ? b->block_size / b->representative_num : 1;
    if (kvl_blocks_pair(b)) return kvl_table_minmax(ctx, b->table, step, k);
    return kvl_unit_key_sums(ctx, b->table, b->block_size, step, k, every, dynamic);
}

int kvl_blocks_scores(const struct kvl_pctx *ctx, const struct kvl_blocks *b, int32_t layer,
                      const float *q, int32_t n, float *score)
{
    int32_t n_kv = ctx->shape->n_kv_heads, dim = ctx->shape->head_dim;
    float *sum;
    struct kvl_table_bounds bounds = { .table = b->table,
                                       .layer = layer,
                                       .n_rows = n,
                                       .q = q,
                                       .reduce = KVL_REDUCE_SUM,
                                       .bound = score };
    struct kvl_table_scores products = {
        .table = b->table, .layer = layer, .n_rows = n, .q = q, .n_lists = n_kv, .score = score
    };
    if (b->representative_type == KVL_BLOCK_QUEST) return kvl_table_bounds(ctx, &bounds);
    /* A row holds a vector for each query head: one long product. */
    if (b->representative_type == KVL_BLOCK_DYNAMIC) return kvl_table_scores(ctx, &products);
    KVL_TRY(kvl_scratch_get(ctx, (size_t)(n_kv * dim), &sum));
    KVL_TRY(kvl_group_scores(ctx, q, dim, KVL_REDUCE_SUM, sum));
    products.q = sum;
    products.elems = dim;
    products.first_elem = b->representative_type == KVL_BLOCK_MAX ? dim : 0;
    return kvl_table_scores(ctx, &products);
}

/* ---- preselect ------------------------------------------------------------------------------------- */

/* Blocks of the context that are not local. */
static int32_t blocks_far(const struct kvl_pctx *ctx, const struct kvl_blocks *b)
{
    return KVL_MAX(0, ctx->context_tok / b->block_size - b->local);
}

/* Of a block and a quarter of a block on either side. */
static float blocks_mean(const struct kvl_blocks *b, const float *token, int32_t n_tok,
                         int32_t block)
{
    int32_t size = b->block_size, first = KVL_MAX(0, block * size - size / 4);
    int32_t last = KVL_MIN(n_tok, (block + 1) * size + size / 4);
    if (last - first == 1) return token[first];
    double sum = 0;
    for (int32_t t = first; t < last; t++) sum += (double)token[t];
    return (float)(sum / (last - first));
}

/* *mean [n_kv_heads][n_far] in scratch; with one list the same for all kv heads. */
static int blocks_means(const struct kvl_pctx *ctx, const struct kvl_blocks *b, const float *mass,
                        float **mean)
{
    int32_t n_tok = ctx->context_tok, n_lists = blocks_lists(ctx, b);
    int32_t n_far = blocks_far(ctx, b), n_kv = ctx->shape->n_kv_heads;
    float *token;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_lists * (size_t)n_tok, &token));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_kv * (size_t)n_far, mean));
    KVL_TRY(n_lists == 1
                ? kvl_layer_scores(ctx, mass, ctx->shape->n_heads, n_tok, KVL_REDUCE_MEAN, token)
                : kvl_group_scores(ctx, mass, n_tok, KVL_REDUCE_MEAN, token));
    for (int32_t h = 0; h < n_kv; h++)
        for (int32_t at = 0; at < n_far; at++)
            (*mean)[(size_t)h * (size_t)n_far + (size_t)at] =
                blocks_mean(b, token + (size_t)(h % n_lists) * (size_t)n_tok, n_tok, at);
    return KVL_OK;
}

/* The mean of a block is the score of each of its tokens: core keeps whole blocks. */
int kvl_blocks_preselect(const struct kvl_pctx *ctx, const struct kvl_blocks *b, int32_t layer,
                         kvl_importance_fn importance, struct kvl_scores *scores)
{
    int32_t n_far = blocks_far(ctx, b);
    const float *mass;
    float *mean;
    scores->keep_tok = scores->n_tok;
    if (!b->preselect_block || n_far <= b->preselect_block_count) return KVL_OK;
    scores->protect_last = scores->n_tok - n_far * b->block_size;
    scores->keep_tok = scores->protect_last + b->preselect_block_count * b->block_size;
    KVL_TRY(importance(ctx, layer, &mass));
    KVL_TRY(blocks_means(ctx, b, mass, &mean));
    for (int32_t h = 0; h < ctx->shape->n_kv_heads; h++, mean += n_far)
        for (int32_t t = 0; t < n_far * b->block_size; t++)
            scores->score[(size_t)h * (size_t)scores->n_tok + (size_t)t] = mean[t / b->block_size];
    return KVL_OK;
}

int kvl_blocks_remember(const struct kvl_pctx *ctx, const struct kvl_blocks *b, int32_t layer,
                        const float *mass, int32_t table)
{
    int32_t n_far = blocks_far(ctx, b);
    struct kvl_rows order;
    float *mean;
    KVL_TRY(blocks_means(ctx, b, mass, &mean));
    KVL_TRY(kvl_table_write(ctx, table, layer, 0, &order));
    for (int32_t i = 0; i < ctx->shape->n_kv_heads * n_far; i++)
        *(float *)kvl_table_row_out(&order, i / n_far, i % n_far) = mean[i];
    return KVL_OK;
}

/* ---- selection --------------------------------------------------------------------------------------- */

/* A list knows of every block before that of the current token: it is not there, is read in any case, or may be
 * picked. */
enum { BLOCK_GONE, BLOCK_OTHER, BLOCK_READ };

/* state [n]; *n_live of them are there. */
static int blocks_live(const struct kvl_pctx *ctx, const struct kvl_blocks *b, int32_t layer,
                       int32_t list, int32_t n, uint8_t *state, int32_t *n_live)
{
    const int32_t *pos;
    int32_t n_pos;
    memset(state, b->preselect_block ? BLOCK_GONE : BLOCK_OTHER, (size_t)n);
    *n_live = b->preselect_block ? 0 : n;
    if (!b->preselect_block) return KVL_OK;
    KVL_TRY(kvl_live(ctx, layer, list, &pos, &n_pos));
    for (int32_t i = 0; i < n_pos && pos[i] < n * b->block_size; i++) {
        if (pos[i] % b->block_size != 0) continue;
        state[pos[i] / b->block_size] = BLOCK_OTHER;
        ++*n_live;
    }
    return KVL_OK;
}

static bool blocks_all(const struct kvl_blocks *b, int32_t n_live)
{
    return n_live <= b->init_block_num + b->second_block_count + b->local;
}

/* Every list has no more blocks than are read; lanes differ where adakv wraps the policy. */
static int blocks_fit(const struct kvl_pctx *ctx, const struct kvl_blocks *b,
                      const struct kvl_step *step, bool *fit)
{
    int32_t n = step->pos / b->block_size, n_live;
    uint8_t *state;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n, &state));
    *fit = true;
    for (int32_t i = 0; i < blocks_lists(ctx, b) && *fit; i++) {
        KVL_TRY(blocks_live(ctx, b, step->layer, i, n, state, &n_live));
        *fit = blocks_all(b, n_live);
    }
    return KVL_OK;
}

int kvl_blocks_room(const struct kvl_pctx *ctx, const struct kvl_blocks *b,
                    const struct kvl_step *step, struct kvl_block_choice *choice)
{
    bool fit = b->preselect_block && b->second_block_count > b->preselect_block_count;
    size_t n = (size_t)(step->pos / b->block_size);
    choice->score = NULL;
    if (!fit) KVL_TRY(blocks_fit(ctx, b, step, &fit));
    return fit ? KVL_OK : kvl_scratch_get(ctx, (size_t)ctx->shape->n_kv_heads * n, &choice->score);
}

/* Those of largest mean in a table are read; they are *n. */
static int blocks_read_ranked(const struct kvl_pctx *ctx, const struct kvl_blocks *b, int32_t table,
                              int32_t layer, int32_t list, uint8_t *state, int32_t *n)
{
    int32_t n_far = blocks_far(ctx, b), n_live = 0, *best;
    struct kvl_rows order;
    float *x;
    KVL_TRY(kvl_table_read(ctx, table, layer, n_far, &order));
    KVL_TRY(kvl_look(ctx)); /* the host reads the table */
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_far, &x));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_far, &best));
    for (int32_t at = 0; at < n_far; at++) {
        bool live = state[at] == BLOCK_OTHER;
        x[at] = live ? *(const float *)kvl_table_row(&order, list, at) : -INFINITY;
        n_live += live;
    }
    *n = KVL_MIN(b->init_block_num, n_live);
    KVL_TRY(kvl_topk(ctx, x, 1, n_far, *n, best));
    KVL_TRY(kvl_look_at(ctx, best, (size_t)*n, sizeof *best));
    for (int32_t i = 0; i < *n; i++) state[best[i]] = BLOCK_READ;
    return KVL_OK;
}

/* What a step knows of the blocks of all lists: state [n_lists][n], and whether a list reads all that is there. */
struct block_lists {
    uint8_t *state, *all;
    int32_t n_lists, n;
};

/* The best of those that are left are read: chosen of all lists at once, of which the host waits for no more than that.
 * mask [n_lists][n] becomes the scores of blocks that may be picked. */
static int blocks_read_best(const struct kvl_pctx *ctx, const struct kvl_blocks *b,
                            const float *score, bool later, float *mask,
                            const struct block_lists *l)
{
    int32_t n = l->n, k = KVL_MIN(b->second_block_count, n), *best;
    size_t blocks = (size_t)l->n_lists * (size_t)n;
    float *x = mask;
    KVL_TRY(ctx->ops->add(&(struct kvl_add_args){ .y = mask, .x = score, .n = blocks }));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)l->n_lists * (size_t)k, &best));
    if (later) {
        KVL_TRY(kvl_look_at(ctx, mask, blocks, sizeof *mask));
        KVL_TRY(kvl_scratch_get(ctx, blocks, &x));
    }
    for (size_t i = 0; later && i < blocks; i++) {
        size_t row = i / (size_t)n * (size_t)n;
        x[i] = mask[row + (size_t)n - 1 - (i - row)];
    }
    KVL_TRY(kvl_topk(ctx, x, l->n_lists, n, k, best));
    KVL_TRY(kvl_look_at(ctx, best, (size_t)l->n_lists * (size_t)k, sizeof *best));
    for (int32_t list = 0; list < l->n_lists; list++, best += k)
        for (int32_t i = 0; !l->all[list] && i < k; i++)
            l->state[(size_t)list * (size_t)n + (size_t)(later ? n - 1 - best[i] : best[i])] =
                BLOCK_READ;
    return KVL_OK;
}

/* Blocks of a list that are read in any case.  mask [n]: what makes scores of all that cannot be picked the least, and
 * leaves the others, and the sign of a zero, as they are. */
static int blocks_forced(const struct kvl_pctx *ctx, const struct kvl_blocks *b,
                         const struct kvl_step *step, const struct kvl_block_choice *choice,
                         int32_t list, float *mask, const struct block_lists *l)
{
    int32_t n = l->n, n_live, first = 0;
    uint8_t *state = l->state + (size_t)list * (size_t)n;
    KVL_TRY(blocks_live(ctx, b, step->layer, list, n, state, &n_live));
    if (choice->order)
        KVL_TRY(blocks_read_ranked(ctx, b, *choice->order, step->layer, list, state, &first));
    for (int32_t at = 0; at < n && first < b->init_block_num; at++)
        if (state[at] == BLOCK_OTHER) state[at] = BLOCK_READ, first++;
    for (int32_t at = n - 1, last = 0; at >= 0 && last < b->local; at--)
        if (state[at] == BLOCK_OTHER) state[at] = BLOCK_READ, last++;
    for (int32_t at = 0; at < n; at++) mask[at] = state[at] == BLOCK_OTHER ? -0.0f : -INFINITY;
    l->all[list] = blocks_all(b, n_live);
    return KVL_OK;
}

static int blocks_list(const struct kvl_blocks *b, const struct kvl_step *step, int32_t list,
                       const struct block_lists *l, struct kvl_sel *sel)
{
    enum kvl_scope scope = b->head_select_mode == 0 ? KVL_SCOPE_LAYER : KVL_SCOPE_KV_HEAD;
    const uint8_t *state = l->state + (size_t)list * (size_t)l->n;
    int32_t size = b->block_size;
    for (int32_t at = 0; at < l->n; at++)
        if (state[at] == BLOCK_READ || (l->all[list] && state[at] == BLOCK_OTHER))
            KVL_TRY(kvl_sel_range(sel, scope, list, at * size, (at + 1) * size));
    return kvl_sel_range(sel, scope, list, l->n * size, step->pos + 1);
}

int kvl_sel_blocks(const struct kvl_pctx *ctx, const struct kvl_blocks *b,
                   const struct kvl_step *step, const struct kvl_block_choice *choice,
                   struct kvl_sel *sel)
{
    int32_t n_lists = blocks_lists(ctx, b), n_kv = ctx->shape->n_kv_heads;
    struct kvl_scored scored = { .scope = n_lists > 1 ? KVL_SCOPE_KV_HEAD : KVL_SCOPE_LAYER,
                                 .unit_tok = b->block_size,
                                 .n = step->pos / b->block_size };
    struct block_lists l = { .n_lists = n_lists, .n = scored.n };
    size_t n = (size_t)scored.n;
    float *score = choice->score, *mask;
    if (b->head_select_mode == 0) {
        KVL_TRY(kvl_scratch_get(ctx, (size_t)scored.n, &score));
        KVL_TRY(kvl_layer_scores(ctx, choice->score, n_kv, scored.n, KVL_REDUCE_SUM, score));
    }
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_lists * n, &l.state));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_lists, &l.all));
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n_lists * n, &mask));
    for (int32_t i = 0; i < n_lists; i++)
        KVL_TRY(blocks_forced(ctx, b, step, choice, i, mask + (size_t)i * n, &l));
    KVL_TRY(blocks_read_best(ctx, b, score, choice->later, mask, &l));
    for (int32_t i = 0; i < n_lists; i++) KVL_TRY(blocks_list(b, step, i, &l, sel));
    scored.score = mask;
    KVL_TRY(kvl_tap_scores(ctx, step, &scored));
    int32_t last = KVL_MIN(step->layer + b->layer_step, ctx->shape->n_layers) - 1;
    if (last == step->layer && b->token_step == 1) return KVL_OK;
    return kvl_sel_share(sel, last, b->token_step - step->index % b->token_step);
}
