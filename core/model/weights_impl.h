/* weights_impl.h - what the files that read a model's shape and weights share. */
#ifndef KVL_WEIGHTS_IMPL_H
#define KVL_WEIGHTS_IMPL_H

#include "gguf_impl.h"
#include "weights.h"

enum {
    KVL_MAX_WIDTH = 1 << 20, /* of embedding, feed-forward, all heads together */
    KVL_MAX_CONTEXT = 1 << 30,
};

/* What the keys say of the frequencies. */
struct kvl_rope_keys {
    enum kvl_rope_scaling {
        KVL_SCALING_NONE,
        KVL_SCALING_LINEAR,
        KVL_SCALING_YARN,
        KVL_SCALING_LONGROPE,
        KVL_SCALING_DYNAMIC,
    } scaling;
    double base, factor;
    double base_local;
    double attn_factor;          /* of cosine and sine; 0: not given */
    bool truncate;               /* the ends of YaRN's ramp are rounded */
    int32_t n_ctx_orig;          /* context before it was scaled */
    double beta_fast, beta_slow; /* of YaRN: rotations within that context */
};

struct kvl_loader {
    const struct kvl_gguf *g;
    struct kvl_weights *w;
    struct kvl_err *err;
    bool *used; /* [n_tensors] found so far; any other tensor is refused */
    char key[2][96];
    int i_key;
    struct kvl_rope_keys rope;
};

/* ---- weights_keys.c ----------------------------------------------------------------------------- */

/* "<architecture>.<tail>"; valid until the second call after this one. */
const char *kvl_key_of(struct kvl_loader *l, const char *tail);
/* An integer from 1 to max that some files give once for each layer: then all must agree.  `def` NULL: must be
 * there. */
int kvl_key_count(struct kvl_loader *l, const char *tail, int64_t max, const int64_t *def,
                  int32_t *out);
/* A number above 0 and at most max. */
int kvl_key_positive(struct kvl_loader *l, const char *tail, const double *def, double max,
                     double *out);
int kvl_key_bool(struct kvl_loader *l, const char *tail, bool def, bool *out);
/* A factor or a limit that must be the usual one: another would silently give another model. */
int kvl_key_usual(struct kvl_loader *l, const char *tail, double usual);
/* Refuses what would change the result and is not computed. */
int kvl_key_neutral(struct kvl_loader *l);

/* ---- weights_tensors.c -------------------------------------------------------------------------- */

/* A tensor of F32 as a vector. */
int kvl_take_vector(struct kvl_loader *l, const char *name, int64_t n, const float **out);
/* What is no part of a layer, and the size of the vocabulary. */
int kvl_load_outer(struct kvl_loader *l);
int kvl_load_layer(struct kvl_loader *l, int32_t i);

/* ---- weights_rope.c ----------------------------------------------------------------------------- */

/* The keys, then, when layers are there, how each of them turns. */
int kvl_load_rope_keys(struct kvl_loader *l);
int kvl_load_ropes(struct kvl_loader *l);

#endif
