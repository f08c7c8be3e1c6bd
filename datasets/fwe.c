/* Frequent words: a text of words with Zipf-like frequencies, the most frequent ones asked for.
 *
 * RULER's fwe (Hsieh et al. 2024): of n words, word k comes n k^-alpha / zeta(alpha) times, rounded down; the
 * most frequent one is noise ("..."), and ranks 2 to 4 are asked for.  Differs in that words are those of our
 * filler unless words=coded asks for RULER's six random letters, that wording is our own and the
 * length is exact in tokens.  The expected answer has the most frequent word first; both scorers take any
 * order.
 *
 *     intro \n [sentences \n] ... river ... old ... river Ulm ... \n | question -> " river, old, Ulm"
 *
 * No evidence: all of the text has to be counted.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "bag.h"

KVL_PHRASE(fwe_intro, "Below is a text of values. The ... in it are ignored. Some values are in "
                      "the text often. Find them and remember them.");
KVL_PHRASE(fwe_question, "What are the {n} values that are often in the text? The {n} values are");
KVL_PHRASE(fwe_question_2, "Tell me the {n} values that are often in the text. The values are");
KVL_PHRASE(fwe_question_3, "Which {n} values are in the text again and again? The values are");

enum {
    FWE_ASKED = 16,
    FWE_LETTERS = 6, /* of a coded word */
    FWE_LETTERS_ALL = 26,
    FWE_WORD_TOK = 50, /* tokens of the context for each different word (RULER) */
    FWE_WORDS = 4096,  /* different coded words at most */
    FWE_ZETA = 1000,   /* terms before the remainder */
};

enum { FWE_PLAIN, FWE_CODED };
static const char *const fwe_kinds[] = { "plain", "coded", NULL };

struct fwe_opts {
    double alpha;
    int32_t asked, words, wording, max_new;
};

static const struct kvl_opt fwe_options[] = {
    { .name = "alpha",
      .type = KVL_OPT_FLOAT,
      .off = offsetof(struct fwe_opts, alpha),
      .def = "2",
      .min = 1.1,
      .max = 4.0,
      .help = "exponent of the frequencies: the smaller, the closer they are (RULER: 2)" },
    { .name = "asked",
      .type = KVL_OPT_INT,
      .off = offsetof(struct fwe_opts, asked),
      .def = "3",
      .min = 1,
      .max = FWE_ASKED,
      .help = "words asked for (RULER: 3)" },
    { .name = "words",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct fwe_opts, words),
      .def = "plain",
      .choices = fwe_kinds,
      .help = "plain: those of the filler; coded: six random letters (RULER)" },
    KVL_PARTS_OPTIONS(struct fwe_opts),
    { 0 },
};

struct fwe_state {
    const struct fwe_opts *opts;
    double zeta;
    char (*word)[KVL_PART_SIZE]; /* [n_words] by rank; the first is noise */
    int32_t n_words;
    struct kvl_rng rng; /* of the text, as it begins */
};

/* ---- words ----------------------------------------------------------------------------------- */

static bool fwe_taken(const struct fwe_state *s, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (strcmp(s->word[i], s->word[n]) == 0) return true;
    return false;
}

static void fwe_draw_coded(struct fwe_state *s, struct kvl_rng *rng, int32_t i)
{
    do {
        for (int32_t k = 0; k < FWE_LETTERS; k++)
            s->word[i][k] = (char)('a' + kvl_rng_below(rng, FWE_LETTERS_ALL));
        s->word[i][FWE_LETTERS] = '\0';
    } while (fwe_taken(s, i));
}

static void fwe_draw_words(struct fwe_state *s, struct kvl_rng *rng)
{
    int32_t order[KVL_BAG_WORDS];
    for (int32_t i = 0; i < KVL_BAG_WORDS; i++) order[i] = i;
    kvl_rng_shuffle(rng, order, KVL_BAG_WORDS);
    snprintf(s->word[0], sizeof s->word[0], "...");
    for (int32_t i = 1; i < s->n_words; i++) {
        if (s->opts->words == FWE_CODED)
            fwe_draw_coded(s, rng, i);
        else
            snprintf(s->word[i], sizeof s->word[i], "%s", kvl_bag_word(order[i - 1]));
    }
}

/* ---- the text -------------------------------------------------------------------------------- */

/* Riemann's zeta: a sum, and Euler and Maclaurin's remainder. */
static double fwe_zeta(double a)
{
    double n = FWE_ZETA, sum = 0.0;
    for (int32_t k = 1; k < FWE_ZETA; k++) sum += pow(k, -a);
    return sum + pow(n, 1.0 - a) / (a - 1.0) + 0.5 * pow(n, -a) + a / 12.0 * pow(n, -a - 1.0);
}

/* Of the word of a rank, 1 = the most frequent one. */
static double fwe_share(const struct fwe_state *s, int32_t rank)
{
    return pow(rank, -s->opts->alpha) / s->zeta;
}

/* The size from which every word asked for comes more often than the next one. */
static int32_t fwe_least(const struct fwe_state *s)
{
    int32_t last = s->opts->asked + 1;
    return (int32_t)ceil(1.0 / (fwe_share(s, last) - fwe_share(s, last + 1)));
}

static int fwe_print(struct kvl_bag *b, const int32_t *entry, int32_t n)
{
    const struct fwe_state *s = b->of;
    for (int32_t i = 0; i < n; i++)
        KVL_TRY(kvl_buf_printf(&b->text, "%s%s", i > 0 ? " " : "", s->word[entry[i]]));
    return KVL_OK;
}

/* The size is n, the number of words before they are rounded down. */
static int fwe_write(struct kvl_bag *b, int32_t size)
{
    const struct fwe_state *s = b->of;
    struct kvl_rng rng = s->rng;
    int32_t n = 0, *entry = kvl_alloc((size_t)size, sizeof *entry);
    if (!entry) return kvl_bag_fail_memory(b);
    for (int32_t i = 0; i < s->n_words; i++) {
        int32_t times = (int32_t)floor(size * fwe_share(s, i + 1));
        for (int32_t k = 0; k < times; k++) entry[n++] = i;
    }
    kvl_rng_shuffle(&rng, entry, n);
    int32_t noise = 0; /* comes first: at a line start vocabularies have other tokens for words */
    while (entry[noise] != 0) noise++;
    entry[noise] = entry[0];
    entry[0] = 0;
    int rc = fwe_print(b, entry, n);
    kvl_free(entry);
    return rc == KVL_OK ? rc : kvl_bag_fail_memory(b);
}

/* ---- the task ---------------------------------------------------------------------------------- */

static int fwe_open(struct fwe_state *s, const struct kvl_task_request *req, struct kvl_err *err)
{
    struct kvl_rng rng;
    int32_t asked = s->opts->asked, most = s->opts->words == FWE_CODED ? FWE_WORDS : KVL_BAG_WORDS;
    s->zeta = fwe_zeta(s->opts->alpha);
    s->n_words = KVL_MAX(req->length_tok / FWE_WORD_TOK, 2 * asked + 2);
    s->n_words = KVL_MIN(s->n_words, most + 1);
    s->word = kvl_alloc((size_t)s->n_words, sizeof *s->word);
    if (!s->word)
        return kvl_fail(err, KVL_ENOMEM, "a context of %d tokens: out of memory", req->length_tok);
    kvl_rng_seed(&rng, kvl_seed_str(req->seed, "words"));
    kvl_rng_seed(&s->rng, kvl_seed_str(req->seed, "text"));
    fwe_draw_words(s, &rng);
    return KVL_OK;
}

static int fwe_build(struct fwe_state *s, const struct kvl_task_request *req,
                     struct kvl_sample *out, struct kvl_err *err)
{
    static const char *const question[KVL_TEXT_WORDINGS] = { fwe_question, fwe_question_2,
                                                             fwe_question_3 };
    struct kvl_bag bag = { .req = req,
                           .err = err,
                           .intro = fwe_intro,
                           .question = question[s->opts->wording - 1],
                           .asked = s->opts->asked,
                           .least = fwe_least(s),
                           .max_new = s->opts->max_new,
                           .of = s,
                           .write = fwe_write };
    for (int32_t i = 0; i < bag.asked; i++) memcpy(bag.part[i], s->word[i + 1], sizeof bag.part[i]);
    int rc = kvl_bag_generate(&bag, out);
    kvl_buf_free(&bag.text);
    return rc;
}

static int fwe_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                        struct kvl_err *err)
{
    struct kvl_err why = { 0 };
    struct fwe_state s = { .opts = req->opts };
    int rc = kvl_fit_check(req, &why);
    if (rc == KVL_OK) rc = fwe_open(&s, req, &why);
    if (rc == KVL_OK) rc = fwe_build(&s, req, out, &why);
    kvl_free(s.word);
    return rc == KVL_OK ? rc : kvl_fail(err, rc, "fwe: %s", why.msg);
}

/* Official: the share of the words that are a substring (RULER). */
static void fwe_score(const struct kvl_question *q, const char *prediction,
                      struct kvl_task_score *out)
{
    *out = (struct kvl_task_score){ .official = kvl_parts_official(q->gold, prediction),
                                    .strict = kvl_parts_strict(q->gold, prediction, false) };
}

/* The expected share of the words in an answer of as many random ones. */
static double fwe_chance(const void *opts)
{
    const struct fwe_opts *o = opts;
    if (o->words == FWE_PLAIN) return (double)o->asked / KVL_BAG_WORDS;
    return o->asked * pow(FWE_LETTERS_ALL, -FWE_LETTERS);
}

static const struct kvl_task fwe = {
    .abi = KVL_TASK_ABI,
    .size = sizeof fwe,
    .name = "fwe",
    .title = "Frequent words",
    .paper = "Hsieh et al. 2024 (RULER: fwe)",
    .help = "a text of words with Zipf-like frequencies and noise: give the most frequent words",
    .version = 1,
    .opts = fwe_options,
    .opts_size = sizeof(struct fwe_opts),
    .generate = fwe_generate,
    .score = fwe_score,
    .chance = fwe_chance,
};

KVL_TASK_EXPORT(fwe)
