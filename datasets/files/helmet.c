/* helmet - the recall parts of HELMET (Yen et al., ICLR 2025): json_kv and three of RULER's needles.
 *
 * Files: json_kv/test_k<pairs>_dep6.jsonl and ruler/niah_<task>/validation_<tokens>.jsonl of its data.  Names end with
 * the length that a file was made for.  Prompts (two examples for json_kv), tokens to generate and scorers are those
 * of the code (github.com/princeton-nlp/HELMET, MIT): an answer counts that is in the text where both are lower case,
 * without punctuation and articles.  The end of a context that is too long is cut.  In a chat template the last line
 * of the prompt begins the turn of the model (there: continue_final_message).
 *
 * Deviation: rows in the order of the file (there: 100 that are drawn).
 */
#include "rows.h"

#include <string.h>

#define KV                                                                                         \
    .prompt = "{context}\n\nExtract the value corresponding to the specified key in the JSON "     \
              "object below.\n\n{examples}Key: {question}\nCorresponding value:",                  \
    .opens = "\nCorresponding value:", .max_new = 100, .scorer = KVL_SCORE_SUBSTRING_EM,           \
    .flags = KVL_ROWS_EXACT
#define NEEDLE(head, ask, say)                                                                     \
    .prompt = head " hidden within the following text. Make sure to memorize it. I will quiz you " \
                   "about the {type_needle_v} afterwards.\n{context}\nWhat " ask " for {query} "   \
                   "mentioned in the provided text?\nThe special magic {type_needle_v} for "       \
                   "{query} mentioned in the provided text " say,                                  \
    .opens = "\nThe special magic", .scorer = KVL_SCORE_ALL_SUBSTRINGS, .flags = KVL_ROWS_EXACT
#define ONE                                                                                        \
    NEEDLE("A special magic {type_needle_v} is", "is the special magic {type_needle_v}", "is")
#define ALL                                                                                        \
    NEEDLE("Some special magic {type_needle_v} are", "are all the special magic {type_needle_v}",  \
           "are")
#define RULER(X, size, tokens)                                                                     \
    X("niah_mk_2_" size, .file = "ruler/niah_multikey_2/validation_" tokens, ONE, .max_new = 50)   \
    X("niah_mk_3_" size, .file = "ruler/niah_multikey_3/validation_" tokens, ONE, .max_new = 100)  \
    X("niah_mv_" size, .file = "ruler/niah_multivalue/validation_" tokens, ALL, .max_new = 50)
#define HELMET(X)                                                                                  \
    X("json_kv_8k", .file = "json_kv/test_k105_dep6", KV)                                          \
    X("json_kv_16k", .file = "json_kv/test_k220_dep6", KV)                                         \
    X("json_kv_32k", .file = "json_kv/test_k440_dep6", KV)                                         \
    X("json_kv_64k", .file = "json_kv/test_k900_dep6", KV)                                         \
    X("json_kv_128k", .file = "json_kv/test_k1800_dep6", KV)                                       \
    RULER(X, "8k", "8192")                                                                         \
    RULER(X, "16k", "16384")                                                                       \
    RULER(X, "32k", "32768")                                                                       \
    RULER(X, "64k", "65536")                                                                       \
    RULER(X, "128k", "131072")

static const struct kvl_rows_set helmet_sets[] = { HELMET(KVL_ROWS_SET) };
static const char *const helmet_names[] = { HELMET(KVL_ROWS_NAME) NULL };

/* {examples}: two pairs that are asked for, with their values. */
static int helmet_field(const struct kvl_row *r, const char *name, struct kvl_buf *out)
{
    enum { SHOTS = 2 };
    struct kvl_jtext list = kvl_row_field(r, "demos"), pair;
    const char *at = list.s;
    if (strcmp(name, "examples") != 0 || !kvl_jtext_is_array(list)) return KVL_EINVAL;
    KVL_TRY(kvl_buf_adds(out, ""));
    for (int32_t i = 0; i < SHOTS && kvl_jtext_each(list, &at, &pair); i++) {
        KVL_TRY(kvl_buf_adds(out, "Key: "));
        KVL_TRY(kvl_jtext_add(kvl_jtext_item(pair, 0), out));
        KVL_TRY(kvl_buf_adds(out, "\nCorresponding value: "));
        KVL_TRY(kvl_jtext_add(kvl_jtext_item(pair, 1), out));
        KVL_TRY(kvl_buf_adds(out, "\n\n"));
    }
    return KVL_OK;
}

/* RULER's rows have outputs, or answer. */
static int helmet_gold(const struct kvl_row *r, struct kvl_buf *out, int32_t *n)
{
    struct kvl_jtext v = kvl_row_field(r, "answer");
    return kvl_row_answers(v.n > 0 ? v : kvl_row_field(r, "outputs"), out, n);
}

static const struct kvl_rows_kind helmet_kind = {
    .name = "helmet",
    .paths = { "%s.jsonl", "data/%s.jsonl" },
    .context = "context",
    .question = "question",
    .answers = "answer",
    .needs = { "context" },
    .keep = { "answer", "outputs" },
    .field = helmet_field,
    .gold = helmet_gold,
};

KVL_ROWS_TASK(helmet, "json_kv_8k", "end", "HELMET's recall parts, from its files",
              "Yen et al., HELMET, ICLR 2025", "pairs of a list, needles with distractors");

KVL_TASK_EXPORT(helmet)
