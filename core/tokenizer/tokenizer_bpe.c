/* `gpt2`: byte-level BPE.  A fragment is cut into pieces by the pre-tokenizer patterns, and the bytes
 * of a piece are merged by the ranks of the file.  Bytes that are not UTF-8 match no pattern: such a
 * stretch is a piece of its own. */
#include "tokenizer_impl.h"

#include <string.h>

/* ---- loading ------------------------------------------------------------------------------- */

enum { N_VISIBLE = 0x144 }; /* characters below this may stand for bytes */

/* GPT-2's table: printable Latin-1 stands for itself, the other bytes for U+0100 and on. */
static bool keeps_itself(int byte)
{
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

static size_t visible(unsigned char byte, char out[4])
{
    uint32_t c = byte;
    if (!keeps_itself(byte)) {
        c = 256;
        for (int b = 0; b < byte; b++) c += !keeps_itself(b);
    }
    return kvl_utf8_put(c, out);
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
        uint32_t c = kvl_utf8_value(s.s + i, len);
        if (c >= N_VISIBLE || table[c] < 0) return 0;
        out[n] = (char)table[c];
        i += len;
    }
    return n;
}

int kvl_tok_bpe_texts(struct kvl_tokenizer *t, struct kvl_err *err)
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
        char text[4];
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

/* Both texts and their concatenation must be tokens. */
static int add_merge(struct kvl_tokenizer *t, const struct kvl_str part[2], uint32_t rank,
                     const char *key, struct kvl_buf *both, struct kvl_err *err)
{
    both->len = 0;
    if (kvl_buf_add(both, part[0].s, part[0].len) != KVL_OK ||
        kvl_buf_add(both, part[1].s, part[1].len) != KVL_OK)
        return kvl_fail(err, KVL_ENOMEM, "no memory for merge %u", rank);
    int32_t a = kvl_tok_find(t, part[0].s, part[0].len);
    int32_t b = kvl_tok_find(t, part[1].s, part[1].len);
    int32_t ab = kvl_tok_find(t, both->data, both->len);
    if ((a < 0 || b < 0 || ab < 0) && t->cut) return KVL_OK;
    if (a < 0 || b < 0 || ab < 0)
        return kvl_fail(err, KVL_EMODEL, "merge %u of %s: %s is not in the vocabulary", rank, key,
                        a < 0   ? "its left part"
                        : b < 0 ? "its right part"
                                : "its result");
    struct tok_merge *m = merge_slot(t, a, b);
    if (m->rank1) return KVL_OK; /* the first of two equal merges counts */
    *m = (struct tok_merge){ (uint64_t)(uint32_t)a << 32 | (uint32_t)b, rank + 1, ab };
    return KVL_OK;
}

int kvl_tok_split_merge(struct kvl_str s, struct kvl_str part[2])
{
    const char *gap = s.len > 2 ? memchr(s.s + 1, ' ', s.len - 1) : NULL;
    size_t left = gap ? (size_t)(gap - s.s) : 0;
    if (!gap || left + 1 == s.len) return KVL_EMODEL;
    part[0] = (struct kvl_str){ s.s, left };
    part[1] = (struct kvl_str){ gap + 1, s.len - left - 1 };
    return KVL_OK;
}

int kvl_tok_set_merges(struct kvl_tokenizer *t, const struct kvl_str *part, int64_t n,
                       const char *key, XXH3_state_t *hash, struct kvl_err *err)
{
    struct kvl_buf both = { 0 };
    size_t cap = 16;
    while (cap < 2 * (size_t)n) cap *= 2;
    t->merge = kvl_alloc(cap, sizeof *t->merge);
    t->merge_mask = cap - 1;
    int rc =
        t->merge ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "no memory for %lld merges", (long long)n);
    for (int64_t i = 0; rc == KVL_OK && i < n; i++) {
        const struct kvl_str *p = &part[2 * i];
        rc = add_merge(t, p, (uint32_t)i, key, &both, err);
        XXH3_64bits_update(hash, p[0].s, p[0].len);
        XXH3_64bits_update(hash, " ", 1);
        XXH3_64bits_update(hash, p[1].s, p[1].len);
        XXH3_64bits_update(hash, "\n", 1);
    }
    kvl_buf_free(&both);
    return rc;
}

static int load_merges(struct kvl_tokenizer *t, const struct kvl_gguf *file, XXH3_state_t *hash,
                       struct kvl_err *err)
{
    static const char key[] = "tokenizer.ggml.merges";
    struct kvl_str *s, *part;
    int64_t n;
    int rc = KVL_OK;
    KVL_TRY(kvl_gguf_arr_str(file, key, &s, &n, err));
    part = kvl_alloc((size_t)n, 2 * sizeof *part);
    if (!part) rc = kvl_fail(err, KVL_ENOMEM, "no memory for %lld merges", (long long)n);
    for (int64_t i = 0; rc == KVL_OK && i < n; i++)
        if (kvl_tok_split_merge(s[i], &part[2 * i]) != KVL_OK)
            rc = kvl_fail(err, KVL_EMODEL, "merge %lld of %s is not two texts", (long long)i, key);
    if (rc == KVL_OK) rc = kvl_tok_set_merges(t, part, n, key, hash, err);
    kvl_free(part);
    kvl_free(s);
    return rc;
}

int kvl_tok_bpe_load(struct kvl_tokenizer *t, const struct kvl_gguf *file, XXH3_state_t *hash,
                     struct kvl_err *err)
{
    KVL_TRY(kvl_tok_pre_load(t, file, hash, err));
    KVL_TRY(kvl_tok_bpe_texts(t, err));
    return load_merges(t, file, hash, err);
}

/* ---- encoding ------------------------------------------------------------------------------ */

bool kvl_tok_bpe_pair(const struct tok_encode *e, const struct tok_sym *l, const struct tok_sym *r,
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
    char text[4];
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
    KVL_TRY(kvl_tok_merge_all(e, kvl_tok_bpe_pair));
    for (int32_t i = 0; i >= 0; i = e->sym[i].next) {
        const struct tok_sym *s = &e->sym[i];
        if (s->id >= 0)
            KVL_TRY(kvl_tok_push(e, s->raw, s->id));
        else
            KVL_TRY(kvl_tok_fallback(e, e->text + s->pos, s->len, s->raw));
    }
    return KVL_OK;
}

/* *found: whether it matches anywhere from there on. */
static int match(struct tok_encode *e, const pcre2_code *re, const char *s, size_t len, size_t from,
                 bool *found)
{
    /* The text is known to be valid: checking again at every match would be quadratic. */
    int rc = pcre2_match(re, (PCRE2_SPTR)s, len, from, PCRE2_NO_UTF_CHECK, e->match, e->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(re, (PCRE2_SPTR)s, len, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, e->match,
                         e->limits);
    *found = rc >= 0;
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH) return KVL_OK;
    size_t at = (size_t)(s - e->text) + from;
    if (rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_DEPTHLIMIT || rc == PCRE2_ERROR_HEAPLIMIT)
        return kvl_fail(e->err, KVL_EMODEL,
                        "the tokenizer's pattern takes too many steps at byte %zu of the text, "
                        "want one that goes through it a few times",
                        at);
    return kvl_fail(e->err, KVL_EINVAL, "pre-tokenizer pattern at offset %zu: PCRE2 error %d", at,
                    rc);
}

/* Cuts a piece by each pattern of a NULL-terminated list; what no pattern matches is a piece too, and
 * an empty match cuts where it stands. */
static int split(struct tok_encode *e, pcre2_code *const *pattern, size_t begin, size_t len)
{
    if (len == 0) return KVL_OK;
    if (!*pattern) return merge_piece(e, begin, len);
    for (size_t done = 0, at = 0; done < len;) {
        bool found = false;
        if (at < len) KVL_TRY(match(e, *pattern, e->text + begin, len, at, &found));
        size_t from = len, to = len;
        if (found) {
            from = pcre2_get_ovector_pointer(e->match)[0];
            to = pcre2_get_ovector_pointer(e->match)[1];
        }
        KVL_TRY(split(e, pattern + 1, begin + done, from - done));
        KVL_TRY(split(e, pattern + 1, begin + from, to - from));
        done = at = to;
        if (from == to && to < len) at += kvl_utf8_len(e->text + begin + to, len - to);
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
