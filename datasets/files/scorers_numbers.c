/* Scorers of numbers. */
#include "scoring.h"

#include "kvl/opt.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- digits ------------------------------------------------------------------------------------------- */

/* The digits 0 to 9 that come first at or after `s`; "" when there are none. */
static struct kvl_word digits_next(const char *s)
{
    s += strcspn(s, "0123456789");
    return (struct kvl_word){ s, strspn(s, "0123456789") };
}

/* The digit at `s`, *bytes long; -1: none. */
static int digit_at(const char *s, size_t *bytes)
{
    return *s ? kvl_letter_digit(kvl_letter_at(s, strlen(s), bytes)) : -1;
}

/* Appends the digits at `s` as 0 to 9; returns what is behind them. */
static const char *digits_copy(const char *s, struct kvl_buf *out, int *rc)
{
    size_t bytes = 1;
    for (int digit; *rc == KVL_OK && (digit = digit_at(s, &bytes)) >= 0; s += bytes)
        *rc = kvl_buf_printf(out, "%d", digit);
    return s;
}

/* The first digit of whatever script at or behind `s`; NULL: none. */
static const char *digit_next(const char *s)
{
    size_t bytes = 1;
    for (; *s; s += bytes)
        if (digit_at(s, &bytes) >= 0) return s;
    return NULL;
}

/* Without zeros in front. */
static const char *digits_value(const char *s)
{
    s += strspn(s, "0");
    return *s ? s : "0";
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

/* Of all numbers of the prediction the share that is spelled as the answer; strict: the first one is. */
static double numbers_share(const char *prediction, struct kvl_word want, bool strict)
{
    int32_t n = 0, right = 0;
    size_t bytes = 1;
    for (const char *at = prediction; (at = digit_next(at)) != NULL;) {
        struct kvl_word w = { at, 0 };
        for (; digit_at(at, &bytes) >= 0; at += bytes) w.n += bytes;
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
        for (const char *at = gold; (at = strstr(at, words[i])) != NULL;) {
            at += strlen(words[i]);
            size_t n = strspn(at, "0123456789");
            if (n == 0) continue;
            *out = numbers_share(s->prediction, (struct kvl_word){ at, n }, s->strict);
            return KVL_OK;
        }
    }
    return kvl_fail(s->err, KVL_EINVAL, "the answer \"%.40s\" names no paragraph, want Paragraph 7",
                    gold);
}

int kvl_score_retrieval(const struct scoring *s, double *out)
{
    return kvl_score_best(s, retrieval_one, out);
}

/* ---- numbers ------------------------------------------------------------------------------------------ */

/* A number like 12 or 3.5 of a text. */
struct number {
    const char *at, *end; /* NULL: there is none */
    struct kvl_buf text;  /* of it, in digits 0 to 9 */
    bool whole, minus;
};

/* The first one at or behind `s`. */
static int number_next(const char *s, struct number *out)
{
    size_t bytes;
    int rc = KVL_OK;
    *out = (struct number){ .at = digit_next(s), .whole = true };
    if (!out->at) return KVL_OK;
    out->minus = out->at > s && out->at[-1] == '-';
    out->end = digits_copy(out->at, &out->text, &rc);
    if (rc == KVL_OK && *out->end == '.' && digit_at(out->end + 1, &bytes) >= 0) {
        out->whole = false;
        rc = kvl_buf_adds(&out->text, ".");
        out->end = digits_copy(out->end + 1, &out->text, &rc);
    }
    return rc;
}

static bool same_number(double a, double b)
{
    return a >= b && a <= b;
}

static bool text_is_real(const char *s)
{
    return strpbrk(s, ".eE") != NULL;
}

/* A whole number as JSON and int() write it, of any length: sign and digits. */
static bool same_whole(const char *a, const char *b)
{
    const char *x = digits_value(a + (*a == '-')), *y = digits_value(b + (*b == '-'));
    return strcmp(x, y) == 0 && ((*a == '-') == (*b == '-') || strcmp(x, "0") == 0);
}

static int gold_number(const struct scoring *s, const char *gold, double *out)
{
    const char *digits = gold + (*gold == '-');
    bool whole = *digits && !digits[strspn(digits, "0123456789")];
    if (kvl_parse_f64(gold, out) == KVL_OK || whole) return KVL_OK;
    return kvl_fail(s->err, KVL_EINVAL, "the answer \"%.40s\" is no number", gold);
}

/* int() of a number: what stands behind its full stop is cut off of a float, of whose digits 53 bits are left. */
static int number_cut(const struct number *n, bool as_float, struct kvl_buf *out)
{
    if (!as_float) return kvl_buf_add(out, n->text.data, strcspn(n->text.data, "."));
    return kvl_buf_printf(out, "%.0f", trunc(strtod(n->text.data, NULL)));
}

/* Official: of a whole answer InfiniteBench takes int() of the first number, which of 3.5 is an error of the script,
 * 0 here; SCBench int(float()).  A minus is not read; strict reads it, and what stands behind the full stop. */
static int math_find(const struct scoring *s, bool cut, double *out)
{
    const char *gold = s->gold->answer[0];
    struct kvl_buf whole = { 0 };
    struct number n;
    double want = 0.0;
    *out = 0.0;
    KVL_TRY(gold_number(s, gold, &want));
    int rc = number_next(s->prediction, &n);
    bool real = text_is_real(gold) || (s->strict && !(n.whole && n.at));
    if (rc == KVL_OK && n.at && s->strict && n.minus) rc = kvl_buf_adds(&whole, "-");
    if (rc == KVL_OK && n.at && !real) rc = number_cut(&n, cut && !s->strict, &whole);
    if (rc == KVL_OK && n.at && real) {
        double found = strtod(n.text.data, NULL);
        *out = same_number(s->strict && n.minus ? -found : found, want);
    } else if (rc == KVL_OK && n.at) {
        *out = (n.whole || cut) && same_whole(whole.data, gold);
    }
    kvl_buf_free(&whole);
    kvl_buf_free(&n.text);
    return rc;
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
    struct number n;
    double want = 0.0;
    *out = 0.0;
    KVL_TRY(gold_number(s, gold, &want));
    int rc = number_next(text.s, &n);
    if (rc == KVL_OK && n.at) {
        double found = strtod(n.text.data, NULL);
        bool alone = n.at - n.minus == text.s && n.end == text.s + text.n;
        *out = same_number(n.minus ? -found : found, want) && (alone || !s->strict);
    }
    kvl_buf_free(&n.text);
    return rc;
}

int kvl_score_number(const struct scoring *s, double *out)
{
    return kvl_score_best(s, number_one, out);
}

/* A word that Python's int() reads: a sign, digits of any script, single underscores between them.  *known: it is
 * one, and `out` has it as JSON writes it. */
static int int_read(struct kvl_word w, struct kvl_buf *out, bool *known)
{
    size_t at = w.n > 0 && (*w.s == '-' || *w.s == '+'), bytes;
    bool digit = false;
    *known = false;
    KVL_TRY(kvl_buf_adds(out, w.n > 0 && *w.s == '-' ? "-" : ""));
    for (; at < w.n; at += bytes) {
        int value = kvl_letter_digit(kvl_letter_at(w.s + at, w.n - at, &bytes));
        bool under = w.s[at] == '_' && digit;
        if (value < 0 && !under) return KVL_OK;
        if (!under) KVL_TRY(kvl_buf_printf(out, "%d", value));
        digit = !under;
    }
    *known = digit;
    return KVL_OK;
}

/* Whether a word is the answer as a number; a float is its whole number, or none. */
static int int_same(const struct scoring *s, struct kvl_word w, const char *gold, bool minus,
                    bool *out)
{
    struct kvl_buf found = { 0 };
    double want = 0.0;
    bool known = false;
    *out = false;
    KVL_TRY(gold_number(s, gold, &want));
    if (minus) KVL_TRY(kvl_buf_adds(&found, "-"));
    int rc = int_read(w, &found, &known);
    if (rc == KVL_OK && known)
        *out = text_is_real(gold) ? same_number(strtod(found.data, NULL), want)
                                  : same_whole(found.data, gold);
    kvl_buf_free(&found);
    return rc;
}

/* The last word. */
int kvl_score_code_run(const struct scoring *s, double *out)
{
    struct kvl_buf text = { 0 };
    struct kvl_words words = { 0 };
    bool same = false;
    int rc = kvl_text_clean(s->prediction, "\n.`'\":", &text);
    if (rc == KVL_OK) rc = kvl_words_split(text.data, text.len, &words);
    struct kvl_word last =
        rc == KVL_OK && words.n > 0 ? words.v[words.n - 1] : (struct kvl_word){ "", 0 };
    if (rc == KVL_OK) rc = int_same(s, last, s->gold->answer[0], false, &same);
    *out = same;
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
        bool minus = s->strict && w.s > s->prediction && w.s[-1] == '-', same;
        KVL_TRY(int_same(s, w, s->gold->answer[right], minus, &same));
        if (!same) break;
        at = w.s + w.n;
    }
    *out = (double)right / s->gold->n;
    return KVL_OK;
}
