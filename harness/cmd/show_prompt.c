/* Making a recorded prompt again. */
#include "show_prompt.h"

#include "json.h"
#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- the sweep as it was --------------------------------------------------------------------- */

/* What of a run's settings its prompts depend on: the lines of its text that begin so. */
static const char *const show_keys[] = { "chat",      "system",   "seed", "contexts",
                                         "questions", "sampling", "tasks" };
enum { SHOW_N_KEYS = sizeof show_keys / sizeof show_keys[0], SHOW_OWN_KEYS = 4 };

struct show_settings {
    struct kvl_yaml_override v[SHOW_N_KEYS + SHOW_OWN_KEYS];
    struct kvl_buf text[SHOW_N_KEYS + SHOW_OWN_KEYS];
    size_t n;
};

static int settings_add(struct show_settings *o, const char *key, const char *text, size_t len)
{
    struct kvl_buf *b = &o->text[o->n];
    KVL_TRY(kvl_buf_add(b, text, len));
    KVL_TRY(kvl_buf_adds(b, ""));
    o->v[o->n++] = (struct kvl_yaml_override){ .path = key, .text = b->data, .flag = key };
    return KVL_OK;
}

static int settings_of_text(struct show_settings *o, const char *text)
{
    for (const char *line = text; *line;) {
        size_t len = strcspn(line, "\n");
        for (size_t i = 0; i < SHOW_N_KEYS; i++) {
            size_t n = strlen(show_keys[i]);
            if (strncmp(line, show_keys[i], n) == 0 && line[n] == ':')
                KVL_TRY(settings_add(o, show_keys[i], line + n + 1, len - n - 1));
        }
        line += len + (line[len] == '\n');
    }
    return KVL_OK;
}

/* One length and depth, and no method: none changes what is asked. */
static int settings_of_cell(struct show_settings *o, const struct kvl_shown *s)
{
    char text[64];
    double depth = kvl_json_number(s->cell, "depth");
    snprintf(text, sizeof text, "%.0f", kvl_json_number(s->cell, "length_tok"));
    KVL_TRY(settings_add(o, "lengths", text, strlen(text)));
    snprintf(text, sizeof text, "%.15g", depth);
    if (!(depth >= 0.0)) snprintf(text, sizeof text, "spread");
    KVL_TRY(settings_add(o, "depths", text, strlen(text)));
    KVL_TRY(settings_add(o, "policies", "full", 4));
    struct kvl_buf path = { 0 };
    int rc = kvl_text_quote(&path, s->model ? s->model : kvl_json_text(s->run, "model.file"));
    if (rc == KVL_OK) rc = settings_add(o, "model", path.data, path.len);
    kvl_buf_free(&path);
    return rc;
}

static int show_sweep(struct kvl_shown *s, struct kvl_err *err)
{
    struct show_settings o = { 0 };
    int rc = settings_of_text(&o, kvl_json_text(s->run, "sweep.text"));
    if (rc == KVL_OK) rc = settings_of_cell(&o, s);
    if (rc != KVL_OK) kvl_fail(err, rc, "out of memory for the settings of a run");
    if (rc == KVL_OK)
        rc = kvl_sweep_load(NULL, "the log's sweep", s->registry, o.v, o.n, &s->sweep, err);
    for (size_t i = 0; i < o.n; i++) kvl_buf_free(&o.text[i]);
    return rc;
}

/* ---- the context ----------------------------------------------------------------------------- */

/* The part of a key that says which contexts: task, options, files, length, depth, seed. */
static const char *key_contexts(const char *key, size_t *len)
{
    const char *begin = strstr(key, ";task="), *end = begin ? strstr(begin, ";policy=") : NULL;
    *len = end ? (size_t)(end - begin) : 0;
    return begin;
}

static int show_group(struct kvl_shown *s, struct kvl_err *err)
{
    size_t len, n;
    const char *want = key_contexts(kvl_json_text(s->cell, "key"), &len);
    for (size_t i = 0; len > 0 && i < s->work->n_groups; i++) {
        const char *got = key_contexts(s->work->cell[s->work->group[i].first].key, &n);
        if (n != len || strncmp(got, want, n) != 0) continue;
        s->group = &s->work->group[i];
        return KVL_OK;
    }
    return kvl_fail(err, KVL_EINVAL,
                    "the prompt cannot be made again: this build, or the files of task %s, are not "
                    "those of the log, want the kvlab that wrote it (%s)",
                    kvl_json_text(s->cell, "task"), kvl_json_text(s->run, "kvlab.git"));
}

/* Turns before the last one stand in the prompt with their right answers. */
static int show_tokens(struct kvl_shown *s, int32_t question, struct kvl_err *err)
{
    const struct kvl_prompt *p = kvl_group_prompt(s->work, s->group);
    bool turns = strcmp(kvl_json_text(s->cell, "protocol"), "multi_turn") == 0;
    KVL_TRY(kvl_prompt_question(p, &s->context, question, &s->question, err));
    char hash[17];
    snprintf(hash, sizeof hash, "%016llx",
             (unsigned long long)kvl_prompt_hash(&s->context.tokens, &s->question));
    s->same = strcmp(hash, kvl_json_text(s->sample, "prompt_hash")) == 0;
    struct kvl_tokens all = { 0 };
    int rc = kvl_prompt_question(p, &s->context, turns ? 0 : question, &all, err);
    for (int32_t i = 1; rc == KVL_OK && turns && i <= question; i++)
        rc = kvl_prompt_turn(p, &s->context, i - 1, &all, err);
    size_t n = (size_t)s->context.tokens.n + (size_t)all.n;
    s->prompt.id = rc == KVL_OK ? kvl_alloc(n, sizeof *s->prompt.id) : NULL;
    if (rc == KVL_OK && !s->prompt.id) rc = kvl_fail(err, KVL_ENOMEM, "out of memory for a prompt");
    if (rc == KVL_OK) {
        s->prompt.n = s->prompt.cap = (int32_t)n;
        memcpy(s->prompt.id, s->context.tokens.id, (size_t)s->context.tokens.n * sizeof *all.id);
        memcpy(s->prompt.id + s->context.tokens.n, all.id, (size_t)all.n * sizeof *all.id);
    }
    kvl_tokens_free(&all);
    return rc;
}

/* The sweep and its model, with the names of files as they are seen from this folder. */
static int show_files(struct kvl_shown *s, struct kvl_err *err)
{
    KVL_TRY(show_sweep(s, err));
    int rc = kvl_model_look(s->sweep.model, &s->file, err);
    if (rc == KVL_OK || s->model) return rc;
    return kvl_fail_at(err, rc, "the model of the log (another place of it: --model FILE)");
}

/* A sweep's names are those of the folder that it ran in, above the log as a rule. */
static int show_upwards(struct kvl_shown *s, struct kvl_err *err)
{
    struct kvl_err why = { 0 };
    char *log = realpath(s->log, NULL), *model = s->model ? realpath(s->model, NULL) : NULL;
    const char *given = s->model;
    if (model) s->model = model;
    int rc = show_files(s, err);
    while (rc == KVL_EINVAL && log && strrchr(log, '/') > log) {
        *strrchr(log, '/') = '\0';
        kvl_model_close(s->file);
        kvl_sweep_free(&s->sweep);
        s->file = NULL;
        kvl_err_clear(&why);
        if (chdir(log) == 0 && show_files(s, &why) == KVL_OK) rc = KVL_OK;
        if (rc != KVL_OK && s->sweep.tasks.n > 0) *err = why; /* the model alone is missing */
    }
    if (rc == KVL_OK) kvl_err_clear(err);
    s->model = given;
    free(log);
    free(model);
    return rc;
}

int kvl_shown_open(struct kvl_shown *s, struct kvl_err *err)
{
    struct kvl_where where = { "", 1, NULL };
    double context = kvl_json_number(s->sample, "context");
    double question = kvl_json_number(s->sample, "question");
    KVL_TRY(show_upwards(s, err));
    KVL_TRY(kvl_work_create(&s->sweep, s->file, &where, true, &s->work, err));
    KVL_TRY(show_group(s, err));
    if (!(context >= 0.0 && context < INT32_MAX))
        return kvl_fail(err, KVL_ELOG, "context %g: no such context", context);
    KVL_TRY(kvl_context_generate(s->work, s->group, (int32_t)context, &s->context, err));
    if (!(question >= 0.0 && question < s->context.n_questions))
        return kvl_fail(err, KVL_ELOG, "question %g of %d of context %g: no such question",
                        question, s->context.n_questions, context);
    return show_tokens(s, (int32_t)question, err);
}

void kvl_shown_close(struct kvl_shown *s)
{
    kvl_tokens_free(&s->prompt);
    kvl_tokens_free(&s->question);
    kvl_sample_free(&s->context);
    kvl_work_destroy(s->work);
    kvl_model_close(s->file);
    kvl_sweep_free(&s->sweep);
}

/* ---- printing -------------------------------------------------------------------------------- */

void kvl_shown_text(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        unsigned char next = i + 1 < n ? (unsigned char)s[i + 1] : 0;
        bool high = c == 0xc2 && next >= 0x80 && next < 0xa0; /* U+0080 to U+009F */
        if (high || (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f)
            printf("\\x%02x", high ? next : c);
        else
            putchar(c);
        i += high;
    }
}

static int show_part(const struct kvl_shown *s, const char *what, int32_t first, int32_t n,
                     struct kvl_err *err)
{
    struct kvl_buf text = { 0 };
    if (n <= 0) return KVL_OK;
    int rc = kvl_decode(kvl_model_tokenizer(s->file), s->prompt.id + first, n, true, first == 0,
                        &text, err);
    printf("--- %s, tokens %d to %d\n", what, first, first + n - 1);
    if (rc == KVL_OK) kvl_shown_text(text.data ? text.data : "", text.len);
    putchar('\n');
    kvl_buf_free(&text);
    return rc;
}

/* Tokens of the question that are the text of the user; what follows in a chat template is the template's, and the
 * beginning of the answer. */
static int show_n_asked(const struct kvl_shown *s, int32_t *out, struct kvl_err *err)
{
    const struct kvl_prompt *p = kvl_group_prompt(s->work, s->group);
    const struct kvl_question *q =
        &s->context.question[(int32_t)kvl_json_number(s->sample, "question")];
    struct kvl_tokens asked = { 0 };
    *out = s->question.n;
    if (strcmp(p->name, "none") == 0) return KVL_OK;
    size_t len = strlen(q->text);
    KVL_TRY(kvl_encode(kvl_prompt_inside(p), q->text, len - KVL_MIN(q->n_prefix, len),
                       KVL_ENCODE_CONTINUE, &asked, err));
    int32_t n = 0;
    while (n < asked.n && n < s->question.n && asked.id[n] == s->question.id[n]) n++;
    kvl_tokens_free(&asked);
    *out = n;
    return KVL_OK;
}

int kvl_shown_print(const struct kvl_shown *s, struct kvl_err *err)
{
    const struct kvl_prompt *p = kvl_group_prompt(s->work, s->group);
    int32_t context = s->context.tokens.n, before = 0, asked;
    bool chat = strcmp(p->name, "none") != 0;
    if (chat) before = kvl_prompt_takes(p);
    KVL_TRY(show_n_asked(s, &asked, err));
    int32_t last =
        s->prompt.n - s->question.n; /* where the last question begins, or the one turn */
    KVL_TRY(show_part(s, "template", 0, before, err));
    KVL_TRY(show_part(s, "context", before, context - before, err));
    KVL_TRY(show_part(s, "earlier turns", context, last - context, err));
    KVL_TRY(show_part(s, "question", last, asked, err));
    return show_part(s, "template, and how the answer begins", last + asked, s->question.n - asked,
                     err);
}
