/* Finds the tensors of a model, in the shapes that its keys want, and sees that they are finite. */
#include "weights_impl.h"

#include <stdio.h>
#include <string.h>

enum { MAX_VOCAB = 1 << 24 };

/* Whether the word at `first`, then every block, holds an exponent that is not all ones. */
static bool words_finite(const uint8_t *row, size_t bytes, int32_t first, size_t stride,
                         uint16_t exponent)
{
    bool bad = false;
    for (size_t i = (size_t)first; i < bytes; i += stride) {
        uint16_t word;
        memcpy(&word, row + i, sizeof word);
        bad |= (word & exponent) == exponent;
    }
    return !bad;
}

static bool row_finite(const uint8_t *row, size_t bytes, const struct kvl_wtype_row *t)
{
    if (!words_finite(row, bytes, t->word[0], t->block_bytes, t->exponent)) return false;
    return t->word[1] == t->word[0] ||
           words_finite(row, bytes, t->word[1], t->block_bytes, t->exponent);
}

static int check_finite(struct kvl_loader *l, const char *name, const struct kvl_weight *m)
{
    const struct kvl_wtype_row *type = kvl_wtype_find((uint32_t)m->type);
    const uint8_t *row = m->data;
    for (int32_t i = 0; i < m->n_rows; i++, row += m->row_bytes)
        if (!row_finite(row, m->row_bytes, type))
            return kvl_fail(l->err, KVL_EMODEL,
                            "tensor \"%s\" holds NaN or infinity in row %d of %d", name, i,
                            m->n_rows);
    return KVL_OK;
}

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

/* The tensor as a matrix of the wanted shape; a vector is a matrix of one row. */
static int take(struct kvl_loader *l, const char *name, int64_t n_rows, int64_t n_cols,
                struct kvl_weight *out)
{
    const struct kvl_gguf_tensor *t = kvl_gguf_tensor(l->g, name);
    char types[256];
    if (!t) return kvl_fail(l->err, KVL_EMODEL, "tensor \"%s\" is missing", name);
    if (t->dims[0] != n_cols || t->dims[1] != n_rows || t->dims[2] != 1 || t->dims[3] != 1)
        return kvl_fail(l->err, KVL_EMODEL,
                        "tensor \"%s\" has shape [%lld, %lld, %lld, %lld], want [%lld, %lld]", name,
                        (long long)t->dims[0], (long long)t->dims[1], (long long)t->dims[2],
                        (long long)t->dims[3], (long long)n_cols, (long long)n_rows);
    if (!kvl_wtype_find(t->type))
        return kvl_fail(l->err, KVL_EMODEL, "tensor \"%s\" has type %s, want %s", name,
                        kvl_gguf_tensor_type_name(t->type), type_list(types, sizeof types));
    *out = (struct kvl_weight){ .data = t->data,
                                .type = (enum kvl_wtype)t->type,
                                .n_rows = (int32_t)n_rows,
                                .n_cols = (int32_t)n_cols,
                                .row_bytes = t->bytes / (size_t)n_rows };
    /* `t` is the first member of its table entry. */
    l->used[(const struct gguf_tensor *)(const void *)t - l->g->tensor] = true;
    return check_finite(l, name, out);
}

int kvl_take_vector(struct kvl_loader *l, const char *name, int64_t n, const float **out)
{
    struct kvl_weight v;
    const struct kvl_gguf_tensor *t = kvl_gguf_tensor(l->g, name);
    if (t && t->type != KVL_W_F32)
        return kvl_fail(l->err, KVL_EMODEL, "tensor \"%s\" has type %s, want F32", name,
                        kvl_gguf_tensor_type_name(t->type));
    KVL_TRY(take(l, name, 1, n, &v));
    *out = v.data;
    return KVL_OK;
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
    KVL_TRY(take(l, "token_embd.weight", h->n_vocab, h->n_embd, &w->embed));
    KVL_TRY(kvl_take_vector(l, "output_norm.weight", h->n_embd, &w->output_norm));
    w->tied = !kvl_gguf_tensor(l->g, "output.weight");
    w->output = w->embed;
    if (w->tied && !w->arch->untied) return KVL_OK;
    return take(l, "output.weight", h->n_vocab, h->n_embd, &w->output);
}

/* ---- layers --------------------------------------------------------------------------------------- */

/* What a file must do with a tensor that an architecture knows. */
enum need { NOT, MAY, MUST };

struct layer_matrix {
    const char *name;
    enum need need;
    int32_t n_rows, n_cols;
    struct kvl_weight *out;
};

struct layer_vector {
    const char *name;
    enum need need;
    int32_t n;
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
            KVL_TRY(take(l, name, m[i].n_rows, m[i].n_cols, m[i].out));
    return KVL_OK;
}

static int load_vectors(struct kvl_loader *l, int32_t layer, const struct layer_vector *v, size_t n)
{
    char name[64];
    for (size_t i = 0; i < n; i++)
        if (wanted(l, layer, v[i].name, v[i].need, name))
            KVL_TRY(kvl_take_vector(l, name, v[i].n, v[i].out));
    return KVL_OK;
}

#define COUNT(table) (sizeof(table) / sizeof *(table))

static int load_attention(struct kvl_loader *l, int32_t i)
{
    const struct kvl_arch *a = l->w->arch;
    const struct kvl_hparams *h = &l->w->hparams;
    struct kvl_layer_weights *y = &l->w->layer[i];
    int32_t d = h->n_embd, q = h->n_heads * h->head_dim, kv = h->n_kv_heads * h->head_dim;
    enum need bias = a->qkv_bias ? MUST : MAY, norm = a->qk_norm ? MUST : NOT;
    const struct layer_vector vector[] = {
        { "attn_norm.weight", MUST, d, &y->attn_norm },
        { "attn_q.bias", bias, q, &y->attn_q_bias },
        { "attn_k.bias", bias, kv, &y->attn_k_bias },
        { "attn_v.bias", bias, kv, &y->attn_v_bias },
        { "attn_output.bias", MAY, d, &y->attn_output_bias },
        { "attn_q_norm.weight", norm, h->head_dim, &y->attn_q_norm },
        { "attn_k_norm.weight", norm, h->head_dim, &y->attn_k_norm },
        { "attn_sinks.weight", a->sinks ? MUST : NOT, h->n_heads, &y->attn_sinks },
    };
    const struct layer_matrix matrix[] = {
        { "attn_q.weight", MUST, q, d, &y->attn_q },
        { "attn_k.weight", MUST, kv, d, &y->attn_k },
        { "attn_v.weight", MUST, kv, d, &y->attn_v },
        { "attn_output.weight", MUST, d, q, &y->attn_output },
    };
    KVL_TRY(load_vectors(l, i, vector, COUNT(vector)));
    return load_matrices(l, i, matrix, COUNT(matrix));
}

static int load_mlp(struct kvl_loader *l, int32_t i)
{
    const struct kvl_hparams *h = &l->w->hparams;
    struct kvl_layer_weights *y = &l->w->layer[i];
    int32_t d = h->n_embd, ff = h->n_ff;
    const struct layer_vector vector[] = {
        { "ffn_norm.weight", MUST, d, &y->ffn_norm },
        { "ffn_gate.bias", MAY, ff, &y->ffn_gate_bias },
        { "ffn_up.bias", MAY, ff, &y->ffn_up_bias },
        { "ffn_down.bias", MAY, d, &y->ffn_down_bias },
    };
    const struct layer_matrix matrix[] = {
        { "ffn_gate.weight", MUST, ff, d, &y->ffn_gate },
        { "ffn_up.weight", MUST, ff, d, &y->ffn_up },
        { "ffn_down.weight", MUST, d, ff, &y->ffn_down },
    };
    KVL_TRY(load_vectors(l, i, vector, COUNT(vector)));
    return load_matrices(l, i, matrix, COUNT(matrix));
}

/* A part that an architecture may have or not is a row of a table here and a field of struct kvl_arch. */
int kvl_load_layer(struct kvl_loader *l, int32_t i)
{
    KVL_TRY(load_attention(l, i));
    return load_mlp(l, i);
}
