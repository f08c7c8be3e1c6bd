/* longbench_v2 - LongBench v2 (Bai et al., 2024): questions with four choices.
 *
 * File: data.json (an array) or data.jsonl.  Prompt, tokens to generate and scorer are those of the script
 * (github.com/THUDM/LongBench, MIT), which generates at temperature 0.1: here greedily.  Names are the parts
 * that the script reports.
 */
#include "rows.h"

#include <string.h>

#define ALL                                                                                        \
    .prompt = "Please read the following text and answer the question below.\n\n<text>\n{context}" \
              "\n</text>\n\nWhat is the correct answer to this question: {question}\nChoices:\n"   \
              "(A) {choice_A}\n(B) {choice_B}\n(C) {choice_C}\n(D) {choice_D}\n\nFormat your "     \
              "response as follows: \"The correct answer is (insert answer here)\".",              \
    .file = "data", .max_new = 128, .scorer = KVL_SCORE_CHOICE_TAG, .flags = KVL_ROWS_NOWHERE

#define LONGBENCH_V2(X)                                                                            \
    X("all_rows", ALL)                                                                             \
    X("easy", ALL)                                                                                 \
    X("hard", ALL)                                                                                 \
    X("short", ALL)                                                                                \
    X("medium", ALL)                                                                               \
    X("long", ALL)

static const struct kvl_rows_set longbench_v2_sets[] = { LONGBENCH_V2(KVL_ROWS_SET) };
static const char *const longbench_v2_names[] = { LONGBENCH_V2(KVL_ROWS_NAME) NULL };

/* Space at the ends of context, question and choices is left out. */
static int longbench_v2_field(const struct kvl_row *r, const char *name, struct kvl_buf *out)
{
    static const char blank[] = " \t\n\v\f\r";
    struct kvl_buf text = { 0 };
    int rc = kvl_row_text(r, name, &text);
    const char *s = rc == KVL_OK ? text.data + strspn(text.data, blank) : "";
    size_t n = strlen(s);
    while (n > 0 && strchr(blank, s[n - 1])) n--;
    if (rc == KVL_OK) rc = kvl_buf_adds(out, "");
    if (rc == KVL_OK) rc = kvl_buf_add(out, s, n);
    kvl_buf_free(&text);
    return rc;
}

static bool longbench_v2_wants(const struct kvl_row *r)
{
    struct kvl_jtext fields[] = { kvl_row_field(r, "difficulty"), kvl_row_field(r, "length") };
    size_t n = strlen(r->set->name);
    if (strcmp(r->set->name, "all_rows") == 0) return true;
    for (size_t i = 0; i < 2; i++)
        if (fields[i].n == n + 2 && memcmp(fields[i].s + 1, r->set->name, n) == 0) return true;
    return false;
}

static const struct kvl_rows_kind longbench_v2_kind = {
    .name = "longbench_v2",
    .paths = { "%s.json", "%s.jsonl" },
    .context = "context",
    .question = "question",
    .answers = "answer",
    .id = "_id",
    .keep = { "_id", "domain", "sub_domain", "difficulty", "length" },
    .field = longbench_v2_field,
    .wants = longbench_v2_wants,
    .around = true,
    .odd_back = true,
};

KVL_ROWS_TASK(longbench_v2, "all_rows", "middle", "LongBench v2, from its file",
              "Bai et al., LongBench v2, 2024", "questions with four choices over long texts");

KVL_TASK_EXPORT(longbench_v2)
