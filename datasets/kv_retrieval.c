/* Key-value retrieval: a long list of random pairs, one key asked for at the end.
 *
 * The layout of Liu et al. (2023, lost in the middle): the first line opens with {, the others with a
 * space, one pair per line.  The question and scorer follow InfiniteBench (Zhang et al. 2024).  Differs in
 * that keys are 8 hexadecimal digits unless `uuid` asks for the published 8-4-4-4-12 form, that the
 * wording is our own, and that the length is exact in tokens: what the last pair leaves open is
 * closed by filler sentences on a line between the intro and the list.
 *
 *     intro \n [sentences \n] {"k": "v",\n "k": "v",\n ... "k": "v"} \n | question -> v"
 *
 * With `pairs` given, the list has just so many, and filler before and after it fills the context.
 *
 * Evidence, in order of use: group 0 is the key (to find the pair), group 1 is the value, which is
 * what every answer step reads.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fit.h"
#include "text.h"

enum {
    KV_DIGITS = 64, /* most digits of a key or value */
    KV_UUID = 36,   /* 8-4-4-4-12 */
    KV_UUID_DIGITS = 32,
    KV_PAIRS = 1 << 24,
    KV_GIVE_UP = 16,   /* pairs that may be left out so that filler closes the length */
    KV_AROUND_TOK = 3, /* BOS, the line ends after intro and list */
};

struct kv_opts {
    int32_t key_digits, value_digits, pairs;
    bool uuid;
};

static const struct kvl_opt kv_options[] = {
    { .name = "key_digits",
      .type = KVL_OPT_INT,
      .off = offsetof(struct kv_opts, key_digits),
      .def = "8",
      .min = 4,
      .max = KV_DIGITS,
      .help = "hexadecimal digits of a key" },
    { .name = "value_digits",
      .type = KVL_OPT_INT,
      .off = offsetof(struct kv_opts, value_digits),
      .def = "8",
      .min = 4,
      .max = KV_DIGITS,
      .help = "hexadecimal digits of a value" },
    { .name = "uuid",
      .type = KVL_OPT_BOOL,
      .off = offsetof(struct kv_opts, uuid),
      .def = "false",
      .help = "keys and values of the form 8-4-4-4-12 (Liu et al., InfiniteBench: true)" },
    { .name = "pairs",
      .type = KVL_OPT_INT,
      .off = offsetof(struct kv_opts, pairs),
      .def = "auto",
      .min = 1,
      .max = KV_PAIRS,
      .help = "pairs in the list; auto fills the context" },
    { 0 },
};

/* One pair: bytes of the list. */
struct kv_pair {
    size_t key, value, end;
    int64_t tok_before; /* estimated tokens of the list before it */
    int32_t n_tok;
};

struct kv_state {
    const struct kvl_task_request *req;
    const struct kv_opts *opts;
    struct kvl_err *err;
    struct kvl_rng rng;
    struct kvl_buf intro;
    struct kvl_buf list;   /* all pairs that were drawn, without an end */
    struct kvl_buf closed; /* the list that is used: its first n_pairs */
    struct kvl_buf pairs;  /* struct kv_pair[] */
    size_t *taken;         /* hash set of strings in the list: offset + 1, 0 = free */
    size_t n_slots;
    int32_t n_pairs;
    int32_t *asked; /* [n_questions] pairs */
};

static int kv_fail_memory(const struct kv_state *s)
{
    return kvl_fail(s->err, KVL_ENOMEM, "a context of %d tokens: out of memory",
                    s->req->length_tok);
}

static const struct kv_pair *kv_pair(const struct kv_state *s, int32_t i)
{
    return (const struct kv_pair *)(const void *)s->pairs.data + i;
}

static size_t kv_text_len(const struct kv_opts *o, bool key)
{
    return o->uuid ? KV_UUID : (size_t)(key ? o->key_digits : o->value_digits);
}

/* ---- different strings --------------------------------------------------------------------- */

static void kv_draw(struct kv_state *s, size_t len, char *out)
{
    for (size_t i = 0; i < len; i++) {
        bool dash = s->opts->uuid && (i == 8 || i == 13 || i == 18 || i == 23);
        out[i] = dash ? '-' : "0123456789abcdef"[kvl_rng_below(&s->rng, 16)];
    }
    out[len] = '\0';
}

/* The slot of a string, or the free one where it belongs.  A stored string ends with a quote. */
static size_t kv_slot(const struct kv_state *s, const char *text, size_t len)
{
    size_t i = (size_t)kvl_seed_str(0, text) % s->n_slots;
    for (; s->taken[i]; i = (i + 1) % s->n_slots) {
        const char *have = s->list.data + s->taken[i] - 1;
        if (strncmp(have, text, len) == 0 && have[len] == '"') break;
    }
    return i;
}

/* A string that is no key or value yet, nor `other`. */
static int kv_draw_new(struct kv_state *s, bool key, const char *other, char *out)
{
    size_t len = kv_text_len(s->opts, key);
    for (int32_t tries = 0; tries < 1000; tries++) {
        kv_draw(s, len, out);
        if (!s->taken[kv_slot(s, out, len)] && strcmp(out, other) != 0) return KVL_OK;
    }
    return kvl_fail(s->err, KVL_EINVAL,
                    "%d pairs use up the %ss of %zu hexadecimal digits, want more digits or fewer "
                    "pairs",
                    s->n_pairs, key ? "key" : "value", len);
}

static void kv_remember(struct kv_state *s, size_t begin, size_t len)
{
    char text[KV_DIGITS + 1];
    memcpy(text, s->list.data + begin, len);
    text[len] = '\0';
    s->taken[kv_slot(s, text, len)] = begin + 1;
}

/* ---- the list ------------------------------------------------------------------------------ */

/* Appends one pair and what joins it to the next. */
static int kv_add_text(struct kv_state *s, const char *key, const char *value, struct kv_pair *pair)
{
    const struct kvl_text_field field[] = { { "key", key }, { "value", value } };
    KVL_TRY(kvl_buf_adds(&s->list, s->list.len ? " " : "{"));
    size_t begin = s->list.len;
    KVL_TRY(kvl_text_fill(&kvl_text_english, KVL_TEXT_kv_item, field, 2, &s->list));
    const char *at_key = strstr(s->list.data + begin, key);
    const char *at_value = strstr(at_key + strlen(key), value);
    pair->key = (size_t)(at_key - s->list.data);
    pair->value = (size_t)(at_value - s->list.data);
    pair->end = s->list.len;
    return kvl_buf_adds(&s->list, ",\n");
}

static int kv_add_pair(struct kv_state *s, int64_t *tok)
{
    char key[KV_DIGITS + 1], value[KV_DIGITS + 1];
    struct kv_pair pair = { .tok_before = *tok };
    size_t begin = s->list.len;
    KVL_TRY(kv_draw_new(s, true, "", key));
    KVL_TRY(kv_draw_new(s, false, key, value));
    if (kv_add_text(s, key, value, &pair) != KVL_OK) return kv_fail_memory(s);
    kv_remember(s, pair.key, strlen(key));
    kv_remember(s, pair.value, strlen(value));
    KVL_TRY(kvl_fit_count(s->req->tokenizer, s->list.data + begin, s->list.len - begin, &pair.n_tok,
                          s->err));
    *tok += pair.n_tok;
    s->n_pairs++;
    return kvl_buf_add(&s->pairs, &pair, sizeof pair) == KVL_OK ? KVL_OK : kv_fail_memory(s);
}

/* Tokens that intro and list may take together with the line ends. */
static int kv_list_room(const struct kv_state *s, int64_t *room)
{
    int32_t n_intro;
    KVL_TRY(kvl_fit_count(s->req->tokenizer, s->intro.data, s->intro.len, &n_intro, s->err));
    *room = (int64_t)s->req->length_tok - n_intro - KV_AROUND_TOK;
    return KVL_OK;
}

/* All pairs that were asked for, or as many as may fit, but at least one. */
static int kv_draw_pairs(struct kv_state *s, int64_t room)
{
    int32_t most = s->req->length_tok; /* a pair takes more than one token */
    bool fill = s->opts->pairs == KVL_AUTO;
    if (!fill && s->opts->pairs > most)
        return kvl_fail(s->err, KVL_EINVAL, "length %d is too short for %d pairs", most,
                        s->opts->pairs);
    most = fill ? most : s->opts->pairs;
    s->n_slots = (size_t)most * 4 + 16;
    s->taken = kvl_alloc(s->n_slots, sizeof *s->taken);
    if (!s->taken) return kv_fail_memory(s);
    int64_t tok = 0;
    do {
        KVL_TRY(kv_add_pair(s, &tok));
    } while (s->n_pairs < most && (!fill || tok <= room));
    return KVL_OK;
}

/* Copies the first n pairs as a whole list. */
static int kv_close_list(struct kv_state *s, int32_t n)
{
    s->n_pairs = n;
    s->closed.len = 0;
    if (kvl_buf_add(&s->closed, s->list.data, kv_pair(s, n - 1)->end) != KVL_OK ||
        kvl_buf_adds(&s->closed, "}") != KVL_OK)
        return kv_fail_memory(s);
    return KVL_OK;
}

/* ---- which pairs are asked for, and where the list lies -------------------------------------- */

/* The pair whose begin is nearest to a position in the list. */
static int32_t kv_nearest(const struct kv_state *s, int64_t tok)
{
    int32_t best = 0;
    while (best + 1 < s->n_pairs && llabs(kv_pair(s, best + 1)->tok_before - tok) <=
                                        llabs(kv_pair(s, best)->tok_before - tok))
        best++;
    return best;
}

/* A random pair of each equal part of the list, dealt out at random.  With a depth the first question
 * asks the pair there, and the others are spread over what remains. */
static void kv_choose(struct kv_state *s, struct kvl_rng *rng, int32_t first)
{
    int32_t n_fixed = first >= 0, n = s->req->n_questions - n_fixed;
    int32_t *spread = s->asked + n_fixed;
    if (n_fixed) s->asked[0] = first;
    kvl_fit_strata(rng, s->n_pairs - n_fixed, spread, n);
    kvl_rng_shuffle(rng, spread, n);
    for (int32_t i = 0; n_fixed && i < n; i++) spread[i] += spread[i] >= first;
}

static void kv_place(struct kv_state *s, struct kvl_fit_item *list)
{
    const struct kvl_task_request *req = s->req;
    struct kvl_rng rng;
    kvl_rng_seed(&rng, kvl_seed_str(req->seed, "questions"));
    int32_t first = -1, n_free = KVL_MAX(1, req->length_tok - list->n_tok);
    list->at = req->length_tok; /* the list is all: filler comes before it */
    if (s->opts->pairs == KVL_AUTO) {
        if (req->depth >= 0.0) first = kv_nearest(s, kvl_fit_position(req) - n_free);
    } else if (req->depth >= 0.0) {
        first = (int32_t)lround(req->depth * (s->n_pairs - 1));
        list->at = kvl_fit_position(req) - kv_pair(s, first)->tok_before;
    } else {
        list->at = kvl_rng_below(&rng, (uint32_t)n_free);
    }
    kv_choose(s, &rng, first);
}

/* ---- questions ----------------------------------------------------------------------------- */

static struct kvl_evidence kv_evidence(size_t begin, size_t len)
{
    return (struct kvl_evidence){ .kind = KVL_EVIDENCE_ALL,
                                  .span = { { begin, begin + len } },
                                  .n_spans = 1 };
}

static int kv_ask(const struct kv_state *s, const struct kv_pair *pair, size_t list,
                  const struct kvl_tokens *context, struct kvl_question *q)
{
    struct kvl_buf text = { 0 }, answer = { 0 }, gold = { 0 };
    char key[KV_DIGITS + 1] = "";
    size_t n_key = kv_text_len(s->opts, true), n_value = kv_text_len(s->opts, false);
    memcpy(key, s->list.data + pair->key, n_key);
    const struct kvl_text_field field = { "key", key };
    int rc = kvl_text_fill(&kvl_text_english, KVL_TEXT_kv_question, &field, 1, &text);
    if (rc == KVL_OK) rc = kvl_buf_add(&gold, s->list.data + pair->value, n_value);
    if (rc == KVL_OK) rc = kvl_buf_printf(&answer, "%s\"", gold.data);
    *q = (struct kvl_question){ .text = text.data, .answer = answer.data, .gold = gold.data };
    if (rc != KVL_OK) return kv_fail_memory(s);
    KVL_TRY(kvl_fit_count(s->req->tokenizer, answer.data, answer.len, &q->max_new_tok, s->err));
    q->max_new_tok += KVL_FIT_END_TOK;
    q->evidence[q->n_evidence++] = kv_evidence(list + pair->key, n_key);
    q->evidence[q->n_evidence++] = kv_evidence(list + pair->value, n_value);
    q->depth = kvl_fit_depth(context, q);
    return KVL_OK;
}

/* ---- the sample ---------------------------------------------------------------------------- */

static int kv_ask_all(const struct kv_state *s, size_t list, struct kvl_sample *out)
{
    for (int32_t i = 0; i < out->n_questions; i++)
        KVL_TRY(kv_ask(s, kv_pair(s, s->asked[i]), list, &out->tokens, &out->question[i]));
    return KVL_OK;
}

/* One attempt with the first n pairs, which take list_tok tokens. */
static int kv_try(struct kv_state *s, int32_t n, int64_t list_tok, bool whole,
                  struct kvl_sample *out)
{
    const struct kvl_task_request *req = s->req;
    if (req->n_questions > n)
        return kvl_fail(s->err, KVL_EINVAL,
                        "%d questions, but a list of length %d has only %d pairs", req->n_questions,
                        req->length_tok, n);
    KVL_TRY(kv_close_list(s, n));
    struct kvl_fit_item item = {
        .text = s->closed.data, .len = s->closed.len, .n_tok = (int32_t)list_tok, .line = true
    };
    kv_place(s, &item);
    struct kvl_fit fit = { .tokenizer = req->tokenizer,
                           .length_tok = req->length_tok,
                           .seed = kvl_seed_str(req->seed, "filler"),
                           .text = &kvl_text_english,
                           .intro = s->intro.data,
                           .whole = whole,
                           .item = &item,
                           .n_items = 1 };
    KVL_TRY(kvl_fit_sample(&fit, req->n_questions, out, s->err));
    int rc = kv_ask_all(s, item.begin, out);
    if (rc != KVL_OK) kvl_sample_free(out);
    return rc;
}

/* Attempts with n pairs and fewer, down to `least`, until filler closes the gap. */
static int kv_shrink(struct kv_state *s, int32_t n, int32_t least, int64_t list_tok, bool whole,
                     struct kvl_sample *out)
{
    for (;;) {
        kvl_err_clear(s->err); /* of the attempt before */
        int rc = kv_try(s, n, list_tok, whole, out);
        if (rc != KVL_EINVAL || n <= least || s->req->n_questions > n) return rc;
        list_tok -= kv_pair(s, --n)->n_tok;
    }
}

/* With `pairs` given, that list; otherwise the longest one that leaves a gap which filler closes. */
static int kv_search(struct kv_state *s, int64_t room, struct kvl_sample *out)
{
    int32_t n = s->n_pairs, least = n, counted;
    KVL_TRY(kv_close_list(s, n));
    KVL_TRY(kvl_fit_count(s->req->tokenizer, s->closed.data, s->closed.len, &counted, s->err));
    int64_t list_tok = counted;
    if (s->opts->pairs == KVL_AUTO) {
        while (n > 1 && list_tok > room) list_tok -= kv_pair(s, --n)->n_tok;
        least = KVL_MAX(1, n - KV_GIVE_UP);
    }
    int rc = kv_shrink(s, n, least, list_tok, true, out);
    return rc == KVL_EINVAL ? kv_shrink(s, n, least, list_tok, false, out) : rc;
}

static int kv_build(struct kv_state *s, struct kvl_sample *out)
{
    int64_t room;
    KVL_TRY(kvl_fit_check(s->req, s->err));
    kvl_rng_seed(&s->rng, kvl_seed_str(s->req->seed, "pairs"));
    s->asked = kvl_alloc((size_t)s->req->n_questions, sizeof *s->asked);
    if (!s->asked ||
        kvl_text_fill(&kvl_text_english, KVL_TEXT_kv_intro, NULL, 0, &s->intro) != KVL_OK)
        return kv_fail_memory(s);
    KVL_TRY(kv_list_room(s, &room));
    KVL_TRY(kv_draw_pairs(s, room));
    return kv_search(s, room, out);
}

static int kv_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                       struct kvl_err *err)
{
    struct kvl_err why = { 0 };
    struct kv_state s = { .req = req, .opts = req->opts, .err = &why };
    int rc = kv_build(&s, out);
    kvl_buf_free(&s.intro);
    kvl_buf_free(&s.list);
    kvl_buf_free(&s.closed);
    kvl_buf_free(&s.pairs);
    kvl_free(s.taken);
    kvl_free(s.asked);
    return rc == KVL_OK ? rc : kvl_fail(err, rc, "kv_retrieval: %s", why.msg);
}

/* ---- scores -------------------------------------------------------------------------------- */

/* Length of what separates words at `s`, 0 = none: the characters that InfiniteBench replaces by a
 * space, and white space as Python's str.split() sees it (also outside ASCII). */
static size_t kv_separator(const char *s)
{
    static const char *const wide[] = {
        "\xc2\x85", "\u00a0", "\u1680", "\u2000", "\u2001", "\u2002", "\u2003",
        "\u2004",   "\u2005", "\u2006", "\u2007", "\u2008", "\u2009", "\u200a",
        "\u2028",   "\u2029", "\u202f", "\u205f", "\u3000",
    };
    if (*s && strchr(":\"'.,?!{} \t\n\v\f\r\x1c\x1d\x1e\x1f", *s)) return 1;
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++)
        if (strncmp(s, wide[i], strlen(wide[i])) == 0) return strlen(wide[i]);
    return 0;
}

/* InfiniteBench: the value is one of the words. */
static bool kv_official(const char *gold, const char *prediction)
{
    size_t len = strlen(gold);
    for (const char *s = prediction, *word; *s;) {
        size_t skip = kv_separator(s);
        s += skip;
        if (skip) continue;
        for (word = s; *s && !kv_separator(s);) s++;
        if ((size_t)(s - word) == len && strncmp(word, gold, len) == 0) return true;
    }
    return false;
}

/* The value comes first, and nothing follows that could belong to it. */
static bool kv_strict(const char *gold, const char *prediction)
{
    const char *s = prediction + strspn(prediction, KVL_FIT_BLANK);
    size_t len = strlen(gold);
    return strncmp(s, gold, len) == 0 && strspn(s + len, "0123456789abcdefABCDEF-") == 0;
}

static void kv_score(const struct kvl_question *q, const char *prediction,
                     struct kvl_task_score *out)
{
    *out = (struct kvl_task_score){ .official = kv_official(q->gold, prediction),
                                    .strict = kv_strict(q->gold, prediction) };
}

static double kv_chance(const void *opts)
{
    const struct kv_opts *o = opts;
    return pow(16.0, -(o->uuid ? KV_UUID_DIGITS : o->value_digits));
}

static const struct kvl_task kv_retrieval = {
    .abi = KVL_TASK_ABI,
    .size = sizeof kv_retrieval,
    .name = "kv_retrieval",
    .title = "Key-value retrieval",
    .paper = "Liu et al. 2023 (lost in the middle); Zhang et al. 2024 (InfiniteBench)",
    .help = "a list of random pairs fills the context: give the value of one key",
    .version = 1,
    .opts = kv_options,
    .opts_size = sizeof(struct kv_opts),
    .generate = kv_generate,
    .score = kv_score,
    .chance = kv_chance,
};

KVL_TASK_EXPORT(kv_retrieval)
