/* Scorers of numbers. */
#include "scoring.h"

#include "kvl/opt.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- numbers ------------------------------------------------------------------------------------------ */

/* The digits that come first at or after `s`; "" when there are none. */
static struct kvl_word digits_next(const char *s)
{
    s += strcspn(s, "0123456789");
    return (struct kvl_word){ s, strspn(s, "0123456789") };
}

/* Strict: as a word of its own, and no group of thousands or decimals behind it. */
static int first_int_one(const struct scoring *s, const char *gold, double *out)
{
    struct kvl_word first = digits_next(s->prediction), want = { gold, strlen(gold) };
    const char *end = first.s + first.n;
    bool alone = !isalnum((unsigned char)*end) &&
                 !(strchr(",.", *end) && *end && isdigit((unsigned char)end[1]));
    alone &= first.s == s->prediction || !isalpha((unsigned char)first.s[-1]);
    *out = kvl_word_same(&first, &want) && (alone || !s->strict) && first.n > 0;
    return KVL_OK;
}

int kvl_score_first_int(const struct scoring *s, double *out)
{
    return first_int_one(s, s->gold->answer[0], out);
}

/* Likewise of digits of all scripts, as `\d+` finds them. */
static struct kvl_word digits_any(const char *s)
{
    size_t len = strlen(s), bytes;
    struct kvl_word w = { s + len, 0 };
    for (size_t at = 0; at < len; at += bytes) {
        bool digit = kvl_letter_digit(kvl_letter_at(s + at, len - at, &bytes));
        if (digit && w.n == 0) w.s = s + at;
        if (digit) w.n += bytes;
        if (!digit && w.n > 0) break;
    }
    return w;
}

/* Of all numbers of the prediction the share that is the answer's; strict: the first one is. */
static double numbers_share(const char *prediction, struct kvl_word want, bool strict)
{
    int32_t n = 0, right = 0;
    struct kvl_word w;
    for (const char *at = prediction; (w = digits_any(at)).n > 0; at = w.s + w.n) {
        n++;
        right += kvl_word_same(&w, &want);
        if (strict) break;
    }
    return n ? (double)right / n : 0.0;
}

static int count_one(const struct scoring *s, const char *gold, double *out)
{
    *out = numbers_share(s->prediction, (struct kvl_word){ gold, strlen(gold) }, s->strict);
    return KVL_OK;
}

int kvl_score_count(const struct scoring *s, double *out)
{
    return kvl_score_best(s, count_one, out);
}

/* The number behind "Paragraph " or its Chinese word. */
static int retrieval_one(const struct scoring *s, const char *gold, double *out)
{
    static const char *const words[] = { "Paragraph ", "\xe6\xae\xb5\xe8\x90\xbd" };
    for (size_t i = 0; i < 2; i++) {
        const char *at = strstr(gold, words[i]);
        struct kvl_word want = digits_next(at ? at : "");
        if (want.n == 0) continue;
        *out = numbers_share(s->prediction, want, s->strict);
        return KVL_OK;
    }
    return kvl_fail(s->err, KVL_EINVAL, "the answer \"%.40s\" names no paragraph, want Paragraph 7",
                    gold);
}

int kvl_score_retrieval(const struct scoring *s, double *out)
{
    return kvl_score_best(s, retrieval_one, out);
}

/* The first number like 12 or 3.5, and where it ends; NULL: none. */
static const char *number_next(const char *s, bool *whole, const char **end)
{
    struct kvl_word w = digits_next(s);
    if (w.n == 0) return NULL;
    *end = w.s + w.n;
    *whole = !(**end == '.' && isdigit((unsigned char)(*end)[1]));
    if (!*whole) *end += 1 + strspn(*end + 1, "0123456789");
    return w.s;
}

static bool text_is_real(const char *s)
{
    return strpbrk(s, ".eE") != NULL;
}

/* InfiniteBench: 3.5 is no int, which ends its script; 0 here.  SCBench and strict cut it off.  A minus
 * is not read; strict reads it. */
static int math_find(const struct scoring *s, bool cut, double *out)
{
    const char *gold = s->gold->answer[0], *end;
    bool whole, minus = false;
    double want;
    const char *at = number_next(s->prediction, &whole, &end);
    *out = 0.0;
    if (kvl_parse_f64(gold, &want) != KVL_OK)
        return kvl_fail(s->err, KVL_EINVAL, "the answer \"%.40s\" is no number", gold);
    if (!at) return KVL_OK;
    double found = strtod(at, NULL);
    if (s->strict && at > s->prediction) minus = at[-1] == '-';
    if (!text_is_real(gold) && !whole && !cut && !s->strict) return KVL_OK;
    if (!text_is_real(gold) && !s->strict) found = trunc(found);
    found = minus ? -found : found;
    *out = found >= want && found <= want;
    return KVL_OK;
}

int kvl_score_math_find(const struct scoring *s, double *out)
{
    return math_find(s, false, out);
}

int kvl_score_math_find_sc(const struct scoring *s, double *out)
{
    return math_find(s, true, out);
}

/* The first number, with its sign; strict: nothing else. */
static int number_one(const struct scoring *s, const char *gold, double *out)
{
    struct kvl_word text = kvl_text_strip(s->prediction);
    const char *end, *at;
    bool whole;
    double want, found;
    if (kvl_parse_f64(gold, &want) != KVL_OK)
        return kvl_fail(s->err, KVL_EINVAL, "the answer \"%.40s\" is no number", gold);
    at = number_next(text.s, &whole, &end);
    *out = 0.0;
    if (!at) return KVL_OK;
    found = strtod(at, NULL);
    if (at > text.s && at[-1] == '-') {
        found = -found;
        at--;
    }
    bool alone = at == text.s && end == text.s + text.n;
    *out = found >= want && found <= want && (alone || !s->strict);
    return KVL_OK;
}

int kvl_score_number(const struct scoring *s, double *out)
{
    return kvl_score_best(s, number_one, out);
}

/* Python's int(): a sign, digits, single underscores between them. */
static bool int_of(struct kvl_word w, int64_t *out)
{
    char text[24];
    size_t n = 0;
    for (size_t i = 0; i < w.n; i++) {
        bool under = w.s[i] == '_' && i > 0 && i + 1 < w.n && w.s[i - 1] != '_';
        if (under) continue;
        if (n + 1 >= sizeof text) return false;
        text[n++] = w.s[i];
    }
    text[n] = '\0';
    return n > 0 && kvl_parse_i64(text[0] == '+' ? text + 1 : text, out) == KVL_OK;
}

/* The last word. */
int kvl_score_code_run(const struct scoring *s, double *out)
{
    struct kvl_buf text = { 0 };
    struct kvl_words words = { 0 };
    int64_t want, found;
    *out = 0.0;
    if (kvl_parse_i64(s->gold->answer[0], &want) != KVL_OK)
        return kvl_fail(s->err, KVL_EINVAL, "the answer \"%.40s\" is no whole number",
                        s->gold->answer[0]);
    int rc = kvl_text_clean(s->prediction, "\n.`'\":", &text);
    if (rc == KVL_OK) rc = kvl_words_split(text.data, text.len, &words);
    if (rc == KVL_OK && words.n > 0) *out = int_of(words.v[words.n - 1], &found) && found == want;
    kvl_free(words.v);
    kvl_buf_free(&text);
    return rc;
}

/* Answers in order, against the numbers of the prediction, signs left out; strict: with signs. */
int kvl_score_math_calc(const struct scoring *s, double *out)
{
    const char *at = s->prediction;
    int32_t right = 0;
    for (; right < s->gold->n; right++) {
        struct kvl_word w = digits_next(at);
        int64_t want, found;
        if (w.n == 0) break;
        if (kvl_parse_i64(s->gold->answer[right], &want) != KVL_OK)
            return kvl_fail(s->err, KVL_EINVAL, "the value \"%.40s\" is no whole number",
                            s->gold->answer[right]);
        bool known = int_of(w, &found);
        if (known && s->strict && w.s > s->prediction && w.s[-1] == '-') found = -found;
        if (!known || found != want) break;
        at = w.s + w.n;
    }
    *out = (double)right / s->gold->n;
    return KVL_OK;
}
