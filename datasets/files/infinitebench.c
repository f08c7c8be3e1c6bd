/* infinitebench - InfiniteBench (Zhang et al., ACL 2024): all 12 tasks.
 *
 * Files: <task>.jsonl of the published data.  Prompts (those for models without a chat interface), tokens to
 * generate and scorers are those of the scripts (github.com/OpenBMB/InfiniteBench, MIT), byte for byte: scores
 * depend on them.  Rows of passkey, number_string and kv_retrieval are sorted by depth: they are shuffled
 * unless `order` says otherwise.
 */
#include "rows.h"

#include <ctype.h>
#include <string.h>

#define BOOK    "\n\n{context}\n\n"
#define OPTIONS "A. {OPTION_A}\nB. {OPTION_B}\nC. {OPTION_C}\nD. {OPTION_D}\n\n"
#define MASK                                                                                       \
    "Below is a dialogue script where one random occurrence of a character name is replaced with " \
    "\"$$MASK$$\", and you should try to guess who that character is."

#define INFINITEBENCH(X)                                                                           \
    X("passkey",                                                                                   \
      .prompt = "There is an important info hidden inside a lot of irrelevant text. Find it and "  \
                "memorize it. I will quiz you about the important information." BOOK               \
                "{input}\n\nThe pass key is",                                                      \
      .max_new = 6, .scorer = KVL_SCORE_FIRST_INT, .flags = KVL_ROWS_BY_DEPTH | KVL_ROWS_EXACT)    \
    X("number_string",                                                                             \
      .prompt = "There is an important info hidden inside a lot of irrelevant text. Find it. I "   \
                "will quiz you about the important information there." BOOK                        \
                "{input}\n\nThe sequence of digits is",                                            \
      .max_new = 12, .scorer = KVL_SCORE_FIRST_INT, .flags = KVL_ROWS_BY_DEPTH | KVL_ROWS_EXACT)   \
    X("kv_retrieval",                                                                              \
      .prompt = "Extract the value corresponding to the specified key in the JSON object "         \
                "below." BOOK "{input}",                                                           \
      .max_new = 50, .scorer = KVL_SCORE_KV_WORDS, .flags = KVL_ROWS_BY_DEPTH | KVL_ROWS_EXACT)    \
    X("longbook_sum_eng", .prompt = "Summarize the book below." BOOK "Summary:", .max_new = 1200,  \
      .scorer = KVL_SCORE_ROUGE_LSUM, .flags = KVL_ROWS_NOWHERE)                                   \
    X("longbook_choice_eng",                                                                       \
      .prompt = "Read the book and answer the question." BOOK "Question: {question}\n" OPTIONS     \
                "The letter of the correct answer is",                                             \
      .max_new = 40, .scorer = KVL_SCORE_CHOICE, .flags = KVL_ROWS_LETTER)                         \
    X("longbook_qa_eng",                                                                           \
      .prompt = "Read the book and answer the question. Be very concise in your answer." BOOK      \
                "Question: {question}\nAnswer:",                                                   \
      .max_new = 40, .scorer = KVL_SCORE_F1)                                                       \
    X("longbook_qa_chn", .prompt = "阅读以下书籍然后回答问题。" BOOK "问题：{question}\n答案：",   \
      .max_new = 40, .scorer = KVL_SCORE_F1_ZH)                                                    \
    X("longdialogue_qa_eng",                                                                       \
      .prompt = MASK BOOK "The name that has been replaced with $$MASK$$ is likely",               \
      .max_new = 40, .scorer = KVL_SCORE_DIALOGUE)                                                 \
    X("math_find", .prompt = "{prefix}" BOOK "{input}", .max_new = 3,                              \
      .scorer = KVL_SCORE_MATH_FIND, .flags = KVL_ROWS_NOWHERE)                                    \
    X("math_calc",                                                                                 \
      .prompt = "Let us calculate the intermediate values of an expression.\n\nExpression: 1 + 3 " \
                "+ 4\nValues: [1, 4, 8]\n\nExpression: 8 - 3 + 2 - 4\nValues: [8, 5, 7, "          \
                "3]\n\nExpression: {context}\nValues:",                                            \
      .max_new = 30000, .scorer = KVL_SCORE_MATH_CALC, .flags = KVL_ROWS_NOWHERE)                  \
    X("code_run",                                                                                  \
      .prompt = "There is a function called {func} in the following Python code." BOOK             \
                "Please compute the exact value of {func_call}. The value of {func_call} is",      \
      .max_new = 5, .scorer = KVL_SCORE_CODE_RUN, .flags = KVL_ROWS_NOWHERE)                       \
    X("code_debug",                                                                                \
      .prompt = "Following is a Python code where exactly one of the functions/methods has a "     \
                "deliberate error that makes it crash." BOOK "Options:\n" OPTIONS                  \
                "The correct option is:",                                                          \
      .max_new = 5, .scorer = KVL_SCORE_CODE_DEBUG, .flags = KVL_ROWS_LETTER)

static const struct kvl_rows_set infinitebench_sets[] = { INFINITEBENCH(KVL_ROWS_SET) };
static const char *const infinitebench_names[] = { INFINITEBENCH(KVL_ROWS_NAME) NULL };

/* func_12(-3): name, parenthesis, number, parenthesis; the length of it, 0 = none. */
static size_t call_at(const char *s)
{
    size_t n = 5, digits;
    if (strncmp(s, "func_", n) != 0) return 0;
    digits = strspn(s + n, "0123456789");
    n += digits;
    if (digits == 0 || s[n++] != '(') return 0;
    n += s[n] == '-';
    digits = strspn(s + n, "0123456789");
    n += digits;
    return digits > 0 && s[n] == ')' ? n + 1 : 0;
}

static int call_find(const char *input, bool whole, struct kvl_buf *out)
{
    for (const char *s = input; (s = strstr(s, "func_")) != NULL; s++) {
        size_t n = call_at(s);
        if (n > 0) return kvl_buf_add(out, s, whole ? n : strcspn(s, "("));
    }
    return KVL_EINVAL;
}

/* "What is the largest number in the following list?": what stands in the first line that has it between
 * "The " and the last " of". */
static int find_prefix(const char *input, struct kvl_buf *out)
{
    const char *first = strstr(input, "The ");
    if (!first) return KVL_EINVAL;
    size_t n = strcspn(first, "\n");
    while (n > 4 && strncmp(first + n - 3, " of", 3) != 0) n--;
    if (n <= 4) return KVL_EINVAL;
    struct kvl_buf text = { 0 }, lower = { 0 };
    int rc = kvl_buf_add(&text, first, n - 3);
    if (rc == KVL_OK) rc = kvl_buf_adds(&lower, text.data);
    for (char *c = lower.data; rc == KVL_OK && *c; c++) *c = (char)tolower((unsigned char)*c);
    if (rc == KVL_OK) rc = kvl_buf_printf(out, "What is %s in the following list?", lower.data);
    kvl_buf_free(&text);
    kvl_buf_free(&lower);
    return rc;
}

static int infinitebench_field(const struct kvl_row *r, const char *name, struct kvl_buf *out)
{
    struct kvl_buf input = { 0 };
    if (strcmp(name, "context") == 0 && kvl_row_field(r, "context").n == 0)
        return kvl_row_text(r, "content", out);
    bool call = strcmp(name, "func_call") == 0, func = strcmp(name, "func") == 0;
    if (!call && !func && strcmp(name, "prefix") != 0) return KVL_EINVAL;
    int rc = kvl_row_text(r, "input", &input);
    if (rc == KVL_OK)
        rc = call || func ? call_find(input.data, call, out) : find_prefix(input.data, out);
    kvl_buf_free(&input);
    return rc;
}

static const struct kvl_rows_kind infinitebench_kind = {
    .name = "infinitebench",
    .paths = { "%s.jsonl", "data/%s.jsonl" },
    .context = "context",
    .question = "input",
    .answers = "answer",
    .choices = "options",
    .id = "id",
    .keep = { "answer", "options" },
    .field = infinitebench_field,
    .typed = true,
    .around = true,
    .odd_back = true,
};

KVL_ROWS_TASK(infinitebench, "passkey", "middle", "InfiniteBench, from its files",
              "Zhang et al., InfiniteBench, ACL 2024",
              "retrieval, books, dialogues, code and numbers in about 100,000 tokens: 12 tasks");

KVL_TASK_EXPORT(infinitebench)
