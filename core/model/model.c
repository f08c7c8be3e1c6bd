/* A model: file, weights, tokenizer, and the facts that logs repeat. */
#include "model_impl.h"

#include "gguf_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MODEL_TABLES_LIMIT = 64 << 20 };

static size_t weight_bytes(const struct kvl_weight *w)
{
    return (size_t)w->n_rows * w->row_bytes;
}

/* Every matrix but the embedding, of which a token reads one row, and of experts those that are chosen; vectors
 * are too small to count. */
static void model_count_weights(struct kvl_model *m)
{
    const struct kvl_weights *w = &m->w;
    int32_t n = KVL_MAX(w->hparams.n_experts, 1), used = KVL_MAX(w->hparams.n_experts_used, 1);
    m->token_bytes = weight_bytes(&w->output) + w->embed.row_bytes;
    m->layer_weights = 0;
    for (int32_t i = 0; i < w->hparams.n_layers; i++) {
        const struct kvl_layer_weights *l = &w->layer[i];
        const struct {
            const struct kvl_weight *w;
            bool of_experts;
        } all[] = { { &l->attn_q, false },      { &l->attn_k, false }, { &l->attn_v, false },
                    { &l->attn_output, false }, { &l->router, false }, { &l->ffn_gate, true },
                    { &l->ffn_up, true },       { &l->ffn_down, true } };
        for (size_t j = 0; j < sizeof all / sizeof all[0]; j++) {
            int32_t rows = all[j].w->n_rows;
            if (all[j].of_experts) rows = rows / n * used;
            m->token_bytes += (size_t)rows * all[j].w->row_bytes;
            m->layer_weights += (int64_t)rows * all[j].w->n_cols;
        }
    }
}

static size_t model_tensor_bytes(const struct kvl_gguf *g)
{
    size_t bytes = 0;
    for (int64_t i = 0; i < kvl_gguf_n_tensors(g); i++) bytes += kvl_gguf_tensor_at(g, i)->bytes;
    return bytes;
}

/* general.name, or the file's name without folder and suffix. */
static void model_find_name(struct kvl_model *m)
{
    struct kvl_str name;
    struct kvl_err ignored = { 0 };
    if (kvl_gguf_has(m->file, "general.name") &&
        kvl_gguf_str(m->file, "general.name", &name, &ignored) == KVL_OK && name.len > 0) {
        snprintf(m->name, sizeof m->name, "%.*s", (int)KVL_MIN(name.len, sizeof m->name - 1),
                 name.s);
        return;
    }
    const char *base = strrchr(m->path, '/');
    base = base ? base + 1 : m->path;
    const char *dot = strrchr(base, '.');
    size_t len = dot && dot != base ? (size_t)(dot - base) : strlen(base);
    snprintf(m->name, sizeof m->name, "%.*s", (int)KVL_MIN(len, sizeof m->name - 1), base);
}

/* It goes into lines of tables. */
static void model_set_name(struct kvl_model *m)
{
    model_find_name(m);
    for (char *c = m->name; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
}

/* Methods do without where there is none: what is wrong with one that is there is kept to be told. */
static void model_tables(struct kvl_model *m)
{
    struct kvl_err *err = &m->tables_unused;
    struct kvl_buf text = { 0 };
    char *path = kvl_tables_path(m->path);
    if (!path) {
        kvl_fail(err, KVL_ENOMEM, "out of memory for tables");
    } else if (access(path, F_OK) == 0) {
        int rc = kvl_read_file(path, MODEL_TABLES_LIMIT, &text, err);
        if (rc == KVL_OK)
            rc = kvl_tables_parse(text.data ? text.data : "", text.len, m->hash, &m->shape,
                                  &m->tables, err);
        if (rc != KVL_OK && !strstr(err->msg, path)) kvl_fail_at(err, rc, "%s", path);
    }
    m->shape.tables = m->tables;
    kvl_buf_free(&text);
    kvl_free(path);
}

static int model_windows(struct kvl_model *m, struct kvl_err *err)
{
    bool any = false;
    if (m->windows_off && m->w.arch->window_period > 0)
        return kvl_fail(err, KVL_EINVAL,
                        "window off: a %s model has windows in some layers, as trained; want auto",
                        m->w.arch->name);
    m->window = kvl_alloc((size_t)m->shape.n_layers, sizeof *m->window);
    if (!m->window) return kvl_fail(err, KVL_ENOMEM, "no memory for %d layers", m->shape.n_layers);
    for (int32_t l = 0; l < m->shape.n_layers; l++) {
        if (m->windows_off) m->w.layer[l].window = 0;
        m->window[l] = m->w.layer[l].window;
        any = any || m->window[l] > 0;
    }
    if (any) m->shape.window = m->window;
    return KVL_OK;
}

static bool model_is_still(const struct kvl_weights *w)
{
    int32_t n = 0;
    for (int32_t l = 0; l < w->hparams.n_layers; l++)
        n += w->layer[l].rope == &w->rope[KVL_ROPE_NOT];
    return n == w->hparams.n_layers;
}

static int model_find(struct kvl_model *m, bool read, struct kvl_err *err)
{
    KVL_TRY(read ? kvl_gguf_open(m->path, &m->file, err) : kvl_gguf_map(m->path, &m->file, err));
    KVL_TRY(kvl_gguf_check_kind(m->file, err));
    KVL_TRY(kvl_weights_find(m->file, &m->w, err));
    KVL_TRY(kvl_tokenizer_create(m->file, &m->tokenizer, err));
    const struct kvl_hparams *hp = &m->w.hparams;
    if (kvl_tokenizer_size(m->tokenizer) > hp->n_vocab)
        return kvl_fail(err, KVL_EMODEL, "its tokenizer has %d tokens, its embedding only %d rows",
                        kvl_tokenizer_size(m->tokenizer), hp->n_vocab);
    kvl_tokenizer_rows(m->tokenizer, hp->n_vocab);
    m->shape = (struct kvl_shape){
        .n_layers = hp->n_layers,
        .n_heads = hp->n_heads,
        .n_kv_heads = hp->n_kv_heads,
        .head_dim = hp->head_dim,
        .n_embd = hp->n_embd,
        .n_vocab = hp->n_vocab,
        .n_ctx_train = hp->n_ctx_train,
        .scale = m->w.scale,
        .cap = m->w.cap,
        .group = hp->n_heads / hp->n_kv_heads,
        .no_rope = model_is_still(&m->w),
    };
    KVL_TRY(model_windows(m, err));
    model_set_name(m);
    m->bytes = model_tensor_bytes(m->file);
    model_count_weights(m);
    return KVL_OK;
}

/* Tables say of which model they are. */
static int model_read(struct kvl_model *m, struct kvl_err *err)
{
    KVL_TRY(kvl_weights_scan(m->file, m->hash, err));
    model_tables(m);
    return KVL_OK;
}

static int model_open(const struct kvl_model_desc *desc, bool read, struct kvl_model **out,
                      struct kvl_err *err)
{
    const char *path = desc->path;
    struct kvl_model *m = kvl_alloc(1, sizeof *m);
    if (!m) return kvl_fail(err, KVL_ENOMEM, "%s: out of memory", path);
    m->path = strdup(path);
    m->windows_off = desc->windows_off;
    int rc = m->path ? model_find(m, read, err) : KVL_ENOMEM;
    if (rc == KVL_OK && read) rc = model_read(m, err);
    if (rc != KVL_OK) {
        kvl_model_close(m);
        return err && strstr(err->msg, path) == err->msg ? rc : kvl_fail_at(err, rc, "%s", path);
    }
    *out = m;
    return KVL_OK;
}

int kvl_model_open_desc(const struct kvl_model_desc *desc, struct kvl_model **out,
                        struct kvl_err *err)
{
    return model_open(desc, true, out, err);
}

int kvl_model_open(const char *path, struct kvl_model **out, struct kvl_err *err)
{
    return kvl_model_open_desc(&(struct kvl_model_desc){ .path = path }, out, err);
}

int kvl_model_look(const char *path, struct kvl_model **out, struct kvl_err *err)
{
    return model_open(&(struct kvl_model_desc){ .path = path }, false, out, err);
}

void kvl_model_close(struct kvl_model *m)
{
    if (!m) return;
    kvl_tokenizer_destroy(m->tokenizer);
    kvl_weights_free(&m->w);
    kvl_gguf_close(m->file);
    kvl_tables_free(m->tables);
    kvl_free(m->window);
    free(m->path);
    kvl_free(m);
}

const struct kvl_shape *kvl_model_shape(const struct kvl_model *m)
{
    return &m->shape;
}
const struct kvl_tokenizer *kvl_model_tokenizer(const struct kvl_model *m)
{
    return m->tokenizer;
}
const char *kvl_model_chat(const struct kvl_model *m)
{
    return kvl_tokenizer_template(m->tokenizer);
}
const char *kvl_model_name(const struct kvl_model *m)
{
    return m->name;
}
const char *kvl_model_path(const struct kvl_model *m)
{
    return m->path;
}
const char *kvl_model_hash(const struct kvl_model *m)
{
    return m->hash;
}
const char *kvl_model_tables_unused(const struct kvl_model *m)
{
    return m->tables_unused.code != KVL_OK ? m->tables_unused.msg : NULL;
}
int32_t kvl_model_short_tok(const struct kvl_model *m)
{
    return m->w.n_ctx_short;
}
size_t kvl_model_bytes(const struct kvl_model *m)
{
    return m->bytes;
}
int64_t kvl_model_layer_weights(const struct kvl_model *m)
{
    return m->layer_weights;
}

size_t kvl_model_token_bytes(const struct kvl_model *m)
{
    return m->token_bytes;
}
