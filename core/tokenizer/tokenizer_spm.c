/* `llama`: SentencePiece-like bigram merging.  Spaces become U+2581, characters are merged pair by
 * pair, the pair whose text has the best score first; a character outside the vocabulary becomes
 * its bytes. */
#include "tokenizer_impl.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char space_mark[] = "\xe2\x96\x81";
enum { MARK_LEN = 3, NO_SPACE = -2 /* a space, and U+2581 is no token */ };

/* ---- loading ------------------------------------------------------------------------------- */

struct scored {
    float score;
    int32_t id;
};

static int by_score(const void *a, const void *b)
{
    const struct scored *x = a, *y = b;
    if (x->score < y->score) return 1;
    if (x->score > y->score) return -1;
    return (x->id > y->id) - (x->id < y->id);
}

static void rank_scores(struct kvl_tokenizer *t, struct scored *s)
{
    uint32_t rank = 0;
    qsort(s, (size_t)t->n, sizeof *s, by_score);
    for (int32_t i = 0; i < t->n; i++) {
        if (i > 0 && s[i].score < s[i - 1].score) rank++;
        t->rank[s[i].id] = rank;
    }
}

/* `data` [t->n] floats, not aligned. */
static int load_scores(struct kvl_tokenizer *t, const void *data, const char *key,
                       struct kvl_err *err)
{
    struct scored *s = kvl_alloc((size_t)t->n, sizeof *s);
    t->rank = kvl_alloc((size_t)t->n, sizeof *t->rank);
    int rc = s && t->rank ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "no memory for %d scores", t->n);
    for (int32_t i = 0; rc == KVL_OK && i < t->n; i++) {
        memcpy(&s[i].score, (const char *)data + (size_t)i * sizeof s[i].score, sizeof s[i].score);
        s[i].id = i;
        if (!isfinite(s[i].score))
            rc = kvl_fail(err, KVL_EMODEL, "%s element %d is not finite", key, i);
    }
    if (rc == KVL_OK) rank_scores(t, s);
    kvl_free(s);
    return rc;
}

/* True when no token has a space after something else, so that merges never cross a word's start. */
static bool words_are_apart(const struct kvl_tokenizer *t)
{
    for (int32_t id = 0; id < t->n; id++) {
        struct kvl_str s = kvl_tok_string(&t->text, id);
        size_t i = 0;
        while (i + MARK_LEN <= s.len && memcmp(s.s + i, space_mark, MARK_LEN) == 0) i += MARK_LEN;
        if (i < s.len && memmem(s.s + i, s.len - i, space_mark, MARK_LEN)) return false;
    }
    return true;
}

/* The bytes that a token stands for: a space for U+2581, the byte of a byte token, else the text. */
static size_t write_plain(const struct kvl_tokenizer *t, int32_t id, char *out)
{
    struct kvl_str s = kvl_tok_string(&t->text, id);
    size_t n = 0;
    if (t->type[id] == TOK_BYTE) {
        out[0] = (char)kvl_tok_byte_value(s);
        return 1;
    }
    /* A GGUF file has spaces in its added tokens, a tokenizer.json the marks. */
    bool marks = t->type[id] == TOK_NORMAL || (t->added && t->type[id] == TOK_USER);
    if (!marks) {
        memcpy(out, s.s, s.len);
        return s.len;
    }
    for (size_t i = 0; i < s.len;) {
        bool mark = s.len - i >= MARK_LEN && memcmp(s.s + i, space_mark, MARK_LEN) == 0;
        out[n++] = mark ? ' ' : s.s[i];
        i += mark ? MARK_LEN : 1;
    }
    return n;
}

static int load_plain(struct kvl_tokenizer *t, struct kvl_err *err)
{
    if (kvl_tok_strings_init(&t->plain, t->n, t->text.at[t->n]) != KVL_OK)
        return kvl_fail(err, KVL_ENOMEM, "no memory for %d tokens", t->n);
    size_t *at = t->plain.at;
    for (int32_t id = 0; id < t->n; id++)
        at[id + 1] = at[id] + write_plain(t, id, t->plain.data + at[id]);
    return KVL_OK;
}

int kvl_tok_spm_texts(struct kvl_tokenizer *t, struct kvl_err *err)
{
    KVL_TRY(load_plain(t, err));
    t->cut_words = words_are_apart(t);
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        if (t->byte_id[b] < 0) t->byte_id[b] = kvl_tok_find_text(t, &c, 1);
    }
    return KVL_OK;
}

int kvl_tok_spm_scores(struct kvl_tokenizer *t, const void *score, const char *key,
                       XXH3_state_t *hash, struct kvl_err *err)
{
    KVL_TRY(load_scores(t, score, key, err));
    XXH3_64bits_update(hash, t->rank, (size_t)t->n * sizeof *t->rank);
    return kvl_tok_spm_texts(t, err);
}

int kvl_tok_spm_load(struct kvl_tokenizer *t, const struct kvl_gguf *file, XXH3_state_t *hash,
                     struct kvl_err *err)
{
    static const char key[] = "tokenizer.ggml.scores";
    enum kvl_gguf_type elem;
    const void *data;
    int64_t n;
    if (!kvl_gguf_has(file, key)) { /* llama.cpp: all alike, so the leftmost pair is merged first */
        float *none = kvl_alloc((size_t)t->n, sizeof *none);
        if (!none) return kvl_fail(err, KVL_ENOMEM, "no memory for %d scores", t->n);
        int rc = kvl_tok_spm_scores(t, none, key, hash, err);
        kvl_free(none);
        return rc;
    }
    KVL_TRY(kvl_gguf_arr(file, key, &elem, &n, &data, err));
    if (elem != KVL_GGUF_F32 || n != t->n)
        return kvl_fail(err, KVL_EMODEL, "key \"%s\" has %lld elements of type %d, want %d of f32",
                        key, (long long)n, (int)elem, t->n);
    return kvl_tok_spm_scores(t, data, "key \"tokenizer.ggml.scores\"", hash, err);
}

/* ---- encoding ------------------------------------------------------------------------------ */

/* Any two neighbours merge when their text together is a token. */
static bool spm_pair(const struct tok_encode *e, const struct tok_sym *l, const struct tok_sym *r,
                     uint32_t *rank, int32_t *id)
{
    if ((size_t)l->len + r->len > e->t->max_len) return false;
    *id = kvl_tok_find_text(e->t, e->chunk + l->pos, (size_t)l->len + r->len);
    if (*id < 0) return false;
    *rank = e->t->rank[*id];
    return true;
}

/* Merges the symbols so far and starts afresh. */
static int flush(struct tok_encode *e)
{
    e->chunk = e->scratch.data;
    KVL_TRY(kvl_tok_merge_all(e, e->t->merge ? kvl_tok_bpe_pair : spm_pair));
    for (int32_t i = e->n_sym > 0 ? 0 : -1; i >= 0; i = e->sym[i].next) {
        const struct tok_sym *s = &e->sym[i];
        if (s->id >= 0)
            KVL_TRY(kvl_tok_push(e, s->raw, s->id));
        else if (s->id == NO_SPACE)
            KVL_TRY(kvl_tok_fallback(e, " ", 1, s->raw));
        else
            KVL_TRY(kvl_tok_fallback(e, e->chunk + s->pos, s->len, s->raw));
    }
    e->n_sym = 0;
    e->scratch.len = 0;
    return KVL_OK;
}

/* One character; `space` writes U+2581 instead. */
static int add_char(struct tok_encode *e, const char *s, size_t len, size_t raw, bool space)
{
    size_t pos = e->scratch.len;
    const char *text = space ? space_mark : s;
    size_t n = space ? (size_t)MARK_LEN : len;
    int32_t id = kvl_tok_find_text(e->t, text, n);
    if (id < 0 && space) id = NO_SPACE;
    if (kvl_buf_add(&e->scratch, text, n) != KVL_OK)
        return kvl_fail(e->err, KVL_ENOMEM, "no memory to tokenise %zu bytes", e->len);
    return kvl_tok_symbol(e, pos, n, raw, id);
}

static bool begins_with_space(const char *s, size_t len)
{
    return *s == ' ' || (len >= MARK_LEN && memcmp(s, space_mark, MARK_LEN) == 0);
}

int kvl_tok_spm_fragment(struct tok_encode *e, size_t begin, size_t len, bool space)
{
    const struct kvl_tokenizer *t = e->t;
    bool in_word = false; /* the last character was not a space */
    if (space && !(t->space_unless && begins_with_space(e->text + begin, len)))
        KVL_TRY(add_char(e, NULL, 0, begin, true));
    for (size_t i = begin; i < begin + len;) {
        const char *s = e->text + i;
        size_t n = KVL_MAX(kvl_utf8_len(s, begin + len - i), (size_t)1);
        bool mark = *s == ' ' || (n == MARK_LEN && memcmp(s, space_mark, MARK_LEN) == 0);
        if (mark && ((in_word && t->cut_words) || t->cut_marks)) KVL_TRY(flush(e));
        KVL_TRY(add_char(e, s, n, i, *s == ' '));
        in_word = !mark;
        i += n;
    }
    return flush(e);
}
