/* Windows and the cap of attention logits, from a file's keys. */
#include "window.h"

#include "gguf_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct key {
    char s[96];
};

static struct key key_of(const struct kvl_weights *w, const char *tail)
{
    struct key k;
    snprintf(k.s, sizeof k.s, "%s.%s", w->arch->name, tail);
    return k;
}

static int load_cap(const struct kvl_gguf *g, struct kvl_weights *w, struct kvl_err *err)
{
    struct key key = key_of(w, "attn_logit_softcapping");
    double cap, def = (double)w->arch->cap;
    KVL_TRY(kvl_gguf_f64(g, key.s, &def, &cap, err));
    if (!isfinite(cap) || cap < 0 || cap > 1e6)
        return kvl_fail(err, KVL_EMODEL, "key \"%s\" is %g, want 0 (none) to 1e6", key.s, cap);
    if (cap != 0 && def == 0)
        return kvl_fail(err, KVL_EMODEL, "key \"%s\" is %g, only 0 is supported", key.s, cap);
    w->cap = (float)cap;
    return KVL_OK;
}

/* One bool per layer. */
static int pattern_array(const struct kvl_gguf *g, const struct key *key, struct kvl_weights *w,
                         int32_t window, struct kvl_err *err)
{
    enum kvl_gguf_type elem;
    int64_t n;
    const void *data;
    KVL_TRY(kvl_gguf_arr(g, key->s, &elem, &n, &data, err));
    if (n != w->hparams.n_layers || elem != KVL_GGUF_BOOL)
        return kvl_fail(err, KVL_EMODEL, "key \"%s\" has %lld elements of type %s, want %d bools",
                        key->s, (long long)n, kvl_gguf_type_name((uint32_t)elem),
                        w->hparams.n_layers);
    for (int32_t i = 0; i < w->hparams.n_layers; i++)
        w->layer[i].window = ((const uint8_t *)data)[i] ? window : 0;
    return KVL_OK;
}

static int load_pattern(const struct kvl_gguf *g, struct kvl_weights *w, int32_t window,
                        struct kvl_err *err)
{
    struct key key = key_of(w, "attention.sliding_window_pattern");
    const struct gguf_key *k = kvl_gguf_find_key(g, key.s, strlen(key.s));
    if (k && k->type == KVL_GGUF_ARR) return pattern_array(g, &key, w, window, err);
    int64_t period, def = w->arch->window_period;
    KVL_TRY(kvl_gguf_i64(g, key.s, 0, w->hparams.n_layers, &def, &period, err));
    for (int32_t i = 0; i < w->hparams.n_layers; i++)
        w->layer[i].window = period == 0 || i % period < period - 1 ? window : 0;
    return KVL_OK;
}

int kvl_window_load(const struct kvl_gguf *file, struct kvl_weights *w, struct kvl_err *err)
{
    KVL_TRY(load_cap(file, w, err));
    struct key key = key_of(w, "attention.sliding_window");
    int64_t window, def = w->arch->window_default;
    KVL_TRY(kvl_gguf_i64(file, key.s, 0, INT32_MAX, &def, &window, err));
    if (window == 0) return KVL_OK;
    if (!w->arch->window)
        return kvl_fail(err, KVL_EMODEL, "key \"%s\" is %lld, a %s model has no window", key.s,
                        (long long)window, w->arch->name);
    return load_pattern(file, w, (int32_t)window, err);
}
