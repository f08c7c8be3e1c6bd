/* token_time.h - a token and a prefill on a device that is known by its profile: predictions.
 *
 * What a method does was timed on this machine and its bytes were counted (method_costs.h).  Its time is taken apart:
 * bytes at the speed of memory, and the rest.  On another CPU bytes go at its bandwidth and the rest at its rate of
 * float operations; on this machine both are what was measured.  On a GPU reads and launches are gpu_time.h's, and what
 * a host would do between them is not known.
 *
 * Several devices: heads over `tensor` of them, with two sums over all of them a layer; layers over `pipeline` stages,
 * which one token passes one after the other; layers that a method leaves dense over `context` parts of the tokens,
 * while the others, which read little, stay on one device.
 */
#ifndef KVL_TOKEN_TIME_H
#define KVL_TOKEN_TIME_H

#include "method_costs.h"
#include "profile.h"

struct kvl_split {
    int32_t tensor, pipeline, context; /* 1 and more */
};

struct kvl_sim {
    struct kvl_sim_shape shape;
    struct kvl_profile here; /* what the costs were measured on */
    double prefill_share;    /* of here's tflops that a prefill reaches */
    bool model; /* the costs are of the model itself, not of a small one in its place */
};

struct kvl_sim_token {
    double weights_s, attend_s, method_s, fetch_s, links_s, total_s;
    double weight_bytes, kv_bytes, index_bytes, fetch_bytes; /* of all devices */
    double memory_bytes, host_bytes; /* of one device while it decodes; on the host */
    double prefill_bytes; /* of one device when it has read the context, before any is evicted */
    double attach_s;      /* once the context is read */
};
struct kvl_sim_token kvl_sim_token(const struct kvl_sim *sim, const struct kvl_method_costs *m,
                                   const struct kvl_profile *p, struct kvl_split split,
                                   double n_tok);
/* Of a context of n_tok tokens, all of it at once in every layer; stages of a pipeline follow each other. */
double kvl_sim_prefill(const struct kvl_sim *sim, const struct kvl_profile *p,
                       struct kvl_split split, double n_tok);

/* KVL_EINVAL: more parts than there are heads or layers, or no link between devices in the profile. */
int kvl_split_check(const struct kvl_split *split, const struct kvl_sim_shape *shape,
                    const struct kvl_profile *p, struct kvl_err *err);

#endif
