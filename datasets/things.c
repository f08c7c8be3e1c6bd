/* Things: numbers of different things hidden in filler text, one of them asked for.
 *
 * For small models.  Those of a few hundred million parameters answer passkey, needle and niah_multikey
 * with the value of another key, since all keys stand in the same sentence ("The pass key of ..."), and
 * then nothing can be said of methods.  Here every item is about a thing of another kind, so that what
 * is asked for is found by its own words: as easy as a single needle, with many questions about a context.
 *
 *     intro \n sentence ... The door code is 4821. Remember it: 4821 is the door code. ... \n | question -> " 4821"
 *
 * After passkey (Mohtashami and Jaggi 2023) and the single needles of RULER (Hsieh et al. 2024).  Evidence:
 * either of the two digit runs of the item (one ANY group).
 */
#include <math.h>

#include "hide.h"

KVL_PHRASE(thing_intro, "A number is hidden in the text below. Find it and remember it.");
KVL_PHRASE(things_intro, "Some numbers are hidden in the text below. Find them and remember them.");
KVL_PHRASE(thing_item, "The {thing} is {value}. Remember it: {value} is the {thing}.");
KVL_PHRASE(thing_question, "What is the {thing}? The {thing} is");
KVL_PHRASE(thing_question_2, "Tell me the {thing}. The {thing} is");
KVL_PHRASE(thing_question_3, "Which number is the {thing}? It is");

/* No two share a word. */
static const char *const things_words[KVL_HIDE_FACTS] = {
    "pass key",        "door code",          "bus line",      "house number",
    "ticket price",    "birth year",         "parcel weight", "phone extension",
    "mast height",     "prize money",        "rope length",   "chess rating",
    "water depth",     "radio frequency",    "page count",    "oven temperature",
    "tax bill",        "speed limit",        "meter reading", "train platform",
    "shoe size",       "match attendance",   "floor area",    "library card",
    "seat row",        "locker combination", "rent deposit",  "stamp value",
    "city population", "flight distance",    "wine vintage",  "license plate",
};

struct things_opts {
    int32_t keys, digits, wording;
    char prose[KVL_OPT_PATH_SIZE];
};

static const struct kvl_opt things_options[] = {
    { .name = "keys",
      .type = KVL_OPT_INT,
      .off = offsetof(struct things_opts, keys),
      .def = "4",
      .min = 1,
      .max = KVL_HIDE_FACTS,
      .help = "things with a number in a context" },
    { .name = "digits",
      .type = KVL_OPT_INT,
      .off = offsetof(struct things_opts, digits),
      .def = "4",
      .min = 1,
      .max = KVL_HIDE_DIGITS,
      .help = "decimal digits of a number" },
    { .name = "wording",
      .type = KVL_OPT_INT,
      .off = offsetof(struct things_opts, wording),
      .def = "1",
      .min = 1,
      .max = KVL_TEXT_WORDINGS,
      .help = "which wording of the question" },
    KVL_PROSE_OPTION(things_opts),
    { 0 },
};

static int things_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                           struct kvl_err *err)
{
    static const char *const question[KVL_TEXT_WORDINGS] = { thing_question, thing_question_2,
                                                             thing_question_3 };
    const struct things_opts *o = req->opts;
    struct kvl_hide hide = { .task = "things",
                             .option = "keys",
                             .many = "keys",
                             .text = &kvl_text_english,
                             .prose = o->prose,
                             .intro = o->keys > 1 ? things_intro : thing_intro,
                             .item = thing_item,
                             .question = question[o->wording - 1],
                             .label = "thing",
                             .words = things_words,
                             .n_facts = o->keys,
                             .most_facts = KVL_HIDE_FACTS,
                             .n_digits = o->digits,
                             .evidence = KVL_EVIDENCE_ANY,
                             .draw = kvl_hide_draw_digits };
    return kvl_hide_generate(&hide, req, out, err);
}

/* Official: as passkey (InfiniteBench). */
static void things_score(const struct kvl_question *q, const char *prediction,
                         struct kvl_task_score *out)
{
    *out = (struct kvl_task_score){ .official = kvl_hide_first_run(q->gold, prediction),
                                    .strict = kvl_hide_strict(q->gold, prediction) };
}

static double things_chance(const void *opts)
{
    const struct things_opts *o = opts;
    return pow(10.0, -o->digits);
}

static const struct kvl_task things = {
    .abi = KVL_TASK_ABI,
    .size = sizeof things,
    .name = "things",
    .title = "Numbers of things",
    .paper = "ours, after Mohtashami and Jaggi 2023 (landmark attention)",
    .help = "numbers of different things hidden in filler text, for small models: give one of them",
    .version = 1,
    .opts = things_options,
    .opts_size = sizeof(struct things_opts),
    .generate = things_generate,
    .score = things_score,
    .chance = things_chance,
};

KVL_TASK_EXPORT(things)
