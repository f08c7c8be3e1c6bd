/* Creates tokenizers from GGUF files; of a folder told as one, tokenizer_hf.c does. */
#include "tokenizer_impl.h"

#include <string.h>

static bool equals(struct kvl_str s, const char *other)
{
    return s.len == strlen(other) && memcmp(s.s, other, s.len) == 0;
}

static int load_template(struct kvl_tokenizer *t, const struct kvl_gguf *file, struct kvl_err *err)
{
    static const char key[] = "tokenizer.chat_template";
    struct kvl_str s;
    if (!kvl_gguf_has(file, key)) return KVL_OK;
    KVL_TRY(kvl_gguf_str(file, key, &s, err));
    t->chat_template = kvl_alloc(s.len + 1, 1);
    if (!t->chat_template) return kvl_fail(err, KVL_ENOMEM, "no memory for a chat template");
    memcpy(t->chat_template, s.s, s.len);
    return KVL_OK;
}

/* Phi-3's own tokens take the white space behind them, and its files cannot say so. */
static int load_strips(struct kvl_tokenizer *t, const struct kvl_gguf *file, XXH3_state_t *hash,
                       struct kvl_err *err)
{
    static const char key[] = "general.architecture";
    struct kvl_str arch = { "", 0 };
    if (kvl_gguf_has(file, key)) KVL_TRY(kvl_gguf_str(file, key, &arch, err));
    if (t->bpe || !equals(arch, "phi3")) return KVL_OK;
    t->flags = kvl_alloc((size_t)t->n, sizeof *t->flags);
    if (!t->flags) return kvl_fail(err, KVL_ENOMEM, "no memory for %d tokens", t->n);
    for (int32_t i = 0; i < t->n; i++) {
        struct kvl_str s = kvl_tok_string(&t->text, i);
        bool plain = equals(s, "<unk>") || equals(s, "<s>") || equals(s, "<|endoftext|>");
        if (!plain && (t->type[i] == TOK_CONTROL || t->type[i] == TOK_USER))
            t->flags[i] = TOK_RSTRIP;
    }
    XXH3_64bits_update(hash, t->flags, (size_t)t->n);
    return KVL_OK;
}

static int load(struct kvl_tokenizer *t, const struct kvl_gguf *file, XXH3_state_t *hash,
                struct kvl_err *err)
{
    struct kvl_str model;
    KVL_TRY(kvl_gguf_str(file, "tokenizer.ggml.model", &model, err));
    t->bpe = equals(model, "gpt2");
    t->kind = t->bpe ? "gpt2" : "llama";
    if (!t->bpe && !equals(model, "llama"))
        return kvl_fail(err, KVL_EMODEL, "tokenizer.ggml.model is \"%.*s\", want llama or gpt2",
                        (int)KVL_MIN(model.len, (size_t)32), model.s);
    t->add_bos = !t->bpe;
    KVL_TRY(kvl_tok_load_vocab(t, file, hash, err));
    KVL_TRY(t->bpe ? kvl_tok_bpe_load(t, file, hash, err) : kvl_tok_spm_load(t, file, hash, err));
    KVL_TRY(load_strips(t, file, hash, err));
    KVL_TRY(load_template(t, file, err));
    return kvl_tok_load_special(t, err);
}

int kvl_tokenizer_create(const struct kvl_gguf *file, struct kvl_tokenizer **out,
                         struct kvl_err *err)
{
    const char *dir = kvl_gguf_folder(file);
    if (dir) return kvl_tokenizer_from_hf(dir, out, err);
    struct kvl_tokenizer *t = kvl_alloc(1, sizeof *t);
    XXH3_state_t *hash = XXH3_createState();
    int rc = t && hash ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "no memory for a tokenizer");
    if (rc == KVL_OK) {
        XXH3_64bits_reset(hash);
        rc = load(t, file, hash, err);
    }
    if (rc == KVL_OK) {
        t->hash = XXH3_64bits_digest(hash);
        *out = t;
        t = NULL;
    }
    XXH3_freeState(hash);
    kvl_tokenizer_destroy(t);
    return rc;
}
