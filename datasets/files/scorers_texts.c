/* Texts as the scorers take them, and the scorers that look for a text in another. */
#include "scoring.h"

#include "kvl/utf8.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

/* ---- texts --------------------------------------------------------------------------------------- */

struct kvl_word kvl_text_strip(const char *s)
{
    size_t len = strlen(s), begin = kvl_utf8_blanks(s, len);
    return (struct kvl_word){ s + begin, kvl_utf8_trimmed(s + begin, len - begin) };
}

/* A copy in which `marks` are spaces. */
int kvl_text_clean(const char *s, const char *marks, struct kvl_buf *out)
{
    struct kvl_word w = kvl_text_strip(s);
    KVL_TRY(kvl_buf_adds(out, ""));
    KVL_TRY(kvl_buf_add(out, w.s, w.n));
    for (char *c = out->data; *c; c++)
        if (strchr(marks, *c)) *c = ' ';
    return KVL_OK;
}

/* Runs of spaces become one. */
void kvl_text_squeeze(struct kvl_buf *b)
{
    size_t n = 0;
    for (size_t i = 0; i < b->len; i++)
        if (b->data[i] != ' ' || n == 0 || b->data[n - 1] != ' ') b->data[n++] = b->data[i];
    b->len = n;
    b->data[n] = '\0';
}

bool kvl_text_starts(const char *s, const char *with)
{
    return strncmp(s, with, strlen(with)) == 0;
}

/* Whether `s` holds `word`, as a word of its own if `whole`. */
bool kvl_text_has(const char *s, const char *word, bool whole)
{
    size_t n = strlen(word);
    for (const char *at = s; (at = strstr(at, word)) != NULL; at++) {
        bool before = at > s && isalnum((unsigned char)at[-1]) && isalnum((unsigned char)word[0]);
        bool behind = n && isalnum((unsigned char)at[n]) && isalnum((unsigned char)word[n - 1]);
        if (!whole || (!before && !behind)) return true;
        if (!*at) return false;
    }
    return false;
}

/* The same with upper and lower case alike. */
int kvl_text_has_any_case(const char *s, const char *word, bool whole, bool *out)
{
    struct kvl_buf a = { 0 }, b = { 0 };
    int rc = kvl_text_lower(s, &a);
    if (rc == KVL_OK) rc = kvl_text_lower(word, &b);
    if (rc == KVL_OK) *out = kvl_text_has(a.data, b.data, whole);
    kvl_buf_free(&a);
    kvl_buf_free(&b);
    return rc;
}

/* The best of all answers by a function of two texts. */
int kvl_score_best(const struct scoring *s,
                   int (*one)(const struct scoring *, const char *gold, double *), double *out)
{
    *out = 0.0;
    for (int32_t i = 0; i < s->gold->n; i++) {
        double v = 0.0;
        KVL_TRY(one(s, s->gold->answer[i], &v));
        *out = KVL_MAX(*out, v);
    }
    return KVL_OK;
}

/* ---- equal, contained ------------------------------------------------------------------------------ */

static int exact_one(const struct scoring *s, const char *gold, double *out)
{
    struct kvl_word a = kvl_text_strip(s->prediction), b = kvl_text_strip(gold);
    *out = kvl_word_same(&a, &b);
    return KVL_OK;
}

int kvl_score_exact(const struct scoring *s, double *out)
{
    return kvl_score_best(s, exact_one, out);
}

/* Strict: as a word of its own. */
int kvl_score_substring_one(const struct scoring *s, const char *gold, double *out)
{
    bool held = false;
    KVL_TRY(kvl_text_has_any_case(s->prediction, gold, s->strict, &held));
    *out = held;
    return KVL_OK;
}

int kvl_score_substring(const struct scoring *s, double *out)
{
    return kvl_score_best(s, kvl_score_substring_one, out);
}

static int in_upper_one(const struct scoring *s, const char *gold, double *out)
{
    struct kvl_buf text = { 0 }, want = { 0 };
    int rc = kvl_text_upper(s->prediction, &text);
    if (rc == KVL_OK) rc = kvl_text_upper(gold, &want);
    if (rc == KVL_OK) *out = kvl_text_has(text.data, want.data, false);
    kvl_buf_free(&text);
    kvl_buf_free(&want);
    return rc;
}

/* Official: both in upper case, where a sharp s is SS.  Strict as the others. */
int kvl_score_in_upper(const struct scoring *s, double *out)
{
    return kvl_score_best(s, s->strict ? kvl_score_substring_one : in_upper_one, out);
}

int kvl_score_all_substrings(const struct scoring *s, double *out)
{
    double sum = 0.0, v = 0.0;
    for (int32_t i = 0; i < s->gold->n; i++) {
        KVL_TRY(kvl_score_substring_one(s, s->gold->answer[i], &v));
        sum += v;
    }
    *out = sum / s->gold->n;
    return KVL_OK;
}

/* Official: rounded to two digits, half to even, answer by answer. */
int kvl_score_vt_rounded(const struct scoring *s, double *out)
{
    KVL_TRY(kvl_score_all_substrings(s, out));
    if (!s->strict) *out = rint(*out * 100.0) / 100.0;
    return KVL_OK;
}

static int kv_in_one(const struct scoring *s, const char *gold, double *out)
{
    *out = kvl_text_has(s->prediction, gold, s->strict);
    return KVL_OK;
}

int kvl_score_kv_in(const struct scoring *s, double *out)
{
    return kvl_score_best(s, kv_in_one, out);
}

/* Strict: whatever is no letter, digit or dash ends a word, so that "v;" is one. */
static int kv_words_one(const struct scoring *s, const char *gold, double *out)
{
    struct kvl_buf text = { 0 };
    struct kvl_words words = { 0 };
    struct kvl_word want = { gold, strlen(gold) };
    int rc = kvl_text_clean(s->prediction, "\n:\"'.,?!{}", &text);
    for (char *c = text.data; rc == KVL_OK && s->strict && *c; c++)
        if (!isalnum((unsigned char)*c) && *c != '-') *c = ' ';
    if (rc == KVL_OK) rc = kvl_words_split(text.data, text.len, &words);
    *out = 0.0;
    for (int32_t i = 0; i < words.n; i++)
        if (kvl_word_same(&words.v[i], &want)) *out = 1.0;
    kvl_free(words.v);
    kvl_buf_free(&text);
    return rc;
}

int kvl_score_kv_words(const struct scoring *s, double *out)
{
    return kvl_score_best(s, kv_words_one, out);
}

/* Official: the answer is one of the words, which are in upper case; the answer is taken as it is.
 * Strict: upper and lower case alike, as a word of its own. */
int kvl_score_dialogue(const struct scoring *s, double *out)
{
    struct scoring upper = *s;
    struct kvl_buf text = { 0 };
    if (s->strict) return kvl_score_best(s, kvl_score_substring_one, out);
    int rc = kvl_text_upper(s->prediction, &text);
    upper.prediction = text.data;
    if (rc == KVL_OK) rc = kv_words_one(&upper, s->gold->answer[0], out);
    kvl_buf_free(&text);
    return rc;
}
