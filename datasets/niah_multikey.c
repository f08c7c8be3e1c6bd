/* Multi-key needle: many keys with a value each, one key asked for.
 *
 * RULER (Hsieh et al. 2024): niah_multikey_1 is the default (4 keys between filler), niah_multikey_2 is
 * haystack=needles (nothing but needles, one per line), niah_multikey_3 is haystack=needles,key=uuids,value=uuids.
 * Differs in that the filler is our own and does not repeat, wording and words are our own, a uuid
 * stands in quotes, and the length is exact in tokens.
 *
 *     intro \n sentence ... needle ... sentence \n | question -> " 8046131"
 *     intro \n [sentences \n] needle \n needle ... \n | question -> " 8046131"
 *
 * With needles all over, keys of words name a city too (the quiet river of Ulm), so that there are
 * enough.  Evidence: the value of the needle; with needles all over its key first.
 */
#include <stdio.h>
#include <string.h>

#include "list.h"
#include "niah.h"

KVL_PHRASE(niah_list_intro, "Below is a list of magic values. Find the value that is asked for.");

enum { MULTIKEY_DEFAULT = 4, MULTIKEY_MOST = 1 << 24 };

enum { MULTIKEY_TEXT, MULTIKEY_NEEDLES };
static const char *const multikey_haystacks[] = { "text", "needles", NULL };

struct multikey_opts {
    int32_t keys, haystack, key, value, wording, max_new;
    char prose[KVL_OPT_PATH_SIZE];
};

static const struct kvl_opt multikey_options[] = {
    { .name = "keys",
      .type = KVL_OPT_INT,
      .off = offsetof(struct multikey_opts, keys),
      .def = "auto",
      .min = 1,
      .max = MULTIKEY_MOST,
      .help =
          "keys in a context; auto: 4 between filler (RULER: 4), as many as fit with needles all "
          "over" },
    { .name = "haystack",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct multikey_opts, haystack),
      .def = "text",
      .choices = multikey_haystacks,
      .help =
          "text: filler sentences (multikey_1); needles: nothing but needles (multikey_2 and 3)" },
    { .name = "key",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct multikey_opts, key),
      .def = "words",
      .choices = kvl_niah_types,
      .help = "keys: words, numbers of 7 digits, uuids (multikey_3)" },
    { .name = "value",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct multikey_opts, value),
      .def = "numbers",
      .choices = kvl_niah_types,
      .help = "values: words, numbers of 7 digits, uuids (multikey_3)" },
    KVL_PARTS_OPTIONS(struct multikey_opts),
    KVL_PROSE_OPTION(multikey_opts),
    { 0 },
};

/* ---- needles all over ------------------------------------------------------------------------ */

enum { MULTIKEY_BITS = 64 }; /* of `taken` together */

struct multikey_state {
    const struct multikey_opts *opts;
    struct kvl_rng rng;
    const char *const *word[3]; /* adjectives, nouns, cities */
    uint32_t n_word[3];
    uint64_t *taken; /* [n_keys / 64] bits: numbers or word keys that are in the list */
    uint32_t n_keys; /* that there are */
};

/* Key i of all numbers or of all word keys. */
static void multikey_write(const struct multikey_state *s, uint32_t i, char out[KVL_PART_SIZE])
{
    uint32_t at[3];
    if (s->opts->key == KVL_NIAH_NUMBERS) {
        snprintf(out, KVL_PART_SIZE, "%u", (unsigned)(KVL_NIAH_FIRST + i));
        return;
    }
    for (int32_t k = 0; k < 3; k++) {
        at[k] = i % s->n_word[k];
        i /= s->n_word[k];
    }
    snprintf(out, KVL_PART_SIZE, "the %s %s of %s", s->word[0][at[0]], s->word[1][at[1]],
             s->word[2][at[2]]);
}

static int multikey_open_set(const struct kvl_list *l)
{
    static const char *const classes[] = { "adj", "noun", "city" };
    struct multikey_state *s = l->task;
    s->n_keys = 1;
    for (int32_t k = 0; k < 3; k++) {
        int32_t n;
        s->word[k] = kvl_text_words(&kvl_text_english, classes[k], strlen(classes[k]), &n);
        s->n_word[k] = (uint32_t)n;
        s->n_keys *= (uint32_t)n;
    }
    if (s->opts->key == KVL_NIAH_NUMBERS) s->n_keys = KVL_NIAH_NUMBERS_ALL;
    s->taken = kvl_alloc(s->n_keys / MULTIKEY_BITS + 1, sizeof *s->taken);
    return s->taken ? KVL_OK : kvl_list_fail_memory(l);
}

/* A key that is not in the list yet.  Uuids do not meet. */
static int multikey_draw_key(const struct kvl_list *l, char out[KVL_PART_SIZE])
{
    struct multikey_state *s = l->task;
    if (s->opts->key == KVL_NIAH_UUIDS) {
        kvl_niah_value(&s->rng, KVL_NIAH_UUIDS, out);
        return KVL_OK;
    }
    if (!s->taken) KVL_TRY(multikey_open_set(l));
    if ((uint32_t)l->n >= s->n_keys)
        return kvl_fail(l->err, KVL_EINVAL,
                        "%d needles use up the keys, want key=uuids or a shorter context", l->n);
    uint32_t i;
    do {
        i = kvl_rng_below(&s->rng, s->n_keys);
    } while (s->taken[i / MULTIKEY_BITS] >> (i % MULTIKEY_BITS) & 1);
    s->taken[i / MULTIKEY_BITS] |= (uint64_t)1 << (i % MULTIKEY_BITS);
    multikey_write(s, i, out);
    return KVL_OK;
}

static int multikey_next(struct kvl_list *l)
{
    struct multikey_state *s = l->task;
    char key[KVL_PART_SIZE], value[KVL_PART_SIZE];
    struct kvl_list_entry e;
    KVL_TRY(multikey_draw_key(l, key));
    kvl_niah_value(&s->rng, (enum kvl_niah_type)s->opts->value, value);
    return kvl_list_add(l, key, value, &e);
}

static int multikey_ask(const struct kvl_list *l, const struct kvl_list_entry *e,
                        int32_t i_question, struct kvl_list_words *out)
{
    const struct multikey_opts *o = ((const struct multikey_state *)l->task)->opts;
    const char *quote = kvl_niah_quote((enum kvl_niah_type)o->key);
    char key[KVL_PART_SIZE + 2];
    (void)i_question;
    snprintf(key, sizeof key, "%s%.*s%s", quote, (int)e->n_key, l->text.data + e->key, quote);
    const struct kvl_text_field field = { "key", key };
    KVL_TRY(kvl_text_fill(kvl_niah_question(o->wording, false), &field, 1, &out->text));
    KVL_TRY(kvl_buf_add(&out->gold, l->text.data + e->value, e->n_value));
    quote = kvl_niah_quote((enum kvl_niah_type)o->value);
    out->max_new = o->max_new;
    return kvl_buf_printf(&out->answer, " %s%s%s", quote, out->gold.data, quote);
}

static int multikey_list(const struct kvl_task_request *req, struct kvl_sample *out,
                         struct kvl_err *err)
{
    const struct multikey_opts *o = req->opts;
    struct kvl_err why = { 0 };
    struct multikey_state s = { .opts = o };
    struct kvl_list list = { .req = req,
                             .err = &why,
                             .intro = niah_list_intro,
                             .item = kvl_niah_item((enum kvl_niah_type)o->key,
                                                   (enum kvl_niah_type)o->value),
                             .key = "key",
                             .value = "value",
                             .before_first = "",
                             .before = "",
                             .after = "\n",
                             .end = "",
                             .many = "needles",
                             .wanted = o->keys,
                             .task = &s,
                             .next = multikey_next,
                             .ask = multikey_ask };
    kvl_rng_seed(&s.rng, kvl_seed_str(req->seed, "needles"));
    int rc = kvl_list_generate(&list, out);
    kvl_free(s.taken);
    return rc == KVL_OK ? rc : kvl_fail(err, rc, "niah_multikey: %s", why.msg);
}

/* ---- the task ---------------------------------------------------------------------------------- */

static int multikey_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                             struct kvl_err *err)
{
    const struct multikey_opts *o = req->opts;
    if (o->haystack == MULTIKEY_NEEDLES && o->prose[0])
        return kvl_fail(err, KVL_EINVAL, "niah_multikey: prose with haystack=needles, want text");
    if (o->haystack == MULTIKEY_NEEDLES) return multikey_list(req, out, err);
    if (o->keys > KVL_NIAH_KEYS)
        return kvl_fail(
            err, KVL_EINVAL,
            "niah_multikey: keys=%d between filler, want at most %d or haystack=needles", o->keys,
            KVL_NIAH_KEYS);
    struct kvl_niah niah = { .task = "niah_multikey",
                             .key = (enum kvl_niah_type)o->key,
                             .value = (enum kvl_niah_type)o->value,
                             .keys = o->keys == KVL_AUTO ? MULTIKEY_DEFAULT : o->keys,
                             .values = 1,
                             .queries = 1,
                             .wording = o->wording,
                             .prose = o->prose,
                             .max_new = o->max_new };
    return kvl_niah_generate(&niah, req, out, err);
}

/* Official: the value is a substring (RULER). */
static void multikey_score(const struct kvl_question *q, const char *prediction,
                           struct kvl_task_score *out)
{
    *out = (struct kvl_task_score){ .official = kvl_parts_official(q->gold, prediction),
                                    .strict = kvl_parts_strict(q->gold, prediction, true) };
}

static double multikey_chance(const void *opts)
{
    const struct multikey_opts *o = opts;
    return kvl_niah_chance((enum kvl_niah_type)o->value);
}

static const struct kvl_task niah_multikey = {
    .abi = KVL_TASK_ABI,
    .size = sizeof niah_multikey,
    .name = "niah_multikey",
    .title = "Multi-key needle",
    .paper = "Hsieh et al. 2024 (RULER: niah_multikey_1, _2, _3)",
    .help = "needles with different keys in filler text, or nothing but needles: give the value of "
            "one key",
    .version = 1,
    .opts = multikey_options,
    .opts_size = sizeof(struct multikey_opts),
    .generate = multikey_generate,
    .score = multikey_score,
    .chance = multikey_chance,
};

KVL_TASK_EXPORT(niah_multikey)
