/* tokenizer_hf.h - what the readers of a Hugging Face folder share. */
#ifndef KVL_TOKENIZER_HF_H
#define KVL_TOKENIZER_HF_H

#include "hf_json.h"
#include "tokenizer_impl.h"

/* A folder's files.  Values are NULL, and bytes empty, where there is no such file. */
struct tok_hf {
    const char *dir;
    const char *main;            /* where `json` came from: "tokenizer.json" */
    const char *file;            /* being read: for messages */
    json_t *json;                /* tokenizer.json */
    json_t *config;              /* tokenizer_config.json */
    json_t *map;                 /* special_tokens_map.json */
    json_t *generation;          /* generation_config.json */
    json_t *model;               /* config.json */
    json_t *added;               /* added_tokens.json */
    json_t *chat;                /* chat_template.json */
    struct kvl_buf jinja, proto; /* chat_template.jinja, tokenizer.model */
    int32_t rows; /* of the model, by config.json: tokens beyond are none; INT32_MAX: not known */
    /* while the tokenizer is made */
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

/* tokenizer_hf.c.  From json, else proto, and what is beside them. */
int kvl_tok_hf_create(struct tok_hf *h, struct kvl_tokenizer **out);

/* tokenizer_json.c: texts, types and flags of tokenizer.json; its merges. */
int kvl_tok_json_vocab(struct tok_hf *h);
int kvl_tok_json_merges(struct tok_hf *h);
/* Texts and types of both: `base` [n] with `type` [n] (enum tok_type, 0: normal), and the added
 * ones. */
int kvl_tok_hf_texts(struct tok_hf *h, struct kvl_str *base, const uint8_t *type, int32_t n,
                     const struct tok_added *added, size_t n_added);
/* Ids up to n - 1 of `tokens` texts: KVL_EMODEL when nearly all would have none. */
int kvl_tok_hf_count(const struct tok_hf *h, int32_t n, size_t tokens);
/* {content, lstrip, ...} at `path`. */
int kvl_tok_json_added(const struct tok_hf *h, const json_t *v, const char *path,
                       struct tok_added *out);

/* tokenizer_steps.c: how tokenizer.json wants a text prepared; whether BOS and EOS are added. */
int kvl_tok_json_steps(struct tok_hf *h);

/* tokenizer_gpt2.c: vocab.json and merges.txt to `json`. */
int kvl_tok_gpt2_files(struct tok_hf *h, json_t *vocab, const struct kvl_buf *merges);

/* tokenizer_proto.c: tokenizer.model, with the tokens that added_tokens.json and
 * tokenizer_config.json add.  Texts and ids; *score [t->n] (kvl_free) for later. */
int kvl_tok_proto_load(struct tok_hf *h, float **score);

#endif
