/* Edited copy: a list of names and codes, of which lines are to be copied with their codes turned around, or as they stand,
 * which models of 0.1 billion parameters can do.
 *
 * An answer of some hundred tokens that can be checked to the letter, for methods that evict while decoding: every line
 * needs its line of the context, and nothing of the answer but where it has got to.  Ours.
 *
 *     intro \n [sentences \n] name: code \n name: code ... \n | question -> \n name edoc \n name edoc ...
 *
 * Behind the last line of the list the first one comes.
 *
 * Evidence: group 0 is the name that is asked for, group 1 its code.
 */
#include "answer_lines.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

KVL_PHRASE(copy_intro, "Below is a list of names and codes. Remember all of them.");
KVL_PHRASE(copy_item, "{name}: {code}");
KVL_PHRASE(
    copy_question,
    "Begin with the line of {name} and copy {lines} lines, going on with the first line after "
    "the last one. Write each name and its code from right to left. The lines are:");
/* The answer goes on where this ends, with the lines that are shown and the next name. */
KVL_PHRASE(
    copy_plain,
    "Begin with the line of {name} and copy {lines} lines as they stand, going on with the first "
    "line after the last one. The lines are:");

enum { COPY_REVERSE = 0, COPY_NONE };
static const char *const copy_edits[] = { "reverse", "none", NULL };

enum { COPY_LETTERS = 6, COPY_DIGITS = 5, COPY_ROWS = 1 << 20 };

struct copy_opts {
    int32_t lines, rows, edit, shown;
};

static const struct kvl_opt copy_options[] = {
    { .name = "lines",
      .type = KVL_OPT_INT,
      .off = offsetof(struct copy_opts, lines),
      .def = "32",
      .min = 4,
      .max = 400,
      .help = "lines of an answer" },
    { .name = "rows",
      .type = KVL_OPT_INT,
      .off = offsetof(struct copy_opts, rows),
      .def = "auto",
      .min = 4,
      .max = COPY_ROWS,
      .help = "lines in the context; auto fills it" },
    KVL_ROW_ENUM(copy_opts, edit, "reverse", copy_edits,
                 "what becomes of a code: it is turned around, or copied"),
    { .name = "shown",
      .type = KVL_OPT_INT,
      .off = offsetof(struct copy_opts, shown),
      .def = "0",
      .min = 0,
      .max = 64,
      .help = "of edit=none: lines that stand in the question, to be gone on with" },
    { 0 },
};

struct copy_state {
    const struct copy_opts *opts;
    struct kvl_rng rng;
};

static int copy_next(struct kvl_list *l)
{
    struct copy_state *s = l->task;
    char key[COPY_LETTERS + 1], value[COPY_DIGITS + 1];
    struct kvl_list_entry e;
    KVL_TRY(kvl_lines_key(l, &s->rng, COPY_LETTERS, key));
    for (int i = 0; i < COPY_DIGITS; i++) value[i] = (char)('0' + kvl_rng_below(&s->rng, 10));
    value[COPY_DIGITS] = '\0';
    return kvl_list_add(l, key, value, &e);
}

static int copy_value(const struct kvl_list *l, const struct kvl_list_entry *e, bool plain,
                      struct kvl_buf *to)
{
    const char *value = l->text.data + e->value;
    if (plain) return kvl_buf_add(to, value, e->n_value);
    for (size_t c = e->n_value; c-- > 0;) KVL_TRY(kvl_buf_add(to, value + c, 1));
    return KVL_OK;
}

/* The lines from the asked one on, behind each other.  Of those that are copied as they stand the question has the
 * first ones that are shown and the name of the next. */
static int copy_ask(const struct kvl_list *l, const struct kvl_list_entry *first,
                    int32_t i_question, struct kvl_list_words *out)
{
    const struct copy_state *s = l->task;
    bool plain = s->opts->edit == COPY_NONE;
    int32_t from = kvl_lines_index(l, first), lines = s->opts->lines,
            shown = plain ? s->opts->shown : 0;
    char key[COPY_LETTERS + 1] = "", number[16];
    (void)i_question;
    memcpy(key, l->text.data + first->key, KVL_MIN(first->n_key, COPY_LETTERS));
    snprintf(number, sizeof number, "%d", shown + lines);
    const struct kvl_text_field field[] = { { "name", key }, { "lines", number } };
    KVL_TRY(kvl_text_fill(plain ? copy_plain : copy_question, field, 2, &out->text));
    for (int32_t i = 0; i < shown + lines; i++) {
        const struct kvl_list_entry *e = kvl_lines_entry(l, from + i);
        /* Of the first line of a plain answer the question has the name. */
        bool begins = plain && i <= shown;
        struct kvl_buf *name = begins ? &out->text : &out->gold,
                       *value = begins && i < shown ? &out->text : &out->gold;
        if (begins || i > 0) KVL_TRY(kvl_buf_adds(name, "\n"));
        KVL_TRY(kvl_buf_printf(name, "%.*s%s", (int)e->n_key, l->text.data + e->key,
                               plain ? ":" : " "));
        if (plain && i != shown) KVL_TRY(kvl_buf_adds(value, " "));
        KVL_TRY(copy_value(l, e, plain, value));
    }
    return kvl_buf_printf(&out->answer, "%s%s", plain ? " " : "\n", out->gold.data);
}

static int copy_generate(const struct kvl_task_request *req, struct kvl_sample *out,
                         struct kvl_err *err)
{
    struct kvl_err why = { 0 };
    struct copy_state s = { .opts = req->opts };
    struct kvl_list list = { .req = req,
                             .err = &why,
                             .intro = copy_intro,
                             .item = copy_item,
                             .key = "name",
                             .value = "code",
                             .before_first = "",
                             .before = "",
                             .after = "\n",
                             .end = "",
                             .many = "lines",
                             .wanted = s.opts->rows,
                             .task = &s,
                             .next = copy_next,
                             .ask = copy_ask };
    kvl_rng_seed(&s.rng, kvl_seed_str(req->seed, "edited_copy"));
    int rc = kvl_list_generate(&list, out);
    /* Every line of the answer needs one of the list. */
    for (int32_t i = 0; rc == KVL_OK && i < out->n_questions; i++)
        out->question[i].flags |= KVL_EVIDENCE_WEAK;
    return rc == KVL_OK ? rc : kvl_fail(err, rc, "edited_copy: %s", why.msg);
}

/* Of a line whose number is guessed. */
static double copy_chance(const void *opts)
{
    (void)opts;
    return pow(10, -COPY_DIGITS);
}

static const struct kvl_task edited_copy = {
    .abi = KVL_TASK_ABI,
    .size = sizeof edited_copy,
    .name = "edited_copy",
    .title = "Edited copy",
    .paper = "ours",
    .help = "a list fills the context: copy lines from one name on with their codes turned around",
    .version = 1,
    .opts = copy_options,
    .opts_size = sizeof(struct copy_opts),
    .generate = copy_generate,
    .score = kvl_lines_score,
    .chance = copy_chance,
};

KVL_TASK_EXPORT(edited_copy)
