#include "kvl/ops.h"

const struct kvl_ops kvl_ops_ref = {
    .name = "ref",
#define KVL_OP(op, meaning) .op = kvl_ref_##op,
#include "kvl/ops.def"
#undef KVL_OP
};
