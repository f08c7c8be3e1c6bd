#include "kvl/ops.h"

const struct kvl_ops kvl_ops_cpu = {
    .name = "cpu",
#define KVL_OP(op, meaning) .op = kvl_cpu_##op,
#include "kvl/ops.def"
#undef KVL_OP
};
