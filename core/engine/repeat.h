/* repeat.h - a repetition of the context under way; repeat.c runs it, repeat_layer.c looks at its layers. */
#ifndef KVL_REPEAT_H
#define KVL_REPEAT_H

#include "engine_impl.h"

enum { KVL_REPEAT_KINDS = 3 };
extern const enum kvl_observer kvl_repeat_kind[KVL_REPEAT_KINDS];

struct kvl_repeat {
    struct kvl_engine *e;
    int32_t first, last, n_ctx; /* the chunk; tokens of the context */
    bool asks;                  /* a request comes before a chunk */
    /* [n_layers][n_heads][tokens of the chunk] of each kind that is wanted, else NULL */
    float *peak[KVL_REPEAT_KINDS];
    float *score[KVL_REPEAT_KINDS]; /* [n_layers][kvl_replay_rows][n_ctx] */
    int32_t *id;                    /* request and chunk */
};

#endif
