/* ref.h - what the definitions share: stored elements one at a time, softmax, rotation.
 *
 * Written for reading: every value in double, no blocking, no vectors.
 */
#ifndef KVL_REF_H
#define KVL_REF_H

#include "half.h"
#include "kvl/ops.h"
#include "lane.h"

/* y [n_cols]: a row of a weight matrix, as the format defines it. */
void kvl_ref_row(const struct kvl_weight *w, int32_t row, float *y);
/* One element of it. */
float kvl_ref_weight(const struct kvl_weight *w, int32_t row, int32_t col);

/* to [n_cols]: x as weights in blocks see it, integers from -most to most times the scale of their `block` columns. */
void kvl_ref_rounded(double *to, const float *x, int32_t n_cols, int32_t block, int32_t most);

/* Element i of an array of a type whose elements stand alone. */
float kvl_ref_elem(const void *p, enum kvl_kv_type type, size_t i);
void kvl_ref_set_elem(void *p, enum kvl_kv_type type, size_t i, float x);

/* to [n]: a row of keys or values as the model made it, but for rounding. */
void kvl_ref_kept(const void *row, enum kvl_kv_type type, int32_t n, double *to);
/* The same of the key of a token in a group of 32. */
void kvl_ref_kept_key(const void *group, enum kvl_kv_type type, int32_t n, int32_t token,
                      double *to);

/* x rounded to bf16. */
static inline double kvl_ref_bf16(double x)
{
    return (double)kvl_bf16_to_f32(kvl_f32_to_bf16((float)x));
}

/* out [head_dim]: one part of one slot. */
void kvl_ref_slot(const struct kvl_lane *lane, enum kvl_kv_part part, int32_t slot, double *out);

/* Turns one head by `pos`, in place. */
void kvl_ref_rotate(double *x, int32_t pos, const struct kvl_rope *rope);

/* One query head over a list of slots. */
struct kvl_ref_query {
    const float *q; /* [head_dim] */
    const struct kvl_lane *lane;
    const int32_t *slot;     /* [n] or NULL: 0 .. n - 1 */
    const uint8_t *mask;     /* [n] or NULL: 0 = weight 0 */
    const float *log_weight; /* [n] or NULL */
    const int32_t *pos;      /* [n] or NULL: raw keys at these positions, the query at q_pos */
    const float *keys;       /* [n][head_dim] or NULL: in place of the stored ones */
    const float *const *key; /* [n] or NULL: the same, where not NULL */
    int32_t q_pos, n;
    float scale, cap;
    bool bf16;                   /* q and k are rounded */
    const struct kvl_rope *rope; /* where pos is given */
};

/* A logit of a model that caps them. */
double kvl_ref_cap(double logit, float cap);
/* p [n]: softmax weights of the list.  Returns the natural log-sum-exp, -inf for an empty list. */
double kvl_ref_weights(const struct kvl_ref_query *a, double *p);
/* out [head_dim] = sum of p times the values. */
void kvl_ref_values(const struct kvl_ref_query *a, const double *p, float *out);

#endif
