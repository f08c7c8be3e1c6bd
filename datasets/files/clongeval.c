/* clongeval - key-passage retrieval of CLongEval (Qiu et al., 2024): the Chinese passage that belongs to a key.
 *
 * Files: key_passage_retrieval/<size>.jsonl.  Prompt, tokens to generate and scorer are those of the scripts
 * (github.com/zexuanqiu/CLongEval): what is left of an edit distance, without punctuation.
 */
#include "rows.h"

#define SET                                                                                                                         \
    .prompt = "请提取下面 JSON 对象中指定键对应的值。只输出对应键的值，不输出任何其他文字。Json" \
              "数据如下：\n\n{context}\n\n键：{query}\n值：",                                                                       \
    .max_new = 400, .scorer = KVL_SCORE_EDIT_ZH, .flags = KVL_ROWS_EXACT

#define CLONGEVAL(X)                                                                               \
    X("small", SET)                                                                                \
    X("medium", SET)                                                                               \
    X("large", SET)

static const struct kvl_rows_set clongeval_sets[] = { CLONGEVAL(KVL_ROWS_SET) };
static const char *const clongeval_names[] = { CLONGEVAL(KVL_ROWS_NAME) NULL };

static const struct kvl_rows_kind clongeval_kind = {
    .name = "clongeval",
    .paths = { "key_passage_retrieval/%s.jsonl", "%s.jsonl" },
    .context = "context",
    .question = "query",
    .answers = "answer",
    .id = "id",
    .keep = { "id", "query", "answer" },
};

KVL_ROWS_TASK(clongeval, "small", "middle", "Key-passage retrieval of CLongEval, from its files",
              "Qiu et al., CLongEval, EMNLP Findings 2024",
              "the Chinese passage that belongs to a key of a JSON object");

KVL_TASK_EXPORT(clongeval)
