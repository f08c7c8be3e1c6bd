/* Words that fill a context: the largest text that fits, filler that closes the length. */
#include "bag.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    BAG_GIVE_UP = 16,   /* sizes that may be given up so that filler closes the length */
    BAG_AROUND_TOK = 3, /* BOS, the line ends after intro and text */
};

int kvl_bag_fail_memory(const struct kvl_bag *b)
{
    return kvl_fail(b->err, KVL_ENOMEM, "a context of %d tokens: out of memory",
                    b->req->length_tok);
}

const char *kvl_bag_word(int32_t i)
{
    static const char *const classes[] = { "noun", "adj", "verb", "color", "name", "city" };
    const char *const *words = NULL;
    int32_t n = 0;
    assert(i >= 0 && i < KVL_BAG_WORDS); /* text/english.def has so many */
    for (size_t c = 0; i >= n; c++) {
        i -= n;
        words = kvl_text_words(&kvl_text_english, classes[c], strlen(classes[c]), &n);
    }
    return words[i];
}

/* ---- the size ------------------------------------------------------------------------------ */

/* Tokens that the text may take. */
static int bag_room(const struct kvl_bag *b, int64_t *room)
{
    struct kvl_buf intro = { 0 };
    int32_t n_tok = 0;
    if (kvl_text_fill(b->intro, NULL, 0, &intro) != KVL_OK) return kvl_bag_fail_memory(b);
    int rc = kvl_fit_count(b->req->tokenizer, intro.data, intro.len, &n_tok, b->err);
    kvl_buf_free(&intro);
    *room = (int64_t)b->req->length_tok - n_tok - BAG_AROUND_TOK;
    return rc;
}

/* The text of a size, and its tokens. */
static int bag_write(struct kvl_bag *b, int32_t size, int32_t *n_tok)
{
    b->text.len = 0;
    KVL_TRY(b->write(b, size));
    return kvl_fit_count(b->req->tokenizer, b->text.data, b->text.len, n_tok, b->err);
}

/* The largest size whose text fits.  Tokens grow about as the size does, so that a few guesses do. */
static int bag_search(struct kvl_bag *b, int64_t room, int32_t *size)
{
    int64_t fits = b->least, too_large = INT32_MAX, guess;
    int32_t n_tok;
    KVL_TRY(bag_write(b, b->least, &n_tok));
    if (n_tok > room)
        return kvl_fail(
            b->err, KVL_EINVAL,
            "length %d is too short: the smallest text takes %d tokens and there is room "
            "for %lld",
            b->req->length_tok, n_tok, (long long)room);
    for (int64_t at = fits; too_large - fits > 1; at = guess) {
        guess = at + (at + b->least) * (room - n_tok) / KVL_MAX(1, n_tok);
        guess = KVL_MIN(KVL_MAX(guess, fits + 1), too_large - 1);
        KVL_TRY(bag_write(b, (int32_t)guess, &n_tok));
        if (n_tok <= room)
            fits = guess;
        else
            too_large = guess;
    }
    *size = (int32_t)fits;
    return KVL_OK;
}

/* ---- the sample ---------------------------------------------------------------------------- */

static int bag_ask(const struct kvl_bag *b, struct kvl_question *q)
{
    struct kvl_part part[KVL_BAG_ASKED] = { 0 };
    struct kvl_buf text = { 0 };
    char n[16];
    snprintf(n, sizeof n, "%d", b->asked);
    const struct kvl_text_field field = { "n", n };
    int rc = kvl_text_fill(b->question, &field, 1, &text);
    *q = (struct kvl_question){ .text = text.data, .depth = (double)NAN };
    if (rc != KVL_OK) return kvl_bag_fail_memory(b);
    q->n_prefix = kvl_text_prefix(q->text);
    for (int32_t i = 0; i < b->asked; i++) part[i].text = b->part[i];
    return kvl_parts_say(b->req, part, b->asked, "", b->max_new, q, b->err);
}

static int bag_try(struct kvl_bag *b, int32_t size, bool whole, struct kvl_sample *out)
{
    const struct kvl_task_request *req = b->req;
    struct kvl_buf intro = { 0 };
    struct kvl_fit_item item = { .line = true, .at = req->length_tok };
    KVL_TRY(bag_write(b, size, &item.n_tok));
    if (kvl_text_fill(b->intro, NULL, 0, &intro) != KVL_OK) return kvl_bag_fail_memory(b);
    item.text = b->text.data;
    item.len = b->text.len;
    struct kvl_fit fit = { .tokenizer = req->tokenizer,
                           .length_tok = req->length_tok,
                           .seed = kvl_seed_str(req->seed, "filler"),
                           .text = &kvl_text_english,
                           .intro = intro.data,
                           .whole = whole,
                           .item = &item,
                           .n_items = 1 };
    int rc = kvl_fit_sample(&fit, 1, out, b->err);
    kvl_buf_free(&intro);
    return rc;
}

/* Smaller and smaller texts, until filler closes the gap. */
static int bag_shrink(struct kvl_bag *b, int32_t size, bool whole, struct kvl_sample *out)
{
    int32_t least = KVL_MAX(b->least, size - BAG_GIVE_UP);
    for (;; size--) {
        kvl_err_clear(b->err); /* of the attempt before */
        int rc = bag_try(b, size, whole, out);
        if (rc != KVL_EINVAL || size <= least) return rc;
    }
}

static int bag_build(struct kvl_bag *b, struct kvl_sample *out)
{
    int64_t room;
    int32_t size;
    KVL_TRY(kvl_fit_check(b->req, b->err));
    if (b->req->n_questions > 1)
        return kvl_fail(b->err, KVL_EINVAL, "%d questions, but a context has one, want 1",
                        b->req->n_questions);
    KVL_TRY(bag_room(b, &room));
    KVL_TRY(bag_search(b, room, &size));
    int rc = bag_shrink(b, size, true, out);
    if (rc == KVL_EINVAL) rc = bag_shrink(b, size, false, out);
    KVL_TRY(rc);
    return bag_ask(b, &out->question[0]);
}

int kvl_bag_generate(struct kvl_bag *b, struct kvl_sample *out)
{
    struct kvl_sample sample = { 0 };
    int rc = bag_build(b, &sample);
    if (rc == KVL_OK)
        *out = sample;
    else
        kvl_sample_free(&sample);
    return rc;
}
