/* Multi-query needle: several keys with a value each, several asked for at once.
 *
 * RULER's niah_multiquery (Hsieh et al. 2024): 4 keys, all 4 asked for.  Differs as niah_multikey does.  The
 * expected answer has the values in the order of the question; the strict scorer wants this order.
 *
 *     intro \n sentence ... needle ... needle ... sentence \n | question -> " 8046131, 2650887, 7793212, 1180345"
 *
 * Evidence: each value, from the step on at which the one before it was said.
 */
#include "niah.h"

struct multiquery_opts {
    int32_t queries, keys, key, value, wording, max_new;
    char prose[KVL_OPT_PATH_SIZE];
};

static const struct kvl_opt multiquery_options[] = {
    { .name = "queries",
      .type = KVL_OPT_INT,
      .off = offsetof(struct multiquery_opts, queries),
      .def = "4",
      .min = 1,
      .max = KVL_PARTS,
      .help = "keys that a question asks for (RULER: 4)" },
    { .name = "keys",
      .type = KVL_OPT_INT,
      .off = offsetof(struct multiquery_opts, keys),
      .def = "auto",
      .min = 1,
      .max = KVL_NIAH_KEYS,
      .help = "keys in a context; auto: as many as a question asks for (RULER: 4)" },
    { .name = "key",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct multiquery_opts, key),
      .def = "words",
      .choices = kvl_niah_types,
      .help = "keys: words, numbers of 7 digits, uuids" },
    { .name = "value",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct multiquery_opts, value),
      .def = "numbers",
      .choices = kvl_niah_types,
      .help = "values: words, numbers of 7 digits, uuids" },
    KVL_PARTS_OPTIONS(struct multiquery_opts),
    KVL_PROSE_OPTION(multiquery_opts),
    { 0 },
};

static int multiquery_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                               struct kvl_err *err)
{
    const struct multiquery_opts *o = req->opts;
    struct kvl_niah niah = { .task = "niah_multiquery",
                             .key = (enum kvl_niah_type)o->key,
                             .value = (enum kvl_niah_type)o->value,
                             .keys = o->keys == KVL_AUTO ? o->queries : o->keys,
                             .values = 1,
                             .queries = o->queries,
                             .wording = o->wording,
                             .prose = o->prose,
                             .max_new = o->max_new };
    return kvl_niah_generate(&niah, req, out, err);
}

/* Official: the share of the values that are a substring (RULER). */
static void multiquery_score(const struct kvl_question *q, const char *prediction,
                             struct kvl_task_score *out)
{
    *out = (struct kvl_task_score){ .official = kvl_parts_official(q->gold, prediction),
                                    .strict = kvl_parts_strict(q->gold, prediction, true) };
}

static double multiquery_chance(const void *opts)
{
    const struct multiquery_opts *o = opts;
    return kvl_niah_chance((enum kvl_niah_type)o->value);
}

static const struct kvl_task niah_multiquery = {
    .abi = KVL_TASK_ABI,
    .size = sizeof niah_multiquery,
    .name = "niah_multiquery",
    .title = "Multi-query needle",
    .paper = "Hsieh et al. 2024 (RULER: niah_multiquery)",
    .help = "needles with different keys in filler text: give the values of several keys",
    .version = 1,
    .opts = multiquery_options,
    .opts_size = sizeof(struct multiquery_opts),
    .generate = multiquery_generate,
    .score = multiquery_score,
    .chance = multiquery_chance,
};

KVL_TASK_EXPORT(niah_multiquery)
