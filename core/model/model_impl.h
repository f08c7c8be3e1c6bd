/* model_impl.h - an opened model: its file, its weights, its tokenizer. */
#ifndef KVL_MODEL_IMPL_H
#define KVL_MODEL_IMPL_H

#include "kvl/gguf.h"
#include "kvl/model.h"
#include "weights.h"

struct kvl_model {
    struct kvl_gguf *file;
    struct kvl_weights w;
    struct kvl_tokenizer *tokenizer;
    struct kvl_shape shape;
    int32_t *window; /* shape.window, or NULL */
    char name[128], hash[33];
    char *path;
    char *chat; /* tokenizer.chat_template; NULL: none */
    struct kvl_tables *tables; /* shape has them, too; NULL: none */
    struct kvl_err tables_unused;
    size_t bytes, token_bytes;
    int64_t layer_weights;
};

#endif
