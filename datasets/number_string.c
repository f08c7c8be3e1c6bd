/* Number string: ten digits with runs hidden in filler text, asked for at the end.
 *
 * InfiniteBench (Zhang et al. 2024): five random digits, then five times a digit at a random place is
 * doubled, so that the value has runs, which are hard to copy and to tokenise.  Differs as passkey does:
 * filler that does not repeat, our own wording, exact length.
 *
 * Evidence: either of the two digit runs of the item (one ANY group).
 */
#include <math.h>
#include <string.h>

#include "hide.h"

KVL_PHRASE(number_string_intro,
           "A sequence of digits is hidden in the text below. Find it and remember it.");
KVL_PHRASE(number_string_item,
           "The sequence of digits is {value}. Remember it: {value} is the sequence of digits.");
KVL_PHRASE(number_string_question, "What is the sequence of digits? The sequence of digits is");
KVL_PHRASE(number_string_question_2, "Tell me the sequence of digits. The sequence of digits is");
KVL_PHRASE(number_string_question_3, "Which sequence of digits was hidden in the text? It is");

enum { NUMBER_STRING_FRESH = 5, NUMBER_STRING_DIGITS = 10 };

struct number_string_opts {
    int32_t wording;
    char prose[KVL_OPT_PATH_SIZE];
};

static const struct kvl_opt number_string_options[] = {
    { .name = "wording",
      .type = KVL_OPT_INT,
      .off = offsetof(struct number_string_opts, wording),
      .def = "1",
      .min = 1,
      .max = KVL_TEXT_WORDINGS,
      .help = "which wording of the question" },
    KVL_PROSE_OPTION(number_string_opts),
    { 0 },
};

static const char *const number_string_wording[KVL_TEXT_WORDINGS] = {
    number_string_question,
    number_string_question_2,
    number_string_question_3,
};

static void number_string_draw(struct kvl_rng *rng, int32_t n_digits, char *value)
{
    kvl_hide_draw_digits(rng, NUMBER_STRING_FRESH, value);
    for (int32_t n = NUMBER_STRING_FRESH; n < n_digits; n++) {
        uint32_t at = kvl_rng_below(rng, (uint32_t)n);
        memmove(value + at + 1, value + at, (size_t)n - at + 1);
    }
}

static int number_string_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                                  struct kvl_err *err)
{
    const struct number_string_opts *o = req->opts;
    struct kvl_hide hide = { .task = "number_string",
                             .many = "sequence of digits",
                             .text = &kvl_text_english,
                             .prose = o->prose,
                             .intro = number_string_intro,
                             .item = number_string_item,
                             .question = number_string_wording[o->wording - 1],
                             .n_facts = 1,
                             .most_facts = 1,
                             .n_digits = NUMBER_STRING_DIGITS,
                             .evidence = KVL_EVIDENCE_ANY,
                             .draw = number_string_draw };
    return kvl_hide_generate(&hide, req, out, err);
}

/* Official: as passkey (InfiniteBench). */
static void number_string_score(const struct kvl_question *q, const char *prediction,
                                struct kvl_task_score *out)
{
    *out = (struct kvl_task_score){ .official = kvl_hide_first_run(q->gold, prediction),
                                    .strict = kvl_hide_strict(q->gold, prediction) };
}

/* Of the best guess: ten times the same digit, which comes of five equal ones and of nothing else. */
static double number_string_chance(const void *opts)
{
    (void)opts;
    return pow(10.0, -NUMBER_STRING_FRESH);
}

static const struct kvl_task number_string = {
    .abi = KVL_TASK_ABI,
    .size = sizeof number_string,
    .name = "number_string",
    .title = "Number string retrieval",
    .paper = "Zhang et al. 2024 (InfiniteBench, Retrieve.Number)",
    .help = "ten digits with repeats hidden in filler text: find and copy them",
    .version = 1,
    .opts = number_string_options,
    .opts_size = sizeof(struct number_string_opts),
    .generate = number_string_generate,
    .score = number_string_score,
    .chance = number_string_chance,
};

KVL_TASK_EXPORT(number_string)
