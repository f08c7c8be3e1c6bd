/* model_list.h - public models by family: what runs, what it takes, and what does not run and why.
 *
 * Numbers are of the published models: layers, kv heads, length of a head, weights as Q4_K_M or in the type that
 * `weights` names.  A test holds the rows against the architectures that are computed.
 */
#ifndef KVL_MODEL_LIST_H
#define KVL_MODEL_LIST_H

#include <stdint.h>

struct kvl_family {
    const char *family, *arch; /* arch: general.architecture */
    const char *model;         /* the smallest one that is of use */
    int32_t n_layers, n_kv_heads, head_dim;
    double weights_gb; /* about */
    const char *weights;
    int32_t n_ctx;    /* tokens */
    const char *note; /* or NULL */
};

struct kvl_refused_family {
    const char *family, *arch; /* arch NULL: no single one */
    const char *why;
};

/* NULL behind the last row. */
const struct kvl_family *kvl_family_at(int32_t i);
const struct kvl_refused_family *kvl_refused_family_at(int32_t i);
/* Keys and values of so many tokens as 16-bit floats, in GiB. */
double kvl_family_kv_gib(const struct kvl_family *f, int32_t n_tok);

#endif
