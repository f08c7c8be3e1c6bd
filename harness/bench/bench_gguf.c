/* A streaming GGUF writer. */
#include "bench_gguf.h"

#include <math.h>
#include <string.h>

enum {
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STR = 8,
    GGUF_ARR = 9,
    GGUF_ALIGNMENT = 32,
    GGUF_BLOCK = 32, /* values of a Q8_0 or Q4_0 block */
    GGUF_HALVES = 256,
};

static void gguf_add(struct bench_gguf *g, struct kvl_buf *to, const void *data, size_t n)
{
    if (g->rc == KVL_OK) g->rc = kvl_buf_add(to, data, n);
}

static void gguf_add_str(struct bench_gguf *g, struct kvl_buf *to, const char *s)
{
    uint64_t n = strlen(s);
    gguf_add(g, to, &n, sizeof n);
    gguf_add(g, to, s, n);
}

static void gguf_key(struct bench_gguf *g, const char *key, uint32_t type, const void *v, size_t n)
{
    gguf_add_str(g, &g->keys, key);
    gguf_add(g, &g->keys, &type, sizeof type);
    gguf_add(g, &g->keys, v, n);
    g->n_keys++;
}

void bench_gguf_u32(struct bench_gguf *g, const char *key, uint32_t v)
{
    gguf_key(g, key, GGUF_U32, &v, sizeof v);
}

void bench_gguf_f32(struct bench_gguf *g, const char *key, float v)
{
    gguf_key(g, key, GGUF_F32, &v, sizeof v);
}

void bench_gguf_bool(struct bench_gguf *g, const char *key, bool v)
{
    uint8_t byte = v;
    gguf_key(g, key, GGUF_BOOL, &byte, sizeof byte);
}

void bench_gguf_str(struct bench_gguf *g, const char *key, const char *v)
{
    gguf_key(g, key, GGUF_STR, NULL, 0);
    gguf_add_str(g, &g->keys, v);
}

static void gguf_array(struct bench_gguf *g, const char *key, uint32_t elem, uint64_t n)
{
    gguf_key(g, key, GGUF_ARR, &elem, sizeof elem);
    gguf_add(g, &g->keys, &n, sizeof n);
}

void bench_gguf_i32s(struct bench_gguf *g, const char *key, const int32_t *v, uint64_t n)
{
    gguf_array(g, key, GGUF_I32, n);
    gguf_add(g, &g->keys, v, n * sizeof *v);
}

void bench_gguf_strs(struct bench_gguf *g, const char *key, const char *const *v, uint64_t n)
{
    gguf_array(g, key, GGUF_STR, n);
    for (uint64_t i = 0; i < n; i++) gguf_add_str(g, &g->keys, v[i]);
}

static uint64_t gguf_aligned(uint64_t n)
{
    return (n + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT;
}

void bench_gguf_tensor(struct bench_gguf *g, const char *name, enum kvl_wtype type, int32_t n_rows,
                       int32_t n_cols)
{
    uint32_t n_dims = n_rows > 1 ? 2 : 1, number = (uint32_t)type;
    int64_t dims[2] = { n_cols, n_rows };
    gguf_add_str(g, &g->infos, name);
    gguf_add(g, &g->infos, &n_dims, sizeof n_dims);
    gguf_add(g, &g->infos, dims, n_dims * sizeof *dims);
    gguf_add(g, &g->infos, &number, sizeof number);
    gguf_add(g, &g->infos, &g->data_bytes, sizeof g->data_bytes);
    g->data_bytes =
        gguf_aligned(g->data_bytes + kvl_wtype_row_bytes(type, n_cols) * (uint64_t)n_rows);
    g->n_tensors++;
}

static void gguf_write(struct bench_gguf *g, const void *data, size_t n)
{
    if (g->rc == KVL_OK && n > 0 && fwrite(data, 1, n, g->file) != n) g->rc = KVL_EIO;
}

void bench_gguf_begin(struct bench_gguf *g, FILE *file)
{
    static const uint8_t zero[GGUF_ALIGNMENT];
    const uint32_t version = 3;
    struct kvl_buf head = { 0 };
    g->file = file;
    gguf_add(g, &head, "GGUF", 4);
    gguf_add(g, &head, &version, sizeof version);
    gguf_add(g, &head, &g->n_tensors, sizeof g->n_tensors);
    gguf_add(g, &head, &g->n_keys, sizeof g->n_keys);
    size_t n = head.len + g->keys.len + g->infos.len;
    gguf_write(g, head.data, head.len);
    gguf_write(g, g->keys.data, g->keys.len);
    gguf_write(g, g->infos.data, g->infos.len);
    gguf_write(g, zero, (size_t)gguf_aligned(n) - n);
    kvl_buf_free(&head);
}

/* ---- rounding ------------------------------------------------------------------------------------ */

/* To nearest even, by integer arithmetic: below 2^-14 an addition puts the bits of a subnormal into
 * place, since the last place of 0.5 is that of the smallest half. */
static uint16_t gguf_half(float f)
{
    uint32_t u, sign, half = 0x3f000000;
    memcpy(&u, &f, sizeof u);
    sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    if (u >= 0x38800000) return (uint16_t)(sign | (u - 0x38000000 + 0xfff + (u >> 13 & 1)) >> 13);
    float small = fabsf(f) + 0.5f;
    memcpy(&u, &small, sizeof u);
    return (uint16_t)(sign | (u - half));
}

static uint16_t gguf_bf16(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* One block: a scale as half, then 32 numbers of 8 bits, or of 4 with 8 added, the first 16 in the
 * low halves of the bytes. */
static void gguf_block(struct bench_gguf *g, enum kvl_wtype type, const float *x)
{
    float top = 0;
    uint8_t q[GGUF_BLOCK];
    for (int i = 0; i < GGUF_BLOCK; i++) top = fmaxf(top, fabsf(x[i]));
    float d = top / (type == KVL_W_Q8_0 ? 127.0f : 7.0f);
    uint16_t scale = gguf_half(d);
    for (int i = 0; i < GGUF_BLOCK; i++) {
        int v = d > 0 ? (int)lrintf(x[i] / d) : 0;
        q[i] = (uint8_t)(type == KVL_W_Q8_0 ? v : v + 8);
    }
    gguf_add(g, &g->row, &scale, sizeof scale);
    if (type == KVL_W_Q4_0)
        for (int i = 0; i < GGUF_BLOCK / 2; i++)
            q[i] = (uint8_t)(q[i] | q[i + GGUF_BLOCK / 2] << 4);
    gguf_add(g, &g->row, q, type == KVL_W_Q4_0 ? GGUF_BLOCK / 2 : GGUF_BLOCK);
}

static void gguf_encode(struct bench_gguf *g, enum kvl_wtype type, const float *x, int32_t n)
{
    bool blocks = type == KVL_W_Q8_0 || type == KVL_W_Q4_0;
    if (type == KVL_W_F32) gguf_add(g, &g->row, x, (size_t)n * sizeof *x);
    for (int32_t i = 0; blocks && i < n; i += GGUF_BLOCK) gguf_block(g, type, x + i);
    if (type != KVL_W_F16 && type != KVL_W_BF16) return;
    for (int32_t i = 0; i < n;
         i += GGUF_HALVES) { /* a call for each would take longer than its number */
        uint16_t h[GGUF_HALVES];
        int32_t m = KVL_MIN(n - i, GGUF_HALVES);
        for (int32_t j = 0; j < m; j++)
            h[j] = type == KVL_W_F16 ? gguf_half(x[i + j]) : gguf_bf16(x[i + j]);
        gguf_add(g, &g->row, h, (size_t)m * sizeof *h);
    }
}

void bench_gguf_row(struct bench_gguf *g, enum kvl_wtype type, const float *x, int32_t n)
{
    g->row.len = 0;
    gguf_encode(g, type, x, n);
    gguf_write(g, g->row.data, g->row.len);
    g->written += g->row.len;
}

void bench_gguf_pad(struct bench_gguf *g)
{
    static const uint8_t zero[GGUF_ALIGNMENT];
    uint64_t n = gguf_aligned(g->written) - g->written;
    gguf_write(g, zero, (size_t)n);
    g->written += n;
}

int bench_gguf_end(struct bench_gguf *g)
{
    if (g->rc == KVL_OK && g->written != g->data_bytes) g->rc = KVL_EINTERNAL;
    if (g->rc == KVL_OK && g->file && fflush(g->file) != 0) g->rc = KVL_EIO;
    kvl_buf_free(&g->keys);
    kvl_buf_free(&g->infos);
    kvl_buf_free(&g->row);
    return g->rc;
}
