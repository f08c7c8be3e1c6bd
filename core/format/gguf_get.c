/* Typed access to a parsed GGUF file, and its description for people. */
#include "gguf_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

bool kvl_gguf_has(const struct kvl_gguf *g, const char *key)
{
    return kvl_gguf_find_key(g, key, strlen(key)) != NULL;
}

static int missing(const char *key, struct kvl_err *err)
{
    return kvl_fail(err, KVL_EMODEL, "key \"%s\" is missing", key);
}

static int wrong_type(const struct gguf_key *k, const char *key, const char *want,
                      struct kvl_err *err)
{
    return kvl_fail(err, KVL_EMODEL, "key \"%s\" at offset %zu has type %s, want %s", key, k->at,
                    kvl_gguf_type_name(k->type), want);
}

bool kvl_gguf_int_elem(uint32_t type, const void *data, uint64_t i, int64_t *out)
{
    uint8_t raw[8] = { 0 };
    size_t bytes = kvl_gguf_scalar_bytes(type);
    uint64_t u;
    memcpy(raw, (const uint8_t *)data + i * bytes, bytes);
    memcpy(&u, raw, sizeof u);
    switch (type) {
    case KVL_GGUF_U8:
    case KVL_GGUF_U16:
    case KVL_GGUF_U32:
    case KVL_GGUF_U64: *out = u > INT64_MAX ? INT64_MAX : (int64_t)u; return true;
    case KVL_GGUF_I8: *out = (int8_t)u; return true;
    case KVL_GGUF_I16: *out = (int16_t)u; return true;
    case KVL_GGUF_I32: *out = (int32_t)u; return true;
    case KVL_GGUF_I64: *out = (int64_t)u; return true;
    default: return false;
    }
}

static bool float_elem(uint32_t type, const uint8_t *data, uint64_t i, double *out)
{
    float f;
    if (type == KVL_GGUF_F64) {
        memcpy(out, data + i * sizeof *out, sizeof *out);
        return true;
    }
    if (type != KVL_GGUF_F32) return false;
    memcpy(&f, data + i * sizeof f, sizeof f);
    *out = (double)f;
    return true;
}

int kvl_gguf_i64(const struct kvl_gguf *g, const char *key, int64_t min, int64_t max,
                 const int64_t *def, int64_t *out, struct kvl_err *err)
{
    const struct gguf_key *k = kvl_gguf_find_key(g, key, strlen(key));
    int64_t v = 0;
    if (!k && def) {
        *out = *def;
        return KVL_OK;
    }
    if (!k) return missing(key, err);
    if (!kvl_gguf_int_elem(k->type, k->data, 0, &v)) return wrong_type(k, key, "an integer", err);
    if (v < min || v > max)
        return kvl_fail(err, KVL_EMODEL,
                        "key \"%s\" at offset %zu is %" PRId64 ", want %" PRId64 " to %" PRId64,
                        key, k->at, v, min, max);
    *out = v;
    return KVL_OK;
}

int kvl_gguf_f64(const struct kvl_gguf *g, const char *key, const double *def, double *out,
                 struct kvl_err *err)
{
    const struct gguf_key *k = kvl_gguf_find_key(g, key, strlen(key));
    if (!k && def) {
        *out = *def;
        return KVL_OK;
    }
    if (!k) return missing(key, err);
    if (!float_elem(k->type, k->data, 0, out)) return wrong_type(k, key, "f32 or f64", err);
    return KVL_OK;
}

int kvl_gguf_bool(const struct kvl_gguf *g, const char *key, bool def, bool *out,
                  struct kvl_err *err)
{
    const struct gguf_key *k = kvl_gguf_find_key(g, key, strlen(key));
    if (k && k->type != KVL_GGUF_BOOL) return wrong_type(k, key, "bool", err);
    *out = k ? k->data[0] == 1 : def;
    return KVL_OK;
}

/* The string at *pos of a validated run of strings. */
static struct kvl_str next_str(const uint8_t *data, size_t *pos)
{
    uint64_t len;
    memcpy(&len, data + *pos, sizeof len);
    struct kvl_str s = { (const char *)data + *pos + sizeof len, (size_t)len };
    *pos += sizeof len + (size_t)len;
    return s;
}

int kvl_gguf_str(const struct kvl_gguf *g, const char *key, struct kvl_str *out,
                 struct kvl_err *err)
{
    const struct gguf_key *k = kvl_gguf_find_key(g, key, strlen(key));
    size_t pos = 0;
    if (!k) return missing(key, err);
    if (k->type != KVL_GGUF_STR) return wrong_type(k, key, "str", err);
    *out = next_str(k->data, &pos);
    return KVL_OK;
}

int kvl_gguf_arr(const struct kvl_gguf *g, const char *key, enum kvl_gguf_type *elem, int64_t *n,
                 const void **data, struct kvl_err *err)
{
    const struct gguf_key *k = kvl_gguf_find_key(g, key, strlen(key));
    if (!k) return missing(key, err);
    if (k->type != KVL_GGUF_ARR) return wrong_type(k, key, "arr", err);
    *elem = (enum kvl_gguf_type)k->elem;
    *n = (int64_t)k->n;
    *data = k->data;
    return KVL_OK;
}

int kvl_gguf_arr_str(const struct kvl_gguf *g, const char *key, struct kvl_str **out, int64_t *n,
                     struct kvl_err *err)
{
    enum kvl_gguf_type elem;
    const void *data;
    int64_t count;
    KVL_TRY(kvl_gguf_arr(g, key, &elem, &count, &data, err));
    if (elem != KVL_GGUF_STR)
        return kvl_fail(err, KVL_EMODEL, "key \"%s\" is an array of %s, want str", key,
                        kvl_gguf_type_name(elem));
    struct kvl_str *s = kvl_alloc((size_t)count, sizeof *s);
    if (!s) return kvl_fail(err, KVL_ENOMEM, "no memory for %" PRId64 " strings", count);
    size_t pos = 0;
    for (int64_t i = 0; i < count; i++) s[i] = next_str(data, &pos);
    *out = s;
    *n = count;
    return KVL_OK;
}

int64_t kvl_gguf_n_tensors(const struct kvl_gguf *g)
{
    return (int64_t)g->n_tensors;
}

const struct kvl_gguf_tensor *kvl_gguf_tensor_at(const struct kvl_gguf *g, int64_t i)
{
    return &g->tensor[i].t;
}

/* Where the file or block of a tensor's data lies; all of them, for data of a caller. */
static size_t range_source(const struct kvl_gguf *g, const uint8_t *data)
{
    for (size_t i = 0; i < g->n_files; i++)
        if (data >= g->file[i].data && data < g->file[i].data + g->file[i].size) return i;
    for (size_t i = 0; i < g->n_own; i++) {
        const uint8_t *block = g->own[i].data;
        if (data >= block && data < block + g->own[i].bytes) return g->n_files + i;
    }
    return 0;
}

int kvl_gguf_ranges(const struct kvl_gguf *g, struct kvl_gguf_range **out, size_t *n)
{
    size_t sources = KVL_MAX(g->n_files + g->n_own, (size_t)1), used = 0;
    struct kvl_gguf_range *range = kvl_alloc(sources, sizeof *range);
    if (!range) return KVL_ENOMEM;
    for (size_t i = 0; i < g->n_tensors; i++) {
        const struct kvl_gguf_tensor *t = &g->tensor[i].t;
        uint8_t *data = (uint8_t *)(uintptr_t)t->data;
        if (t->bytes == 0) continue;
        struct kvl_gguf_range *r = &range[range_source(g, data)];
        uint8_t *first = r->data, *last = first + r->bytes;
        if (r->bytes == 0) first = last = data;
        first = KVL_MIN(first, data);
        last = KVL_MAX(last, data + t->bytes);
        *r = (struct kvl_gguf_range){ first, (size_t)(last - first) };
    }
    for (size_t i = 0; i < sources; i++)
        if (range[i].bytes) range[used++] = range[i];
    *out = range;
    *n = used;
    return KVL_OK;
}

bool kvl_gguf_mapped(const struct kvl_gguf *g)
{
    return g->n_files > 0 && !g->file[0].copied;
}

const char *kvl_gguf_folder(const struct kvl_gguf *g)
{
    return g->hf_dir;
}

size_t kvl_gguf_size(const struct kvl_gguf *g)
{
    size_t bytes = g->n_files ? 0 : g->size;
    for (size_t i = 0; i < g->n_files; i++) bytes += g->file[i].size;
    return bytes;
}

const void *kvl_gguf_data(const struct kvl_gguf *g)
{
    return g->data;
}

static XXH128_hash_t hash_files(const struct kvl_gguf *g)
{
    XXH128_hash_t none = { 0 };
    XXH3_state_t *state = XXH3_createState();
    if (!state || XXH3_128bits_reset(state) != XXH_OK) return none;
    for (size_t i = 0; i < g->n_files; i++)
        (void)XXH3_128bits_update(state, g->file[i].data, g->file[i].size);
    XXH128_hash_t h = XXH3_128bits_digest(state);
    XXH3_freeState(state);
    return h;
}

void kvl_gguf_hash(const struct kvl_gguf *g, char out[33])
{
    XXH128_hash_t h = g->n_files > 1 ? hash_files(g) : XXH3_128bits(g->data, g->size);
    snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, (uint64_t)h.high64, (uint64_t)h.low64);
}

/* ---- description --------------------------------------------------------------------------- */

static int describe_elem(const struct gguf_key *k, uint64_t i, size_t *pos, struct kvl_buf *out)
{
    char shown[GGUF_SHOWN + 4];
    int64_t n = 0;
    double x = 0;
    if (k->elem == KVL_GGUF_STR) {
        struct kvl_str s = next_str(k->data, pos);
        return kvl_buf_printf(out, "\"%s\"", kvl_gguf_show(s.s, s.len, shown));
    }
    if (k->elem == KVL_GGUF_BOOL) return kvl_buf_adds(out, k->data[i] ? "true" : "false");
    if (float_elem(k->elem, k->data, i, &x)) return kvl_buf_printf(out, "%.9g", x);
    (void)kvl_gguf_int_elem(k->elem, k->data, i, &n);
    return kvl_buf_printf(out, "%" PRId64, n);
}

static int describe_key(const struct gguf_key *k, struct kvl_buf *out)
{
    enum { SHOWN_ELEMS = 4 };
    char shown[GGUF_SHOWN + 4];
    size_t pos = 0;
    bool array = k->type == KVL_GGUF_ARR;
    KVL_TRY(kvl_buf_printf(out, "%-40s ", kvl_gguf_show(k->name.s, k->name.len, shown)));
    if (array)
        KVL_TRY(kvl_buf_printf(out, "%s[%" PRIu64 "] ", kvl_gguf_type_name(k->elem), k->n));
    else
        KVL_TRY(kvl_buf_printf(out, "%s ", kvl_gguf_type_name(k->type)));
    for (uint64_t i = 0; i < k->n && i < SHOWN_ELEMS; i++) {
        if (i > 0) KVL_TRY(kvl_buf_adds(out, ", "));
        KVL_TRY(describe_elem(k, i, &pos, out));
    }
    return kvl_buf_adds(out, array && k->n > SHOWN_ELEMS ? ", ...\n" : "\n");
}

static int describe_tensor(const struct kvl_gguf_tensor *t, struct kvl_buf *out)
{
    KVL_TRY(kvl_buf_printf(out, "%-40s %s [", t->name, kvl_gguf_tensor_type_name(t->type)));
    for (uint32_t i = 0; i < t->n_dims; i++)
        KVL_TRY(kvl_buf_printf(out, "%s%" PRId64, i ? ", " : "", t->dims[i]));
    return kvl_buf_printf(out, "] %zu bytes at %" PRIu64 "\n", t->bytes, t->offset);
}

int kvl_gguf_describe(const struct kvl_gguf *g, struct kvl_buf *out)
{
    KVL_TRY(kvl_buf_printf(out, "GGUF version %u, %zu keys, %zu tensors, alignment %u, %zu bytes\n",
                           g->version, g->n_keys, g->n_tensors, g->alignment, kvl_gguf_size(g)));
    for (size_t i = 0; i < g->n_keys; i++) KVL_TRY(describe_key(&g->key[i], out));
    for (size_t i = 0; i < g->n_tensors; i++) KVL_TRY(describe_tensor(&g->tensor[i].t, out));
    return KVL_OK;
}
