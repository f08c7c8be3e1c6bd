/* bench_gguf.h - writes GGUF files of any size without holding their tensors.
 *
 * Keys and the table of tensors are gathered, then the header is written, then the caller writes the
 * rows of each tensor in the order of the table:
 *
 *   struct bench_gguf g = { 0 };
 *   bench_gguf_str(&g, "general.architecture", "llama");
 *   bench_gguf_tensor(&g, "x.weight", KVL_W_F16, 4, 32);
 *   bench_gguf_begin(&g, file);
 *   bench_gguf_row(&g, KVL_W_F16, values, 32);     ... 4 times
 *   rc = bench_gguf_end(&g);
 *
 * The first failure stays in `rc`; later calls do nothing, so that one check at the end is enough.
 * Little-endian machines only, as everything in core is.
 */
#ifndef KVL_BENCH_GGUF_H
#define KVL_BENCH_GGUF_H

#include "kvl/ops.h"

#include <stdio.h>

struct bench_gguf {
    struct kvl_buf keys, infos, row;
    uint64_t n_keys, n_tensors;
    uint64_t data_bytes; /* of the tensors in the table so far, padding included */
    uint64_t written;    /* bytes of rows */
    FILE *file;
    int rc;
};

void bench_gguf_u32(struct bench_gguf *g, const char *key, uint32_t v);
void bench_gguf_f32(struct bench_gguf *g, const char *key, float v);
void bench_gguf_bool(struct bench_gguf *g, const char *key, bool v);
void bench_gguf_str(struct bench_gguf *g, const char *key, const char *v);
void bench_gguf_i32s(struct bench_gguf *g, const char *key, const int32_t *v, uint64_t n);
void bench_gguf_strs(struct bench_gguf *g, const char *key, const char *const *v, uint64_t n);
/* A matrix, or a vector when n_rows is 1. */
void bench_gguf_tensor(struct bench_gguf *g, const char *name, enum kvl_wtype type, int32_t n_rows,
                       int32_t n_cols);
void bench_gguf_begin(struct bench_gguf *g, FILE *file);
/* n finite values, rounded to the nearest of `type`; n a multiple of 32 for Q8_0 and Q4_0. */
void bench_gguf_row(struct bench_gguf *g, enum kvl_wtype type, const float *x, int32_t n);
/* After the last row of each tensor. */
void bench_gguf_pad(struct bench_gguf *g);
/* KVL_OK, KVL_ENOMEM, KVL_EIO (errno says why), or KVL_EINTERNAL: not the rows of the table.  Frees
 * what the writer holds; the file stays open. */
int bench_gguf_end(struct bench_gguf *g);

#endif
