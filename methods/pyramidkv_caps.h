/* pyramidkv_caps.h - how many of n_tok tokens a layer keeps: `capacity` on average, the last `window`
 * among them (pyramidkv.c). */
#ifndef KVL_METHODS_PYRAMIDKV_CAPS_H
#define KVL_METHODS_PYRAMIDKV_CAPS_H

#include "kvl/base.h"

#include <math.h>

enum pyramid_schedule {
    PYRAMID_STRICT = 0,
    PYRAMID_FACTORY, /* KVCache-Factory: the paper's code */
    PYRAMID_ADAKV,   /* the copy in AdaKV's repository */
    PYRAMID_KVPRESS,
};

struct pyramid {
    enum pyramid_schedule schedule;
    int32_t n_layers, n_tok, capacity, window, beta;
};

/* Integer arithmetic throughout.  The step is rounded down, so that the sum overshoots layers x C. */
static inline int32_t pyramid_code(const struct pyramid *p, int32_t layer)
{
    int32_t b = p->capacity - p->window, room = p->n_tok - p->window;
    int32_t min = b / p->beta, max = 2 * b - min;
    if (p->schedule == PYRAMID_FACTORY && p->n_tok < 2 * b) return p->capacity;
    if (max >= room) {
        max = room;
        min = 2 * b - max;
    }
    int32_t step = p->n_layers > 1 ? (max - min) / (p->n_layers - 1) : 0;
    return p->n_layers > 1 ? max - layer * step + p->window : p->capacity;
}

/* The ends of the pyramid as real numbers, of `b` tokens a layer on average. */
static inline void pyramid_ends(const struct pyramid *p, double b, double *min, double *max)
{
    double room = p->n_tok - p->window;
    *min = b / p->beta;
    *max = 2 * b - *min;
    if (*max < room) return;
    *max = room;
    *min = 2 * b - room;
}

static inline double pyramid_at(const struct pyramid *p, double min, double max, int32_t layer)
{
    return p->n_layers > 1 ? max - layer * (max - min) / (p->n_layers - 1) : (min + max) / 2;
}

/* The window is part of a layer's number; a pyramid whose top is below the window is none.  PyramidKVPress is
 * told what share to remove; its doubles are followed operation by operation, and a product stands in a
 * statement of its own: where a layer's number ends in a half, one ulp decides how it is rounded. */
static inline int32_t pyramid_kvpress(const struct pyramid *p, int32_t layer)
{
    double ratio = 1 - (double)p->capacity / p->n_tok, kept = p->n_tok * (1 - ratio), min, max;
    double with_window = p->window + kept;
    pyramid_ends(p, with_window - p->window, &min, &max);
    if (!(p->n_tok >= max && max >= min && min >= p->window) || p->n_layers == 1)
        return p->capacity;
    double step = (max - min) / (p->n_layers - 1), below = layer * step;
    return (int32_t)nearbyint(max - below); /* half to even */
}

/* Real-valued as in the paper, rounded by largest remainders (ties: the lower layer). */
static inline int32_t pyramid_strict(const struct pyramid *p, int32_t layer)
{
    int32_t b = p->capacity - p->window;
    double min, max;
    pyramid_ends(p, b, &min, &max);
    double mine = pyramid_at(p, min, max, layer);
    int64_t left = (int64_t)p->n_layers * b;
    int32_t before = 0; /* layers with a larger remainder */
    for (int32_t l = 0; l < p->n_layers; l++) {
        double v = pyramid_at(p, min, max, l);
        double rest = v - floor(v), own = mine - floor(mine);
        left -= (int64_t)floor(v);
        before += rest > own || (l < layer && !(rest < own));
    }
    return (int32_t)floor(mine) + (before < left ? 1 : 0) + p->window;
}

/* What a layer keeps, its window included; n_tok or more is everything. */
static inline int32_t pyramid_keep(const struct pyramid *p, int32_t layer)
{
    if (p->n_tok <= p->capacity) return p->n_tok;
    if (p->schedule == PYRAMID_STRICT) return pyramid_strict(p, layer);
    if (p->schedule == PYRAMID_KVPRESS) return pyramid_kvpress(p, layer);
    return pyramid_code(p, layer);
}

#endif
