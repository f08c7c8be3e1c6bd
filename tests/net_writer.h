/* net_writer.h - random networks over a layer's input as a safetensors file, and what they say in double.
 *
 * Weights are multiples of 1/64 from -1 to 1, which all types of a file hold exactly.
 */
#ifndef KVL_TESTS_NET_WRITER_H
#define KVL_TESTS_NET_WRITER_H

#include "gguf_writer.h"
#include "half.h"
#include "kvl/rng.h"

#include <math.h>
#include <unistd.h>

enum { NW_MAX = 1 << 16 };

struct nw {
    int32_t n_layers, n_in, hidden, n_out; /* hidden 0: one map */
    const char *dtype;
    char path[64];
    float w[NW_MAX]; /* of each layer weight and bias, of each map */
    int32_t n;
    /* of the tensor of this number: another name, or a column less */
    int32_t wrong;
    const char *name;
    bool narrow;
};

static inline void nw_value(const struct nw *w, float x, struct kvl_buf *out)
{
    uint16_t half = w->dtype[0] == 'B' ? kvl_f32_to_bf16(x) : kvl_f32_to_f16(x);
    if (strcmp(w->dtype, "F32") == 0)
        gw_raw(out, &x, sizeof x);
    else
        gw_raw(out, &half, sizeof half);
}

/* One tensor of the header and of the data: a matrix, or a vector where n_rows is 0. */
static inline void nw_tensor(struct nw *w, int32_t *i, const char *name, int32_t n_rows,
                             int32_t n_cols, struct kvl_buf *head, struct kvl_buf *data)
{
    char shape[48];
    bool wrong = w->wrong == *i;
    size_t from = data->len;
    int32_t cols = n_cols - (wrong && w->narrow), n = (n_rows ? n_rows : 1) * cols;
    for (int32_t k = 0; k < n; k++) nw_value(w, w->w[w->n + k], data);
    w->n += (n_rows ? n_rows : 1) * n_cols;
    snprintf(shape, sizeof shape, n_rows ? "%d,%d" : "%.0d%d", n_rows, cols);
    gw_check(kvl_buf_printf(head,
                            "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
                            *i ? "," : "", wrong && w->name ? w->name : name, w->dtype, shape, from,
                            data->len) == KVL_OK);
    ++*i;
}

static inline void nw_map(struct nw *w, int32_t *i, int32_t layer, const char *map, int32_t n_out,
                          int32_t n_in, struct kvl_buf *head, struct kvl_buf *data)
{
    char name[48];
    snprintf(name, sizeof name, "layers.%d%s.weight", layer, map);
    nw_tensor(w, i, name, n_out, n_in, head, data);
    snprintf(name, sizeof name, "layers.%d%s.bias", layer, map);
    nw_tensor(w, i, name, 0, n_out, head, data);
}

/* The file at w->path. */
static inline void nw_save(struct nw *w)
{
    struct kvl_buf head = { 0 }, data = { 0 }, file = { 0 };
    int32_t i = 0;
    w->n = 0;
    gw_raw(&head, "{", 1);
    for (int32_t l = 0; l < w->n_layers; l++) {
        if (w->hidden == 0) {
            nw_map(w, &i, l, "", w->n_out, w->n_in, &head, &data);
        } else {
            nw_map(w, &i, l, ".0", w->hidden, w->n_in, &head, &data);
            nw_map(w, &i, l, ".2", w->n_out, w->hidden, &head, &data);
        }
    }
    gw_raw(&head, "}", 1);
    gw_raw_u64(&file, head.len);
    gw_raw(&file, head.data, head.len);
    gw_raw(&file, data.data, data.len);
    gw_check(gw_save(&file, w->path));
    kvl_buf_free(&head);
    kvl_buf_free(&data);
    kvl_buf_free(&file);
}

/* Random weights of these sizes, in a file of its own. */
static inline void nw_open(struct nw *w, int32_t n_layers, int32_t n_in, int32_t hidden,
                           int32_t n_out, const char *dtype, uint64_t seed)
{
    struct kvl_rng rng;
    *w = (struct nw){ .n_layers = n_layers,
                      .n_in = n_in,
                      .hidden = hidden,
                      .n_out = n_out,
                      .dtype = dtype,
                      .path = "/tmp/kvl-net-XXXXXX",
                      .wrong = -1 };
    int fd = mkstemp(w->path);
    gw_check(fd >= 0);
    close(fd);
    kvl_rng_seed(&rng, seed);
    for (int32_t i = 0; i < NW_MAX; i++) w->w[i] = ((float)kvl_rng_below(&rng, 129) - 64) / 64;
    nw_save(w);
}

static inline void nw_close(const struct nw *w)
{
    unlink(w->path);
}

static inline void nw_apply(const float *w, const double *x, int32_t n_out, int32_t n_in, double *y)
{
    for (int32_t o = 0; o < n_out; o++) {
        y[o] = (double)w[n_out * n_in + o];
        for (int32_t c = 0; c < n_in; c++) y[o] += (double)w[o * n_in + c] * x[c];
    }
}

/* y [n_out] of what enters a layer. */
static inline void nw_score(const struct nw *w, int32_t layer, const float *x, double *y)
{
    double in[512], mid[512];
    int32_t first = w->hidden * (w->n_in + 1),
            second = w->n_out * ((w->hidden ? w->hidden : w->n_in) + 1);
    const float *at = w->w + layer * (first + second);
    gw_check(w->n_in <= 512 && w->hidden <= 512);
    for (int32_t c = 0; c < w->n_in; c++) in[c] = (double)x[c];
    if (w->hidden == 0) {
        nw_apply(at, in, w->n_out, w->n_in, y);
        return;
    }
    nw_apply(at, in, w->hidden, w->n_in, mid);
    for (int32_t c = 0; c < w->hidden; c++) mid[c] *= (1 + erf(mid[c] / sqrt(2))) / 2;
    nw_apply(at + first, mid, w->n_out, w->hidden, y);
}

#endif
