/* The table of scorers, and how they are called. */
#include "scoring.h"

#include <string.h>

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

/* How a script takes answers of a form that it was not written for. */
enum taken { TAKEN_WHOLE, TAKEN_BY_LETTERS, TAKEN_NEVER };

static enum taken scorer_takes(enum kvl_scorer scorer, const struct kvl_gold *gold)
{
    bool text = gold->form == KVL_GOLD_TEXT;
    if (gold->form == KVL_GOLD_ANY) return TAKEN_WHOLE;
    switch (scorer) {
    case KVL_SCORE_F1:
    case KVL_SCORE_F1_ZH:
    case KVL_SCORE_ROUGE_L:
    case KVL_SCORE_ROUGE_L_ZH:
    case KVL_SCORE_CLASSIFICATION:
    case KVL_SCORE_RETRIEVAL:
    case KVL_SCORE_CODE_SIM:
    case KVL_SCORE_ALL_SUBSTRINGS:
    case KVL_SCORE_ANY_SUBSTRING:
    case KVL_SCORE_VT_ROUNDED:
    case KVL_SCORE_IN_UPPER:
    case KVL_SCORE_DIALOGUE:
        return gold->numeric ? TAKEN_NEVER : text ? TAKEN_BY_LETTERS : TAKEN_WHOLE;
    case KVL_SCORE_COUNT: return text && !gold->numeric ? TAKEN_BY_LETTERS : TAKEN_WHOLE;
    case KVL_SCORE_KV_WORDS:
    case KVL_SCORE_KV_IN: return gold->numeric || !text ? TAKEN_NEVER : TAKEN_WHOLE;
    case KVL_SCORE_FIRST_INT: return gold->numeric ? TAKEN_NEVER : TAKEN_WHOLE;
    case KVL_SCORE_CODE_RUN:
    case KVL_SCORE_MATH_FIND:
    case KVL_SCORE_MATH_FIND_SC: return gold->numeric ? TAKEN_WHOLE : TAKEN_NEVER;
    case KVL_SCORE_MATH_CALC: return gold->numeric && !text ? TAKEN_WHOLE : TAKEN_NEVER;
    default: return TAKEN_WHOLE;
    }
}

/* An answer that stands by itself as the list of its letters: what a script makes of it that goes through a list. */
static int score_letters(enum kvl_scorer scorer, struct scoring *s, double *out)
{
    struct kvl_words letters = { 0 };
    struct kvl_buf text = { 0 };
    struct kvl_gold apart = *s->gold;
    int rc = kvl_words_letters(apart.answer[0], strlen(apart.answer[0]), &letters);
    const char **each = rc == KVL_OK ? kvl_alloc((size_t)letters.n + 1, sizeof *each) : NULL;
    for (int32_t i = 0; rc == KVL_OK && i < letters.n; i++) {
        rc = kvl_buf_add(&text, letters.v[i].s, letters.v[i].n);
        if (rc == KVL_OK) rc = kvl_buf_add(&text, "", 1);
    }
    if (rc == KVL_OK && !each) rc = KVL_ENOMEM;
    const char *at = text.data;
    for (int32_t i = 0; rc == KVL_OK && i < letters.n; i++, at += strlen(at) + 1) each[i] = at;
    apart.answer = each;
    apart.n = rc == KVL_OK ? letters.n : 0;
    s->gold = &apart;
    if (apart.n > 0) rc = scorers[scorer].score(s, out);
    kvl_free(each);
    kvl_free(letters.v);
    kvl_buf_free(&text);
    return rc;
}

static int score_reading(enum kvl_scorer scorer, struct scoring *s, double *out)
{
    enum taken taken = s->strict ? TAKEN_WHOLE : scorer_takes(scorer, s->gold);
    if (taken == TAKEN_NEVER) return KVL_OK;
    if (taken == TAKEN_BY_LETTERS) return score_letters(scorer, s, out);
    return scorers[scorer].score(s, out);
}

int kvl_score_answer(enum kvl_scorer scorer, const struct kvl_gold *gold, const char *prediction,
                     struct kvl_answer_score *out, struct kvl_err *err)
{
    double value[2] = { 0.0, 0.0 };
    if (gold->n < 1) return kvl_fail(err, KVL_EINVAL, "a question without an answer");
    for (int i = 0; i < 2; i++) {
        struct scoring s = { gold, prediction, i == 1, err };
        int rc = score_reading(scorer, &s, &value[i]);
        if (rc == KVL_ENOMEM)
            return kvl_fail(err, rc, "%s: out of memory for an answer of %zu bytes",
                            kvl_scorer_names[scorer], strlen(prediction));
        if (rc != KVL_OK) return kvl_fail_at(err, rc, "%s", kvl_scorer_names[scorer]);
    }
    *out = (struct kvl_answer_score){ value[0], value[1] };
    return KVL_OK;
}
