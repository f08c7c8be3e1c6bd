/* What a tokenizer is, for people. */
#include "tokenizer_impl.h"

#include <string.h>

enum { MAX_ENDS_SHOWN = 16 };

static int add_token(const struct kvl_tokenizer *t, int32_t id, struct kvl_buf *out)
{
    struct kvl_str s = kvl_tok_string(&t->text, id);
    return kvl_buf_printf(out, "%d %.*s", id, (int)KVL_MIN(s.len, (size_t)64), s.s);
}

static int add_id(const struct kvl_tokenizer *t, const char *name, int32_t id, const char *more,
                  struct kvl_buf *out)
{
    KVL_TRY(kvl_buf_printf(out, "%-14s", name));
    KVL_TRY(id < 0 ? kvl_buf_adds(out, "none") : add_token(t, id, out));
    return kvl_buf_printf(out, "%s\n", id < 0 ? "" : more);
}

static int add_ends(const struct kvl_tokenizer *t, struct kvl_buf *out)
{
    int32_t n = 0;
    KVL_TRY(kvl_buf_printf(out, "%-14s", "ends"));
    for (int32_t i = 0; i < t->n; i++) {
        if (!t->ends[i] || n++ >= MAX_ENDS_SHOWN) continue;
        KVL_TRY(kvl_buf_adds(out, n > 1 ? ", " : ""));
        KVL_TRY(add_token(t, i, out));
    }
    if (n > MAX_ENDS_SHOWN) KVL_TRY(kvl_buf_printf(out, " and %d more", n - MAX_ENDS_SHOWN));
    return kvl_buf_adds(out, n ? "\n" : "none\n");
}

static int add_rules(const struct kvl_tokenizer *t, struct kvl_buf *out)
{
    const char *algorithm = t->bpe                        ? "byte-level BPE"
                            : strcmp(t->kind, "bpe") == 0 ? "characters merged by rank"
                                                          : "characters merged by score";
    KVL_TRY(kvl_buf_printf(out, "%-14s%s (%s)\n", "kind", t->kind, algorithm));
    if (t->pre)
        return kvl_buf_printf(
            out, "%-14s%s%s\n", "pre-tokenizer", t->pre,
            !t->pre_named ? " (the file names none: ids may differ from the model's own)" : "");
    if (t->bpe)
        return kvl_buf_printf(out, "%-14s%d pattern%s of tokenizer.json%s\n", "pre-tokenizer",
                              t->n_patterns, t->n_patterns == 1 ? "" : "s",
                              t->nfc ? ", text composed first (NFC)" : "");
    return kvl_buf_printf(out, "%-14s%s\n", "prefix space",
                          !t->add_space   ? "no"
                          : t->space_once ? "at the text's start"
                                          : "at the text's start and behind special tokens");
}

int kvl_tokenizer_describe(const struct kvl_tokenizer *t, struct kvl_buf *out)
{
    KVL_TRY(add_rules(t, out));
    KVL_TRY(kvl_buf_printf(out, "%-14s%d, of them %d special\n", "tokens", t->n, t->n_special));
    KVL_TRY(add_id(t, "bos", t->bos, t->add_bos ? ", put in front" : ", not added", out));
    KVL_TRY(add_id(t, "eos", t->eos, t->add_eos ? ", put at the end" : ", not added", out));
    KVL_TRY(add_ends(t, out));
    size_t bytes = t->chat_template ? strlen(t->chat_template) : 0;
    return bytes ? kvl_buf_printf(out, "%-14s%zu bytes\n", "chat template", bytes)
                 : kvl_buf_printf(out, "%-14snone\n", "chat template");
}
