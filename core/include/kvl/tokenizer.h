/* kvl/tokenizer.h - text to token ids and back, from the vocabulary in a GGUF file or a Hugging Face
 * folder.
 *
 * Three algorithms: `llama` (SentencePiece-like bigram merging by score), `gpt2` (byte-level BPE by
 * merge rank, pre-tokenised by published patterns through PCRE2) and `bpe` (characters merged by
 * rank, spaces as U+2581).
 * Bytes that are not valid UTF-8 are kept (byte tokens), never replaced.
 *
 * Thread-safe: encode and decode may run in parallel on one tokenizer.
 */
#ifndef KVL_TOKENIZER_H
#define KVL_TOKENIZER_H

#include "kvl/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kvl_gguf;
struct kvl_tokenizer;

/* A tokenised text.  { 0 } is empty; free with kvl_tokens_free. */
struct kvl_tokens {
    int32_t *id;   /* [n] */
    size_t *begin; /* [n] first byte of the text that the token covers; tokens added by the
                       tokenizer (BOS, a prefix space) begin where the next one does */
    int32_t n, cap;
};
KVL_API void kvl_tokens_free(struct kvl_tokens *t);

enum kvl_encode_flags {
    KVL_ENCODE_BOS = 1,     /* add BOS (and EOS) where the file says so */
    KVL_ENCODE_SPECIAL = 2, /* text that spells a control token becomes that token */
    KVL_ENCODE_CONTINUE = 4 /* the text continues another: no BOS, no prefix space */
};

int kvl_tokenizer_create(const struct kvl_gguf *file, struct kvl_tokenizer **out,
                         struct kvl_err *err);
/* From `dir`: tokenizer.json, else tokenizer.model, else vocab.json and merges.txt; BOS, EOS and the tokens that end a generation
 * from tokenizer_config.json, special_tokens_map.json, generation_config.json and config.json where
 * they are there.  What tokenizer.json asks for and kvlab does not do is refused with its path. */
int kvl_tokenizer_from_hf(const char *dir, struct kvl_tokenizer **out, struct kvl_err *err);
void kvl_tokenizer_destroy(struct kvl_tokenizer *t);
/* Rows of the model that it belongs to: ids from the tokenizer's size on, which padding makes, are the text "". */
void kvl_tokenizer_rows(struct kvl_tokenizer *t, int32_t rows);

/* Appends to `out`. */
KVL_API int kvl_encode(const struct kvl_tokenizer *t, const char *text, size_t len, uint32_t flags,
                       struct kvl_tokens *out, struct kvl_err *err);
/* Appends the text of n ids.  Control tokens give nothing unless `special`; `first` drops the space
 * that SentencePiece puts in front of a text. */
KVL_API int kvl_decode(const struct kvl_tokenizer *t, const int32_t *id, int32_t n, bool special,
                       bool first, struct kvl_buf *out, struct kvl_err *err);

KVL_API int32_t kvl_tokenizer_size(const struct kvl_tokenizer *t);
KVL_API int32_t kvl_tokenizer_bos(const struct kvl_tokenizer *t); /* -1: none */
KVL_API int32_t kvl_tokenizer_eos(const struct kvl_tokenizer *t); /* -1: none */
/* EOS and every other token that ends a generation. */
KVL_API bool kvl_tokenizer_ends(const struct kvl_tokenizer *t, int32_t id);
/* Control, unknown and user-defined tokens that are not just spaces or punctuation: what no plain text
 * becomes. */
KVL_API bool kvl_tokenizer_special(const struct kvl_tokenizer *t, int32_t id);
/* Tokens whose text is punctuation or line breaks and spaces, nothing else. */
KVL_API bool kvl_tokenizer_punct(const struct kvl_tokenizer *t, int32_t id);
/* Hash of everything that decides ids: for logs and snapshot keys. */
uint64_t kvl_tokenizer_hash(const struct kvl_tokenizer *t);
const char *kvl_tokenizer_model(const struct kvl_tokenizer *t); /* "llama", "gpt2", "bpe" */
/* A few lines for people: kind, pre-tokenizer, BOS, EOS, what ends a generation. */
int kvl_tokenizer_describe(const struct kvl_tokenizer *t, struct kvl_buf *out);
/* The chat template (Jinja) of the file or folder, NULL: none. */
const char *kvl_tokenizer_template(const struct kvl_tokenizer *t);

#ifdef __cplusplus
}
#endif

#endif
