/* Files of vectors. */
#include "head_vectors.h"

#include "head_file.h"

#include <stdio.h>

/* "layer head number ...": those that are due. */
static int vectors_line(struct kvl_head_file *f, int32_t layer, int32_t head, int32_t width,
                        float *vector)
{
    int32_t l, h;
    double x;
    if (!kvl_head_file_line(f))
        return kvl_fail(f->err, KVL_EINVAL, "%s ends before layer %d, head %d", f->path, layer,
                        head);
    KVL_TRY(kvl_head_file_integer(f, "layer", layer, layer, &l));
    KVL_TRY(kvl_head_file_integer(f, "head", head, head, &h));
    for (int32_t i = 0; i < width; i++) {
        KVL_TRY(kvl_head_file_number(f, "channel", -1e9, 1e9, &x));
        if (vector) vector[i] = (float)x;
    }
    if (!kvl_head_file_more(f)) return KVL_OK;
    return kvl_fail(f->err, KVL_EINVAL, "%s, line %d has more than %d numbers", f->path, f->number,
                    width);
}

int kvl_head_vectors(const char *path, const struct kvl_shape *shape, int32_t n_heads,
                     int32_t width, char *sum, struct kvl_err *err, float *vector)
{
    struct kvl_head_file f;
    KVL_TRY(kvl_head_file_open(path, sum, err, &f));
    int rc = KVL_OK;
    for (int32_t i = 0; i < shape->n_layers * n_heads && rc == KVL_OK; i++) {
        float *to = vector ? vector + (size_t)i * (size_t)width : NULL;
        rc = vectors_line(&f, i / n_heads, i % n_heads, width, to);
    }
    if (rc == KVL_OK && kvl_head_file_line(&f))
        rc = kvl_fail(err, KVL_EINVAL, "%s, line %d: want no more than %d layers of %d heads", path,
                      f.number, shape->n_layers, n_heads);
    kvl_head_file_close(&f);
    return rc;
}

int kvl_report_vectors(struct kvl_report *report, int32_t layer, int32_t n_heads, int32_t width,
                       const float *vector)
{
    char name[48];
    for (int32_t i = 0; i < n_heads * width; i++) {
        snprintf(name, sizeof name, "vector.%d.%d.%d", layer, i / width, i % width);
        KVL_TRY(kvl_report_num(report, name, (double)vector[i]));
    }
    return KVL_OK;
}
