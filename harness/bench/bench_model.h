/* bench_model.h - models of a given shape with random weights: for time, not for answers. */
#ifndef KVL_BENCH_MODEL_H
#define KVL_BENCH_MODEL_H

#include "kvl/model.h"

struct bench_shape {
    const char *name;
    int32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff;
};
enum { BENCH_VOCAB = 512, BENCH_CONTEXT = 1 << 20 };

/* KVL_EINVAL: no such shape; the message has the names. */
int bench_shape_find(const char *name, const struct bench_shape **out, struct kvl_err *err);
/* "f16", "bf16", "q8_0" or "q4_0" (NULL = f16): the type of every matrix. */
int bench_weights_parse(const char *text, enum kvl_wtype *out, struct kvl_err *err);

/* Parameters that every token multiplies with: all matrices but the embedding.  Without a shape, as
 * if they were of 16 bits. */
double bench_model_params(const struct bench_shape *shape, const struct kvl_model *model);

/* Writes a GGUF file that kvlab and llama.cpp load: Llama architecture, byte vocabulary.  Equal
 * arguments give equal bytes on every machine.  A file of this name is replaced; on failure none is
 * left behind. */
int bench_model_write(const struct bench_shape *shape, enum kvl_wtype type, const char *path,
                      struct kvl_err *err);
/* The same in a temporary folder, under a new name: freed with free(), the file removed by the
 * caller. */
int bench_model_temp(const struct bench_shape *shape, enum kvl_wtype type, char **path,
                     struct kvl_err *err);

#endif
