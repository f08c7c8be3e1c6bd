/* Passkey: digits hidden in filler text, asked for at the end.
 *
 * The task of Mohtashami and Jaggi (2023, landmark attention), in the form of InfiniteBench (Zhang et
 * al. 2024): five digits as a string, leading zeros included, written twice in one item.  Differs in
 * that the filler does not repeat, the wording is our own, the length is exact in tokens, and one
 * context may hold up to 32 keys, each with a name.
 *
 *     intro \n sentence ... item ... sentence \n | question -> " 84699"
 *
 * Evidence: either of the two digit runs of the item (one ANY group).
 */
#include <math.h>

#include "hide.h"

KVL_PHRASE(passkey_intro, "A pass key is hidden in the text below. Find it and remember it.");
KVL_PHRASE(passkey_item, "The pass key is {value}. Remember it: {value} is the pass key.");
KVL_PHRASE(passkey_question, "What is the pass key? The pass key is");
KVL_PHRASE(passkeys_intro,
           "Some pass keys are hidden in the text below. Find them and remember them.");
KVL_PHRASE(passkeys_item,
           "The pass key of {name} is {value}. Remember it: {value} is the pass key of {name}.");
KVL_PHRASE(passkeys_question, "What is the pass key of {name}? The pass key of {name} is");
KVL_PHRASE(passkey_question_2, "Tell me the pass key. The pass key is");
KVL_PHRASE(passkey_question_3, "Which pass key was hidden in the text? It is");
KVL_PHRASE(passkeys_question_2, "Tell me the pass key of {name}. The pass key of {name} is");
KVL_PHRASE(passkeys_question_3, "Which pass key belongs to {name}? It is");

struct passkey_opts {
    int32_t keys, digits, wording;
    char prose[KVL_OPT_PATH_SIZE];
};

static const struct kvl_opt passkey_options[] = {
    { .name = "keys",
      .type = KVL_OPT_INT,
      .off = offsetof(struct passkey_opts, keys),
      .def = "1",
      .min = 1,
      .max = KVL_HIDE_FACTS,
      .help = "keys in a context; one has no name, several have different names" },
    { .name = "digits",
      .type = KVL_OPT_INT,
      .off = offsetof(struct passkey_opts, digits),
      .def = "5",
      .min = 1,
      .max = KVL_HIDE_DIGITS,
      .help = "decimal digits of a key (InfiniteBench: 5)" },
    { .name = "wording",
      .type = KVL_OPT_INT,
      .off = offsetof(struct passkey_opts, wording),
      .def = "1",
      .min = 1,
      .max = KVL_TEXT_WORDINGS,
      .help = "which wording of the question" },
    KVL_PROSE_OPTION(passkey_opts),
    { 0 },
};

/* Without and with a name. */
static const char *const passkey_wording[2][KVL_TEXT_WORDINGS] = {
    { passkey_question, passkey_question_2, passkey_question_3 },
    { passkeys_question, passkeys_question_2, passkeys_question_3 },
};

static int passkey_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                            struct kvl_err *err)
{
    const struct passkey_opts *o = req->opts;
    bool named = o->keys > 1;
    struct kvl_hide hide = { .task = "passkey",
                             .option = "keys",
                             .many = "keys",
                             .text = &kvl_text_english,
                             .prose = o->prose,
                             .intro = named ? passkeys_intro : passkey_intro,
                             .item = named ? passkeys_item : passkey_item,
                             .question = passkey_wording[named][o->wording - 1],
                             .label = named ? "name" : NULL,
                             .n_facts = o->keys,
                             .most_facts = KVL_HIDE_FACTS,
                             .n_digits = o->digits,
                             .evidence = KVL_EVIDENCE_ANY,
                             .draw = kvl_hide_draw_digits };
    return kvl_hide_generate(&hide, req, out, err);
}

/* Official: InfiniteBench splits at everything that is no digit; the first piece that is not empty
 * equals the key as text. */
static void passkey_score(const struct kvl_question *q, const char *prediction,
                          struct kvl_task_score *out)
{
    *out = (struct kvl_task_score){ .official = kvl_hide_first_run(q->gold, prediction),
                                    .strict = kvl_hide_strict(q->gold, prediction) };
}

static double passkey_chance(const void *opts)
{
    const struct passkey_opts *o = opts;
    return pow(10.0, -o->digits);
}

static const struct kvl_task passkey = {
    .abi = KVL_TASK_ABI,
    .size = sizeof passkey,
    .name = "passkey",
    .title = "Passkey retrieval",
    .paper = "Mohtashami and Jaggi 2023 (landmark attention); Zhang et al. 2024 (InfiniteBench)",
    .help = "digits hidden in filler text: find one key among up to 32 named ones",
    .version = 1,
    .opts = passkey_options,
    .opts_size = sizeof(struct passkey_opts),
    .generate = passkey_generate,
    .score = passkey_score,
    .chance = passkey_chance,
};

KVL_TASK_EXPORT(passkey)
