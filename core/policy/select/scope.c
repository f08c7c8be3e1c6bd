/* How many lists a scope has. */
#include "policy_impl.h"

int32_t kvl_scope_lists(const struct kvl_shape *sh, enum kvl_scope scope)
{
    return scope == KVL_SCOPE_LAYER ? 1
                                    : (scope == KVL_SCOPE_KV_HEAD ? sh->n_kv_heads : sh->n_heads);
}
