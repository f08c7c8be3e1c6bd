/* Opens a folder: which files there are, and one virtual GGUF file of them. */
#include "hf.h"

#include "hf_impl.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char hf_config_name[] = "config.json";

/* Of the model's identity beside the weights, where they are there. */
static const char *const hf_small[] = {
    "config.json",           "generation_config.json",  "tokenizer.json",      "tokenizer.model",
    "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
};

static bool hf_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* Where the name "config.json" begins at the end of a path; NULL: it does not. */
static const char *hf_config_at(const char *path)
{
    size_t len = strlen(path), n = sizeof hf_config_name - 1;
    const char *at = len >= n ? path + len - n : NULL;
    return at && strcmp(at, hf_config_name) == 0 && (at == path || at[-1] == '/') ? at : NULL;
}

bool kvl_hf_is(const char *path)
{
    return hf_is_folder(path) || hf_config_at(path);
}

/* The folder without a '/' at its end (kvl_free). */
static char *hf_folder(const char *path)
{
    const char *config = hf_is_folder(path) ? NULL : hf_config_at(path);
    size_t len = config ? (size_t)(config - path) : strlen(path);
    while (len > 1 && path[len - 1] == '/') len--;
    char *dir = kvl_alloc(len + 2, 1);
    if (dir && len) memcpy(dir, path, len);
    if (dir && !len) dir[0] = '.';
    return dir;
}

static char *hf_path(const char *dir, const char *name)
{
    size_t n = strlen(dir) + strlen(name) + 2;
    char *path = kvl_alloc(n, 1);
    if (path) snprintf(path, n, "%s/%s", dir, name);
    return path;
}

static size_t hf_file_bytes(const char *dir, const char *name)
{
    char *path = hf_path(dir, name);
    size_t bytes = path ? kvl_filemap_size(path) : 0;
    kvl_free(path);
    return bytes;
}

/* ---- what the folder is not ------------------------------------------------------------------ */

/* The first file whose name ends so. */
static bool hf_has_ending(const char *dir, const char *ending, char name[256])
{
    DIR *d = opendir(dir);
    bool found = false;
    for (struct dirent *e; d && !found && (e = readdir(d));) {
        size_t len = strlen(e->d_name), n = strlen(ending);
        found = len > n && len < 256 && strcmp(e->d_name + len - n, ending) == 0;
        if (found) memcpy(name, e->d_name, len + 1);
    }
    if (d) closedir(d);
    return found;
}

static int hf_no_config(const char *dir, struct kvl_err *err)
{
    char name[256];
    if (hf_file_bytes(dir, "adapter_config.json"))
        return kvl_fail(err, KVL_EMODEL, "an adapter (LoRA); want the model with it merged in");
    if (hf_has_ending(dir, ".gguf", name))
        return kvl_fail(err, KVL_EMODEL, "a folder of GGUF files; want one of them, such as %s/%s",
                        dir, name);
    return kvl_fail(err, KVL_EMODEL,
                    "no config.json in this folder; want a GGUF file, or a folder with config.json "
                    "and *.safetensors");
}

static int hf_check_weights(const char *dir, struct kvl_err *err)
{
    char name[256];
    if (hf_file_bytes(dir, "model.safetensors") ||
        hf_file_bytes(dir, "model.safetensors.index.json"))
        return KVL_OK;
    if (hf_has_ending(dir, ".bin", name) || hf_has_ending(dir, ".pth", name) ||
        hf_has_ending(dir, ".pt", name))
        return kvl_fail(err, KVL_EMODEL,
                        "weights as %s (PyTorch), which can run code; want *.safetensors or a GGUF "
                        "file",
                        name);
    return kvl_fail(err, KVL_EMODEL,
                    "config.json, but no model.safetensors and no "
                    "model.safetensors.index.json in this folder");
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* The folder's name; that of the model where the folder is one of Hugging Face's cache. */
static int hf_name_key(struct hf *h)
{
    const char *slash = strrchr(h->dir, '/'), *name = slash ? slash + 1 : h->dir;
    const char *models = strstr(h->dir, "models--"), *end = strstr(h->dir, "/snapshots/");
    size_t len = strlen(name);
    if (models && end && models < end) {
        const char *last = models + 8;
        for (const char *p = last; p + 1 < end; p++)
            if (p[0] == '-' && p[1] == '-') last = p + 2;
        name = last;
        len = (size_t)(end - last);
    }
    return kvl_hf_str(h, "general.name", name, len);
}

/* Keys as the bytes of a file without tensors, which lives as long as h->g. */
static int hf_parse_keys(struct hf *h)
{
    const uint32_t version = 3;
    const uint64_t none = 0;
    struct kvl_buf head = { 0 };
    int rc = kvl_buf_adds(&head, "GGUF");
    if (rc == KVL_OK) rc = kvl_buf_add(&head, &version, sizeof version);
    if (rc == KVL_OK) rc = kvl_buf_add(&head, &none, sizeof none);
    if (rc == KVL_OK) rc = kvl_buf_add(&head, &h->n_keys, sizeof h->n_keys);
    if (rc == KVL_OK) rc = kvl_buf_add(&head, h->keys.data, h->keys.len);
    if (rc == KVL_OK) rc = kvl_gguf_parse(head.data, head.len, &h->g, h->err);
    if (rc == KVL_OK && (rc = kvl_gguf_own(h->g, head.data, 0)) == KVL_OK) return KVL_OK;
    kvl_buf_free(&head);
    return rc;
}

/* ---- files ----------------------------------------------------------------------------------- */

/* The weights' files go over, the small ones follow. */
static int hf_files(struct hf *h)
{
    size_t n_small = sizeof hf_small / sizeof hf_small[0];
    struct kvl_gguf *g = h->g;
    g->file = kvl_alloc(h->weights.n_files + n_small, sizeof *g->file);
    if (!g->file) return KVL_ENOMEM;
    for (size_t i = 0; i < h->weights.n_files; i++) {
        g->file[g->n_files++] = h->weights.file[i];
        h->weights.file[i] = (struct kvl_filemap){ 0 };
    }
    for (size_t i = 0; i < n_small; i++) {
        if (!hf_file_bytes(h->dir, hf_small[i])) continue;
        char *path = hf_path(h->dir, hf_small[i]);
        int rc = path ? kvl_filemap_open(path, true, &g->file[g->n_files], h->err) : KVL_ENOMEM;
        kvl_free(path);
        if (rc != KVL_OK) return rc;
        g->n_files++;
    }
    return KVL_OK;
}

static int hf_read(struct hf *h, const char *config)
{
    struct gguf_tensor *tensor = NULL;
    size_t n = 0;
    KVL_TRY(kvl_hf_json_file(config, KVL_HF_JSON_DOUBLES, &h->config, h->err));
    KVL_TRY(kvl_hf_config(h));
    KVL_TRY(hf_name_key(h));
    KVL_TRY(hf_check_weights(h->dir, h->err));
    KVL_TRY(hf_parse_keys(h));
    KVL_TRY(kvl_safetensors_open(h->dir, h->map, &h->weights, h->err));
    KVL_TRY(kvl_hf_tensors(h, &tensor, &n));
    KVL_TRY(kvl_gguf_set_tensors(h->g, tensor, n, h->err));
    return hf_files(h);
}

static int hf_open(char *dir, bool map, struct kvl_gguf **out, struct kvl_err *err)
{
    struct hf h = { .dir = dir, .map = map, .err = err };
    char *config = hf_path(dir, hf_config_name);
    int rc = config ? KVL_OK : KVL_ENOMEM;
    if (config && kvl_filemap_size(config) == 0) rc = hf_no_config(dir, err);
    if (rc == KVL_OK) rc = hf_read(&h, config);
    if (rc == KVL_OK && (rc = kvl_gguf_own(h.g, dir, 0)) == KVL_OK) {
        h.g->hf_dir = dir;
        *out = h.g;
        h.g = NULL;
    } else {
        if (rc == KVL_ENOMEM) kvl_fail(err, rc, "no memory to read this folder");
        kvl_free(dir);
    }
    for (int32_t i = 0; i < h.n_more; i++) kvl_free(h.more[i].x);
    kvl_gguf_close(h.g);
    kvl_safetensors_close(&h.weights);
    kvl_buf_free(&h.keys);
    json_decref(h.config);
    kvl_free(config);
    return rc;
}

int kvl_hf_open(const char *path, bool map, struct kvl_gguf **out, struct kvl_err *err)
{
    char *dir = hf_folder(path);
    if (!dir) return kvl_fail(err, KVL_ENOMEM, "%s: no memory", path);
    int rc = hf_open(dir, map, out, err);
    return rc == KVL_OK ? KVL_OK : kvl_fail_at(err, rc, "%s", path);
}
