/* The way of a text through a tokenizer, and back. */
#include "tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TEXT = 1 << 29 }; /* positions of symbols, three bytes per space, fit 32 bits */

void kvl_tokens_free(struct kvl_tokens *t)
{
    free(t->id);
    free(t->begin);
    *t = (struct kvl_tokens){ 0 };
}

/* ---- encode -------------------------------------------------------------------------------- */

/* Steps that one match may take: the patterns of vocabularies go through a text once or a few times, one that tries
 * every way to cut it would take years. */
static int encode_open(struct tok_encode *e)
{
    if (!e->t->bpe) return KVL_OK;
    e->match = pcre2_match_data_create(1, NULL);
    e->limits = pcre2_match_context_create(NULL);
    if (!e->match || !e->limits)
        return kvl_fail(e->err, KVL_ENOMEM, "no memory to tokenise %zu bytes", e->len);
    uint32_t steps = (uint32_t)KVL_MIN(1000000 + 64 * e->len, (size_t)2000000000);
    pcre2_set_match_limit(e->limits, steps);
    pcre2_set_depth_limit(e->limits, steps);
    pcre2_set_heap_limit(e->limits, 262144); /* KiB */
    return KVL_OK;
}

static void encode_close(struct tok_encode *e)
{
    pcre2_match_data_free(e->match);
    pcre2_match_context_free(e->limits);
    free(e->sym);
    free(e->heap);
    kvl_buf_free(&e->scratch);
}

/* A stretch without special tokens. */
static int encode_fragment(struct tok_encode *e, size_t begin, size_t end, bool space)
{
    if (begin == end) return KVL_OK;
    if (e->t->bpe) return kvl_tok_bpe_fragment(e, begin, end - begin);
    return kvl_tok_spm_fragment(e, begin, end - begin, space && e->t->add_space);
}

typedef int (*encode_part_fn)(struct tok_encode *e, size_t begin, size_t end, bool space,
                              uint32_t flags);

/* Cuts [begin, end) at special tokens, `later` ones or the others; `part` encodes what is between. */
static int encode_cut(struct tok_encode *e, size_t begin, size_t end, bool space, uint32_t flags,
                      bool later, encode_part_fn part)
{
    struct tok_hit *hit;
    size_t n, from = begin;
    KVL_TRY(kvl_tok_special_hits(e->t, e->text + begin, e->mark ? e->mark + begin : NULL,
                                 end - begin, flags & KVL_ENCODE_SPECIAL, later, &hit, &n, e->err));
    int rc = KVL_OK;
    for (size_t i = 0; rc == KVL_OK && i < n; i++) {
        rc = part(e, from, begin + hit[i].begin, space, flags);
        if (rc == KVL_OK) rc = kvl_tok_push(e, begin + hit[i].begin, hit[i].id);
        from = begin + hit[i].begin + hit[i].len;
        space = !later && !e->t->space_once;
    }
    if (rc == KVL_OK) rc = part(e, from, end, space, flags);
    free(hit);
    return rc;
}

static int encode_plain(struct tok_encode *e, size_t begin, size_t end, bool space, uint32_t flags)
{
    (void)flags;
    /* The text begins with a token that stands in it like a word: the prefix stands alone. */
    if (begin == end && space && !e->t->bpe && e->t->add_space)
        return kvl_tok_spm_fragment(e, begin, 0, true);
    return encode_fragment(e, begin, end, space);
}

/* The marks of a composed text: those of the bytes that its own came from. */
static uint8_t *composed_marks(const struct tok_encode *e, size_t begin, const size_t *at,
                               size_t len)
{
    uint8_t *mark = e->mark ? kvl_alloc(len + 1, 1) : NULL;
    for (size_t i = 0; mark && i < len; i++) mark[i] = e->mark[begin + at[i]];
    return mark;
}

/* Composes a stretch, then looks for the special tokens that are meant to be found after that. */
static int encode_part(struct tok_encode *e, size_t begin, size_t end, bool space, uint32_t flags)
{
    struct tok_encode whole = *e;
    struct kvl_buf composed = { 0 };
    size_t *at = NULL;
    bool changed = false;
    int32_t first = e->out->n;
    if (begin == end) return KVL_OK;
    int rc =
        e->t->nfc ? kvl_tok_nfc(e->text + begin, end - begin, &composed, &at, &changed) : KVL_OK;
    if (rc != KVL_OK) return kvl_fail(e->err, rc, "no memory to tokenise %zu bytes", e->len);
    encode_part_fn plain = encode_plain;
    if (!changed)
        return e->t->added ? encode_cut(e, begin, end, space, flags, true, plain)
                           : encode_fragment(e, begin, end, space);
    uint8_t *mark = composed_marks(e, begin, at, composed.len);
    e->text = composed.data;
    e->len = composed.len;
    e->mark = mark;
    if (whole.mark && !mark)
        rc = kvl_fail(e->err, KVL_ENOMEM, "no memory to tokenise %zu bytes", whole.len);
    else
        rc = e->t->added ? encode_cut(e, 0, composed.len, space, flags, true, plain)
                         : encode_fragment(e, 0, composed.len, space);
    for (int32_t i = first; i < e->out->n; i++) e->out->begin[i] = begin + at[e->out->begin[i]];
    e->text = whole.text;
    e->len = whole.len;
    e->mark = whole.mark;
    kvl_free(mark);
    kvl_buf_free(&composed);
    free(at);
    return rc;
}

static int encode_text(struct tok_encode *e, uint32_t flags)
{
    bool start = !(flags & KVL_ENCODE_CONTINUE);
    if (start && (flags & KVL_ENCODE_BOS) && e->t->add_bos && e->t->bos >= 0)
        KVL_TRY(kvl_tok_push(e, 0, e->t->bos));
    KVL_TRY(encode_cut(e, 0, e->len, start, flags, false, encode_part));
    if ((flags & KVL_ENCODE_BOS) && e->t->add_eos && e->t->eos >= 0)
        return kvl_tok_push(e, e->len, e->t->eos);
    return KVL_OK;
}

int kvl_encode_marked(const struct kvl_tokenizer *t, const char *text, const uint8_t *mark,
                      size_t len, uint32_t flags, struct kvl_tokens *out, struct kvl_err *err)
{
    struct tok_encode e = {
        .t = t, .text = text, .mark = mark, .len = len, .out = out, .err = err
    };
    int32_t n = out->n;
    if (len > MAX_TEXT)
        return kvl_fail(err, KVL_EINVAL, "text of %zu bytes, at most %d", len, (int)MAX_TEXT);
    int rc = encode_open(&e);
    if (rc == KVL_OK) rc = encode_text(&e, flags);
    if (rc != KVL_OK) out->n = n;
    encode_close(&e);
    return rc;
}

/* With what a template has before it: text in which control tokens are tokens, as they are not in what follows. */
static int encode_led(const struct kvl_tokenizer *t, const char *text, size_t len,
                      struct kvl_tokens *out, struct kvl_err *err)
{
    struct kvl_buf led = { 0 };
    int32_t n = out->n, kept = n;
    uint8_t *mark = kvl_alloc(t->lead_len + len + 1, 1);
    int rc = mark ? kvl_buf_add(&led, t->lead, t->lead_len) : KVL_ENOMEM;
    if (rc == KVL_OK) rc = kvl_buf_add(&led, text, len);
    if (rc == KVL_OK) {
        memset(mark + t->lead_len, 1, len);
        uint32_t flags = KVL_ENCODE_SPECIAL | (t->lead_drops ? KVL_ENCODE_CONTINUE : 0);
        rc = kvl_encode_marked(t, led.data, mark, led.len, flags, out, err);
    } else {
        kvl_fail(err, rc, "no memory to tokenise %zu bytes", len);
    }
    for (int32_t i = n + t->lead_drops; rc == KVL_OK && i < out->n; i++, kept++) {
        out->id[kept] = out->id[i];
        out->begin[kept] = out->begin[i] - KVL_MIN(out->begin[i], t->lead_len);
    }
    out->n = kept;
    kvl_free(mark);
    kvl_buf_free(&led);
    return rc;
}

int kvl_encode(const struct kvl_tokenizer *t, const char *text, size_t len, uint32_t flags,
               struct kvl_tokens *out, struct kvl_err *err)
{
    if (t->lead && !(flags & KVL_ENCODE_CONTINUE)) return encode_led(t, text, len, out, err);
    return kvl_encode_marked(t, text, NULL, len, flags, out, err);
}

/* ---- decode -------------------------------------------------------------------------------- */

static struct kvl_str piece(const struct kvl_tokenizer *t, int32_t id, bool special)
{
    static const char replacement[] = "\xef\xbf\xbd";
    bool control = t->type[id] == TOK_CONTROL, unknown = t->type[id] == TOK_UNKNOWN;
    if (!special && control) return (struct kvl_str){ "", 0 };
    if (!special && unknown) return (struct kvl_str){ replacement, 3 };
    return kvl_tok_string(&t->plain, id);
}

int kvl_decode(const struct kvl_tokenizer *t, const int32_t *id, int32_t n, bool special,
               bool first, struct kvl_buf *out, struct kvl_err *err)
{
    size_t before = out->len;
    bool strip = first && !t->bpe && t->add_space;
    int rc = KVL_OK;
    for (int32_t i = 0; rc == KVL_OK && i < n; i++) {
        if (id[i] < 0 || id[i] >= KVL_MAX(t->n, t->rows)) {
            rc = kvl_fail(err, KVL_EINVAL, "token %d of %d is %d, want 0 to %d", i, n, id[i],
                          KVL_MAX(t->n, t->rows) - 1);
            break;
        }
        if (id[i] >= t->n) continue; /* a row without a token */
        struct kvl_str s = piece(t, id[i], special);
        if (s.len == 0) continue;
        bool drop = strip && s.s[0] == ' ';
        strip = strip && t->type[id[i]] == TOK_CONTROL;
        if (kvl_buf_add(out, s.s + drop, s.len - drop) != KVL_OK)
            rc = kvl_fail(err, KVL_ENOMEM, "no memory for the text of %d tokens", n);
    }
    if (rc != KVL_OK) out->len = before;
    return rc;
}
