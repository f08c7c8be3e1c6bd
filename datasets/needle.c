/* Needle: facts hidden in filler text, the number of one of them asked for at the end.
 *
 * The needle in a haystack of Kamradt (2023) with random-valued facts, as in RULER (Hsieh et al. 2024):
 * the published needle is known to models that never saw the haystack.  Depth is by token and the needle
 * stands at the nearest gap between sentences; the published script walks back to a token that it takes for a
 * full stop, and ends at 0 when the tokenizer has another one.  No judge: digits are compared.
 *
 *     intro \n sentence ... item ... sentence \n | question -> " 8046131"
 *
 * Evidence: the digits of the fact (one ALL group).
 */
#include <math.h>
#include <string.h>

#include "hide.h"

enum { NEEDLE_FACTS = 30 }; /* cities that there are */

struct needle_opts {
    int32_t facts, digits, language, wording;
};

/* The choices of `language` and their texts. */
static const char *const needle_languages[] = { "english", "german", NULL };
static const struct kvl_text *const needle_texts[] = { &kvl_text_english, &kvl_text_german };

static const struct kvl_opt needle_options[] = {
    { .name = "facts",
      .type = KVL_OPT_INT,
      .off = offsetof(struct needle_opts, facts),
      .def = "1",
      .min = 1,
      .max = NEEDLE_FACTS,
      .help = "facts in a context, about different cities; questions ask for one each" },
    { .name = "digits",
      .type = KVL_OPT_INT,
      .off = offsetof(struct needle_opts, digits),
      .def = "7",
      .min = 1,
      .max = KVL_HIDE_DIGITS,
      .help = "decimal digits of a value (RULER: 7)" },
    { .name = "language",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct needle_opts, language),
      .def = "english",
      .choices = needle_languages,
      .help = "of filler, facts and questions" },
    { .name = "wording",
      .type = KVL_OPT_INT,
      .off = offsetof(struct needle_opts, wording),
      .def = "1",
      .min = 1,
      .max = KVL_TEXT_WORDINGS,
      .help = "which wording of the question" },
    { 0 },
};

static const enum kvl_text_phrase needle_question[KVL_TEXT_WORDINGS] = {
    KVL_TEXT_needle_question,
    KVL_TEXT_needle_question_2,
    KVL_TEXT_needle_question_3,
};

static int needle_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                           struct kvl_err *err)
{
    const struct needle_opts *o = req->opts;
    struct kvl_hide hide = { .task = "needle",
                             .option = "facts",
                             .many = "facts",
                             .text = needle_texts[o->language],
                             .intro = o->facts > 1 ? KVL_TEXT_needles_intro : KVL_TEXT_needle_intro,
                             .item = KVL_TEXT_needle_item,
                             .question = needle_question[o->wording - 1],
                             .label = "city",
                             .n_facts = o->facts,
                             .most_facts = NEEDLE_FACTS,
                             .n_digits = o->digits,
                             .evidence = KVL_EVIDENCE_ALL,
                             .draw = kvl_hide_draw_digits };
    return kvl_hide_generate(&hide, req, out, err);
}

/* Official: the value is a substring (RULER; NeedleBench v2 with its keyword). */
static void needle_score(const struct kvl_question *q, const char *prediction,
                         struct kvl_task_score *out)
{
    *out = (struct kvl_task_score){ .official = strstr(prediction, q->gold) != NULL,
                                    .strict = kvl_hide_strict(q->gold, prediction) };
}

static double needle_chance(const void *opts)
{
    const struct needle_opts *o = opts;
    return pow(10.0, -o->digits);
}

static const struct kvl_task needle = {
    .abi = KVL_TASK_ABI,
    .size = sizeof needle,
    .name = "needle",
    .title = "Needle in a haystack",
    .paper = "Kamradt 2023; values and scorer of Hsieh et al. 2024 (RULER)",
    .help = "facts with random numbers hidden in English or German filler text: give the number of "
            "one",
    .version = 1,
    .opts = needle_options,
    .opts_size = sizeof(struct needle_opts),
    .generate = needle_generate,
    .score = needle_score,
    .chance = needle_chance,
};

KVL_TASK_EXPORT(needle)
