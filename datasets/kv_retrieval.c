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
#include <string.h>

#include "list.h"

KVL_PHRASE(kv_intro,
           "Below is a list of keys and values. Find the value of the key that is asked for.");
KVL_PHRASE(kv_item, "\"{key}\": \"{value}\"");
KVL_PHRASE(kv_question, "What is the value of the key \"{key}\"? The value is \"");
KVL_PHRASE(kv_question_2, "Look up the key \"{key}\". Its value is \"");
KVL_PHRASE(kv_question_3, "Which value belongs to the key \"{key}\"? It is \"");

enum {
    KV_DIGITS = 64, /* most digits of a key or value */
    KV_UUID = 36,   /* 8-4-4-4-12 */
    KV_UUID_DIGITS = 32,
    KV_PAIRS = 1 << 24,
};

struct kv_opts {
    int32_t key_digits, value_digits, pairs, wording;
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
    { .name = "wording",
      .type = KVL_OPT_INT,
      .off = offsetof(struct kv_opts, wording),
      .def = "1",
      .min = 1,
      .max = KVL_TEXT_WORDINGS,
      .help = "which wording of the question" },
    { 0 },
};

struct kv_state {
    const struct kv_opts *opts;
    struct kvl_rng rng;
    size_t *taken; /* hash set of strings in the list: offset + 1, 0 = free */
    size_t n_slots;
};

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
static size_t kv_slot(const struct kvl_list *l, const char *text, size_t len)
{
    const struct kv_state *s = l->task;
    size_t i = (size_t)kvl_seed_str(0, text) % s->n_slots;
    for (; s->taken[i]; i = (i + 1) % s->n_slots) {
        const char *have = l->text.data + s->taken[i] - 1;
        if (strncmp(have, text, len) == 0 && have[len] == '"') break;
    }
    return i;
}

/* A string that is no key or value yet, nor `other`. */
static int kv_draw_new(const struct kvl_list *l, bool key, const char *other, char *out)
{
    struct kv_state *s = l->task;
    size_t len = kv_text_len(s->opts, key);
    for (int32_t tries = 0; tries < 1000; tries++) {
        kv_draw(s, len, out);
        if (!s->taken[kv_slot(l, out, len)] && strcmp(out, other) != 0) return KVL_OK;
    }
    return kvl_fail(l->err, KVL_EINVAL,
                    "%d pairs use up the %ss of %zu hexadecimal digits, want more digits or fewer "
                    "pairs",
                    l->n, key ? "key" : "value", len);
}

/* ---- the list ------------------------------------------------------------------------------ */

static int kv_open_set(const struct kvl_list *l)
{
    struct kv_state *s = l->task;
    s->n_slots = (size_t)l->most * 4 + 16;
    s->taken = kvl_alloc(s->n_slots, sizeof *s->taken);
    return s->taken ? KVL_OK : kvl_list_fail_memory(l);
}

static int kv_next(struct kvl_list *l)
{
    struct kv_state *s = l->task;
    char key[KV_DIGITS + 1], value[KV_DIGITS + 1];
    struct kvl_list_entry e;
    if (!s->taken) KVL_TRY(kv_open_set(l));
    KVL_TRY(kv_draw_new(l, true, "", key));
    KVL_TRY(kv_draw_new(l, false, key, value));
    KVL_TRY(kvl_list_add(l, key, value, &e));
    s->taken[kv_slot(l, key, e.n_key)] = e.key + 1;
    s->taken[kv_slot(l, value, e.n_value)] = e.value + 1;
    return KVL_OK;
}

static int kv_ask(const struct kvl_list *l, const struct kvl_list_entry *e, int32_t i_question,
                  struct kvl_list_words *out)
{
    static const char *const question[KVL_TEXT_WORDINGS] = { kv_question, kv_question_2,
                                                             kv_question_3 };
    const struct kv_state *s = l->task;
    char key[KV_DIGITS + 1] = "";
    (void)i_question;
    memcpy(key, l->text.data + e->key, e->n_key);
    const struct kvl_text_field field = { l->key, key };
    KVL_TRY(kvl_text_fill(question[s->opts->wording - 1], &field, 1, &out->text));
    KVL_TRY(kvl_buf_add(&out->gold, l->text.data + e->value, e->n_value));
    return kvl_buf_printf(&out->answer, "%s\"", out->gold.data);
}

static int kv_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                       struct kvl_err *err)
{
    struct kvl_err why = { 0 };
    struct kv_state s = { .opts = req->opts };
    struct kvl_list list = { .req = req,
                             .err = &why,
                             .intro = kv_intro,
                             .item = kv_item,
                             .key = "key",
                             .value = "value",
                             .before_first = "{",
                             .before = " ",
                             .after = ",\n",
                             .end = "}",
                             .many = "pairs",
                             .wanted = s.opts->pairs,
                             .task = &s,
                             .next = kv_next,
                             .ask = kv_ask };
    kvl_rng_seed(&s.rng, kvl_seed_str(req->seed, "pairs"));
    int rc = kvl_list_generate(&list, out);
    kvl_free(s.taken);
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
