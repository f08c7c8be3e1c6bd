/* What a folder is told with: values of config.json, keys of the GGUF file, room for what is converted. */
#include "hf_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HF_MAX = 1 << 30 };

/* ---- values ---------------------------------------------------------------------------------- */

bool kvl_hf_has(const json_t *from, const char *key)
{
    const json_t *v = json_object_get(from, key);
    return v && !json_is_null(v);
}

int kvl_hf_refuse(struct hf *h, const char *key, const json_t *v, const char *want)
{
    char *text = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL, shown[GGUF_SHOWN + 4];
    int rc = v ? kvl_fail(h->err, KVL_EMODEL, "config.json: %s is %s, want %s", key,
                          text ? kvl_gguf_show(text, strlen(text), shown) : "no value", want)
               : kvl_fail(h->err, KVL_EMODEL, "config.json: %s is missing", key);
    free(text);
    return rc;
}

int kvl_hf_int(struct hf *h, const json_t *from, const char *key, const int32_t *def, int32_t *out)
{
    const json_t *v = json_object_get(from, key);
    if (!kvl_hf_has(from, key) && def) {
        *out = *def;
        return KVL_OK;
    }
    json_int_t n = json_integer_value(v);
    if (json_is_integer(v) && n >= 0 && n <= HF_MAX) {
        *out = (int32_t)n;
        return KVL_OK;
    }
    char want[64];
    snprintf(want, sizeof want, "a whole number from 0 to %d", HF_MAX);
    return kvl_hf_refuse(h, key, v, want);
}

int kvl_hf_num(struct hf *h, const json_t *from, const char *key, const double *def, double *out)
{
    const json_t *v = json_object_get(from, key);
    if (!kvl_hf_has(from, key) && def) {
        *out = *def;
        return KVL_OK;
    }
    if (!json_is_number(v) || !isfinite(json_number_value(v)))
        return kvl_hf_refuse(h, key, v, "a number");
    *out = json_number_value(v);
    return KVL_OK;
}

/* ---- keys ------------------------------------------------------------------------------------ */

static int hf_key(struct hf *h, const char *tail, uint32_t type)
{
    const char *before = tail[0] == '.' ? h->is->arch : "";
    uint64_t len = strlen(before) + strlen(tail);
    KVL_TRY(kvl_buf_add(&h->keys, &len, sizeof len));
    KVL_TRY(kvl_buf_adds(&h->keys, before));
    KVL_TRY(kvl_buf_adds(&h->keys, tail));
    h->n_keys++;
    return kvl_buf_add(&h->keys, &type, sizeof type);
}

int kvl_hf_u32(struct hf *h, const char *tail, uint32_t v)
{
    KVL_TRY(hf_key(h, tail, KVL_GGUF_U32));
    return kvl_buf_add(&h->keys, &v, sizeof v);
}

int kvl_hf_f32(struct hf *h, const char *tail, double v)
{
    float f = (float)v;
    KVL_TRY(hf_key(h, tail, KVL_GGUF_F32));
    return kvl_buf_add(&h->keys, &f, sizeof f);
}

int kvl_hf_bool(struct hf *h, const char *tail, bool v)
{
    uint8_t byte = v;
    KVL_TRY(hf_key(h, tail, KVL_GGUF_BOOL));
    return kvl_buf_add(&h->keys, &byte, sizeof byte);
}

int kvl_hf_str(struct hf *h, const char *tail, const char *s, size_t len)
{
    uint64_t n = len;
    KVL_TRY(hf_key(h, tail, KVL_GGUF_STR));
    KVL_TRY(kvl_buf_add(&h->keys, &n, sizeof n));
    return kvl_buf_add(&h->keys, s, len);
}

int kvl_hf_bools(struct hf *h, const char *tail, const uint8_t *v, size_t n)
{
    uint32_t elem = KVL_GGUF_BOOL;
    uint64_t count = n;
    KVL_TRY(hf_key(h, tail, KVL_GGUF_ARR));
    KVL_TRY(kvl_buf_add(&h->keys, &elem, sizeof elem));
    KVL_TRY(kvl_buf_add(&h->keys, &count, sizeof count));
    return kvl_buf_add(&h->keys, v, n);
}

/* ---- room ------------------------------------------------------------------------------------ */

static void *room_block(struct hf *h, size_t bytes)
{
    void *p = kvl_alloc(bytes, 1);
    if (p && kvl_gguf_own(h->g, p, bytes) == KVL_OK) return p;
    kvl_free(p);
    kvl_fail(h->err, KVL_ENOMEM, "no memory for %zu bytes of a tensor", bytes);
    return NULL;
}

/* Small ones share blocks: devices copy block by block. */
void *kvl_hf_room(struct hf *h, size_t bytes)
{
    enum { BLOCK = 1 << 20, SMALL = 1 << 16, ALIGN = 64 };
    size_t want = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (bytes > SMALL) return room_block(h, bytes);
    if (want > h->room_left) {
        h->room = room_block(h, BLOCK);
        h->room_left = h->room ? BLOCK : 0;
    }
    uint8_t *p = h->room;
    if (!p) return NULL;
    h->room += want;
    h->room_left -= want;
    return p;
}
