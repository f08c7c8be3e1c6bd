/* Passkey: digits hidden in filler text, asked for at the end.
 *
 * The task of Mohtashami and Jaggi (2023, landmark attention), in the form of InfiniteBench (Zhang et
 * al. 2024): five digits as a string, leading zeros included, written twice in one item.  Differs in
 * that the filler does not repeat, the wording is our own, the length is exact in tokens, and one
 * context may hold up to 32 keys, each with a name.
 *
 *     intro \n sentence ... item ... sentence \n | question -> " 84699"
 *
 * Evidence: either of the two digit runs of the item (one ANY group).
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "fit.h"
#include "text.h"

enum { PASSKEY_KEYS = 32, PASSKEY_DIGITS = 32 };

struct passkey_opts {
    int32_t keys, digits;
};

static const struct kvl_opt passkey_options[] = {
    { .name = "keys",
      .type = KVL_OPT_INT,
      .off = offsetof(struct passkey_opts, keys),
      .def = "1",
      .min = 1,
      .max = PASSKEY_KEYS,
      .help = "keys in a context; one has no name, several have different names" },
    { .name = "digits",
      .type = KVL_OPT_INT,
      .off = offsetof(struct passkey_opts, digits),
      .def = "5",
      .min = 1,
      .max = PASSKEY_DIGITS,
      .help = "decimal digits of a key (InfiniteBench: 5)" },
    { 0 },
};

/* One key and where it lies; `question` i asks for key i. */
struct passkey_key {
    const char *name; /* "" when there is one key */
    char value[PASSKEY_DIGITS + 1];
    struct kvl_buf item; /* its text */
};

struct passkey_state {
    const struct kvl_task_request *req;
    struct kvl_err *err;
    int32_t n_keys, n_digits;
    struct passkey_key key[PASSKEY_KEYS];
    struct kvl_fit_item item[PASSKEY_KEYS];
};

static int passkey_fail_memory(const struct passkey_state *s)
{
    return kvl_fail(s->err, KVL_ENOMEM, "a context of %d tokens: out of memory",
                    s->req->length_tok);
}

/* ---- keys ---------------------------------------------------------------------------------- */

static bool passkey_taken(const struct passkey_state *s, int32_t n, const char *value)
{
    for (int32_t i = 0; i < n; i++)
        if (strcmp(s->key[i].value, value) == 0) return true;
    return false;
}

/* The next number, with the same digits; after 99999 comes 00000. */
static void passkey_step(char *value)
{
    for (size_t i = strlen(value); i-- > 0;) {
        value[i] = value[i] == '9' ? '0' : (char)(value[i] + 1);
        if (value[i] != '0') return;
    }
}

static void passkey_draw_value(struct passkey_state *s, struct kvl_rng *rng, int32_t i)
{
    char *value = s->key[i].value;
    for (int32_t d = 0; d < s->n_digits; d++) value[d] = (char)('0' + kvl_rng_below(rng, 10));
    while (passkey_taken(s, i, value)) passkey_step(value);
}

static int passkey_draw_keys(struct passkey_state *s, struct kvl_rng *rng)
{
    int32_t order[PASSKEY_KEYS], n_names;
    const char *const *names = kvl_text_words("name", strlen("name"), &n_names);
    if (s->n_keys > KVL_MIN(n_names, PASSKEY_KEYS))
        return kvl_fail(s->err, KVL_EINTERNAL, "%d keys, but only %d names", s->n_keys, n_names);
    for (int32_t i = 0; i < KVL_MIN(n_names, PASSKEY_KEYS); i++) order[i] = i;
    kvl_rng_shuffle(rng, order, KVL_MIN(n_names, PASSKEY_KEYS));
    for (int32_t i = 0; i < s->n_keys; i++) {
        s->key[i].name = s->n_keys == 1 ? "" : names[order[i]];
        passkey_draw_value(s, rng, i);
    }
    return KVL_OK;
}

/* Fills a wording for one key; the wordings with and without a name stand in this order. */
static int passkey_fill(const struct passkey_state *s, int32_t i, enum kvl_text_phrase unnamed,
                        enum kvl_text_phrase named, struct kvl_buf *out)
{
    const struct kvl_text_field field[] = { { "name", s->key[i].name },
                                            { "value", s->key[i].value } };
    return kvl_text_fill(s->n_keys == 1 ? unnamed : named, field, 2, out);
}

/* Positions: a random one in each equal part of the context, dealt out at random.  With a depth, key
 * 0 lies there and the others are spread. */
static int passkey_place(struct passkey_state *s, struct kvl_rng *rng)
{
    int32_t at[PASSKEY_KEYS], length = s->req->length_tok;
    int32_t n_fixed = s->req->depth >= 0.0, n_spread = s->n_keys - n_fixed;
    if (n_spread > length)
        return kvl_fail(s->err, KVL_EINVAL, "length %d is too short for %d keys", length,
                        s->n_keys);
    kvl_fit_strata(rng, length, at, n_spread);
    kvl_rng_shuffle(rng, at, n_spread);
    for (int32_t i = 0; i < s->n_keys; i++) {
        struct passkey_key *key = &s->key[i];
        if (passkey_fill(s, i, KVL_TEXT_passkey_item, KVL_TEXT_passkeys_item, &key->item))
            return passkey_fail_memory(s);
        s->item[i] = (struct kvl_fit_item){ .text = key->item.data, .len = key->item.len };
        s->item[i].at = i < n_fixed ? kvl_fit_position(s->req) : at[i - n_fixed];
    }
    return KVL_OK;
}

/* ---- questions ----------------------------------------------------------------------------- */

/* The two digit runs of an item: no other part of it has digits. */
static struct kvl_evidence passkey_evidence(const struct passkey_state *s, int32_t i)
{
    const char *text = s->item[i].text, *value = s->key[i].value;
    struct kvl_evidence e = { .kind = KVL_EVIDENCE_ANY };
    for (const char *p = text; e.n_spans < 2 && (p = strstr(p, value)) != NULL; p += s->n_digits) {
        size_t begin = s->item[i].begin + (size_t)(p - text);
        e.span[e.n_spans++] = (struct kvl_span){ begin, begin + (size_t)s->n_digits };
    }
    return e;
}

static int passkey_ask(const struct passkey_state *s, int32_t i, const struct kvl_tokens *context,
                       struct kvl_question *q)
{
    struct kvl_buf text = { 0 }, answer = { 0 }, gold = { 0 };
    int rc = passkey_fill(s, i, KVL_TEXT_passkey_question, KVL_TEXT_passkeys_question, &text);
    if (rc == KVL_OK) rc = kvl_buf_printf(&answer, " %s", s->key[i].value);
    if (rc == KVL_OK) rc = kvl_buf_adds(&gold, s->key[i].value);
    *q = (struct kvl_question){ .text = text.data, .answer = answer.data, .gold = gold.data };
    if (rc != KVL_OK) return passkey_fail_memory(s);
    KVL_TRY(kvl_fit_count(s->req->tokenizer, answer.data, answer.len, &q->max_new_tok, s->err));
    q->max_new_tok += KVL_FIT_END_TOK;
    q->evidence[q->n_evidence++] = passkey_evidence(s, i);
    q->depth = kvl_fit_depth(context, q);
    return KVL_OK;
}

static int passkey_build(struct passkey_state *s, struct kvl_sample *out)
{
    const struct kvl_task_request *req = s->req;
    struct kvl_rng rng;
    struct kvl_buf intro = { 0 };
    kvl_rng_seed(&rng, kvl_seed_str(req->seed, "keys"));
    KVL_TRY(passkey_draw_keys(s, &rng));
    KVL_TRY(passkey_place(s, &rng));
    if (passkey_fill(s, 0, KVL_TEXT_passkey_intro, KVL_TEXT_passkeys_intro, &intro))
        return passkey_fail_memory(s);
    struct kvl_fit fit = { .tokenizer = req->tokenizer,
                           .length_tok = req->length_tok,
                           .seed = kvl_seed_str(req->seed, "filler"),
                           .intro = intro.data,
                           .item = s->item,
                           .n_items = s->n_keys };
    int rc = kvl_fit_sample(&fit, req->n_questions, out, s->err);
    kvl_buf_free(&intro);
    KVL_TRY(rc);
    for (int32_t i = 0; i < out->n_questions; i++)
        KVL_TRY(passkey_ask(s, i, &out->tokens, &out->question[i]));
    return KVL_OK;
}

static int passkey_check(const struct passkey_state *s)
{
    KVL_TRY(kvl_fit_check(s->req, s->err));
    if (s->req->n_questions > s->n_keys)
        return kvl_fail(s->err, KVL_EINVAL,
                        "%d questions, but a context holds %d keys, want keys=%d (at most %d)",
                        s->req->n_questions, s->n_keys, s->req->n_questions, PASSKEY_KEYS);
    if (s->n_keys > pow(10.0, s->n_digits))
        return kvl_fail(s->err, KVL_EINVAL, "%d different keys of %d digits do not exist",
                        s->n_keys, s->n_digits);
    return KVL_OK;
}

static int passkey_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                            struct kvl_err *err)
{
    const struct passkey_opts *opts = req->opts;
    struct passkey_state s = {
        .req = req, .err = err, .n_keys = opts->keys, .n_digits = opts->digits
    };
    struct kvl_sample sample = { 0 };
    int rc = passkey_check(&s);
    if (rc == KVL_OK) rc = passkey_build(&s, &sample);
    for (int32_t i = 0; i < s.n_keys; i++) kvl_buf_free(&s.key[i].item);
    if (rc == KVL_OK)
        *out = sample;
    else
        kvl_sample_free(&sample);
    return rc == KVL_OK ? rc : kvl_fail_at(err, rc, "passkey");
}

/* ---- scores -------------------------------------------------------------------------------- */

static const char passkey_digits[] = "0123456789";

/* InfiniteBench: split at everything that is no digit; the first piece that is not empty equals the
 * key as text ("0123" is not "123", "71,432" is not "71432"). */
static bool passkey_official(const char *gold, const char *prediction)
{
    const char *run = prediction + strcspn(prediction, passkey_digits);
    size_t len = strspn(run, passkey_digits);
    return len == strlen(gold) && strncmp(run, gold, len) == 0;
}

/* The key comes first, and no digit follows it. */
static bool passkey_strict(const char *gold, const char *prediction)
{
    const char *s = prediction + strspn(prediction, KVL_FIT_BLANK);
    size_t len = strlen(gold);
    return strncmp(s, gold, len) == 0 && strspn(s + len, passkey_digits) == 0;
}

static void passkey_score(const struct kvl_question *q, const char *prediction,
                          struct kvl_task_score *out)
{
    *out = (struct kvl_task_score){ .official = passkey_official(q->gold, prediction),
                                    .strict = passkey_strict(q->gold, prediction) };
}

static double passkey_chance(const void *opts)
{
    const struct passkey_opts *o = opts;
    return pow(10.0, -o->digits);
}

static const struct kvl_task passkey = {
    .abi = KVL_TASK_ABI,
    .size = sizeof passkey,
    .name = "passkey",
    .title = "Passkey retrieval",
    .paper = "Mohtashami and Jaggi 2023 (landmark attention); Zhang et al. 2024 (InfiniteBench)",
    .help = "digits hidden in filler text: find one key among up to 32 named ones",
    .version = 1,
    .opts = passkey_options,
    .opts_size = sizeof(struct passkey_opts),
    .generate = passkey_generate,
    .score = passkey_score,
    .chance = passkey_chance,
};

KVL_TASK_EXPORT(passkey)
