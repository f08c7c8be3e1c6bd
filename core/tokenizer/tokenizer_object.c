/* A tokenizer as an object: what it says of itself, and its end. */
#include "tokenizer_impl.h"

#include <stdlib.h>

void kvl_tokenizer_destroy(struct kvl_tokenizer *t)
{
    if (!t) return;
    for (int32_t i = 0; i < t->n_patterns; i++) pcre2_code_free(t->pattern[i]);
    kvl_free(t->text.data);
    kvl_free(t->text.at);
    kvl_free(t->plain.data);
    kvl_free(t->plain.at);
    kvl_free(t->type);
    kvl_free(t->ends);
    kvl_free(t->slot);
    kvl_free(t->special);
    kvl_free(t->flags);
    kvl_free(t->chat_template);
    kvl_free(t->rank);
    kvl_free(t->merge);
    kvl_free(t);
}

void kvl_tokenizer_rows(struct kvl_tokenizer *t, int32_t rows)
{
    t->rows = rows;
}

int32_t kvl_tokenizer_size(const struct kvl_tokenizer *t)
{
    return t->n;
}

int32_t kvl_tokenizer_bos(const struct kvl_tokenizer *t)
{
    return t->bos;
}

int32_t kvl_tokenizer_eos(const struct kvl_tokenizer *t)
{
    return t->eos;
}

bool kvl_tokenizer_ends(const struct kvl_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n && t->ends[id];
}

/* A character that says nothing by itself: ASCII, general punctuation, the marks of Chinese and Japanese
 * and their wide forms. */
static bool is_punct(uint32_t c)
{
    static const uint32_t range[][2] = {
        { '\n', '\n' },     { '\r', '\r' },     { '!', '/' },       { ':', '@' },
        { '[', '`' },       { '{', '~' },       { 0xA1, 0xA1 },     { 0xAB, 0xAB },
        { 0xB7, 0xB7 },     { 0xBB, 0xBB },     { 0xBF, 0xBF },     { 0x2010, 0x205E },
        { 0x3001, 0x3003 }, { 0x3008, 0x3011 }, { 0xFF01, 0xFF0F }, { 0xFF1A, 0xFF20 },
    };
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        if (c >= range[i][0] && c <= range[i][1]) return true;
    return false;
}

bool kvl_tokenizer_punct(const struct kvl_tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->n || t->type[id] == TOK_CONTROL || t->type[id] == TOK_UNKNOWN)
        return false;
    struct kvl_str s = kvl_tok_string(&t->plain, id);
    bool any = false;
    for (size_t i = 0, len; i < s.len; i += len) {
        len = kvl_utf8_len(s.s + i, s.len - i);
        if (len == 0) return false;
        bool punct = is_punct(kvl_utf8_value(s.s + i, len));
        if (!punct && s.s[i] != ' ' && s.s[i] != '\t') return false;
        any = any || punct;
    }
    return any;
}

bool kvl_tokenizer_special(const struct kvl_tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->n) return false;
    if (t->type[id] == TOK_CONTROL || t->type[id] == TOK_UNKNOWN) return true;
    if (t->type[id] != TOK_USER || kvl_tokenizer_punct(t, id)) return false;
    struct kvl_str s = kvl_tok_string(&t->plain, id);
    for (size_t i = 0; i < s.len; i++)
        if (s.s[i] != ' ' && s.s[i] != '\t') return true;
    return false;
}

uint64_t kvl_tokenizer_hash(const struct kvl_tokenizer *t)
{
    return t->hash;
}

const char *kvl_tokenizer_model(const struct kvl_tokenizer *t)
{
    return t->kind;
}

const char *kvl_tokenizer_template(const struct kvl_tokenizer *t)
{
    return t->chat_template;
}
