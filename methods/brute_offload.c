/* brute_offload - full attention with every key and value fetched from the host in every step.
 *
 * What a device too small for the cache does without a method: the baseline of all offloading methods
 * (OmniKV, ICLR 2025, Figure 4 "brute offload"; FlexGen).  Once the context is complete all layers live
 * in the host tier but for the latest keep_last tokens, of which those that are generated are some.  A
 * step fetches, layer by layer, all the rest; nothing stays on the device behind it.
 *
 * Answers are those of `full`, bit for bit: what differs is where bytes come from.  The budget is
 * ignored.
 * Cost per step and layer: every key and value, once over the bus and once from the device's memory:
 *     h2d bytes = n_kv_heads x (n - keep_last, in whole blocks) x bytes of a key and a value
 *     device    = keep_last tokens of every layer, and one layer in full while it is attended
 * cache_tok > 0 keeps that many tokens of each lane on the device (the least recently used go; a scan
 * of everything asks for all of them alike, so that the first that came stay).
 * Deviations: published versions fetch the next layer while this one computes, which hides bytes and
 * changes none; here fetches are counted and timed by themselves.
 */
#include "kvl/policy.h"

struct brute_offload_opts {
    int32_t keep_last, block, cache_tok;
};

static const struct kvl_opt brute_offload_options[] = {
    { .name = "keep_last",
      .type = KVL_OPT_INT,
      .off = offsetof(struct brute_offload_opts, keep_last),
      .def = "64",
      .min = 1,
      .max = 1 << 30,
      .help = "latest tokens that stay on the device" },
    { .name = "block",
      .type = KVL_OPT_INT,
      .off = offsetof(struct brute_offload_opts, block),
      .def = "64",
      .min = 1,
      .max = 1 << 20,
      .help = "tokens fetched together" },
    { .name = "cache_tok",
      .type = KVL_OPT_INT,
      .off = offsetof(struct brute_offload_opts, cache_tok),
      .def = "0",
      .min = 0,
      .max = 1 << 30,
      .help = "tokens of a lane that stay on the device once fetched" },
    { 0 },
};

static int brute_offload_plan(struct kvl_plan *plan)
{
    const struct brute_offload_opts *o = plan->opts;
    if (o->cache_tok > 0 && o->cache_tok < o->block)
        return kvl_fail(plan->err, KVL_EINVAL,
                        "cache_tok=%d holds no block of %d tokens; give 0, or %d or more",
                        o->cache_tok, o->block, o->block);
    return kvl_plan_offload(plan, &(struct kvl_offload){ .keep_last = o->keep_last,
                                                         .unit_tok = o->block,
                                                         .cache_tok = o->cache_tok });
}

static const struct kvl_policy brute_offload = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "brute_offload",
    .title = "Full attention from the host",
    .paper = "none (bound); Hao et al., ICLR 2025, Figure 4",
    .help = "reads everything, fetched from the host in every step; ignores the budget",
    .follows =
        "The baseline of offloading papers (OmniKV, Figure 4): all keys and values live on the "
        "host, and every layer of every step fetches them. Its answers are those of full, bit for "
        "bit. cache_tok keeps some of what was fetched on the device.",
    .deviations =
        "Fetches are not overlapped with the layer before; they are counted and timed apart.",
    .cost =
        "Per step and layer every key and value but the latest comes over the bus, 2 n d values "
        "per kv head, and is read. Nothing once; no memory besides the cache, of which one layer "
        "of the context at a time is on the device.",
    .version = 1,
    .caps = KVL_CAP_BOUND | KVL_CAP_OFFLOADS,
    .opts = brute_offload_options,
    .opts_size = sizeof(struct brute_offload_opts),
    .plan = brute_offload_plan,
};

KVL_POLICY_EXPORT(brute_offload)
