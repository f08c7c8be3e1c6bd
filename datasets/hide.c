/* Digits hidden in filler: values, places, questions, scores. */
#include "hide.h"

#include <math.h>
#include <string.h>

struct hide_fact {
    const char *label; /* "" = none */
    char value[KVL_HIDE_DIGITS + 1];
    struct kvl_buf item; /* its text */
};

struct hide_state {
    const struct kvl_hide *hide;
    const struct kvl_task_request *req;
    struct kvl_err *err;
    struct hide_fact fact[KVL_HIDE_FACTS];
    struct kvl_fit_item item[KVL_HIDE_FACTS];
};

static int hide_fail_memory(const struct hide_state *s)
{
    return kvl_fail(s->err, KVL_ENOMEM, "a context of %d tokens: out of memory",
                    s->req->length_tok);
}

/* ---- facts --------------------------------------------------------------------------------- */

void kvl_hide_draw_digits(struct kvl_rng *rng, int32_t n_digits, char *value)
{
    for (int32_t d = 0; d < n_digits; d++) value[d] = (char)('0' + kvl_rng_below(rng, 10));
    value[n_digits] = '\0';
}

static bool hide_taken(const struct hide_state *s, int32_t n, const char *value)
{
    for (int32_t i = 0; i < n; i++)
        if (strcmp(s->fact[i].value, value) == 0) return true;
    return false;
}

/* The next number, with the same digits; after 99999 comes 00000. */
static void hide_step(char *value)
{
    for (size_t i = strlen(value); i-- > 0;) {
        value[i] = value[i] == '9' ? '0' : (char)(value[i] + 1);
        if (value[i] != '0') return;
    }
}

/* Different labels and different values. */
static int hide_draw(struct hide_state *s, struct kvl_rng *rng)
{
    const struct kvl_hide *h = s->hide;
    const char *class = h->label ? h->label : "name";
    int32_t order[KVL_HIDE_FACTS], n_words = KVL_HIDE_FACTS;
    const char *const *words = h->words;
    if (!words) words = kvl_text_words(h->text, class, strlen(class), &n_words);
    n_words = KVL_MIN(n_words, KVL_HIDE_FACTS);
    if (h->n_facts > n_words)
        return kvl_fail(s->err, KVL_EINTERNAL, "%d %s, but only %d words of class %s", h->n_facts,
                        h->many, n_words, class);
    for (int32_t i = 0; i < n_words; i++) order[i] = i;
    kvl_rng_shuffle(rng, order, n_words);
    for (int32_t i = 0; i < h->n_facts; i++) {
        s->fact[i].label = h->label ? words[order[i]] : "";
        h->draw(rng, h->n_digits, s->fact[i].value);
        while (hide_taken(s, i, s->fact[i].value)) hide_step(s->fact[i].value);
    }
    return KVL_OK;
}

static int hide_fill(const struct hide_state *s, int32_t i, const char *phrase, struct kvl_buf *out)
{
    const struct kvl_text_field field[] = { { "value", s->fact[i].value },
                                            { s->hide->label, s->fact[i].label } };
    return kvl_text_fill(phrase, field, s->hide->label ? 2 : 1, out);
}

/* Positions: a random one in each equal part of the context, dealt out at random.  With a depth, fact
 * 0 lies there and the others are spread. */
static int hide_place(struct hide_state *s, struct kvl_rng *rng)
{
    int32_t at[KVL_HIDE_FACTS], length = s->req->length_tok, n = s->hide->n_facts;
    int32_t n_fixed = s->req->depth >= 0.0, n_spread = n - n_fixed;
    if (n_spread > length)
        return kvl_fail(s->err, KVL_EINVAL, "length %d is too short for %d %s", length, n,
                        s->hide->many);
    kvl_fit_strata(rng, length, at, n_spread);
    kvl_rng_shuffle(rng, at, n_spread);
    for (int32_t i = 0; i < n; i++) {
        struct hide_fact *fact = &s->fact[i];
        if (hide_fill(s, i, s->hide->item, &fact->item)) return hide_fail_memory(s);
        s->item[i] = (struct kvl_fit_item){ .text = fact->item.data, .len = fact->item.len };
        s->item[i].at = i < n_fixed ? kvl_fit_position(s->req) : at[i - n_fixed];
    }
    return KVL_OK;
}

/* ---- questions ----------------------------------------------------------------------------- */

/* The digit runs of an item: no other part of it has digits. */
static struct kvl_evidence hide_evidence(const struct hide_state *s, int32_t i)
{
    const char *text = s->item[i].text, *value = s->fact[i].value;
    size_t len = strlen(value);
    struct kvl_evidence e = { .kind = s->hide->evidence };
    for (const char *p = text; e.n_spans < 2 && (p = strstr(p, value)) != NULL; p += len) {
        size_t begin = s->item[i].begin + (size_t)(p - text);
        e.span[e.n_spans++] = (struct kvl_span){ begin, begin + len };
    }
    return e;
}

static int hide_ask(const struct hide_state *s, int32_t i, const struct kvl_tokens *context,
                    struct kvl_question *q)
{
    struct kvl_buf text = { 0 }, answer = { 0 }, gold = { 0 };
    int rc = hide_fill(s, i, s->hide->question, &text);
    if (rc == KVL_OK) rc = kvl_buf_printf(&answer, " %s", s->fact[i].value);
    if (rc == KVL_OK) rc = kvl_buf_adds(&gold, s->fact[i].value);
    *q = (struct kvl_question){ .text = text.data, .answer = answer.data, .gold = gold.data };
    if (rc != KVL_OK) return hide_fail_memory(s);
    q->n_prefix = kvl_text_prefix(q->text);
    KVL_TRY(kvl_fit_count(s->req->tokenizer, answer.data, answer.len, &q->max_new_tok, s->err));
    q->max_new_tok += KVL_FIT_END_TOK;
    q->evidence[q->n_evidence++] = hide_evidence(s, i);
    q->depth = kvl_fit_depth(context, q);
    return KVL_OK;
}

static int hide_build(struct hide_state *s, struct kvl_sample *out)
{
    const struct kvl_task_request *req = s->req;
    struct kvl_rng rng;
    struct kvl_buf intro = { 0 };
    kvl_rng_seed(&rng, kvl_seed_str(req->seed, "keys"));
    KVL_TRY(hide_draw(s, &rng));
    KVL_TRY(hide_place(s, &rng));
    if (hide_fill(s, 0, s->hide->intro, &intro)) return hide_fail_memory(s);
    struct kvl_fit fit = { .tokenizer = req->tokenizer,
                           .length_tok = req->length_tok,
                           .seed = kvl_seed_str(req->seed, "filler"),
                           .text = s->hide->text,
                           .prose = s->hide->prose,
                           .intro = intro.data,
                           .item = s->item,
                           .n_items = s->hide->n_facts };
    int rc = kvl_fit_sample(&fit, req->n_questions, out, s->err);
    kvl_buf_free(&intro);
    KVL_TRY(rc);
    for (int32_t i = 0; i < out->n_questions; i++)
        KVL_TRY(hide_ask(s, i, &out->tokens, &out->question[i]));
    return KVL_OK;
}

static int hide_check(const struct hide_state *s)
{
    const struct kvl_hide *h = s->hide;
    int32_t asked = s->req->n_questions;
    KVL_TRY(kvl_fit_check(s->req, s->err));
    if (asked > h->n_facts && !h->option)
        return kvl_fail(s->err, KVL_EINVAL, "%d questions, but a context holds %d %s, want 1",
                        asked, h->n_facts, h->many);
    if (asked > h->most_facts)
        return kvl_fail(s->err, KVL_EINVAL, "%d questions, want at most %d: one for each of the %s",
                        asked, h->most_facts, h->many);
    if (asked > h->n_facts)
        return kvl_fail(s->err, KVL_EINVAL,
                        "%d questions with %s=%d, want %s=%d or fewer questions", asked, h->option,
                        h->n_facts, h->option, asked);
    if (h->n_facts > pow(10.0, h->n_digits))
        return kvl_fail(s->err, KVL_EINVAL, "%s=%d with digits=%d, want %s=%.0f or more digits",
                        h->option, h->n_facts, h->n_digits, h->option, pow(10.0, h->n_digits));
    return KVL_OK;
}

int kvl_hide_generate(const struct kvl_hide *hide, const struct kvl_task_request *req,
                      struct kvl_sample *out, struct kvl_err *err)
{
    struct hide_state s = { .hide = hide, .req = req, .err = err };
    struct kvl_sample sample = { 0 };
    int rc = hide_check(&s);
    if (rc == KVL_OK) rc = hide_build(&s, &sample);
    for (int32_t i = 0; i < hide->n_facts; i++) kvl_buf_free(&s.fact[i].item);
    if (rc == KVL_OK)
        *out = sample;
    else
        kvl_sample_free(&sample);
    return rc == KVL_OK ? rc : kvl_fail_at(err, rc, "%s", hide->task);
}

/* ---- scores -------------------------------------------------------------------------------- */

static const char hide_digits[] = "0123456789";

bool kvl_hide_first_run(const char *gold, const char *prediction)
{
    const char *run = prediction + strcspn(prediction, hide_digits);
    size_t len = strspn(run, hide_digits);
    return len == strlen(gold) && strncmp(run, gold, len) == 0;
}

bool kvl_hide_strict(const char *gold, const char *prediction)
{
    const char *s = prediction + strspn(prediction, KVL_FIT_BLANK);
    size_t len = strlen(gold);
    return strncmp(s, gold, len) == 0 && strspn(s + len, hide_digits) == 0;
}
