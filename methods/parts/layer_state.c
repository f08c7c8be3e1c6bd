/* Parts of the state. */
#include "layer_state.h"

void kvl_plan_state(struct kvl_plan *plan, size_t bytes, struct kvl_state_part *out)
{
    out->first = plan->state_bytes;
    out->bytes = bytes;
    plan->state_bytes += (size_t)plan->shape->n_layers * bytes;
}

void *kvl_state_of(const struct kvl_pctx *ctx, const struct kvl_state_part *part, int32_t layer)
{
    return (char *)ctx->state + part->first + (size_t)layer * part->bytes;
}
