/* ruler - RULER (Hsieh et al., COLM 2024), from the files that its scripts write: 13 tasks.
 *
 * Files: <task>/validation.jsonl.  `input` is the prompt, `answer_prefix` what the answer begins with: in a chat
 * template it begins the turn of the model.  Older files have it at the end of the input, where it is found by its
 * first words.  The question is what stands from the last mark of the task on.  A file is for one tokenizer and
 * length, which the length here should be.
 */
#include "rows.h"

#define NIAH                                                                                       \
    .max_new = 128, .scorer = KVL_SCORE_ALL_SUBSTRINGS, .flags = KVL_ROWS_EXACT,                   \
    .mark = "\nWhat are all the special magic|\nWhat is the special magic",                        \
    .opens = " The special magic"
#define QA                                                                                         \
    .max_new = 32, .scorer = KVL_SCORE_ANY_SUBSTRING, .flags = 0,                                  \
    .mark = "\n\nAnswer the question based on|\nQuestion:", .opens = " Answer:"
#define LIST .scorer = KVL_SCORE_ALL_SUBSTRINGS, .mark = "\nQuestion:", .opens = " Answer:"

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

static const struct kvl_rows_kind ruler_kind = {
    .name = "ruler",
    .paths = { "%s/validation.jsonl", "%s.jsonl", "%s/test.jsonl" },
    .context = "input",
    .answers = "outputs",
    .prefix = "answer_prefix",
    .id = "index",
    .keep = { "index", "outputs", "length", "others" },
    .typed = true,
    .around = true,
};

KVL_ROWS_TASK(ruler, "niah_single_1", "middle", "RULER, from its files",
              "Hsieh et al., RULER, COLM 2024",
              "needles, chains of variables, word counts and questions: 13 tasks");

KVL_TASK_EXPORT(ruler)
