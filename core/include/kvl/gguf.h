/* kvl/gguf.h - reads GGUF v2/v3 files and believes nothing before it is checked.
 *
 * kvl_gguf_open maps the file, or reads one of at most 64 MiB (larger ones too with KVL_WEIGHTS=copy in the
 * environment), and validates header, metadata and tensor table against the file's
 * size: counts, lengths, types, alignment, duplicate names, offsets, overflow.  Nothing larger than
 * the file plus 64 MiB is allocated.  A file that passes cannot make a later access go out of
 * bounds.  Any part of a split model (NAME-00001-of-0000N.gguf) stands for all: keys of the first, tensors
 * of all.  Errors are KVL_EMODEL with the key or tensor and the offset.  A mapped file that somebody
 * truncates later raises SIGBUS on access, as every mapping does; a file that was read cannot.
 *
 * Thread-safe: read-only after open.
 */
#ifndef KVL_GGUF_H
#define KVL_GGUF_H

#include "kvl/base.h"

enum kvl_gguf_type {
    KVL_GGUF_U8 = 0,
    KVL_GGUF_I8 = 1,
    KVL_GGUF_U16 = 2,
    KVL_GGUF_I16 = 3,
    KVL_GGUF_U32 = 4,
    KVL_GGUF_I32 = 5,
    KVL_GGUF_F32 = 6,
    KVL_GGUF_BOOL = 7,
    KVL_GGUF_STR = 8,
    KVL_GGUF_ARR = 9,
    KVL_GGUF_U64 = 10,
    KVL_GGUF_I64 = 11,
    KVL_GGUF_F64 = 12,
};

struct kvl_gguf;

struct kvl_gguf_tensor {
    const char *name; /* NUL-terminated */
    uint32_t type;    /* ggml type number */
    uint32_t n_dims;
    int64_t dims[4]; /* dims[0] is the row length; unused ones are 1 */
    uint64_t offset; /* from the start of its file */
    size_t bytes;
    const void *data;
};

struct kvl_str {
    const char *s; /* not NUL-terminated; borrowed from the mapping */
    size_t len;
};

int kvl_gguf_open(const char *path, struct kvl_gguf **out, struct kvl_err *err);
/* The same, mapped: of a file that is only looked at, little is read. */
int kvl_gguf_map(const char *path, struct kvl_gguf **out, struct kvl_err *err);
/* Over memory, aligned to 8 bytes, that the caller keeps alive (tests, fuzzing). */
int kvl_gguf_open_memory(const void *data, size_t size, struct kvl_gguf **out, struct kvl_err *err);
void kvl_gguf_close(struct kvl_gguf *g);

/* Typed access; integers of any width are accepted and range-checked.
 * Missing key: KVL_EMODEL when `def` is NULL, else *out = *def.  Wrong type: KVL_EMODEL. */
int kvl_gguf_i64(const struct kvl_gguf *g, const char *key, int64_t min, int64_t max,
                 const int64_t *def, int64_t *out, struct kvl_err *err);
int kvl_gguf_f64(const struct kvl_gguf *g, const char *key, const double *def, double *out,
                 struct kvl_err *err);
int kvl_gguf_bool(const struct kvl_gguf *g, const char *key, bool def, bool *out,
                  struct kvl_err *err);
int kvl_gguf_str(const struct kvl_gguf *g, const char *key, struct kvl_str *out,
                 struct kvl_err *err);
bool kvl_gguf_has(const struct kvl_gguf *g, const char *key);

/* Arrays: number of elements and element type; KVL_EMODEL when missing or not an array. */
int kvl_gguf_arr(const struct kvl_gguf *g, const char *key, enum kvl_gguf_type *elem, int64_t *n,
                 const void **data, struct kvl_err *err);
/* All strings of an array; *out [n] is allocated with kvl_alloc, the strings are borrowed. */
int kvl_gguf_arr_str(const struct kvl_gguf *g, const char *key, struct kvl_str **out, int64_t *n,
                     struct kvl_err *err);

int64_t kvl_gguf_n_tensors(const struct kvl_gguf *g);
const struct kvl_gguf_tensor *kvl_gguf_tensor_at(const struct kvl_gguf *g, int64_t i);
const struct kvl_gguf_tensor *kvl_gguf_tensor(const struct kvl_gguf *g, const char *name);
/* Memory that holds the data of all tensors, in as few pieces as there are files and blocks of converted
 * tensors; *out [n] (kvl_free).  KVL_ENOMEM. */
struct kvl_gguf_range {
    void *data;
    size_t bytes;
};
int kvl_gguf_ranges(const struct kvl_gguf *g, struct kvl_gguf_range **out, size_t *n);
/* Whether the data lies in the page cache, which the system counts as free. */
bool kvl_gguf_mapped(const struct kvl_gguf *g);
/* The folder of Hugging Face's form that stands for the file; NULL: it is a file. */
const char *kvl_gguf_folder(const struct kvl_gguf *g);
size_t kvl_gguf_size(const struct kvl_gguf *g);
const void *kvl_gguf_data(const struct kvl_gguf *g);
/* The name of a ggml tensor type ("Q8_0"), "unknown" for a number without one. */
const char *kvl_gguf_tensor_type_name(uint32_t type);
/* XXH3 (128 bits) of the whole content, of all parts in order, as 32 hexadecimal digits: the identity of a model. */
void kvl_gguf_hash(const struct kvl_gguf *g, char out[33]);
/* One line per key and per tensor, long arrays abbreviated: `kvlab inspect`. */
int kvl_gguf_describe(const struct kvl_gguf *g, struct kvl_buf *out);

#endif
