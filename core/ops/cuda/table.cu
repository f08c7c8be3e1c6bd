/* The operators of the GPU: as they are, and waited for.  Each says its name first, for messages, and
 * none begins once the device has failed. */
#include "runtime.cuh"

#define KVL_OP(op, meaning)                                                                        \
    static int table_##op(const struct kvl_##op##_args *a)                                         \
    {                                                                                              \
        kvl_cuda_rt.op_name = #op;                                                                 \
        if (kvl_cuda_rt.failed) return KVL_EDEVICE;                                                \
        return kvl_cuda_##op(a);                                                                   \
    }                                                                                              \
    static int table_now_##op(const struct kvl_##op##_args *a)                                     \
    {                                                                                              \
        kvl_cuda_rt.now = true;                                                                    \
        int rc = table_##op(a);                                                                    \
        kvl_cuda_rt.now = false;                                                                   \
        return rc == KVL_OK ? kvl_cuda_sync() : rc;                                                \
    }
#include "kvl/ops.def"
#undef KVL_OP

extern "C" const struct kvl_ops kvl_ops_cuda = {
    "cuda",
#define KVL_OP(op, meaning) table_##op,
#include "kvl/ops.def"
#undef KVL_OP
};

const struct kvl_ops kvl_ops_cuda_now = {
    "cuda",
#define KVL_OP(op, meaning) table_now_##op,
#include "kvl/ops.def"
#undef KVL_OP
};
