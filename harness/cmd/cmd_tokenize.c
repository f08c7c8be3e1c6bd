/* kvlab tokenize: text to token ids and back. */
#include "args.h"
#include "cmds.h"
#include "show.h"

/* A file that holds a vocabulary and no weights is enough here. */
#include "kvl/gguf.h"
#include "kvl/tokenizer.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { TOKENIZE_LIMIT = 1 << 30, TOKENIZE_KEY_IDS = 1, TOKENIZE_KEY_DECODE };

struct tokenize_args {
    struct kvl_args base;
    const char *model, *file;
    bool ids, decode, bos, special, cont, info;
};

static const struct argp_option tokenize_options[] = {
    { "ids", 'i', NULL, 0, "print ids alone, on one line", 0 },
    { "decode", 'd', NULL, 0, "the file holds ids; print their text", 0 },
    { "bos", 'b', NULL, 0, "add BOS and EOS where the model file says so", 0 },
    { "special", 's', NULL, 0, "text that spells a control token is that token", 0 },
    { "continue", 'c', NULL, 0, "the text continues another: no prefix space", 0 },
    { "model", 'm', "FILE", 0, "GGUF file, or folder with tokenizer.json or tokenizer.model", 0 },
    { "info", 'n', NULL, 0, "no text: say which tokenizer it is, and its BOS, EOS and ends", 0 },
    { 0 }
};

static error_t tokenize_parse(int key, char *arg, struct argp_state *state)
{
    struct tokenize_args *a = state->input;
    switch (key) {
    case 'm': a->model = arg; return 0;
    case 'i': a->ids = true; return 0;
    case 'd': a->decode = true; return 0;
    case 'b': a->bos = true; return 0;
    case 's': a->special = true; return 0;
    case 'c': a->cont = true; return 0;
    case 'n': a->info = true; return 0;
    case ARGP_KEY_ARG:
        if (a->file)
            return kvl_args_fail(
                &a->base, kvl_fail(a->base.err, KVL_EINVAL, "\"%s\": one file at a time", arg));
        a->file = arg;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp tokenize_argp = {
    .options = tokenize_options,
    .parser = tokenize_parse,
    .args_doc = "FILE|-",
    .doc = "Token ids of a text: one token a line, id and text, or with --ids the ids alone.  The "
           "model "
           "is a GGUF file or a Hugging Face folder.",
};

/* The text of one token with bytes outside printable ASCII as \xNN, so that a line stays a line. */
static void tokenize_print_text(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '\\')
            fputs("\\\\", stdout);
        else if (c >= 0x20 && c < 0x7f)
            putchar(c);
        else
            printf("\\x%02x", c);
    }
    putchar('\n');
}

static int tokenize_print(const struct kvl_tokenizer *t, const struct kvl_tokens *tokens, bool ids,
                          struct kvl_err *err)
{
    struct kvl_buf text = { 0 };
    int rc = KVL_OK;
    for (int32_t i = 0; i < tokens->n && rc == KVL_OK; i++) {
        if (ids) {
            printf("%s%d", i ? " " : "", tokens->id[i]);
            continue;
        }
        text.len = 0;
        rc = kvl_decode(t, &tokens->id[i], 1, true, false, &text, err);
        printf("%d\t", tokens->id[i]);
        tokenize_print_text(text.data ? text.data : "", text.len);
    }
    if (ids) putchar('\n');
    kvl_buf_free(&text);
    return rc;
}

static int tokenize_encode(const struct tokenize_args *a, const struct kvl_tokenizer *t,
                           const struct kvl_buf *file, struct kvl_err *err)
{
    struct kvl_tokens tokens = { 0 };
    uint32_t flags = (a->bos ? KVL_ENCODE_BOS : 0u) | (a->special ? KVL_ENCODE_SPECIAL : 0u) |
                     (a->cont ? KVL_ENCODE_CONTINUE : 0u);
    int rc = kvl_encode(t, file->data, file->len, flags, &tokens, err);
    if (rc == KVL_OK) rc = tokenize_print(t, &tokens, a->ids, err);
    kvl_tokens_free(&tokens);
    return rc;
}

static int tokenize_decode(const struct tokenize_args *a, const struct kvl_tokenizer *t,
                           const struct kvl_buf *file, struct kvl_err *err)
{
    struct kvl_buf text = { 0 };
    int32_t *id, n;
    KVL_TRY(kvl_ids_parse(file->data, kvl_tokenizer_size(t), &id, &n, err));
    int rc = kvl_decode(t, id, n, a->special, !a->cont, &text, err);
    if (rc == KVL_OK && text.len) fwrite(text.data, 1, text.len, stdout);
    kvl_buf_free(&text);
    kvl_free(id);
    return rc;
}

static int tokenize_text(const struct tokenize_args *a, const struct kvl_tokenizer *t,
                         struct kvl_err *err)
{
    struct kvl_buf file = { 0 };
    int rc = kvl_read_file(a->file, TOKENIZE_LIMIT, &file, err);
    if (rc == KVL_OK)
        rc = a->decode ? tokenize_decode(a, t, &file, err) : tokenize_encode(a, t, &file, err);
    kvl_buf_free(&file);
    return rc;
}

static int tokenize_info(const struct kvl_tokenizer *t, struct kvl_err *err)
{
    struct kvl_buf text = { 0 };
    int rc = kvl_tokenizer_describe(t, &text);
    if (rc == KVL_OK)
        fwrite(text.data, 1, text.len, stdout);
    else
        kvl_fail(err, rc, "no memory for a few lines");
    kvl_buf_free(&text);
    return rc;
}

static int tokenize_check(const struct tokenize_args *a, struct kvl_err *err)
{
    if (a->info && (a->file || a->ids || a->decode || a->bos || a->special || a->cont))
        return kvl_fail(err, KVL_EINVAL, "--info goes with --model alone");
    if (!a->file && !a->info)
        return kvl_fail(err, KVL_EINVAL, "no file, want a path or - for standard input");
    if (a->ids && a->decode)
        return kvl_fail(err, KVL_EINVAL, "--ids and --decode exclude each other");
    if (!a->model) return kvl_fail(err, KVL_EINVAL, "no model, want --model FILE");
    return KVL_OK;
}

static int tokenize_open(const char *path, struct kvl_tokenizer **out, struct kvl_err *err)
{
    struct kvl_gguf *gguf;
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return kvl_tokenizer_from_hf(path, out, err);
    KVL_TRY(kvl_gguf_open(path, &gguf, err));
    int rc = kvl_tokenizer_create(gguf, out, err);
    if (rc != KVL_OK) kvl_fail_at(err, rc, "%s", path);
    kvl_gguf_close(gguf); /* the tokenizer keeps nothing of it */
    return rc;
}

static int tokenize_file(const struct tokenize_args *a, struct kvl_err *err)
{
    struct kvl_tokenizer *t = NULL;
    KVL_TRY(tokenize_check(a, err));
    KVL_TRY(tokenize_open(a->model, &t, err));
    int rc = a->info ? tokenize_info(t, err) : tokenize_text(a, t, err);
    kvl_tokenizer_destroy(t);
    return rc;
}

int cmd_tokenize(int argc, char **argv, struct kvl_err *err)
{
    struct tokenize_args a = { 0 };
    bool done;
    kvl_show_data();
    KVL_TRY(kvl_args_parse(&tokenize_argp, argc, argv, &a, &done, err));
    return done ? KVL_OK : tokenize_file(&a, err);
}
