/* longmemeval - LongMemEval (Wu et al., ICLR 2025): a question about sessions of a user with an assistant.
 *
 * Files: longmemeval_<name>.json, an array.  All sessions stand in the prompt in the order of their dates, as the
 * scripts put them (github.com/xiaowu0162/LongMemEval, MIT): as JSON, or as text.  The end of a history that is too
 * long is cut.  Evidence are the turns that the file marks with has_answer, in the sessions of answer_session_ids; of
 * one without marks the whole session.
 *
 * Deviation: the benchmark's score is the judgement of a language model.  Here words count, f1 or substring.  For
 * answers that describe what would be right (single-session-preference, ids that end with _abs) they say little.
 */
#include "rows.h"
#include "words.h"

#include <stdlib.h>
#include <string.h>

enum { LME_JSON = 0, LME_TEXT };
static const char *const lme_histories[] = { "json", "nl", NULL };
enum { LME_DIRECT = 0, LME_CON };
static const char *const lme_readings[] = { "direct", "con", NULL };
static const char *const lme_scores[] = { "f1", "substring", NULL };

struct longmemeval_opts {
    struct kvl_rows_opts rows;
    int32_t history, reading, score;
};

#define SET .flags = 0
#define LONGMEMEVAL(X)                                                                             \
    X("s", SET)                                                                                    \
    X("m", SET)                                                                                    \
    X("oracle", SET)

static const struct kvl_rows_set longmemeval_sets[] = { LONGMEMEVAL(KVL_ROWS_SET) };
static const char *const longmemeval_names[] = { LONGMEMEVAL(KVL_ROWS_NAME) NULL };

#define LME_HEAD                                                                                   \
    "I will give you several history chats between you and a user. Please answer the question "    \
    "based on the relevant chat history."
#define LME_TAIL                                                                                   \
    "\n\n\nHistory Chats:\n\n{context}\n\nCurrent Date: {question_date}\nQuestion: {question}\n"

static const char *const lme_prompts[] = {
    [LME_DIRECT] = LME_HEAD LME_TAIL "Answer:",
    [LME_CON] =
        LME_HEAD " Answer the question step by step: first extract all the relevant "
                 "information, and then reason over the information to get the answer." LME_TAIL
                 "Answer (step by step):",
};

/* ---- sessions -------------------------------------------------------------------------------------- */

struct lme_session {
    struct kvl_jtext date, turns, id;
    int32_t place; /* in the file */
};

static int lme_by_date(const void *a, const void *b)
{
    const struct lme_session *x = a, *y = b;
    int c = memcmp(x->date.s, y->date.s, KVL_MIN(x->date.n, y->date.n));
    if (c == 0) c = (x->date.n > y->date.n) - (x->date.n < y->date.n);
    return c != 0 ? c : x->place - y->place;
}

/* As many as there are dates and sessions; kvl_free. */
static int lme_sessions(const struct kvl_row *r, struct lme_session **out, int32_t *n)
{
    struct kvl_jtext dates = kvl_row_field(r, "haystack_dates");
    struct kvl_jtext all = kvl_row_field(r, "haystack_sessions");
    struct kvl_jtext ids = kvl_row_field(r, "haystack_session_ids");
    const char *at_date = dates.s, *at = all.s, *at_id = ids.s;
    int32_t most = kvl_jtext_items(all);
    if (most < 1) return KVL_EINVAL;
    struct lme_session *v = kvl_alloc((size_t)most, sizeof *v);
    if (!v) return KVL_ENOMEM;
    for (*n = 0; *n < most; ++*n) {
        struct lme_session *s = &v[*n];
        s->place = *n;
        if (!kvl_jtext_each(dates, &at_date, &s->date) || !kvl_jtext_each(all, &at, &s->turns))
            break;
        if (ids.n > 0 && !kvl_jtext_each(ids, &at_id, &s->id)) s->id.n = 0;
    }
    qsort(v, (size_t)*n, sizeof *v, lme_by_date);
    *out = v;
    return KVL_OK;
}

/* A string as Python's json.dumps writes it. */
static int lme_dump_string(struct kvl_jtext v, struct kvl_buf *out)
{
    static const char short_from[] = "\"\\\n\r\t\b\f", short_to[] = "\"\\nrtbf";
    struct kvl_buf text = { 0 };
    int rc = kvl_jtext_add(v, &text);
    if (rc == KVL_OK) rc = kvl_buf_adds(out, "\"");
    for (size_t i = 0, bytes; rc == KVL_OK && i < text.len; i += bytes) {
        uint32_t c = kvl_letter_at(text.data + i, text.len - i, &bytes);
        const char *known = c > 0 && c < 0x80 ? strchr(short_from, (char)c) : NULL;
        if (known)
            rc = kvl_buf_printf(out, "\\%c", short_to[known - short_from]);
        else if (c >= ' ' && c <= '~')
            rc = kvl_buf_add(out, text.data + i, 1);
        else if (c >= 0x10000 && c < 0x110000)
            rc = kvl_buf_printf(out, "\\u%04x\\u%04x", 0xd800u + ((c - 0x10000u) >> 10),
                                0xdc00u + ((c - 0x10000u) & 0x3ffu));
        else
            rc = kvl_buf_printf(out, "\\u%04x", c < 0x10000 ? c : 0xfffdu);
    }
    if (rc == KVL_OK) rc = kvl_buf_adds(out, "\"");
    kvl_buf_free(&text);
    return rc;
}

/* {"role": "user", "content": "..."}: the members in the order of the file, has_answer left out. */
static int lme_dump_turn(struct kvl_jtext turn, struct kvl_buf *out)
{
    struct kvl_jtext name, value;
    const char *at = turn.s;
    bool first = true;
    KVL_TRY(kvl_buf_adds(out, "{"));
    while (kvl_jtext_each_member(turn, &at, &name, &value)) {
        if (name.n == 12 && memcmp(name.s, "\"has_answer\"", 12) == 0) continue;
        if (!first) KVL_TRY(kvl_buf_adds(out, ", "));
        first = false;
        KVL_TRY(lme_dump_string(name, out));
        KVL_TRY(kvl_buf_adds(out, ": "));
        KVL_TRY(kvl_jtext_is_string(value) ? lme_dump_string(value, out)
                                           : kvl_jtext_add(value, out));
    }
    return kvl_buf_adds(out, "}");
}

/* "role: content" behind an empty line. */
static int lme_say_turn(struct kvl_jtext turn, struct kvl_buf *out)
{
    static const char blank[] = " \t\n\v\f\r";
    struct kvl_jtext role = kvl_jtext_member(turn, "role");
    struct kvl_jtext content = kvl_jtext_member(turn, "content");
    struct kvl_buf text = { 0 };
    if (role.n == 0 || content.n == 0) return KVL_EINVAL;
    KVL_TRY(kvl_buf_adds(out, "\n\n"));
    KVL_TRY(kvl_jtext_add(role, out));
    KVL_TRY(kvl_buf_adds(out, ": "));
    int rc = kvl_jtext_add(content, &text);
    const char *s = rc == KVL_OK ? text.data + strspn(text.data, blank) : "";
    size_t n = strlen(s);
    while (n > 0 && strchr(blank, s[n - 1])) n--;
    if (rc == KVL_OK) rc = kvl_buf_add(out, s, n);
    kvl_buf_free(&text);
    return rc;
}

static int lme_turns(struct kvl_jtext turns, bool json, struct kvl_buf *out)
{
    struct kvl_jtext turn;
    const char *at = turns.s;
    KVL_TRY(kvl_buf_adds(out, json ? "\n[" : ""));
    for (int32_t i = 0; kvl_jtext_each(turns, &at, &turn); i++) {
        if (json && i > 0) KVL_TRY(kvl_buf_adds(out, ", "));
        KVL_TRY(json ? lme_dump_turn(turn, out) : lme_say_turn(turn, out));
    }
    return kvl_buf_adds(out, json ? "]" : "");
}

static int lme_history(const struct kvl_row *r, bool json, struct kvl_buf *out)
{
    struct lme_session *s = NULL;
    int32_t n = 0;
    int rc = lme_sessions(r, &s, &n);
    for (int32_t i = 0; rc == KVL_OK && i < n; i++) {
        rc = kvl_buf_printf(out, "\n### Session %d:\nSession Date: ", i + 1);
        if (rc == KVL_OK) rc = kvl_jtext_add(s[i].date, out);
        if (rc == KVL_OK) rc = kvl_buf_adds(out, "\nSession Content:\n");
        if (rc == KVL_OK) rc = lme_turns(s[i].turns, json, out);
        if (rc == KVL_OK) rc = kvl_buf_adds(out, "\n");
    }
    kvl_free(s);
    return rc;
}

static int lme_json_field(const struct kvl_row *r, const char *name, struct kvl_buf *out)
{
    return strcmp(name, "context") == 0 ? lme_history(r, true, out) : KVL_EINVAL;
}

static int lme_text_field(const struct kvl_row *r, const char *name, struct kvl_buf *out)
{
    return strcmp(name, "context") == 0 ? lme_history(r, false, out) : KVL_EINVAL;
}

/* ---- evidence -------------------------------------------------------------------------------------- */

static bool lme_in(struct kvl_jtext list, struct kvl_jtext id)
{
    struct kvl_jtext v;
    const char *at = list.s;
    while (kvl_jtext_each(list, &at, &v))
        if (v.n == id.n && memcmp(v.s, id.s, v.n) == 0) return true;
    return false;
}

/* The text of a marked turn as it stands in the prompt. */
static int lme_marked(struct kvl_jtext turn, bool json, struct kvl_buf *out, int32_t *n)
{
    struct kvl_jtext mark = kvl_jtext_member(turn, "has_answer");
    struct kvl_buf text = { 0 };
    if (mark.n != 4 || memcmp(mark.s, "true", 4) != 0) return KVL_OK;
    int rc = json ? lme_dump_turn(turn, &text) : lme_say_turn(turn, &text);
    size_t lead = json ? 0 : 2;
    if (rc == KVL_OK) rc = kvl_buf_add(out, text.data + lead, text.len - lead);
    if (rc == KVL_OK) rc = kvl_buf_add(out, "", 1);
    *n += rc == KVL_OK;
    kvl_buf_free(&text);
    return rc;
}

static int lme_session_evidence(struct kvl_jtext turns, bool json, struct kvl_buf *out, int32_t *n)
{
    struct kvl_jtext turn;
    const char *at = turns.s;
    int32_t before = *n;
    while (kvl_jtext_each(turns, &at, &turn)) KVL_TRY(lme_marked(turn, json, out, n));
    if (*n > before) return KVL_OK;
    struct kvl_buf text = { 0 };
    int rc = lme_turns(turns, json, &text);
    size_t lead = KVL_MIN(text.len, json ? 1u : 2u);
    if (rc == KVL_OK) rc = kvl_buf_add(out, text.data + lead, text.len - lead);
    if (rc == KVL_OK) rc = kvl_buf_add(out, "", 1);
    *n += rc == KVL_OK;
    kvl_buf_free(&text);
    return rc;
}

static int lme_evidence(const struct kvl_row *r, bool json, struct kvl_buf *out, int32_t *n)
{
    struct kvl_jtext wanted = kvl_row_field(r, "answer_session_ids");
    struct lme_session *s = NULL;
    int32_t n_sessions = 0;
    int rc = lme_sessions(r, &s, &n_sessions);
    for (int32_t i = 0; rc == KVL_OK && i < n_sessions; i++)
        if (s[i].id.n > 0 && lme_in(wanted, s[i].id))
            rc = lme_session_evidence(s[i].turns, json, out, n);
    kvl_free(s);
    return rc;
}

static int lme_json_evidence(const struct kvl_row *r, struct kvl_buf *out, int32_t *n)
{
    return lme_evidence(r, true, out, n);
}

static int lme_text_evidence(const struct kvl_row *r, struct kvl_buf *out, int32_t *n)
{
    return lme_evidence(r, false, out, n);
}

/* ---- the task ---------------------------------------------------------------------------------------- */

static const struct kvl_opt longmemeval_options[] = {
    KVL_ROWS_OPTIONS(kvl_rows_opts, "s", longmemeval_names, "end"),
    { .name = "history",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct longmemeval_opts, history),
      .def = "json",
      .choices = lme_histories,
      .help = "sessions as JSON, or as text (nl)" },
    { .name = "reading",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct longmemeval_opts, reading),
      .def = "direct",
      .choices = lme_readings,
      .help = "con: the model is told to extract what matters first" },
    { .name = "score",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct longmemeval_opts, score),
      .def = "f1",
      .choices = lme_scores,
      .help = "in place of a language model's judgement: words in common, or the answer as it is" },
    { 0 },
};

static int longmemeval_open(const void *opts, struct kvl_task_source **out, struct kvl_err *err)
{
    const struct longmemeval_opts *o = opts;
    bool json = o->history == LME_JSON;
    struct kvl_rows_kind kind = {
        .name = "longmemeval",
        .paths = { "longmemeval_%s.json", "longmemeval_%s_cleaned.json", "longmemeval_%s",
                   "data/longmemeval_%s.json", "data/longmemeval_%s_cleaned.json" },
        .needs = { "haystack_sessions", "haystack_dates" },
        .question = "question",
        .answers = "answer",
        .id = "question_id",
        .keep = { "question_id", "question_type" },
        .field = json ? lme_json_field : lme_text_field,
        .proof = json ? lme_json_evidence : lme_text_evidence,
    };
    struct kvl_rows_set set = longmemeval_sets[o->rows.name];
    set.prompt = lme_prompts[o->reading];
    set.max_new = o->reading == LME_CON ? 800 : 500;
    set.scorer = o->score ? KVL_SCORE_SUBSTRING : KVL_SCORE_F1;
    return kvl_rows_open(&kind, &set, &o->rows, NULL, out, err);
}

static double longmemeval_chance(const void *opts)
{
    (void)opts;
    return 0.0;
}

static const char *longmemeval_unofficial(const void *opts)
{
    (void)opts;
    return "the benchmark lets a language model judge";
}

static const struct kvl_task longmemeval = {
    .abi = KVL_TASK_ABI,
    .size = sizeof longmemeval,
    .name = "longmemeval",
    .title = "LongMemEval, from its files; words score, not a language model",
    .paper = "Wu et al., LongMemEval, ICLR 2025",
    .help = "questions about what was said in one of many sessions; the benchmark lets a language "
            "model judge answers, here words are compared",
    .version = 2,
    .opts = longmemeval_options,
    .opts_size = sizeof(struct longmemeval_opts),
    .generate = kvl_rows_generate,
    .score = kvl_rows_score,
    .chance = longmemeval_chance,
    .open = longmemeval_open,
    .close = kvl_rows_close,
    .unofficial = longmemeval_unofficial,
};

KVL_TASK_EXPORT(longmemeval)
