/* A model file or folder in a dozen lines. */
#include "inspect_model.h"

#include "args.h"
#include "kvl/chat.h"
#include "kvl/gguf.h"
#include "kvl/model.h"
#include "machine.h"

#include <stdio.h>
#include <string.h>

enum { INSPECT_TYPES = 64 };

static const int64_t inspect_length[] = { 8192, 32768, 131072 };

struct inspect_size {
    char s[32];
};

static struct inspect_size size_of(size_t bytes)
{
    struct inspect_size t;
    bool small = bytes < (size_t)1 << 30;
    snprintf(t.s, sizeof t.s, small ? "%.1f MiB" : "%.2f GiB",
             (double)bytes / (small ? 0x1p20 : 0x1p30));
    return t;
}

static void inspect_text(const struct kvl_gguf *g, const char *key, const char *what)
{
    struct kvl_str s;
    struct kvl_err ignored = { 0 };
    if (!kvl_gguf_has(g, key) || kvl_gguf_str(g, key, &s, &ignored) != KVL_OK) return;
    printf("%-14s ", what);
    for (size_t i = 0; i < s.len && i < 96; i++)
        putchar((unsigned char)s.s[i] < 0x20 || s.s[i] == 0x7f ? '?' : s.s[i]);
    putchar('\n');
}

/* ---- the file -------------------------------------------------------------------------------- */

static void inspect_files(const struct kvl_gguf *g, const char *path)
{
    printf("%-14s %s\n", "file", path);
    printf("%-14s %s, %s\n", "form",
           kvl_gguf_folder(g) ? "folder of Hugging Face's form (safetensors)" : "GGUF",
           size_of(kvl_gguf_size(g)).s);
    inspect_text(g, "general.name", "name");
    inspect_text(g, "general.architecture", "architecture");
}

/* Bytes by type of weight, the largest first. */
static void inspect_types(const struct kvl_gguf *g)
{
    size_t bytes[INSPECT_TYPES] = { 0 }, all = 0;
    for (int64_t i = 0; i < kvl_gguf_n_tensors(g); i++) {
        const struct kvl_gguf_tensor *t = kvl_gguf_tensor_at(g, i);
        if (t->type < INSPECT_TYPES) bytes[t->type] += t->bytes;
        all += t->bytes;
    }
    printf("%-14s %s:", "weights", size_of(all).s);
    for (const char *between = " ";; between = ", ") {
        uint32_t most = 0;
        for (uint32_t i = 1; i < INSPECT_TYPES; i++)
            if (bytes[i] > bytes[most]) most = i;
        if (bytes[most] == 0) break;
        printf("%s%s %.1f %%", between, kvl_gguf_tensor_type_name(most),
               100.0 * (double)bytes[most] / (double)all);
        bytes[most] = 0;
    }
    putchar('\n');
}

/* ---- the model ------------------------------------------------------------------------------- */

/* The one that sweeps and `generate --chat auto` use. */
static void inspect_template(const struct kvl_model *m)
{
    const struct kvl_tokenizer *t = kvl_model_tokenizer(m);
    struct kvl_chat *chat = NULL;
    struct kvl_err why = { 0 };
    printf("%-14s ", "chat template");
    if (!kvl_tokenizer_template(t))
        printf("none; prompts are raw text\n");
    else if (kvl_chat_open(t, NULL, &chat, &why) == KVL_OK)
        printf("%s: the file's own is run\n", kvl_chat_name(chat));
    else
        printf("cannot be run, want chat: none, or a name (%s)\n", why.msg);
    kvl_chat_close(chat);
}

static int inspect_cache(const struct kvl_model *m, enum kvl_kv_type type, struct kvl_err *err)
{
    const struct kvl_engine_desc desc = { .model = m, .kv_type = type };
    struct kvl_footprint f;
    KVL_TRY(kvl_footprint(&desc, 1, &f, err));
    printf("%-14s %zu bytes per token (%s)", "KV cache", f.block_bytes / (size_t)f.block_tok,
           kvl_kv_name(type).text);
    for (size_t i = 0; i < sizeof inspect_length / sizeof inspect_length[0]; i++) {
        KVL_TRY(kvl_footprint(&desc, inspect_length[i], &f, err));
        printf("%s %s at %dK", i ? "," : ":", size_of(f.kv_bytes).s,
               (int)(inspect_length[i] / 1024));
    }
    putchar('\n');
    return KVL_OK;
}

static int inspect_memory(const struct kvl_model *m, struct kvl_err *err)
{
    const struct kvl_engine_desc desc = { .model = m, .kv_type = KVL_KV_F16 };
    struct kvl_footprint f;
    char all[128] = "";
    size_t len = 0;
    static const enum kvl_kv_type types[] = { KVL_KV_F16, KVL_KV_Q8_0, KVL_KV_Q4_0 };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (kvl_kv_check(types[i], kvl_model_shape(m)->head_dim, NULL) == KVL_OK)
            KVL_TRY(inspect_cache(m, types[i], err));
    for (size_t i = 0; i < sizeof inspect_length / sizeof inspect_length[0]; i++) {
        const char *between = i ? "," : "";
        KVL_TRY(kvl_footprint(&desc, inspect_length[i], &f, err));
        int kib = (int)(inspect_length[i] / 1024);
        len += (size_t)snprintf(all + len, sizeof all - len, "%s %s at %dK", between,
                                size_of(f.kv_bytes + f.work_bytes + f.weight_bytes).s, kib);
    }
    printf("%-14s with weights and activations%s; %.1f GiB are free here\n", "memory", all,
           (double)kvl_memory_free_bytes() / 0x1p30);
    return KVL_OK;
}

static int inspect_about(const struct kvl_model *m, struct kvl_err *err)
{
    struct kvl_buf text = { 0 };
    int rc = kvl_model_about(m, &text);
    if (rc == KVL_OK && text.len) fputs(text.data, stdout);
    kvl_buf_free(&text);
    if (rc != KVL_OK) return kvl_fail(err, rc, "no memory to describe it");
    inspect_template(m);
    KVL_TRY(inspect_memory(m, err));
    printf("%-14s yes (kvlab generate --model %s --prompt TEXT)\n", "runs", kvl_model_path(m));
    return KVL_OK;
}

static int inspect_all(const struct kvl_gguf *g, struct kvl_err *err)
{
    struct kvl_buf text = { 0 };
    int rc = kvl_gguf_describe(g, &text);
    if (rc == KVL_OK && text.len)
        printf("\n%s", text.data);
    else if (rc != KVL_OK)
        kvl_fail(err, rc, "no memory to describe it");
    kvl_buf_free(&text);
    return rc;
}

int kvl_inspect_model(const char *path, bool all, struct kvl_err *err)
{
    struct kvl_gguf *g;
    struct kvl_model *m = NULL;
    struct kvl_err why = { 0 };
    KVL_TRY(kvl_gguf_map(path, &g, err));
    inspect_files(g, path);
    inspect_types(g);
    int rc = kvl_model_look(path, &m, &why);
    if (rc == KVL_OK)
        rc = inspect_about(m, err);
    else if (rc == KVL_EMODEL || rc == KVL_EINVAL) {
        printf("%-14s no: %s\n", "runs", why.msg);
        rc = KVL_OK;
    } else {
        kvl_fail(err, rc, "%s", why.msg);
    }
    if (rc == KVL_OK && all) rc = inspect_all(g, err);
    kvl_model_close(m);
    kvl_gguf_close(g);
    return rc;
}
