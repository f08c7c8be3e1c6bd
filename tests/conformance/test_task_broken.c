/* Tasks that break a promise each: the check of that promise refuses them, and says why. */
#include "conformance/check_task.h"
#include "registry.h"

static const struct kvl_task *base; /* what they are made of: passkey */
static int32_t calls;               /* of a task that keeps count, which it must not */

typedef int (*task_generate)(const struct kvl_task_request *req, struct kvl_sample *out,
                             struct kvl_err *err);

/* ---- generate -------------------------------------------------------------------------------- */

static char *text_copy(const char *text)
{
    char *copy = kvl_alloc(strlen(text) + 1, 1);
    assert_non_null(copy);
    memcpy(copy, text, strlen(text) + 1);
    return copy;
}

static void text_set(char **text, const char *to)
{
    kvl_free(*text);
    *text = text_copy(to);
}

static int keeps_count(const struct kvl_task_request *req, struct kvl_sample *out,
                       struct kvl_err *err)
{
    struct kvl_task_request other = *req;
    other.seed += (uint64_t)calls++;
    return base->generate(&other, out, err);
}

static int has_no_seed(const struct kvl_task_request *req, struct kvl_sample *out,
                       struct kvl_err *err)
{
    struct kvl_task_request other = *req;
    other.seed = 1;
    return base->generate(&other, out, err);
}

static int is_shorter(const struct kvl_task_request *req, struct kvl_sample *out,
                      struct kvl_err *err)
{
    struct kvl_task_request other = *req;
    other.length_tok--;
    return base->generate(&other, out, err);
}

static int has_holes(const struct kvl_task_request *req, struct kvl_sample *out,
                     struct kvl_err *err)
{
    if (req->length_tok == 3001)
        return kvl_fail(err, KVL_EINVAL, "passkey: length 3001 cannot be met exactly");
    return base->generate(req, out, err);
}

static int changes_text(const struct kvl_task_request *req, struct kvl_sample *out,
                        struct kvl_err *err)
{
    KVL_TRY(base->generate(req, out, err));
    char *the = strstr(out->context, " the ");
    if (the) memcpy(the, " The ", 5);
    return KVL_OK;
}

static int takes_too_short(const struct kvl_task_request *req, struct kvl_sample *out,
                           struct kvl_err *err)
{
    struct kvl_task_request other = *req;
    other.length_tok = KVL_MAX(req->length_tok, 400);
    return base->generate(&other, out, err);
}

static int writes_when_it_refuses(const struct kvl_task_request *req, struct kvl_sample *out,
                                  struct kvl_err *err)
{
    out->n_questions = 0;
    return base->generate(req, out, err);
}

static int is_nameless(const struct kvl_task_request *req, struct kvl_sample *out,
                       struct kvl_err *err)
{
    if (req->length_tok < 300) return kvl_fail(err, KVL_EINVAL, "too short: %d", req->length_tok);
    return base->generate(req, out, err);
}

static int blames_itself(const struct kvl_task_request *req, struct kvl_sample *out,
                         struct kvl_err *err)
{
    if (req->length_tok < 300) return kvl_fail(err, KVL_EINTERNAL, "passkey: %d", req->length_tok);
    return base->generate(req, out, err);
}

static int says_nothing(const struct kvl_task_request *req, struct kvl_sample *out,
                        struct kvl_err *err)
{
    if (req->length_tok < 300) return kvl_fail(err, KVL_EINVAL, "passkey: too short");
    return base->generate(req, out, err);
}

static int takes_any_depth(const struct kvl_task_request *req, struct kvl_sample *out,
                           struct kvl_err *err)
{
    struct kvl_task_request other = *req;
    if (!(other.depth <= 1.0)) other.depth = 1.0;
    return base->generate(&other, out, err);
}

static int has_one_depth(const struct kvl_task_request *req, struct kvl_sample *out,
                         struct kvl_err *err)
{
    struct kvl_task_request other = *req;
    other.depth = 0.5;
    return base->generate(&other, out, err);
}

/* Each of these has one slip in its first question. */
static int slips(const struct kvl_task_request *req, struct kvl_sample *out, struct kvl_err *err,
                 void (*slip)(struct kvl_question *q, struct kvl_sample *s))
{
    KVL_TRY(base->generate(req, out, err));
    slip(&out->question[0], out);
    return KVL_OK;
}

#define SLIP(name, ...)                                                                            \
    static void name##_slip(struct kvl_question *q, struct kvl_sample *s)                          \
    {                                                                                              \
        (void)s;                                                                                   \
        __VA_ARGS__                                                                                \
    }                                                                                              \
    static int name(const struct kvl_task_request *req, struct kvl_sample *out,                    \
                    struct kvl_err *err)                                                           \
    {                                                                                              \
        return slips(req, out, err, name##_slip);                                                  \
    }

SLIP(evidence_beside, {
    q->evidence[0].span[0].begin += 40;
    q->evidence[0].span[0].end += 40;
})
SLIP(evidence_half, {
    for (int32_t i = 0; i < q->evidence[0].n_spans; i++) q->evidence[0].span[i].end -= 2;
})
SLIP(evidence_outside, q->evidence[0].span[0].end = strlen(s->context) + 1;)
SLIP(evidence_empty, q->evidence[0].n_spans = 0;)
SLIP(evidence_unknown_kind, q->evidence[0].kind = (enum kvl_evidence_kind)9;)
SLIP(evidence_after_nothing, memcpy(q->evidence[0].after, "never", sizeof "never");)
SLIP(depth_wrong, q->depth += 0.01;)
SLIP(answer_is_cut, q->max_new_tok = 3;)
SLIP(answer_empty, q->answer[0] = '\0';)
SLIP(gold_of_another, {
    text_set(&q->gold, "00000");
    q->n_evidence = 0;
    q->depth = (double)NAN;
})
SLIP(border_in_a_word, {
    struct kvl_buf answer = { 0 };
    size_t n = strlen(q->text);
    kvl_buf_printf(&answer, "%s%s", q->text + n - 1, q->answer);
    q->text[n - 1] = '\0';
    text_set(&q->answer, answer.data);
    q->max_new_tok += 1;
    kvl_buf_free(&answer);
})
SLIP(prefix_is_longer, q->n_prefix = strlen(q->text) + 1;)
SLIP(asks_twice, {
    if (s->n_questions > 1) text_set(&q->text, s->question[1].text);
})

/* ---- score ------------------------------------------------------------------------------------- */

static void takes_all(const struct kvl_question *q, const char *prediction,
                      struct kvl_task_score *out)
{
    (void)q;
    (void)prediction;
    *out = (struct kvl_task_score){ .official = 1.0, .strict = 1.0 };
}

static void takes_none(const struct kvl_question *q, const char *prediction,
                       struct kvl_task_score *out)
{
    (void)q;
    (void)prediction;
    *out = (struct kvl_task_score){ .official = 0.0, .strict = 0.0 };
}

/* A whole prompt of digits would score. */
static void takes_any_digits(const struct kvl_question *q, const char *prediction,
                             struct kvl_task_score *out)
{
    (void)q;
    double right = strpbrk(prediction, "0123456789") != NULL;
    *out = (struct kvl_task_score){ .official = right, .strict = right };
}

static void leaves_strict(const struct kvl_question *q, const char *prediction,
                          struct kvl_task_score *out)
{
    struct kvl_task_score score = { 0 };
    base->score(q, prediction, &score);
    out->official = score.official;
}

static void is_over_one(const struct kvl_question *q, const char *prediction,
                        struct kvl_task_score *out)
{
    base->score(q, prediction, out);
    out->official *= 2.0;
}

static void names_no_sub(const struct kvl_question *q, const char *prediction,
                         struct kvl_task_score *out)
{
    base->score(q, prediction, out);
    out->n_sub = 1;
}

static void keeps_score(const struct kvl_question *q, const char *prediction,
                        struct kvl_task_score *out)
{
    base->score(q, prediction, out);
    out->strict = calls++ % 2;
}

static double chance_two(const void *opts)
{
    (void)opts;
    return 2.0;
}

/* ---- options ------------------------------------------------------------------------------------ */

enum { N_ROWS = 5 };
static struct kvl_opt rows_bad_default[N_ROWS], rows_no_help[N_ROWS], rows_too_many[N_ROWS],
    rows_no_range[N_ROWS];

static void copy_rows(struct kvl_opt *to)
{
    memcpy(to, base->opts, N_ROWS * sizeof *to);
    assert_null(base->opts[N_ROWS - 1].name); /* passkey has four */
    assert_string_equal(base->opts[0].name, "keys");
}

/* Takes 32 keys, and breaks with more. */
static int breaks_at_its_bound(const struct kvl_task_request *req, struct kvl_sample *out,
                               struct kvl_err *err)
{
    int32_t keys = *(const int32_t *)req->opts; /* the first option */
    if (keys > 32) return kvl_fail(err, KVL_EINTERNAL, "passkey: table of 32 keys is full");
    return base->generate(req, out, err);
}

/* ---- the table ----------------------------------------------------------------------------------- */

static const struct broken {
    const char *name; /* of the slip */
    task_check check;
    const char *says;
    task_generate generate;
    void (*score)(const struct kvl_question *q, const char *prediction, struct kvl_task_score *out);
    double (*chance)(const void *opts);
    const struct kvl_opt *opts;
} broken[] = {
    { "keeps count", check_task_pure, "makes two different samples", .generate = keeps_count },
    { "no seed", check_task_pure, "make the same context", .generate = has_no_seed },
    { "shorter", check_task_lengths, "a context of 199 tokens, want 200", .generate = is_shorter },
    { "holes", check_task_lengths, "3001 tokens are refused", .generate = has_holes },
    { "changes text", check_task_lengths, "is not that of the context", .generate = changes_text },
    { "takes short", check_task_too_short, "are accepted", .generate = takes_too_short },
    { "writes", check_task_too_short, "writes its sample", .generate = writes_when_it_refuses },
    { "nameless", check_task_too_short, "begin with the task's name", .generate = is_nameless },
    { "internal", check_task_too_short, "want KVL_EINVAL", .generate = blames_itself },
    { "no value", check_task_too_short, "does not say -5", .generate = says_nothing },
    { "any depth", check_task_bad_requests, "depth 1.01", .generate = takes_any_depth },
    { "one depth", check_task_depth, "depth 0 is asked for", .generate = has_one_depth },
    { "beside", check_task_evidence, "nothing of the question", .generate = evidence_beside },
    { "half", check_task_evidence, "is in no evidence", .generate = evidence_half },
    { "outside", check_task_evidence, "of a context of", .generate = evidence_outside },
    { "no spans", check_task_evidence, "0 spans", .generate = evidence_empty },
    { "kind", check_task_evidence, "kind 9", .generate = evidence_unknown_kind },
    { "after", check_task_evidence, "after \"never\"", .generate = evidence_after_nothing },
    { "depth", check_task_evidence, "its evidence begins at", .generate = depth_wrong },
    { "cut", check_task_evidence, "max_new_tok 3", .generate = answer_is_cut },
    { "empty", check_task_evidence, "without text, answer", .generate = answer_empty },
    { "border", check_task_evidence, "other tokens together", .generate = border_in_a_word },
    { "prefix", check_task_evidence, "an answer prefix of", .generate = prefix_is_longer },
    { "twice", check_task_options, "are the same", .generate = asks_twice },
    { "gold", check_task_scores, "the right answer", .generate = gold_of_another },
    { "all", check_task_scores, "a wrong answer \"\"", .score = takes_all },
    { "none", check_task_scores, "the right answer", .score = takes_none },
    { "any digits", check_task_scores, "a wrong answer", .score = takes_any_digits },
    { "no strict", check_task_scores, "-7", .score = leaves_strict },
    { "over one", check_task_scores, "the scorer says 2", .score = is_over_one },
    { "no name", check_task_scores, "1 sub-scores", .score = names_no_sub },
    { "keeps score", check_task_scores, "says two things", .score = keeps_score },
    { "chance", check_task_description, "a chance of 2", .chance = chance_two },
    { "default", check_task_description, "not valid", .opts = rows_bad_default },
    { "help", check_task_description, "has no help", .opts = rows_no_help },
    { "range", check_task_description, "no range", .opts = rows_no_range },
    { "bound", check_task_options, "table of 32 keys", .generate = breaks_at_its_bound,
      .opts = rows_too_many },
};

static struct task_subject subject(const struct kvl_task *task)
{
    int32_t k = n_tokenizers > 1 ? 1 : 0; /* that of the shipped models: tokens are words */
    return (struct task_subject){ task, tokenizers[k].name, tokenizers[k].t };
}

static void test_broken(void **state)
{
    (void)state;
    int32_t n_wrong = 0;
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        const struct broken *b = &broken[i];
        struct kvl_task task = *base;
        struct task_subject s = subject(&task);
        struct kvl_err err = { 0 };
        calls = 0;
        if (b->generate) task.generate = b->generate;
        if (b->score) task.score = b->score;
        if (b->chance) task.chance = b->chance;
        if (b->opts) task.opts = b->opts;
        bool refused = b->check(&s, &err) != KVL_OK;
        if (refused && strstr(err.msg, b->says)) continue;
        print_error("\"%s\": %s, want \"%s\"\n", b->name, refused ? err.msg : "passes", b->says);
        n_wrong++;
    }
    assert_int_equal(n_wrong, 0);
}

/* What they are made of keeps every promise: it is the slip that is refused. */
static void test_whole(void **state)
{
    (void)state;
    struct task_subject s = subject(base);
    for (int32_t i = 0; i < N_TASK_PROMISES; i++) {
        struct kvl_err err = { 0 };
        if (task_promises[i].check(&s, &err) != KVL_OK)
            fail_msg("%s: %s", task_promises[i].name, err.msg);
    }
}

/* A version of 0 and texts of several lines; rows cannot make these. */
static void test_description(void **state)
{
    (void)state;
    struct kvl_task task = *base;
    struct task_subject s = subject(&task);
    struct kvl_err err = { 0 };
    task.version = 0;
    assert_int_not_equal(check_task_description(&s, &err), KVL_OK);
    assert_non_null(strstr(err.msg, "version 0"));
    kvl_err_clear(&err);
    task.version = 1;
    task.help = "two\nlines";
    assert_int_not_equal(check_task_description(&s, &err), KVL_OK);
    assert_non_null(strstr(err.msg, "one line"));
}

static int open_all(void **state)
{
    open_tokenizers(state);
    base = kvl_builtin_task("passkey");
    assert_non_null(base);
    copy_rows(rows_bad_default);
    copy_rows(rows_no_help);
    copy_rows(rows_too_many);
    copy_rows(rows_no_range);
    rows_bad_default[0].def = "33";
    rows_no_help[1].help = "";
    rows_too_many[0].max = 64;
    rows_no_range[1].min = rows_no_range[1].max = 5;
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_whole), cmocka_unit_test(test_broken),
                                        cmocka_unit_test(test_description) };
    return cmocka_run_group_tests(tests, open_all, close_tokenizers);
}
