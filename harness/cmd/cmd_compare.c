/* kvlab compare: two logs, or two policies of a log, with a verdict and an exit code. */
#include "args.h"
#include "cmds.h"
#include "compare.h"
#include "results_amount.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { COMPARE_THRESHOLD = 0x300, COMPARE_MEASURE, COMPARE_FORMAT };

struct compare_args {
    struct kvl_args base;
    char **word;
    size_t n_words;
    bool only; /* some measures were named */
    struct kvl_compare want;
};

static const struct argp_option compare_options[] = {
    { "threshold", COMPARE_THRESHOLD, "MEASURE=X", 0,
      "a difference of at most X is none; accuracy in points (0), ppl (0), bytes (1) and speed (5) "
      "in percent, recall from 0 to 1 (0); may repeat",
      0 },
    { "measure", COMPARE_MEASURE, "MEASURE", 0,
      "these alone: accuracy, ppl, recall, bytes or speed; may repeat", 0 },
    { "format", COMPARE_FORMAT, "FORM", 0, "text (default), markdown, latex, csv or html", 0 },
    { 0 }
};

/* The measure that word [n] names. */
static int compare_measure_of(struct compare_args *a, const char *option, const char *word,
                              size_t n, int *out)
{
    for (int m = 0; m < KVL_COMPARE_MEASURES; m++) {
        const char *name = kvl_compare_names[m];
        if (strlen(name) != n || strncmp(word, name, n) != 0) continue;
        *out = m;
        return KVL_OK;
    }
    return kvl_fail(a->base.err, KVL_EINVAL,
                    "--%s %s: want accuracy, ppl, recall, bytes or speed%s", option, word,
                    strcmp(option, "threshold") == 0 ? ", = and a number" : "");
}

static int compare_threshold(struct compare_args *a, const char *word)
{
    int m = 0;
    char *end;
    size_t n = strcspn(word, "=");
    KVL_TRY(compare_measure_of(a, "threshold", word, n, &m));
    double v = word[n] ? strtod(word + n + 1, &end) : KVL_NAN;
    if (!(v >= 0) || isinf(v) || end == word + n + 1 || *end)
        return kvl_fail(a->base.err, KVL_EINVAL,
                        "--threshold %s: want a number from 0 on after =", word);
    a->want.threshold[m] = v;
    return KVL_OK;
}

static int compare_measure(struct compare_args *a, const char *word)
{
    int m = 0;
    KVL_TRY(compare_measure_of(a, "measure", word, strlen(word), &m));
    if (!a->only) memset(a->want.want, 0, sizeof a->want.want);
    a->only = true;
    a->want.want[m] = true;
    return KVL_OK;
}

static error_t compare_parse(int key, char *arg, struct argp_state *state)
{
    struct compare_args *a = state->input;
    int rc = KVL_OK;
    switch (key) {
    case COMPARE_THRESHOLD: rc = compare_threshold(a, arg); break;
    case COMPARE_MEASURE: rc = compare_measure(a, arg); break;
    case COMPARE_FORMAT: rc = kvl_table_form_parse(arg, &a->want.form, a->base.err); break;
    case ARGP_KEY_ARGS: kvl_args_words(state, &a->word, &a->n_words); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
}

static const struct argp compare_argp = {
    .options = compare_options,
    .parser = compare_parse,
    .args_doc = "OLD_LOG NEW_LOG\nPOLICY OTHER_POLICY LOG...",
    .doc =
        "Two logs cell by cell, or two policies (names or labels as tables have them) in the same "
        "logs: accuracy, recall, bytes and tokens/s on the same questions, and a verdict per "
        "row.\v"
        "A row is worse or better when its whole 95 % interval (over contexts; of tokens/s the "
        "spread of the repeats) is so by more than the threshold, and a sign-flip test over "
        "contexts has p < 0.05: that takes six contexts at least.  Speed is faster, slower, the "
        "same where the interval is "
        "within the threshold, or unclear where repeats of one cell differ too much to tell.  "
        "Cells compare "
        "that have the same model file, seed, task, options and version of the task, chat "
        "template, sampling and prompts; what differs is said.  Recall is that of the lanes that "
        "retrieve "
        "(report), which the policy oracle tells: without it there is none.\n"
        "Exit code: 0 no row is worse or slower, 1 some row is, 2 wrong input or nothing "
        "comparable."
};

static int compare_logs(struct compare_args *a, struct kvl_err *err)
{
    struct kvl_results old = { 0 }, new = { 0 };
    KVL_TRY(kvl_results_load_lanes(a->word, 1, &old, err));
    int rc = kvl_results_load_lanes(a->word + 1, 1, &new, err);
    a->want.a = (struct kvl_compare_side){ &old, a->word[0], NULL };
    a->want.b = (struct kvl_compare_side){ &new, a->word[1], NULL };
    if (rc == KVL_OK) rc = kvl_results_partial(&old, "kvlab: the first log is ", stderr, err);
    if (rc == KVL_OK) rc = kvl_results_partial(&new, "kvlab: the second log is ", stderr, err);
    if (rc == KVL_OK) rc = kvl_compare(&a->want, stdout, err);
    kvl_results_free(&old);
    kvl_results_free(&new);
    return rc;
}

static int compare_policies(struct compare_args *a, struct kvl_err *err)
{
    struct kvl_results r = { 0 };
    KVL_TRY(kvl_results_load_lanes(a->word + 2, a->n_words - 2, &r, err));
    a->want.a = (struct kvl_compare_side){ &r, a->word[0], a->word[0] };
    a->want.b = (struct kvl_compare_side){ &r, a->word[1], a->word[1] };
    int rc = kvl_results_partial(&r, "kvlab: the log is ", stderr, err);
    if (rc == KVL_OK) rc = kvl_compare(&a->want, stdout, err);
    kvl_results_free(&r);
    return rc;
}

int cmd_compare(int argc, char **argv, struct kvl_err *err)
{
    struct compare_args a = { .want = { .want = { true, true, true, true, true },
                                        .threshold = {
                                            [KVL_COMPARE_BYTES] = 1, [KVL_COMPARE_SPEED] = 5 } } };
    bool done;
    KVL_TRY(kvl_args_parse(&compare_argp, argc, argv, &a, &done, err));
    if (done) return KVL_OK;
    if (a.n_words < 2)
        return kvl_fail(err, KVL_EINVAL, "%zu argument%s: want two logs, or two policies and a log",
                        a.n_words, a.n_words == 1 ? "" : "s");
    return a.n_words == 2 ? compare_logs(&a, err) : compare_policies(&a, err);
}
