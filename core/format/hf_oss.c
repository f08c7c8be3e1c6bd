/* Experts of gpt-oss in a folder: gate and up lie in turn, one row each, biases likewise; matrices are floats with
 * rows of inputs, or MXFP4 as blocks [expert][row][block][16 bytes] beside scales [expert][row][block]. */
#include "hf_impl.h"

#include "half.h"

#include <stdio.h>
#include <string.h>

enum { OSS_BLOCK = 32, OSS_BYTES = 16 }; /* of MXFP4 */

/* Of what becomes one tensor: n_x experts of n_rows rows, each `parts` apart in the folder. */
struct oss {
    const struct st_tensor *t;
    int64_t n_x, n_rows, n_cols;
    int part, parts;
};

static int oss_refuse(struct hf *h, const struct st_tensor *t)
{
    char shown[GGUF_SHOWN + 4];
    return kvl_fail(h->err, KVL_EMODEL, "tensor \"%s\" has no shape of gpt-oss's experts",
                    kvl_gguf_show(t->name, strlen(t->name), shown));
}

static int oss_bias(struct hf *h, const struct oss *o, struct kvl_gguf_tensor *y)
{
    size_t n = (size_t)(o->n_x * o->n_rows);
    float *to = kvl_hf_room(h, n * sizeof *to);
    if (!to) return KVL_ENOMEM;
    for (size_t i = 0; i < n; i++)
        to[i] = kvl_safetensors_float(o->t, i * (size_t)o->parts + (size_t)o->part);
    *y = (struct kvl_gguf_tensor){
        .type = KVL_W_F32, .n_dims = 2, .dims = { o->n_rows, o->n_x, 1, 1 }, .bytes = n * sizeof *to
    };
    y->data = to;
    return KVL_OK;
}

/* [expert][column][row, part] -> [expert][row][column] */
static int oss_floats(struct hf *h, const struct oss *o, struct kvl_gguf_tensor *y)
{
    size_t size = o->t->type == KVL_W_F32 ? 4 : 2, rows = (size_t)o->n_rows,
           cols = (size_t)o->n_cols;
    size_t n_x = (size_t)o->n_x, bytes = n_x * rows * cols * size;
    uint8_t *to = kvl_hf_room(h, bytes), *at = to;
    if (!to) return KVL_ENOMEM;
    for (size_t x = 0; x < n_x; x++)
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < cols; c++, at += size) {
                size_t row = r * (size_t)o->parts + (size_t)o->part;
                size_t from = (x * cols + c) * rows * (size_t)o->parts + row;
                memcpy(at, o->t->data + from * size, size);
            }
    *y = (struct kvl_gguf_tensor){ .type = (uint32_t)o->t->type,
                                   .n_dims = 3,
                                   .dims = { o->n_cols, o->n_rows, o->n_x, 1 },
                                   .bytes = bytes };
    y->data = to;
    return KVL_OK;
}

/* Element 2 j is the low half of byte j, 2 j + 1 the high one; in a GGUF block j and j + 16 are. */
static void oss_block(uint8_t *to, uint8_t scale, const uint8_t *from)
{
    enum { HALF = OSS_BYTES / 2 };
    to[0] = scale;
    for (int j = 0; j < HALF; j++) {
        uint8_t low = from[j], high = from[j + HALF];
        to[1 + 2 * j] = (uint8_t)((low & 15) | (high & 15) << 4);
        to[2 + 2 * j] = (uint8_t)(low >> 4 | (high & 0xf0));
    }
}

static const struct st_tensor *oss_scales(const struct hf *h, const struct st_tensor *t)
{
    static const char blocks[] = "_blocks";
    char name[ST_NAME_CAP];
    size_t stem = strlen(t->name) - (sizeof blocks - 1);
    snprintf(name, sizeof name, "%.*s_scales", (int)stem, t->name);
    const struct st_tensor *s = kvl_safetensors_find(&h->weights, name);
    bool fits = s && s->other && strcmp(s->other, "U8") == 0 && s->n_dims == 3;
    for (int i = 0; i < 3 && fits; i++) fits = s->dims[i] == t->dims[i];
    return fits ? s : NULL;
}

static int oss_mxfp4(struct hf *h, const struct oss *o, struct kvl_gguf_tensor *y)
{
    const struct st_tensor *s = oss_scales(h, o->t);
    size_t blocks = (size_t)o->n_cols / OSS_BLOCK, rows = (size_t)(o->n_x * o->n_rows);
    size_t bytes = rows * blocks * (OSS_BYTES + 1);
    if (!s) return oss_refuse(h, o->t);
    uint8_t *to = kvl_hf_room(h, bytes), *at = to;
    if (!to) return KVL_ENOMEM;
    for (size_t r = 0; r < rows; r++)
        for (size_t b = 0; b < blocks; b++, at += OSS_BYTES + 1) {
            size_t from = (r * (size_t)o->parts + (size_t)o->part) * blocks + b;
            oss_block(at, s->data[from], o->t->data + from * OSS_BYTES);
        }
    *y = (struct kvl_gguf_tensor){ .type = KVL_W_MXFP4,
                                   .n_dims = 3,
                                   .dims = { o->n_cols, o->n_rows, o->n_x, 1 },
                                   .bytes = bytes };
    y->data = to;
    return KVL_OK;
}

int kvl_hf_oss(struct hf *h, const struct st_tensor *t, int part, int parts,
               struct kvl_gguf_tensor *y)
{
    bool mxfp4 =
        t->n_dims == 4 && t->other && strcmp(t->other, "U8") == 0 && t->dims[3] == OSS_BYTES;
    bool floats = (t->n_dims == 2 || t->n_dims == 3) && !t->other;
    struct oss o = { .t = t, .n_x = t->dims[0], .part = part, .parts = parts };
    int64_t rows = mxfp4 ? t->dims[1] : t->dims[t->n_dims ? t->n_dims - 1 : 0];
    o.n_rows = rows / parts;
    o.n_cols = mxfp4 ? t->dims[2] * OSS_BLOCK : t->n_dims == 3 ? t->dims[1] : 1;
    if ((!mxfp4 && !floats) || rows % parts != 0) return oss_refuse(h, t);
    if (mxfp4) return oss_mxfp4(h, &o, y);
    return t->n_dims == 2 ? oss_bias(h, &o, y) : oss_floats(h, &o, y);
}
