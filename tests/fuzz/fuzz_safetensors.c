/* Any bytes as a safetensors file: refused with a message, or tensors that lie in it.
 *
 *   cmake -B build-fuzz -DCMAKE_C_COMPILER=clang -DKVL_FUZZ=ON -DKVL_SAN=address,undefined,fuzzer-no-link
 *   tests/fuzz/corpus.sh unpack safetensors build-fuzz/safetensors
 *   fuzz_safetensors -dict=tests/fuzz/safetensors.dict -timeout=2 build-fuzz/safetensors
 */
#include "safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kvl_safetensors s;
    struct kvl_err err = { 0 };
    int rc = kvl_safetensors_open_memory(data, size, &s, &err);
    if (rc != KVL_OK) {
        must(rc == KVL_EMODEL || rc == KVL_ENOMEM);
        must(err.code == rc && err.msg[0] && !strchr(err.msg, '\n'));
    }
    size_t bytes = 0;
    for (size_t i = 0; rc == KVL_OK && i < s.n_tensors; i++) {
        const struct st_tensor *t = &s.tensor[i];
        must(t->data >= data && t->data <= data + size);
        must(t->bytes <= (size_t)(data + size - t->data));
        must(kvl_safetensors_find(&s, t->name) == t);
        bytes += t->bytes;
    }
    must(bytes <= size);
    kvl_safetensors_close(&s);
    return 0;
}
