/* `gpt2`: byte-level BPE.  A fragment is cut into pieces by the published pre-tokenizer patterns,
 * and the bytes of a piece are merged by the ranks of the file.
 *
 * Patterns are data, run by PCRE2 as published but for \s, which is written out as the White_Space
 * property (PCRE2's own \s also holds U+180E).  (?i:'s) folds case as Unicode does, so that it
 * matches U+017F too, like the engines the patterns were written for.  Bytes that are not UTF-8
 * match no pattern: such a stretch is a piece of its own. */
#include "tokenizer_impl.h"

#include <string.h>

/* ---- pre-tokenizers ------------------------------------------------------------------------ */

#define WS     "\\t-\\r\\x{85}\\p{Z}" /* White_Space, inside a class */
#define BREAKS "[" WS "]+(?![^" WS "])"
#define GPT2   "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" BREAKS
#define LLAMA3(digits)                                                                             \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" WS                \
    "\\p{L}\\p{N}]+[\\r\\n]*|[" WS "]*[\\r\\n]+|" BREAKS "|[" WS "]+"
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define TEKKEN                                                                                     \
    "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+|[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]+[" LOWER     \
    "]*|\\p{N}| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|[" WS "]*[\\r\\n]+|" BREAKS "|[" WS "]+"

static const char *const pat_gpt2[TOK_MAX_PATTERNS] = { GPT2 };
static const char *const pat_digits[TOK_MAX_PATTERNS] = { "\\p{N}", GPT2 };
static const char *const pat_llama3[TOK_MAX_PATTERNS] = { LLAMA3("\\p{N}{1,3}") };
static const char *const pat_qwen2[TOK_MAX_PATTERNS] = { LLAMA3("\\p{N}") };
static const char *const pat_tekken[TOK_MAX_PATTERNS] = { TEKKEN };
static const char *const pat_default[TOK_MAX_PATTERNS] = { "[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2,
                                                           "\\p{N}+", "[0-9][0-9][0-9]" };

/* One row per value of tokenizer.ggml.pre.  Patterns are applied one after the other to the pieces
 * so far. */
struct pre_row {
    const char *tag;
    const char *const *pattern;
    bool ignore_merges, add_bos;
};

static const struct pre_row pre_rows[] = {
    { "default", pat_default, false, false },
    { "gpt-2", pat_gpt2, false, false },
    { "mpt", pat_gpt2, false, false },
    { "olmo", pat_gpt2, false, false },
    { "roberta-bpe", pat_gpt2, false, false },
    { "phi-2", pat_gpt2, false, false },
    { "exaone4", pat_gpt2, false, false },
    { "smollm", pat_digits, false, false },
    { "starcoder", pat_digits, false, false },
    { "refact", pat_digits, false, false },
    { "command-r", pat_digits, false, false },
    { "codeshell", pat_digits, false, false },
    { "exaone", pat_digits, false, false },
    { "llama3", pat_llama3, true, true },
    { "llama-v3", pat_llama3, true, true },
    { "llama-bpe", pat_llama3, true, true },
    { "falcon3", pat_llama3, true, true },
    { "smaug-bpe", pat_llama3, false, false },
    { "dbrx", pat_llama3, false, false },
    { "qwen2", pat_qwen2, false, false },
    { "deepseek-r1-qwen", pat_qwen2, false, false },
    { "megrez", pat_qwen2, false, false },
    { "stablelm2", pat_qwen2, false, false },
    { "tekken", pat_tekken, true, true },
};
enum { N_PRE_ROWS = sizeof pre_rows / sizeof pre_rows[0] };

static int unknown_pre(struct kvl_str tag, struct kvl_err *err)
{
    const char *name[N_PRE_ROWS];
    char shown[64] = { 0 };
    for (size_t i = 0; i < N_PRE_ROWS; i++) name[i] = pre_rows[i].tag;
    for (size_t i = 0; i < tag.len && i + 1 < sizeof shown; i++)
        shown[i] = tag.s[i] < 0x20 || tag.s[i] > 0x7e ? '?' : tag.s[i];
    const char *near = kvl_nearest(shown, name, N_PRE_ROWS);
    return kvl_fail(err, KVL_EMODEL,
                    "tokenizer.ggml.pre is \"%s\", which is not known%s%s; known are gpt-2, "
                    "llama-bpe, qwen2, smollm, tekken and others",
                    shown, near ? "; the nearest is " : "", near ? near : "");
}

static int find_pre(const struct kvl_gguf *file, const struct pre_row **out, struct kvl_err *err)
{
    static const char key[] = "tokenizer.ggml.pre";
    struct kvl_str tag = { "default", 7 };
    if (kvl_gguf_has(file, key)) KVL_TRY(kvl_gguf_str(file, key, &tag, err));
    for (size_t i = 0; i < N_PRE_ROWS; i++) {
        *out = &pre_rows[i];
        if (strlen((*out)->tag) == tag.len && memcmp((*out)->tag, tag.s, tag.len) == 0)
            return KVL_OK;
    }
    return unknown_pre(tag, err);
}

static int compile(struct kvl_tokenizer *t, const struct pre_row *row, struct kvl_err *err)
{
    for (int i = 0; i < TOK_MAX_PATTERNS && row->pattern[i]; i++) {
        int code;
        size_t at;
        pcre2_code *re = pcre2_compile((PCRE2_SPTR)row->pattern[i], PCRE2_ZERO_TERMINATED,
                                       PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
        if (!re)
            return kvl_fail(err, KVL_EINTERNAL, "pattern %d of \"%s\": PCRE2 error %d at %zu", i,
                            row->tag, code, at);
        t->pattern[t->n_patterns++] = re;
        (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE); /* without it matching is only slower */
    }
    return KVL_OK;
}

/* ---- loading ------------------------------------------------------------------------------- */

enum { N_VISIBLE = 0x144 }; /* characters below this may stand for bytes */

/* GPT-2's table: printable Latin-1 stands for itself, the other bytes for U+0100 and on. */
static bool keeps_itself(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

static size_t visible(unsigned char byte, char out[2])
{
    int c = byte;
    if (!keeps_itself(byte)) {
        c = 256;
        for (int b = 0; b < byte; b++) c += !keeps_itself(b);
    }
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

static void byte_of_visible(int16_t table[N_VISIBLE])
{
    int next = 256;
    for (int c = 0; c < N_VISIBLE; c++) table[c] = -1;
    for (int b = 0; b < 256; b++) table[keeps_itself(b) ? b : next++] = (int16_t)b;
}

/* Bytes behind visible characters; 0 when the text holds another character. */
static size_t to_bytes(const int16_t table[N_VISIBLE], struct kvl_str s, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < s.len; n++) {
        size_t len = kvl_utf8_len(s.s + i, s.len - i);
        if (len != 1 && len != 2) return 0;
        int c = (unsigned char)s.s[i];
        if (len == 2) c = (c & 0x1f) << 6 | (s.s[i + 1] & 0x3f);
        if (c >= N_VISIBLE || table[c] < 0) return 0;
        out[n] = (char)table[c];
        i += len;
    }
    return n;
}

static int load_plain(struct kvl_tokenizer *t, struct kvl_err *err)
{
    int16_t table[N_VISIBLE];
    byte_of_visible(table);
    if (kvl_tok_strings_init(&t->plain, t->n, t->text.at[t->n]) != KVL_OK)
        return kvl_fail(err, KVL_ENOMEM, "no memory for %d tokens", t->n);
    for (int32_t id = 0; id < t->n; id++) {
        size_t at = t->plain.at[id], n = 0;
        struct kvl_str s = kvl_tok_string(&t->text, id);
        bool literal = t->type[id] != TOK_NORMAL && t->type[id] != TOK_UNUSED;
        if (!literal) n = to_bytes(table, s, t->plain.data + at);
        if (n == 0) memcpy(t->plain.data + at, s.s, n = s.len);
        t->plain.at[id + 1] = at + n;
    }
    for (int b = 0; b < 256; b++) {
        char text[2];
        t->byte_id[b] = kvl_tok_find_text(t, text, visible((unsigned char)b, text));
    }
    return KVL_OK;
}

static struct tok_merge *merge_slot(const struct kvl_tokenizer *t, int32_t a, int32_t b)
{
    uint64_t pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
    size_t i = (size_t)XXH3_64bits(&pair, sizeof pair) & t->merge_mask;
    for (;; i = (i + 1) & t->merge_mask) {
        struct tok_merge *m = &t->merge[i];
        if (m->rank1 == 0 || m->pair == pair) return m;
    }
}

/* "A B": both and their concatenation must be tokens. */
static int add_merge(struct kvl_tokenizer *t, struct kvl_str s, uint32_t rank, struct kvl_buf *both,
                     struct kvl_err *err)
{
    const char *gap = s.len > 2 ? memchr(s.s + 1, ' ', s.len - 1) : NULL;
    size_t left = gap ? (size_t)(gap - s.s) : 0;
    if (!gap || left + 1 == s.len)
        return kvl_fail(err, KVL_EMODEL, "merge %u of tokenizer.ggml.merges is not two texts",
                        rank);
    both->len = 0;
    if (kvl_buf_add(both, s.s, left) != KVL_OK ||
        kvl_buf_add(both, gap + 1, s.len - left - 1) != KVL_OK)
        return kvl_fail(err, KVL_ENOMEM, "no memory for merge %u", rank);
    int32_t a = kvl_tok_find(t, s.s, left), b = kvl_tok_find(t, gap + 1, s.len - left - 1);
    int32_t ab = kvl_tok_find(t, both->data, both->len);
    if (a < 0 || b < 0 || ab < 0)
        return kvl_fail(err, KVL_EMODEL,
                        "merge %u of tokenizer.ggml.merges: %s is not in the vocabulary", rank,
                        a < 0   ? "its left part"
                        : b < 0 ? "its right part"
                                : "its result");
    struct tok_merge *m = merge_slot(t, a, b);
    if (m->rank1) return KVL_OK; /* the first of two equal merges counts */
    *m = (struct tok_merge){ (uint64_t)(uint32_t)a << 32 | (uint32_t)b, rank + 1, ab };
    return KVL_OK;
}

static int load_merges(struct kvl_tokenizer *t, const struct kvl_gguf *file, XXH3_state_t *hash,
                       struct kvl_err *err)
{
    struct kvl_str *s;
    struct kvl_buf both = { 0 };
    int64_t n;
    size_t cap = 16;
    KVL_TRY(kvl_gguf_arr_str(file, "tokenizer.ggml.merges", &s, &n, err));
    while (cap < 2 * (size_t)n) cap *= 2;
    t->merge = kvl_alloc(cap, sizeof *t->merge);
    t->merge_mask = cap - 1;
    int rc =
        t->merge ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "no memory for %lld merges", (long long)n);
    for (int64_t i = 0; rc == KVL_OK && i < n; i++) {
        rc = add_merge(t, s[i], (uint32_t)i, &both, err);
        XXH3_64bits_update(hash, s[i].s, s[i].len);
        XXH3_64bits_update(hash, "\n", 1);
    }
    kvl_buf_free(&both);
    kvl_free(s);
    return rc;
}

int kvl_tok_bpe_load(struct kvl_tokenizer *t, const struct kvl_gguf *file, XXH3_state_t *hash,
                     struct kvl_err *err)
{
    const struct pre_row *row;
    KVL_TRY(find_pre(file, &row, err));
    t->ignore_merges = row->ignore_merges;
    if (!kvl_gguf_has(file, "tokenizer.ggml.add_bos_token")) t->add_bos = row->add_bos;
    XXH3_64bits_update(hash, &row->ignore_merges, sizeof row->ignore_merges);
    for (int i = 0; i < TOK_MAX_PATTERNS && row->pattern[i]; i++)
        XXH3_64bits_update(hash, row->pattern[i], strlen(row->pattern[i]) + 1);
    KVL_TRY(compile(t, row, err));
    KVL_TRY(load_plain(t, err));
    return load_merges(t, file, hash, err);
}

/* ---- encoding ------------------------------------------------------------------------------ */

static bool bpe_pair(const struct tok_encode *e, const struct tok_sym *l, const struct tok_sym *r,
                     uint32_t *rank, int32_t *id)
{
    if (l->id < 0 || r->id < 0) return false;
    const struct tok_merge *m = merge_slot(e->t, l->id, r->id);
    if (m->rank1 == 0) return false;
    *rank = m->rank1 - 1;
    *id = m->id;
    return true;
}

/* The token that is the whole piece, or -1. */
static int whole_piece(struct tok_encode *e, size_t begin, size_t len, int32_t *id)
{
    char text[2];
    *id = -1;
    if (!e->t->ignore_merges || len > e->t->max_len) return KVL_OK;
    e->scratch.len = 0;
    for (size_t i = 0; i < len; i++) {
        size_t n = visible((unsigned char)e->text[begin + i], text);
        if (kvl_buf_add(&e->scratch, text, n) != KVL_OK)
            return kvl_fail(e->err, KVL_ENOMEM, "no memory to tokenise %zu bytes", e->len);
    }
    *id = kvl_tok_find_text(e->t, e->scratch.data, e->scratch.len);
    return KVL_OK;
}

static int merge_piece(struct tok_encode *e, size_t begin, size_t len)
{
    int32_t whole;
    KVL_TRY(whole_piece(e, begin, len, &whole));
    if (whole >= 0) return kvl_tok_push(e, begin, whole);
    e->n_sym = 0;
    e->chunk = e->text;
    for (size_t i = begin; i < begin + len; i++)
        KVL_TRY(kvl_tok_symbol(e, i, 1, i, e->t->byte_id[(unsigned char)e->text[i]]));
    KVL_TRY(kvl_tok_merge_all(e, bpe_pair));
    for (int32_t i = 0; i >= 0; i = e->sym[i].next) {
        const struct tok_sym *s = &e->sym[i];
        if (s->id >= 0)
            KVL_TRY(kvl_tok_push(e, s->raw, s->id));
        else
            KVL_TRY(kvl_tok_fallback(e, e->text + s->pos, s->len, s->raw));
    }
    return KVL_OK;
}

static int match(struct tok_encode *e, const pcre2_code *re, const char *s, size_t len, size_t from)
{
    /* The text is known to be valid: checking again at every match would be quadratic. */
    int rc = pcre2_match(re, (PCRE2_SPTR)s, len, from, PCRE2_NO_UTF_CHECK, e->match, e->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(re, (PCRE2_SPTR)s, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, e->match,
                         e->limits);
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH) return rc;
    return kvl_fail(e->err, KVL_EINVAL, "pre-tokenizer pattern at offset %zu: PCRE2 error %d",
                    (size_t)(s - e->text) + from, rc);
}

/* Cuts a piece by each pattern of a NULL-terminated list; what no pattern matches is a piece too. */
static int split(struct tok_encode *e, pcre2_code *const *pattern, size_t begin, size_t len)
{
    if (len == 0) return KVL_OK;
    if (!*pattern) return merge_piece(e, begin, len);
    for (size_t done = 0; done < len;) {
        int rc = match(e, *pattern, e->text + begin, len, done);
        if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) return rc;
        size_t from = len, to = len;
        if (rc >= 0) {
            from = pcre2_get_ovector_pointer(e->match)[0];
            to = pcre2_get_ovector_pointer(e->match)[1];
        }
        KVL_TRY(split(e, pattern + 1, begin + done, from - done));
        KVL_TRY(split(e, pattern + 1, begin + from, to - from));
        done = to;
    }
    return KVL_OK;
}

/* Bytes from `begin` that are all valid UTF-8, or all not. */
static size_t stretch(const char *s, size_t len, bool *valid)
{
    size_t n = 0;
    *valid = kvl_utf8_len(s, len) > 0;
    while (n < len) {
        size_t c = kvl_utf8_len(s + n, len - n);
        if ((c > 0) != *valid) break;
        n += c > 0 ? c : 1;
    }
    return n;
}

int kvl_tok_bpe_fragment(struct tok_encode *e, size_t begin, size_t len)
{
    for (size_t end = begin + len; begin < end;) {
        bool valid;
        size_t n = stretch(e->text + begin, end - begin, &valid);
        KVL_TRY(valid ? split(e, e->t->pattern, begin, n) : merge_piece(e, begin, n));
        begin += n;
    }
    return KVL_OK;
}
