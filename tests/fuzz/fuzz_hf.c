/* Any bytes as tokenizer.json or tokenizer.model of a Hugging Face folder: refused with a line, or a
 * tokenizer whose tokens lie in its vocabulary and in the text.  Byte 0 of the input picks the file,
 * and whether the configuration beside it says anything. */
#include "tokenizer_hf.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok) abort();
}

static void check_text(const struct kvl_tokenizer *t, uint32_t flags)
{
    static const char text[] = "The  caf\xc3\xa9 e\xcc\x81 12<s>[u]<|x|> \xff\n'll ab";
    struct kvl_tokens ids = { 0 };
    struct kvl_buf back = { 0 };
    struct kvl_err err = { 0 };
    if (kvl_encode(t, text, sizeof text - 1, flags, &ids, &err) != KVL_OK)
        must(err.msg[0] && !strchr(err.msg, '\n'));
    for (int32_t i = 0; i < ids.n; i++) {
        must(ids.id[i] >= 0 && ids.id[i] < kvl_tokenizer_size(t) && ids.begin[i] < sizeof text);
        must(i == 0 || ids.begin[i] >= ids.begin[i - 1]);
    }
    must(kvl_decode(t, ids.id, ids.n, true, true, &back, NULL) == KVL_OK);
    kvl_buf_free(&back);
    kvl_tokens_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char config[] = "{\"add_eos_token\":true,\"eos_token\":{\"content\":\"</s>\"},"
                                 "\"added_tokens_decoder\":{\"3\":{\"content\":\"<|x|>\"},"
                                 "\"9\":{\"content\":\"[u]\",\"special\":true}}}";
    struct kvl_err err = { 0 };
    struct tok_hf h = { .dir = "folder", .main = "tokenizer.json", .err = &err };
    struct kvl_tokenizer *t = NULL;
    if (size == 0) return 0;
    if (data[0] & 2) h.config = json_loads(config, 0, NULL);
    if (data[0] & 1)
        h.json = json_loadb((const char *)data + 1, size - 1, JSON_ALLOW_NUL, NULL);
    else
        must(kvl_buf_add(&h.proto, data + 1, size - 1) == KVL_OK);
    bool is_json = !(data[0] & 1) || json_is_object(h.json);
    if (is_json && kvl_tok_hf_create(&h, &t) != KVL_OK)
        must(!t && err.msg[0] && !strchr(err.msg, '\n'));
    for (uint32_t flags = 0; t && flags < 8; flags++) check_text(t, flags);
    kvl_tokenizer_destroy(t);
    json_decref(h.json);
    json_decref(h.config);
    kvl_buf_free(&h.proto);
    return 0;
}
