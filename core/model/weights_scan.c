/* One pass over the bytes of a model: whether every weight is finite, and the hash that names the model.
 *
 * A file may be larger than the memory: whoever reads it twice waits for the disk twice. */
#include "gguf_impl.h"
#include "weights.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { SCAN_PIECE = 1 << 20 }; /* bytes that are hashed and then checked while they are near */

struct scan {
    const struct kvl_gguf *g;
    const struct kvl_gguf_tensor **t; /* [n_tensors] by address */
    XXH3_state_t *hash;               /* NULL: not wanted */
    struct kvl_err *err;
};

/* ---- finite -------------------------------------------------------------------------------- */

/* Whether the word at `first`, then every block, holds an exponent that is not all ones. */
static bool words_finite(const uint8_t *row, size_t bytes, int32_t first, size_t stride,
                         uint16_t exponent)
{
    bool bad = false;
    for (size_t i = (size_t)first; i < bytes; i += stride) {
        uint16_t word;
        memcpy(&word, row + i, sizeof word);
        bad |= (word & exponent) == exponent;
    }
    return !bad;
}

static bool blocks_finite(const uint8_t *p, size_t bytes, const struct kvl_wtype_row *t)
{
    if (!words_finite(p, bytes, t->word[0], t->block_bytes, t->exponent)) return false;
    return t->word[1] == t->word[0] ||
           words_finite(p, bytes, t->word[1], t->block_bytes, t->exponent);
}

/* ---- the pass ------------------------------------------------------------------------------ */

static void scan_hash(const struct scan *s, const uint8_t *p, size_t n)
{
    if (s->hash && n) (void)XXH3_128bits_update(s->hash, p, n);
}

/* Rows of a tensor, some at a time; one of a file is hashed as well. */
static int scan_tensor(const struct scan *s, const struct kvl_gguf_tensor *t, bool hashed)
{
    const struct kvl_wtype_row *type = kvl_wtype_find(t->type);
    size_t rows = (size_t)(t->dims[1] * t->dims[2] * t->dims[3]);
    size_t row_bytes = rows ? t->bytes / rows : 0;
    size_t step = row_bytes ? KVL_MAX(SCAN_PIECE / row_bytes, (size_t)1) : 1;
    const uint8_t *p = t->data;
    for (size_t i = 0; type && row_bytes && i < rows; i += step, p += step * row_bytes) {
        size_t n = KVL_MIN(step, rows - i);
        if (hashed) scan_hash(s, p, n * row_bytes);
        if (blocks_finite(p, n * row_bytes, type)) continue;
        size_t bad = 0;
        while (blocks_finite(p + bad * row_bytes, row_bytes, type)) bad++;
        return kvl_fail(s->err, KVL_EMODEL, "tensor \"%s\" holds NaN or infinity in row %zu of %zu",
                        t->name, i + bad, rows);
    }
    if (!type && hashed) scan_hash(s, t->data, t->bytes);
    return KVL_OK;
}

/* Tensors in the order of the file, with what lies between them; *i goes behind those of this file. */
static int scan_file(const struct scan *s, const uint8_t *data, size_t size, size_t *i)
{
    const uint8_t *at = data, *end = data + size;
    for (; *i < s->g->n_tensors; (*i)++) {
        const struct kvl_gguf_tensor *t = s->t[*i];
        const uint8_t *p = t->data;
        if (p < data || p + t->bytes > end) break;
        scan_hash(s, at, (size_t)(p - at));
        KVL_TRY(scan_tensor(s, t, true));
        at = p + t->bytes;
    }
    scan_hash(s, at, (size_t)(end - at));
    return KVL_OK;
}

static int scan_by_address(const void *a, const void *b)
{
    const struct kvl_gguf_tensor *x = *(const struct kvl_gguf_tensor *const *)a;
    const struct kvl_gguf_tensor *y = *(const struct kvl_gguf_tensor *const *)b;
    if (x->data != y->data) return (const uint8_t *)x->data < (const uint8_t *)y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static size_t scan_first(const struct scan *s, const uint8_t *data)
{
    size_t i = 0;
    while (i < s->g->n_tensors && (const uint8_t *)s->t[i]->data < data) i++;
    return i;
}

/* Files in their order, then what was converted. */
static int scan_all(struct scan *s)
{
    const struct kvl_gguf *g = s->g;
    size_t i;
    for (size_t f = 0; f < g->n_files; f++) {
        i = scan_first(s, g->file[f].data);
        KVL_TRY(scan_file(s, g->file[f].data, g->file[f].size, &i));
    }
    if (g->n_files == 0) {
        i = scan_first(s, g->data);
        return scan_file(s, g->data, g->size, &i);
    }
    for (i = 0; i < g->n_tensors; i++) {
        const uint8_t *p = s->t[i]->data;
        bool own = true;
        for (size_t f = 0; f < g->n_files && own; f++)
            own = p < g->file[f].data || p >= g->file[f].data + g->file[f].size;
        if (own) KVL_TRY(scan_tensor(s, s->t[i], false));
    }
    return KVL_OK;
}

int kvl_weights_scan(const struct kvl_gguf *file, char hash[33], struct kvl_err *err)
{
    struct scan s = { .g = file, .err = err };
    s.t = kvl_alloc(file->n_tensors, sizeof *s.t);
    s.hash = hash ? XXH3_createState() : NULL;
    int rc = s.t && (!hash || s.hash) ? KVL_OK
                                      : kvl_fail(err, KVL_ENOMEM, "no memory to read the weights");
    for (size_t i = 0; i < file->n_tensors && s.t; i++) s.t[i] = &file->tensor[i].t;
    if (rc == KVL_OK) {
        qsort(s.t, file->n_tensors, sizeof *s.t, scan_by_address);
        if (s.hash) XXH3_128bits_reset(s.hash);
        rc = scan_all(&s);
    }
    if (rc == KVL_OK && s.hash) {
        XXH128_hash_t h = XXH3_128bits_digest(s.hash);
        snprintf(hash, 33, "%016" PRIx64 "%016" PRIx64, (uint64_t)h.high64, (uint64_t)h.low64);
    }
    XXH3_freeState(s.hash);
    kvl_free(s.t);
    return rc;
}
