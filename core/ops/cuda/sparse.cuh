/* sparse.cuh - what a tile of queries of one head reads of the slots, from bits.
 *
 * A tile is of PF_ROWS tokens, from a multiple of PF_ROWS on whatever the chunk.  Slots are searched in parts
 * of SPARSE_PART, a word of 32 by a thread; those that some token of the tile reads are listed, and tiles of
 * PF_SLOTS of them attended, the last of a part filled up with nothing.
 *
 * So that a row does not depend on its chunk, its list must not depend on which tokens of the tile the chunk
 * has: all count, also those that are still to come.  Only the first slots can be at a distance from these
 * that is beyond the lists given now: they are always listed. */
#ifndef KVL_SPARSE_CUH
#define KVL_SPARSE_CUH

#include "prefill.cuh"

enum { SPARSE_WORDS = 128, SPARSE_PART = 32 * SPARSE_WORDS };

/* Bits of one head. */
struct sparse_bits {
    const uint32_t *column;                  /* [n_words] slots read by all from themselves on */
    const uint32_t *distance;                /* [n_words] distance 0 among them */
    const uint32_t *block;                   /* [blocks of queries][block_words] blocks of slots */
    int32_t n_words, block_tok, block_words; /* block_tok 0: no blocks */
    int32_t unit_tok; /* slots of a bit of `block`: block_tok, or 1 for ranges */
    bool reads;       /* counts what it fetches; not so those that share its fetch */
};

struct sparse_list {
    uint16_t slot[SPARSE_PART]; /* less the part's first */
    int32_t n, warp[SPARSE_WORDS / KVL_WARP];
};

/* A tile of listed slots. */
struct sparse_tile {
    const uint8_t *row[PF_SLOTS]; /* pf_row, or NULL */
    int32_t slot[PF_SLOTS];       /* -1 behind the last */
    uint8_t column[PF_SLOTS];     /* read by every token from itself on */
};

/* Tokens (as slots) of a tile: all, and those that the chunk has. */
struct sparse_tokens {
    int32_t tile, first, last; /* tile .. tile + PF_ROWS - 1; first .. last */
    int32_t past;              /* the chunk's first */
};

/* Bits x .. x + 31, zero where there is none. */
static __device__ inline uint32_t sparse_word(const uint32_t *bits, int32_t n_words, int32_t x)
{
    int32_t w = x >= 0 ? x / 32 : -((31 - x) / 32), shift = x - w * 32;
    uint32_t low = w >= 0 && w < n_words ? bits[w] : 0;
    uint32_t high = w >= -1 && w + 1 < n_words ? bits[w + 1] : 0;
    return shift > 0 ? low >> shift | high << (32 - shift) : low;
}

static __device__ inline bool sparse_bit(const uint32_t *bits, int32_t x)
{
    return bits[x / 32] >> (x % 32) & 1;
}

/* Slots s0 .. s0 + 31 at a distance of some token of the tile: of b = bits tile - s0 - 31 .. of the
 * distances, slot s0 + m has 31 - m .. 94 - m. */
static __device__ inline uint32_t sparse_near(const struct sparse_bits *m, int32_t tile, int32_t s0)
{
    int32_t x = tile - s0 - 31;
    uint32_t low = sparse_word(m->distance, m->n_words, x) & 0x7fffffffu;
    uint32_t middle = sparse_word(m->distance, m->n_words, x + 31);
    uint32_t high = sparse_word(m->distance, m->n_words, x + 63);
    if (middle) return 0xffffffffu;
    uint32_t word = 0;
    if (low) word |= 0xffffffffu << __clz((int)low);         /* from 31 - its highest on */
    if (high) word |= 0xffffffffu >> (__ffs((int)high) - 1); /* up to 31 - its lowest */
    return word;
}

/* Slots s0 .. s0 + 31 in blocks that tokens first .. last of the chunk read. */
static __device__ inline uint32_t sparse_blocks(const struct sparse_bits *m, int32_t first,
                                                int32_t last, int32_t s0)
{
    uint32_t word = 0;
    for (int32_t q = first / m->block_tok; q <= last / m->block_tok; q++) {
        const uint32_t *bits = m->block + (size_t)q * (size_t)m->block_words;
        if (m->unit_tok == 1) { /* and s0 a multiple of 32, of slots that there are */
            word |= bits[s0 / 32];
            continue;
        }
        for (int32_t b = s0 / m->block_tok; b * m->block_tok < s0 + 32; b++) {
            int32_t from = max(0, b * m->block_tok - s0);
            int32_t to = min(32, (b + 1) * m->block_tok - s0); /* from < to */
            if (b < 32 * m->block_words && sparse_bit(bits, b))
                word |= 0xffffffffu >> (32 - (to - from)) << from;
        }
    }
    return word;
}

static __device__ inline uint32_t sparse_listed(const struct sparse_bits *m,
                                                const struct sparse_tokens *t, int32_t s0)
{
    int32_t last = t->last - s0; /* no slot behind the last token */
    if (last < 0) return 0;
    uint32_t word = s0 < PF_ROWS ? 0xffffffffu : m->column[s0 / 32] | sparse_near(m, t->tile, s0);
    if (m->block_tok > 0) word |= sparse_blocks(m, t->first - t->past, t->last - t->past, s0);
    return last < 31 ? word & ~(0xffffffffu << (last + 1)) : word;
}

/* Lists the slots of a part.  Ends with a barrier; all threads of the block. */
static __device__ inline void sparse_search(struct sparse_list *sh, const struct sparse_bits *m,
                                            const struct sparse_tokens *t, int32_t part)
{
    int32_t i = (int32_t)threadIdx.x, lane = i % KVL_WARP;
    uint32_t word = i < SPARSE_WORDS ? sparse_listed(m, t, part + 32 * i) : 0;
    int32_t n = __popc(word), before = n;
    for (int32_t o = 1; o < KVL_WARP; o *= 2) {
        int32_t x = __shfl_up_sync(0xffffffffu, before, (unsigned)o);
        if (lane >= o) before += x;
    }
    __syncthreads(); /* the list before has been read */
    if (lane == KVL_WARP - 1 && i < SPARSE_WORDS) sh->warp[i / KVL_WARP] = before;
    __syncthreads();
    before -= n;
    for (int32_t w = 0; w < i / KVL_WARP && i < SPARSE_WORDS; w++) before += sh->warp[w];
    for (; word; word &= word - 1) sh->slot[before++] = (uint16_t)(32 * i + __ffs((int)word) - 1);
    if (i == SPARSE_WORDS - 1) sh->n = before;
    __syncthreads();
}

/* Whether token i (a slot) reads slot j <= i; column: j is one. */
static __device__ inline bool sparse_sees(const struct sparse_bits *m, bool column, int32_t past,
                                          int32_t i, int32_t j)
{
    if (column || sparse_bit(m->distance, i - j)) return true;
    if (m->block_tok == 0) return false;
    const uint32_t *bits = m->block + (size_t)((i - past) / m->block_tok) * (size_t)m->block_words;
    return sparse_bit(bits, j / m->unit_tok);
}

/* Whether some token that the chunk has reads slot j. */
static __device__ inline bool sparse_read(const struct sparse_bits *m, bool column,
                                          const struct sparse_tokens *t, int32_t j)
{
    int32_t first = max(t->first, j);
    if (column) return true;
    for (int32_t i = first; i <= t->last; i += 32) {
        uint32_t word = sparse_word(m->distance, m->n_words, i - j);
        int32_t left = t->last - i;
        if (left < 31) word &= ~(0xffffffffu << (left + 1));
        if (word) return true;
    }
    if (m->block_tok == 0) return false;
    for (int32_t q = (first - t->past) / m->block_tok; q <= (t->last - t->past) / m->block_tok; q++)
        if (sparse_bit(m->block + (size_t)q * (size_t)m->block_words, j / m->unit_tok)) return true;
    return false;
}

/* The tile of n listed slots from `from` on; returns 1 in the thread of a slot that is read.  The caller
 * has a barrier before it and behind it. */
static __device__ inline int32_t
sparse_fetch(struct sparse_tile *to, int32_t n, const struct sparse_list *list,
             const struct sparse_bits *m, const struct sparse_tokens *t,
             const struct kvl_cuda_lane *l, int32_t part, int32_t from)
{
    int32_t i = (int32_t)threadIdx.x;
    if (i >= n) return 0;
    int32_t j = from + i < list->n ? part + list->slot[from + i] : -1;
    to->slot[i] = j;
    to->row[i] = j >= 0 ? pf_row(l, j) : NULL;
    to->column[i] = j >= 0 && sparse_bit(m->column, j);
    return j >= 0 && sparse_read(m, to->column[i], t, j);
}

/* Whether token `token` reads place c of the tile. */
static __device__ inline bool sparse_reads(const struct sparse_tile *tile, int32_t c,
                                           const struct sparse_bits *m,
                                           const struct sparse_tokens *t, int32_t token)
{
    int32_t slot = tile->slot[c];
    return slot >= 0 && token >= t->first && token <= t->last && slot <= token &&
           sparse_sees(m, tile->column[c], t->past, token, slot);
}

#endif
