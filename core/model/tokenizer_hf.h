/* tokenizer_hf.h - what the readers of a Hugging Face folder share. */
#ifndef KVL_TOKENIZER_HF_H
#define KVL_TOKENIZER_HF_H

#include "tokenizer_impl.h"

#include <jansson.h>

/* A folder being read.  The JSON values are NULL where there is no such file. */
struct tok_hf {
    const char *dir;
    const char *file;   /* being read: for messages */
    json_t *json;       /* tokenizer.json */
    json_t *config;     /* tokenizer_config.json */
    json_t *map;        /* special_tokens_map.json */
    json_t *generation; /* generation_config.json */
    json_t *model;      /* config.json */
    struct kvl_tokenizer *t;
    XXH3_state_t *hash;
    struct kvl_err *err;
};

/* A token that a file adds to the vocabulary, or describes. */
struct tok_added {
    int32_t id;
    struct kvl_str text;
    bool special;
    uint8_t flags; /* enum tok_flag */
};

/* "<path> is <what is there>, want <want>". */
int kvl_tok_hf_refuse(const struct tok_hf *h, const char *path, const json_t *found,
                      const char *want);
/* The text of a JSON string, "" for another value. */
struct kvl_str kvl_tok_json_str(const json_t *v);
bool kvl_tok_json_is(const json_t *v, const char *text);

/* tokenizer_json.c: texts, types and flags of tokenizer.json; its merges. */
int kvl_tok_json_vocab(struct tok_hf *h);
int kvl_tok_json_merges(struct tok_hf *h);
/* Texts and types of both: `base` [n] with `type` [n] (enum tok_type, 0: normal), and the added
 * ones. */
int kvl_tok_hf_texts(struct tok_hf *h, struct kvl_str *base, const uint8_t *type, int32_t n,
                     const struct tok_added *added, size_t n_added);
/* {content, lstrip, ...} at `path`. */
int kvl_tok_json_added(const struct tok_hf *h, const json_t *v, const char *path,
                       struct tok_added *out);

/* tokenizer_steps.c: how tokenizer.json wants a text prepared; whether BOS and EOS are added. */
int kvl_tok_json_steps(struct tok_hf *h);

/* tokenizer_proto.c: tokenizer.model, with the tokens that tokenizer_config.json and
 * added_tokens.json (`texts`) add.  Texts and ids; *score [t->n] (kvl_free) for later. */
int kvl_tok_proto_load(struct tok_hf *h, const struct kvl_buf *file, json_t *texts, float **score);

#endif
