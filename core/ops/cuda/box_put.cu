/* A thread per channel of a box.  Decode adds a box every few tokens; what it writes lies wherever the layout
 * puts it, 2 head_dim elements.  Limit: keys once.  Not timed yet. */
#include "select.cuh"

enum { BOX_THREADS = 128 };

template <class T> static __global__ void box_channels(struct kvl_box_put_args a)
{
    int64_t i = (int64_t)blockIdx.x * BOX_THREADS + (int64_t)threadIdx.x;
    int32_t box = (int32_t)(i / a.head_dim), c = (int32_t)(i % a.head_dim);
    if (box >= a.n) return;
    const float *k = a.k + (size_t)box * (size_t)a.box_tok * (size_t)a.head_dim + c;
    float min = *k, max = *k;
    for (int32_t t = 1; t < a.box_tok; t++) {
        float x = k[(size_t)t * (size_t)a.head_dim];
        min = min < x ? min : x;
        max = max > x ? max : x;
    }
    for (int side = 0; side < 2; side++) {
        int32_t v = side * a.head_dim + c;
        size_t at = (size_t)(v / a.box_tok) * a.column_stride +
                    (size_t)(a.box0 + box) * (size_t)a.box_tok + (size_t)(v % a.box_tok);
        kvl_from_float(static_cast<T *>(a.boxes) + at, side ? max : min);
    }
}

static void box_launch(const struct kvl_box_put_args *a)
{
    dim3 grid((unsigned)kvl_ceil_div((int64_t)a->n * a->head_dim, BOX_THREADS)), block(BOX_THREADS);
    if (a->type == KVL_KV_F32)
        KVL_LAUNCH(box_channels<float>, grid, block, 0, *a);
    else if (a->type == KVL_KV_F16)
        KVL_LAUNCH(box_channels<__half>, grid, block, 0, *a);
    else
        KVL_LAUNCH(box_channels<__nv_bfloat16>, grid, block, 0, *a);
}

int kvl_cuda_box_put(const struct kvl_box_put_args *a)
{
    struct kvl_cuda_call c;
    struct kvl_box_put_args d = *a;
    size_t tok = (size_t)a->box_tok, column = (size_t)((2 * a->head_dim - 1) / a->box_tok);
    size_t elems = column * a->column_stride + (size_t)(a->box0 + a->n - 1) * tok +
                   (size_t)((2 * a->head_dim - 1) % a->box_tok) + 1;
    assert(a->type <= KVL_KV_BF16);
    if (a->n == 0) return KVL_OK;
    kvl_cuda_begin(&c);
    d.k = kvl_cuda_in(&c, a->k, (size_t)a->n * tok * (size_t)a->head_dim);
    d.boxes = kvl_cuda_out_bytes(&c, a->boxes, elems * (size_t)kvl_kv_elem_bytes(a->type), true);
    if (c.rc == KVL_OK) box_launch(&d);
    return kvl_cuda_end(&c);
}
