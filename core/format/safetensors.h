/* safetensors.h - reads safetensors files and believes nothing before it is checked.
 *
 * A file is u64 n, n bytes of JSON (name -> dtype, shape, data_offsets), and the data.  Opened are all files of a
 * folder: model.safetensors, or those that model.safetensors.index.json names.  Checked are the header's length,
 * duplicate names, types, shapes against lengths, and that tensors cover the data without hole or overlap.
 *
 * Errors: KVL_EMODEL naming the tensor, with the file in front; KVL_EIO; KVL_ENOMEM.
 * Thread-safe: read-only after opening.
 */
#ifndef KVL_SAFETENSORS_H
#define KVL_SAFETENSORS_H

#include "filemap.h"
#include "kvl/ops.h"

enum { ST_MAX_DIMS = 4, ST_NAME_CAP = 256 };

struct st_tensor {
    char name[ST_NAME_CAP];
    const char *other;   /* a type that weights cannot have, by name; NULL: `type` is it */
    enum kvl_wtype type; /* F32, F16 or BF16 */
    uint32_t n_dims;
    int64_t dims[ST_MAX_DIMS]; /* as in the file: the last is the row; unused ones are 1 */
    size_t bytes;
    const uint8_t *data; /* of any alignment */
    size_t i_file;
};

struct kvl_safetensors {
    struct st_tensor *tensor; /* by name, ascending in bytes */
    size_t n_tensors;
    struct kvl_filemap *file; /* by name */
    char **file_name;         /* without folder */
    size_t n_files;
};

/* `out` is released by kvl_safetensors_close, also on failure.  map: never a copy. */
int kvl_safetensors_open(const char *dir, bool map, struct kvl_safetensors *out,
                         struct kvl_err *err);
/* One file of any name. */
int kvl_safetensors_open_file(const char *path, bool map, struct kvl_safetensors *out,
                              struct kvl_err *err);
/* One file in memory, which the caller keeps alive (tests, fuzzing). */
int kvl_safetensors_open_memory(const void *data, size_t size, struct kvl_safetensors *out,
                                struct kvl_err *err);
void kvl_safetensors_close(struct kvl_safetensors *s);
/* NULL: there is none. */
const struct st_tensor *kvl_safetensors_find(const struct kvl_safetensors *s, const char *name);
/* Element i of a tensor of floats. */
float kvl_safetensors_float(const struct st_tensor *t, size_t i);

#endif
