/* Tells files that hold no model, or not in a form that is read, by name. */
#include "gguf_impl.h"

#include <stdio.h>
#include <string.h>

#define KIND_GGUF "want a GGUF file, or a folder with config.json and *.safetensors"

static bool kind_safetensors(const uint8_t *data, size_t size)
{
    uint64_t n;
    if (size < 10) return false;
    memcpy(&n, data, sizeof n);
    return n >= 2 && n <= size - 8 && data[8] == '{';
}

int kvl_gguf_check_magic(const void *data, size_t size, struct kvl_err *err)
{
    static const struct {
        const char *magic, *what;
    } row[] = {
        { "lmgg", "a GGML file, a form of before GGUF; " KIND_GGUF },
        { "fmgg", "a GGMF file, a form of before GGUF; " KIND_GGUF },
        { "tjgg", "a GGJT file, a form of before GGUF; " KIND_GGUF },
        { "algg", "a LoRA adapter in a form of before GGUF; " KIND_GGUF },
        { "FUGG", "a GGUF file with its bytes swapped (big-endian); want one for this machine" },
        { "PK\3\4", "a ZIP archive (PyTorch's .bin and .pt are such); " KIND_GGUF },
        { "\x80\2", "a pickle of Python (old .bin and .pth are such); " KIND_GGUF },
        { "\x80\4", "a pickle of Python; " KIND_GGUF },
        { "version https://git-lfs",
          "a Git LFS pointer, not the file; want the file: git lfs pull" },
        { "<!DOCTYPE", "a web page, not a model; download the file itself" },
        { "<html", "a web page, not a model; download the file itself" },
        { "\x1f\x8b", "compressed by gzip; want it unpacked" },
        { "\x28\xb5\x2f\xfd", "compressed by zstd; want it unpacked" },
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        size_t n = strlen(row[i].magic);
        if (size >= n && memcmp(data, row[i].magic, n) == 0)
            return kvl_fail(err, KVL_EMODEL, "%s", row[i].what);
    }
    if (kind_safetensors(data, size))
        return kvl_fail(
            err, KVL_EMODEL,
            "a safetensors file has weights alone; want its folder, with config.json and "
            "the tokenizer in it");
    return KVL_OK;
}

static bool kind_is(const struct kvl_str *s, const char *word)
{
    return s->len == strlen(word) && memcmp(s->s, word, s->len) == 0;
}

int kvl_gguf_check_kind(const struct kvl_gguf *g, struct kvl_err *err)
{
    static const struct {
        const char *key, *value, *what;
    } row[] = {
        { "general.type", "adapter", "an adapter (LoRA); want the model with it merged in" },
        { "general.type", "imatrix",
          "an importance matrix, made to quantise a model; want the model" },
        { "general.type", "mmproj", "the image or sound part of a model; want its text part" },
        { "general.architecture", "clip", "the image part of a model; want its text part" },
    };
    char shown[GGUF_SHOWN + 4];
    struct kvl_str type = { "model", 5 };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        struct kvl_str is;
        if (!kvl_gguf_has(g, row[i].key)) continue;
        KVL_TRY(kvl_gguf_str(g, row[i].key, &is, err));
        if (kind_is(&is, row[i].value))
            return kvl_fail(err, KVL_EMODEL, "%s is \"%s\": %s", row[i].key, row[i].value,
                            row[i].what);
    }
    if (kvl_gguf_has(g, "general.type")) KVL_TRY(kvl_gguf_str(g, "general.type", &type, err));
    if (!kind_is(&type, "model"))
        return kvl_fail(err, KVL_EMODEL, "general.type is \"%s\", want model",
                        kvl_gguf_show(type.s, type.len, shown));
    if (g->n_tensors == 0)
        return kvl_fail(err, KVL_EMODEL, "no tensors%s; want the whole model",
                        kvl_gguf_has(g, "tokenizer.ggml.tokens") ? ": a vocabulary alone" : "");
    return KVL_OK;
}
