/* Any bytes as a GGUF file: reader, weights and tokenizer either refuse them with a message or
 * give something that can be used.
 *
 *   cmake -B build-fuzz -DCMAKE_C_COMPILER=clang -DKVL_FUZZ=ON -DKVL_SAN=address,undefined,fuzzer-no-link
 *   tests/fuzz/corpus.sh unpack gguf build-fuzz/gguf
 *   fuzz_gguf -dict=tests/fuzz/gguf.dict -malloc_limit_mb=256 -timeout=2 build-fuzz/gguf
 */
#include "kvl/gguf.h"
#include "kvl/tokenizer.h"
#include "weights.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok) abort();
}

/* A refusal says why, in one line. */
static void check_refusal(int rc, const struct kvl_err *err)
{
    must(rc == KVL_EMODEL || rc == KVL_ENOMEM);
    must(err->code == rc && err->msg[0] && !strchr(err->msg, '\n'));
}

static void check_tensors(const struct kvl_gguf *g, const uint8_t *data, size_t size)
{
    for (int64_t i = 0; i < kvl_gguf_n_tensors(g); i++) {
        const struct kvl_gguf_tensor *t = kvl_gguf_tensor_at(g, i);
        must(t->offset <= size && t->bytes <= size - t->offset);
        must(t->data == data + t->offset);
        must(kvl_gguf_tensor(g, t->name) == t);
    }
}

static void try_weights(const struct kvl_gguf *g)
{
    struct kvl_weights w;
    struct kvl_err err = { 0 };
    int rc = kvl_weights_load(g, &w, &err);
    if (rc == KVL_OK)
        kvl_weights_free(&w);
    else
        check_refusal(rc, &err);
}

static void try_tokenizer(const struct kvl_gguf *g)
{
    static const char text[] = "Hello,  w\xc3\xb6rld's <s> 123\n\n \xff\xe2\x96\x81 aab";
    struct kvl_tokenizer *t = NULL;
    struct kvl_tokens out = { 0 };
    struct kvl_buf back = { 0 };
    struct kvl_err err = { 0 };
    int rc = kvl_tokenizer_create(g, &t, &err);
    if (rc != KVL_OK) {
        check_refusal(rc, &err);
        return;
    }
    rc = kvl_encode(t, text, sizeof text - 1, KVL_ENCODE_BOS | KVL_ENCODE_SPECIAL, &out, &err);
    must(rc == KVL_OK || rc == KVL_EINVAL); /* a byte may have no token */
    must(kvl_decode(t, out.id, out.n, true, true, &back, NULL) == KVL_OK);
    kvl_buf_free(&back);
    kvl_tokens_free(&out);
    kvl_tokenizer_destroy(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvl_gguf *g = NULL;
    struct kvl_buf text = { 0 };
    struct kvl_err err = { 0 };
    char hash[33];
    int rc = kvl_gguf_open_memory(data, size, &g, &err);
    if (rc != KVL_OK) {
        check_refusal(rc, &err);
        return 0;
    }
    check_tensors(g, data, size);
    must(kvl_gguf_describe(g, &text) == KVL_OK);
    kvl_gguf_hash(g, hash);
    try_weights(g);
    try_tokenizer(g);
    kvl_buf_free(&text);
    kvl_gguf_close(g);
    return 0;
}
