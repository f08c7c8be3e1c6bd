/* GPT-2's two files, vocab.json and merges.txt, which OPT's folders have instead of tokenizer.json.
 * They are made into what tokenizer.json would say.  They do not say how a text is cut, so that only
 * the classes that cut it as GPT-2 does are read. */
#include "tokenizer_hf.h"

#include <string.h>

static bool cuts_as_gpt2(const struct tok_hf *h)
{
    const json_t *name = json_object_get(h->config, "tokenizer_class");
    const json_t *model = json_object_get(h->model, "model_type");
    if (name)
        return kvl_hf_json_is(name, "GPT2Tokenizer") || kvl_hf_json_is(name, "GPT2TokenizerFast");
    return kvl_hf_json_is(model, "opt") || kvl_hf_json_is(model, "gpt2");
}

/* A line a merge; the first line may be the version.  NULL for bytes that are not UTF-8. */
static json_t *merge_list(const struct kvl_buf *file)
{
    json_t *list = json_array();
    const char *s = file->data ? file->data : "", *end = s + file->len;
    while (list && s < end) {
        const char *stop = memchr(s, '\n', (size_t)(end - s));
        size_t len = (size_t)((stop ? stop : end) - s), text = len;
        if (text > 0 && s[text - 1] == '\r') text--;
        bool version = s == file->data && text >= 8 && memcmp(s, "#version", 8) == 0;
        if (text > 0 && !version && json_array_append_new(list, json_stringn(s, text)) != 0) {
            json_decref(list);
            return NULL;
        }
        s += len + 1;
    }
    return list;
}

/* The special tokens of the configurations, each once. */
static json_t *special_list(const struct tok_hf *h, const json_t *vocab)
{
    static const char *const key[] = { "bos_token", "eos_token", "unk_token", "pad_token" };
    json_t *list = json_array(), *seen = json_object();
    for (size_t i = 0; i < 2 * sizeof key / sizeof key[0]; i++) {
        const json_t *in = i % 2 ? h->map : h->config, *v = json_object_get(in, key[i / 2]);
        const char *text = json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
        json_t *id = text ? json_object_get(vocab, text) : NULL;
        if (!id || json_object_get(seen, text)) continue;
        json_object_set(seen, text, id);
        json_array_append_new(list,
                              json_pack("{s:O,s:s,s:b}", "id", id, "content", text, "special", 1));
    }
    json_decref(seen);
    return list;
}

int kvl_tok_gpt2_files(struct tok_hf *h, json_t *vocab, const struct kvl_buf *merges)
{
    const json_t *space = json_object_get(h->config, "add_prefix_space");
    if (!cuts_as_gpt2(h))
        return kvl_fail(h->err, KVL_EMODEL,
                        "%s: vocab.json and merges.txt do not say how text is cut, and "
                        "tokenizer_class is not GPT2Tokenizer; where transformers can load the "
                        "folder, AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) writes "
                        "tokenizer.json",
                        h->dir);
    if (json_is_true(space))
        return kvl_fail(h->err, KVL_EMODEL,
                        "%s/tokenizer_config.json: add_prefix_space is true, want false", h->dir);
    json_t *list = merge_list(merges);
    if (!list) return kvl_fail(h->err, KVL_EMODEL, "%s/merges.txt is no UTF-8 text", h->dir);
    h->json = json_pack("{s:{s:s,s:O,s:o},s:{s:s,s:b},s:o}", "model", "type", "BPE", "vocab", vocab,
                        "merges", list, "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0,
                        "added_tokens", special_list(h, vocab));
    return h->json ? KVL_OK : kvl_fail(h->err, KVL_ENOMEM, "no memory for %s's tokens", h->dir);
}
