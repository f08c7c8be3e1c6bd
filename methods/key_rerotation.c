/* key_rerotation - what another policy keeps moves together: keys are turned to positions that follow each other.
 *
 * NVIDIA: kvpress, KeyRerotationPress, 2024, after Xiao et al. (StreamingLLM, arXiv 2309.17453, section 3.2) and FINCH.
 *   1. the inner policy keeps its tokens
 *   2. a key's position is its rank among those of its lane, and the text goes on behind the last of them
 * so that no distance exceeds the number of tokens kept.
 * Budget B: that of the inner policy.
 */
#include "kvl/policy.h"

static int rerotation_plan(struct kvl_plan *plan)
{
    plan->raw_keys = true;
    return KVL_OK;
}

/* KeyRerotationPress.compress(), step 1. */
static int rerotation_score(struct kvl_pctx *ctx, int32_t layer, struct kvl_scores *scores)
{
    bool evicts;
    return kvl_inner_even_score(ctx, layer, scores, &evicts);
}

/* KeyRerotationPress.rerotate_keys(), step 2. */
static int rerotation_select(struct kvl_pctx *ctx, const struct kvl_step *step,
                             const struct kvl_query *q, struct kvl_sel *sel)
{
    (void)ctx;
    (void)step;
    (void)q;
    return kvl_sel_positions(sel, KVL_POS_IN_CACHE, 0);
}

static const struct kvl_policy key_rerotation = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "key_rerotation",
    .title = "Key re-rotation",
    .paper = "NVIDIA, kvpress, KeyRerotationPress, 2024",
    .help = "turns the keys that another policy keeps to positions that follow each other",
    .follows =
        "kvpress' KeyRerotationPress: ranks among the kept tokens of a lane, the question behind "
        "them. Any policy that scores tokens once and keeps as many in every lane may be wrapped.",
    .deviations =
        "Keys before RoPE are kept and turned in every step by the model's own frequencies, where "
        "kvpress turns stored keys once more by the difference.",
    .cost =
        "Once that of the inner policy. Per step and layer the live keys are rotated anew. Memory: "
        "keys before RoPE, half the cache again.",
    .inner = "snapkv",
    .version = 1,
    .caps = KVL_CAP_EVICTS | KVL_CAP_REPOSITIONS,
    .plan = rerotation_plan,
    .score = rerotation_score,
    .select = rerotation_select,
};

KVL_POLICY_EXPORT(key_rerotation)
