/* Reads the shape of a model, finds its tensors, and checks both against each other. */
#include "weights_impl.h"
#include "window.h"

#include <math.h>

enum {
    MAX_LAYERS = 1024,
    MAX_HEADS = 1 << 14,
    MAX_GROUP = 64, /* query heads of a kv head: what operators keep room for */
    MAX_HEAD_DIM = 1024,
    MAX_EXPERTS = 1024,
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

/* Of q.k.  Where the file does not say: the largest Gemmas were trained with that of narrower heads. */
static int load_scale(struct kvl_loader *l)
{
    const struct kvl_hparams *h = &l->w->hparams;
    bool given = kvl_gguf_has(l->g, kvl_key_of(l, "attention.scale"));
    bool wide = h->n_layers == l->w->arch->wide_scale;
    float dim = wide ? (float)h->n_embd / (float)h->n_heads : (float)h->head_dim;
    double scale, usual = 1;
    KVL_TRY(kvl_key_positive(l, "attention.scale", &usual, 1e6, &scale));
    l->w->scale = given ? (float)scale : 1.0f / sqrtf(dim);
    return KVL_OK;
}

/* Numbers of llama.cpp: 1 is a softmax over all experts, 3 over the chosen, which is the same once the weights of
 * the chosen are made to sum to 1. */
static int load_gating(struct kvl_loader *l)
{
    const char *key = kvl_key_of(l, "expert_gating_func");
    int64_t v, usual = 1;
    KVL_TRY(kvl_gguf_i64(l->g, key, 0, INT32_MAX, &usual, &v, l->err));
    if (v != 1 && v != 3)
        return kvl_fail(l->err, KVL_EMODEL, "key \"%s\" is %lld, want 1 or 3 (softmax)", key,
                        (long long)v);
    KVL_TRY(kvl_key_bool(l, "expert_weights_norm", true, &l->w->experts_norm));
    if (v == 3) l->w->experts_norm = true;
    return KVL_OK;
}

static int load_experts(struct kvl_loader *l)
{
    const struct kvl_arch *a = l->w->arch;
    struct kvl_hparams *h = &l->w->hparams;
    const char *key = kvl_key_of(l, "expert_count");
    bool must = a->experts == KVL_EXPERTS_MUST;
    int64_t n, none = 0, all = h->n_ff, max = a->experts == KVL_EXPERTS_NONE ? 0 : MAX_EXPERTS;
    KVL_TRY(kvl_gguf_i64(l->g, key, must, max, must ? NULL : &none, &n, l->err));
    h->n_experts = (int32_t)n;
    if (n == 0) return KVL_OK;
    KVL_TRY(kvl_key_count(l, "expert_used_count", n, NULL, &h->n_experts_used));
    KVL_TRY(kvl_key_count(l, "expert_feed_forward_length", KVL_MAX_WIDTH, &all, &h->n_ff));
    return load_gating(l);
}

/* What changes the whole: residuals, the ends. */
static int load_switches(struct kvl_loader *l)
{
    struct kvl_weights *w = l->w;
    const struct kvl_arch *a = w->arch;
    double cap, def = (double)a->final_cap_default;
    const char *key = kvl_key_of(l, "use_parallel_residual");
    KVL_TRY(kvl_gguf_bool(l->g, key, a->parallel, &w->parallel, l->err));
    if (w->parallel && !a->parallel)
        return kvl_fail(l->err, KVL_EMODEL, "key \"%s\" is true, only false is supported", key);
    w->embed_scale = a->embed_scale ? sqrtf((float)w->hparams.n_embd) : 1;
    if (!a->final_cap) return kvl_key_usual(l, "final_logit_softcapping", 0);
    key = kvl_key_of(l, "final_logit_softcapping");
    KVL_TRY(kvl_gguf_f64(l->g, key, &def, &cap, l->err));
    w->final_cap = (float)cap;
    if (isfinite(cap) && cap >= 0 && cap <= 1e6) return KVL_OK;
    return kvl_fail(l->err, KVL_EMODEL, "key \"%s\" is %g, want 0 (none) to 1e6", key, cap);
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
    KVL_TRY(kvl_key_bool(l, "attention.dual_chunks", false, &l->w->dual_chunks));
    KVL_TRY(load_heads(l));
    KVL_TRY(check_value_length(l));
    KVL_TRY(load_scale(l));
    KVL_TRY(load_experts(l));
    KVL_TRY(load_switches(l));
    const char *eps = l->w->arch->layer_norm ? "attention.layer_norm_epsilon"
                                             : "attention.layer_norm_rms_epsilon";
    KVL_TRY(kvl_key_positive(l, eps, NULL, 1, &h->norm_eps));
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

int kvl_weights_find(const struct kvl_gguf *file, struct kvl_weights *out, struct kvl_err *err)
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

int kvl_weights_load(const struct kvl_gguf *file, struct kvl_weights *out, struct kvl_err *err)
{
    KVL_TRY(kvl_weights_find(file, out, err));
    int rc = kvl_weights_scan(file, NULL, err);
    if (rc != KVL_OK) kvl_weights_free(out);
    return rc;
}

void kvl_weights_free(struct kvl_weights *w)
{
    kvl_free(w->freq);
    kvl_free(w->rope);
    kvl_free(w->layer);
    *w = (struct kvl_weights){ 0 };
}
