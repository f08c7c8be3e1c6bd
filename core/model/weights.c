/* Reads the shape of a model, finds its tensors, and checks both against each other. */
#include "weights_impl.h"
#include "window.h"

#include <math.h>

enum {
    MAX_LAYERS = 1024,
    MAX_HEADS = 1 << 14,
    MAX_GROUP = 64, /* query heads of a kv head: what operators keep room for */
    MAX_HEAD_DIM = 1024,
};

static int check_architecture(struct kvl_loader *l)
{
    struct kvl_str arch;
    char shown[GGUF_SHOWN + 4], names[256];
    KVL_TRY(kvl_gguf_str(l->g, "general.architecture", &arch, l->err));
    l->w->arch = kvl_arch_find(&arch);
    if (l->w->arch) return KVL_OK;
    return kvl_fail(l->err, KVL_EMODEL, "architecture \"%s\" is not supported, want one of: %s",
                    kvl_gguf_show(arch.s, arch.len, shown), kvl_arch_names(names, sizeof names));
}

static int load_heads(struct kvl_loader *l)
{
    struct kvl_hparams *h = &l->w->hparams;
    KVL_TRY(kvl_key_count(l, "attention.head_count", MAX_HEADS, NULL, &h->n_heads));
    int64_t def = h->n_heads;
    KVL_TRY(kvl_key_count(l, "attention.head_count_kv", MAX_HEADS, &def, &h->n_kv_heads));
    if (h->n_heads % h->n_kv_heads != 0)
        return kvl_fail(l->err, KVL_EMODEL, "%s is %d, want a divisor of head_count %d",
                        kvl_key_of(l, "attention.head_count_kv"), h->n_kv_heads, h->n_heads);
    if (h->n_heads / h->n_kv_heads > MAX_GROUP)
        return kvl_fail(l->err, KVL_EMODEL,
                        "%s is %d for head_count_kv %d, want at most %d query heads per kv head",
                        kvl_key_of(l, "attention.head_count"), h->n_heads, h->n_kv_heads,
                        MAX_GROUP);
    bool given = kvl_gguf_has(l->g, kvl_key_of(l, "attention.key_length"));
    if (!given && h->n_embd % h->n_heads != 0)
        return kvl_fail(l->err, KVL_EMODEL, "%s is %d, want a divisor of embedding_length %d",
                        kvl_key_of(l, "attention.head_count"), h->n_heads, h->n_embd);
    def = h->n_embd / h->n_heads;
    KVL_TRY(kvl_key_count(l, "attention.key_length", MAX_HEAD_DIM, &def, &h->head_dim));
    if (h->head_dim < 2 || h->head_dim % 2 != 0 || h->head_dim > MAX_HEAD_DIM ||
        h->head_dim * h->n_heads > KVL_MAX_WIDTH)
        return kvl_fail(l->err, KVL_EMODEL, "head dimension %d (%d heads), want even, 2 to %d",
                        h->head_dim, h->n_heads, MAX_HEAD_DIM);
    return KVL_OK;
}

/* Values are as long as keys. */
static int check_value_length(struct kvl_loader *l)
{
    int32_t want = l->w->hparams.head_dim, n;
    int64_t def = want;
    KVL_TRY(kvl_key_count(l, "attention.value_length", KVL_MAX_WIDTH, &def, &n));
    if (n == want) return KVL_OK;
    return kvl_fail(l->err, KVL_EMODEL, "key \"%s\" is %d, want the head dimension %d",
                    kvl_key_of(l, "attention.value_length"), n, want);
}

/* Of q.k. */
static int load_scale(struct kvl_loader *l)
{
    double scale, usual = 1 / sqrt(l->w->hparams.head_dim);
    KVL_TRY(kvl_key_positive(l, "attention.scale", &usual, 1e6, &scale));
    bool given = kvl_gguf_has(l->g, kvl_key_of(l, "attention.scale"));
    l->w->scale = given ? (float)scale : 1.0f / sqrtf((float)l->w->hparams.head_dim);
    return KVL_OK;
}

static int load_hparams(struct kvl_loader *l)
{
    struct kvl_hparams *h = &l->w->hparams;
    KVL_TRY(check_architecture(l));
    KVL_TRY(kvl_key_neutral(l));
    KVL_TRY(kvl_key_count(l, "block_count", MAX_LAYERS, NULL, &h->n_layers));
    KVL_TRY(kvl_key_count(l, "embedding_length", KVL_MAX_WIDTH, NULL, &h->n_embd));
    KVL_TRY(kvl_key_count(l, "feed_forward_length", KVL_MAX_WIDTH, NULL, &h->n_ff));
    KVL_TRY(kvl_key_count(l, "context_length", KVL_MAX_CONTEXT, NULL, &h->n_ctx_train));
    KVL_TRY(load_heads(l));
    KVL_TRY(check_value_length(l));
    KVL_TRY(load_scale(l));
    KVL_TRY(kvl_key_positive(l, "attention.layer_norm_rms_epsilon", NULL, 1, &h->rms_eps));
    return kvl_load_rope_keys(l);
}

static int refuse_unknown(struct kvl_loader *l)
{
    for (size_t i = 0; i < l->g->n_tensors; i++)
        if (!l->used[i])
            return kvl_fail(l->err, KVL_EMODEL, "tensor \"%s\" is not part of a supported %s model",
                            l->g->tensor[i].name, l->w->arch->name);
    return KVL_OK;
}

static int load_all(struct kvl_loader *l)
{
    struct kvl_weights *w = l->w;
    KVL_TRY(load_hparams(l));
    KVL_TRY(kvl_load_outer(l));
    w->layer = kvl_alloc((size_t)w->hparams.n_layers, sizeof *w->layer);
    if (!w->layer)
        return kvl_fail(l->err, KVL_ENOMEM, "no memory for %d layers", w->hparams.n_layers);
    for (int32_t i = 0; i < w->hparams.n_layers; i++) KVL_TRY(kvl_load_layer(l, i));
    KVL_TRY(kvl_window_load(l->g, w, l->err));
    KVL_TRY(kvl_load_ropes(l));
    return refuse_unknown(l);
}

int kvl_weights_load(const struct kvl_gguf *file, struct kvl_weights *out, struct kvl_err *err)
{
    struct kvl_weights w = { 0 };
    struct kvl_loader l = { .g = file, .w = &w, .err = err };
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
    kvl_free(w->freq);
    kvl_free(w->rope);
    kvl_free(w->layer);
    *w = (struct kvl_weights){ 0 };
}
