/* Scorers of words in common and of how alike texts are. */
#include "scoring.h"

#include "similar.h"

#include <math.h>
#include <string.h>

/* ---- words in common ------------------------------------------------------------------------------------ */

static int f1_of(const struct scoring *s, const char *gold, bool chinese, double *out)
{
    struct kvl_buf text[2] = { 0 };
    struct kvl_words words[2] = { 0 };
    const char *from[2] = { s->prediction, gold };
    int rc = KVL_OK;
    for (int i = 0; i < 2 && rc == KVL_OK; i++) {
        rc = chinese ? kvl_text_chinese(from[i], &text[i]) : kvl_text_squad(from[i], &text[i]);
        if (rc == KVL_OK)
            rc = (chinese ? kvl_words_letters : kvl_words_split)(text[i].data, text[i].len,
                                                                 &words[i]);
    }
    if (rc == KVL_OK) rc = kvl_words_f1(&words[0], &words[1], out);
    for (int i = 0; i < 2; i++) {
        kvl_free(words[i].v);
        kvl_buf_free(&text[i]);
    }
    return rc;
}

static int f1_one(const struct scoring *s, const char *gold, double *out)
{
    return f1_of(s, gold, false, out);
}

static int f1_zh_one(const struct scoring *s, const char *gold, double *out)
{
    return f1_of(s, gold, true, out);
}

int kvl_score_f1(const struct scoring *s, double *out)
{
    return kvl_score_best(s, f1_one, out);
}

int kvl_score_f1_zh(const struct scoring *s, double *out)
{
    return kvl_score_best(s, f1_zh_one, out);
}

/* Strict: as words of their own. */
static int substring_em_one(const struct scoring *s, const char *gold, double *out)
{
    struct kvl_buf said = { 0 }, wanted = { 0 };
    int rc = kvl_text_squad(s->prediction, &said);
    if (rc == KVL_OK) rc = kvl_text_squad(gold, &wanted);
    if (rc == KVL_OK) *out = kvl_text_has(said.data, wanted.data, s->strict);
    kvl_buf_free(&said);
    kvl_buf_free(&wanted);
    return rc;
}

int kvl_score_substring_em(const struct scoring *s, double *out)
{
    return kvl_score_best(s, substring_em_one, out);
}

/* Strict: sentences of any length. */
static int rouge_l_one(const struct scoring *s, const char *gold, double *out)
{
    return kvl_rouge_l(s->prediction, gold, s->strict ? 0 : KVL_ROUGE_STEPS, out);
}

int kvl_score_rouge_l(const struct scoring *s, double *out)
{
    return kvl_score_best(s, rouge_l_one, out);
}

/* Letters, joined by a space. */
static int letters_apart(const char *text, struct kvl_buf *out)
{
    struct kvl_words letters = { 0 };
    int rc = kvl_words_letters(text, strlen(text), &letters);
    if (rc == KVL_OK) rc = kvl_buf_adds(out, "");
    for (int32_t i = 0; i < letters.n && rc == KVL_OK; i++) {
        if (i) rc = kvl_buf_adds(out, " ");
        if (rc == KVL_OK) rc = kvl_buf_add(out, letters.v[i].s, letters.v[i].n);
    }
    kvl_free(letters.v);
    return rc;
}

static int rouge_l_zh_one(const struct scoring *s, const char *gold, double *out)
{
    struct kvl_buf a = { 0 }, b = { 0 };
    int rc = letters_apart(s->prediction, &a);
    if (rc == KVL_OK) rc = letters_apart(gold, &b);
    if (rc == KVL_OK) rc = kvl_rouge_l(a.data, b.data, s->strict ? 0 : KVL_ROUGE_STEPS - 1, out);
    kvl_buf_free(&a);
    kvl_buf_free(&b);
    return rc;
}

int kvl_score_rouge_l_zh(const struct scoring *s, double *out)
{
    return kvl_score_best(s, rouge_l_zh_one, out);
}

static int rouge_lsum_one(const struct scoring *s, const char *gold, double *out)
{
    return kvl_rouge_lsum(s->prediction, gold, out);
}

int kvl_score_rouge_lsum(const struct scoring *s, double *out)
{
    return kvl_score_best(s, rouge_lsum_one, out);
}

/* ---- classes -------------------------------------------------------------------------------------------- */

/* Official: of the classes named, those that are part of the answer leave the list while it is gone
 * through, so that the one behind each is passed over.  Strict: all of them leave. */
static int classification_one(const struct scoring *s, const char *gold, double *out)
{
    const struct kvl_gold *g = s->gold;
    const char **named = kvl_alloc((size_t)g->n_cls + 1, sizeof *named);
    int32_t n = 0, right = 0;
    if (!named) return KVL_ENOMEM;
    for (int32_t i = 0; i < g->n_cls; i++)
        if (strstr(s->prediction, g->cls[i])) named[n++] = g->cls[i];
    for (int32_t i = 0; i < n; i++) {
        if (!strstr(gold, named[i]) || strcmp(gold, named[i]) == 0) continue;
        int32_t first = i;
        for (int32_t k = 0; k < i; k++) /* list.remove: the first that is equal */
            if (strcmp(named[k], named[i]) == 0) first = KVL_MIN(first, k);
        memmove(named + first, named + first + 1, (size_t)(--n - first) * sizeof *named);
        if (s->strict) i--;
    }
    for (int32_t i = 0; i < n; i++) right += strcmp(named[i], gold) == 0;
    *out = right ? 1.0 / n : 0.0;
    kvl_free(named);
    return KVL_OK;
}

int kvl_score_classification(const struct scoring *s, double *out)
{
    if (s->gold->n_cls == 0)
        return kvl_fail(s->err, KVL_EINVAL, "a row without classes, want all_classes");
    return kvl_score_best(s, classification_one, out);
}

/* Words of the task that stand in the first sentence and not in the question: just the answer's.  The
 * script looks for "Question" in a text that is in lower case. */
int kvl_score_babilong(const struct scoring *s, double *out)
{
    const struct kvl_gold *g = s->gold;
    struct kvl_buf said = { 0 }, asked = { 0 }, want = { 0 };
    int rc = kvl_text_lower(s->prediction, &said);
    if (rc == KVL_OK) rc = kvl_text_lower(g->question ? g->question : "", &asked);
    if (rc == KVL_OK) rc = kvl_text_lower(g->answer[0], &want);
    int32_t n = 0, parts = 1, right = 0;
    static const char *const ends[] = { ".", "<context>", "<example>" };
    for (size_t i = 0; rc == KVL_OK && i < 3; i++) {
        char *end = strstr(said.data, ends[i]);
        if (end) *end = '\0';
    }
    bool several = rc == KVL_OK && strchr(want.data, ',') && want.len > 3;
    for (char *c = want.data; several && *c; c++) parts += *c == ',';
    for (int32_t i = 0; i < g->n_cls && rc == KVL_OK; i++) {
        if (kvl_text_has(asked.data, g->cls[i], s->strict) ||
            !kvl_text_has(said.data, g->cls[i], s->strict))
            continue;
        n++;
        const char *at = strstr(want.data, g->cls[i]);
        size_t len = strlen(g->cls[i]);
        right += several ? at && (at == want.data || at[-1] == ',') && (!at[len] || at[len] == ',')
                         : strcmp(want.data, g->cls[i]) == 0;
    }
    *out = rc == KVL_OK && right == parts && n == parts;
    kvl_buf_free(&said);
    kvl_buf_free(&asked);
    kvl_buf_free(&want);
    return rc;
}

/* ---- how alike ---------------------------------------------------------------------------------------------- */

static int letters_of(struct kvl_word w, struct kvl_letters *out)
{
    return kvl_letters_of(w.s, w.n, out);
}

/* 1 - distance / length of the longer one; space left out if `bare`. */
static int edit_alike(const char *a, const char *b, bool bare, double *out)
{
    struct kvl_letters x[2] = { 0 };
    const char *from[2] = { a, b };
    int32_t distance = 0;
    int rc = KVL_OK;
    for (int i = 0; i < 2 && rc == KVL_OK; i++) {
        rc = kvl_letters_of(from[i], strlen(from[i]), &x[i]);
        int32_t n = 0;
        for (int32_t k = 0; rc == KVL_OK && k < x[i].n; k++)
            if (!bare || !kvl_letter_space(x[i].v[k])) x[i].v[n++] = x[i].v[k];
        x[i].n = n;
    }
    if (rc == KVL_OK) rc = kvl_edit_distance(&x[0], &x[1], &distance);
    int32_t longer = KVL_MAX(x[0].n, x[1].n);
    *out = longer ? 1.0 - (double)distance / longer : 1.0;
    kvl_free(x[0].v);
    kvl_free(x[1].v);
    return rc;
}

static int edit_one(const struct scoring *s, const char *gold, double *out)
{
    return edit_alike(s->prediction, gold, false, out);
}

int kvl_score_edit(const struct scoring *s, double *out)
{
    return kvl_score_best(s, edit_one, out);
}

/* Without punctuation, but for the space in it; the prediction up to a key that follows. */
static int edit_zh_one(const struct scoring *s, const char *gold, double *out)
{
    struct kvl_buf said = { 0 }, text[2] = { 0 };
    const char *end = strstr(s->prediction, "键：");
    size_t n = end ? (size_t)(end - s->prediction) : strlen(s->prediction);
    int rc = kvl_buf_adds(&said, "");
    if (rc == KVL_OK) rc = kvl_buf_add(&said, s->prediction, n);
    if (rc == KVL_OK) rc = kvl_text_bare(said.data, &text[0]);
    if (rc == KVL_OK) rc = kvl_text_bare(gold, &text[1]);
    if (rc == KVL_OK) rc = edit_alike(text[0].data, text[1].data, s->strict, out);
    kvl_buf_free(&said);
    kvl_buf_free(&text[0]);
    kvl_buf_free(&text[1]);
    return rc;
}

int kvl_score_edit_zh(const struct scoring *s, double *out)
{
    return kvl_score_best(s, edit_zh_one, out);
}

/* Official (v1): the key word is all of it, else a fifth of how alike the texts are.  Strict (v2): the key
 * word, as a word of its own. */
int kvl_score_needlebench(const struct scoring *s, double *out)
{
    const struct kvl_gold *g = s->gold;
    if (g->n < 2)
        return kvl_fail(s->err, KVL_EINVAL, "%d answers, want a needle and its key word", g->n);
    *out = kvl_text_has(s->prediction, g->answer[1], s->strict);
    if (*out > 0.0 || s->strict) return KVL_OK;
    KVL_TRY(edit_alike(s->prediction, g->answer[0], true, out));
    *out *= 0.2;
    return KVL_OK;
}

/* The first line that is no comment; fuzzywuzzy's whole percents.  Official: difflib, which it takes where
 * python-Levenshtein is not installed; strict: the longest common subsequence. */
static int code_sim_one(const struct scoring *s, const char *gold, double *out)
{
    const char *line = s->prediction + strspn(s->prediction, "\n");
    struct kvl_word found = { "", 0 };
    struct kvl_letters a = { 0 }, b = { 0 };
    double ratio = 0.0;
    while (line) {
        const char *end = strchr(line, '\n');
        size_t n = end ? (size_t)(end - line) : strlen(line);
        bool comment = memchr(line, '`', n) || memchr(line, '#', n);
        for (size_t i = 0; i + 1 < n && !comment; i++)
            comment = line[i] == '/' && line[i + 1] == '/';
        found = comment ? found : (struct kvl_word){ line, n };
        line = end && comment ? end + 1 : NULL;
    }
    int rc = letters_of(found, &a);
    if (rc == KVL_OK) rc = kvl_letters_of(gold, strlen(gold), &b);
    if (rc == KVL_OK && a.n > 0 && b.n > 0)
        rc = s->strict ? kvl_lcs_ratio(&a, &b, &ratio) : kvl_difflib_ratio(&a, &b, &ratio);
    if (rc == KVL_OK && a.n == 0 && b.n == 0) ratio = 1.0;
    *out = rint(100.0 * ratio) / 100.0;
    kvl_free(a.v);
    kvl_free(b.v);
    return rc;
}

int kvl_score_code_sim(const struct scoring *s, double *out)
{
    return kvl_score_best(s, code_sim_one, out);
}

/* What the answer has to begin with is left out of both. */
int kvl_score_mrcr(const struct scoring *s, double *out)
{
    const struct kvl_gold *g = s->gold;
    const char *prefix = g->n > 1 ? g->answer[1] : "", *said = s->prediction, *gold = g->answer[0];
    struct kvl_letters a = { 0 }, b = { 0 };
    if (s->strict) said += strspn(said, KVL_SCORE_BLANK);
    *out = 0.0;
    if (!kvl_text_starts(said, prefix)) return KVL_OK;
    if (kvl_text_starts(gold, prefix)) gold += strlen(prefix);
    said += strlen(prefix);
    int rc = kvl_letters_of(said, strlen(said), &a);
    if (rc == KVL_OK) rc = kvl_letters_of(gold, strlen(gold), &b);
    if (rc == KVL_OK) rc = kvl_difflib_ratio(&a, &b, out);
    kvl_free(a.v);
    kvl_free(b.v);
    return rc;
}
