/* A needle in texts of the user's. */
#include "haystack.h"

#include "kvl/utf8.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { HAYSTACK_TRIES = 12, HAYSTACK_TOKEN_BYTES = 5, HAYSTACK_LIMIT = 1 << 30 };

/* ---- texts ------------------------------------------------------------------------------------------ */

int kvl_haystack_add(struct kvl_haystack *h, const char *text, size_t n)
{
    size_t at = h->text.len;
    if (n == 0) return KVL_OK;
    KVL_TRY(kvl_buf_add(&h->begin, &at, sizeof at));
    KVL_TRY(kvl_buf_add(&h->text, text, n));
    h->n_texts++;
    h->base.hash = XXH3_64bits_withSeed(text, n, h->base.hash);
    return KVL_OK;
}

void kvl_haystack_free(struct kvl_haystack *h)
{
    kvl_buf_free(&h->text);
    kvl_buf_free(&h->begin);
}

static int haystack_file(struct kvl_haystack *h, const char *dir, const char *name,
                         struct kvl_err *err)
{
    struct kvl_buf path = { 0 }, text = { 0 };
    int rc = kvl_buf_printf(&path, "%s/%s", dir, name);
    if (rc == KVL_OK) rc = kvl_read_file(path.data, HAYSTACK_LIMIT, &text, err);
    /* A zero byte would end the prompt. */
    if (rc == KVL_OK && text.len > 0 && memchr(text.data, '\0', text.len))
        rc = kvl_fail(err, KVL_EINVAL, "%s: has a zero byte, want a text", path.data);
    if (rc == KVL_OK) rc = kvl_haystack_add(h, text.data, text.len);
    kvl_buf_free(&path);
    kvl_buf_free(&text);
    return rc == KVL_ENOMEM ? kvl_fail(err, rc, "out of memory for texts") : rc;
}

static bool name_ends(const char *name, const char *tail)
{
    size_t n = strlen(name), m = strlen(tail);
    return n > m && name[0] != '.' && strcmp(name + n - m, tail) == 0;
}

static int name_order(const void *a, const void *b)
{
    return strcmp((*(struct dirent *const *)a)->d_name, (*(struct dirent *const *)b)->d_name);
}

int kvl_haystack_folder(const char *dir, const char *tail, struct kvl_haystack *out,
                        struct kvl_err *err)
{
    struct dirent **list;
    int n = scandir(dir, &list, NULL, NULL), rc = KVL_OK;
    if (n < 0) return kvl_fail(err, KVL_EIO, "%s: %s", dir, strerror(errno));
    qsort(list, (size_t)n, sizeof *list, name_order);
    for (int i = 0; i < n; i++) {
        if (rc == KVL_OK && name_ends(list[i]->d_name, tail))
            rc = haystack_file(out, dir, list[i]->d_name, err);
        free(list[i]);
    }
    free(list);
    if (rc == KVL_OK && out->n_texts == 0)
        rc = kvl_fail(err, KVL_EIO, "%s: has no text, want files *%s", dir, tail);
    return rc;
}

/* ---- samples ------------------------------------------------------------------------------------------ */

/* At least n tokens from a text on, cut at n. */
static int haystack_take(const struct kvl_haystack *h, const struct kvl_tokenizer *t, int32_t first,
                         int32_t n, struct kvl_buf *out, struct kvl_err *err)
{
    const size_t *begin = (const size_t *)(const void *)h->begin.data;
    size_t at = begin[first % h->n_texts], want = (size_t)n * HAYSTACK_TOKEN_BYTES + 64;
    struct kvl_tokens all = { 0 };
    int rc = KVL_OK;
    while (rc == KVL_OK && all.n <= n) {
        while (rc == KVL_OK && out->len < want) {
            size_t part = KVL_MIN(h->text.len - at, want - out->len);
            rc = kvl_buf_add(out, h->text.data + at, part);
            at = (at + part) % h->text.len;
        }
        all.n = 0;
        if (rc == KVL_OK) rc = kvl_encode(t, out->data, out->len, 0, &all, err);
        want += want / 2;
    }
    if (rc == KVL_OK) out->len = n > 0 ? all.begin[n] : 0;
    while (rc == KVL_OK && out->len > 0 && kvl_utf8_inside(out->data[out->len])) out->len--;
    kvl_tokens_free(&all);
    return rc == KVL_ENOMEM ? kvl_fail(err, rc, "out of memory for texts") : rc;
}

/* Where the needle goes: at that part of the tokens. */
static int needle_place(const struct kvl_needle *needle, const struct kvl_tokenizer *t,
                        const struct kvl_buf *hay, size_t *out, struct kvl_err *err)
{
    struct kvl_tokens all = { 0 };
    KVL_TRY(kvl_encode(t, hay->data ? hay->data : "", hay->len, 0, &all, err));
    int32_t i = (int32_t)(all.n * needle->depth);
    size_t at = i < all.n ? all.begin[i] : hay->len;
    kvl_tokens_free(&all);
    while (at > 0 && at < hay->len && kvl_utf8_inside(hay->data[at])) at--;
    if (needle->sentence && needle->depth < 1.0)
        while (at > 0 && hay->data[at - 1] != '.') at--;
    *out = at;
    return KVL_OK;
}

static int haystack_prompt(const struct kvl_haystack *h, const struct kvl_task_request *req,
                           const struct kvl_needle *needle, int32_t n, struct kvl_file_prompt *p,
                           size_t *evidence, struct kvl_err *err)
{
    struct kvl_buf hay = { 0 };
    size_t at = 0;
    int rc = haystack_take(h, req->tokenizer, needle->first, n, &hay, err);
    if (rc == KVL_OK) rc = needle_place(needle, req->tokenizer, &hay, &at, err);
    p->context.len = 0;
    if (rc == KVL_OK) rc = kvl_buf_adds(&p->context, needle->before);
    p->begin = p->context.len;
    if (rc == KVL_OK) rc = kvl_buf_add(&p->context, hay.data ? hay.data : "", at);
    *evidence = p->context.len;
    if (rc == KVL_OK) rc = kvl_buf_adds(&p->context, needle->text);
    if (rc == KVL_OK) rc = kvl_buf_add(&p->context, hay.data ? hay.data + at : "", hay.len - at);
    kvl_buf_free(&hay);
    return rc == KVL_ENOMEM ? kvl_fail(err, rc, "out of memory for texts") : rc;
}

static int prompt_tokens(const struct kvl_file_prompt *p, const struct kvl_tokenizer *t, int32_t *n,
                         struct kvl_err *err)
{
    struct kvl_buf all = { 0 };
    struct kvl_tokens tokens = { 0 };
    int rc = kvl_buf_add(&all, p->context.data, p->context.len);
    if (rc == KVL_OK) rc = kvl_buf_add(&all, p->tail[0].data, p->tail[0].len);
    if (rc == KVL_OK) rc = kvl_encode(t, all.data, all.len, KVL_ENCODE_BOS, &tokens, err);
    *n = tokens.n;
    kvl_tokens_free(&tokens);
    kvl_buf_free(&all);
    return rc == KVL_ENOMEM ? kvl_fail(err, rc, "out of memory for texts") : rc;
}

/* As much haystack as the length has room for; what is tokenised together may have a few tokens more. */
static int haystack_fit(const struct kvl_haystack *h, const struct kvl_task_request *req,
                        const struct kvl_needle *needle, struct kvl_file_prompt *p,
                        size_t *evidence, struct kvl_err *err)
{
    int32_t hay = 0, all;
    for (int32_t i = 0; i < HAYSTACK_TRIES; i++) {
        KVL_TRY(haystack_prompt(h, req, needle, hay, p, evidence, err));
        KVL_TRY(prompt_tokens(p, req->tokenizer, &all, err));
        if (hay == 0 && all >= req->length_tok)
            return kvl_fail(err, KVL_EINVAL,
                            "%s: a length of %d tokens, of which %d are needed for the needle and "
                            "the question: want more",
                            needle->name, req->length_tok, all);
        if (hay > 0 && all <= req->length_tok) return KVL_OK;
        hay = KVL_MAX(hay + req->length_tok - all, 1);
    }
    return kvl_fail(err, KVL_EINVAL, "%s: cannot be made of %d tokens", needle->name,
                    req->length_tok);
}

int kvl_haystack_sample(const struct kvl_haystack *h, const struct kvl_task_request *req,
                        const struct kvl_needle *needle, struct kvl_sample *out,
                        struct kvl_err *err)
{
    struct kvl_file_prompt p = { .name = needle->name, .n = 1, .truncate = KVL_ROWS_NONE };
    struct kvl_sample s = { 0 };
    size_t evidence = 0;
    p.tail = kvl_alloc(1, sizeof *p.tail);
    if (!p.tail || kvl_buf_adds(&p.tail[0], needle->question) != KVL_OK) {
        kvl_free(p.tail);
        return kvl_fail(err, KVL_ENOMEM, "out of memory for texts");
    }
    p.common = p.tail[0].len;
    int rc = haystack_fit(h, req, needle, &p, &evidence, err);
    if (rc == KVL_OK) rc = kvl_file_prompt_sample(req, &p, &s, err);
    if (rc == KVL_OK) {
        struct kvl_question *q = &s.question[0];
        const char *at = strstr(needle->text, needle->answer);
        size_t begin = evidence + (size_t)(at ? at - needle->text : 0);
        size_t len = at ? strlen(needle->answer) : strlen(needle->text);
        q->evidence[0] = (struct kvl_evidence){ .n_spans = 1, .span = { { begin, begin + len } } };
        q->n_evidence = begin + len <= strlen(s.context);
        int32_t token = s.tokens.n - 1;
        while (token > 0 && s.tokens.begin[token] > begin) token--;
        q->depth = (double)token / s.tokens.n;
        *out = s;
    }
    kvl_file_prompt_free(&p);
    return rc;
}
