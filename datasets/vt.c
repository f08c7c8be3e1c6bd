/* Variable tracking: chains of keys that take their value from one another, all keys of a value asked
 * for.
 *
 * RULER's vt (Hsieh et al. 2024): 1 chain of 4 hops, that is 5 variables.  Differs in that variables are
 * names and cities in place of five random capitals, a statement is a sentence of our own wording,
 * filler does not repeat, there is no example in front (RULER always has one), and the length is exact
 * in tokens.  The expected answer has the keys in the order of the chain; both scorers take any order.
 *
 *     intro \n sentence ... The value of Anna is 12345. ... The value of Ulm is the value of Anna. ... \n
 *     | question -> " Anna, Ulm, Boris, Clara, Zell"
 *
 * Evidence: the statements of the chain, each from the step on at which the key before it was said.
 */
#include <stdio.h>
#include <string.h>

#include "scatter.h"

KVL_PHRASE(vt_intro, "Some keys with values are hidden in the text below. Find them and remember "
                     "the keys of each value.");
KVL_PHRASE(vt_item_first, "The value of {key} is {value}.");
KVL_PHRASE(vt_item, "The value of {key} is the value of {other}.");
KVL_PHRASE(vt_question,
           "What are the keys of the value {value}? The keys of the value {value} are");
KVL_PHRASE(vt_question_2, "Tell me the keys of the value {value}. The keys are");
KVL_PHRASE(vt_question_3, "Look up the value {value} in the text. It is the value of");

enum {
    VT_NAMES = 62, /* names and cities that there are */
    VT_FIRST = 10000,
    VT_VALUES = 90000, /* of five digits, as in RULER */
};

struct vt_opts {
    int32_t chains, hops, wording, max_new;
    char prose[KVL_OPT_PATH_SIZE];
};

static const struct kvl_opt vt_options[] = {
    { .name = "chains",
      .type = KVL_OPT_INT,
      .off = offsetof(struct vt_opts, chains),
      .def = "1",
      .min = 1,
      .max = VT_NAMES,
      .help = "chains with different values; questions ask for one each (RULER: 1)" },
    { .name = "hops",
      .type = KVL_OPT_INT,
      .off = offsetof(struct vt_opts, hops),
      .def = "4",
      .min = 0,
      .max = KVL_PARTS - 1,
      .help = "statements of a chain behind the first; an answer has one key more (RULER: 4)" },
    KVL_PARTS_OPTIONS(struct vt_opts),
    KVL_PROSE_OPTION(vt_opts),
    { 0 },
};

struct vt_state {
    const struct vt_opts *opts;
    char value[VT_NAMES][8]; /* of a chain */
};

/* ---- statements -------------------------------------------------------------------------------- */

static int vt_names(const struct kvl_scatter *scatter, struct kvl_rng *rng,
                    const char *name[VT_NAMES])
{
    static const char *const classes[] = { "name", "city" };
    int32_t order[VT_NAMES], n = 0;
    const char *all[VT_NAMES];
    for (size_t c = 0; c < sizeof classes / sizeof classes[0]; c++) {
        int32_t n_words;
        const char *const *words =
            kvl_text_words(&kvl_text_english, classes[c], strlen(classes[c]), &n_words);
        for (int32_t i = 0; i < n_words && n < VT_NAMES; i++) all[n++] = words[i];
    }
    if (n < VT_NAMES)
        return kvl_fail(scatter->err, KVL_EINTERNAL, "%d names and cities, want %d", n, VT_NAMES);
    for (int32_t i = 0; i < n; i++) order[i] = i;
    kvl_rng_shuffle(rng, order, n);
    for (int32_t i = 0; i < n; i++) name[i] = all[order[i]];
    return KVL_OK;
}

static bool vt_taken(const struct vt_state *s, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (strcmp(s->value[i], s->value[n]) == 0) return true;
    return false;
}

static void vt_draw_values(struct vt_state *s, struct kvl_rng *rng)
{
    for (int32_t c = 0; c < s->opts->chains; c++) do {
            uint32_t value = VT_FIRST + kvl_rng_below(rng, VT_VALUES);
            snprintf(s->value[c], sizeof s->value[c], "%u", (unsigned)value);
        } while (vt_taken(s, c));
}

/* The statement about a key: its value where the chain begins, then the key before it.  The evidence
 * goes from the key to what it takes. */
static int vt_write(struct kvl_scatter_item *item, const char *key, const char *other,
                    const char *value)
{
    const struct kvl_text_field field[] = { { "key", key },
                                            { "other", other },
                                            { "value", value } };
    const char *end = other ? other : value;
    snprintf(item->part, sizeof item->part, "%s", key);
    KVL_TRY(kvl_text_fill(other ? vt_item : vt_item_first, field, 3, &item->text));
    const char *at = strstr(item->text.data, key), *at_end = strstr(at + strlen(key), end);
    item->begin = (size_t)(at - item->text.data);
    item->end = (size_t)(at_end - item->text.data) + strlen(end);
    return KVL_OK;
}

static int vt_draw(struct kvl_scatter *scatter)
{
    struct vt_state *s = scatter->of;
    struct kvl_rng rng;
    const char *name[VT_NAMES];
    kvl_rng_seed(&rng, kvl_seed_str(scatter->req->seed, "chains"));
    KVL_TRY(vt_names(scatter, &rng, name));
    vt_draw_values(s, &rng);
    for (int32_t i = 0; i < scatter->n_groups * scatter->per_group; i++) {
        bool first = i % scatter->per_group == 0;
        if (vt_write(&scatter->item[i], name[i], first ? NULL : name[i - 1],
                     s->value[i / scatter->per_group]) != KVL_OK)
            return kvl_scatter_fail_memory(scatter);
    }
    return KVL_OK;
}

static int vt_ask(const struct kvl_scatter *scatter, int32_t first, struct kvl_buf *text)
{
    static const char *const question[KVL_TEXT_WORDINGS] = { vt_question, vt_question_2,
                                                             vt_question_3 };
    const struct vt_state *s = scatter->of;
    const struct kvl_text_field field = { "value", s->value[first] };
    return kvl_text_fill(question[s->opts->wording - 1], &field, 1, text);
}

/* ---- the task ------------------------------------------------------------------------------------ */

static int vt_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                       struct kvl_err *err)
{
    const struct vt_opts *o = req->opts;
    struct vt_state s = { .opts = o };
    struct kvl_scatter scatter = { .req = req,
                                   .err = err,
                                   .intro = vt_intro,
                                   .prose = o->prose,
                                   .n_groups = o->chains,
                                   .per_group = o->hops + 1,
                                   .asked = 1,
                                   .option = "chains",
                                   .quote = "",
                                   .max_new = o->max_new,
                                   .of = &s,
                                   .draw = vt_draw,
                                   .ask = vt_ask };
    int32_t keys = o->chains * (o->hops + 1);
    if (keys > VT_NAMES)
        return kvl_fail(err, KVL_EINVAL,
                        "vt: chains=%d with hops=%d need %d different keys, want at most %d",
                        o->chains, o->hops, keys, VT_NAMES);
    int rc = kvl_scatter_generate(&scatter, out);
    return rc == KVL_OK ? rc : kvl_fail_at(err, rc, "vt");
}

/* Official: the share of the keys that are a substring (RULER). */
static void vt_score(const struct kvl_question *q, const char *prediction,
                     struct kvl_task_score *out)
{
    *out = (struct kvl_task_score){ .official = kvl_parts_official(q->gold, prediction),
                                    .strict = kvl_parts_strict(q->gold, prediction, false) };
}

/* The expected share of the keys in an answer of as many random ones. */
static double vt_chance(const void *opts)
{
    const struct vt_opts *o = opts;
    return (double)(o->hops + 1) / VT_NAMES;
}

static const struct kvl_task vt = {
    .abi = KVL_TASK_ABI,
    .size = sizeof vt,
    .name = "vt",
    .title = "Variable tracking",
    .paper = "Hsieh et al. 2024 (RULER: vt)",
    .help =
        "keys that take their value from one another, scattered over filler text: give all keys of "
        "a value",
    .version = 1,
    .opts = vt_options,
    .opts_size = sizeof(struct vt_opts),
    .generate = vt_generate,
    .score = vt_score,
    .chance = vt_chance,
};

KVL_TASK_EXPORT(vt)
