/* Reads the shape of a model, finds its tensors, and checks both against each other. */
#include "weights.h"

#include "gguf_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_LAYERS = 1024,
    MAX_WIDTH = 1 << 20, /* of embedding, feed-forward, all heads together */
    MAX_HEADS = 1 << 14,
    MAX_GROUP = 64, /* query heads of a kv head: what operators keep room for */
    MAX_HEAD_DIM = 1024,
    MAX_VOCAB = 1 << 24,
    MAX_CONTEXT = 1 << 30,
};

struct loader {
    const struct kvl_gguf *g;
    struct kvl_weights *w;
    struct kvl_err *err;
    bool *used; /* [n_tensors] found so far; any other tensor is refused */
    char key[2][96];
    int i_key;
};

/* ---- hyper-parameters ---------------------------------------------------------------------- */

/* "<architecture>.<tail>"; valid until the second call after this one. */
static const char *key_of(struct loader *l, const char *tail)
{
    char *key = l->key[l->i_key ^= 1];
    snprintf(key, sizeof l->key[0], "%s.%s", l->w->arch->name, tail);
    return key;
}

/* An integer that some files give once for each layer: then all must agree. */
static int get_count(struct loader *l, const char *tail, int64_t max, const int64_t *def,
                     int32_t *out)
{
    const char *key = key_of(l, tail);
    const struct gguf_key *k = kvl_gguf_find_key(l->g, key, strlen(key));
    int64_t v = 0, first = 0;
    if (!k || k->type != KVL_GGUF_ARR) {
        KVL_TRY(kvl_gguf_i64(l->g, key, 1, max, def, &v, l->err));
        *out = (int32_t)v;
        return KVL_OK;
    }
    for (uint64_t i = 0; i < k->n; i++) {
        if (!kvl_gguf_int_elem(k->elem, k->data, i, &v)) break;
        if (i == 0) first = v;
        if (v != first || v < 1 || v > max) break;
        if (i + 1 == k->n) {
            *out = (int32_t)v;
            return KVL_OK;
        }
    }
    return kvl_fail(l->err, KVL_EMODEL,
                    "key \"%s\" at offset %zu differs between layers or is not 1 to %lld", key,
                    k->at, (long long)max);
}

static int get_positive(struct loader *l, const char *tail, const double *def, double max,
                        double *out)
{
    const char *key = key_of(l, tail);
    KVL_TRY(kvl_gguf_f64(l->g, key, def, out, l->err));
    if (isfinite(*out) && *out > 0 && *out <= max) return KVL_OK;
    return kvl_fail(l->err, KVL_EMODEL, "key \"%s\" is %g, want above 0 and at most %g", key, *out,
                    max);
}

static int check_architecture(struct loader *l)
{
    struct kvl_str arch;
    char shown[GGUF_SHOWN + 4], names[256];
    KVL_TRY(kvl_gguf_str(l->g, "general.architecture", &arch, l->err));
    l->w->arch = kvl_arch_find(&arch);
    if (l->w->arch) {
        l->w->rope = l->g->hf_dir ? l->w->arch->hf_rope : l->w->arch->rope;
        return KVL_OK;
    }
    return kvl_fail(l->err, KVL_EMODEL, "architecture \"%s\" is not supported, want one of: %s",
                    kvl_gguf_show(arch.s, arch.len, shown), kvl_arch_names(names, sizeof names));
}

/* Keys that change the computation: each must be absent or say that nothing is changed. */
static int check_neutral(struct loader *l)
{
    static const struct {
        const char *key;
        int64_t min, max;
        bool own; /* the architecture's name comes before it */
    } row[] = {
        { "general.quantization_version", 2, 2, false },
        { "expert_count", 0, 0, true },
        { "attention.sliding_window", 0, 0, true },
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++) {
        const char *key = row[i].own ? key_of(l, row[i].key) : row[i].key;
        int64_t v;
        KVL_TRY(kvl_gguf_i64(l->g, key, row[i].min, row[i].max, &row[i].max, &v, l->err));
    }
    static const struct {
        const char *key;
        bool want;
    } flag[] = {
        { "attention.causal", true },
        { "use_parallel_residual", false },
    };
    for (size_t i = 0; i < sizeof flag / sizeof flag[0]; i++) {
        const char *key = key_of(l, flag[i].key);
        bool v;
        KVL_TRY(kvl_gguf_bool(l->g, key, flag[i].want, &v, l->err));
        if (v != flag[i].want)
            return kvl_fail(l->err, KVL_EMODEL, "key \"%s\" is %s, only %s is supported", key,
                            v ? "true" : "false", v ? "false" : "true");
    }
    return KVL_OK;
}

/* A factor or a limit that is not the usual one would silently give another model. */
static int check_scale(struct loader *l, const char *tail, double usual)
{
    const char *key = key_of(l, tail);
    double v;
    KVL_TRY(kvl_gguf_f64(l->g, key, &usual, &v, l->err));
    if (fabs(v - usual) <= 1e-5 * usual) return KVL_OK;
    return kvl_fail(l->err, KVL_EMODEL, "key \"%s\" is %g, only %g is supported", key, v, usual);
}

/* Factors are 1, and limits 0 (none), where nothing is changed. */
static int check_scales(struct loader *l)
{
    static const struct {
        const char *key;
        double usual;
    } row[] = {
        { "logit_scale", 1 },
        { "embedding_scale", 1 },
        { "residual_scale", 1 },
        { "attn_logit_softcapping", 0 },
        { "final_logit_softcapping", 0 },
        { "attention.clamp_kqv", 0 },
        { "attention.max_alibi_bias", 0 },
    };
    for (size_t i = 0; i < sizeof row / sizeof row[0]; i++)
        KVL_TRY(check_scale(l, row[i].key, row[i].usual));
    return KVL_OK;
}

static int load_heads(struct loader *l)
{
    struct kvl_hparams *h = &l->w->hparams;
    KVL_TRY(get_count(l, "attention.head_count", MAX_HEADS, NULL, &h->n_heads));
    int64_t def = h->n_heads;
    KVL_TRY(get_count(l, "attention.head_count_kv", MAX_HEADS, &def, &h->n_kv_heads));
    if (h->n_heads % h->n_kv_heads != 0)
        return kvl_fail(l->err, KVL_EMODEL, "%s is %d, want a divisor of head_count %d",
                        key_of(l, "attention.head_count_kv"), h->n_kv_heads, h->n_heads);
    if (h->n_heads / h->n_kv_heads > MAX_GROUP)
        return kvl_fail(l->err, KVL_EMODEL,
                        "%s is %d for head_count_kv %d, want at most %d query heads per kv head",
                        key_of(l, "attention.head_count"), h->n_heads, h->n_kv_heads, MAX_GROUP);
    bool given = kvl_gguf_has(l->g, key_of(l, "attention.key_length"));
    if (!given && h->n_embd % h->n_heads != 0)
        return kvl_fail(l->err, KVL_EMODEL, "%s is %d, want a divisor of embedding_length %d",
                        key_of(l, "attention.head_count"), h->n_heads, h->n_embd);
    def = h->n_embd / h->n_heads;
    KVL_TRY(get_count(l, "attention.key_length", MAX_HEAD_DIM, &def, &h->head_dim));
    if (h->head_dim < 2 || h->head_dim % 2 != 0 || h->head_dim > MAX_HEAD_DIM ||
        h->head_dim * h->n_heads > MAX_WIDTH)
        return kvl_fail(l->err, KVL_EMODEL, "head dimension %d (%d heads), want even, 2 to %d",
                        h->head_dim, h->n_heads, MAX_HEAD_DIM);
    return KVL_OK;
}

/* Lengths that the engine takes to be equal to head_dim. */
static int check_head_dims(struct loader *l)
{
    static const char *const tail[] = { "attention.value_length", "rope.dimension_count" };
    int32_t want = l->w->hparams.head_dim;
    for (size_t i = 0; i < sizeof tail / sizeof tail[0]; i++) {
        const char *key = key_of(l, tail[i]);
        int64_t v, def = want;
        KVL_TRY(kvl_gguf_i64(l->g, key, 0, MAX_WIDTH, &def, &v, l->err));
        if (v != want)
            return kvl_fail(l->err, KVL_EMODEL, "key \"%s\" is %lld, want the head dimension %d",
                            key, (long long)v, want);
    }
    return KVL_OK;
}

static int load_rope(struct loader *l)
{
    struct kvl_hparams *h = &l->w->hparams;
    const char *type_key = key_of(l, "rope.scaling.type");
    const double base = 10000, one = 1;
    struct kvl_str type = { "linear", 6 };
    char shown[GGUF_SHOWN + 4];
    if (kvl_gguf_has(l->g, type_key)) KVL_TRY(kvl_gguf_str(l->g, type_key, &type, l->err));
    bool none = type.len == 4 && memcmp(type.s, "none", 4) == 0;
    if (!none && !(type.len == 6 && memcmp(type.s, "linear", 6) == 0))
        return kvl_fail(l->err, KVL_EMODEL, "key \"%s\" is \"%s\", want \"none\" or \"linear\"",
                        type_key, kvl_gguf_show(type.s, type.len, shown));
    bool given = kvl_gguf_has(l->g, key_of(l, "rope.scaling.factor"));
    const char *factor = given ? "rope.scaling.factor" : "rope.scale_linear";
    KVL_TRY(get_positive(l, "rope.freq_base", &base, 1e15, &h->freq_base));
    KVL_TRY(get_positive(l, factor, &one, 1e9, &h->rope_factor));
    if (none) h->rope_factor = 1;
    return check_scale(l, "rope.scaling.attn_factor", 1);
}

static int load_hparams(struct loader *l)
{
    struct kvl_hparams *h = &l->w->hparams;
    KVL_TRY(check_architecture(l));
    KVL_TRY(check_neutral(l));
    KVL_TRY(check_scales(l));
    KVL_TRY(get_count(l, "block_count", MAX_LAYERS, NULL, &h->n_layers));
    KVL_TRY(get_count(l, "embedding_length", MAX_WIDTH, NULL, &h->n_embd));
    KVL_TRY(get_count(l, "feed_forward_length", MAX_WIDTH, NULL, &h->n_ff));
    KVL_TRY(get_count(l, "context_length", MAX_CONTEXT, NULL, &h->n_ctx_train));
    KVL_TRY(load_heads(l));
    KVL_TRY(check_head_dims(l));
    KVL_TRY(check_scale(l, "attention.scale", 1 / sqrt(h->head_dim)));
    KVL_TRY(get_positive(l, "attention.layer_norm_rms_epsilon", NULL, 1, &h->rms_eps));
    return load_rope(l);
}

/* ---- tensors ------------------------------------------------------------------------------- */

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

static int check_finite(struct loader *l, const char *name, const struct kvl_weight *m)
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
static int take(struct loader *l, const char *name, int64_t n_rows, int64_t n_cols,
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

static int take_vector(struct loader *l, const char *name, int64_t n, const float **out)
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
static int load_vocab_size(struct loader *l)
{
    const struct kvl_gguf_tensor *t = kvl_gguf_tensor(l->g, "token_embd.weight");
    if (!t) return kvl_fail(l->err, KVL_EMODEL, "tensor \"token_embd.weight\" is missing");
    if (t->dims[1] < 1 || t->dims[1] > MAX_VOCAB)
        return kvl_fail(l->err, KVL_EMODEL,
                        "tensor \"token_embd.weight\" has %lld rows, want 1 to %d",
                        (long long)t->dims[1], MAX_VOCAB);
    l->w->hparams.n_vocab = (int32_t)t->dims[1];
    int64_t told = t->dims[1], tokens = t->dims[1];
    const char *key = key_of(l, "vocab_size");
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

static int load_outer(struct loader *l)
{
    struct kvl_weights *w = l->w;
    const struct kvl_hparams *h = &w->hparams;
    KVL_TRY(load_vocab_size(l));
    KVL_TRY(take(l, "token_embd.weight", h->n_vocab, h->n_embd, &w->embed));
    KVL_TRY(take_vector(l, "output_norm.weight", h->n_embd, &w->output_norm));
    w->tied = !kvl_gguf_tensor(l->g, "output.weight");
    w->output = w->embed;
    if (w->tied) return KVL_OK;
    return take(l, "output.weight", h->n_vocab, h->n_embd, &w->output);
}

/* What a layer has: a part that an architecture may have or not is a row here and a field of struct kvl_arch. */
static int load_layer(struct loader *l, int32_t i)
{
    const struct kvl_hparams *h = &l->w->hparams;
    struct kvl_layer_weights *y = &l->w->layer[i];
    int32_t d = h->n_embd, q = h->n_heads * h->head_dim, kv = h->n_kv_heads * h->head_dim;
    char name[64];
    const struct {
        const char *name;
        int32_t n_rows, n_cols;
        struct kvl_weight *out;
    } matrix[] = {
        { "attn_q", q, d, &y->attn_q },           { "attn_k", kv, d, &y->attn_k },
        { "attn_v", kv, d, &y->attn_v },          { "attn_output", d, q, &y->attn_output },
        { "ffn_gate", h->n_ff, d, &y->ffn_gate }, { "ffn_up", h->n_ff, d, &y->ffn_up },
        { "ffn_down", d, h->n_ff, &y->ffn_down },
    };
    const struct {
        const char *name;
        int32_t n;
        bool there;
        const float **out;
    } vector[] = {
        { "attn_norm.weight", d, true, &y->attn_norm },
        { "ffn_norm.weight", d, true, &y->ffn_norm },
        { "attn_q.bias", q, l->w->arch->qkv_bias, &y->attn_q_bias },
        { "attn_k.bias", kv, l->w->arch->qkv_bias, &y->attn_k_bias },
        { "attn_v.bias", kv, l->w->arch->qkv_bias, &y->attn_v_bias },
    };
    for (size_t v = 0; v < sizeof vector / sizeof vector[0]; v++) {
        snprintf(name, sizeof name, "blk.%d.%s", i, vector[v].name);
        if (vector[v].there) KVL_TRY(take_vector(l, name, vector[v].n, vector[v].out));
    }
    for (size_t m = 0; m < sizeof matrix / sizeof matrix[0]; m++) {
        snprintf(name, sizeof name, "blk.%d.%s.weight", i, matrix[m].name);
        KVL_TRY(take(l, name, matrix[m].n_rows, matrix[m].n_cols, matrix[m].out));
    }
    return KVL_OK;
}

/* theta_i = base^(-2i / head_dim) / rope_freqs[i] / factor */
static int load_frequencies(struct loader *l)
{
    struct kvl_weights *w = l->w;
    const struct kvl_hparams *h = &w->hparams;
    int32_t half = h->head_dim / 2;
    if (kvl_gguf_tensor(l->g, "rope_freqs.weight"))
        KVL_TRY(take_vector(l, "rope_freqs.weight", half, &w->rope_freqs));
    w->inv_freq = kvl_alloc((size_t)half, sizeof *w->inv_freq);
    if (!w->inv_freq) return kvl_fail(l->err, KVL_ENOMEM, "no memory for %d frequencies", half);
    for (int32_t i = 0; i < half; i++) {
        double divisor = w->rope_freqs ? (double)w->rope_freqs[i] : 1;
        if (!(divisor > 0))
            return kvl_fail(l->err, KVL_EMODEL,
                            "tensor \"rope_freqs.weight\" element %d is %g, want above 0", i,
                            divisor);
        w->inv_freq[i] = pow(h->freq_base, -2.0 * i / h->head_dim) / divisor / h->rope_factor;
        if (!isfinite(w->inv_freq[i]))
            return kvl_fail(
                l->err, KVL_EMODEL,
                "tensor \"rope_freqs.weight\" element %d is %g: the frequency overflows", i,
                divisor);
    }
    return KVL_OK;
}

static int refuse_unknown(struct loader *l)
{
    for (size_t i = 0; i < l->g->n_tensors; i++)
        if (!l->used[i])
            return kvl_fail(l->err, KVL_EMODEL, "tensor \"%s\" is not part of a supported %s model",
                            l->g->tensor[i].name, l->w->arch->name);
    return KVL_OK;
}

static int load_all(struct loader *l)
{
    struct kvl_weights *w = l->w;
    KVL_TRY(load_hparams(l));
    KVL_TRY(load_outer(l));
    w->layer = kvl_alloc((size_t)w->hparams.n_layers, sizeof *w->layer);
    if (!w->layer)
        return kvl_fail(l->err, KVL_ENOMEM, "no memory for %d layers", w->hparams.n_layers);
    for (int32_t i = 0; i < w->hparams.n_layers; i++) KVL_TRY(load_layer(l, i));
    KVL_TRY(load_frequencies(l));
    return refuse_unknown(l);
}

int kvl_weights_load(const struct kvl_gguf *file, struct kvl_weights *out, struct kvl_err *err)
{
    struct kvl_weights w = { 0 };
    struct loader l = { .g = file, .w = &w, .err = err };
    l.used = kvl_alloc(file->n_tensors, sizeof *l.used);
    int rc = l.used ? load_all(&l) : kvl_fail(err, KVL_ENOMEM, "no memory for the tensor table");
    kvl_free(l.used);
    if (rc == KVL_OK)
        *out = w;
    else
        kvl_weights_free(&w);
    return rc;
}

void kvl_weights_free(struct kvl_weights *w)
{
    kvl_free(w->inv_freq);
    kvl_free(w->layer);
    *w = (struct kvl_weights){ 0 };
}
