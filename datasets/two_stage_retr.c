/* 2StageRetr: a list gives a color to every number; the color of a sum is asked for.
 *
 * OmniKV (Hao et al. 2025): the entry that is needed is not known before the model has worked out the
 * sum, so what a policy keeps for the question alone is no help.  As published the keys are 0, 1, 2 ..., the
 * 23 colors are uniform and the sum a + b is always a key, a uniform in 0..sum.  Differs in that the wording
 * is our own, an entry stands on a line of its own (published: a Python dictionary on one line) and the
 * list fills the context (published: 40 to 200 entries).
 *
 *     intro \n [sentences \n] 0: red \n 1: teal \n ... 311: olive \n | question -> " 122. The color is teal."
 *
 * Evidence, in order of use: group 0 is the key of the entry, group 1 its color; where the model says
 * the sum first, both only once it has said it.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "list.h"

KVL_PHRASE(two_stage_intro, "Below is a list of numbers with a color for each. First add, then "
                            "look up the color of the sum.");
KVL_PHRASE(two_stage_item, "{key}: {color}");
KVL_PHRASE(two_stage_question, "What is the color of {a} + {b}? The sum is");
KVL_PHRASE(two_stage_question_2, "Add {a} and {b} and look up the color. The sum is");
KVL_PHRASE(two_stage_question_3, "Which color belongs to {a} + {b}? The sum is");
KVL_PHRASE(two_stage_direct, "What is the color of {a} + {b}? The color is");
KVL_PHRASE(two_stage_direct_2, "Add {a} and {b} and look up the color. The color is");
KVL_PHRASE(two_stage_direct_3, "Which color belongs to {a} + {b}? The color is");
KVL_PHRASE(two_stage_answer, " {sum}. The color is {color}.");

enum {
    TWO_STAGE_ENTRIES = 1 << 20,
    TWO_STAGE_NUMBERS = 1000, /* that random keys are drawn from, at least */
    TWO_STAGE_MAX_NEW = 4096,
    TWO_STAGE_NUMBER = 16, /* bytes of a number and a NUL */
    TWO_STAGE_WORD = 64,   /* bits */
};

struct two_stage_opts {
    int32_t entries, keys, answer, wording, max_new;
};

enum { TWO_STAGE_CONSECUTIVE, TWO_STAGE_RANDOM };
static const char *const two_stage_keys[] = { "consecutive", "random", NULL };

enum { TWO_STAGE_COT, TWO_STAGE_DIRECT };
static const char *const two_stage_answers[] = { "cot", "direct", NULL };

static const struct kvl_opt two_stage_options[] = {
    { .name = "entries",
      .type = KVL_OPT_INT,
      .off = offsetof(struct two_stage_opts, entries),
      .def = "auto",
      .min = 1,
      .max = TWO_STAGE_ENTRIES,
      .help = "entries in the list; auto fills the context (OmniKV: 40 to 200)" },
    { .name = "keys",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct two_stage_opts, keys),
      .def = "consecutive",
      .choices = two_stage_keys,
      .help = "consecutive: 0, 1, 2 ... (OmniKV); random: different numbers in random order" },
    { .name = "answer",
      .type = KVL_OPT_ENUM,
      .off = offsetof(struct two_stage_opts, answer),
      .def = "cot",
      .choices = two_stage_answers,
      .help = "cot: the model says the sum, then the color; direct: the color at once" },
    { .name = "wording",
      .type = KVL_OPT_INT,
      .off = offsetof(struct two_stage_opts, wording),
      .def = "1",
      .min = 1,
      .max = KVL_TEXT_WORDINGS,
      .help = "which wording of the question" },
    { .name = "max_new",
      .type = KVL_OPT_INT,
      .off = offsetof(struct two_stage_opts, max_new),
      .def = "auto",
      .min = 1,
      .max = TWO_STAGE_MAX_NEW,
      .help = "tokens that an answer may take; auto: the expected answer and 2; models that answer "
              "in their own words need more (OmniKV: 200)" },
    { 0 },
};

struct two_stage_state {
    const struct two_stage_opts *opts;
    struct kvl_rng rng; /* of the entries */
    uint64_t *taken;    /* [n_numbers / 64] bits: random keys that are in the list */
    int32_t n_numbers;  /* random keys are below */
};

/* ---- the list ------------------------------------------------------------------------------ */

/* Numbers for random keys: a power of ten, so that most keys are as long as the longest, and twice the
 * entries or more, as far as one knows (an entry takes about five tokens). */
static int two_stage_open_set(const struct kvl_list *l)
{
    struct two_stage_state *s = l->task;
    int64_t n = TWO_STAGE_NUMBERS,
            least = l->wanted == KVL_AUTO ? l->most / 2 : 2 * (int64_t)l->most;
    while (n < least) n *= 10;
    s->n_numbers = (int32_t)KVL_MIN(n, INT32_MAX - 1);
    s->taken = kvl_alloc((size_t)s->n_numbers / TWO_STAGE_WORD + 1, sizeof *s->taken);
    return s->taken ? KVL_OK : kvl_list_fail_memory(l);
}

/* A number that is no key yet. */
static int two_stage_draw_key(const struct kvl_list *l, uint32_t *out)
{
    struct two_stage_state *s = l->task;
    if (!s->taken) KVL_TRY(two_stage_open_set(l));
    if (l->n >= s->n_numbers)
        return kvl_fail(l->err, KVL_EINVAL, "%d entries use up the keys below %d, want fewer", l->n,
                        s->n_numbers);
    for (;;) {
        uint32_t key = kvl_rng_below(&s->rng, (uint32_t)s->n_numbers);
        uint64_t bit = (uint64_t)1 << (key % TWO_STAGE_WORD);
        if (s->taken[key / TWO_STAGE_WORD] & bit) continue;
        s->taken[key / TWO_STAGE_WORD] |= bit;
        *out = key;
        return KVL_OK;
    }
}

static const char *const *two_stage_colors(int32_t *n)
{
    return kvl_text_words(&kvl_text_english, "color", strlen("color"), n);
}

static int two_stage_next(struct kvl_list *l)
{
    struct two_stage_state *s = l->task;
    char key[TWO_STAGE_NUMBER];
    uint32_t number = (uint32_t)l->n;
    int32_t n_colors;
    struct kvl_list_entry e;
    const char *const *color = two_stage_colors(&n_colors);
    if (s->opts->keys == TWO_STAGE_RANDOM) KVL_TRY(two_stage_draw_key(l, &number));
    snprintf(key, sizeof key, "%u", (unsigned)number);
    return kvl_list_add(l, key, color[kvl_rng_below(&s->rng, (uint32_t)n_colors)], &e);
}

/* ---- questions ----------------------------------------------------------------------------- */

static const char *const two_stage_wording[2][KVL_TEXT_WORDINGS] = {
    [TWO_STAGE_COT] = { two_stage_question, two_stage_question_2, two_stage_question_3 },
    [TWO_STAGE_DIRECT] = { two_stage_direct, two_stage_direct_2, two_stage_direct_3 },
};

static uint32_t two_stage_number(const char *digits, size_t n)
{
    uint32_t value = 0;
    for (size_t i = 0; i < n; i++) value = value * 10 + (uint32_t)(digits[i] - '0');
    return value;
}

static int two_stage_ask(const struct kvl_list *l, const struct kvl_list_entry *e,
                         int32_t i_question, struct kvl_list_words *out)
{
    const struct two_stage_state *s = l->task;
    const struct two_stage_opts *o = s->opts;
    char a[TWO_STAGE_NUMBER], b[TWO_STAGE_NUMBER], sum[TWO_STAGE_NUMBER];
    struct kvl_rng rng; /* one per question: others, and attempts before, do not matter */
    kvl_rng_seed(&rng, kvl_seed_mix(kvl_seed_str(l->req->seed, "sums"), (uint64_t)i_question));
    uint32_t value = two_stage_number(l->text.data + e->key, e->n_key);
    uint32_t first = kvl_rng_below(&rng, value + 1);
    snprintf(sum, sizeof sum, "%u", (unsigned)value);
    snprintf(a, sizeof a, "%u", (unsigned)first);
    snprintf(b, sizeof b, "%u", (unsigned)(value - first));
    KVL_TRY(kvl_buf_add(&out->gold, l->text.data + e->value, e->n_value));
    const struct kvl_text_field field[] = {
        { "a", a }, { "b", b }, { "sum", sum }, { "color", out->gold.data }
    };
    KVL_TRY(kvl_text_fill(two_stage_wording[o->answer][o->wording - 1], field, 4, &out->text));
    out->max_new = o->max_new;
    if (o->answer == TWO_STAGE_DIRECT) return kvl_buf_printf(&out->answer, " %s", out->gold.data);
    snprintf(out->after, sizeof out->after, "%s", sum);
    return kvl_text_fill(two_stage_answer, field, 4, &out->answer);
}

static int two_stage_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                              struct kvl_err *err)
{
    struct kvl_err why = { 0 };
    struct two_stage_state s = { .opts = req->opts };
    struct kvl_list list = { .req = req,
                             .err = &why,
                             .intro = two_stage_intro,
                             .item = two_stage_item,
                             .key = "key",
                             .value = "color",
                             .before_first = "",
                             .before = "",
                             .after = "\n",
                             .end = "",
                             .many = "entries",
                             .wanted = s.opts->entries,
                             .task = &s,
                             .next = two_stage_next,
                             .ask = two_stage_ask };
    kvl_rng_seed(&s.rng, kvl_seed_str(req->seed, "entries"));
    int rc = kvl_list_generate(&list, out);
    kvl_free(s.taken);
    return rc == KVL_OK ? rc : kvl_fail(err, rc, "two_stage_retr: %s", why.msg);
}

/* ---- scores -------------------------------------------------------------------------------- */

/* Not the C library's: its letters depend on the locale. */
static char two_stage_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool two_stage_in_word(char c)
{
    c = two_stage_lower(c);
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
}

/* Whether the word (lower case) stands at s, whatever the case there. */
static bool two_stage_match(const char *s, const char *word)
{
    while (*word && two_stage_lower(*s) == *word) s++, word++;
    return !*word;
}

/* The same, and no letter or digit before or after it; `text` is where s begins. */
static bool two_stage_stands(const char *text, const char *s, const char *word)
{
    return two_stage_match(s, word) && (s == text || !two_stage_in_word(s[-1])) &&
           !two_stage_in_word(s[strlen(word)]);
}

static bool two_stage_contains(const char *text, const char *word)
{
    for (const char *s = text; *s; s++)
        if (two_stage_match(s, word)) return true;
    return false;
}

/* What follows the last place where the number stands, NULL = nowhere. */
static const char *two_stage_behind(const char *text, const char *number)
{
    const char *behind = NULL;
    for (const char *s = text; *s; s++)
        if (two_stage_stands(text, s, number)) behind = s + strlen(number);
    return behind;
}

/* The first or last color that stands as a word at `from` or later; NULL = none. */
static const char *two_stage_color(const char *text, const char *from, bool last)
{
    int32_t n;
    const char *found = NULL, *const *color = two_stage_colors(&n);
    for (const char *s = from; *s && (last || !found); s++)
        for (int32_t i = 0; i < n; i++)
            if (two_stage_stands(text, s, color[i])) found = color[i];
    return found;
}

static bool two_stage_is(const char *color, const char *gold)
{
    return color && strcmp(color, gold) == 0;
}

/* Whether the sum was to be said is seen by the expected answer, which has it. */
static bool two_stage_sum(const struct kvl_question *q, char sum[TWO_STAGE_NUMBER])
{
    static const char digits[] = "0123456789";
    const char *s = q->answer + strcspn(q->answer, digits);
    size_t n = strspn(s, digits);
    assert(n < TWO_STAGE_NUMBER);
    memcpy(sum, s, n);
    sum[n] = '\0';
    return n > 0;
}

/* Official: the color is a substring, whatever the case.  Strict: the color is a word of its own and the
 * last one after the sum, or the first one at all where no sum is asked for. */
static void two_stage_score(const struct kvl_question *q, const char *prediction,
                            struct kvl_task_score *out)
{
    char sum[TWO_STAGE_NUMBER];
    bool cot = two_stage_sum(q, sum);
    const char *behind = cot ? two_stage_behind(prediction, sum) : prediction;
    bool color = two_stage_is(two_stage_color(prediction, prediction, cot), q->gold);
    struct kvl_task_score score = {
        .official = two_stage_contains(prediction, q->gold),
        .strict = behind && two_stage_is(two_stage_color(prediction, behind, cot), q->gold)
    };
    if (cot) score.sub[score.n_sub++] = (struct kvl_task_sub){ "sum", behind != NULL };
    score.sub[score.n_sub++] = (struct kvl_task_sub){ "color", color };
    *out = score;
}

static double two_stage_chance(const void *opts)
{
    int32_t n;
    (void)opts;
    two_stage_colors(&n);
    return 1.0 / n;
}

static const struct kvl_task two_stage_retr = {
    .abi = KVL_TASK_ABI,
    .size = sizeof two_stage_retr,
    .name = "two_stage_retr",
    .title = "2StageRetr",
    .paper = "Hao et al. 2025 (OmniKV)",
    .help = "a list gives colors to numbers: work out a sum, then find its color",
    .version = 1,
    .opts = two_stage_options,
    .opts_size = sizeof(struct two_stage_opts),
    .generate = two_stage_generate,
    .score = two_stage_score,
    .chance = two_stage_chance,
};

KVL_TASK_EXPORT(two_stage_retr)
