/* A list of entries that fills a context: draw, close the length, ask. */
#include "list.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LIST_GIVE_UP = 16,   /* entries that may be left out so that filler closes the length */
    LIST_AROUND_TOK = 3, /* BOS, the line ends after intro and list */
};

int kvl_list_fail_memory(const struct kvl_list *l)
{
    return kvl_fail(l->err, KVL_ENOMEM, "a context of %d tokens: out of memory",
                    l->req->length_tok);
}

static const struct kvl_list_entry *list_entry(const struct kvl_list *l, int32_t i)
{
    return (const struct kvl_list_entry *)(const void *)l->entries.data + i;
}

/* ---- entries ------------------------------------------------------------------------------- */

static int list_add_text(struct kvl_list *l, const char *key, const char *value,
                         struct kvl_list_entry *e)
{
    const struct kvl_text_field field[] = { { l->key, key }, { l->value, value } };
    e->n_key = strlen(key);
    e->n_value = strlen(value);
    KVL_TRY(kvl_buf_adds(&l->text, l->text.len ? l->before : l->before_first));
    size_t begin = l->text.len;
    KVL_TRY(kvl_text_fill(l->item, field, 2, &l->text));
    const char *at_key = strstr(l->text.data + begin, key);
    const char *at_value = strstr(at_key + e->n_key, value);
    e->key = (size_t)(at_key - l->text.data);
    e->value = (size_t)(at_value - l->text.data);
    e->end = l->text.len;
    return kvl_buf_adds(&l->text, l->after);
}

int kvl_list_add(struct kvl_list *l, const char *key, const char *value, struct kvl_list_entry *out)
{
    struct kvl_list_entry e = { .tok_before = l->n_tok };
    size_t begin = l->text.len;
    if (list_add_text(l, key, value, &e) != KVL_OK) return kvl_list_fail_memory(l);
    KVL_TRY(kvl_fit_count(l->req->tokenizer, l->text.data + begin, l->text.len - begin, &e.n_tok,
                          l->err));
    if (kvl_buf_add(&l->entries, &e, sizeof e) != KVL_OK) return kvl_list_fail_memory(l);
    l->n_tok += e.n_tok;
    l->n++;
    *out = e;
    return KVL_OK;
}

/* Tokens that the list may take together with its line ends. */
static int list_room(const struct kvl_list *l, int64_t *room)
{
    int32_t n_intro;
    KVL_TRY(
        kvl_fit_count(l->req->tokenizer, l->intro_text.data, l->intro_text.len, &n_intro, l->err));
    *room = (int64_t)l->req->length_tok - n_intro - LIST_AROUND_TOK;
    return KVL_OK;
}

/* All entries that were asked for, or as many as may fit, but at least one. */
static int list_draw(struct kvl_list *l, int64_t room)
{
    bool fill = l->wanted == KVL_AUTO;
    l->most = l->req->length_tok; /* an entry takes more than one token */
    if (!fill && l->wanted > l->most)
        return kvl_fail(l->err, KVL_EINVAL, "length %d is too short for %d %s", l->most, l->wanted,
                        l->many);
    if (!fill) l->most = l->wanted;
    do {
        KVL_TRY(l->next(l));
    } while (l->n < l->most && (!fill || l->n_tok <= room));
    return KVL_OK;
}

/* Copies the first n entries as a whole list. */
static int list_close(struct kvl_list *l, int32_t n)
{
    l->n = n;
    l->closed.len = 0;
    if (kvl_buf_add(&l->closed, l->text.data, list_entry(l, n - 1)->end) != KVL_OK ||
        kvl_buf_adds(&l->closed, l->end) != KVL_OK)
        return kvl_list_fail_memory(l);
    return KVL_OK;
}

/* ---- which entries are asked for, and where the list lies ------------------------------------ */

/* The entry whose begin is nearest to a position in the list. */
static int32_t list_nearest(const struct kvl_list *l, int64_t tok)
{
    int32_t best = 0;
    while (best + 1 < l->n && llabs(list_entry(l, best + 1)->tok_before - tok) <=
                                  llabs(list_entry(l, best)->tok_before - tok))
        best++;
    return best;
}

/* A random entry of each equal part of the list, dealt out at random.  With a depth the first question
 * asks the entry there, and the others are spread over what remains. */
static void list_choose(struct kvl_list *l, struct kvl_rng *rng, int32_t first)
{
    int32_t n_fixed = first >= 0, n = l->req->n_questions - n_fixed;
    int32_t *spread = l->asked + n_fixed;
    if (n_fixed) l->asked[0] = first;
    kvl_fit_strata(rng, l->n - n_fixed, spread, n);
    kvl_rng_shuffle(rng, spread, n);
    for (int32_t i = 0; n_fixed && i < n; i++) spread[i] += spread[i] >= first;
}

static void list_place(struct kvl_list *l, struct kvl_fit_item *item)
{
    const struct kvl_task_request *req = l->req;
    struct kvl_rng rng;
    kvl_rng_seed(&rng, kvl_seed_str(req->seed, "questions"));
    int32_t first = -1, n_free = KVL_MAX(1, req->length_tok - item->n_tok);
    item->at = req->length_tok; /* the list is all: filler comes before it */
    if (l->wanted == KVL_AUTO) {
        if (req->depth >= 0.0) first = list_nearest(l, kvl_fit_position(req) - n_free);
    } else if (req->depth >= 0.0) {
        first = (int32_t)lround(req->depth * (l->n - 1));
        item->at = kvl_fit_position(req) - list_entry(l, first)->tok_before;
    } else {
        item->at = kvl_rng_below(&rng, (uint32_t)n_free);
    }
    list_choose(l, &rng, first);
}

/* ---- questions ----------------------------------------------------------------------------- */

static struct kvl_evidence list_evidence(size_t begin, size_t len, const char *after)
{
    struct kvl_evidence e = { .kind = KVL_EVIDENCE_ALL,
                              .span = { { begin, begin + len } },
                              .n_spans = 1 };
    memcpy(e.after, after, sizeof e.after);
    return e;
}

/* What the answer may take.  A limit given by the user must not cut the expected answer. */
static int list_max_new(const struct kvl_list *l, const struct kvl_list_words *w, int32_t *out)
{
    int32_t n;
    KVL_TRY(kvl_fit_count(l->req->tokenizer, w->answer.data, w->answer.len, &n, l->err));
    if (w->max_new != KVL_AUTO && w->max_new < n)
        return kvl_fail(l->err, KVL_EINVAL,
                        "max_new %d cuts the answer \"%s\", want at least %d or auto", w->max_new,
                        w->answer.data, n);
    *out = w->max_new == KVL_AUTO ? n + KVL_FIT_END_TOK : w->max_new;
    return KVL_OK;
}

static int list_ask(const struct kvl_list *l, int32_t i_question, size_t list,
                    const struct kvl_tokens *context, struct kvl_question *q)
{
    const struct kvl_list_entry *e = list_entry(l, l->asked[i_question]);
    struct kvl_list_words w = { .max_new = KVL_AUTO };
    int rc = l->ask(l, e, i_question, &w);
    *q = (struct kvl_question){ .text = w.text.data, .answer = w.answer.data, .gold = w.gold.data };
    if (rc != KVL_OK) return kvl_list_fail_memory(l);
    q->n_prefix = kvl_text_prefix(q->text);
    KVL_TRY(list_max_new(l, &w, &q->max_new_tok));
    if (w.evidence) e = w.evidence;
    q->evidence[q->n_evidence++] = list_evidence(list + e->key, e->n_key, w.after);
    q->evidence[q->n_evidence++] = list_evidence(list + e->value, e->n_value, w.after);
    q->depth = kvl_fit_depth(context, q);
    return KVL_OK;
}

/* ---- the sample ---------------------------------------------------------------------------- */

static int list_ask_all(const struct kvl_list *l, size_t list, struct kvl_sample *out)
{
    for (int32_t i = 0; i < out->n_questions; i++)
        KVL_TRY(list_ask(l, i, list, &out->tokens, &out->question[i]));
    return KVL_OK;
}

/* One attempt with the first n entries, which take list_tok tokens. */
static int list_try(struct kvl_list *l, int32_t n, int64_t list_tok, bool whole,
                    struct kvl_sample *out)
{
    const struct kvl_task_request *req = l->req;
    if (req->n_questions > n)
        return kvl_fail(l->err, KVL_EINVAL, "%d questions, but a list of length %d has only %d %s",
                        req->n_questions, req->length_tok, n, l->many);
    KVL_TRY(list_close(l, n));
    struct kvl_fit_item item = {
        .text = l->closed.data, .len = l->closed.len, .n_tok = (int32_t)list_tok, .line = true
    };
    list_place(l, &item);
    struct kvl_fit fit = { .tokenizer = req->tokenizer,
                           .length_tok = req->length_tok,
                           .seed = kvl_seed_str(req->seed, "filler"),
                           .text = &kvl_text_english,
                           .intro = l->intro_text.data,
                           .whole = whole,
                           .item = &item,
                           .n_items = 1 };
    struct kvl_sample sample;
    KVL_TRY(kvl_fit_sample(&fit, req->n_questions, &sample, l->err));
    int rc = list_ask_all(l, item.begin, &sample);
    if (rc == KVL_OK)
        *out = sample;
    else
        kvl_sample_free(&sample);
    return rc;
}

/* Attempts with n entries and fewer, down to `least`, until filler closes the gap. */
static int list_shrink(struct kvl_list *l, int32_t n, int32_t least, int64_t list_tok, bool whole,
                       struct kvl_sample *out)
{
    for (;;) {
        kvl_err_clear(l->err); /* of the attempt before */
        int rc = list_try(l, n, list_tok, whole, out);
        if (rc != KVL_EINVAL || n <= least || l->req->n_questions > n) return rc;
        list_tok -= list_entry(l, --n)->n_tok;
    }
}

/* With a number given, that list; otherwise the longest one that leaves a gap which filler closes. */
static int list_search(struct kvl_list *l, int64_t room, struct kvl_sample *out)
{
    int32_t n = l->n, least = n, counted;
    KVL_TRY(list_close(l, n));
    KVL_TRY(kvl_fit_count(l->req->tokenizer, l->closed.data, l->closed.len, &counted, l->err));
    int64_t list_tok = counted;
    if (l->wanted == KVL_AUTO) {
        while (n > 1 && list_tok > room) list_tok -= list_entry(l, --n)->n_tok;
        least = KVL_MAX(1, n - LIST_GIVE_UP);
    }
    int rc = list_shrink(l, n, least, list_tok, true, out);
    return rc == KVL_EINVAL ? list_shrink(l, n, least, list_tok, false, out) : rc;
}

static int list_build(struct kvl_list *l, struct kvl_sample *out)
{
    int64_t room;
    KVL_TRY(kvl_fit_check(l->req, l->err));
    l->asked = kvl_alloc((size_t)l->req->n_questions, sizeof *l->asked);
    if (!l->asked || kvl_text_fill(l->intro, NULL, 0, &l->intro_text) != KVL_OK)
        return kvl_list_fail_memory(l);
    KVL_TRY(list_room(l, &room));
    KVL_TRY(list_draw(l, room));
    return list_search(l, room, out);
}

int kvl_list_generate(struct kvl_list *l, struct kvl_sample *out)
{
    int rc = list_build(l, out);
    kvl_buf_free(&l->text);
    kvl_buf_free(&l->intro_text);
    kvl_buf_free(&l->closed);
    kvl_buf_free(&l->entries);
    kvl_free(l->asked);
    return rc;
}
