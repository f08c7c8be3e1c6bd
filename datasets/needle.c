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

KVL_PHRASE(needle_intro, "A fact is hidden in the text below. Find it and remember it.");
KVL_PHRASE(needles_intro, "Some facts are hidden in the text below. Find them and remember them.");
KVL_PHRASE(needle_item, "The magic number of {city} is {value}.");
KVL_PHRASE(needle_question, "What is the magic number of {city}? The magic number of {city} is");
KVL_PHRASE(needle_question_2, "Tell me the magic number of {city}. The magic number of {city} is");
KVL_PHRASE(needle_question_3, "Which magic number belongs to {city}? It is");
KVL_PHRASE(german_needle_intro,
           "Im folgenden Text ist eine Tatsache versteckt. Finde sie und merke sie dir.");
KVL_PHRASE(german_needles_intro,
           "Im folgenden Text sind einige Tatsachen versteckt. Finde sie und merke sie dir.");
KVL_PHRASE(german_needle_item, "Die magische Zahl von {city} ist {value}.");
KVL_PHRASE(german_needle_question,
           "Was ist die magische Zahl von {city}? Die magische Zahl von {city} ist");
KVL_PHRASE(german_needle_question_2,
           "Nenne mir die magische Zahl von {city}. Die magische Zahl von {city} ist");
KVL_PHRASE(german_needle_question_3, "Welche magische Zahl gehört zu {city}? Sie ist");

enum { NEEDLE_FACTS = 30 }; /* cities that there are */

struct needle_opts {
    int32_t facts, digits, language, wording;
    char prose[KVL_OPT_PATH_SIZE];
};

/* The choices of `language`, and what each says. */
static const char *const needle_languages[] = { "english", "german", NULL };
static const struct needle_language {
    const struct kvl_text *text;
    const char *intro, *intros, *item, *question[KVL_TEXT_WORDINGS];
} needle_language[] = {
    { &kvl_text_english,
      needle_intro,
      needles_intro,
      needle_item,
      { needle_question, needle_question_2, needle_question_3 } },
    { &kvl_text_german,
      german_needle_intro,
      german_needles_intro,
      german_needle_item,
      { german_needle_question, german_needle_question_2, german_needle_question_3 } },
};

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
    KVL_PROSE_OPTION(needle_opts),
    { 0 },
};

static int needle_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                           struct kvl_err *err)
{
    const struct needle_opts *o = req->opts;
    const struct needle_language *l = &needle_language[o->language];
    struct kvl_hide hide = { .task = "needle",
                             .option = "facts",
                             .many = "facts",
                             .text = l->text,
                             .prose = o->prose,
                             .intro = o->facts > 1 ? l->intros : l->intro,
                             .item = l->item,
                             .question = l->question[o->wording - 1],
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
