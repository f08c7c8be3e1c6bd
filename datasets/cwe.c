/* Common words: a numbered list in which a few words come often and all others rarely, the common ones
 * asked for.
 *
 * RULER's cwe (Hsieh et al. 2024): 10 words 30 times each, the others 3 times, and 6 times and once in
 * contexts of less than 4096 tokens.  Differs in that the order is a new one in every context (RULER:
 * one fixed shuffle), there is no example in front, words are our own, wording is our own, and the
 * length is exact in tokens.  Where the plain words are used up, words are put together (riverboat).  The
 * expected answer has the words in the order in which they come first; both scorers take any order.
 *
 *     intro \n [sentences \n] 1. river 2. painted 3. river ... 846. Ulm \n | question -> " river, old, ..."
 *
 * No evidence: all of the list has to be counted.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "bag.h"

KVL_PHRASE(
    cwe_intro,
    "Below is a list of values. Some of them are in the list often. Find them and remember them.");
KVL_PHRASE(cwe_question, "What are the {n} values that are often in the list? The {n} values are");
KVL_PHRASE(cwe_question_2, "Tell me the {n} values that are often in the list. The values are");
KVL_PHRASE(cwe_question_3, "Which {n} values are in the list again and again? The values are");

enum {
    CWE_LONG = 4096, /* tokens from which RULER's larger numbers hold */
    CWE_FIRSTS = 82, /* nouns and colors, that words put together begin with */
    CWE_NOUNS = 59,  /* the nouns come first; the words end with one */
    CWE_PAIRS = CWE_FIRSTS * CWE_NOUNS,
    CWE_TRIPLES = CWE_FIRSTS * CWE_PAIRS,
    CWE_REPEATS = 1000,
};

struct cwe_opts {
    int32_t words, common, uncommon, wording, max_new;
};

static const struct kvl_opt cwe_options[] = {
    { .name = "words",
      .type = KVL_OPT_INT,
      .off = offsetof(struct cwe_opts, words),
      .def = "10",
      .min = 1,
      .max = KVL_BAG_ASKED,
      .help = "words that come often, all asked for (RULER: 10)" },
    { .name = "common",
      .type = KVL_OPT_INT,
      .off = offsetof(struct cwe_opts, common),
      .def = "auto",
      .min = 2,
      .max = CWE_REPEATS,
      .help = "times that each of them comes; auto: 30, in contexts of less than 4096 tokens 6 "
              "(RULER), fewer where those do not fit" },
    { .name = "uncommon",
      .type = KVL_OPT_INT,
      .off = offsetof(struct cwe_opts, uncommon),
      .def = "auto",
      .min = 1,
      .max = CWE_REPEATS - 1,
      .help = "times that each other word comes; auto: 3, in contexts of less than 4096 tokens 1 "
              "(RULER)" },
    KVL_PARTS_OPTIONS(struct cwe_opts),
    { 0 },
};

struct cwe_state {
    const struct cwe_opts *opts;
    int32_t common, uncommon; /* times */
    const char *first[CWE_FIRSTS];
    int32_t *order;           /* [n_order] words in the order in which they are taken */
    int32_t n_order, n_kinds; /* plain, of two parts, of three */
    struct kvl_rng rng;       /* of the order */
    uint64_t seed;            /* of the list */
};

/* ---- words ----------------------------------------------------------------------------------- */

/* Word i of the plain ones, then those of two parts, then those of three. */
static void cwe_word(const struct cwe_state *s, int32_t i, char out[KVL_PART_SIZE])
{
    if (i < KVL_BAG_WORDS) {
        snprintf(out, KVL_PART_SIZE, "%s", kvl_bag_word(i));
        return;
    }
    i -= KVL_BAG_WORDS;
    int32_t pair = i < CWE_PAIRS ? i : (i - CWE_PAIRS) % CWE_PAIRS;
    snprintf(out, KVL_PART_SIZE, "%s%s%s",
             i < CWE_PAIRS ? "" : s->first[(i - CWE_PAIRS) / CWE_PAIRS], s->first[pair / CWE_NOUNS],
             s->first[pair % CWE_NOUNS]);
}

/* No part twice in a row. */
static bool cwe_is_word(int32_t i)
{
    i -= KVL_BAG_WORDS;
    if (i < 0) return true;
    int32_t pair = i < CWE_PAIRS ? i : (i - CWE_PAIRS) % CWE_PAIRS;
    bool again = i >= CWE_PAIRS && (i - CWE_PAIRS) / CWE_PAIRS == pair / CWE_NOUNS;
    return !again && pair / CWE_NOUNS != pair % CWE_NOUNS;
}

/* Appends the words of begin..end-1 in random order. */
static int cwe_extend(struct kvl_bag *b, int32_t begin, int32_t end)
{
    struct cwe_state *s = b->of;
    int32_t n = s->n_order, *order = kvl_alloc((size_t)(n + end - begin), sizeof *order);
    if (!order) return kvl_bag_fail_memory(b);
    if (n) memcpy(order, s->order, (size_t)n * sizeof *order);
    for (int32_t i = begin; i < end; i++)
        if (cwe_is_word(i)) order[n++] = i;
    kvl_rng_shuffle(&s->rng, order + s->n_order, n - s->n_order);
    kvl_free(s->order);
    s->order = order;
    s->n_order = n;
    return KVL_OK;
}

/* The first n words; more kinds of them only when needed. */
static int cwe_provide(struct kvl_bag *b, int64_t n)
{
    static const int32_t end[] = { 0, KVL_BAG_WORDS, KVL_BAG_WORDS + CWE_PAIRS,
                                   KVL_BAG_WORDS + CWE_PAIRS + CWE_TRIPLES };
    struct cwe_state *s = b->of;
    while (s->n_order < n && s->n_kinds + 1 < (int32_t)(sizeof end / sizeof end[0])) {
        KVL_TRY(cwe_extend(b, end[s->n_kinds], end[s->n_kinds + 1]));
        s->n_kinds++;
    }
    if (s->n_order < n)
        return kvl_fail(
            b->err, KVL_EINVAL,
            "length %d needs more than the %d words that there are, want uncommon=%d or "
            "more, or a shorter context",
            b->req->length_tok, s->n_order, s->uncommon + 1);
    return KVL_OK;
}

/* ---- the list -------------------------------------------------------------------------------- */

/* The common words among the first n: those whose hash is smallest, so that a size more hardly ever
 * changes them, and with them the length of the list. */
static void cwe_choose(const struct cwe_state *s, int32_t n, int32_t common[KVL_BAG_ASKED])
{
    uint64_t hash[KVL_BAG_ASKED];
    int32_t n_common = 0, most = s->opts->words;
    for (int32_t i = 0; i < n; i++) {
        uint64_t h = kvl_seed_mix(s->seed, (uint64_t)s->order[i]);
        int32_t at = n_common;
        if (at == most && h >= hash[at - 1]) continue;
        if (at == most) at--;
        for (; at > 0 && hash[at - 1] > h; at--) {
            hash[at] = hash[at - 1];
            common[at] = common[at - 1];
        }
        hash[at] = h;
        common[at] = s->order[i];
        n_common = KVL_MIN(n_common + 1, most);
    }
}

static int32_t cwe_find(const struct cwe_state *s, const int32_t *common, int32_t word)
{
    int32_t i = 0;
    while (i < s->opts->words && common[i] != word) i++;
    return i;
}

/* Entries in random order: words of the first n. */
static int32_t cwe_entries(const struct cwe_state *s, const int32_t *common, int32_t n,
                           int32_t *entry)
{
    struct kvl_rng rng;
    int32_t n_entries = 0;
    for (int32_t i = 0; i < n; i++) {
        bool often = cwe_find(s, common, s->order[i]) < s->opts->words;
        for (int32_t k = 0; k < (often ? s->common : s->uncommon); k++)
            entry[n_entries++] = s->order[i];
    }
    kvl_rng_seed(&rng, s->seed);
    kvl_rng_shuffle(&rng, entry, n_entries);
    return n_entries;
}

static int cwe_print(struct kvl_bag *b, const int32_t *common, const int32_t *entry, int32_t n)
{
    const struct cwe_state *s = b->of;
    uint32_t seen = 0;
    int32_t n_seen = 0;
    for (int32_t i = 0; i < n; i++) {
        char text[KVL_PART_SIZE];
        int32_t at = cwe_find(s, common, entry[i]);
        cwe_word(s, entry[i], text);
        KVL_TRY(kvl_buf_printf(&b->text, "%s%d. %s", i > 0 ? " " : "", i + 1, text));
        if (at == s->opts->words || seen >> at & 1) continue;
        seen |= (uint32_t)1 << at;
        memcpy(b->part[n_seen++], text, sizeof text);
    }
    return KVL_OK;
}

/* The size is the number of uncommon words. */
static int cwe_write(struct kvl_bag *b, int32_t size)
{
    const struct cwe_state *s = b->of;
    int64_t n = (int64_t)s->opts->words + size;
    int64_t n_entries = (int64_t)s->opts->words * s->common + (int64_t)size * s->uncommon;
    int32_t common[KVL_BAG_ASKED];
    KVL_TRY(cwe_provide(b, n));
    int32_t *entry = kvl_alloc((size_t)n_entries, sizeof *entry);
    if (!entry) return kvl_bag_fail_memory(b);
    cwe_choose(s, (int32_t)n, common);
    int rc = cwe_print(b, common, entry, cwe_entries(s, common, (int32_t)n, entry));
    kvl_free(entry);
    return rc == KVL_OK ? rc : kvl_bag_fail_memory(b);
}

/* ---- the task ---------------------------------------------------------------------------------- */

static void cwe_open(struct cwe_state *s, uint64_t seed)
{
    int32_t n_nouns, n_colors;
    const char *const *noun = kvl_text_words(&kvl_text_english, "noun", strlen("noun"), &n_nouns);
    const char *const *color =
        kvl_text_words(&kvl_text_english, "color", strlen("color"), &n_colors);
    assert(n_nouns == CWE_NOUNS && n_nouns + n_colors == CWE_FIRSTS);
    for (int32_t i = 0; i < CWE_FIRSTS; i++)
        s->first[i] = i < CWE_NOUNS ? noun[i] : color[i - CWE_NOUNS];
    kvl_rng_seed(&s->rng, kvl_seed_str(seed, "words"));
    s->seed = kvl_seed_str(seed, "list");
}

static int cwe_try(struct kvl_bag *b, int32_t common, int32_t uncommon, struct kvl_sample *out)
{
    struct cwe_state *s = b->of;
    const struct cwe_opts *o = s->opts;
    s->common = o->common == KVL_AUTO ? common : o->common;
    s->uncommon = o->uncommon == KVL_AUTO ? KVL_MIN(uncommon, s->common - 1) : o->uncommon;
    if (s->common <= s->uncommon)
        return kvl_fail(b->err, KVL_EINVAL, "common=%d with uncommon=%d, want common=%d or more",
                        s->common, s->uncommon, s->uncommon + 1);
    return kvl_bag_generate(b, out);
}

/* RULER's numbers, and smaller ones where those do not fit. */
static int cwe_build(struct kvl_bag *b, struct kvl_sample *out)
{
    static const int32_t times[][2] = { { 30, 3 }, { 6, 1 }, { 3, 1 } };
    const struct cwe_state *s = b->of;
    size_t i = b->req->length_tok >= CWE_LONG ? 0 : 1, n = sizeof times / sizeof times[0];
    for (;; i++) {
        int rc = cwe_try(b, times[i][0], times[i][1], out);
        if (rc != KVL_EINVAL || s->opts->common != KVL_AUTO || i + 1 == n) return rc;
        kvl_err_clear(b->err);
    }
}

static int cwe_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                        struct kvl_err *err)
{
    static const char *const question[KVL_TEXT_WORDINGS] = { cwe_question, cwe_question_2,
                                                             cwe_question_3 };
    const struct cwe_opts *o = req->opts;
    struct kvl_err why = { 0 };
    struct cwe_state s = { .opts = o };
    struct kvl_bag bag = { .req = req,
                           .err = &why,
                           .intro = cwe_intro,
                           .question = question[o->wording - 1],
                           .asked = o->words,
                           .least = o->words,
                           .max_new = o->max_new,
                           .of = &s,
                           .write = cwe_write };
    cwe_open(&s, req->seed);
    int rc = cwe_build(&bag, out);
    kvl_buf_free(&bag.text);
    kvl_free(s.order);
    return rc == KVL_OK ? rc : kvl_fail(err, rc, "cwe: %s", why.msg);
}

/* Official: the share of the words that are a substring (RULER). */
static void cwe_score(const struct kvl_question *q, const char *prediction,
                      struct kvl_task_score *out)
{
    *out = (struct kvl_task_score){ .official = kvl_parts_official(q->gold, prediction),
                                    .strict = kvl_parts_strict(q->gold, prediction, false) };
}

/* The expected share of the words in an answer of as many random plain ones. */
static double cwe_chance(const void *opts)
{
    const struct cwe_opts *o = opts;
    return (double)o->words / KVL_BAG_WORDS;
}

static const struct kvl_task cwe = {
    .abi = KVL_TASK_ABI,
    .size = sizeof cwe,
    .name = "cwe",
    .title = "Common words",
    .paper = "Hsieh et al. 2024 (RULER: cwe)",
    .help =
        "a numbered list with a few words that come often and many that do not: give the common "
        "ones",
    .version = 1,
    .opts = cwe_options,
    .opts_size = sizeof(struct cwe_opts),
    .generate = cwe_generate,
    .score = cwe_score,
    .chance = cwe_chance,
};

KVL_TASK_EXPORT(cwe)
