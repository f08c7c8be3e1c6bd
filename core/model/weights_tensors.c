/* Finds the tensors of a model, in the shapes that its keys want. */
#include "weights_impl.h"

#include <stdio.h>
#include <string.h>

enum { MAX_VOCAB = 1 << 24 };

/* "F32, F16, ... or BF16": every type that there is. */
static const char *type_list(char *out, size_t cap)
{
    int32_t n;
    const struct kvl_wtype_row *t = kvl_wtype_rows(&n);
    size_t len = 0;
    for (int32_t i = 0; i < n && len < cap; i++)
        len += (size_t)snprintf(out + len, cap - len, "%s%s",
                                i == 0       ? ""
                                : i + 1 == n ? " or "
                                             : ", ",
                                t[i].name);
    return out;
}

/* "[n_cols, n_rows]", and n_parts if there are more than one. */
static const char *shape_text(char out[64], int64_t n_parts, int64_t n_rows, int64_t n_cols)
{
    int len = snprintf(out, 64, "[%lld, %lld", (long long)n_cols, (long long)n_rows);
    if (n_parts > 1) len += snprintf(out + len, 64 - (size_t)len, ", %lld", (long long)n_parts);
    snprintf(out + len, 64 - (size_t)len, "]");
    return out;
}

/* The tensor as n_parts matrices of the wanted shape, one after the other; a vector is a matrix of one row. */
static int take(struct kvl_loader *l, const char *name, int64_t n_parts, int64_t n_rows,
                int64_t n_cols, struct kvl_weight *out)
{
    const struct kvl_gguf_tensor *t = kvl_gguf_tensor(l->g, name);
    char types[256], want[64];
    if (!t) return kvl_fail(l->err, KVL_EMODEL, "tensor \"%s\" is missing", name);
    if (t->dims[0] != n_cols || t->dims[1] != n_rows || t->dims[2] != n_parts || t->dims[3] != 1)
        return kvl_fail(l->err, KVL_EMODEL,
                        "tensor \"%s\" has shape [%lld, %lld, %lld, %lld], want %s", name,
                        (long long)t->dims[0], (long long)t->dims[1], (long long)t->dims[2],
                        (long long)t->dims[3], shape_text(want, n_parts, n_rows, n_cols));
    if (!kvl_wtype_find(t->type))
        return kvl_fail(l->err, KVL_EMODEL, "tensor \"%s\" has type %s, want %s", name,
                        kvl_gguf_tensor_type_name(t->type), type_list(types, sizeof types));
    *out = (struct kvl_weight){ .data = t->data,
                                .type = (enum kvl_wtype)t->type,
                                .n_rows = (int32_t)(n_rows * n_parts),
                                .n_cols = (int32_t)n_cols,
                                .row_bytes = t->bytes / (size_t)(n_rows * n_parts) };
    /* `t` is the first member of its table entry. */
    l->used[(const struct gguf_tensor *)(const void *)t - l->g->tensor] = true;
    return KVL_OK;
}

struct kvl_weight kvl_weight_rows(const struct kvl_weight *w, int32_t first, int32_t n)
{
    struct kvl_weight rows = *w;
    rows.data = (const uint8_t *)w->data + (size_t)first * w->row_bytes;
    rows.n_rows = n;
    return rows;
}

/* Rows of F32. */
static int take_floats(struct kvl_loader *l, const char *name, int64_t n_rows, int64_t n_cols,
                       const float **out)
{
    struct kvl_weight v;
    const struct kvl_gguf_tensor *t = kvl_gguf_tensor(l->g, name);
    if (t && t->type != KVL_W_F32)
        return kvl_fail(l->err, KVL_EMODEL, "tensor \"%s\" has type %s, want F32", name,
                        kvl_gguf_tensor_type_name(t->type));
    KVL_TRY(take(l, name, 1, n_rows, n_cols, &v));
    *out = v.data;
    return KVL_OK;
}

int kvl_take_vector(struct kvl_loader *l, const char *name, int64_t n, const float **out)
{
    return take_floats(l, name, 1, n, out);
}

/* The vocabulary's size is the embedding's; whatever else tells it must agree. */
static int load_vocab_size(struct kvl_loader *l)
{
    const struct kvl_gguf_tensor *t = kvl_gguf_tensor(l->g, "token_embd.weight");
    if (!t) return kvl_fail(l->err, KVL_EMODEL, "tensor \"token_embd.weight\" is missing");
    if (t->dims[1] < 1 || t->dims[1] > MAX_VOCAB)
        return kvl_fail(l->err, KVL_EMODEL,
                        "tensor \"token_embd.weight\" has %lld rows, want 1 to %d",
                        (long long)t->dims[1], MAX_VOCAB);
    l->w->hparams.n_vocab = (int32_t)t->dims[1];
    int64_t told = t->dims[1], tokens = t->dims[1];
    const char *key = kvl_key_of(l, "vocab_size");
    KVL_TRY(kvl_gguf_i64(l->g, key, 1, MAX_VOCAB, &told, &told, l->err));
    if (kvl_gguf_has(l->g, "tokenizer.ggml.tokens")) {
        enum kvl_gguf_type elem;
        const void *data;
        KVL_TRY(kvl_gguf_arr(l->g, "tokenizer.ggml.tokens", &elem, &tokens, &data, l->err));
    }
    if (told == t->dims[1] && tokens == t->dims[1]) return KVL_OK;
    return kvl_fail(l->err, KVL_EMODEL,
                    "%lld rows in token_embd.weight, %lld tokens, %s %lld: want equal",
                    (long long)t->dims[1], (long long)tokens, key, (long long)told);
}

int kvl_load_outer(struct kvl_loader *l)
{
    struct kvl_weights *w = l->w;
    const struct kvl_hparams *h = &w->hparams;
    KVL_TRY(load_vocab_size(l));
    KVL_TRY(take(l, "token_embd.weight", 1, h->n_vocab, h->n_embd, &w->embed));
    KVL_TRY(kvl_take_vector(l, "output_norm.weight", h->n_embd, &w->output_norm));
    if (w->arch->layer_norm)
        KVL_TRY(kvl_take_vector(l, "output_norm.bias", h->n_embd, &w->output_norm_bias));
    if (w->arch->positions)
        KVL_TRY(take(l, "position_embd.weight", 1, h->n_ctx_train, h->n_embd, &w->positions));
    w->tied = !kvl_gguf_tensor(l->g, "output.weight");
    w->output = w->embed;
    if (w->tied && !w->arch->untied) return KVL_OK;
    return take(l, "output.weight", 1, h->n_vocab, h->n_embd, &w->output);
}

/* ---- layers --------------------------------------------------------------------------------------- */

/* What a file must do with a tensor that an architecture knows. */
enum need { NOT, MAY, MUST };

/* A matrix, or as many as there are experts. */
struct layer_matrix {
    const char *name;
    enum need need;
    int32_t n_parts, n_rows, n_cols;
    struct kvl_weight *out;
};

struct layer_vector {
    const char *name;
    enum need need;
    int32_t n_rows, n;
    const float **out;
};

/* Whether the tensor is to be read; `full`, its name in the file, says which it is. */
static bool wanted(const struct kvl_loader *l, int32_t layer, const char *name, enum need need,
                   char full[64])
{
    snprintf(full, 64, "blk.%d.%s", layer, name);
    return need == MUST || (need == MAY && kvl_gguf_tensor(l->g, full));
}

static int load_matrices(struct kvl_loader *l, int32_t layer, const struct layer_matrix *m,
                         size_t n)
{
    char name[64];
    for (size_t i = 0; i < n; i++)
        if (wanted(l, layer, m[i].name, m[i].need, name))
            KVL_TRY(take(l, name, m[i].n_parts, m[i].n_rows, m[i].n_cols, m[i].out));
    return KVL_OK;
}

static int load_vectors(struct kvl_loader *l, int32_t layer, const struct layer_vector *v, size_t n)
{
    char name[64];
    for (size_t i = 0; i < n; i++)
        if (wanted(l, layer, v[i].name, v[i].need, name))
            KVL_TRY(take_floats(l, name, v[i].n_rows, v[i].n, v[i].out));
    return KVL_OK;
}

#define COUNT(table) (sizeof(table) / sizeof *(table))

static enum need must_if(bool there)
{
    return there ? MUST : NOT;
}

static int load_norms(struct kvl_loader *l, int32_t i)
{
    const struct kvl_arch *a = l->w->arch;
    const struct kvl_hparams *h = &l->w->hparams;
    struct kvl_layer_weights *y = &l->w->layer[i];
    enum need head = must_if(a->qk_norm), bias = must_if(a->layer_norm),
              post = must_if(a->post_norms);
    int32_t d = h->n_embd;
    char ffn[64];
    snprintf(ffn, sizeof ffn, "%s.weight", a->ffn_norm ? a->ffn_norm : "ffn_norm");
    const struct layer_vector vector[] = {
        { "attn_norm.weight", MUST, 1, d, &y->attn_norm },
        { "attn_norm.bias", bias, 1, d, &y->attn_norm_bias },
        { "attn_q_norm.weight", head, 1, h->head_dim, &y->attn_q_norm },
        { "attn_k_norm.weight", head, 1, h->head_dim, &y->attn_k_norm },
        { "post_attention_norm.weight", post, 1, d, &y->attn_post_norm },
        { ffn, MUST, 1, d, &y->ffn_norm },
        { "ffn_norm.bias", bias, 1, d, &y->ffn_norm_bias },
        { "post_ffw_norm.weight", post, 1, d, &y->ffn_post_norm },
    };
    return load_vectors(l, i, vector, COUNT(vector));
}

/* Queries, keys and values as rows of one matrix. */
static int load_fused_qkv(struct kvl_loader *l, int32_t i, int32_t q, int32_t kv)
{
    struct kvl_layer_weights *y = &l->w->layer[i];
    struct kvl_weight all = { 0 };
    const float *bias = NULL;
    int32_t d = l->w->hparams.n_embd, n = q + 2 * kv;
    const struct layer_matrix matrix = { "attn_qkv.weight", MUST, 1, n, d, &all };
    const struct layer_vector vector = { "attn_qkv.bias", l->w->arch->qkv_bias ? MUST : MAY, 1, n,
                                         &bias };
    KVL_TRY(load_matrices(l, i, &matrix, 1));
    KVL_TRY(load_vectors(l, i, &vector, 1));
    y->attn_q = kvl_weight_rows(&all, 0, q);
    y->attn_k = kvl_weight_rows(&all, q, kv);
    y->attn_v = kvl_weight_rows(&all, q + kv, kv);
    if (!bias) return KVL_OK;
    y->attn_q_bias = bias;
    y->attn_k_bias = bias + q;
    y->attn_v_bias = bias + q + kv;
    return KVL_OK;
}

static int load_attention(struct kvl_loader *l, int32_t i)
{
    const struct kvl_arch *a = l->w->arch;
    const struct kvl_hparams *h = &l->w->hparams;
    struct kvl_layer_weights *y = &l->w->layer[i];
    int32_t d = h->n_embd, q = h->n_heads * h->head_dim, kv = h->n_kv_heads * h->head_dim;
    char name[64];
    bool fused = a->qkv_fused && !wanted(l, i, "attn_q.weight", MAY, name); /* folders may differ */
    enum need apart = must_if(!fused);
    enum need bias = fused ? NOT : a->qkv_bias ? MUST : MAY;
    const struct layer_vector vector[] = {
        { "attn_q.bias", bias, 1, q, &y->attn_q_bias },
        { "attn_k.bias", bias, 1, kv, &y->attn_k_bias },
        { "attn_v.bias", bias, 1, kv, &y->attn_v_bias },
        { "attn_output.bias", MAY, 1, d, &y->attn_output_bias },
        { "attn_sinks.weight", must_if(a->sinks), 1, h->n_heads, &y->attn_sinks },
    };
    const struct layer_matrix matrix[] = {
        { "attn_q.weight", apart, 1, q, d, &y->attn_q },
        { "attn_k.weight", apart, 1, kv, d, &y->attn_k },
        { "attn_v.weight", apart, 1, kv, d, &y->attn_v },
        { "attn_output.weight", MUST, 1, d, q, &y->attn_output },
    };
    KVL_TRY(load_vectors(l, i, vector, COUNT(vector)));
    KVL_TRY(load_matrices(l, i, matrix, COUNT(matrix)));
    return fused ? load_fused_qkv(l, i, q, kv) : KVL_OK;
}

static int load_mlp(struct kvl_loader *l, int32_t i)
{
    const struct kvl_arch *a = l->w->arch;
    struct kvl_layer_weights *y = &l->w->layer[i];
    int32_t d = l->w->hparams.n_embd, ff = l->w->hparams.n_ff, up = a->up_fused ? 2 * ff : ff;
    enum need gate = must_if(!a->up_fused && !a->no_gate);
    const struct layer_vector vector[] = {
        { "ffn_gate.bias", gate == MUST ? MAY : NOT, 1, ff, &y->ffn_gate_bias },
        { "ffn_up.bias", a->up_fused ? NOT : MAY, 1, ff, &y->ffn_up_bias },
        { "ffn_down.bias", MAY, 1, d, &y->ffn_down_bias },
    };
    const struct layer_matrix matrix[] = {
        { "ffn_gate.weight", gate, 1, ff, d, &y->ffn_gate },
        { "ffn_up.weight", MUST, 1, up, d, &y->ffn_up },
        { "ffn_down.weight", MUST, 1, d, ff, &y->ffn_down },
    };
    KVL_TRY(load_vectors(l, i, vector, COUNT(vector)));
    KVL_TRY(load_matrices(l, i, matrix, COUNT(matrix)));
    if (!a->up_fused) return KVL_OK;
    y->ffn_gate = kvl_weight_rows(&y->ffn_up, 0, ff);
    y->ffn_up = kvl_weight_rows(&y->ffn_up, ff, ff);
    return KVL_OK;
}

static int load_experts(struct kvl_loader *l, int32_t i)
{
    const struct kvl_hparams *h = &l->w->hparams;
    struct kvl_layer_weights *y = &l->w->layer[i];
    int32_t d = h->n_embd, ff = h->n_ff, n = h->n_experts;
    const struct layer_vector vector[] = {
        { "ffn_gate_inp.bias", MAY, 1, n, &y->router_bias },
        { "ffn_gate_exps.bias", MAY, n, ff, &y->ffn_gate_bias },
        { "ffn_up_exps.bias", MAY, n, ff, &y->ffn_up_bias },
        { "ffn_down_exps.bias", MAY, n, d, &y->ffn_down_bias },
    };
    const struct layer_matrix matrix[] = {
        { "ffn_gate_inp.weight", MUST, 1, n, d, &y->router },
        { "ffn_gate_exps.weight", MUST, n, ff, d, &y->ffn_gate },
        { "ffn_up_exps.weight", MUST, n, ff, d, &y->ffn_up },
        { "ffn_down_exps.weight", MUST, n, d, ff, &y->ffn_down },
    };
    KVL_TRY(load_vectors(l, i, vector, COUNT(vector)));
    return load_matrices(l, i, matrix, COUNT(matrix));
}

/* A part that an architecture may have or not is a row of a table here and a field of struct kvl_arch. */
int kvl_load_layer(struct kvl_loader *l, int32_t i)
{
    KVL_TRY(load_norms(l, i));
    KVL_TRY(load_attention(l, i));
    return l->w->hparams.n_experts > 0 ? load_experts(l, i) : load_mlp(l, i);
}
