/* full - dense attention over everything: the upper bound of every table.
 *
 * Not a method.  It has no hooks, so the engine takes its dense path: what every other policy must
 * give, bit for bit, when its budget holds the whole sequence.
 * Cost: every step reads every key and value.
 */
#include "kvl/policy.h"

static const struct kvl_policy full = {
    .abi = KVL_POLICY_ABI,
    .size = sizeof(struct kvl_policy),
    .name = "full",
    .title = "Full attention",
    .paper = "none (bound)",
    .help = "reads everything, evicts nothing; ignores the budget",
    .follows =
        "The engine's dense path: no hook, no rounding of its own. It is what every policy must "
        "give, bit for bit, when its budget holds the whole sequence.",
    .deviations = "None.",
    .cost =
        "Every step reads every key and value, 2 n d per kv head and layer. Nothing once, nothing "
        "besides the cache.",
    .version = 1,
    .caps = KVL_CAP_BOUND,
};

KVL_POLICY_EXPORT(full)
