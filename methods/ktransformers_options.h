/* ktransformers_options.h - options of ktransformers.c and how a budget becomes them.
 *
 * A step reads `init` blocks from the beginning, `picked` ones, the latest `local` full ones and the one
 * that the current token is in: (init + picked + local + 1) blocks at most.  A selection that serves
 * token_step steps grows by a token in each. */
#ifndef KVL_KTRANSFORMERS_OPTIONS_H
#define KVL_KTRANSFORMERS_OPTIONS_H

#include "kvl/policy.h"

#include <string.h>

enum { KT_MAX_LAYERS = 1024, KT_MAX_BLOCK = 4096, KT_CHUNK_TOK = 4096, KT_QUERIES = 128 };
enum { KT_SHARED = 0, KT_SEPARATE = 1 };
enum { KT_MAX = 0, KT_MEAN, KT_QUEST, KT_DYNAMIC, KT_FIXED };

struct kt_opts {
    int32_t block_size, local_windows_len, second_block_count, init_block_num;
    bool preselect_block;
    int32_t preselect_block_count, token_step, layer_step, dense_layer_num, head_select_mode;
    int32_t representative_type, representative_num, importance_window;
    bool compat, offload;
    /* not options: handles from plan */
    int32_t table; /* representatives of layers that select */
    int32_t order; /* compat, preselect: importance of every block of the context */
};

static const char *const kt_modes[] = { "SHARED", "SEPARATE", NULL };
static const char *const kt_types[] = { "MAX", "MEAN", "QUEST", "DYNAMIC", "FIXED", NULL };

#define KT_INT(member, text, least, most, words)                                                   \
    .name = #member, .type = KVL_OPT_INT, .off = offsetof(struct kt_opts, member), .def = (text),  \
    .min = (least), .max = (most), .help = (words)
#define KT_BOOL(member, text, words)                                                               \
    .name = #member, .type = KVL_OPT_BOOL, .off = offsetof(struct kt_opts, member), .def = (text), \
    .help = (words)

static const struct kvl_opt kt_options[] = {
    { KT_INT(block_size, "auto", 1, KT_MAX_BLOCK,
             "tokens per block (published: 128); auto = largest power of two up to budget / 32, "
             "within 4 and 128") },
    { KT_INT(local_windows_len, "auto", 0, 1 << 30,
             "latest tokens that are always read, in whole blocks (published: 4096); auto = a "
             "quarter of the blocks") },
    { KT_INT(second_block_count, "auto", 1, 1 << 24,
             "blocks picked by a selection (published: 96, shipped: 32); auto = what the budget "
             "leaves"),
      .alias = "second_select_num" },
    { KT_INT(init_block_num, "auto", 0, 1 << 20,
             "first blocks that are always read; auto = published: 1, or 64 tokens of blocks up to "
             "32, at most an eighth of the blocks") },
    { KT_BOOL(
        preselect_block, "false",
        "drop all but the best blocks when the context is complete (tutorial: false, shipped: "
        "true)") },
    { KT_INT(preselect_block_count, "auto", 1, 1 << 24,
             "blocks that preselect keeps beside the local ones; auto = init_block_num + "
             "second_block_count") },
    { KT_INT(token_step, "1", 1, 1 << 20,
             "steps that a selection serves (tutorial: 1, shipped: 100)") },
    { KT_INT(layer_step, "1", 1, KT_MAX_LAYERS, "layers that a selection serves (published: 1)") },
    { KT_INT(dense_layer_num, "0", 0, KT_MAX_LAYERS,
             "first layers that read everything (tutorial: 0, shipped: 2)") },
    { .name = "head_select_mode",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct kt_opts, head_select_mode),
      .def = "SHARED",
      .choices = kt_modes,
      .help = "SHARED: one list per layer; SEPARATE: one per kv head (published: SHARED)" },
    { .name = "representative_type",
      .alias = "anchor_type",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct kt_opts, representative_type),
      .def = "DYNAMIC",
      .choices = kt_types,
      .help =
          "what stands for a block: channel maximum, mean key, minimum and maximum, mean of the "
          "most important tokens of each query head, mean of tokens at a fixed stride "
          "(published: DYNAMIC)" },
    { KT_INT(representative_num, "auto", 1, KT_MAX_BLOCK,
             "tokens of DYNAMIC and FIXED (published: 1); auto = 1, QUEST: 2"),
      .alias = "anchor_num" },
    { KT_INT(
        importance_window, "128", 1, 65536,
        "last queries of the context whose attention is a token's importance (published: 128)") },
    { KT_BOOL(compat, "false", "reproduce what the published code does wrong") },
    { KT_BOOL(
        offload, "false",
        "blocks but the first and the local ones live on the host, where --device hybrid attends "
        "them, as published; other devices fetch what a step reads") },
    { 0 },
};

/* Blocks that begin a text, as published. */
static inline int32_t kt_published_init(int32_t block_size)
{
    return block_size > 32 ? 1 : 64 / block_size;
}

static inline int32_t kt_local_blocks(const struct kt_opts *o)
{
    return o->local_windows_len / o->block_size;
}

/* The least budget that these options fit into. */
static int32_t kt_min_budget(const struct kvl_shape *shape, const void *opts)
{
    const struct kt_opts *o = opts;
    (void)shape;
    if (o->second_block_count != KVL_AUTO) return 1;
    int64_t size = o->block_size == KVL_AUTO ? 4 : o->block_size;
    int64_t init = o->init_block_num == KVL_AUTO ? 1 : o->init_block_num;
    int64_t local = o->local_windows_len == KVL_AUTO ? 0 : o->local_windows_len / size;
    int64_t least = (init + local + 2) * size + o->token_step - 1;
    return (int32_t)KVL_MIN(least, (int64_t)INT32_MAX);
}

static int kt_plan_blocks(struct kvl_plan *plan)
{
    struct kt_opts *o = plan->opts;
    int32_t budget = plan->budget_tok;
    if (budget < kt_min_budget(plan->shape, o))
        return kvl_fail(plan->err, KVL_EINVAL,
                        "budget %d; give %d or more with these options, or second_block_count",
                        budget, kt_min_budget(plan->shape, o));
    if (o->block_size == KVL_AUTO)
        for (o->block_size = 4; o->block_size < 128 && o->block_size * 64 <= budget;)
            o->block_size *= 2;
    /* Blocks beside the current one. */
    int32_t room = KVL_MAX(0, (budget - (o->token_step - 1)) / o->block_size - 1);
    if (o->init_block_num == KVL_AUTO)
        o->init_block_num = KVL_MIN(kt_published_init(o->block_size), KVL_MAX(1, room / 8));
    if (o->local_windows_len == KVL_AUTO) o->local_windows_len = room / 4 * o->block_size;
    if (o->second_block_count == KVL_AUTO) {
        o->second_block_count = room - o->init_block_num - kt_local_blocks(o);
        if (o->second_block_count < 1)
            return kvl_fail(
                plan->err, KVL_EINVAL,
                "budget %d is %d blocks of %d besides the current one, init_block_num=%d "
                "and local_windows_len=%d leave none to pick; give a larger budget or "
                "smaller blocks",
                budget, room, o->block_size, o->init_block_num, o->local_windows_len);
    }
    if (o->preselect_block_count == KVL_AUTO)
        o->preselect_block_count = o->init_block_num + o->second_block_count;
    return KVL_OK;
}

static int kt_plan_representatives(struct kvl_plan *plan)
{
    struct kt_opts *o = plan->opts;
    bool any = o->representative_type == KT_DYNAMIC || o->representative_type == KT_FIXED;
    int32_t own = o->representative_type == KT_QUEST ? 2 : 1;
    if (o->representative_num == KVL_AUTO) o->representative_num = own;
    if (!any && o->representative_num != own)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "representative_num=%d with representative_type=%s; "
                        "give %d",
                        o->representative_num, kt_types[o->representative_type], own);
    if (any && (o->representative_num > o->block_size ||
                (o->representative_type == KT_FIXED && o->block_size % o->representative_num != 0)))
        return kvl_fail(plan->err, KVL_EINVAL,
                        "representative_num=%d with representative_type=%s and block_size=%d; give "
                        "a %s of the block size",
                        o->representative_num, kt_types[o->representative_type], o->block_size,
                        o->representative_type == KT_FIXED ? "divisor" : "number within");
    return KVL_OK;
}

/* A block goes when it is not local any more. */
static int kt_plan_offload(struct kvl_plan *plan)
{
    const struct kt_opts *o = plan->opts;
    uint8_t layers[KT_MAX_LAYERS] = { 0 };
    int64_t first = (int64_t)o->init_block_num * o->block_size;
    int64_t local = ((int64_t)kt_local_blocks(o) + 1) * o->block_size;
    if (!o->offload) return KVL_OK;
    for (int32_t l = o->dense_layer_num; l < plan->shape->n_layers; l++) layers[l] = 1;
    return kvl_plan_offload(
        plan, &(struct kvl_offload){ .layers = layers,
                                     .keep_first = (int32_t)KVL_MIN(first, (int64_t)1 << 30),
                                     .keep_last = (int32_t)KVL_MIN(local, (int64_t)1 << 30),
                                     .unit_tok = o->block_size });
}

static int kt_plan_layers(struct kvl_plan *plan, uint8_t *selects)
{
    const struct kt_opts *o = plan->opts;
    int32_t n_layers = plan->shape->n_layers;
    if (n_layers > KT_MAX_LAYERS)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "a model of %d layers; ktransformers serves up to %d", n_layers,
                        KT_MAX_LAYERS);
    if (o->dense_layer_num >= n_layers)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "dense_layer_num=%d; the model has %d layers, give less",
                        o->dense_layer_num, n_layers);
    memset(selects, 0, KT_MAX_LAYERS);
    for (int32_t l = o->dense_layer_num; l < n_layers; l += o->layer_step) selects[l] = 1;
    return KVL_OK;
}

#endif
