/* Words, and texts as the scorers compare them. */
#include "words.h"

#include <stdlib.h>
#include <string.h>

int kvl_letters_of(const char *text, size_t len, struct kvl_letters *out)
{
    uint32_t *v = kvl_alloc(len + 1, sizeof *v);
    int32_t n = 0;
    if (!v || len > INT32_MAX) {
        kvl_free(v);
        return KVL_ENOMEM;
    }
    for (size_t at = 0, bytes; at < len; at += bytes)
        v[n++] = kvl_letter_at(text + at, len - at, &bytes);
    *out = (struct kvl_letters){ v, n };
    return KVL_OK;
}

int kvl_words_split(const char *text, size_t len, struct kvl_words *out)
{
    struct kvl_word *v = kvl_alloc(len / 2 + 1, sizeof *v);
    int32_t n = 0;
    bool in = false;
    if (!v || len > INT32_MAX) {
        kvl_free(v);
        return KVL_ENOMEM;
    }
    for (size_t at = 0, bytes; at < len; at += bytes) {
        bool space = kvl_letter_space(kvl_letter_at(text + at, len - at, &bytes));
        if (!space && !in) v[n++] = (struct kvl_word){ text + at, 0 };
        if (!space) v[n - 1].n += bytes;
        in = !space;
    }
    *out = (struct kvl_words){ v, n };
    return KVL_OK;
}

int kvl_words_cut(const char *text, size_t len, char at, struct kvl_words *out)
{
    struct kvl_word *v = kvl_alloc(len + 1, sizeof *v);
    int32_t n = 0;
    if (!v || len >= INT32_MAX) {
        kvl_free(v);
        return KVL_ENOMEM;
    }
    v[n++].s = text;
    for (size_t i = 0; i < len; i++)
        if (text[i] == at)
            v[n++].s = text + i + 1;
        else
            v[n - 1].n++;
    *out = (struct kvl_words){ v, n };
    return KVL_OK;
}

int kvl_words_letters(const char *text, size_t len, struct kvl_words *out)
{
    struct kvl_word *v = kvl_alloc(len + 1, sizeof *v);
    int32_t n = 0;
    if (!v || len > INT32_MAX) {
        kvl_free(v);
        return KVL_ENOMEM;
    }
    for (size_t at = 0, bytes; at < len; at += bytes) {
        (void)kvl_letter_at(text + at, len - at, &bytes);
        v[n++] = (struct kvl_word){ text + at, bytes };
    }
    *out = (struct kvl_words){ v, n };
    return KVL_OK;
}

bool kvl_word_same(const struct kvl_word *a, const struct kvl_word *b)
{
    return a->n == b->n && memcmp(a->s, b->s, a->n) == 0;
}

int kvl_word_order(const void *a, const void *b)
{
    const struct kvl_word *x = a, *y = b;
    int order = memcmp(x->s, y->s, KVL_MIN(x->n, y->n));
    return order ? order : (x->n > y->n) - (x->n < y->n);
}

/* ---- texts ------------------------------------------------------------------------------------- */

/* Whether a capital sigma is the last letter of its word: a letter stands before it and none behind, what is between
 * counting for nothing. */
static bool sigma_ends(bool cased, const char *behind, size_t len)
{
    size_t bytes;
    for (size_t at = 0; cased && at < len; at += bytes) {
        uint32_t c = kvl_letter_at(behind + at, len - at, &bytes);
        if (!kvl_letter_ignorable(c)) return !kvl_letter_cased(c);
    }
    return cased;
}

/* The letters of a text that `keep` takes, in lower case if `lower`. */
static int text_keep(const char *text, bool (*keep)(uint32_t), bool lower, struct kvl_buf *out)
{
    size_t len = strlen(text), bytes;
    bool cased = false; /* the last letter is one of two cases */
    KVL_TRY(kvl_buf_adds(out, ""));
    for (size_t at = 0; at < len; at += bytes) {
        uint32_t c = kvl_letter_at(text + at, len - at, &bytes), low = c;
        if (lower) low = kvl_letter_lower(c);
        if (lower && c == 0x3a3 && sigma_ends(cased, text + at + bytes, len - at - bytes))
            low = 0x3c2;
        if (lower && !kvl_letter_ignorable(c)) cased = kvl_letter_cased(c);
        if (keep && !keep(c)) continue;
        KVL_TRY(kvl_letter_add(out, low));
        if (lower && c == 0x130) KVL_TRY(kvl_letter_add(out, 0x307));
    }
    return KVL_OK;
}

int kvl_text_lower(const char *text, struct kvl_buf *out)
{
    return text_keep(text, NULL, true, out);
}

static bool keep_no_punct(uint32_t c)
{
    return !kvl_letter_punct(c);
}

static bool squad_article(const char *s, size_t n)
{
    return (n == 1 && *s == 'a') || (n == 2 && memcmp(s, "an", 2) == 0) ||
           (n == 3 && memcmp(s, "the", 3) == 0);
}

/* Articles become a space wherever they are a word of their own, which a dash in a word ends, too. */
static int squad_articles(const char *text, size_t len, struct kvl_buf *out)
{
    size_t bytes, begin = 0;
    for (size_t at = 0; at <= len; at += bytes) {
        bytes = 1;
        if (at < len && kvl_letter_word(kvl_letter_at(text + at, len - at, &bytes))) continue;
        if (squad_article(text + begin, at - begin))
            KVL_TRY(kvl_buf_adds(out, " "));
        else
            KVL_TRY(kvl_buf_add(out, text + begin, at - begin));
        if (at < len) KVL_TRY(kvl_buf_add(out, text + at, bytes));
        begin = at + bytes;
    }
    return KVL_OK;
}

static int squad_join(const struct kvl_buf *text, struct kvl_buf *out)
{
    struct kvl_words words = { 0 };
    int rc = kvl_words_split(text->data, text->len, &words);
    if (rc == KVL_OK) rc = kvl_buf_adds(out, "");
    for (int32_t i = 0; i < words.n && rc == KVL_OK; i++) {
        if (i) rc = kvl_buf_adds(out, " ");
        if (rc == KVL_OK) rc = kvl_buf_add(out, words.v[i].s, words.v[i].n);
    }
    kvl_free(words.v);
    return rc;
}

int kvl_text_squad(const char *text, struct kvl_buf *out)
{
    struct kvl_buf plain = { 0 }, bare = { 0 };
    int rc = text_keep(text, keep_no_punct, true, &plain);
    if (rc == KVL_OK) rc = kvl_buf_adds(&bare, "");
    if (rc == KVL_OK) rc = squad_articles(plain.data, plain.len, &bare);
    if (rc == KVL_OK) rc = squad_join(&bare, out);
    kvl_buf_free(&plain);
    kvl_buf_free(&bare);
    return rc;
}

/* Chinese punctuation as the benchmarks list it: the opening of a title is not there. */
static bool keep_bare(uint32_t c)
{
    static const uint32_t range[][2] = {
        { 0x2013, 0x2014 }, { 0x2018, 0x2019 }, { 0x201b, 0x201f }, { 0x2026, 0x2027 },
        { 0x3001, 0x3003 }, { 0x300b, 0x3011 }, { 0x3014, 0x301f }, { 0x3030, 0x3030 },
        { 0x303e, 0x303f }, { 0xfe4f, 0xfe4f }, { 0xff01, 0xff0d }, { 0xff0f, 0xff0f },
        { 0xff1a, 0xff20 }, { 0xff3b, 0xff40 }, { 0xff5b, 0xff64 },
    };
    if (kvl_letter_punct(c)) return false;
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        if (c >= range[i][0] && c <= range[i][1]) return false;
    return true;
}

static bool keep_chinese(uint32_t c)
{
    return keep_bare(c) && !kvl_letter_space(c);
}

int kvl_text_chinese(const char *text, struct kvl_buf *out)
{
    return text_keep(text, keep_chinese, true, out);
}

int kvl_text_bare(const char *text, struct kvl_buf *out)
{
    return text_keep(text, keep_bare, false, out);
}

/* ---- F1 ------------------------------------------------------------------------------------------ */

static struct kvl_word *words_sorted(const struct kvl_words *w)
{
    struct kvl_word *v = kvl_alloc((size_t)w->n + 1, sizeof *v);
    if (v && w->n) memcpy(v, w->v, (size_t)w->n * sizeof *v);
    if (v && w->n) qsort(v, (size_t)w->n, sizeof *v, kvl_word_order);
    return v;
}

int kvl_words_f1(const struct kvl_words *a, const struct kvl_words *b, double *out)
{
    struct kvl_word *x = words_sorted(a), *y = words_sorted(b);
    int32_t same = 0;
    int rc = x && y ? KVL_OK : KVL_ENOMEM;
    for (int32_t i = 0, j = 0; rc == KVL_OK && i < a->n && j < b->n;) {
        int order = kvl_word_order(&x[i], &y[j]);
        same += order == 0;
        i += order <= 0;
        j += order >= 0;
    }
    if (rc == KVL_OK) {
        double p = (double)same / a->n, r = (double)same / b->n;
        *out = same ? 2.0 * p * r / (p + r) : 0.0;
    }
    kvl_free(x);
    kvl_free(y);
    return rc;
}
