/* kvl/tensors.h - tensors of a safetensors file: trained weights of a method, as others publish them.
 *
 * Errors: KVL_EINVAL with the path in front: there is no such file, it is damaged, or a tensor is not as wanted;
 * KVL_ENOMEM.
 * Thread-safe: read-only after opening.
 */
#ifndef KVL_TENSORS_H
#define KVL_TENSORS_H

#include "kvl/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvl_tensors;

/* A file, or a folder with model.safetensors or model.safetensors.index.json in it. */
KVL_API int kvl_tensors_open(const char *path, struct kvl_tensors **out, struct kvl_err *err);
KVL_API void kvl_tensors_close(struct kvl_tensors *t);
/* How many, and their names in order of their bytes. */
KVL_API int32_t kvl_tensors_count(const struct kvl_tensors *t);
KVL_API const char *kvl_tensors_name(const struct kvl_tensors *t, int32_t i);
/* Rows and columns, of a vector one row; false: there is no tensor of this name with one or two dimensions. */
KVL_API bool kvl_tensors_shape(const struct kvl_tensors *t, const char *name, int64_t *n_rows,
                               int64_t *n_cols);
/* Widened to floats, all of them finite: out [n_rows][n_cols], or NULL to ask whether it could be read.  KVL_EINVAL: it is
 * missing, of another shape or no floats, or one is not finite (which NULL does not look for). */
KVL_API int kvl_tensors_read(const struct kvl_tensors *t, const char *name, int64_t n_rows,
                             int64_t n_cols, float *out, struct kvl_err *err);
/* XXH3-64 of the files' bytes: 16 hexadecimal digits and a zero. */
KVL_API void kvl_tensors_sum(const struct kvl_tensors *t, char sum[17]);

#ifdef __cplusplus
}
#endif

#endif
