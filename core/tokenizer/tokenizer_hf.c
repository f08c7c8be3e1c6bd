/* A tokenizer from a Hugging Face folder: tokenizer.json, else tokenizer.model, else vocab.json and
 * merges.txt; which tokens begin and end a text from the configurations beside it. */
#include "tokenizer_hf.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { FILE_LIMIT = 1 << 28 };

/* ---- files --------------------------------------------------------------------------------- */

static int path_of(const struct tok_hf *h, const char *name, char out[4096])
{
    if (snprintf(out, 4096, "%s/%s", h->dir, name) < 4096) return KVL_OK;
    return kvl_fail(h->err, KVL_EINVAL, "%.60s...: a path of more than 4095 bytes", h->dir);
}

/* The file's bytes; *there false where it does not exist. */
static int read_file(struct tok_hf *h, const char *name, struct kvl_buf *out, bool *there)
{
    char path[4096];
    KVL_TRY(path_of(h, name, path));
    *there = access(path, F_OK) == 0 || errno != ENOENT;
    return *there ? kvl_read_file(path, FILE_LIMIT, out, h->err) : KVL_OK;
}

static int read_json(struct tok_hf *h, const char *name, uint32_t how, json_t **out)
{
    struct kvl_buf text = { 0 };
    bool there;
    int rc = read_file(h, name, &text, &there);
    if (rc == KVL_OK && there) {
        rc = kvl_hf_json(text.data, text.len, how, out, h->err);
        if (rc != KVL_OK) kvl_fail_at(h->err, rc, "%s/%s", h->dir, name);
    }
    kvl_buf_free(&text);
    return rc;
}

/* ---- BOS, EOS, ends ------------------------------------------------------------------------ */

/* "bos_token" of a file: a text, {content} or null. */
static int named_id(struct tok_hf *h, const char *file, const json_t *in, const char *key,
                    int32_t *out, bool *said)
{
    const json_t *v = json_object_get(in, key);
    if (!v || *said) return KVL_OK;
    struct kvl_str s = kvl_hf_json_str(json_is_object(v) ? json_object_get(v, "content") : v);
    *said = true;
    *out = s.len ? kvl_tok_find(h->t, s.s, s.len) : -1;
    if (*out >= 0 || json_is_null(v)) return KVL_OK;
    h->file = file;
    return kvl_hf_json_refuse(h->err, key, v, "a token of the vocabulary or null");
}

/* Ids at `key`, one or a list: the first to *out where there is none yet, all to the ends if `end`. */
static int numbered_ids(struct tok_hf *h, const char *file, const json_t *in, const char *key,
                        int32_t *out, bool end)
{
    const json_t *v = json_object_get(in, key);
    size_t n = json_is_array(v) ? json_array_size(v) : v && !json_is_null(v);
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(v) ? json_array_get(v, i) : v;
        h->file = file;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= h->t->n)
            return kvl_hf_json_refuse(h->err, key, v, "ids of tokens");
        if (*out < 0) *out = (int32_t)json_integer_value(id);
        if (end) h->t->ends[json_integer_value(id)] = true;
    }
    return KVL_OK;
}

static int token_id(struct tok_hf *h, const char *name, int32_t *out)
{
    bool said = false;
    char key[32], numbers[32];
    snprintf(key, sizeof key, "%s_token", name);
    snprintf(numbers, sizeof numbers, "%s_token_id", name);
    bool end = strcmp(name, "eos") == 0;
    if (*out >= h->t->n) *out = -1;
    KVL_TRY(named_id(h, "tokenizer_config.json", h->config, key, out, &said));
    KVL_TRY(named_id(h, "special_tokens_map.json", h->map, key, out, &said));
    int32_t none = 0, *first = said ? &none : out;
    KVL_TRY(numbered_ids(h, "generation_config.json", h->generation, numbers, first, end));
    return numbered_ids(h, "config.json", h->model, numbers, first, end);
}

static int load_ids(struct tok_hf *h)
{
    struct kvl_tokenizer *t = h->t;
    const json_t *bos = json_object_get(h->config, "add_bos_token");
    const json_t *eos = json_object_get(h->config, "add_eos_token");
    if (json_is_boolean(bos)) t->add_bos = json_is_true(bos);
    if (json_is_boolean(eos)) t->add_eos = json_is_true(eos);
    /* The token that tokenizer.json puts in front, whatever the others call BOS. */
    bool fixed = t->add_bos && t->bos >= 0 && t->bos < t->n && !json_is_boolean(bos) && h->json;
    if (!fixed) KVL_TRY(token_id(h, "bos", &t->bos));
    KVL_TRY(token_id(h, "eos", &t->eos));
    if (t->eos >= 0) t->ends[t->eos] = true;
    if (t->unk >= 0 && t->unk != t->bos && t->unk != t->eos) t->type[t->unk] = TOK_UNKNOWN;
    kvl_tok_name_ends(t);
    return KVL_OK;
}

/* ---- chat template ------------------------------------------------------------------------- */

static int set_template(struct tok_hf *h, struct kvl_str s)
{
    h->t->chat_template = kvl_alloc(s.len + 1, 1);
    if (!h->t->chat_template) return kvl_fail(h->err, KVL_ENOMEM, "no memory for a template");
    memcpy(h->t->chat_template, s.s, s.len);
    return KVL_OK;
}

/* A text, or a list of {name, template}. */
static struct kvl_str find_template(const json_t *v)
{
    size_t i;
    const json_t *item, *found = json_array_get(v, 0);
    json_array_foreach(v, i, item)
    {
        if (kvl_hf_json_is(json_object_get(item, "name"), "default")) found = item;
    }
    return kvl_hf_json_str(found ? json_object_get(found, "template") : v);
}

static int load_template(struct tok_hf *h)
{
    const json_t *old = json_object_get(h->chat ? h->chat : h->config, "chat_template");
    struct kvl_str s = { h->jinja.data, h->jinja.len };
    if (s.len == 0) s = find_template(old);
    return s.len ? set_template(h, s) : KVL_OK;
}

/* ---- the whole ----------------------------------------------------------------------------- */

static void hash_rules(struct tok_hf *h)
{
    const struct kvl_tokenizer *t = h->t;
    const bool rule[] = { t->bpe,        t->nfc,          t->ignore_merges,
                          t->space_once, t->space_unless, t->cut_marks };
    XXH3_64bits_update(h->hash, rule, sizeof rule);
    XXH3_64bits_update(h->hash, t->flags, (size_t)t->n);
    kvl_tok_hash_vocab(t, h->hash);
}

static int load_json(struct tok_hf *h)
{
    KVL_TRY(kvl_tok_json_vocab(h));
    KVL_TRY(load_ids(h));
    h->file = h->main;
    hash_rules(h);
    KVL_TRY(h->t->bpe ? kvl_tok_bpe_texts(h->t, h->err) : kvl_tok_spm_texts(h->t, h->err));
    return kvl_tok_json_merges(h);
}

static int load_proto(struct tok_hf *h)
{
    float *score = NULL;
    h->file = "tokenizer.model";
    int rc = kvl_tok_proto_load(h, &score);
    if (rc == KVL_OK) rc = load_ids(h);
    if (rc == KVL_OK) {
        h->file = "tokenizer.model";
        hash_rules(h);
        rc = kvl_tok_spm_scores(h->t, score, "score of piece", h->hash, h->err);
    }
    kvl_free(score);
    return rc;
}

/* Rows of the embedding.  A file may add tokens to a model that were never trained: no text can have them. */
static int32_t model_rows(const json_t *model)
{
    static const char *const key[] = { "vocab_size", "padded_vocab_size" };
    const json_t *text = json_object_get(model, "text_config");
    for (size_t i = 0; i < 4; i++) {
        const json_t *v = json_object_get(i < 2 ? model : text, key[i % 2]);
        json_int_t n = json_is_integer(v) ? json_integer_value(v) : 0;
        if (n > 0 && n <= TOK_MAX_TOKENS) return (int32_t)n;
    }
    return INT32_MAX;
}

static int load(struct tok_hf *h)
{
    h->t->bos = h->t->eos = h->t->unk = -1;
    h->rows = model_rows(h->model);
    h->file = h->main;
    int rc = h->json ? load_json(h) : load_proto(h);
    if (rc == KVL_OK) rc = kvl_tok_load_special(h->t, h->err);
    if (rc != KVL_OK) return kvl_fail_at(h->err, rc, "%s/%s", h->dir, h->file);
    return load_template(h);
}

int kvl_tok_hf_create(struct tok_hf *h, struct kvl_tokenizer **out)
{
    h->t = kvl_alloc(1, sizeof *h->t);
    h->hash = XXH3_createState();
    int rc = h->t && h->hash ? KVL_OK : kvl_fail(h->err, KVL_ENOMEM, "no memory for a tokenizer");
    if (rc == KVL_OK) {
        XXH3_64bits_reset(h->hash);
        rc = load(h);
    }
    if (rc == KVL_OK) {
        h->t->hash = XXH3_64bits_digest(h->hash);
        *out = h->t;
        h->t = NULL;
    }
    XXH3_freeState(h->hash);
    kvl_tokenizer_destroy(h->t);
    return rc;
}

static int read_gpt2(struct tok_hf *h)
{
    struct kvl_buf merges = { 0 };
    json_t *vocab = NULL;
    bool there = false;
    int rc = read_json(h, "vocab.json", 0, &vocab);
    if (rc == KVL_OK) rc = read_file(h, "merges.txt", &merges, &there);
    h->main = "vocab.json";
    if (rc == KVL_OK && vocab && there)
        rc = kvl_tok_gpt2_files(h, vocab, &merges);
    else if (rc == KVL_OK)
        rc = kvl_fail(h->err, KVL_EMODEL,
                      "%s: no tokenizer.json, no tokenizer.model, no vocab.json with merges.txt",
                      h->dir);
    json_decref(vocab);
    kvl_buf_free(&merges);
    return rc;
}

static int read_folder(struct tok_hf *h)
{
    bool proto, jinja;
    KVL_TRY(read_json(h, "tokenizer.json", 0, &h->json));
    KVL_TRY(read_json(h, "tokenizer_config.json", KVL_HF_JSON_DOUBLES, &h->config));
    KVL_TRY(read_json(h, "special_tokens_map.json", KVL_HF_JSON_DOUBLES, &h->map));
    KVL_TRY(read_json(h, "generation_config.json", KVL_HF_JSON_DOUBLES, &h->generation));
    KVL_TRY(read_json(h, "config.json", KVL_HF_JSON_DOUBLES, &h->model));
    KVL_TRY(read_json(h, "added_tokens.json", KVL_HF_JSON_DOUBLES, &h->added));
    KVL_TRY(read_json(h, "chat_template.json", KVL_HF_JSON_DOUBLES, &h->chat));
    KVL_TRY(read_file(h, "chat_template.jinja", &h->jinja, &jinja));
    KVL_TRY(read_file(h, "tokenizer.model", &h->proto, &proto));
    return h->json || proto ? KVL_OK : read_gpt2(h);
}

int kvl_tokenizer_from_hf(const char *dir, struct kvl_tokenizer **out, struct kvl_err *err)
{
    struct tok_hf h = { .dir = dir, .main = "tokenizer.json", .err = err };
    int rc = read_folder(&h);
    if (rc == KVL_OK) rc = kvl_tok_hf_create(&h, out);
    json_t *const file[] = { h.json, h.config, h.map, h.generation, h.model, h.added, h.chat };
    for (size_t i = 0; i < sizeof file / sizeof file[0]; i++) json_decref(file[i]);
    kvl_buf_free(&h.proto);
    kvl_buf_free(&h.jinja);
    return rc;
}
