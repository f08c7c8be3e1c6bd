/* Scorers of letters, colors, lists and patterns. */
#include "scoring.h"

#include <ctype.h>
#include <regex.h>
#include <stdlib.h>
#include <string.h>

/* ---- choices ---------------------------------------------------------------------------------------------- */

static bool choice_is(const struct scoring *s, struct kvl_word w)
{
    for (int32_t i = 0; i < s->gold->n; i++) {
        struct kvl_word label = { s->gold->answer[i], strlen(s->gold->answer[i]) };
        if (kvl_word_same(&label, &w)) return true;
    }
    return false;
}

/* Behind the letter at `s`, which is one of several bytes, too. */
static const char *behind_letter(const char *s)
{
    size_t bytes;
    if (!*s) return s;
    kvl_letter_at(s, strlen(s), &bytes);
    return s + bytes;
}

/* Behind "answer is" and the like; KVL_EINVAL: there is none. */
static int choice_behind(const struct scoring *s, const char *text, double *out)
{
    static const char *const prefixes[] = { "answer is:", "answer:", "answer is", "option is" };
    for (size_t i = 0; i < 4; i++) {
        const char *at = strstr(text, prefixes[i]);
        if (!at) continue;
        at += strlen(prefixes[i]);
        *out = 0.0;
        for (int32_t k = 0; *at && k < s->gold->n; k++)
            if (kvl_text_starts(behind_letter(at), s->gold->answer[k])) *out = 1.0;
        return KVL_OK;
    }
    return KVL_EINVAL;
}

/* Strict: the only letter A to D that stands by itself. */
static double choice_strict(const struct scoring *s)
{
    const char *found = NULL;
    for (const char *c = s->prediction; *c; c++) {
        bool before = c > s->prediction && isalnum((unsigned char)c[-1]);
        if (*c < 'A' || *c > 'D' || before || isalnum((unsigned char)c[1])) continue;
        if (*c == 'A' && c[1] == ' ' && islower((unsigned char)c[2])) continue; /* an article */
        if (found && *found != *c) return 0.0;
        found = c;
    }
    return found && choice_is(s, (struct kvl_word){ found, 1 });
}

/* Official: a first letter A to D is the answer, whatever word it begins; then what stands behind "answer
 * is"; then the first word that is a part of "ABCD". */
int kvl_score_choice(const struct scoring *s, double *out)
{
    struct kvl_word text = kvl_text_strip(s->prediction);
    struct kvl_buf clean = { 0 };
    struct kvl_words words = { 0 };
    *out = s->strict ? choice_strict(s) : 0.0;
    if (s->strict || text.n == 0) return KVL_OK;
    if (*text.s >= 'A' && *text.s <= 'D') {
        *out = choice_is(s, (struct kvl_word){ text.s, 1 });
        return KVL_OK;
    }
    *out = choice_is(s, text);
    if (*out > 0.0) return KVL_OK;
    int rc = kvl_text_clean(s->prediction, "\n\"'.,?!{}", &clean);
    if (rc == KVL_OK) kvl_text_squeeze(&clean);
    if (rc == KVL_OK) rc = kvl_words_split(clean.data, clean.len, &words);
    if (rc == KVL_OK && choice_behind(s, clean.data, out) != KVL_OK)
        for (int32_t i = 0; i < words.n; i++) {
            char word[5] = { 0 };
            if (words.v[i].n > 4) continue;
            memcpy(word, words.v[i].s, words.v[i].n);
            if (!strstr("ABCD", word)) continue;
            *out = choice_is(s, words.v[i]);
            break;
        }
    kvl_free(words.v);
    kvl_buf_free(&clean);
    return rc;
}

/* A letter behind `before`; 0: none. */
static char choice_after(const char *text, const char *before, const char *behind)
{
    for (const char *at = text; (at = strstr(at, before)) != NULL; at++) {
        const char *c = at + strlen(before);
        if (*c >= 'A' && *c <= 'D' && kvl_text_starts(c + 1, behind)) return *c;
    }
    return 0;
}

/* Strict: a letter that a word begins with is none ("The correct answer is Both"). */
int kvl_score_choice_tag(const struct scoring *s, double *out)
{
    struct kvl_buf text = { 0 };
    KVL_TRY(kvl_buf_adds(&text, ""));
    for (const char *c = s->prediction; *c; c++)
        if (*c != '*') KVL_TRY(kvl_buf_add(&text, c, 1));
    char letter = choice_after(text.data, "The correct answer is (", ")");
    if (!letter) letter = choice_after(text.data, "The correct answer is ", "");
    const char *at = strstr(text.data, "The correct answer is ");
    if (s->strict && letter && at && at[22] == letter && isalpha((unsigned char)at[23])) letter = 0;
    *out = letter && choice_is(s, (struct kvl_word){ &letter, 1 });
    kvl_buf_free(&text);
    return KVL_OK;
}

/* Answers: the name of the function, its letter.  Strict: a letter by itself, or the name. */
int kvl_score_code_debug(const struct scoring *s, double *out)
{
    static const char *const prefixes[] = { "answer is:", "is:", "answer:", "correct option is:" };
    const struct kvl_gold *g = s->gold;
    struct kvl_buf clean = { 0 };
    if (g->n < 2)
        return kvl_fail(s->err, KVL_EINVAL, "%d answers, want a function and its letter", g->n);
    struct kvl_word text = kvl_text_strip(s->prediction);
    *out = s->strict ? choice_strict(s) > 0.0 || kvl_text_has(s->prediction, g->answer[0], true)
                     : text.n > 1 && text.s[0] == g->answer[1][0] && strchr(".:", text.s[1]);
    if (s->strict || *out > 0.0) return KVL_OK;
    int rc = kvl_text_clean(s->prediction, "\n`'\"-*", &clean);
    for (char *at = clean.data; rc == KVL_OK && at && *at; at++)
        if (kvl_text_starts(at, "Option") || kvl_text_starts(at, "option")) memset(at, ' ', 6);
    if (rc == KVL_OK) kvl_text_squeeze(&clean);
    for (size_t i = 0; rc == KVL_OK && i < 4; i++) {
        const char *at = strstr(clean.data, prefixes[i]);
        if (!at) continue;
        at += strlen(prefixes[i]);
        const char *said = behind_letter(at);
        *out = *at && (kvl_text_starts(said, g->answer[1]) || kvl_text_starts(said, g->answer[0]));
        break;
    }
    kvl_buf_free(&clean);
    return rc;
}

/* ---- colors, lists, patterns ---------------------------------------------------------------------------------- */

/* The last color that stands as a word of its own. */
static const char *color_last(const char *text)
{
    static const char *const colors[] = {
        "red",    "green", "blue",  "yellow", "orange",  "purple", "pink",   "brown",
        "black",  "white", "gray",  "cyan",   "magenta", "indigo", "violet", "beige",
        "maroon", "navy",  "olive", "teal",   "lime",    "silver", "gold",
    };
    const char *last = "", *at_last = text - 1;
    for (size_t i = 0; i < sizeof colors / sizeof *colors; i++) {
        size_t n = strlen(colors[i]);
        for (const char *at = text; (at = strstr(at, colors[i])) != NULL; at++) {
            bool word =
                !isalpha((unsigned char)at[n]) && (at == text || !isalpha((unsigned char)at[-1]));
            if (!word || at <= at_last) continue;
            at_last = at;
            last = colors[i];
        }
    }
    return last;
}

/* Official: "red" is found in "required".  Strict: the last color named. */
int kvl_score_color(const struct scoring *s, double *out)
{
    struct kvl_buf text = { 0 };
    if (!s->strict) return kvl_score_best(s, kvl_score_substring_one, out);
    KVL_TRY(kvl_text_lower(s->prediction, &text));
    *out = strcmp(color_last(text.data), s->gold->answer[0]) == 0;
    kvl_buf_free(&text);
    return KVL_OK;
}

/* Items of the last "[a, b]"; official: of the last line, behind "Final Answer:". */
static int set_read(const struct scoring *s, struct kvl_buf *text, struct kvl_words *out)
{
    const char *from = s->prediction, *mark = "Final Answer:";
    struct kvl_word all = kvl_text_strip(from);
    const char *line = all.s + all.n;
    while (line > all.s && line[-1] != '\n') line--;
    const char *found = strstr(line, mark);
    const char *open = strrchr(from, '[');
    if (!s->strict) open = found ? strchr(found, '[') : NULL;
    const char *close = open ? strchr(open, ']') : NULL;
    if (!close) return KVL_OK;
    KVL_TRY(kvl_buf_add(text, open + 1, (size_t)(close - open - 1)));
    for (char *c = text->data; *c; c++)
        if (strchr(",'\"", *c)) *c = ' ';
    return kvl_words_split(text->data, text->len, out);
}

static int32_t set_unique(struct kvl_words *w)
{
    int32_t n = 0;
    if (w->n > 0) qsort(w->v, (size_t)w->n, sizeof *w->v, kvl_word_order);
    for (int32_t i = 0; i < w->n; i++)
        if (n == 0 || !kvl_word_same(&w->v[n - 1], &w->v[i])) w->v[n++] = w->v[i];
    w->n = n;
    return n;
}

/* An empty list is right when there is nothing to be named. */
int kvl_score_set_f1(const struct scoring *s, double *out)
{
    struct kvl_buf text = { 0 };
    struct kvl_words found = { 0 }, want = { 0 };
    want.v = kvl_alloc((size_t)s->gold->n + 1, sizeof *want.v);
    int rc = want.v ? set_read(s, &text, &found) : KVL_ENOMEM;
    for (int32_t i = 0; rc == KVL_OK && i < s->gold->n; i++)
        if (s->gold->answer[i][0])
            want.v[want.n++] = (struct kvl_word){ s->gold->answer[i], strlen(s->gold->answer[i]) };
    if (rc == KVL_OK && set_unique(&found) + set_unique(&want) == 0)
        *out = text.data != NULL;
    else if (rc == KVL_OK)
        rc = kvl_words_f1(&found, &want, out);
    kvl_free(found.v);
    kvl_free(want.v);
    kvl_buf_free(&text);
    return rc;
}

/* Strict: the whole prediction but space around it. */
static int regex_one(const struct scoring *s, const char *gold, double *out)
{
    regex_t re;
    regmatch_t at;
    struct kvl_word text = kvl_text_strip(s->prediction);
    if (regcomp(&re, gold, REG_EXTENDED) != 0)
        return kvl_fail(s->err, KVL_EINVAL,
                        "the answer \"%.60s\" is no POSIX extended regular expression", gold);
    bool found = regexec(&re, s->prediction, 1, &at, 0) == 0;
    size_t first = (size_t)(text.s - s->prediction);
    *out =
        found && (!s->strict || ((size_t)at.rm_so <= first && (size_t)at.rm_eo >= first + text.n));
    regfree(&re);
    return KVL_OK;
}

int kvl_score_regex(const struct scoring *s, double *out)
{
    return kvl_score_best(s, regex_one, out);
}
