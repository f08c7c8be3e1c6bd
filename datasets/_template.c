/* template - words hidden in filler text: the smallest complete task, to copy.
 *
 * How to make a task of it (datasets/README.md has the commands):
 *   1. Copy this file to datasets/<name>.c and replace every "template" by <name>: letters, digits
 *      and underscores.  The file's name, `.name`, the object and KVL_TASK_EXPORT must agree; the
 *      build finds the file by itself (files that begin with _ are left out).
 *   2. Rewrite this comment: the paper, what is hidden and what is asked for, what is evidence, every
 *      deviation.
 *   3. Wording: one KVL_PHRASE for each text, its name beginning with the task's, with {fields} that
 *      kvl_text_fill fills.  A question ends where the model goes on with the answer; the answer
 *      prefix is its last sentence, which `n_prefix` counts.
 *   4. Options: one row each, with the published value in `help`.  Every value in range must work; what
 *      goes together with another option, the length or the number of questions is checked in
 *      `generate`: KVL_EINVAL with what is wrong, the value, and what would be right.
 *   5. `generate` is pure: all chance comes from generators that are seeded with req->seed and a word of
 *      their own, so that a change of one leaves the others alone.  It makes items (text, and where they
 *      should lie), lets kvl_fit_sample close the length exactly, and writes the questions.  Shapes that
 *      are there already:
 *        digits hidden in filler            hide.h      see passkey.c
 *        a list of keys and values          list.h      see kv_retrieval.c
 *        several parts in an answer         parts.h, scatter.h      see vt.c
 *        a text of words to be counted      bag.h       see cwe.c
 *        anything else between filler       fit.h       this file
 *      Evidence in groups, in order of use: what is read last is (of) the answer.  Of evidence that is
 *      one token, as here, recall tells little: some head of some layer reads it.
 *   6. `score`: `official` as the published scorer, `strict` wants the answer first and nothing that
 *      continues it.  `chance`: how often a guess is right.  A task that asks nothing has neither
 *      (perplexity.c).
 *   7. `version` is 1; raise it whenever bytes or scores change, else logs mix old and new samples.
 *   8. Build, run the conformance test of the task, write down what no general test can know (copy
 *      tests/unit/_task_template.c), and add it to datasets/README.md: a row of the table at its top,
 *      and a section.
 *
 * This one: every city has a word; a question asks for the word of a city.  Evidence: the word where it
 * is hidden.  Deviations: none, there is no paper.
 */
#include "fit.h"

#include <string.h>

KVL_PHRASE(template_intro, "Some words are hidden in the text below. Find them and remember them.");
KVL_PHRASE(template_item, "The word of {city} is {word}.");
KVL_PHRASE(template_question, "What is the word of {city}? The word of {city} is");

enum { MOST_WORDS = 16 };

struct template_opts {
    int32_t words;
};

static const struct kvl_opt template_options[] = {
    { .name = "words",
      .type = KVL_OPT_INT,
      .off = offsetof(struct template_opts, words),
      .def = "1",
      .min = 1,
      .max = MOST_WORDS,
      .help = "words in a context, of different cities; questions ask for one each" },
    { 0 },
};

/* ---- items ----------------------------------------------------------------------------------- */

struct template_state {
    const struct kvl_task_request *req;
    struct kvl_err *err;
    int32_t n;
    const char *city[MOST_WORDS], *word[MOST_WORDS];
    struct kvl_buf text[MOST_WORDS];
    struct kvl_fit_item item[MOST_WORDS];
};

static int template_fail_memory(const struct template_state *s)
{
    return kvl_fail(s->err, KVL_ENOMEM, "a context of %d tokens: out of memory",
                    s->req->length_tok);
}

/* Different words of a class of text/english.def. */
static void template_draw(struct kvl_rng *rng, const char *word_class, const char **out, int32_t n)
{
    int32_t order[256], n_words;
    const char *const *words =
        kvl_text_words(&kvl_text_english, word_class, strlen(word_class), &n_words);
    n_words = KVL_MIN(n_words, 256);
    for (int32_t i = 0; i < n_words; i++) order[i] = i;
    kvl_rng_shuffle(rng, order, n_words);
    for (int32_t i = 0; i < n; i++) out[i] = words[order[i]];
}

static int template_fill(const struct template_state *s, int32_t i, const char *phrase,
                         struct kvl_buf *out)
{
    const struct kvl_text_field field[] = { { "city", s->city[i] }, { "word", s->word[i] } };
    return kvl_text_fill(phrase, field, 2, out) == KVL_OK ? KVL_OK : template_fail_memory(s);
}

/* One in each equal part of the context, in random order; with a depth, item 0 lies there. */
static int template_place(struct template_state *s)
{
    struct kvl_rng rng;
    int32_t at[MOST_WORDS];
    kvl_rng_seed(&rng, kvl_seed_str(s->req->seed, "items"));
    template_draw(&rng, "city", s->city, s->n);
    template_draw(&rng, "noun", s->word, s->n);
    kvl_fit_strata(&rng, s->req->length_tok, at, s->n);
    kvl_rng_shuffle(&rng, at, s->n);
    for (int32_t i = 0; i < s->n; i++) {
        KVL_TRY(template_fill(s, i, template_item, &s->text[i]));
        s->item[i] = (struct kvl_fit_item){ .text = s->text[i].data, .len = s->text[i].len };
        s->item[i].at = i == 0 && s->req->depth >= 0.0 ? kvl_fit_position(s->req) : at[i];
    }
    return KVL_OK;
}

/* ---- questions ------------------------------------------------------------------------------- */

/* The word behind the city: another word of the item could be the same. */
static struct kvl_span template_evidence(const struct template_state *s, int32_t i)
{
    const char *text = s->text[i].data;
    const char *word = strstr(strstr(text, s->city[i]) + strlen(s->city[i]), s->word[i]);
    size_t begin = s->item[i].begin + (size_t)(word - text);
    return (struct kvl_span){ begin, begin + strlen(s->word[i]) };
}

/* The texts are the question's at once, so that the sample frees them whatever happens. */
static int template_ask(const struct template_state *s, int32_t i, const struct kvl_tokens *context,
                        struct kvl_question *q)
{
    struct kvl_buf text = { 0 }, answer = { 0 }, gold = { 0 };
    int rc = template_fill(s, i, template_question, &text);
    if (rc == KVL_OK) rc = kvl_buf_printf(&answer, " %s", s->word[i]);
    if (rc == KVL_OK) rc = kvl_buf_adds(&gold, s->word[i]);
    *q = (struct kvl_question){ .text = text.data, .answer = answer.data, .gold = gold.data };
    if (rc != KVL_OK) return template_fail_memory(s);
    q->n_prefix = kvl_text_prefix(q->text);
    KVL_TRY(kvl_fit_count(s->req->tokenizer, q->answer, answer.len, &q->max_new_tok, s->err));
    q->max_new_tok += KVL_FIT_END_TOK;
    q->evidence[0] = (struct kvl_evidence){ .n_spans = 1, .span = { template_evidence(s, i) } };
    q->n_evidence = 1;
    q->depth = kvl_fit_depth(context, q);
    return KVL_OK;
}

/* ---- the task -------------------------------------------------------------------------------- */

static int template_build(struct template_state *s, struct kvl_sample *out)
{
    const struct kvl_task_request *req = s->req;
    KVL_TRY(kvl_fit_check(req, s->err));
    if (req->n_questions > s->n)
        return kvl_fail(s->err, KVL_EINVAL,
                        "%d questions with words=%d, want words=%d or fewer questions",
                        req->n_questions, s->n, req->n_questions);
    if (s->n > req->length_tok)
        return kvl_fail(s->err, KVL_EINVAL, "length %d is too short for %d words", req->length_tok,
                        s->n);
    KVL_TRY(template_place(s));
    struct kvl_fit fit = { .tokenizer = req->tokenizer,
                           .length_tok = req->length_tok,
                           .seed = kvl_seed_str(req->seed, "filler"),
                           .text = &kvl_text_english,
                           .intro = template_intro,
                           .item = s->item,
                           .n_items = s->n };
    KVL_TRY(kvl_fit_sample(&fit, req->n_questions, out, s->err));
    for (int32_t i = 0; i < out->n_questions; i++)
        KVL_TRY(template_ask(s, i, &out->tokens, &out->question[i]));
    return KVL_OK;
}

static int template_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                             struct kvl_err *err)
{
    const struct template_opts *o = req->opts;
    struct template_state s = { .req = req, .err = err, .n = o->words };
    struct kvl_sample sample = { 0 };
    int rc = template_build(&s, &sample);
    for (int32_t i = 0; i < s.n; i++) kvl_buf_free(&s.text[i]);
    if (rc == KVL_OK)
        *out = sample;
    else
        kvl_sample_free(&sample);
    return rc == KVL_OK ? rc : kvl_fail_at(err, rc, "template");
}

/* Official: the word is a substring.  Strict: it comes first, and no letter follows. */
static void template_score(const struct kvl_question *q, const char *prediction,
                           struct kvl_task_score *out)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const char *s = prediction + strspn(prediction, KVL_FIT_BLANK);
    size_t len = strlen(q->gold);
    bool first = strncmp(s, q->gold, len) == 0 && strspn(s + len, letters) == 0;
    *out =
        (struct kvl_task_score){ .official = strstr(prediction, q->gold) != NULL, .strict = first };
}

static double template_chance(const void *opts)
{
    (void)opts;
    int32_t n_words;
    kvl_text_words(&kvl_text_english, "noun", strlen("noun"), &n_words);
    return 1.0 / n_words;
}

static const struct kvl_task template = {
    .abi = KVL_TASK_ABI,
    .size = sizeof template,
    .name = "template",
    .title = "Hidden words",
    .paper = "none (example)",
    .help = "words hidden in filler text, each of a city: find one",
    .version = 1,
    .opts = template_options,
    .opts_size = sizeof(struct template_opts),
    .generate = template_generate,
    .score = template_score,
    .chance = template_chance,
};

KVL_TASK_EXPORT(template)
