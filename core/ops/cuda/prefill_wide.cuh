/* prefill_wide.cuh - attn_prefill of keys and values in bf16 on Hopper: two warpgroups of 64 queries each, tiles of 128
 * slots, D channels (64 or 128).
 *
 * While values of a tile are multiplied, the softmax of the next is computed; keys of the next tile and values of
 * this one arrive meanwhile.  One barrier a tile: behind it the products of the tile before the last have ended in all
 * warps, and their places are free.  Rows have the same bits in every chunk: tiles begin at fixed slots, and
 * what a row does not see is worth an exact zero.  After FlashAttention-3 (Shah et al. 2024, section 3.2), without
 * its producer warp: the rows of a paged lane are gathered by all threads. */
#ifndef KVL_PREFILL_WIDE_CUH
#define KVL_PREFILL_WIDE_CUH

#include "prefill_mma.cuh"
#include "wgmma.cuh"

enum {
    PW_THREADS = 256,
    PW_ROWS = 128,
    PW_SLOTS = 128,
    PW_ROUND = 4, /* tiles whose rows are known */
    PW_ALIGN = 1024,
};

/* Panels of 64 channels. */
template <int D> struct alignas(PW_ALIGN) pw_shared {
    uint8_t q[D / KVL_PANEL][PW_ROWS * KVL_PANEL_ROW];
    uint8_t k[2][D / KVL_PANEL][PW_SLOTS * KVL_PANEL_ROW];
    uint8_t v[2][D / KVL_PANEL][PW_SLOTS * KVL_PANEL_ROW];
    const uint8_t *row[PW_ROUND][PW_SLOTS]; /* pf_row, or NULL */
};

/* Of a thread: rows g and g + 8 of its warp (mma.cuh). */
template <int D> struct pw_state {
    float max[2], sum[2], keep[2]; /* logits to the base 2; sum: of the thread's own slots */
    float s[64], acc[D / 2];
    uint32_t p[PW_SLOTS / 16][4]; /* weights, rounded */
};

struct pw_place {
    int32_t past, end;  /* slots before the chunk; behind the last that a row of the tile sees */
    int32_t row, first; /* of the thread and of its warp, in the chunk */
    int32_t begin, n;   /* tiles begin .. n - 1 */
    int32_t window;
};

static __device__ inline struct pw_place
pw_place_of(const struct kvl_cuda_lane *l, const struct pf_queries *q, int32_t row0, int32_t window)
{
    struct pw_place at;
    at.past = l->n_slots - q->n;
    at.end = at.past + min(row0 + PW_ROWS, q->n);
    at.first = row0 + (int32_t)threadIdx.x / KVL_WARP * 16;
    at.row = at.first + (int32_t)threadIdx.x % KVL_WARP / 4;
    at.begin = 0;
    at.n = (at.end + PW_SLOTS - 1) / PW_SLOTS;
    at.window = window;
    return at;
}

template <int D> static __device__ inline struct pw_shared<D> *pw_shared_of(uint8_t *bytes) {
    uintptr_t over = reinterpret_cast<uintptr_t>(bytes) % PW_ALIGN;
    return reinterpret_cast<struct pw_shared<D> *>(bytes + (PW_ALIGN - over) % PW_ALIGN);
}

template <int D>
static __device__ inline void pw_put_queries(struct pw_shared<D> *sh, const struct pf_queries *q,
                                             int32_t row0)
{
    for (int32_t i = (int32_t)threadIdx.x; i < PW_ROWS * (D / 8); i += PW_THREADS) {
        int32_t r = i / (D / 8), c = i % (D / 8);
        struct pm_eight y = { { 0, 0, 0, 0 } };
        if (row0 + r < q->n)
            y = pm_load(q->q + (size_t)(row0 + r) * q->step, KVL_KV_F32, c * 8, D, true);
        *reinterpret_cast<struct pm_eight *>(&sh->q[c / 8][kvl_panel_piece(r, c % 8)]) = y;
    }
}

/* The rows of a tile, for whoever copies it one barrier later. */
template <int D>
static __device__ inline void pw_rows(struct pw_shared<D> *sh, const struct kvl_cuda_lane *l,
                                      int32_t tile, int32_t end)
{
    int32_t i = (int32_t)threadIdx.x, slot = tile * PW_SLOTS + i;
    if (i < PW_SLOTS) sh->row[tile % PW_ROUND][i] = slot < end ? pf_row(l, slot) : NULL;
}

/* A part of a tile, begun. */
template <int D>
static __device__ inline void
pw_put_slots(uint8_t (*to)[PW_SLOTS * KVL_PANEL_ROW], const struct pw_shared<D> *sh,
             const struct kvl_cuda_lane *l, enum kvl_kv_part part, int32_t tile)
{
    const int32_t c = (int32_t)threadIdx.x % (D / 8), step = PW_THREADS / (D / 8);
    const uint8_t *const *row = sh->row[tile % PW_ROUND];
    const uint32_t off = l->off[part] + (uint32_t)c * 16;
    const void *there =
        reinterpret_cast<const void *>(reinterpret_cast<uintptr_t>(l->blocks) / 16 * 16);
    KVL_UNROLL
    for (int32_t i = 0; i < PW_SLOTS / step; i++) {
        int32_t r = (int32_t)threadIdx.x / (D / 8) + i * step;
        const uint8_t *from = row[r];
        kvl_copy_async(&to[c / 8][kvl_panel_piece(r, c % 8)],
                       from ? static_cast<const void *>(from + off) : there, from != NULL);
    }
}

/* What rows do not see of the tile from slot s0 on. */
template <int D>
static __device__ inline void pw_hide(struct pw_state<D> *t, const struct pw_place *at, int32_t s0)
{
    int32_t seen = at->past + at->first;
    if (s0 + PW_SLOTS - 1 <= seen && seen + 15 - s0 < at->window) return;
    KVL_UNROLL
    for (int i = 0; i < 64; i++) {
        int32_t slot = s0 + i / 4 * 8 + (int32_t)threadIdx.x % 4 * 2 + i % 2;
        int32_t back = at->past + at->row + i % 4 / 2 * 8 - slot;
        if (back < 0 || back >= at->window) t->s[i] = -INFINITY;
    }
}

/* Logits become weights; keep: what older sums are worth now. */
template <int D> static __device__ inline void pw_softmax(struct pw_state<D> *t, float factor)
{
    KVL_UNROLL
    for (int h = 0; h < 2; h++) {
        float top = -INFINITY, sum = 0;
        KVL_UNROLL
        for (int n = 0; n < 16; n++)
            top = fmaxf(top, fmaxf(t->s[4 * n + 2 * h], t->s[4 * n + 2 * h + 1]));
        top = fmaxf(t->max[h], pm_row_max(top) * factor);
        t->keep[h] = kvl_exp2(t->max[h] - top);
        KVL_UNROLL
        for (int n = 0; n < 16; n++) {
            float *x = &t->s[4 * n + 2 * h];
            x[0] = kvl_exp2(fmaf(x[0], factor, -top));
            x[1] = kvl_exp2(fmaf(x[1], factor, -top));
            sum += x[0] + x[1];
        }
        t->max[h] = top;
        t->sum[h] = fmaf(t->sum[h], t->keep[h], sum);
    }
}

/* Weights as the left factor of the next product. */
template <int D> static __device__ inline void pw_round(struct pw_state<D> *t)
{
    KVL_UNROLL
    for (int i = 0; i < 32; i++) t->p[i / 4][i % 4] = kvl_pack_bf16(t->s[2 * i], t->s[2 * i + 1]);
}

#if KVL_WGMMA

/* Logits of a tile, begun. */
template <int D>
static __device__ inline void pw_products(struct pw_state<D> *t, const struct pw_shared<D> *sh,
                                          int32_t tile)
{
    const int32_t group = (int32_t)threadIdx.x / KVL_GROUP * 64 * KVL_PANEL_ROW;
    KVL_UNROLL
    for (int k = 0; k < D / 16; k++)
        kvl_group_product(t->s, sh->q[k / 4] + group, sh->k[tile % 2][k / 4], k % 4, k > 0);
    kvl_group_commit();
}

/* acc += weights times the values of a tile, begun. */
template <int D>
static __device__ inline void pw_values(struct pw_state<D> *t, const struct pw_shared<D> *sh,
                                        int32_t tile)
{
    KVL_UNROLL
    for (int k = 0; k < PW_SLOTS / 16; k++)
        kvl_group_values(t->acc, t->p[k], sh->v[tile % 2][0] + k * 16 * KVL_PANEL_ROW,
                         (uint32_t)sizeof sh->v[0][0]);
    kvl_group_commit();
}

/* Copies of a tile have ended, for all warps and for matrix instructions. */
static __device__ inline void pw_arrived(void)
{
    kvl_copy_wait();
    kvl_shared_seen();
    __syncthreads();
}

template <int D>
static __device__ inline void pw_open(struct pw_state<D> *t, struct pw_shared<D> *sh,
                                      const struct pw_place *at, const struct kvl_cuda_lane *l,
                                      const struct pf_queries *q, int32_t row0)
{
    KVL_UNROLL
    for (int i = 0; i < D / 2; i++) t->acc[i] = 0;
    t->max[0] = t->max[1] = PF_LOWEST;
    t->sum[0] = t->sum[1] = 0;
    pw_put_queries<D>(sh, q, row0);
    pw_rows<D>(sh, l, at->begin, at->end);
    pw_rows<D>(sh, l, at->begin + 1, at->end);
    __syncthreads();
    pw_put_slots<D>(sh->k[at->begin % 2], sh, l, KVL_PART_K, at->begin);
}

/* Logits and weights of tile i, values of the one before. */
template <int D, bool VALUES>
static __device__ inline void pw_tile(struct pw_state<D> *t, struct pw_shared<D> *sh,
                                      const struct pw_place *at, const struct kvl_cuda_lane *l,
                                      float factor, int32_t i)
{
    pw_arrived();
    if (i + 1 < at->n) pw_put_slots<D>(sh->k[(i + 1) % 2], sh, l, KVL_PART_K, i + 1);
    if (VALUES) pw_put_slots<D>(sh->v[i % 2], sh, l, KVL_PART_V, i);
    pw_rows<D>(sh, l, i + 2, at->end);
    kvl_group_hold(t->s);
    kvl_group_hold(t->acc);
    kvl_group_begin();
    pw_products<D>(t, sh, i);
    if (VALUES && i > at->begin) {
        pw_values<D>(t, sh, i - 1);
        kvl_group_wait<1>();
    } else {
        kvl_group_wait<0>();
    }
    kvl_group_hold(t->s);
    pw_hide<D>(t, at, i * PW_SLOTS);
    pw_softmax<D>(t, factor);
    kvl_group_wait<0>();
    kvl_group_hold(t->acc);
    kvl_group_hold(t->p);
    KVL_UNROLL
    for (int j = 0; j < D / 2; j++) t->acc[j] *= t->keep[j % 4 / 2];
    pw_round<D>(t);
}

/* Values of the last tile. */
template <int D>
static __device__ inline void pw_last(struct pw_state<D> *t, struct pw_shared<D> *sh, int32_t tile)
{
    pw_arrived();
    kvl_group_hold(t->acc);
    kvl_group_begin();
    pw_values<D>(t, sh, tile);
    kvl_group_wait<0>();
    kvl_group_hold(t->acc);
}

#endif

template <int D>
static __device__ inline void pw_close(const struct pw_state<D> *t, const struct pf_queries *q,
                                       int32_t row, float *out, float *lse, size_t lse_step)
{
    int32_t c = (int32_t)threadIdx.x % 4 * 2;
    KVL_UNROLL
    for (int h = 0; h < 2; h++) {
        float sum = pm_row_sum(t->sum[h]);
        if (row + 8 * h >= q->n) continue;
        if (lse && c == 0)
            lse[(size_t)(row + 8 * h) * lse_step] = fmaf(t->max[h], PF_LN_2, logf(sum));
        if (!out) continue;
        float *to = out + (size_t)(row + 8 * h) * q->step + c;
        KVL_UNROLL
        for (int n = 0; n < D / 8; n++) {
            to[8 * n] = t->acc[4 * n + 2 * h] / sum;
            to[8 * n + 1] = t->acc[4 * n + 2 * h + 1] / sum;
        }
    }
}

#endif
