/* gguf_impl.h - the parsed form of a GGUF file.
 *
 *   gguf.c       parses and checks one file
 *   gguf_open.c  opens a path: one file, or all parts of a split one
 *   gguf_kind.c  tells files that are no model
 *   gguf_get.c   reads keys and tensors
 *   hf.c         folders of Hugging Face's form, in the same form
 *
 * Thread-safe: read-only after parsing.
 */
#ifndef KVL_GGUF_IMPL_H
#define KVL_GGUF_IMPL_H

#include "filemap.h"
#include "kvl/gguf.h"

enum {
    GGUF_MAX_KEYS = 1 << 16,
    GGUF_MAX_TENSORS = 1 << 16,
    GGUF_MAX_KEY_LEN = 65535,
    GGUF_NAME_CAP = 64, /* of a tensor's name, its NUL included: the common limit of readers */
    GGUF_MAX_DIMS = 4,
    GGUF_SHOWN = 96, /* bytes of a name that a message shows */
};

struct gguf_key {
    struct kvl_str name;
    uint32_t type, elem; /* elem: of an array, else type */
    uint64_t n;          /* elements; 1 when not an array */
    const uint8_t *data; /* n elements as in the file, unaligned */
    size_t at;           /* offset of the key in the file */
};

struct gguf_tensor {
    struct kvl_gguf_tensor t;
    char name[GGUF_NAME_CAP];
};

/* Open addressing over indices; slot 0 means empty, i + 1 means entry i. */
struct gguf_map {
    uint32_t *slot;
    size_t mask;
};

struct kvl_gguf {
    const uint8_t *data; /* what was parsed */
    size_t size;
    /* In order, what the model's identity is made of; none: `data` is the caller's. */
    struct kvl_filemap *file;
    size_t n_files;
    struct kvl_gguf_range *own; /* what was made for this file alone */
    size_t n_own;
    const char *hf_dir; /* a folder told as a file: hf.h; else NULL */
    uint32_t version;
    uint32_t alignment;
    struct gguf_key *key;
    size_t n_keys;
    struct gguf_tensor *tensor;
    size_t n_tensors;
    struct gguf_map key_map, tensor_map;
};

/* `data` is the caller's and need not be aligned. */
int kvl_gguf_parse(const void *data, size_t size, struct kvl_gguf **out, struct kvl_err *err);
/* Another table of tensors: names, types, shapes and data are set.  Takes `tensor` over, also on failure. */
int kvl_gguf_set_tensors(struct kvl_gguf *g, struct gguf_tensor *tensor, size_t n,
                         struct kvl_err *err);
/* The block (kvl_alloc, malloc) is released with the file.  KVL_ENOMEM without a message. */
int kvl_gguf_own(struct kvl_gguf *g, void *block, size_t bytes);
/* Refuses files of other forms by name; anything unknown passes. */
int kvl_gguf_check_magic(const void *data, size_t size, struct kvl_err *err);
/* Refuses adapters, vocabularies and what else is no whole text model. */
int kvl_gguf_check_kind(const struct kvl_gguf *g, struct kvl_err *err);
/* Bytes of one element of a metadata type; 0 for strings, arrays and unknown types. */
size_t kvl_gguf_scalar_bytes(uint32_t type);
const char *kvl_gguf_type_name(uint32_t type);
/* Copies at most GGUF_SHOWN bytes of a name; bytes that would disturb a terminal become '?'. */
const char *kvl_gguf_show(const char *s, size_t len, char out[GGUF_SHOWN + 4]);
/* Element i of an array of integers; false for other types.  u64 beyond INT64_MAX saturates. */
bool kvl_gguf_int_elem(uint32_t type, const void *data, uint64_t i, int64_t *out);
const struct gguf_key *kvl_gguf_find_key(const struct kvl_gguf *g, const char *s, size_t len);

#endif
