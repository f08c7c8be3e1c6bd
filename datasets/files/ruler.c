/* ruler - RULER (Hsieh et al., COLM 2024), from the files that its scripts write: 13 tasks.
 *
 * Files: <task>/validation.jsonl.  `input` is the whole prompt, `answer_prefix` (older files have none: it is at
 * the end of the input) is what the model's answer begins with.  The question is what stands from the last
 * mark of the task on.  A file is for one tokenizer and length, which the length here should be.
 */
#include "rows.h"

#include <string.h>

#define NIAH                                                                                       \
    .max_new = 128, .scorer = KVL_SCORE_ALL_SUBSTRINGS, .flags = KVL_ROWS_EXACT,                   \
    .mark = "\nWhat are all the special magic|\nWhat is the special magic"
#define QA                                                                                         \
    .max_new = 32, .scorer = KVL_SCORE_ANY_SUBSTRING, .flags = 0,                                  \
    .mark = "\n\nAnswer the question based on|\nQuestion:"
#define LIST .scorer = KVL_SCORE_ALL_SUBSTRINGS, .mark = "\nQuestion:"

#define RULER(X)                                                                                   \
    X("niah_single_1", NIAH)                                                                       \
    X("niah_single_2", NIAH)                                                                       \
    X("niah_single_3", NIAH)                                                                       \
    X("niah_multikey_1", NIAH)                                                                     \
    X("niah_multikey_2", NIAH)                                                                     \
    X("niah_multikey_3", NIAH)                                                                     \
    X("niah_multivalue", NIAH)                                                                     \
    X("niah_multiquery", NIAH)                                                                     \
    X("vt", .max_new = 30, LIST)                                                                   \
    X("cwe", .max_new = 120, LIST, .flags = KVL_ROWS_NOWHERE)                                      \
    X("fwe", .max_new = 50, LIST, .flags = KVL_ROWS_NOWHERE)                                       \
    X("qa_1", QA)                                                                                  \
    X("qa_2", QA)

static const struct kvl_rows_set ruler_sets[] = { RULER(KVL_ROWS_SET) };
static const char *const ruler_names[] = { RULER(KVL_ROWS_NAME) NULL };

/* The question has the answer prefix behind it, where there is one. */
static int ruler_field(const struct kvl_row *r, const char *name, struct kvl_buf *out)
{
    struct kvl_jtext prefix = kvl_row_field(r, "answer_prefix");
    if (strcmp(name, "question") != 0 || kvl_jtext_is_null(prefix)) return KVL_EINVAL;
    KVL_TRY(kvl_row_marked(r, true, out));
    return kvl_jtext_add(prefix, out);
}

static const struct kvl_rows_kind ruler_kind = {
    .name = "ruler",
    .paths = { "%s/validation.jsonl", "%s.jsonl", "%s/test.jsonl" },
    .context = "input",
    .answers = "outputs",
    .id = "index",
    .keep = { "index", "outputs", "length", "others" },
    .field = ruler_field,
};

static const struct kvl_opt ruler_options[] = {
    KVL_ROWS_OPTIONS(kvl_rows_opts, "niah_single_1", ruler_names),
    { 0 },
};

static int ruler_open(const void *opts, struct kvl_task_source **out, struct kvl_err *err)
{
    const struct kvl_rows_opts *o = opts;
    return kvl_rows_open(&ruler_kind, &ruler_sets[o->name], o, NULL, out, err);
}

static double ruler_chance(const void *opts)
{
    (void)opts;
    return 0.0;
}

static const struct kvl_task ruler = {
    .abi = KVL_TASK_ABI,
    .size = sizeof ruler,
    .name = "ruler",
    .title = "RULER, from its files",
    .paper = "Hsieh et al., RULER, COLM 2024",
    .help = "needles, chains of variables, word counts and questions: 13 tasks",
    .version = 1,
    .opts = ruler_options,
    .opts_size = sizeof(struct kvl_rows_opts),
    .generate = kvl_rows_generate,
    .score = kvl_rows_score,
    .chance = ruler_chance,
    .open = ruler_open,
    .close = kvl_rows_close,
};

KVL_TASK_EXPORT(ruler)
