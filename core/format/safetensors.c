/* Reads the headers of safetensors files, and checks them. */
#include "safetensors.h"

#include "gguf_impl.h"
#include "half.h"
#include "hf_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ST_MAX_HEADER  ((uint64_t)100 << 20)
#define ST_MAX_TENSORS ((size_t)1 << 20)
enum { ST_MAX_FILES = 4096 };

static const char st_index[] = "model.safetensors.index.json";
static const char st_single[] = "model.safetensors";

static const char *st_show(const char *name, char out[GGUF_SHOWN + 4])
{
    return kvl_gguf_show(name, strlen(name), out);
}

/* ---- one tensor ---------------------------------------------------------------------------- */

struct st_dtype {
    const char *name;
    size_t bytes;
    bool other; /* may be in a file, but not be asked for */
    enum kvl_wtype type;
};

static const struct st_dtype *st_dtype(const char *name)
{
    static const struct st_dtype row[] = {
        { "F32", 4, .type = KVL_W_F32 },   { "F16", 2, .type = KVL_W_F16 },
        { "BF16", 2, .type = KVL_W_BF16 }, { "F64", 8, .other = true },
        { "I64", 8, .other = true },       { "U64", 8, .other = true },
        { "I32", 4, .other = true },       { "U32", 4, .other = true },
        { "I16", 2, .other = true },       { "U16", 2, .other = true },
        { "I8", 1, .other = true },        { "U8", 1, .other = true },
        { "BOOL", 1, .other = true },      { "F8_E4M3", 1, .other = true },
        { "F8_E5M2", 1, .other = true },   { "F8_E8M0", 1, .other = true },
    };
    for (size_t i = 0; name && i < sizeof row / sizeof row[0]; i++)
        if (strcmp(name, row[i].name) == 0) return &row[i];
    return NULL;
}

/* dims and bytes from the shape, both checked. */
static int st_shape(const json_t *shape, size_t bytes, struct st_tensor *t, const char *shown,
                    struct kvl_err *err)
{
    size_t n = json_array_size(shape);
    bool bad = !json_is_array(shape) || n > ST_MAX_DIMS;
    for (size_t i = 0; i < ST_MAX_DIMS; i++) {
        const json_t *d = json_array_get(shape, i);
        t->dims[i] = i < n && !bad ? json_integer_value(d) : 1;
        bad = bad || (i < n && (!json_is_integer(d) || t->dims[i] < 0)) ||
              kvl_mul_size(bytes, (size_t)t->dims[i], &bytes) != KVL_OK;
    }
    if (bad)
        return kvl_fail(err, KVL_EMODEL,
                        "tensor \"%s\": its shape is not a list of at most %d lengths", shown,
                        ST_MAX_DIMS);
    t->n_dims = (uint32_t)n;
    t->bytes = bytes;
    return KVL_OK;
}

static int st_read(const char *name, const json_t *value, const uint8_t *data, size_t size,
                   struct st_tensor *t, struct kvl_err *err)
{
    char shown[GGUF_SHOWN + 4], word[GGUF_SHOWN + 4];
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    const json_t *at = json_object_get(value, "data_offsets");
    st_show(name, shown);
    if (strlen(name) >= ST_NAME_CAP || !name[0])
        return kvl_fail(err, KVL_EMODEL, "tensor \"%s\": a name of %zu bytes, want 1 to %d", shown,
                        strlen(name), ST_NAME_CAP - 1);
    const struct st_dtype *type = st_dtype(dtype);
    if (!type)
        return kvl_fail(err, KVL_EMODEL, "tensor \"%s\" has type %s, want F32, F16 or BF16", shown,
                        dtype ? st_show(dtype, word) : "none");
    t->type = type->type;
    t->other = type->other ? type->name : NULL;
    KVL_TRY(st_shape(json_object_get(value, "shape"), type->bytes, t, shown, err));
    json_int_t begin = json_integer_value(json_array_get(at, 0));
    json_int_t end = json_integer_value(json_array_get(at, 1));
    if (json_array_size(at) != 2 || !json_is_integer(json_array_get(at, 0)) ||
        !json_is_integer(json_array_get(at, 1)) || begin < 0 || end < begin || (uint64_t)end > size)
        return kvl_fail(err, KVL_EMODEL,
                        "tensor \"%s\": data_offsets [%lld, %lld], want two from 0 to %zu, the "
                        "length of the data",
                        shown, (long long)begin, (long long)end, size);
    if ((size_t)(end - begin) != t->bytes)
        return kvl_fail(err, KVL_EMODEL, "tensor \"%s\" has %lld bytes, its shape wants %zu", shown,
                        (long long)(end - begin), t->bytes);
    memcpy(t->name, name, strlen(name) + 1);
    t->data = data + begin;
    return KVL_OK;
}

/* ---- one file ------------------------------------------------------------------------------ */

static int st_by_place(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones first */
}

static int st_by_name(const void *a, const void *b)
{
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

static int st_cover(struct st_tensor *t, size_t n, const uint8_t *data, size_t size,
                    struct kvl_err *err)
{
    char shown[GGUF_SHOWN + 4];
    const uint8_t *end = data;
    qsort(t, n, sizeof *t, st_by_place);
    for (size_t i = 0; i < n; end = t[i].data + t[i].bytes, i++)
        if (t[i].data != end)
            return kvl_fail(err, KVL_EMODEL,
                            "tensor \"%s\" begins at byte %zu of the data, the one before ends at "
                            "%zu: want no %s",
                            st_show(t[i].name, shown), (size_t)(t[i].data - data),
                            (size_t)(end - data), t[i].data > end ? "hole" : "overlap");
    if (end == data + size) return KVL_OK;
    return kvl_fail(err, KVL_EMODEL, "tensors end at byte %zu of the data, the file at %zu",
                    (size_t)(end - data), size);
}

static int st_tensors(struct kvl_safetensors *s, const json_t *header, const uint8_t *data,
                      size_t size, struct kvl_err *err)
{
    size_t first = s->n_tensors, n = first;
    size_t most = first + json_object_size(header);
    struct st_tensor *all = NULL;
    const char *name;
    json_t *value;
    if (most <= ST_MAX_TENSORS) all = realloc(s->tensor, (most + 1) * sizeof *all);
    if (!all) return kvl_fail(err, KVL_ENOMEM, "no memory for %zu tensors", most);
    s->tensor = all;
    /* jansson's loop wants an object that is not const. */
    json_object_foreach((json_t *)(uintptr_t)header, name, value)
    {
        if (strcmp(name, "__metadata__") == 0) continue;
        all[n] = (struct st_tensor){ .i_file = s->n_files };
        KVL_TRY(st_read(name, value, data, size, &all[n], err));
        s->n_tensors = ++n;
    }
    return st_cover(all + first, n - first, data, size, err);
}

static int st_parse(struct kvl_safetensors *s, const void *bytes, size_t size, struct kvl_err *err)
{
    const uint8_t *data = bytes;
    uint64_t n = 0;
    json_t *header;
    if (size >= sizeof n) memcpy(&n, data, sizeof n);
    if (size < sizeof n || n > size - sizeof n || n > ST_MAX_HEADER || n == 0)
        return kvl_fail(err, KVL_EMODEL,
                        "no safetensors file: a header of %llu bytes in a file of %zu",
                        (unsigned long long)n, size);
    if (data[sizeof n] != '{')
        return kvl_fail(err, KVL_EMODEL,
                        "no safetensors file: its header begins with 0x%02x, not {",
                        data[sizeof n]);
    KVL_TRY(kvl_hf_json((const char *)data + sizeof n, (size_t)n, 0, &header, err));
    int rc = st_tensors(s, header, data + sizeof n + n, size - sizeof n - (size_t)n, err);
    json_decref(header);
    return rc;
}

/* All names differ: after this they can be searched. */
static int st_sort(struct kvl_safetensors *s, struct kvl_err *err)
{
    char shown[GGUF_SHOWN + 4];
    if (s->n_tensors) qsort(s->tensor, s->n_tensors, sizeof *s->tensor, st_by_name);
    for (size_t i = 1; i < s->n_tensors; i++)
        if (strcmp(s->tensor[i - 1].name, s->tensor[i].name) == 0)
            return kvl_fail(err, KVL_EMODEL, "tensor \"%s\" is in %s and in %s",
                            st_show(s->tensor[i].name, shown),
                            s->file_name[s->tensor[i - 1].i_file],
                            s->file_name[s->tensor[i].i_file]);
    return KVL_OK;
}

int kvl_safetensors_open_memory(const void *data, size_t size, struct kvl_safetensors *out,
                                struct kvl_err *err)
{
    *out = (struct kvl_safetensors){ 0 };
    KVL_TRY(st_parse(out, data, size, err));
    return st_sort(out, err); /* JSON rejected double names */
}

/* ---- a folder ------------------------------------------------------------------------------ */

static char *st_path(const char *dir, const char *name)
{
    struct kvl_buf b = { 0 };
    if (kvl_buf_printf(&b, "%s/%s", dir, name) == KVL_OK) return b.data;
    kvl_buf_free(&b);
    return NULL;
}

static int st_add_name(struct kvl_safetensors *s, const char *name, struct kvl_err *err)
{
    for (size_t i = 0; i < s->n_files; i++)
        if (strcmp(s->file_name[i], name) == 0) return KVL_OK;
    if (s->n_files == ST_MAX_FILES)
        return kvl_fail(err, KVL_EMODEL, "%s: more than %d files", st_index, ST_MAX_FILES);
    s->file_name[s->n_files] = strdup(name);
    if (!s->file_name[s->n_files]) return kvl_fail(err, KVL_ENOMEM, "no memory for file names");
    s->n_files++;
    return KVL_OK;
}

static int st_compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int st_list(struct kvl_safetensors *s, const json_t *map, struct kvl_err *err)
{
    const char *name;
    json_t *file;
    if (!json_is_object(map) || json_object_size(map) == 0)
        return kvl_fail(err, KVL_EMODEL, "%s: no weight_map", st_index);
    json_object_foreach((json_t *)(uintptr_t)map, name, file)
    {
        const char *in = json_string_value(file);
        char shown[GGUF_SHOWN + 4];
        if (!in || !in[0] || in[0] == '.' || strchr(in, '/'))
            return kvl_fail(err, KVL_EMODEL,
                            "%s: \"%s\" lies in \"%s\", want a file of this folder", st_index,
                            st_show(name, shown), in ? in : "");
        KVL_TRY(st_add_name(s, in, err));
    }
    qsort(s->file_name, s->n_files, sizeof *s->file_name, st_compare_names);
    return KVL_OK;
}

/* Every tensor lies where the index says, and none is missing. */
static int st_check_index(const struct kvl_safetensors *s, const json_t *map, struct kvl_err *err)
{
    char shown[GGUF_SHOWN + 4];
    const char *name;
    json_t *file;
    json_object_foreach((json_t *)(uintptr_t)map, name, file)
    {
        const struct st_tensor *t = kvl_safetensors_find(s, name);
        if (!t || strcmp(s->file_name[t->i_file], json_string_value(file)) != 0)
            return kvl_fail(err, KVL_EMODEL, "%s: tensor \"%s\" is not in %s", st_index,
                            st_show(name, shown), json_string_value(file));
    }
    if (json_object_size(map) == s->n_tensors) return KVL_OK;
    return kvl_fail(err, KVL_EMODEL, "%zu tensors in its files, %s names %zu", s->n_tensors,
                    st_index, json_object_size(map));
}

static int st_open_files(struct kvl_safetensors *s, const char *dir, bool map, struct kvl_err *err)
{
    size_t total = 0, n = s->n_files;
    int rc = KVL_OK;
    s->n_files = 0; /* those that are open: st_parse numbers tensors by it */
    for (size_t i = 0; i < n; i++) {
        char *path = st_path(dir, s->file_name[i]);
        size_t bytes = path ? kvl_filemap_size(path) : 0;
        if (path && bytes == 0 && rc == KVL_OK)
            rc = kvl_fail(err, KVL_EMODEL, "%s: file %zu of %zu is missing or empty", path, i + 1,
                          n);
        total += bytes;
        free(path);
    }
    for (size_t i = 0; i < n && rc == KVL_OK; i++) {
        char *path = st_path(dir, s->file_name[i]);
        rc = path ? kvl_filemap_open(path, !map && kvl_filemap_reads(total), &s->file[i], err)
                  : kvl_fail(err, KVL_ENOMEM, "no memory for a path");
        if (rc == KVL_OK) {
            rc = st_parse(s, s->file[i].data, s->file[i].size, err);
            if (rc != KVL_OK) kvl_fail_at(err, rc, "%s", path);
        }
        free(path);
        s->n_files++;
    }
    for (size_t i = s->n_files; i < n; i++) free(s->file_name[i]);
    return rc;
}

static int st_room(struct kvl_safetensors *s, size_t most, struct kvl_err *err)
{
    s->file_name = kvl_alloc(KVL_MIN(most, (size_t)ST_MAX_FILES), sizeof *s->file_name);
    s->file = kvl_alloc(KVL_MIN(most, (size_t)ST_MAX_FILES), sizeof *s->file);
    return s->file_name && s->file ? KVL_OK
                                   : kvl_fail(err, KVL_ENOMEM, "no memory for %zu files", most);
}

static int st_open(struct kvl_safetensors *s, const char *dir, bool map_files, const json_t *index,
                   struct kvl_err *err)
{
    const json_t *map = json_object_get(index, "weight_map");
    KVL_TRY(st_room(s, index ? KVL_MAX(json_object_size(map), (size_t)1) : 1, err));
    KVL_TRY(index ? st_list(s, map, err) : st_add_name(s, st_single, err));
    KVL_TRY(st_open_files(s, dir, map_files, err));
    KVL_TRY(st_sort(s, err));
    return index ? st_check_index(s, map, err) : KVL_OK;
}

int kvl_safetensors_open(const char *dir, bool map, struct kvl_safetensors *out,
                         struct kvl_err *err)
{
    json_t *index = NULL;
    char *path = st_path(dir, st_index), *single = st_path(dir, st_single);
    *out = (struct kvl_safetensors){ 0 };
    int rc = path && single ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "no memory for a path");
    if (rc == KVL_OK && kvl_filemap_size(single) == 0 && kvl_filemap_size(path) == 0)
        rc = kvl_fail(err, KVL_EMODEL, "neither %s nor %s in this folder", st_single, st_index);
    if (rc == KVL_OK && kvl_filemap_size(single) == 0) rc = kvl_hf_json_file(path, 0, &index, err);
    if (rc == KVL_OK) rc = st_open(out, dir, map, index, err);
    json_decref(index);
    free(path);
    free(single);
    return rc;
}

int kvl_safetensors_open_file(const char *path, bool map, struct kvl_safetensors *out,
                              struct kvl_err *err)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    *out = (struct kvl_safetensors){ 0 };
    char *dir = slash ? strndup(path, (size_t)(slash - path)) : strdup(".");
    int rc = dir ? st_room(out, 1, err) : kvl_fail(err, KVL_ENOMEM, "no memory for a path");
    if (rc == KVL_OK) rc = st_add_name(out, name, err);
    if (rc == KVL_OK) rc = st_open_files(out, dir, map, err);
    if (rc == KVL_OK) rc = st_sort(out, err);
    free(dir);
    return rc;
}

const struct st_tensor *kvl_safetensors_find(const struct kvl_safetensors *s, const char *name)
{
    size_t low = 0, high = s->n_tensors;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = strcmp(name, s->tensor[mid].name);
        if (order == 0) return &s->tensor[mid];
        if (order < 0)
            high = mid;
        else
            low = mid + 1;
    }
    return NULL;
}

void kvl_safetensors_close(struct kvl_safetensors *s)
{
    for (size_t i = 0; i < s->n_files; i++) {
        kvl_filemap_close(&s->file[i]);
        free(s->file_name[i]);
    }
    kvl_free(s->file);
    kvl_free(s->file_name);
    free(s->tensor);
    *s = (struct kvl_safetensors){ 0 };
}

float kvl_safetensors_float(const struct st_tensor *t, size_t i)
{
    uint16_t half;
    float f;
    if (t->type == KVL_W_F32) {
        memcpy(&f, t->data + i * sizeof f, sizeof f);
        return f;
    }
    memcpy(&half, t->data + i * sizeof half, sizeof half);
    return t->type == KVL_W_F16 ? kvl_f16_to_f32(half) : kvl_bf16_to_f32(half);
}
