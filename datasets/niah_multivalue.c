/* Multi-value needle: one key with several values, all of them asked for.
 *
 * RULER's niah_multivalue (Hsieh et al. 2024): 4 values of one key.  Differs as niah_multikey does; there
 * may be more keys, so that one context has several questions.  The expected answer has the values in
 * the order of the text; both scorers take any order.
 *
 *     intro \n sentence ... needle ... needle ... sentence \n | question -> " 8046131, 2650887, 7793212, 1180345"
 *
 * Evidence: each value, from the step on at which the one before it was said.
 */
#include "niah.h"

struct multivalue_opts {
    int32_t values, keys, key, value, wording, max_new;
    char prose[KVL_OPT_PATH_SIZE];
};

static const struct kvl_opt multivalue_options[] = {
    { .name = "values",
      .type = KVL_OPT_INT,
      .off = offsetof(struct multivalue_opts, values),
      .def = "4",
      .min = 1,
      .max = KVL_PARTS,
      .help = "values of a key, all asked for (RULER: 4)" },
    { .name = "keys",
      .type = KVL_OPT_INT,
      .off = offsetof(struct multivalue_opts, keys),
      .def = "1",
      .min = 1,
      .max = KVL_NIAH_KEYS,
      .help =
          "keys in a context, each with as many values; questions ask for one each (RULER: 1)" },
    { .name = "key",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct multivalue_opts, key),
      .def = "words",
      .choices = kvl_niah_types,
      .help = "keys: words, numbers of 7 digits, uuids" },
    { .name = "value",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct multivalue_opts, value),
      .def = "numbers",
      .choices = kvl_niah_types,
      .help = "values: words, numbers of 7 digits, uuids" },
    KVL_PARTS_OPTIONS(struct multivalue_opts),
    KVL_PROSE_OPTION(multivalue_opts),
    { 0 },
};

static int multivalue_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                               struct kvl_err *err)
{
    const struct multivalue_opts *o = req->opts;
    struct kvl_niah niah = { .task = "niah_multivalue",
                             .key = (enum kvl_niah_type)o->key,
                             .value = (enum kvl_niah_type)o->value,
                             .keys = o->keys,
                             .values = o->values,
                             .queries = 1,
                             .wording = o->wording,
                             .prose = o->prose,
                             .max_new = o->max_new };
    return kvl_niah_generate(&niah, req, out, err);
}

/* Official: the share of the values that are a substring (RULER). */
static void multivalue_score(const struct kvl_question *q, const char *prediction,
                             struct kvl_task_score *out)
{
    *out = (struct kvl_task_score){ .official = kvl_parts_official(q->gold, prediction),
                                    .strict = kvl_parts_strict(q->gold, prediction, false) };
}

static double multivalue_chance(const void *opts)
{
    const struct multivalue_opts *o = opts;
    return kvl_niah_chance((enum kvl_niah_type)o->value);
}

static const struct kvl_task niah_multivalue = {
    .abi = KVL_TASK_ABI,
    .size = sizeof niah_multivalue,
    .name = "niah_multivalue",
    .title = "Multi-value needle",
    .paper = "Hsieh et al. 2024 (RULER: niah_multivalue)",
    .help = "several values of a key scattered over filler text: give all of them",
    .version = 1,
    .opts = multivalue_options,
    .opts_size = sizeof(struct multivalue_opts),
    .generate = multivalue_generate,
    .score = multivalue_score,
    .chance = multivalue_chance,
};

KVL_TASK_EXPORT(niah_multivalue)
