/* kern.h - all kernels for the vectors of one vec_*.h, and their table.  Included once by each
 * kern_<isa>.c, which has set KERN_NAME and KERN_TABLE. */

#include "kern_bf16.h"
#include "kern_bound.h"
#include "kern_channels.h"
#include "kern_columns.h"
#include "kern_gemm.h"
#include "kern_gemmq.h"
#include "kern_gemv.h"
#include "kern_key4.h"
#include "kern_kv.h"
#include "kern_math.h"
#include "kern_nearest.h"
#include "kern_peak.h"
#include "kern_prefill.h"
#include "kern_row.h"
#include "kern_span.h"
#include "kern_sparse.h"
#include "kern_topk.h"
#include "kern_window.h"

const struct kvl_kern KERN_TABLE = {
    .name = KERN_NAME,
    .mr = MR,
    .nr = NR,
    .widen = widen,
    .kv_row = kv_row,
    .gemm[KVL_GEMM_F32] = { .places = gemm_places_f32,
                            .pack = gemm_pack_f32,
                            .scratch = gemm_scratch,
                            .item = gemm_item_f32 },
    .gemm[KVL_GEMM_BF16] = { .places = gemm_places_bf16,
                             .pack = gemm_pack_bf16,
                             .scratch = gemm_scratch,
                             .item = gemm_item_bf16 },
#ifdef VEC_HAS_PAIRS
    .gemm[KVL_GEMM_INT16] = { .places = gemmq_places,
                              .pack = gemmq_pack,
                              .scratch = gemmq_scratch,
                              .item = gemmq_item },
#endif
    .gemv_scratch = gemv_scratch,
    .gemv_bytes = gemv_bytes,
    .gemv_pack = gemv_pack,
    .gemvk_pack = gemvk_pack,
    .gemvb_pack = gemvb_pack,
    .gemv_item = gemv_item,
    .span = span_run,
    .prefill_scratch = prefill_scratch,
    .prefill_item = prefill_item,
    .sparse_item = sparse_item,
    .window_scratch = window_scratch,
    .window_pack = window_pack,
    .window_item = window_item,
    .columns_scratch = columns_scratch,
    .columns_packed = columns_packed,
    .columns_pack = columns_pack,
    .columns_item = columns_item,
    .rmsnorm_row = rmsnorm_row,
    .rotate = rotate,
    .glu = glu,
    .add = add,
    .exp_shift = exp_shift,
    .row_max = row_max,
    .softmax_row = softmax_row,
    .blend = blend,
    .page_minmax = page_minmax,
    .page_bound = page_bound,
    .channel_scores = channel_scores,
    .box_scores = box_scores,
    .box_tile = BOX_TILE,
    .sum_exp = sum_exp,
    .key4_rows = key4_rows,
    .random_fill = random_fill,
    .topk_row = topk_row,
    .nearest = nearest,
    .max_into = max_into,
    .scale = scale,
    .peak_lanes = PEAK_CHAINS * VW,
    .peak_read = peak_read,
    .peak_fma = peak_fma,
    .peak_bf16 = PEAK_DOTS,
};
