/* Reads the vocabulary of a GGUF file: texts, types, special ids.  Nothing is believed: counts and
 * element types of arrays, ids, byte tokens, empty and duplicate texts are checked here once. */
#include "tokenizer_impl.h"

#include <inttypes.h>
#include <string.h>

const char *kvl_tok_show(struct kvl_str s, char out[TOK_SHOWN + 4])
{
    size_t n = KVL_MIN(s.len, (size_t)TOK_SHOWN);
    for (size_t i = 0; i < n; i++) out[i] = s.s[i] < 0x20 || s.s[i] > 0x7e ? '?' : s.s[i];
    memcpy(out + n, s.len > n ? "..." : "", s.len > n ? 4 : 1);
    return out;
}

/* ---- strings ------------------------------------------------------------------------------- */

int kvl_tok_strings_init(struct tok_strings *s, int32_t n, size_t bytes)
{
    s->data = kvl_alloc(bytes, 1);
    s->at = kvl_alloc((size_t)n + 1, sizeof *s->at);
    return s->data && s->at ? KVL_OK : KVL_ENOMEM;
}

struct kvl_str kvl_tok_string(const struct tok_strings *s, int32_t i)
{
    return (struct kvl_str){ s->data + s->at[i], s->at[i + 1] - s->at[i] };
}

static uint32_t *find_slot(const struct kvl_tokenizer *t, const char *s, size_t len)
{
    size_t i = (size_t)XXH3_64bits(s, len) & t->slot_mask;
    for (;; i = (i + 1) & t->slot_mask) {
        uint32_t *slot = &t->slot[i];
        if (*slot == 0) return slot;
        struct kvl_str other = kvl_tok_string(&t->text, (int32_t)*slot - 1);
        if (other.len == len && memcmp(other.s, s, len) == 0) return slot;
    }
}

int32_t kvl_tok_find(const struct kvl_tokenizer *t, const char *s, size_t len)
{
    return (int32_t)*find_slot(t, s, len) - 1;
}

int32_t kvl_tok_find_text(const struct kvl_tokenizer *t, const char *s, size_t len)
{
    int32_t id = kvl_tok_find(t, s, len);
    if (id < 0) return -1;
    uint8_t type = t->type[id];
    return type == TOK_NORMAL || type == TOK_USER || type == TOK_UNUSED ? id : -1;
}

int kvl_tok_set_texts(struct kvl_tokenizer *t, const struct kvl_str *s, int32_t n,
                      struct kvl_err *err)
{
    size_t bytes = 0, cap = 16;
    t->n = n;
    for (int b = 0; b < 256; b++) t->byte_id[b] = -1;
    t->type = kvl_alloc((size_t)t->n, sizeof *t->type);
    t->ends = kvl_alloc((size_t)t->n, sizeof *t->ends);
    if (!t->type || !t->ends) return kvl_fail(err, KVL_ENOMEM, "no memory for %d tokens", t->n);
    for (int32_t i = 0; i < t->n; i++) bytes += s[i].len; /* all lie in one file: no overflow */
    while (cap < 2 * (size_t)t->n) cap *= 2;
    t->slot = kvl_alloc(cap, sizeof *t->slot);
    t->slot_mask = cap - 1;
    if (!t->slot || kvl_tok_strings_init(&t->text, t->n, bytes) != KVL_OK)
        return kvl_fail(err, KVL_ENOMEM, "no memory for %d tokens", t->n);
    for (int32_t i = 0; i < t->n; i++) {
        char shown[TOK_SHOWN + 4];
        if (s[i].len == 0) return kvl_fail(err, KVL_EMODEL, "token %d is empty", i);
        memcpy(t->text.data + t->text.at[i], s[i].s, s[i].len);
        t->text.at[i + 1] = t->text.at[i] + s[i].len;
        t->max_len = KVL_MAX(t->max_len, s[i].len);
        uint32_t *slot = find_slot(t, s[i].s, s[i].len);
        if (*slot)
            return kvl_fail(err, KVL_EMODEL, "tokens %d and %d are both \"%s\"", (int)*slot - 1, i,
                            kvl_tok_show(s[i], shown));
        *slot = (uint32_t)i + 1;
    }
    return KVL_OK;
}

static int load_texts(struct kvl_tokenizer *t, const struct kvl_gguf *file, struct kvl_err *err)
{
    static const char key[] = "tokenizer.ggml.tokens";
    struct kvl_str *s;
    int64_t n;
    KVL_TRY(kvl_gguf_arr_str(file, key, &s, &n, err));
    int rc = n >= 1 && n <= TOK_MAX_TOKENS
                 ? kvl_tok_set_texts(t, s, (int32_t)n, err)
                 : kvl_fail(err, KVL_EMODEL, "key \"%s\" has %" PRId64 " elements, want 1 to %d",
                            key, n, (int)TOK_MAX_TOKENS);
    kvl_free(s);
    return rc;
}

/* ---- types and ids ------------------------------------------------------------------------- */

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int kvl_tok_byte_value(struct kvl_str s)
{
    if (s.len != 6 || memcmp(s.s, "<0x", 3) != 0 || s.s[5] != '>') return -1;
    int hi = hex_digit(s.s[3]), lo = hex_digit(s.s[4]);
    return hi < 0 || lo < 0 ? -1 : hi * 16 + lo;
}

/* A file without types: byte tokens and the special ids are known by other means. */
static void guess_types(struct kvl_tokenizer *t)
{
    for (int32_t i = 0; i < t->n; i++) {
        bool byte = !t->bpe && kvl_tok_byte_value(kvl_tok_string(&t->text, i)) >= 0;
        t->type[i] = byte ? TOK_BYTE : TOK_NORMAL;
    }
    if (t->bos >= 0) t->type[t->bos] = TOK_CONTROL;
    if (t->eos >= 0) t->type[t->eos] = TOK_CONTROL;
    if (t->unk >= 0) t->type[t->unk] = TOK_UNKNOWN;
}

static int load_types(struct kvl_tokenizer *t, const struct kvl_gguf *file, struct kvl_err *err)
{
    static const char key[] = "tokenizer.ggml.token_type";
    enum kvl_gguf_type elem;
    const void *data;
    int64_t n;
    if (!kvl_gguf_has(file, key)) {
        guess_types(t);
        return KVL_OK;
    }
    KVL_TRY(kvl_gguf_arr(file, key, &elem, &n, &data, err));
    if ((elem != KVL_GGUF_I32 && elem != KVL_GGUF_U32) || n != t->n)
        return kvl_fail(err, KVL_EMODEL,
                        "key \"%s\" has %" PRId64 " elements of type %d, want %d of "
                        "i32",
                        key, n, (int)elem, t->n);
    for (int32_t i = 0; i < t->n; i++) {
        int32_t type;
        memcpy(&type, (const char *)data + (size_t)i * sizeof type, sizeof type);
        if (type < 0 || type > TOK_BYTE)
            return kvl_fail(err, KVL_EMODEL, "key \"%s\" element %d is %d, want 0 to 6", key, i,
                            type);
        t->type[i] = type == 0 ? TOK_NORMAL : (uint8_t)type;
    }
    return KVL_OK;
}

int kvl_tok_load_bytes(struct kvl_tokenizer *t, struct kvl_err *err)
{
    for (int32_t i = 0; i < t->n; i++) {
        if (t->type[i] != TOK_BYTE) continue;
        char shown[TOK_SHOWN + 4];
        struct kvl_str s = kvl_tok_string(&t->text, i);
        int byte = kvl_tok_byte_value(s);
        if (byte < 0)
            return kvl_fail(err, KVL_EMODEL, "byte token %d is \"%s\", want <0x00> to <0xFF>", i,
                            kvl_tok_show(s, shown));
        if (t->byte_id[byte] >= 0)
            return kvl_fail(err, KVL_EMODEL, "tokens %d and %d are both byte 0x%02x",
                            t->byte_id[byte], i, (unsigned)byte);
        t->byte_id[byte] = i;
    }
    return KVL_OK;
}

static int load_id(const struct kvl_tokenizer *t, const struct kvl_gguf *file, const char *key,
                   int32_t def, int32_t *out, struct kvl_err *err)
{
    int64_t v, d = def < t->n ? def : -1;
    KVL_TRY(kvl_gguf_i64(file, key, 0, t->n - 1, &d, &v, err));
    *out = (int32_t)v;
    return KVL_OK;
}

/* Texts that end a generation wherever they occur; the files seldom say so.  Some vocabularies have
 * the plainer ones as text (Gemma's </s> closes HTML's <s>): those count as control tokens only. */
struct end_name {
    const char *text;
    bool plain;
};

static const struct end_name end_names[] = {
    { "<|eot_id|>", false },
    { "<|im_end|>", false },
    { "<|end|>", false },
    { "<|eom_id|>", false },
    { "<end_of_turn>", false },
    { "<EOT>", true },
    { "_<EOT>", true },
    { "<|fim_pad|>", false },
    { "<|repo_name|>", false },
    { "<|endoftext|>", false },
    { "<|file_sep|>", false },
    { "</s>", true },
    { "<|end_of_text|>", false },
    { "<eos>", true },
    { "<|return|>", false },
    { "<|call|>", false },
    { "<|calls|>", false },
    { "<|flush|>", false },
    { "[EOS]", true },
    { "[EOT]", true },
    { "<end_of_utterance>", false },
    { "<|observation|>", false },
    { "<｜end▁of▁sentence｜>", false },
};

static bool ends_by_name(const struct kvl_tokenizer *t, const char *text)
{
    int32_t id = kvl_tok_find(t, text, strlen(text));
    return id >= 0 && t->ends[id];
}

void kvl_tok_name_ends(struct kvl_tokenizer *t)
{
    for (size_t i = 0; i < sizeof end_names / sizeof end_names[0]; i++) {
        const struct end_name *e = &end_names[i];
        int32_t id = kvl_tok_find(t, e->text, strlen(e->text));
        if (id < 0 || (e->plain && t->type[id] != TOK_CONTROL)) continue;
        /* Files that call it text would let a text end the generation. */
        t->type[id] = TOK_CONTROL;
        t->ends[id] = true;
    }
    /* gpt-oss and Solar close every message with <|end|>, and a turn with these. */
    bool harmony = ends_by_name(t, "<|return|>") && ends_by_name(t, "<|call|>");
    bool solar = ends_by_name(t, "<|flush|>") && ends_by_name(t, "<|calls|>");
    int32_t end = kvl_tok_find(t, "<|end|>", 7);
    if (end >= 0 && end != t->eos && (harmony || solar)) t->ends[end] = false;
}

static int load_ends(struct kvl_tokenizer *t, const struct kvl_gguf *file, struct kvl_err *err)
{
    static const char *const key[] = {
        "tokenizer.ggml.eot_token_id",     "tokenizer.ggml.eom_token_id",
        "tokenizer.ggml.fim_pad_token_id", "tokenizer.ggml.fim_rep_token_id",
        "tokenizer.ggml.fim_sep_token_id",
    };
    if (t->eos >= 0) t->ends[t->eos] = true;
    for (size_t i = 0; i < sizeof key / sizeof key[0]; i++) {
        int32_t id;
        KVL_TRY(load_id(t, file, key[i], -1, &id, err));
        if (id >= 0) t->ends[id] = true;
    }
    kvl_tok_name_ends(t);
    return KVL_OK;
}

static int load_ids(struct kvl_tokenizer *t, const struct kvl_gguf *file, struct kvl_err *err)
{
    int32_t bos = t->bpe ? -1 : 1, eos = t->bpe ? -1 : 2, unk = t->bpe ? -1 : 0;
    KVL_TRY(load_id(t, file, "tokenizer.ggml.bos_token_id", bos, &t->bos, err));
    KVL_TRY(load_id(t, file, "tokenizer.ggml.eos_token_id", eos, &t->eos, err));
    KVL_TRY(load_id(t, file, "tokenizer.ggml.unknown_token_id", unk, &t->unk, err));
    /* t->add_bos is the pre-tokenizer's default so far. */
    KVL_TRY(kvl_gguf_bool(file, "tokenizer.ggml.add_bos_token", t->add_bos, &t->add_bos, err));
    KVL_TRY(kvl_gguf_bool(file, "tokenizer.ggml.add_eos_token", false, &t->add_eos, err));
    return kvl_gguf_bool(file, "tokenizer.ggml.add_space_prefix", !t->bpe, &t->add_space, err);
}

void kvl_tok_hash_vocab(const struct kvl_tokenizer *t, XXH3_state_t *hash)
{
    const int32_t number[] = { t->bpe, t->n,       t->bos,     t->eos,
                               t->unk, t->add_bos, t->add_eos, t->add_space };
    XXH3_64bits_update(hash, number, sizeof number);
    XXH3_64bits_update(hash, t->text.data, t->text.at[t->n]);
    XXH3_64bits_update(hash, t->text.at, ((size_t)t->n + 1) * sizeof *t->text.at);
    XXH3_64bits_update(hash, t->type, (size_t)t->n);
}

int kvl_tok_load_vocab(struct kvl_tokenizer *t, const struct kvl_gguf *file, XXH3_state_t *hash,
                       struct kvl_err *err)
{
    KVL_TRY(load_texts(t, file, err));
    KVL_TRY(load_ids(t, file, err));
    KVL_TRY(load_types(t, file, err));
    if (!t->bpe) KVL_TRY(kvl_tok_load_bytes(t, err));
    KVL_TRY(load_ends(t, file, err));
    kvl_tok_hash_vocab(t, hash);
    return KVL_OK;
}
