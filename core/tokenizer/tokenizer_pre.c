/* Pre-tokenizers: the patterns that cut a text into the pieces which byte-level BPE merges.
 *
 * Patterns are data, run by PCRE2 as published but for \s, which is written out as the White_Space
 * property (PCRE2's own \s also holds U+180E).  (?i:'s) folds case as Unicode does, so that it
 * matches U+017F too, like the engines the patterns were written for. */
#include "tokenizer_impl.h"

#include <stdio.h>
#include <string.h>

/* ---- patterns ------------------------------------------------------------------------------ */

#define WS     "\\t-\\r\\x{85}\\p{Z}" /* White_Space, inside a class */
#define BREAKS "[" WS "]+(?![^" WS "])"
#define GPT2   "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" WS "\\p{L}\\p{N}]+|" BREAKS
#define SHORT  "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
/* How the newer patterns end: line breaks, then other spaces. */
#define TAIL "[" WS "]*[\\r\\n]+|" BREAKS "|[" WS "]+"
#define LLAMA3(digits)                                                                             \
    SHORT "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n]*|" TAIL
#define QWEN35                                                                                     \
    SHORT "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^" WS                                  \
          "\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" TAIL
#define UPPER "\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}"
#define LOWER "\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"
#define TEKKEN(behind, digits)                                                                     \
    "[^\\r\\n\\p{L}\\p{N}]?[" UPPER "]*[" LOWER "]+" behind "|[^\\r\\n\\p{L}\\p{N}]?[" UPPER       \
    "]+[" LOWER "]*" behind "|" digits "| ?[^" WS "\\p{L}\\p{N}]+[\\r\\n/]*|" TAIL
#define BAILING                                                                                    \
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^" WS                          \
    "\\p{L}\\p{N}]++[\\r\\n]*|[" WS "]*[\\r\\n]|" BREAKS "|[" WS "]+"
#define SEED  SHORT "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^" WS "\\p{L}\\p{N}\\r\\n]+|" TAIL
#define BLOOM " ?[^(" WS "|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{964}\\x{6d4}\\x{60c})]+"
/* deepseek-llm lists its letters: the cased ones of Unicode but for these. */
#define NOT_LISTED                                                                                 \
    "\\x{560}-\\x{588}\\x{10c7}-\\x{10ff}\\x{1c80}-\\x{1c8f}\\x{2d00}-\\x{2d2f}\\x{a790}-"         \
    "\\x{ab6f}\\x{10500}-\\x{105ff}\\x{16e40}-\\x{1dfff}"
#define LISTED                                                                                     \
    "[" WS "]?(?:(?![" NOT_LISTED                                                                  \
    "])[\\p{Lu}\\p{Ll}\\p{Lt}])++" /* ++: nothing is kept for each letter */
#define MARKS                                                                                      \
    "[" WS "]?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}"                    \
    "\\x{3000}-\\x{3002}]+"
#define EAST "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define DEEPSEEK3                                                                                  \
    "[!-/:-@\\[-`{-~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"                       \
    " ?[\\p{P}\\p{S}]+[\\r\\n]*|" TAIL

static const char *const pat_gpt2[] = { GPT2, NULL };
static const char *const pat_digits[] = { "\\p{N}", GPT2, NULL };
static const char *const pat_llama3[] = { LLAMA3("\\p{N}{1,3}"), NULL };
static const char *const pat_qwen2[] = { LLAMA3("\\p{N}"), NULL };
static const char *const pat_qwen35[] = { QWEN35, NULL };
static const char *const pat_tekken[] = { TEKKEN("", "\\p{N}"), NULL };
static const char *const pat_gpt4o[] = { TEKKEN(SHORT "?", "\\p{N}{1,3}"), NULL };
static const char *const pat_bailing[] = { BAILING, NULL };
static const char *const pat_seed[] = { SEED, NULL };
static const char *const pat_bloom[] = { BLOOM, NULL };
static const char *const pat_viking[] = { BLOOM, "\\p{N}", NULL };
static const char *const pat_falcon[] = { "[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]",
                                          NULL };
static const char *const pat_deepseek_llm[] = { "[\\r\\n]", LISTED,    MARKS, "[" WS "]+$",
                                                EAST,       "\\p{N}+", NULL };
static const char *const pat_deepseek_coder[] = { "[\\r\\n]",         "[" WS "]?\\p{L}+",
                                                  "[" WS "]?\\p{P}+", EAST,
                                                  "\\p{N}",           NULL };
static const char *const pat_deepseek3[] = { "\\p{N}{1,3}",
                                             "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{30ff}]+", DEEPSEEK3,
                                             NULL };
static const char *const pat_default[] = { "[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+",
                                           "[0-9][0-9][0-9]", NULL };

/* ---- names --------------------------------------------------------------------------------- */

/* One row per value of tokenizer.ggml.pre.  Patterns are applied one after the other to the pieces
 * so far. */
struct pre_row {
    const char *tag;
    const char *const *pattern;
    bool ignore_merges, add_bos;
    bool nfc; /* the model's own tokenizer composes the text first, which no key says */
};

static const struct pre_row pre_rows[] = {
    { "default", pat_default, false, false, false },
    { "gpt-2", pat_gpt2, false, false, false },
    { "mpt", pat_gpt2, false, false, false },
    { "olmo", pat_gpt2, false, false, true },
    { "roberta-bpe", pat_gpt2, false, false, false },
    { "phi-2", pat_gpt2, false, false, false },
    { "exaone4", pat_gpt2, false, false, false },
    { "jais", pat_gpt2, false, false, false },
    { "trillion", pat_gpt2, false, false, false },
    { "granite-docling", pat_gpt2, false, false, false },
    { "gigachat", pat_gpt2, false, false, false },
    { "a.x-4.0", pat_gpt2, false, false, false },
    { "mellum", pat_gpt2, false, false, false },
    { "smollm", pat_digits, false, false, false },
    { "starcoder", pat_digits, false, false, false },
    { "refact", pat_digits, false, false, false },
    { "command-r", pat_digits, false, false, false },
    { "codeshell", pat_digits, false, false, false },
    { "exaone", pat_digits, false, false, false },
    { "minerva-7b", pat_digits, false, false, false },
    { "mellum2", pat_digits, false, false, false },
    { "llama3", pat_llama3, true, true, false },
    { "llama-v3", pat_llama3, true, true, false },
    { "llama-bpe", pat_llama3, true, true, false },
    { "falcon3", pat_llama3, true, true, false },
    { "falcon-h1", pat_llama3, true, true, false },
    { "pixtral", pat_llama3, true, true, false },
    { "lfm2", pat_llama3, true, true, false },
    { "midm-2.0", pat_llama3, true, true, false },
    { "smaug-bpe", pat_llama3, false, false, false },
    { "dbrx", pat_llama3, false, false, false },
    { "chatglm-bpe", pat_llama3, false, false, false },
    { "glm4", pat_llama3, false, false, false },
    { "qwen2", pat_qwen2, false, false, true },
    { "deepseek-r1-qwen", pat_qwen2, false, false, false },
    { "megrez", pat_qwen2, false, false, false },
    { "stablelm2", pat_qwen2, false, false, false },
    { "kormo", pat_qwen2, false, false, false },
    { "hunyuan", pat_qwen2, false, false, false },
    { "solar-open", pat_qwen2, false, false, false },
    { "grok-2", pat_qwen2, false, false, false },
    { "qwen35", pat_qwen35, false, false, true },
    { "tekken", pat_tekken, true, true, false },
    { "gpt-4o", pat_gpt4o, false, false, false },
    { "llama4", pat_gpt4o, false, false, false },
    { "kanana2", pat_gpt4o, false, false, false },
    { "minimax-m2", pat_gpt4o, false, false, false },
    { "deepseek-llm", pat_deepseek_llm, false, false, false },
    { "deepseek-coder", pat_deepseek_coder, false, false, false },
    { "deepseek-v3", pat_deepseek3, false, false, false },
    { "hunyuan-dense", pat_deepseek3, false, false, false },
    { "joyai-llm", pat_deepseek3, false, false, false },
    { "falcon", pat_falcon, false, false, false },
    { "bailingmoe", pat_bailing, false, false, false },
    { "bailingmoe2", pat_bailing, false, false, false },
    { "llada-moe", pat_bailing, false, false, false },
    { "seed-coder", pat_seed, false, false, false },
    { "bloom", pat_bloom, false, false, false },
    { "poro-chat", pat_bloom, false, false, false },
    { "gpt3-finnish", pat_bloom, false, false, false },
    { "viking", pat_viking, false, false, false },
};
enum { N_PRE_ROWS = sizeof pre_rows / sizeof pre_rows[0] };

static int unknown_pre(struct kvl_str tag, struct kvl_err *err)
{
    const char *name[N_PRE_ROWS];
    char shown[64] = { 0 }, all[1024] = { 0 };
    for (size_t i = 0, n = 0; i < N_PRE_ROWS; i++) {
        name[i] = pre_rows[i].tag;
        n += (size_t)snprintf(all + n, sizeof all - n, " %s", name[i]);
    }
    for (size_t i = 0; i < tag.len && i + 1 < sizeof shown; i++)
        shown[i] = tag.s[i] < 0x20 || tag.s[i] > 0x7e ? '?' : tag.s[i];
    const char *near = kvl_nearest(shown, name, N_PRE_ROWS);
    return kvl_fail(err, KVL_EMODEL,
                    "tokenizer.ggml.pre is \"%s\", which is not known%s%s; if the model's pattern "
                    "is one of these, `gguf-new-metadata --pre-tokenizer NAME IN OUT` (of Python's "
                    "gguf) writes a file that says so:%s",
                    shown, near ? "; the nearest is " : "", near ? near : "", all);
}

static int find_pre(const struct kvl_gguf *file, const struct pre_row **out, struct kvl_err *err)
{
    static const char key[] = "tokenizer.ggml.pre";
    struct kvl_str tag = { "default", 7 };
    if (kvl_gguf_has(file, key)) KVL_TRY(kvl_gguf_str(file, key, &tag, err));
    for (size_t i = 0; i < N_PRE_ROWS; i++) {
        *out = &pre_rows[i];
        if (strlen((*out)->tag) == tag.len && memcmp((*out)->tag, tag.s, tag.len) == 0)
            return KVL_OK;
    }
    return unknown_pre(tag, err);
}

/* ---- loading ------------------------------------------------------------------------------- */

int kvl_tok_add_pattern(struct kvl_tokenizer *t, const char *pattern, const char *of,
                        struct kvl_err *err)
{
    int code;
    size_t at;
    PCRE2_UCHAR why[128] = { 0 };
    if (t->n_patterns == TOK_MAX_PATTERNS)
        return kvl_fail(err, KVL_EMODEL, "%s: more than %d patterns", of, (int)TOK_MAX_PATTERNS);
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                   PCRE2_UTF | PCRE2_UCP, &code, &at, NULL);
    if (!re) {
        char shown[TOK_SHOWN + 4];
        struct kvl_str rest = { pattern + at, strlen(pattern + at) };
        pcre2_get_error_message(code, why, sizeof why);
        return kvl_fail(err, KVL_EMODEL, "%s: a pattern at \"%s\": %s", of,
                        kvl_tok_show(rest, shown), (const char *)why);
    }
    t->pattern[t->n_patterns++] = re;
    (void)pcre2_jit_compile(re, PCRE2_JIT_COMPLETE); /* without it matching is only slower */
    return KVL_OK;
}

static int add(struct kvl_buf *out, const char *s, size_t len, struct kvl_err *err)
{
    if (kvl_buf_add(out, s, len) == KVL_OK) return KVL_OK;
    return kvl_fail(err, KVL_ENOMEM, "no memory for a pattern");
}

/* What begins at a backslash: its length, and `word` where PCRE2 has another one; 0: refused. */
static size_t regex_escape(const char *s, bool in_class, const char **word)
{
    size_t n = 0;
    switch (s[1]) {
    case 's': *word = in_class ? WS : "[" WS "]"; return 2;
    case 'S': *word = "[^" WS "]"; return in_class ? 0 : 2;
    case 'd':
    case 'D':
    case 'r':
    case 'n':
    case 't':
    case 'f': return 2;
    case 'p':
    case 'P':
    case 'x':
        if (s[2] == '{') n = strcspn(s + 3, "}");
        return n > 0 && s[3 + n] == '}' ? 4 + n : 0;
    default: return s[1] && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", s[1]) ? 2 : 0;
    }
}

/* What begins at an opening parenthesis: its length, 0: refused. */
static size_t regex_group(const char *s)
{
    static const char *const open[] = { "(?:", "(?i:", "(?=", "(?!", "(?>", "(?<=", "(?<!" };
    for (size_t i = 0; i < sizeof open / sizeof open[0]; i++)
        if (strncmp(s, open[i], strlen(open[i])) == 0) return strlen(open[i]);
    return s[1] == '?' || s[1] == '*' ? 0 : 1;
}

/* The next part of a pattern; 0: refused. */
static size_t regex_part(const char *s, bool in_class, const char **word)
{
    if (*s == '\\') return regex_escape(s, in_class, word);
    if (in_class) return *s == '[' || strncmp(s, "&&", 2) == 0 ? 0 : 1;
    if (*s == '(') return regex_group(s);
    if (*s == '^') *word = "(?<![^\\n])"; /* of any line */
    if (*s == '$') *word = "(?![^\\n])";
    /* {1,3}+ repeats there, and gives nothing back here. */
    return strncmp(s, "}+", 2) == 0 ? 0 : 1;
}

int kvl_tok_regex(const char *in, const char *path, struct kvl_buf *out, struct kvl_err *err)
{
    bool in_class = false;
    for (const char *s = in; *s;) {
        const char *word = NULL;
        size_t n = regex_part(s, in_class, &word);
        if (n == 0) {
            char shown[TOK_SHOWN + 4];
            return kvl_fail(err, KVL_EMODEL, "%s: \"%s\" in a pattern is not supported", path,
                            kvl_tok_show((struct kvl_str){ s, strnlen(s, 8) }, shown));
        }
        KVL_TRY(add(out, word ? word : s, word ? strlen(word) : n, err));
        if (!in_class && *s == '[') {
            in_class = true;
            if (s[n] == '^') KVL_TRY(add(out, s + n++, 1, err));
            if (s[n] == ']') KVL_TRY(add(out, s + n++, 1, err));
        } else if (in_class && *s == ']') {
            in_class = false;
        }
        s += n;
    }
    return KVL_OK;
}

int kvl_tok_pre_load(struct kvl_tokenizer *t, const struct kvl_gguf *file, XXH3_state_t *hash,
                     struct kvl_err *err)
{
    const struct pre_row *row;
    KVL_TRY(find_pre(file, &row, err));
    t->pre = row->tag;
    t->pre_named = kvl_gguf_has(file, "tokenizer.ggml.pre");
    t->ignore_merges = row->ignore_merges;
    if (!kvl_gguf_has(file, "tokenizer.ggml.add_bos_token")) t->add_bos = row->add_bos;
    t->nfc = row->nfc && kvl_tok_nfc_works();
    XXH3_64bits_update(hash, &row->ignore_merges, sizeof row->ignore_merges);
    if (t->nfc) XXH3_64bits_update(hash, &t->nfc, sizeof t->nfc);
    for (const char *const *p = row->pattern; *p; p++) {
        XXH3_64bits_update(hash, *p, strlen(*p) + 1);
        KVL_TRY(kvl_tok_add_pattern(t, *p, row->tag, err));
    }
    return KVL_OK;
}
