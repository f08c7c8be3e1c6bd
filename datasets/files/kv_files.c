/* kv_files - key-value retrieval of Liu et al. (TACL 2023), from the files that they published.
 *
 * Files: kv-retrieval-<n>_keys.jsonl.gz.  The pair that is asked for is taken out of the list and put in again at
 * the depth of the request (a place of the list, not of tokens); without a depth the places are spread
 * over the rows.  Prompts are those of the scripts (github.com/nelson-liu/lost-in-the-middle, MIT).
 */
#include "rows.h"

#include <string.h>

#define DATA  "Extract the value corresponding to the specified key in the JSON object below.\n\n"
#define ASK   "Key: \"{key}\"\n"
#define SET   .max_new = 100, .scorer = KVL_SCORE_SUBSTRING, .flags = KVL_ROWS_EXACT | KVL_ROWS_DEPTHS
#define PLAIN .prompt = DATA "JSON data:\n{context}\n\n" ASK "Corresponding value:", SET
#define AWARE .prompt = DATA ASK "\nJSON data:\n{context}\n\n" ASK "Corresponding value:", SET

#define KV_FILES(X)                                                                                \
    X("75", .file = "kv-retrieval-75_keys", PLAIN)                                                 \
    X("140", .file = "kv-retrieval-140_keys", PLAIN)                                               \
    X("300", .file = "kv-retrieval-300_keys", PLAIN)                                               \
    X("75_aware", .file = "kv-retrieval-75_keys", AWARE)                                           \
    X("140_aware", .file = "kv-retrieval-140_keys", AWARE)                                         \
    X("300_aware", .file = "kv-retrieval-300_keys", AWARE)

static const struct kvl_rows_set kv_files_sets[] = { KV_FILES(KVL_ROWS_SET) };
static const char *const kv_files_names[] = { KV_FILES(KVL_ROWS_NAME) NULL };

static bool pair_is(struct kvl_jtext pair, struct kvl_jtext key)
{
    struct kvl_jtext k = kvl_jtext_item(pair, 0);
    return k.n == key.n && memcmp(k.s, key.s, k.n) == 0;
}

static int pair_add(struct kvl_jtext pair, bool first, struct kvl_buf *out)
{
    struct kvl_jtext key = kvl_jtext_item(pair, 0), value = kvl_jtext_item(pair, 1);
    if (key.n == 0 || value.n == 0) return KVL_EINVAL;
    KVL_TRY(kvl_buf_adds(out, first ? "{" : ",\n "));
    KVL_TRY(kvl_buf_add(out, key.s, key.n));
    KVL_TRY(kvl_buf_adds(out, ": "));
    return kvl_buf_add(out, value.s, value.n);
}

/* The list in its order, but for the pair that is asked for. */
static int kv_files_field(const struct kvl_row *r, const char *name, struct kvl_buf *out)
{
    struct kvl_jtext list = kvl_row_field(r, "ordered_kv_records"), key = kvl_row_field(r, "key");
    struct kvl_jtext pair, asked = { 0 };
    const char *at = list.s;
    int32_t n = 0, i = 0;
    if (strcmp(name, "context") != 0) return KVL_EINVAL;
    while (kvl_jtext_each(list, &at, &pair)) {
        if (pair_is(pair, key)) asked = pair;
        n++;
    }
    if (asked.n == 0) return KVL_EINVAL;
    int32_t gold = (int32_t)(r->depth * (n - 1) + 0.5);
    for (at = list.s; kvl_jtext_each(list, &at, &pair);) {
        if (pair_is(pair, key)) continue;
        if (i == gold) KVL_TRY(pair_add(asked, i++ == 0, out));
        KVL_TRY(pair_add(pair, i++ == 0, out));
    }
    if (i == gold) KVL_TRY(pair_add(asked, i == 0, out));
    return kvl_buf_adds(out, "}");
}

static const struct kvl_rows_kind kv_files_kind = {
    .name = "kv_files",
    .paths = { "%s.jsonl", "kv_retrieval_data/%s.jsonl" },
    .answers = "value",
    .keep = { "key", "value" },
    .field = kv_files_field,
};

KVL_ROWS_TASK(kv_files, "140", "middle", "Key-value retrieval, from Liu et al.'s files",
              "Liu et al., Lost in the Middle, TACL 2023",
              "the value of a key of a JSON object, at any place of it");

KVL_TASK_EXPORT(kv_files)
