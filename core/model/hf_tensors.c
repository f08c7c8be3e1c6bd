/* Tensors of a folder under the names and in the layouts of GGUF.
 *
 * Matrices stay where they are, in their type, as long as their rows lie as a GGUF file's do.  Vectors become
 * floats, as there; with them what is converted is small. */
#include "hf_impl.h"

#include "half.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum hf_how {
    HOW_SAME,
    HOW_SKIP, /* follows from config.json */
};

/* A stem of a name: without what stands before layers, and without ".weight" or ".bias". */
struct hf_rule {
    const char *hf, *gguf;
    enum hf_how how;
    const char *arch; /* of this one alone; NULL: of all that have no row of their own */
};

static const struct hf_rule hf_outer[] = {
    { .hf = "embed_tokens", .gguf = "token_embd" },
    { .hf = "norm", .gguf = "output_norm" },
    { .hf = "lm_head", .gguf = "output" },
};

static const struct hf_rule hf_inner[] = {
    { .hf = "input_layernorm", .gguf = "attn_norm" },
    { .hf = "post_attention_layernorm", .gguf = "ffn_norm" },
    { .hf = "self_attn.q_proj", .gguf = "attn_q" },
    { .hf = "self_attn.k_proj", .gguf = "attn_k" },
    { .hf = "self_attn.v_proj", .gguf = "attn_v" },
    { .hf = "self_attn.o_proj", .gguf = "attn_output" },
    { .hf = "self_attn.rotary_emb.inv_freq", .how = HOW_SKIP },
    { .hf = "mlp.gate_proj", .gguf = "ffn_gate" },
    { .hf = "mlp.up_proj", .gguf = "ffn_up" },
    { .hf = "mlp.down_proj", .gguf = "ffn_down" },
};

/* What a name says. */
struct hf_name {
    const struct hf_rule *rule;
    int32_t layer;      /* -1: none */
    const char *suffix; /* ".weight", ".bias" or "" */
};

struct hf_table {
    struct hf *h;
    struct gguf_tensor *all;
    size_t n, cap;
};

/* ---- names ----------------------------------------------------------------------------------- */

static const struct hf_rule *rule_find(const struct hf *h, const struct hf_rule *rule, size_t n,
                                       const char *stem, size_t len)
{
    const struct hf_rule *common = NULL;
    for (size_t i = 0; i < n; i++) {
        if (strlen(rule[i].hf) != len || memcmp(rule[i].hf, stem, len) != 0) continue;
        if (rule[i].arch && strcmp(rule[i].arch, h->is->arch) == 0) return &rule[i];
        if (!rule[i].arch) common = &rule[i];
    }
    return common;
}

static const char *name_skip(const char *name, const char *prefix)
{
    size_t n = strlen(prefix);
    return strncmp(name, prefix, n) == 0 ? name + n : name;
}

static void name_read(const struct hf *h, const char *name, struct hf_name *out)
{
    static const char *const ends[] = { ".weight", ".bias" };
    const char *at = name_skip(name, "model.");
    *out = (struct hf_name){ .layer = -1, .suffix = "" };
    size_t len = strlen(at);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        size_t n = strlen(ends[i]);
        if (len > n && strcmp(at + len - n, ends[i]) == 0) {
            out->suffix = ends[i];
            len -= n;
            break;
        }
    }
    if (strncmp(at, "layers.", 7) != 0 || at[7] < '0' || at[7] > '9') {
        out->rule = rule_find(h, hf_outer, sizeof hf_outer / sizeof hf_outer[0], at, len);
        return;
    }
    char *dot;
    long layer = strtol(at + 7, &dot, 10);
    if (layer >= h->n_layers || *dot != '.') return;
    out->layer = (int32_t)layer;
    len -= (size_t)(dot + 1 - at);
    out->rule = rule_find(h, hf_inner, sizeof hf_inner / sizeof hf_inner[0], dot + 1, len);
}

/* ---- layouts --------------------------------------------------------------------------------- */

static void *room_block(struct hf *h, size_t bytes)
{
    void *p = kvl_alloc(bytes, 1);
    if (p && kvl_gguf_own(h->g, p, bytes) == KVL_OK) return p;
    kvl_free(p);
    kvl_fail(h->err, KVL_ENOMEM, "no memory for %zu bytes of a tensor", bytes);
    return NULL;
}

/* Memory that lives as long as the file.  Small ones share blocks: devices copy block by block. */
static void *hf_room(struct hf *h, size_t bytes)
{
    enum { BLOCK = 1 << 20, SMALL = 1 << 16, ALIGN = 64 };
    size_t want = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (bytes > SMALL) return room_block(h, bytes);
    if (want > h->room_left) {
        h->room = room_block(h, BLOCK);
        h->room_left = h->room ? BLOCK : 0;
    }
    uint8_t *p = h->room;
    if (!p) return NULL;
    h->room += want;
    h->room_left -= want;
    return p;
}

static float float_of(const struct st_tensor *t, size_t i)
{
    uint16_t half;
    float f;
    if (t->type == KVL_W_F32) {
        memcpy(&f, t->data + i * sizeof f, sizeof f);
        return f;
    }
    memcpy(&half, t->data + i * sizeof half, sizeof half);
    return t->type == KVL_W_F16 ? kvl_f16_to_f32(half) : kvl_bf16_to_f32(half);
}

/* A vector as floats; norms of some families are kept less one. */
static int to_floats(struct hf *h, const struct st_tensor *t, const struct hf_name *n,
                     struct kvl_gguf_tensor *y)
{
    size_t count = (size_t)t->dims[0];
    bool norm = n->rule->gguf && strstr(n->rule->gguf, "norm");
    float plus = norm && (h->is->flags & HF_NORM_PLUS_1) ? 1.0f : 0.0f;
    float *x = hf_room(h, count * sizeof *x);
    if (!x) return KVL_ENOMEM;
    for (size_t i = 0; i < count; i++) x[i] = float_of(t, i) + plus;
    y->data = x;
    y->type = KVL_W_F32;
    y->bytes = count * sizeof *x;
    return KVL_OK;
}

/* Elements must lie at multiples of their size; the format does not promise it. */
static int align(struct hf *h, struct kvl_gguf_tensor *y)
{
    if ((uintptr_t)y->data % (y->type == KVL_W_F32 ? 4 : 2) == 0) return KVL_OK;
    void *copy = hf_room(h, y->bytes);
    if (!copy) return KVL_ENOMEM;
    memcpy(copy, y->data, y->bytes);
    y->data = copy;
    return KVL_OK;
}

/* ---- the table ------------------------------------------------------------------------------- */

static struct kvl_gguf_tensor *table_add(struct hf_table *x)
{
    if (x->n == x->cap) {
        size_t cap = x->cap ? 2 * x->cap : 64;
        struct gguf_tensor *all = kvl_alloc(cap, sizeof *all);
        if (!all) {
            kvl_fail(x->h->err, KVL_ENOMEM, "no memory for %zu tensors", cap);
            return NULL;
        }
        if (x->n) memcpy(all, x->all, x->n * sizeof *all);
        kvl_free(x->all);
        x->all = all;
        x->cap = cap;
    }
    return &x->all[x->n++].t;
}

static void table_name(struct hf_table *x, const struct hf_name *n)
{
    struct gguf_tensor *e = &x->all[x->n - 1];
    if (n->layer < 0)
        snprintf(e->name, sizeof e->name, "%s%s", n->rule->gguf, n->suffix);
    else
        snprintf(e->name, sizeof e->name, "blk.%d.%s%s", n->layer, n->rule->gguf, n->suffix);
}

static int table_same(struct hf_table *x, const struct st_tensor *t, const struct hf_name *n)
{
    struct kvl_gguf_tensor *y = table_add(x);
    if (!y) return KVL_ENOMEM;
    *y = (struct kvl_gguf_tensor){ .type = (uint32_t)t->type,
                                   .n_dims = t->n_dims,
                                   .offset =
                                       (uint64_t)(t->data - x->h->weights.file[t->i_file].data),
                                   .bytes = t->bytes,
                                   .data = t->data };
    for (uint32_t i = 0; i < GGUF_MAX_DIMS; i++)
        y->dims[i] = i < t->n_dims ? t->dims[t->n_dims - 1 - i] : 1;
    table_name(x, n);
    if (t->n_dims == 1) return to_floats(x->h, t, n, y);
    return align(x->h, y);
}

static int table_tensor(struct hf_table *x, const struct st_tensor *t)
{
    struct hf *h = x->h;
    struct hf_name n;
    char shown[GGUF_SHOWN + 4];
    name_read(h, t->name, &n);
    if (!n.rule)
        return kvl_fail(h->err, KVL_EMODEL, "tensor \"%s\" is not part of a supported %s",
                        kvl_gguf_show(t->name, strlen(t->name), shown), h->is->name);
    bool output = n.layer < 0 && n.rule->gguf && strcmp(n.rule->gguf, "output") == 0;
    if (n.rule->how == HOW_SKIP || (output && h->tied)) return KVL_OK;
    return table_same(x, t, &n);
}

static int table_floats(struct hf_table *x, struct hf_floats *f)
{
    struct kvl_gguf_tensor *y = table_add(x);
    if (!y) return KVL_ENOMEM;
    *y = (struct kvl_gguf_tensor){ .type = KVL_W_F32,
                                   .n_dims = 1,
                                   .dims = { f->n, 1, 1, 1 },
                                   .bytes = (size_t)f->n * sizeof *f->x,
                                   .data = f->x };
    memcpy(x->all[x->n - 1].name, f->name, sizeof f->name);
    KVL_TRY(kvl_gguf_own(x->h->g, f->x, y->bytes));
    f->x = NULL;
    return KVL_OK;
}

/* A file without it would be taken for a tied one. */
static int check_output(const struct hf_table *x)
{
    const struct hf *h = x->h;
    for (size_t i = 0; i < x->n; i++)
        if (strcmp(x->all[i].name, "output.weight") == 0) return KVL_OK;
    if (h->tied) return KVL_OK;
    return kvl_fail(
        h->err, KVL_EMODEL,
        "tensor \"lm_head.weight\" is missing, and config.json's tie_word_embeddings is "
        "not true");
}

int kvl_hf_tensors(struct hf *h, struct gguf_tensor **out, size_t *n)
{
    struct hf_table x = { .h = h };
    int rc = KVL_OK;
    for (size_t i = 0; i < h->weights.n_tensors && rc == KVL_OK; i++)
        rc = table_tensor(&x, &h->weights.tensor[i]);
    for (int32_t i = 0; i < h->n_more && rc == KVL_OK; i++) rc = table_floats(&x, &h->more[i]);
    if (rc == KVL_OK) rc = check_output(&x);
    if (rc != KVL_OK) {
        kvl_free(x.all);
        return rc;
    }
    *out = x.all;
    *n = x.n;
    return KVL_OK;
}
