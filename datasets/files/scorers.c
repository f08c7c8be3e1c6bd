/* The table of scorers, and those that look for a text. */
#include "scoring.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

/* ---- texts --------------------------------------------------------------------------------------- */

/* Without space at both ends, of whatever kind Unicode has. */
struct kvl_word kvl_text_strip(const char *s)
{
    size_t len = strlen(s), begin = len, end = 0, bytes;
    for (size_t at = 0; at < len; at += bytes) {
        if (kvl_letter_space(kvl_letter_at(s + at, len - at, &bytes))) continue;
        begin = KVL_MIN(begin, at);
        end = at + bytes;
    }
    return (struct kvl_word){ s + begin, end > begin ? end - begin : 0 };
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

/* ---- the table ---------------------------------------------------------------------------------------------------- */

#define SCORERS(X)                                                                                 \
    X(EXACT, "exact", kvl_score_exact, 0.0)                                                        \
    X(SUBSTRING, "substring", kvl_score_substring, 0.0)                                            \
    X(ALL_SUBSTRINGS, "all_substrings", kvl_score_all_substrings, 0.0)                             \
    X(ANY_SUBSTRING, "any_substring", kvl_score_substring, 0.0)                                    \
    X(SUBSTRING_EM, "substring_em", kvl_score_substring_em, 0.0)                                   \
    X(F1, "f1", kvl_score_f1, 0.0)                                                                 \
    X(F1_ZH, "f1_zh", kvl_score_f1_zh, 0.0)                                                        \
    X(ROUGE_L, "rouge_l", kvl_score_rouge_l, 0.0)                                                  \
    X(ROUGE_L_ZH, "rouge_l_zh", kvl_score_rouge_l_zh, 0.0)                                         \
    X(ROUGE_LSUM, "rouge_lsum", kvl_score_rouge_lsum, 0.0)                                         \
    X(CLASSIFICATION, "classification", kvl_score_classification, 0.0)                             \
    X(RETRIEVAL, "retrieval", kvl_score_retrieval, 0.0)                                            \
    X(COUNT, "count", kvl_score_count, 0.0)                                                        \
    X(CODE_SIM, "code_sim", kvl_score_code_sim, 0.0)                                               \
    X(CHOICE, "choice", kvl_score_choice, 0.25)                                                    \
    X(CHOICE_TAG, "choice_tag", kvl_score_choice_tag, 0.25)                                        \
    X(FIRST_INT, "first_int", kvl_score_first_int, 0.0)                                            \
    X(KV_WORDS, "kv_words", kvl_score_kv_words, 0.0)                                               \
    X(KV_IN, "kv_in", kvl_score_kv_in, 0.0)                                                        \
    X(CODE_RUN, "code_run", kvl_score_code_run, 0.0)                                               \
    X(CODE_DEBUG, "code_debug", kvl_score_code_debug, 0.25)                                        \
    X(MATH_FIND, "math_find", kvl_score_math_find, 0.0)                                            \
    X(MATH_FIND_SC, "math_find_sc", kvl_score_math_find_sc, 0.0)                                   \
    X(MATH_CALC, "math_calc", kvl_score_math_calc, 0.0)                                            \
    X(DIALOGUE, "dialogue", kvl_score_dialogue, 0.0)                                               \
    X(IN_UPPER, "in_upper", kvl_score_in_upper, 0.0)                                               \
    X(VT_ROUNDED, "vt_rounded", kvl_score_vt_rounded, 0.0)                                         \
    X(NEEDLEBENCH, "needlebench", kvl_score_needlebench, 0.0)                                      \
    X(COLOR, "color", kvl_score_color, 1.0 / 23.0)                                                 \
    X(EDIT, "edit", kvl_score_edit, 0.0)                                                           \
    X(EDIT_ZH, "edit_zh", kvl_score_edit_zh, 0.0)                                                  \
    X(MRCR, "mrcr", kvl_score_mrcr, 0.0)                                                           \
    X(BABILONG, "babilong", kvl_score_babilong, 0.0)                                               \
    X(SET_F1, "set_f1", kvl_score_set_f1, 0.0)                                                     \
    X(NUMBER, "number", kvl_score_number, 0.0)                                                     \
    X(REGEX, "regex", kvl_score_regex, 0.0)

#define SCORER_ROW(id, text, function, lucky)  [KVL_SCORE_##id] = { function, lucky },
#define SCORER_NAME(id, text, function, lucky) [KVL_SCORE_##id] = (text),

static const struct {
    int (*score)(const struct scoring *s, double *out);
    double chance;
} scorers[KVL_N_SCORERS] = { SCORERS(SCORER_ROW) };

const char *const kvl_scorer_names[KVL_N_SCORERS + 1] = { SCORERS(SCORER_NAME) };

double kvl_scorer_chance(enum kvl_scorer scorer)
{
    return scorers[scorer].chance;
}

int kvl_score_answer(enum kvl_scorer scorer, const struct kvl_gold *gold, const char *prediction,
                     struct kvl_answer_score *out, struct kvl_err *err)
{
    double value[2] = { 0.0, 0.0 };
    if (gold->n < 1) return kvl_fail(err, KVL_EINVAL, "a question without an answer");
    for (int i = 0; i < 2; i++) {
        struct scoring s = { gold, prediction, i == 1, err };
        int rc = scorers[scorer].score(&s, &value[i]);
        if (rc == KVL_ENOMEM)
            return kvl_fail(err, rc, "%s: out of memory for an answer of %zu bytes",
                            kvl_scorer_names[scorer], strlen(prediction));
        if (rc != KVL_OK) return kvl_fail_at(err, rc, "%s", kvl_scorer_names[scorer]);
    }
    *out = (struct kvl_answer_score){ value[0], value[1] };
    return KVL_OK;
}
