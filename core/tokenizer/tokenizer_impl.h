/* tokenizer_impl.h - what the tokenizer's files share.
 *
 *   tokenizer.c          create, from a GGUF file
 *   tokenizer_text.c     encode, decode
 *   tokenizer_object.c   what a tokenizer says of itself, and its end
 *   tokenizer_vocab.c    reads and checks the vocabulary of a file
 *   tokenizer_special.c  finds special tokens in a text
 *   tokenizer_merge.c    joins symbols, best pair first: the core of both algorithms
 *   tokenizer_spm.c      `llama`: pairs by score, leftovers as bytes
 *   tokenizer_bpe.c      `gpt2`: pieces by patterns, pairs by merge rank
 *   tokenizer_pre.c      the pre-tokenizers' patterns
 *   tokenizer_describe.c what a tokenizer is, for people
 *   tokenizer_hf.c       from a Hugging Face folder: which files, BOS, EOS, ends
 *   tokenizer_json.c     tokenizer.json: vocabulary, merges, added tokens
 *   tokenizer_steps.c    tokenizer.json: normalizer, pre-tokenizer, post-processor
 *   tokenizer_gpt2.c     vocab.json and merges.txt
 *   tokenizer_proto.c    tokenizer.model of SentencePiece
 *   tokenizer_nfc.c      Unicode's canonical composition
 *
 * A text is cut at special tokens into fragments; a fragment becomes symbols (characters or bytes)
 * that are merged into tokens.
 */
#ifndef KVL_TOKENIZER_IMPL_H
#define KVL_TOKENIZER_IMPL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include "kvl/gguf.h"
#include "kvl/tokenizer.h"
#include "kvl/utf8.h"

#include <pcre2.h>
#include <xxhash.h>

enum tok_type {
    TOK_NORMAL = 1,
    TOK_UNKNOWN = 2,
    TOK_CONTROL = 3,
    TOK_USER = 4,
    TOK_UNUSED = 5,
    TOK_BYTE = 6,
};

enum { TOK_MAX_PATTERNS = 8, TOK_MAX_TOKENS = 1 << 24, TOK_SHOWN = 32 };

/* What a tokenizer.json says of an added token. */
enum tok_flag {
    TOK_ADDED = 1,
    TOK_LSTRIP = 2, /* takes the white space before it */
    TOK_RSTRIP = 4, /* and behind it */
    TOK_LATER = 8,  /* searched in the normalized text */
};

/* n byte strings in one block. */
struct tok_strings {
    char *data;
    size_t *at; /* [n + 1] */
};

/* Open addressing from a pair of ids to its merge; rank1 0 = empty. */
struct tok_merge {
    uint64_t pair;
    uint32_t rank1; /* rank + 1 */
    int32_t id;     /* what the two become */
};

struct kvl_tokenizer {
    bool bpe;
    int32_t n;
    int32_t rows; /* of the model: ids from n on are rows without a token; 0: not known */
    bool cut;     /* tokens beyond the model's rows were left out, and merges that want them */
    struct tok_strings text;  /* as in the file: with U+2581, or GPT-2's visible characters */
    struct tok_strings plain; /* the bytes that a token stands for */
    uint8_t *type;            /* [n] enum tok_type */
    bool *ends;               /* [n] ends a generation */
    uint32_t *slot;           /* text -> id + 1, open addressing */
    size_t slot_mask;
    size_t max_len;        /* of a text */
    int32_t byte_id[256];  /* -1: none */
    int32_t bos, eos, unk; /* -1: none */
    bool add_bos, add_eos, add_space;
    /* What a template has before a text that begins, tokenised with it less the first tokens (chat.c). */
    const char *lead; /* borrowed; NULL: nothing */
    size_t lead_len;
    int32_t lead_drops;
    int32_t *special; /* [n_special] ids, sorted by text */
    int32_t n_special;
    uint64_t hash;
    const char *kind;    /* "llama", "gpt2", "bpe" */
    char *chat_template; /* NULL: none */
    /* From a Hugging Face folder: the leftmost added token counts, then the longest. */
    bool added;
    uint8_t *flags;    /* [n] enum tok_flag; NULL: none */
    bool nfc;          /* text is composed first */
    bool space_once;   /* the prefix space at the text's start alone */
    bool space_unless; /* none before a space */
    bool cut_marks;    /* a word begins at every U+2581 */
    /* llama */
    uint32_t *rank; /* [n] 0 for the best score; equal scores have equal ranks */
    bool cut_words; /* no token goes on over a space: words can be merged one by one */
    /* gpt2 */
    const char *pre;    /* the pre-tokenizer's name */
    bool pre_named;     /* the file says so; else it is what files without a name have */
    bool ignore_merges; /* a piece that is a token needs no merging */
    struct tok_merge *merge;
    size_t merge_mask;
    pcre2_code *pattern[TOK_MAX_PATTERNS + 1]; /* NULL-terminated */
    int32_t n_patterns;
};

/* A stretch of the text that may become a token.  A merged-away symbol has len 0. */
struct tok_sym {
    uint32_t pos, len; /* in tok_encode.chunk */
    uint32_t raw;      /* first byte in the caller's text */
    int32_t id;        /* -1: not a token by itself */
    int32_t prev, next;
};

struct tok_pair {
    uint32_t rank, left;
    uint32_t len; /* of both: a pair whose length has changed is stale */
    int32_t id;
};

/* One call of kvl_encode. */
struct tok_encode {
    const struct kvl_tokenizer *t;
    const char *text;    /* the caller's */
    const uint8_t *mark; /* [len] not 0: control tokens are text; NULL: all 0 */
    size_t len;
    struct kvl_tokens *out;
    struct kvl_err *err;
    const char *chunk; /* what the symbols point into */
    struct tok_sym *sym;
    size_t n_sym, cap_sym;
    struct tok_pair *heap;
    size_t n_heap, cap_heap;
    struct kvl_buf scratch;
    pcre2_match_data *match;
    pcre2_match_context *limits;
};

/* A special token in the text. */
struct tok_hit {
    size_t begin, len;
    int32_t id;
};

/* tokenizer_text.c.  kvl_encode of a text in which control tokens are tokens where its mark is 0. */
int kvl_encode_marked(const struct kvl_tokenizer *t, const char *text, const uint8_t *mark,
                      size_t len, uint32_t flags, struct kvl_tokens *out, struct kvl_err *err);

/* tokenizer_vocab.c */
/* Texts [n] without equals or empty ones; sets n and makes type, ends and byte_id. */
int kvl_tok_set_texts(struct kvl_tokenizer *t, const struct kvl_str *s, int32_t n,
                      struct kvl_err *err);
int kvl_tok_load_bytes(struct kvl_tokenizer *t, struct kvl_err *err); /* those of TOK_BYTE */
void kvl_tok_hash_vocab(const struct kvl_tokenizer *t, XXH3_state_t *hash);
int kvl_tok_load_vocab(struct kvl_tokenizer *t, const struct kvl_gguf *file, XXH3_state_t *hash,
                       struct kvl_err *err);
/* Marks the tokens whose text says that they end a generation. */
void kvl_tok_name_ends(struct kvl_tokenizer *t);
int32_t kvl_tok_find(const struct kvl_tokenizer *t, const char *s, size_t len); /* -1: none */
/* The same, but only tokens that plain text may become: no control, unknown or byte tokens. */
int32_t kvl_tok_find_text(const struct kvl_tokenizer *t, const char *s, size_t len);
/* The value of the text "<0xNN>", -1 for another text. */
int kvl_tok_byte_value(struct kvl_str s);
/* A text for a message: printable ASCII, cut short. */
const char *kvl_tok_show(struct kvl_str s, char out[TOK_SHOWN + 4]);
struct kvl_str kvl_tok_string(const struct tok_strings *s, int32_t i);
int kvl_tok_strings_init(struct tok_strings *s, int32_t n, size_t bytes);

/* tokenizer_special.c.  Hits in ascending order (free); none overlap. */
int kvl_tok_load_special(struct kvl_tokenizer *t, struct kvl_err *err);
/* `mark` [len] or NULL: where it is not 0 control tokens are none; `later`: the tokens of TOK_LATER instead of the
 * others. */
int kvl_tok_special_hits(const struct kvl_tokenizer *t, const char *text, const uint8_t *mark,
                         size_t len, bool control, bool later, struct tok_hit **hit, size_t *n,
                         struct kvl_err *err);

/* tokenizer_merge.c */
int kvl_tok_push(struct tok_encode *e, size_t raw, int32_t id); /* a token to the output */
int kvl_tok_symbol(struct tok_encode *e, size_t pos, size_t len, size_t raw, int32_t id);
/* Bytes without a token of their own: byte tokens, else the unknown token; else they are left out, as llama.cpp and
 * Hugging Face's tokenizers do.  A GGUF file's byte-level BPE has no unknown token: its key is of other kinds. */
int kvl_tok_fallback(struct tok_encode *e, const char *s, size_t len, size_t raw);
typedef bool (*kvl_tok_pair_fn)(const struct tok_encode *e, const struct tok_sym *l,
                                const struct tok_sym *r, uint32_t *rank, int32_t *id);
/* Merges e->sym [n_sym], lowest rank first, ties to the left.  Symbol 0 always survives. */
int kvl_tok_merge_all(struct tok_encode *e, kvl_tok_pair_fn pair);

/* tokenizer_spm.c */
int kvl_tok_spm_load(struct kvl_tokenizer *t, const struct kvl_gguf *file, XXH3_state_t *hash,
                     struct kvl_err *err);
/* The same with scores given: floats [t->n], not aligned; `key` names them in a message. */
int kvl_tok_spm_scores(struct kvl_tokenizer *t, const void *score, const char *key,
                       XXH3_state_t *hash, struct kvl_err *err);
/* And without scores: what follows from the texts. */
int kvl_tok_spm_texts(struct kvl_tokenizer *t, struct kvl_err *err);
int kvl_tok_spm_fragment(struct tok_encode *e, size_t begin, size_t len, bool space);

/* tokenizer_bpe.c */
int kvl_tok_bpe_load(struct kvl_tokenizer *t, const struct kvl_gguf *file, XXH3_state_t *hash,
                     struct kvl_err *err);
int kvl_tok_bpe_texts(struct kvl_tokenizer *t, struct kvl_err *err);
/* "A B" to A and B; KVL_EMODEL without a message when it is not that. */
int kvl_tok_split_merge(struct kvl_str s, struct kvl_str part[2]);
/* `part` [n][2], best merge first. */
int kvl_tok_set_merges(struct kvl_tokenizer *t, const struct kvl_str *part, int64_t n,
                       const char *key, XXH3_state_t *hash, struct kvl_err *err);
bool kvl_tok_bpe_pair(const struct tok_encode *e, const struct tok_sym *l, const struct tok_sym *r,
                      uint32_t *rank, int32_t *id);
int kvl_tok_bpe_fragment(struct tok_encode *e, size_t begin, size_t len);

/* tokenizer_pre.c */
int kvl_tok_pre_load(struct kvl_tokenizer *t, const struct kvl_gguf *file, XXH3_state_t *hash,
                     struct kvl_err *err);
/* Appends to t->pattern; `of` says in a message whose pattern it is. */
int kvl_tok_add_pattern(struct kvl_tokenizer *t, const char *pattern, const char *of,
                        struct kvl_err *err);

/* \s, \S, ^ and $ of the engine that tokenizer.json is written for, in PCRE2's words; what means
 * something else there is refused.  `path` says in a message where the pattern stands. */
int kvl_tok_regex(const char *in, const char *path, struct kvl_buf *out, struct kvl_err *err);

/* tokenizer_nfc.c */
bool kvl_tok_nfc_works(void); /* false: built without it */
/* Composes text [len].  *changed false: it is composed already, and `out` stays empty.  Else `out` is
 * the new text and *at [out->len] (free) where each of its bytes came from. */
int kvl_tok_nfc(const char *text, size_t len, struct kvl_buf *out, size_t **at, bool *changed);

#endif
