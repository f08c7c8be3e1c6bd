/* Needles with keys and values between filler: draw, ask. */
#include "niah.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

KVL_PHRASE(niah_intro, "A magic value is hidden in the text below. Find it and remember it.");
KVL_PHRASE(niahs_intro,
           "Some magic values are hidden in the text below. Find them and remember them.");
KVL_PHRASE(niah_item, "The magic value of {key} is {value}.");
KVL_PHRASE(niah_item_uuid_value, "The magic value of {key} is \"{value}\".");
KVL_PHRASE(niah_item_uuid_key, "The magic value of \"{key}\" is {value}.");
KVL_PHRASE(niah_item_uuids, "The magic value of \"{key}\" is \"{value}\".");
KVL_PHRASE(niah_question, "What is the magic value of {key}? The magic value of {key} is");
KVL_PHRASE(niah_question_2, "Tell me the magic value of {key}. The magic value of {key} is");
KVL_PHRASE(niah_question_3, "Which magic value belongs to {key}? It is");
KVL_PHRASE(niahs_question, "What are the magic values of {key}? The magic values of {key} are");
KVL_PHRASE(niahs_question_2, "Tell me the magic values of {key}. The magic values are");
KVL_PHRASE(niahs_question_3, "Look up {key} in the text. The magic values are");

enum { NIAH_UUID = 36, NIAH_UUID_BITS = 122 };

const char *const kvl_niah_types[] = { "words", "numbers", "uuids", NULL };

/* ---- keys and values ------------------------------------------------------------------------- */

static const char *niah_word(struct kvl_rng *rng, const char *word_class)
{
    int32_t n;
    const char *const *words =
        kvl_text_words(&kvl_text_english, word_class, strlen(word_class), &n);
    return words[kvl_rng_below(rng, (uint32_t)n)];
}

/* Version 4: random but for two digits (8-4-4-4-12, the third part begins with 4, the fourth with 8, 9, a
 * or b). */
static void niah_uuid(struct kvl_rng *rng, char *out)
{
    for (int32_t i = 0; i < NIAH_UUID; i++) {
        uint32_t digit = kvl_rng_below(rng, 16);
        if (i == 14) digit = 4;
        if (i == 19) digit = 8 + digit % 4;
        out[i] = "0123456789abcdef"[digit];
        if (i == 8 || i == 13 || i == 18 || i == 23) out[i] = '-';
    }
    out[NIAH_UUID] = '\0';
}

void kvl_niah_value(struct kvl_rng *rng, enum kvl_niah_type type, char out[KVL_PART_SIZE])
{
    if (type == KVL_NIAH_UUIDS) {
        niah_uuid(rng, out);
    } else if (type == KVL_NIAH_NUMBERS) {
        uint32_t number = KVL_NIAH_FIRST + kvl_rng_below(rng, KVL_NIAH_NUMBERS_ALL);
        snprintf(out, KVL_PART_SIZE, "%u", (unsigned)number);
    } else {
        const char *adj = niah_word(rng, "adj");
        snprintf(out, KVL_PART_SIZE, "%s %s", adj, niah_word(rng, "noun"));
    }
}

const char *kvl_niah_quote(enum kvl_niah_type type)
{
    return type == KVL_NIAH_UUIDS ? "\"" : "";
}

const char *kvl_niah_item(enum kvl_niah_type key, enum kvl_niah_type value)
{
    static const char *const item[2][2] = {
        { niah_item, niah_item_uuid_value },
        { niah_item_uuid_key, niah_item_uuids },
    };
    return item[key == KVL_NIAH_UUIDS][value == KVL_NIAH_UUIDS];
}

const char *kvl_niah_question(int32_t wording, bool many)
{
    static const char *const question[2][KVL_TEXT_WORDINGS] = {
        { niah_question, niah_question_2, niah_question_3 },
        { niahs_question, niahs_question_2, niahs_question_3 },
    };
    return question[many][wording - 1];
}

/* ---- needles --------------------------------------------------------------------------------- */

struct niah_state {
    const struct kvl_niah *niah;
    struct kvl_rng rng;
    char key[KVL_NIAH_KEYS][KVL_PART_SIZE];
};

/* Draws until it is none of those before. */
static void niah_draw_key(struct niah_state *s, int32_t i)
{
    char value[KVL_PART_SIZE];
    bool taken;
    do {
        kvl_niah_value(&s->rng, s->niah->key, value);
        snprintf(s->key[i], sizeof s->key[i], "%s%.*s",
                 s->niah->key == KVL_NIAH_WORDS ? "the " : "", KVL_PART_SIZE - 5, value);
        taken = false;
        for (int32_t k = 0; k < i && !taken; k++) taken = strcmp(s->key[k], s->key[i]) == 0;
    } while (taken);
}

static void niah_draw_value(struct niah_state *s, struct kvl_scatter_item *item, int32_t i)
{
    bool taken;
    do {
        kvl_niah_value(&s->rng, s->niah->value, item[i].part);
        taken = false;
        for (int32_t k = 0; k < i && !taken; k++) taken = strcmp(item[k].part, item[i].part) == 0;
    } while (taken);
}

static int niah_draw(struct kvl_scatter *scatter)
{
    struct niah_state *s = scatter->of;
    const char *phrase = kvl_niah_item(s->niah->key, s->niah->value);
    for (int32_t k = 0; k < s->niah->keys; k++) niah_draw_key(s, k);
    for (int32_t i = 0; i < s->niah->keys * s->niah->values; i++) {
        struct kvl_scatter_item *item = &scatter->item[i];
        const char *key = s->key[i / s->niah->values];
        niah_draw_value(s, scatter->item, i);
        const struct kvl_text_field field[] = { { "key", key }, { "value", item->part } };
        if (kvl_text_fill(phrase, field, 2, &item->text) != KVL_OK)
            return kvl_scatter_fail_memory(scatter);
        const char *behind = strstr(item->text.data, key) + strlen(key);
        item->begin = (size_t)(strstr(behind, item->part) - item->text.data);
        item->end = item->begin + strlen(item->part);
    }
    return KVL_OK;
}

/* ---- questions ------------------------------------------------------------------------------- */

static int niah_ask(const struct kvl_scatter *scatter, int32_t first, struct kvl_buf *text)
{
    const struct niah_state *s = scatter->of;
    const struct kvl_niah *o = s->niah;
    const char *quote = kvl_niah_quote(o->key);
    struct kvl_buf keys = { 0 };
    int rc = KVL_OK;
    for (int32_t k = 0; k < o->queries && rc == KVL_OK; k++) {
        const char *join = k == 0 ? "" : k + 1 < o->queries ? ", " : " and ";
        rc = kvl_buf_printf(&keys, "%s%s%s%s", join, quote, s->key[first + k], quote);
    }
    const struct kvl_text_field field = { "key", keys.data };
    bool many = o->queries * o->values > 1;
    if (rc == KVL_OK) rc = kvl_text_fill(kvl_niah_question(o->wording, many), &field, 1, text);
    kvl_buf_free(&keys);
    return rc;
}

static int niah_check(const struct kvl_niah *o, struct kvl_err *err)
{
    int32_t parts = o->queries * o->values;
    if (o->keys < o->queries)
        return kvl_fail(err, KVL_EINVAL, "queries=%d with keys=%d, want keys=%d or more",
                        o->queries, o->keys, o->queries);
    if (parts > KVL_PARTS)
        return kvl_fail(err, KVL_EINVAL,
                        "queries=%d with values=%d are %d values in an answer, want at most %d",
                        o->queries, o->values, parts, KVL_PARTS);
    return KVL_OK;
}

int kvl_niah_generate(const struct kvl_niah *niah, const struct kvl_task_request *req,
                      struct kvl_sample *out, struct kvl_err *err)
{
    struct niah_state s = { .niah = niah };
    struct kvl_scatter scatter = {
        .req = req,
        .err = err,
        .prose = niah->prose,
        .intro = niah->keys * niah->values > 1 ? niahs_intro : niah_intro,
        .n_groups = niah->keys,
        .per_group = niah->values,
        .asked = niah->queries,
        .option = "keys",
        .quote = kvl_niah_quote(niah->value),
        .max_new = niah->max_new,
        .of = &s,
        .draw = niah_draw,
        .ask = niah_ask,
    };
    kvl_rng_seed(&s.rng, kvl_seed_str(req->seed, "needles"));
    int rc = niah_check(niah, err);
    if (rc == KVL_OK) rc = kvl_scatter_generate(&scatter, out);
    return rc == KVL_OK ? rc : kvl_fail_at(err, rc, "%s", niah->task);
}

double kvl_niah_chance(enum kvl_niah_type type)
{
    int32_t n_adj, n_noun;
    if (type == KVL_NIAH_UUIDS) return pow(2.0, -NIAH_UUID_BITS);
    if (type == KVL_NIAH_NUMBERS) return 1.0 / KVL_NIAH_NUMBERS_ALL;
    kvl_text_words(&kvl_text_english, "adj", strlen("adj"), &n_adj);
    kvl_text_words(&kvl_text_english, "noun", strlen("noun"), &n_noun);
    return 1.0 / n_adj / n_noun;
}
