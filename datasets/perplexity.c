/* Perplexity: how well a text is predicted, token by token, while a policy decides what is read.
 *
 * Quest (ICML 2024, figure 6) and StreamingLLM (ICLR 2024, figure 3)
 * report it on PG19.  The text is a file of the user's, or filler of our own (text/english.def), which
 * any number of contexts can be drawn from.
 *
 * Context i of a file is the i-th stretch of `length` tokens (BOS not counted), so that contexts do not
 * overlap and context i is the same in every sweep.  The file is tokenised as a whole.
 */
#include "kvl/task.h"
#include "text.h"

#include <string.h>

struct perplexity_opts {
    struct kvl_reading how;
    double repeat;
};

enum {
    PERPLEXITY_FILE_LIMIT = 1 << 30,
    PERPLEXITY_TOKEN_BYTES = 4, /* of filler, as a first guess */
};

static const char *const perplexity_modes[] = { "prefill", "chunk", "decode", NULL };

static const struct kvl_opt perplexity_options[] = {
    { .name = "mode",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct perplexity_opts, how.mode),
      .def = "prefill",
      .choices = perplexity_modes,
      .help = "prefill: one dense prefill, then the last `tokens` are decoded under the policy; "
              "chunk: `chunk` tokens at a time under the policy; decode: every token is a step" },
    { .name = "tokens",
      .type = KVL_OPT_INT,
      .off = offsetof(struct perplexity_opts, how.tokens),
      .def = "256",
      .min = 1,
      .max = 1 << 24,
      .help = "tokens to predict, of the length (mode prefill)" },
    { .name = "chunk",
      .type = KVL_OPT_INT,
      .off = offsetof(struct perplexity_opts, how.chunk),
      .def = "128",
      .min = 1,
      .max = 65536,
      .help = "tokens that are read at a time (mode chunk)" },
    { .name = "repeat",
      .type = KVL_OPT_FLOAT,
      .off = offsetof(struct perplexity_opts, repeat),
      .def = "0",
      .max = 0.9,
      .help = "share of the filler sentences that stood before, anywhere in the text: what only a "
              "policy that still has them can predict" },
    { .name = "text",
      .type = KVL_OPT_STR,
      .off = offsetof(struct perplexity_opts, how.text),
      .def = "",
      .help = "a text file, relative to where the program runs; empty: filler text of our own" },
    { 0 }
};

/* The length that leaves something to predict after what is read first. */
static int perplexity_check(const struct kvl_task_request *req, struct kvl_err *err)
{
    const struct kvl_reading *r = req->opts;
    static const char *const what[] = { "tokens", "chunk" };
    int32_t least = r->mode == KVL_READ_PREFILL ? r->tokens
                    : r->mode == KVL_READ_CHUNK ? r->chunk
                                                : 1;
    if (req->length_tok >= least + 2) return KVL_OK;
    if (r->mode == KVL_READ_DECODE)
        return kvl_fail(err, KVL_EINVAL, "perplexity: a length of %d tokens, want at least %d",
                        req->length_tok, least + 2);
    return kvl_fail(err, KVL_EINVAL,
                    "perplexity: a length of %d tokens with %s=%d, want a length of at least %d",
                    req->length_tok, what[r->mode], least, least + 2);
}

/* ---- texts ---------------------------------------------------------------------------------- */

/* What the tokenizer puts in front of a text: BOS or nothing. */
static int perplexity_bos(const struct kvl_tokenizer *t, int32_t *out, struct kvl_err *err)
{
    struct kvl_tokens none = { 0 };
    KVL_TRY(kvl_encode(t, "", 0, KVL_ENCODE_BOS, &none, err));
    *out = none.n > 0 && none.id[0] == kvl_tokenizer_bos(t) ? none.id[0] : -1;
    kvl_tokens_free(&none);
    return KVL_OK;
}

/* The tokens first .. first + n - 1 of a text, BOS before them. */
static int perplexity_cut(const struct kvl_buf *text, const struct kvl_tokens *all, int32_t bos,
                          int64_t first, int32_t n, struct kvl_sample *out)
{
    int32_t head = bos >= 0;
    size_t begin = all->begin[first];
    size_t end = first + n < all->n ? all->begin[first + n] : text->len;
    struct kvl_sample s = { .context = kvl_alloc(end - begin + 1, 1) };
    s.tokens.id = kvl_alloc((size_t)(n + head), sizeof *s.tokens.id);
    s.tokens.begin = kvl_alloc((size_t)(n + head), sizeof *s.tokens.begin);
    if (!s.context || !s.tokens.id || !s.tokens.begin) {
        kvl_sample_free(&s);
        return KVL_ENOMEM;
    }
    memcpy(s.context, text->data + begin, end - begin);
    if (head) s.tokens.id[0] = bos;
    for (int32_t i = 0; i < n; i++) {
        s.tokens.id[head + i] = all->id[first + i];
        s.tokens.begin[head + i] = all->begin[first + i] - begin;
    }
    s.tokens.n = s.tokens.cap = n + head;
    *out = s;
    return KVL_OK;
}

static int perplexity_memory(struct kvl_err *err)
{
    return kvl_fail(err, KVL_ENOMEM, "perplexity: out of memory for a text");
}

/* Sentences in one paragraph, while they are written. */
struct perplexity_filler {
    struct kvl_rng rng;
    double repeat;
    struct kvl_buf begin; /* size_t, of every sentence in the text */
};

/* A new sentence, or one that stands in the text. */
static int perplexity_sentence(struct perplexity_filler *f, struct kvl_buf *text)
{
    const size_t *begin = (const size_t *)(const void *)f->begin.data;
    size_t n = f->begin.len / sizeof *begin, at = text->len;
    if (n == 0 || kvl_rng_f64(&f->rng) >= f->repeat) {
        KVL_TRY(kvl_text_sentence(&kvl_text_english, &f->rng, text));
    } else {
        size_t i = kvl_rng_below(&f->rng, (uint32_t)n);
        size_t end = i + 1 < n ? begin[i + 1] - 1 : text->len - 1; /* without the space */
        struct kvl_buf copy = { 0 };
        int rc = kvl_buf_add(&copy, text->data + begin[i], end - begin[i]);
        if (rc == KVL_OK) rc = kvl_buf_add(text, copy.data, copy.len);
        kvl_buf_free(&copy);
        KVL_TRY(rc);
    }
    return kvl_buf_add(&f->begin, &at, sizeof at);
}

static int perplexity_write(struct perplexity_filler *f, size_t bytes, struct kvl_buf *text)
{
    while (text->len < bytes) {
        if (text->len > 0) KVL_TRY(kvl_buf_adds(text, " "));
        KVL_TRY(perplexity_sentence(f, text));
    }
    return KVL_OK;
}

/* Filler of at least n tokens. */
static int perplexity_filler(const struct kvl_task_request *req, int32_t n, struct kvl_buf *text,
                             struct kvl_tokens *all, struct kvl_err *err)
{
    struct perplexity_filler f = { .repeat = ((const struct perplexity_opts *)req->opts)->repeat };
    size_t bytes = (size_t)n * PERPLEXITY_TOKEN_BYTES;
    int rc = KVL_OK;
    kvl_rng_seed(&f.rng, req->seed);
    for (; all->n <= n && rc == KVL_OK; bytes += bytes / 4 + 64) {
        all->n = 0;
        rc = perplexity_write(&f, bytes, text);
        if (rc == KVL_OK)
            rc = kvl_encode(req->tokenizer, text->data, text->len, 0, all, err);
        else
            perplexity_memory(err);
    }
    kvl_buf_free(&f.begin);
    return rc;
}

static int perplexity_file(const struct kvl_task_request *req, int32_t n, struct kvl_buf *text,
                           struct kvl_tokens *all, struct kvl_err *err)
{
    const char *path = ((const struct kvl_reading *)req->opts)->text;
    int64_t want = (int64_t)n * (req->index + 1);
    KVL_TRY(kvl_read_file(path, PERPLEXITY_FILE_LIMIT, text, err));
    if (text->len == 0) return kvl_fail(err, KVL_EINVAL, "%s: is empty, want a text", path);
    KVL_TRY(kvl_encode(req->tokenizer, text->data, text->len, 0, all, err));
    if (all->n < want)
        return kvl_fail(err, KVL_EINVAL,
                        "%s: a text of %d tokens, want at least %lld for %d context%s of %d", path,
                        all->n, (long long)want, req->index + 1, req->index ? "s" : "", n);
    return KVL_OK;
}

static int perplexity_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                               struct kvl_err *err)
{
    bool file = ((const struct kvl_reading *)req->opts)->text[0] != '\0';
    struct kvl_buf text = { 0 };
    struct kvl_tokens all = { 0 };
    int32_t bos;
    KVL_TRY(perplexity_check(req, err));
    KVL_TRY(perplexity_bos(req->tokenizer, &bos, err));
    int32_t n = req->length_tok - (bos >= 0);
    int rc = file ? perplexity_file(req, n, &text, &all, err)
                  : perplexity_filler(req, n, &text, &all, err);
    if (rc == KVL_OK &&
        perplexity_cut(&text, &all, bos, file ? (int64_t)n * req->index : 0, n, out) != KVL_OK)
        rc = perplexity_memory(err);
    kvl_tokens_free(&all);
    kvl_buf_free(&text);
    return rc;
}

static const struct kvl_task perplexity = {
    .abi = KVL_TASK_ABI,
    .size = sizeof perplexity,
    .name = "perplexity",
    .title = "Perplexity of a text",
    .paper = "Xiao et al., StreamingLLM, ICLR 2024; Tang et al., Quest, ICML 2024 (figure 6)",
    .help = "how well a text is predicted: a file of yours, or filler text",
    .version = 1,
    .opts = perplexity_options,
    .opts_size = sizeof(struct perplexity_opts),
    .generate = perplexity_generate,
};

KVL_TASK_EXPORT(perplexity)
