/* needle_latent: facts whose questions share no word with them.
 *
 * After NoLiMa (Modarressi et al. 2025): who lives next to the Eiffel Tower has been to France.  Words that are the
 * same in question and fact let attention find the fact by matching; here it has to know what belongs to what.
 * Wording, places and filler are our own.
 *
 *     intro \n sentence ... Anna lives next to the Eiffel Tower. ... sentence \n | question -> " Anna"
 *
 * Evidence: group 0 is the place (which the question means), group 1 the name.  A model that does not know where the
 * places are cannot answer, whatever the cache keeps: compare with `direct=true`, which names the place.
 */
#include "fit.h"

#include <string.h>

KVL_PHRASE(latent_intro,
           "Below is a text in which people are mentioned. Remember who lives where.");
KVL_PHRASE(latent_item, "{name} lives next to {place}.");
KVL_PHRASE(latent_question, "Which person stays in {country}? The person is");
KVL_PHRASE(latent_direct, "Which person lives next to {place}? The person is");

static const struct {
    const char *place, *country;
} latent_places[] = {
    { "the Eiffel Tower", "France" },
    { "the Colosseum", "Italy" },
    { "the Brandenburg Gate", "Germany" },
    { "the Acropolis", "Greece" },
    { "the Kremlin", "Russia" },
    { "Big Ben", "England" },
    { "the Taj Mahal", "India" },
    { "the Great Pyramid of Giza", "Egypt" },
    { "Mount Fuji", "Japan" },
    { "Machu Picchu", "Peru" },
    { "the Statue of Liberty", "America" },
    { "the Sydney Opera House", "Australia" },
    { "the Sagrada Familia", "Spain" },
    { "the Forbidden City", "China" },
    { "the Blue Mosque", "Turkey" },
    { "the Petronas Towers", "Malaysia" },
};

enum { LATENT_FACTS = sizeof latent_places / sizeof *latent_places };

struct latent_opts {
    int32_t facts;
    bool direct;
};

static const struct kvl_opt latent_options[] = {
    { .name = "facts",
      .type = KVL_OPT_INT,
      .off = offsetof(struct latent_opts, facts),
      .def = "4",
      .min = 1,
      .max = LATENT_FACTS,
      .help = "people in a context, of different places; questions ask for one each" },
    { .name = "direct",
      .type = KVL_OPT_BOOL,
      .off = offsetof(struct latent_opts, direct),
      .def = "false",
      .help = "questions name the place itself: what is lost without that word is the difference" },
    { 0 },
};

struct latent {
    const struct kvl_task_request *req;
    struct kvl_err *err;
    const struct latent_opts *opts;
    int32_t place[LATENT_FACTS];
    const char *name[LATENT_FACTS];
    struct kvl_buf text[LATENT_FACTS];
    struct kvl_fit_item item[LATENT_FACTS];
};

static int latent_memory(const struct latent *s)
{
    return kvl_fail(s->err, KVL_ENOMEM, "a context of %d tokens: out of memory",
                    s->req->length_tok);
}

static void latent_draw(struct latent *s, struct kvl_rng *rng)
{
    int32_t order[256], n_words;
    const char *const *words = kvl_text_words(&kvl_text_english, "name", 4, &n_words);
    n_words = KVL_MIN(n_words, 256);
    for (int32_t i = 0; i < n_words; i++) order[i] = i;
    kvl_rng_shuffle(rng, order, n_words);
    for (int32_t i = 0; i < s->opts->facts; i++) s->name[i] = words[order[i]];
    for (int32_t i = 0; i < LATENT_FACTS; i++) s->place[i] = i;
    kvl_rng_shuffle(rng, s->place, LATENT_FACTS);
}

/* One in each equal part of the context, in random order; with a depth, item 0 lies there. */
static int latent_place(struct latent *s)
{
    struct kvl_rng rng;
    int32_t at[LATENT_FACTS], n = s->opts->facts;
    kvl_rng_seed(&rng, kvl_seed_str(s->req->seed, "items"));
    latent_draw(s, &rng);
    kvl_fit_strata(&rng, s->req->length_tok, at, n);
    kvl_rng_shuffle(&rng, at, n);
    for (int32_t i = 0; i < n; i++) {
        const struct kvl_text_field field[] = { { "name", s->name[i] },
                                                { "place", latent_places[s->place[i]].place } };
        if (kvl_text_fill(latent_item, field, 2, &s->text[i]) != KVL_OK) return latent_memory(s);
        s->item[i] = (struct kvl_fit_item){ .text = s->text[i].data, .len = s->text[i].len };
        s->item[i].at = i == 0 && s->req->depth >= 0.0 ? kvl_fit_position(s->req) : at[i];
    }
    return KVL_OK;
}

static struct kvl_evidence latent_evidence(const struct latent *s, int32_t i, const char *text)
{
    size_t begin = s->item[i].begin + (size_t)(strstr(s->text[i].data, text) - s->text[i].data);
    return (struct kvl_evidence){ .n_spans = 1, .span = { { begin, begin + strlen(text) } } };
}

static int latent_ask(const struct latent *s, int32_t i, const struct kvl_tokens *context,
                      struct kvl_question *q)
{
    struct kvl_buf text = { 0 }, answer = { 0 }, gold = { 0 };
    const char *place = latent_places[s->place[i]].place;
    const struct kvl_text_field field[] = { { "place", place },
                                            { "country", latent_places[s->place[i]].country } };
    int rc = kvl_text_fill(s->opts->direct ? latent_direct : latent_question, field, 2, &text);
    if (rc == KVL_OK) rc = kvl_buf_printf(&answer, " %s", s->name[i]);
    if (rc == KVL_OK) rc = kvl_buf_adds(&gold, s->name[i]);
    *q = (struct kvl_question){ .text = text.data, .answer = answer.data, .gold = gold.data };
    if (rc != KVL_OK) return latent_memory(s);
    KVL_TRY(kvl_fit_count(s->req->tokenizer, q->answer, answer.len, &q->max_new_tok, s->err));
    q->max_new_tok += KVL_FIT_END_TOK;
    q->evidence[0] = latent_evidence(s, i, place);
    q->evidence[1] = latent_evidence(s, i, s->name[i]);
    q->n_evidence = 2;
    q->depth = kvl_fit_depth(context, q);
    return KVL_OK;
}

static int latent_build(struct latent *s, struct kvl_sample *out)
{
    const struct kvl_task_request *req = s->req;
    KVL_TRY(kvl_fit_check(req, s->err));
    if (req->n_questions > s->opts->facts)
        return kvl_fail(s->err, KVL_EINVAL,
                        "%d questions with facts=%d, want facts=%d or fewer questions",
                        req->n_questions, s->opts->facts, req->n_questions);
    if (s->opts->facts > req->length_tok)
        return kvl_fail(s->err, KVL_EINVAL, "length %d is too short for %d facts", req->length_tok,
                        s->opts->facts);
    KVL_TRY(latent_place(s));
    struct kvl_fit fit = { .tokenizer = req->tokenizer,
                           .length_tok = req->length_tok,
                           .seed = kvl_seed_str(req->seed, "filler"),
                           .text = &kvl_text_english,
                           .intro = latent_intro,
                           .item = s->item,
                           .n_items = s->opts->facts };
    KVL_TRY(kvl_fit_sample(&fit, req->n_questions, out, s->err));
    for (int32_t i = 0; i < out->n_questions; i++)
        KVL_TRY(latent_ask(s, i, &out->tokens, &out->question[i]));
    return KVL_OK;
}

static int needle_latent_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                                  struct kvl_err *err)
{
    struct latent s = { .req = req, .err = err, .opts = req->opts };
    struct kvl_sample sample = { 0 };
    int rc = latent_build(&s, &sample);
    for (int32_t i = 0; i < LATENT_FACTS; i++) kvl_buf_free(&s.text[i]);
    if (rc == KVL_OK)
        *out = sample;
    else
        kvl_sample_free(&sample);
    return rc == KVL_OK ? rc : kvl_fail_at(err, rc, "needle_latent");
}

/* Official: the name is a substring (NoLiMa).  Strict: it comes first, and no letter follows. */
static void needle_latent_score(const struct kvl_question *q, const char *prediction,
                                struct kvl_task_score *out)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    const char *s = prediction + strspn(prediction, KVL_FIT_BLANK);
    size_t len = strlen(q->gold);
    bool first = strncmp(s, q->gold, len) == 0 && strspn(s + len, letters) == 0;
    *out =
        (struct kvl_task_score){ .official = strstr(prediction, q->gold) != NULL, .strict = first };
}

static double needle_latent_chance(const void *opts)
{
    return 1.0 / ((const struct latent_opts *)opts)->facts;
}

static const struct kvl_task needle_latent = {
    .abi = KVL_TASK_ABI,
    .size = sizeof needle_latent,
    .name = "needle_latent",
    .title = "Needles that share no word with their question",
    .paper = "Modarressi et al., NoLiMa, ICML 2025",
    .help = "people who live next to sights, hidden in filler text: give the one in a country",
    .version = 1,
    .opts = latent_options,
    .opts_size = sizeof(struct latent_opts),
    .generate = needle_latent_generate,
    .score = needle_latent_score,
    .chance = needle_latent_chance,
};

KVL_TASK_EXPORT(needle_latent)
