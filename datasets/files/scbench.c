/* scbench - SCBench (Li et al., ICLR 2025): several questions about one context.
 *
 * Files: scbench_<task>.jsonl.  `multi_turns` are the questions; with `questions` above 1 they share the
 * prefill of their context.  Protocol multi_turn is the benchmark's default, multi_request its "same context,
 * different query".  Prompts, tokens to generate and scorers are
 * those of the scripts (github.com/microsoft/MInference, scbench/, MIT).
 *
 * Deviations: multi_request has the texts of multi_turn (in the scripts' same-context mode no line ends stand before a
 * question, and mf's list is led by the whole first question); in a chat template later questions of mf have their own
 * first line (the scripts': the last question's), and no answer to a later question of summary begins with "This paper".
 * repoqa is scored by the edit distance to the function asked for, not by BLEU against all functions of the repository.
 */
#include "rows.h"

#include <ctype.h>
#include <string.h>

#define PLAIN .prompt = "{context}\n\n{input}"
#define CHOICE                                                                                     \
    "\n\nQuestion: {question}\nA. {OPTION_A}\nB. {OPTION_B}\nC. {OPTION_C}\nD. {OPTION_D}\n\n"
#define PARTS "the benchmark reports its two kinds of questions apart"
#define EDITS "the edit distance here, the benchmark compares with all functions by BLEU"
#define BOOK  "Read the book and answer the question."

#define SCBENCH(X)                                                                                 \
    X("kv",                                                                                        \
      .prompt = "Extract the value corresponding to the specified key in the JSON object "         \
                "below.\n\n{context}\n\n{input}",                                                  \
      .max_new = 150, .scorer = KVL_SCORE_KV_IN, .flags = KVL_ROWS_EXACT)                          \
    X("prefix_suffix", PLAIN, .max_new = 150, .scorer = KVL_SCORE_KV_IN, .flags = KVL_ROWS_EXACT)  \
    X("vt", PLAIN, .max_new = 30, .scorer = KVL_SCORE_VT_ROUNDED)                                  \
    X("qa_eng",                                                                                    \
      .prompt = BOOK " Be very concise in your answer.\n\n{context}\n\nQuestion: {question}\n"     \
                     "Answer:",                                                                    \
      .max_new = 40, .scorer = KVL_SCORE_IN_UPPER, .flags = KVL_ROWS_LISTED)                       \
    X("qa_chn", .prompt = "阅读以下书籍然后回答问题。\n\n{context}\n\n问题：{question}\n答案：",   \
      .max_new = 40, .scorer = KVL_SCORE_F1_ZH)                                                    \
    X("choice_eng", .prompt = BOOK "\n\n{context}" CHOICE "The the correct answer is",             \
      .later = CHOICE "The letter of the correct answer is", .max_new = 40,                        \
      .scorer = KVL_SCORE_CHOICE, .flags = KVL_ROWS_LETTER)                                        \
    X("mf", .prompt = "{prefix}\n\n{context}\n\n{input}", .later = "\n\n{prefix}\n\n{input}",      \
      .max_new = 5, .scorer = KVL_SCORE_MATH_FIND_SC, .flags = KVL_ROWS_NOWHERE)                   \
    X("many_shot", PLAIN, .max_new = 10, .scorer = KVL_SCORE_IN_UPPER, .flags = KVL_ROWS_NOWHERE)  \
    X("summary", PLAIN, .max_new = 200, .scorer = KVL_SCORE_ROUGE_LSUM, .flags = KVL_ROWS_NOWHERE) \
    X("repoqa",                                                                                    \
      .prompt = "Based on the function description and code context, please retrieve and repeat "  \
                "the exact described function from the code context in a code block wrapped by "   \
                "```:\n\n{context}\n\n{input}",                                                    \
      .max_new = 1024, .scorer = KVL_SCORE_EDIT, .unofficial = EDITS)                              \
    X("summary_with_needles", PLAIN, .parts = scbench_needles, .flags = KVL_ROWS_NOWHERE,          \
      .unofficial = PARTS)                                                                         \
    X("repoqa_and_kv", PLAIN, .parts = scbench_both, .unofficial = PARTS ", and functions by BLEU")

static const struct kvl_rows_part scbench_needles[] = {
    { "scbench_summary", 800, KVL_SCORE_ROUGE_LSUM },
    { "scbench_passkey", 15, KVL_SCORE_FIRST_INT },
    { 0 },
};
static const struct kvl_rows_part scbench_both[] = {
    { "scbench_repoqa", 1024, KVL_SCORE_EDIT },
    { "scbench_kv", 80, KVL_SCORE_KV_IN },
    { 0 },
};

static const struct kvl_rows_set scbench_sets[] = { SCBENCH(KVL_ROWS_SET) };
static const char *const scbench_names[] = { SCBENCH(KVL_ROWS_NAME) NULL };

/* "The largest number is": "What is the largest number?" */
static int scbench_field(const struct kvl_row *r, const char *name, struct kvl_buf *out)
{
    struct kvl_buf input = { 0 };
    if (strcmp(name, "context") == 0 && kvl_row_field(r, "context").n == 0)
        return kvl_jtext_is_null(kvl_row_field(r, "input"))
                   ? KVL_EINVAL
                   : kvl_jtext_add(kvl_jtext_member(r->row, "input"), out);
    if (strcmp(name, "prefix") != 0) return KVL_EINVAL;
    int rc = kvl_row_text(r, "input", &input);
    const char *first = rc == KVL_OK ? strstr(input.data, "The ") : NULL;
    size_t n = first ? strcspn(first, "\n") : 0;
    while (n > 4 && strncmp(first + n - 3, " is", 3) != 0) n--;
    if (rc == KVL_OK && n <= 4) rc = KVL_EINVAL;
    for (size_t i = 0; rc == KVL_OK && i < n - 3; i++)
        input.data[first - input.data + (ptrdiff_t)i] = (char)tolower((unsigned char)first[i]);
    if (rc == KVL_OK) rc = kvl_buf_printf(out, "What is %.*s?", (int)(n - 3), first);
    kvl_buf_free(&input);
    return rc;
}

static const struct kvl_rows_kind scbench_kind = {
    .name = "scbench",
    .paths = { "scbench_%s.jsonl", "data/scbench_%s.jsonl", "multi_turn_%s.jsonl", "%s.jsonl" },
    .context = "context",
    .question = "input",
    .answers = "answer",
    .choices = "options",
    .turns = "multi_turns",
    .id = "id",
    .keep = { "answer", "options", "task", "name", "lang", "repo" },
    .field = scbench_field,
    .typed = true,
};

KVL_ROWS_TASK(scbench, "kv", "middle", "SCBench, from its files", "Li et al., SCBench, ICLR 2025",
              "several questions about one context: 12 tasks");

KVL_TASK_EXPORT(scbench)
