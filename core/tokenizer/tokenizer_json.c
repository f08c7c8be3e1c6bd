/* tokenizer.json: vocabulary, added tokens, merges. */
#include "tokenizer_hf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- texts --------------------------------------------------------------------------------- */

static int no_memory(const struct tok_hf *h, int32_t n)
{
    return kvl_fail(h->err, KVL_ENOMEM, "no memory for %d tokens", n);
}

int kvl_tok_json_added(const struct tok_hf *h, const json_t *v, const char *path,
                       struct tok_added *out)
{
    static const struct {
        const char *key;
        uint8_t flag;
    } row[] = { { "lstrip", TOK_LSTRIP }, { "rstrip", TOK_RSTRIP }, { "normalized", TOK_LATER } };
    const json_t *content = json_object_get(v, "content");
    if (!json_is_string(content) || json_string_length(content) == 0)
        return kvl_hf_json_refuse(h->err, path, v,
                                  "an object with a \"content\" that is not empty");
    if (json_is_true(json_object_get(v, "single_word")))
        return kvl_hf_json_refuse(h->err, path, v, "\"single_word\" false");
    out->text = kvl_hf_json_str(content);
    out->special = json_is_true(json_object_get(v, "special"));
    out->flags = TOK_ADDED;
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        if (json_is_true(json_object_get(v, row[i].key))) out->flags |= row[i].flag;
    /* Where normalizing writes U+2581, a text is searched as it is: no file means anything else. */
    if (!h->t->bpe) out->flags &= (uint8_t)~TOK_LATER;
    return KVL_OK;
}

int kvl_tok_hf_count(const struct tok_hf *h, int32_t n, size_t tokens)
{
    enum { SPARE = 65536 };
    if ((size_t)n <= 2 * tokens + SPARE) return KVL_OK;
    return kvl_fail(h->err, KVL_EMODEL, "%zu tokens with ids up to %d, want ids without such gaps",
                    tokens, n - 1);
}

/* Names for the ids that a file leaves out: a block of names (kvl_free). */
static char (*name_holes(struct kvl_str *text, int32_t n))[24]
{
    size_t holes = 0;
    for (int32_t i = 0; i < n; i++) holes += text[i].len == 0;
    char(*name)[24] = kvl_alloc(holes + 1, sizeof *name);
    for (int32_t i = 0, k = 0; name && i < n; i++) {
        if (text[i].len > 0) continue;
        int len = snprintf(name[k], sizeof name[k], "<no token %d>", i);
        text[i] = (struct kvl_str){ name[k++], (size_t)len };
    }
    return name;
}

int kvl_tok_hf_texts(struct tok_hf *h, struct kvl_str *base, const uint8_t *type, int32_t n,
                     const struct tok_added *added, size_t n_added)
{
    struct kvl_tokenizer *t = h->t;
    bool *hole = kvl_alloc((size_t)n, sizeof *hole);
    t->flags = kvl_alloc((size_t)n, sizeof *t->flags);
    for (size_t i = 0; i < n_added; i++) base[added[i].id] = added[i].text;
    for (int32_t i = 0; hole && i < n; i++) hole[i] = base[i].len == 0;
    char(*names)[24] = name_holes(base, n);
    int rc = hole && t->flags && names ? KVL_OK : no_memory(h, n);
    if (rc == KVL_OK) rc = kvl_tok_set_texts(t, base, n, h->err);
    for (int32_t i = 0; rc == KVL_OK && i < n; i++)
        t->type[i] = hole[i] ? TOK_CONTROL : type[i] ? type[i] : TOK_NORMAL;
    for (size_t i = 0; rc == KVL_OK && i < n_added; i++) {
        t->type[added[i].id] = added[i].special ? TOK_CONTROL : TOK_USER;
        t->flags[added[i].id] = added[i].flags;
    }
    t->added = true;
    kvl_free(names);
    kvl_free(hole);
    return rc;
}

/* ---- vocabulary ---------------------------------------------------------------------------- */

static bool is_id(const json_t *v)
{
    return json_is_integer(v) && json_integer_value(v) >= 0 &&
           json_integer_value(v) < TOK_MAX_TOKENS;
}

static int read_added(struct tok_hf *h, struct tok_added *added, size_t *n_added, int32_t *n)
{
    size_t i, at = 0;
    const json_t *v;
    json_array_foreach(json_object_get(h->json, "added_tokens"), i, v)
    {
        char path[64];
        const json_t *id = json_object_get(v, "id");
        snprintf(path, sizeof path, "added_tokens[%zu]", i);
        KVL_TRY(kvl_tok_json_added(h, v, path, &added[at]));
        snprintf(path, sizeof path, "added_tokens[%zu].id", i);
        if (!is_id(id)) return kvl_hf_json_refuse(h->err, path, id, "a token's number");
        added[at].id = (int32_t)json_integer_value(id);
        if (added[at].id >= h->rows) {
            h->t->cut = true;
            continue;
        }
        *n = KVL_MAX(*n, added[at].id + 1);
        at++;
    }
    *n_added = at;
    return KVL_OK;
}

static int count_vocab(struct tok_hf *h, json_t *vocab, int32_t *n)
{
    const char *text;
    json_t *id;
    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return kvl_hf_json_refuse(h->err, "model.vocab", vocab, "an object of texts and their ids");
    json_object_foreach(vocab, text, id)
    {
        if (!is_id(id))
            return kvl_hf_json_refuse(h->err, "an id of model.vocab", id, "a number from 0");
        int32_t end = (int32_t)json_integer_value(id) + 1;
        if (end > h->rows)
            h->t->cut = true;
        else
            *n = KVL_MAX(*n, end);
    }
    return KVL_OK;
}

static int read_vocab(struct tok_hf *h, json_t *vocab, struct kvl_str *base, uint8_t *type)
{
    const char *text;
    json_t *v;
    json_object_foreach(vocab, text, v)
    {
        int32_t id = (int32_t)json_integer_value(v);
        struct kvl_str s = { text, strlen(text) };
        if (id >= h->rows) continue;
        if (base[id].len)
            return kvl_fail(h->err, KVL_EMODEL, "model.vocab gives id %d to two texts", id);
        base[id] = s;
        if (!h->t->bpe && kvl_tok_byte_value(s) >= 0) type[id] = TOK_BYTE;
    }
    return KVL_OK;
}

static int read_unknown(struct tok_hf *h)
{
    const json_t *v = json_object_get(json_object_get(h->json, "model"), "unk_token");
    struct kvl_str s = kvl_hf_json_str(v);
    struct kvl_tokenizer *t = h->t;
    t->unk = s.len ? kvl_tok_find(t, s.s, s.len) : -1;
    if (s.len && t->unk < 0)
        return kvl_hf_json_refuse(h->err, "model.unk_token", v, "a token of the vocabulary");
    return KVL_OK;
}

static int check_model(struct tok_hf *h)
{
    static const char *const none[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    const json_t *model = json_object_get(h->json, "model");
    const json_t *type = json_object_get(model, "type");
    const json_t *dropout = json_object_get(model, "dropout");
    char path[64];
    /* Old files do not say the type. */
    if ((type || !json_object_get(model, "merges")) && !kvl_hf_json_is(type, "BPE"))
        return kvl_hf_json_refuse(h->err, "model.type", type, "\"BPE\"");
    if (json_number_value(dropout) != 0.0)
        return kvl_hf_json_refuse(h->err, "model.dropout", dropout, "null");
    for (size_t i = 0; i < 2; i++) {
        const json_t *v = json_object_get(model, none[i]);
        snprintf(path, sizeof path, "model.%s", none[i]);
        if (kvl_hf_json_str(v).len) return kvl_hf_json_refuse(h->err, path, v, "null");
    }
    return KVL_OK;
}

int kvl_tok_json_vocab(struct tok_hf *h)
{
    json_t *vocab = json_object_get(json_object_get(h->json, "model"), "vocab");
    size_t n_added = json_array_size(json_object_get(h->json, "added_tokens"));
    int32_t n = 0;
    KVL_TRY(check_model(h));
    KVL_TRY(kvl_tok_json_steps(h));
    KVL_TRY(count_vocab(h, vocab, &n));
    struct tok_added *added = kvl_alloc(n_added + 1, sizeof *added);
    struct kvl_str *base = NULL;
    uint8_t *type = NULL;
    int rc = added ? read_added(h, added, &n_added, &n) : no_memory(h, n);
    if (rc == KVL_OK) rc = kvl_tok_hf_count(h, n, json_object_size(vocab) + n_added);
    if (rc == KVL_OK) {
        base = kvl_alloc((size_t)n, sizeof *base);
        type = kvl_alloc((size_t)n, sizeof *type);
        rc = base && type ? read_vocab(h, vocab, base, type) : no_memory(h, n);
    }
    if (rc == KVL_OK) rc = kvl_tok_hf_texts(h, base, type, n, added, n_added);
    if (rc == KVL_OK) rc = read_unknown(h);
    if (rc == KVL_OK && !h->t->bpe) rc = kvl_tok_load_bytes(h->t, h->err);
    kvl_free(type);
    kvl_free(base);
    kvl_free(added);
    return rc;
}

/* ---- merges -------------------------------------------------------------------------------- */

/* "a b" or ["a", "b"]. */
static int read_merge(const json_t *v, struct kvl_str part[2])
{
    if (json_is_string(v)) return kvl_tok_split_merge(kvl_hf_json_str(v), part);
    for (size_t k = 0; k < 2; k++) part[k] = kvl_hf_json_str(json_array_get(v, k));
    return json_array_size(v) == 2 && part[0].len && part[1].len ? KVL_OK : KVL_EMODEL;
}

int kvl_tok_json_merges(struct tok_hf *h)
{
    static const char key[] = "model.merges";
    const json_t *v, *list = json_object_get(json_object_get(h->json, "model"), "merges");
    size_t i, n = json_array_size(list);
    if (!json_is_array(list)) return kvl_hf_json_refuse(h->err, key, list, "an array of pairs");
    struct kvl_str *part = kvl_alloc(n + 1, 2 * sizeof *part);
    int rc = part ? KVL_OK : kvl_fail(h->err, KVL_ENOMEM, "no memory for %zu merges", n);
    json_array_foreach(list, i, v)
    {
        char path[40];
        if (rc != KVL_OK || read_merge(v, &part[2 * i]) == KVL_OK) continue;
        snprintf(path, sizeof path, "%s[%zu]", key, i);
        rc = kvl_hf_json_refuse(h->err, path, v, "two texts");
    }
    if (rc == KVL_OK) rc = kvl_tok_set_merges(h->t, part, (int64_t)n, key, h->hash, h->err);
    kvl_free(part);
    return rc;
}
