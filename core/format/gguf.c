/* Validates GGUF files.
 *
 * One cursor walks header, metadata and tensor table; every read asks it first, so that no length
 * or count of the file is believed before it is compared with the bytes that are left.  The rules
 * are those of the common readers, so that a file that loads here loads there: no nested arrays,
 * tensor names below 64 bytes, data in the order of the table without gaps. */
#include "gguf_impl.h"

#include <string.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF is read in place: little-endian");

#define GGUF_MAX_ELEMS ((uint64_t)1 << 30) /* of an array; bytes of a string */

struct cursor {
    const uint8_t *data;
    size_t pos, size;
    struct kvl_err *err;
};

/* ---- names --------------------------------------------------------------------------------- */

const char *kvl_gguf_show(const char *s, size_t len, char out[GGUF_SHOWN + 4])
{
    size_t n = KVL_MIN(len, (size_t)GGUF_SHOWN);
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        out[i] = c < 0x20 || c == 0x7f || c >= 0x80 ? '?' : s[i];
    }
    memcpy(out + n, len > n ? "..." : "", len > n ? 4 : 1);
    return out;
}

static int map_init(struct gguf_map *m, size_t n)
{
    size_t cap = 16;
    while (cap < 2 * n) cap *= 2;
    m->slot = kvl_alloc(cap, sizeof *m->slot);
    m->mask = cap - 1;
    return m->slot ? KVL_OK : KVL_ENOMEM;
}

static size_t map_hash(const char *s, size_t len)
{
    return (size_t)XXH3_64bits(s, len);
}

/* The slot of the key, or the empty one where it belongs. */
static uint32_t *key_slot(const struct kvl_gguf *g, const char *s, size_t len)
{
    size_t i = map_hash(s, len) & g->key_map.mask;
    for (;; i = (i + 1) & g->key_map.mask) {
        uint32_t *slot = &g->key_map.slot[i];
        if (*slot == 0) return slot;
        const struct kvl_str *name = &g->key[*slot - 1].name;
        if (name->len == len && memcmp(name->s, s, len) == 0) return slot;
    }
}

static uint32_t *tensor_slot(const struct kvl_gguf *g, const char *name)
{
    size_t i = map_hash(name, strlen(name)) & g->tensor_map.mask;
    for (;; i = (i + 1) & g->tensor_map.mask) {
        uint32_t *slot = &g->tensor_map.slot[i];
        if (*slot == 0 || strcmp(g->tensor[*slot - 1].name, name) == 0) return slot;
    }
}

const struct gguf_key *kvl_gguf_find_key(const struct kvl_gguf *g, const char *s, size_t len)
{
    uint32_t i = *key_slot(g, s, len);
    return i ? &g->key[i - 1] : NULL;
}

const struct kvl_gguf_tensor *kvl_gguf_tensor(const struct kvl_gguf *g, const char *name)
{
    uint32_t i = *tensor_slot(g, name);
    return i ? &g->tensor[i - 1].t : NULL;
}

/* ---- the cursor ---------------------------------------------------------------------------- */

static size_t left(const struct cursor *c)
{
    return c->size - c->pos;
}

static int need(struct cursor *c, uint64_t bytes, const char *what)
{
    if (bytes <= left(c)) return KVL_OK;
    return kvl_fail(c->err, KVL_EMODEL,
                    "%s at offset %zu needs %llu bytes, but the file ends after %zu: it is cut "
                    "short, want the whole file",
                    what, c->pos, (unsigned long long)bytes, left(c));
}

static int read_u32(struct cursor *c, const char *what, uint32_t *out)
{
    KVL_TRY(need(c, sizeof *out, what));
    memcpy(out, c->data + c->pos, sizeof *out);
    c->pos += sizeof *out;
    return KVL_OK;
}

static int read_u64(struct cursor *c, const char *what, uint64_t *out)
{
    KVL_TRY(need(c, sizeof *out, what));
    memcpy(out, c->data + c->pos, sizeof *out);
    c->pos += sizeof *out;
    return KVL_OK;
}

static int read_str(struct cursor *c, const char *what, uint64_t max, struct kvl_str *out)
{
    size_t at = c->pos;
    uint64_t len;
    KVL_TRY(read_u64(c, what, &len));
    if (len > max)
        return kvl_fail(c->err, KVL_EMODEL, "%s at offset %zu has %llu bytes, at most %llu allowed",
                        what, at, (unsigned long long)len, (unsigned long long)max);
    KVL_TRY(need(c, len, what));
    *out = (struct kvl_str){ (const char *)c->data + c->pos, (size_t)len };
    c->pos += (size_t)len;
    return KVL_OK;
}

/* ---- metadata ------------------------------------------------------------------------------ */

size_t kvl_gguf_scalar_bytes(uint32_t type)
{
    static const uint8_t bytes[] = {
        [KVL_GGUF_U8] = 1,  [KVL_GGUF_I8] = 1,  [KVL_GGUF_U16] = 2, [KVL_GGUF_I16] = 2,
        [KVL_GGUF_U32] = 4, [KVL_GGUF_I32] = 4, [KVL_GGUF_F32] = 4, [KVL_GGUF_BOOL] = 1,
        [KVL_GGUF_U64] = 8, [KVL_GGUF_I64] = 8, [KVL_GGUF_F64] = 8,
    };
    return type < sizeof bytes ? bytes[type] : 0;
}

const char *kvl_gguf_type_name(uint32_t type)
{
    static const char *const name[] = { "u8",   "i8",  "u16", "i16", "u32", "i32", "f32",
                                        "bool", "str", "arr", "u64", "i64", "f64" };
    return type < sizeof name / sizeof name[0] ? name[type] : "unknown";
}

static int read_strings(struct cursor *c, const struct gguf_key *k, const char *shown)
{
    for (uint64_t i = 0; i < k->n; i++) {
        struct kvl_str s;
        KVL_TRY(read_str(c, shown, GGUF_MAX_ELEMS, &s));
    }
    return KVL_OK;
}

static int check_bools(struct cursor *c, const struct gguf_key *k, const char *shown)
{
    for (uint64_t i = 0; i < k->n; i++)
        if (k->data[i] > 1)
            return kvl_fail(c->err, KVL_EMODEL,
                            "key \"%s\" at offset %zu: a boolean is %d, want 0 or 1", shown, k->at,
                            k->data[i]);
    return KVL_OK;
}

static int read_array_head(struct cursor *c, struct gguf_key *k, const char *shown)
{
    KVL_TRY(read_u32(c, shown, &k->elem));
    KVL_TRY(read_u64(c, shown, &k->n));
    size_t item = k->elem == KVL_GGUF_STR ? sizeof(uint64_t) : kvl_gguf_scalar_bytes(k->elem);
    if (item == 0)
        return kvl_fail(c->err, KVL_EMODEL,
                        "key \"%s\" at offset %zu: array of type %u, want scalars or strings",
                        shown, k->at, k->elem);
    if (k->n > GGUF_MAX_ELEMS || k->n > left(c) / item)
        return kvl_fail(c->err, KVL_EMODEL,
                        "key \"%s\" at offset %zu: array of %llu elements, but only %zu bytes are "
                        "left: the file is cut short or damaged",
                        shown, k->at, (unsigned long long)k->n, left(c));
    return KVL_OK;
}

static int read_value(struct cursor *c, struct gguf_key *k, const char *shown)
{
    KVL_TRY(read_u32(c, shown, &k->type));
    k->elem = k->type;
    k->n = 1;
    if (k->type == KVL_GGUF_ARR) KVL_TRY(read_array_head(c, k, shown));
    k->data = c->data + c->pos;
    if (k->elem == KVL_GGUF_STR) return read_strings(c, k, shown);
    size_t item = kvl_gguf_scalar_bytes(k->elem);
    if (item == 0)
        return kvl_fail(c->err, KVL_EMODEL, "key \"%s\" at offset %zu: type %u, want 0 to 12",
                        shown, k->at, k->type);
    KVL_TRY(need(c, k->n * item, shown)); /* no overflow: read_array_head bounds n */
    c->pos += (size_t)k->n * item;
    return k->elem == KVL_GGUF_BOOL ? check_bools(c, k, shown) : KVL_OK;
}

static int read_key(struct cursor *c, struct kvl_gguf *g)
{
    struct gguf_key *k = &g->key[g->n_keys];
    char shown[GGUF_SHOWN + 4];
    k->at = c->pos;
    KVL_TRY(read_str(c, "key", GGUF_MAX_KEY_LEN, &k->name));
    kvl_gguf_show(k->name.s, k->name.len, shown);
    if (k->name.len == 0 || memchr(k->name.s, 0, k->name.len))
        return kvl_fail(c->err, KVL_EMODEL,
                        "key \"%s\" at offset %zu is empty or contains a NUL byte", shown, k->at);
    uint32_t *slot = key_slot(g, k->name.s, k->name.len);
    if (*slot)
        return kvl_fail(c->err, KVL_EMODEL,
                        "key \"%s\" at offset %zu appears twice, first at offset %zu", shown, k->at,
                        g->key[*slot - 1].at);
    KVL_TRY(read_value(c, k, shown));
    *slot = (uint32_t)++g->n_keys;
    return KVL_OK;
}

static int read_keys(struct cursor *c, struct kvl_gguf *g, uint64_t n)
{
    /* The shortest entry: a name's length, one byte of name, a type, one byte of value. */
    if (n > GGUF_MAX_KEYS || n > left(c) / 14)
        return kvl_fail(
            c->err, KVL_EMODEL,
            "%llu metadata keys, at most %d and what %zu bytes can hold: the file is cut "
            "short or damaged",
            (unsigned long long)n, GGUF_MAX_KEYS, left(c));
    g->key = kvl_alloc((size_t)n, sizeof *g->key);
    if (!g->key || map_init(&g->key_map, (size_t)n) != KVL_OK)
        return kvl_fail(c->err, KVL_ENOMEM, "no memory for %llu keys", (unsigned long long)n);
    for (uint64_t i = 0; i < n; i++) KVL_TRY(read_key(c, g));
    return KVL_OK;
}

static int find_alignment(struct cursor *c, struct kvl_gguf *g)
{
    static const char key[] = "general.alignment";
    const struct gguf_key *k = kvl_gguf_find_key(g, key, sizeof key - 1);
    g->alignment = 32;
    if (!k) return KVL_OK;
    if (k->type != KVL_GGUF_U32)
        return kvl_fail(c->err, KVL_EMODEL, "key \"%s\" at offset %zu has type %s, want u32", key,
                        k->at, kvl_gguf_type_name(k->type));
    memcpy(&g->alignment, k->data, sizeof g->alignment);
    if (g->alignment < 8 || g->alignment > 1 << 20 || (g->alignment & (g->alignment - 1)) != 0)
        return kvl_fail(c->err, KVL_EMODEL,
                        "key \"%s\" at offset %zu is %u, want a power of two from 8 to 1048576",
                        key, k->at, g->alignment);
    return KVL_OK;
}

/* ---- tensors ------------------------------------------------------------------------------- */

struct tensor_type {
    const char *name;
    uint16_t block, bytes; /* elements and bytes of a block; 0 = no such type */
};

/* Indexed by ggml type number.  The types of weights are rows of wtypes.def; here are those that it lacks. */
static const struct tensor_type tensor_types[] = {
#define KVL_WTYPE_PLAIN(name, number, bytes, ...) [(number)] = { #name, 1, (bytes) },
#define KVL_WTYPE_BLOCK(name, number, elements, bytes, ...)                                        \
    [(number)] = { #name, (elements), (bytes) },
#include "kvl/wtypes.def"
    [9] = { "Q8_1", 32, 36 },     [15] = { "Q8_K", 256, 292 },   [16] = { "IQ2_XXS", 256, 66 },
    [17] = { "IQ2_XS", 256, 74 }, [18] = { "IQ3_XXS", 256, 98 }, [19] = { "IQ1_S", 256, 50 },
    [21] = { "IQ3_S", 256, 110 }, [22] = { "IQ2_S", 256, 82 },   [24] = { "I8", 1, 1 },
    [25] = { "I16", 1, 2 },       [26] = { "I32", 1, 4 },        [27] = { "I64", 1, 8 },
    [28] = { "F64", 1, 8 },       [29] = { "IQ1_M", 256, 56 },
};

static const struct tensor_type *tensor_type(uint32_t type)
{
    if (type >= sizeof tensor_types / sizeof tensor_types[0]) return NULL;
    return tensor_types[type].block ? &tensor_types[type] : NULL;
}

const char *kvl_gguf_tensor_type_name(uint32_t type)
{
    const struct tensor_type *t = tensor_type(type);
    return t ? t->name : "unknown";
}

/* Elements and bytes, both checked: a shape may be larger than any memory. */
static int size_tensor(struct cursor *c, struct kvl_gguf_tensor *t, size_t at)
{
    const struct tensor_type *type = tensor_type(t->type);
    if (!type)
        return kvl_fail(c->err, KVL_EMODEL, "tensor \"%s\" at offset %zu: unknown type number %u",
                        t->name, at, t->type);
    if (t->dims[0] % type->block != 0)
        return kvl_fail(c->err, KVL_EMODEL,
                        "tensor \"%s\" at offset %zu: rows of %lld elements, %s wants a multiple "
                        "of %d",
                        t->name, at, (long long)t->dims[0], type->name, type->block);
    int64_t n = 1, bytes;
    bool over = false;
    for (int i = 0; i < GGUF_MAX_DIMS; i++) over |= __builtin_mul_overflow(n, t->dims[i], &n);
    over = over || __builtin_mul_overflow(n / type->block, (int64_t)type->bytes, &bytes);
    if (over)
        return kvl_fail(c->err, KVL_EMODEL,
                        "tensor \"%s\" at offset %zu: %lld x %lld x %lld x %lld elements are too "
                        "many",
                        t->name, at, (long long)t->dims[0], (long long)t->dims[1],
                        (long long)t->dims[2], (long long)t->dims[3]);
    t->bytes = (size_t)bytes;
    return KVL_OK;
}

static int read_tensor_name(struct cursor *c, struct kvl_gguf *g, struct gguf_tensor *e)
{
    size_t at = c->pos;
    struct kvl_str name;
    char shown[GGUF_SHOWN + 4];
    KVL_TRY(read_str(c, "tensor name", GGUF_NAME_CAP - 1, &name));
    kvl_gguf_show(name.s, name.len, shown);
    if (name.len == 0 || strlen(shown) != name.len || memcmp(shown, name.s, name.len) != 0)
        return kvl_fail(c->err, KVL_EMODEL,
                        "tensor name \"%s\" at offset %zu is empty or not printable ASCII", shown,
                        at);
    memcpy(e->name, name.s, name.len);
    e->t.name = e->name;
    if (*tensor_slot(g, e->name))
        return kvl_fail(c->err, KVL_EMODEL, "tensor \"%s\" at offset %zu appears twice", shown, at);
    return KVL_OK;
}

static int read_dims(struct cursor *c, struct kvl_gguf_tensor *t, size_t at)
{
    KVL_TRY(read_u32(c, t->name, &t->n_dims));
    if (t->n_dims > GGUF_MAX_DIMS)
        return kvl_fail(c->err, KVL_EMODEL,
                        "tensor \"%s\" at offset %zu: %u dimensions, at most %d", t->name, at,
                        t->n_dims, GGUF_MAX_DIMS);
    for (uint32_t i = 0; i < GGUF_MAX_DIMS; i++) {
        uint64_t d = 1;
        if (i < t->n_dims) KVL_TRY(read_u64(c, t->name, &d));
        if (d > INT64_MAX)
            return kvl_fail(c->err, KVL_EMODEL,
                            "tensor \"%s\" at offset %zu: dimension %u is %lld, want 0 or more",
                            t->name, at, i, (long long)d);
        t->dims[i] = (int64_t)d;
    }
    return KVL_OK;
}

/* t->offset is relative to the data section until place_tensors. */
static int read_tensor(struct cursor *c, struct kvl_gguf *g)
{
    struct gguf_tensor *e = &g->tensor[g->n_tensors];
    size_t at = c->pos;
    KVL_TRY(read_tensor_name(c, g, e));
    KVL_TRY(read_dims(c, &e->t, at));
    KVL_TRY(read_u32(c, e->name, &e->t.type));
    KVL_TRY(read_u64(c, e->name, &e->t.offset));
    KVL_TRY(size_tensor(c, &e->t, at));
    *tensor_slot(g, e->name) = (uint32_t)++g->n_tensors;
    return KVL_OK;
}

static int read_tensors(struct cursor *c, struct kvl_gguf *g, uint64_t n)
{
    /* The shortest entry: a name's length, one byte of name, n_dims, type, offset. */
    if (n > GGUF_MAX_TENSORS || n > left(c) / 25)
        return kvl_fail(
            c->err, KVL_EMODEL,
            "%llu tensors, at most %d and what %zu bytes can hold: the file is cut short or "
            "damaged",
            (unsigned long long)n, GGUF_MAX_TENSORS, left(c));
    g->tensor = kvl_alloc((size_t)n, sizeof *g->tensor);
    if (!g->tensor || map_init(&g->tensor_map, (size_t)n) != KVL_OK)
        return kvl_fail(c->err, KVL_ENOMEM, "no memory for %llu tensors", (unsigned long long)n);
    for (uint64_t i = 0; i < n; i++) KVL_TRY(read_tensor(c, g));
    return KVL_OK;
}

/* `n` rounded up to the alignment; true on overflow. */
static bool pad_over(uint64_t n, uint32_t alignment, uint64_t *out)
{
    bool over = __builtin_add_overflow(n, (uint64_t)alignment - 1, out);
    *out &= ~((uint64_t)alignment - 1);
    return over;
}

/* Tensors must follow each other without gaps: then none overlap, and nothing hides between. */
static int place_tensors(struct cursor *c, struct kvl_gguf *g)
{
    uint64_t start, end = 0, last = 0;
    const struct kvl_gguf_tensor *cut = NULL; /* the first that is not there as a whole */
    if (pad_over(c->pos, g->alignment, &start))
        return kvl_fail(c->err, KVL_EMODEL, "metadata of %zu bytes is too long", c->pos);
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct kvl_gguf_tensor *t = &g->tensor[i].t;
        uint64_t want, place;
        if (pad_over(end, g->alignment, &want) || t->offset != want)
            return kvl_fail(c->err, KVL_EMODEL,
                            "tensor \"%s\": data offset %llu, want %llu (alignment %u)", t->name,
                            (unsigned long long)t->offset, (unsigned long long)want, g->alignment);
        if (__builtin_add_overflow(want, t->bytes, &end) ||
            __builtin_add_overflow(start, end, &place))
            return kvl_fail(c->err, KVL_EMODEL,
                            "tensor \"%s\": %zu bytes at offset %llu: no file is "
                            "as large",
                            t->name, t->bytes, (unsigned long long)want);
        if (t->bytes) last = place;
        if (!cut && last > c->size) cut = t;
        t->offset = KVL_MIN(start + want, (uint64_t)c->size); /* an empty one may lie beyond */
        t->data = c->data + t->offset;
    }
    if (!cut) return KVL_OK;
    return kvl_fail(
        c->err, KVL_EMODEL,
        "the file ends after %zu bytes, within tensor \"%s\"; its tensors need %llu: it is "
        "cut short, want the whole file",
        c->size, cut->name, (unsigned long long)last);
}

/* ---- the whole file ------------------------------------------------------------------------ */

static int read_header(struct cursor *c, struct kvl_gguf *g, uint64_t *n_tensors, uint64_t *n_keys)
{
    uint32_t magic;
    KVL_TRY(read_u32(c, "magic", &magic));
    if (memcmp(c->data, "GGUF", 4) != 0)
        return kvl_fail(c->err, KVL_EMODEL, "not a GGUF file: it starts with 0x%08x", magic);
    KVL_TRY(read_u32(c, "version", &g->version));
    if (g->version != 0 && (g->version & 0xffff) == 0)
        return kvl_fail(c->err, KVL_EMODEL, "version 0x%08x: a big-endian file; convert it",
                        g->version);
    if (g->version < 2 || g->version > 3)
        return kvl_fail(c->err, KVL_EMODEL, "GGUF version %u, want 2 or 3", g->version);
    KVL_TRY(read_u64(c, "number of tensors", n_tensors));
    return read_u64(c, "number of keys", n_keys);
}

static int parse(struct kvl_gguf *g, struct kvl_err *err)
{
    struct cursor c = { .data = g->data, .size = g->size, .err = err };
    uint64_t n_tensors, n_keys;
    KVL_TRY(read_header(&c, g, &n_tensors, &n_keys));
    KVL_TRY(read_keys(&c, g, n_keys));
    KVL_TRY(find_alignment(&c, g));
    KVL_TRY(read_tensors(&c, g, n_tensors));
    return place_tensors(&c, g);
}

int kvl_gguf_parse(const void *data, size_t size, struct kvl_gguf **out, struct kvl_err *err)
{
    struct kvl_gguf *g = kvl_alloc(1, sizeof *g);
    if (!g) return kvl_fail(err, KVL_ENOMEM, "no memory for a GGUF file");
    g->data = data;
    g->size = size;
    int rc = parse(g, err);
    if (rc == KVL_OK)
        *out = g;
    else
        kvl_gguf_close(g);
    return rc;
}

int kvl_gguf_set_tensors(struct kvl_gguf *g, struct gguf_tensor *tensor, size_t n,
                         struct kvl_err *err)
{
    kvl_free(g->tensor);
    kvl_free(g->tensor_map.slot);
    g->tensor = tensor;
    g->n_tensors = 0;
    if (n > GGUF_MAX_TENSORS || map_init(&g->tensor_map, n) != KVL_OK)
        return kvl_fail(err, KVL_ENOMEM, "no memory for %zu tensors, at most %d", n,
                        GGUF_MAX_TENSORS);
    for (size_t i = 0; i < n; i++) {
        uint32_t *slot = tensor_slot(g, tensor[i].name);
        tensor[i].t.name = tensor[i].name;
        if (*slot) return kvl_fail(err, KVL_EMODEL, "tensor \"%s\" appears twice", tensor[i].name);
        *slot = (uint32_t)++g->n_tensors;
    }
    return KVL_OK;
}

int kvl_gguf_own(struct kvl_gguf *g, void *block, size_t bytes)
{
    if ((g->n_own & (g->n_own + 1)) == 0) { /* full: room for 0, 1, 3, 7 ... */
        struct kvl_gguf_range *own = kvl_alloc(2 * g->n_own + 1, sizeof *own);
        if (!own) return KVL_ENOMEM;
        if (g->n_own) memcpy(own, g->own, g->n_own * sizeof *own);
        kvl_free(g->own);
        g->own = own;
    }
    g->own[g->n_own++] = (struct kvl_gguf_range){ block, bytes };
    return KVL_OK;
}

void kvl_gguf_close(struct kvl_gguf *g)
{
    if (!g) return;
    for (size_t i = 0; i < g->n_own; i++) kvl_free(g->own[i].data);
    kvl_free(g->own);
    for (size_t i = 0; i < g->n_files; i++) kvl_filemap_close(&g->file[i]);
    kvl_free(g->file);
    kvl_free(g->key);
    kvl_free(g->tensor);
    kvl_free(g->key_map.slot);
    kvl_free(g->tensor_map.slot);
    kvl_free(g);
}
