/* mrcr - OpenAI-MRCR: the n-th answer to a request that a conversation has several times.
 *
 * Files: <needles>needle.jsonl, the published parquet converted; `prompt` is a JSON list of messages, which are
 * written as "User: " and "Assistant: " here.  The score is difflib's ratio to the answer, 0 without the
 * letters that it has to begin with, as in the card of the data (MIT).
 */
#include "rows.h"

#include <string.h>

#define SET .prompt = "{context}{question}", .max_new = 0, .scorer = KVL_SCORE_MRCR
#define MRCR(X)                                                                                    \
    X("2needle", SET)                                                                              \
    X("4needle", SET)                                                                              \
    X("8needle", SET)

static const struct kvl_rows_set mrcr_sets[] = { MRCR(KVL_ROWS_SET) };
static const char *const mrcr_names[] = { MRCR(KVL_ROWS_NAME) NULL };

static int mrcr_message(struct kvl_jtext m, struct kvl_buf *out)
{
    struct kvl_jtext role = kvl_jtext_member(m, "role"), text = kvl_jtext_member(m, "content");
    bool user = role.n == 6 && memcmp(role.s, "\"user\"", 6) == 0;
    if (text.n == 0) return KVL_EINVAL;
    KVL_TRY(kvl_buf_adds(out, user ? "User: " : "Assistant: "));
    KVL_TRY(kvl_jtext_add(text, out));
    return kvl_buf_adds(out, "\n");
}

/* All messages but the last one are the context. */
static int mrcr_field(const struct kvl_row *r, const char *name, struct kvl_buf *out)
{
    bool context = strcmp(name, "context") == 0;
    struct kvl_buf prompt = { 0 };
    struct kvl_jtext list, m;
    if (!context && strcmp(name, "question") != 0) return KVL_EINVAL;
    int rc = kvl_row_text(r, "prompt", &prompt);
    if (rc == KVL_OK) rc = kvl_jtext_value(prompt.data, prompt.data + prompt.len, &list, NULL);
    int32_t n = rc == KVL_OK ? kvl_jtext_items(list) : 0, i = 0;
    if (rc == KVL_OK && n < 2) rc = KVL_EINVAL;
    const char *at = list.s;
    for (; rc == KVL_OK && kvl_jtext_each(list, &at, &m); i++)
        if ((i < n - 1) == context) rc = mrcr_message(m, out);
    if (rc == KVL_OK && !context) rc = kvl_buf_adds(out, "Assistant:");
    kvl_buf_free(&prompt);
    return rc;
}

/* The answer, and what it begins with. */
static int mrcr_gold(const struct kvl_row *r, struct kvl_buf *out, int32_t *n)
{
    static const char *const fields[] = { "answer", "random_string_to_prepend" };
    for (; *n < 2; ++*n) {
        KVL_TRY(kvl_row_text(r, fields[*n], out));
        KVL_TRY(kvl_buf_add(out, "", 1));
    }
    return KVL_OK;
}

static const struct kvl_rows_kind mrcr_kind = {
    .name = "mrcr",
    .paths = { "%s.jsonl" },
    .answers = "answer",
    .evidence = "evidence",
    .keep = { "n_needles", "desired_msg_index", "total_messages", "n_chars" },
    .field = mrcr_field,
    .gold = mrcr_gold,
};

KVL_ROWS_TASK(mrcr, "2needle", "middle", "OpenAI-MRCR, from its files", "OpenAI, MRCR, 2025",
              "one of several answers that a conversation has to the same request");

KVL_TASK_EXPORT(mrcr)
