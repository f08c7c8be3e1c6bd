/* kvlab show: one answer of a log: what the model was sent, what the method left of it, what the model said. */
#include "args.h"
#include "cmds.h"
#include "json.h"
#include "log.h"
#include "record.h"
#include "show_prompt.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SHOW_KEY_CONTEXT = 1, SHOW_KEY_QUESTION, SHOW_KEY_IDS, SHOW_KEY_PLUGIN };

struct show_args {
    struct kvl_args base;
    struct kvl_registry *registry;
    const char *log, *cell, *model;
    int64_t context, question; /* -1: the first that the log has */
    bool ids;
};

static const struct argp_option show_options[] = {
    { "context", SHOW_KEY_CONTEXT, "N", 0, "of this context (default: the first that the log has)",
      0 },
    { "question", SHOW_KEY_QUESTION, "N", 0, "this question of it (likewise)", 0 },
    { "ids", SHOW_KEY_IDS, NULL, 0, "only the token ids of the prompt, for kvlab trace --ids", 0 },
    { "model", 'm', "FILE", 0, "the model, where it is not at the place that the log names", 0 },
    { "task-plugin", SHOW_KEY_PLUGIN, "X.so", 0, "load the task from a shared object", 0 },
    { 0 }
};

static int show_number(const struct show_args *a, const char *what, const char *text, int64_t *out)
{
    if (kvl_parse_i64(text, out) == KVL_OK && *out >= 0 && *out <= INT32_MAX) return KVL_OK;
    return kvl_fail(a->base.err, KVL_EINVAL, "--%s: \"%s\": want a number from 0 on", what, text);
}

static int show_word(struct show_args *a, const char *word)
{
    if (a->cell)
        return kvl_fail(a->base.err, KVL_EINVAL, "\"%s\": want one log and one cell", word);
    *(a->log ? &a->cell : &a->log) = word;
    return KVL_OK;
}

static error_t show_parse(int key, char *arg, struct argp_state *state)
{
    struct show_args *a = state->input;
    int rc = KVL_OK;
    switch (key) {
    case SHOW_KEY_CONTEXT: rc = show_number(a, "context", arg, &a->context); break;
    case SHOW_KEY_QUESTION: rc = show_number(a, "question", arg, &a->question); break;
    case SHOW_KEY_IDS: a->ids = true; break;
    case SHOW_KEY_PLUGIN: rc = kvl_registry_task_plugin(a->registry, arg, a->base.err); break;
    case 'm': a->model = arg; break;
    case ARGP_KEY_ARG: rc = show_word(a, arg); break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
}

static const struct argp show_argp = {
    .options = show_options,
    .parser = show_parse,
    .args_doc = "LOG [CELL]",
    .doc = "One answer of a log: the prompt as it was sent, with what is the chat template's, what "
           "the method left of it, the answer as it came, and its score.  CELL is the id of a cell "
           "or its beginning; without one the cells are listed.\v"
           "The prompt is not in the log: it is made again from the settings and the seed, and the "
           "hash of its tokens is compared with that of what was sent.",
};

/* ---- the log --------------------------------------------------------------------------------- */

struct show {
    const struct show_args *a;
    json_t *runs, *cells; /* by id */
    json_t *sample;
    struct kvl_err *err;
};

static bool show_wanted(const struct show *s, const json_t *r)
{
    const struct show_args *a = s->a;
    double context = kvl_json_number(r, "context"), question = kvl_json_number(r, "question");
    if (strncmp(kvl_json_text(r, "cell"), a->cell, strlen(a->cell)) != 0) return false;
    if (a->context >= 0 && context != (double)a->context) return false;
    if (a->question >= 0 && question != (double)a->question) return false;
    /* Of several the first one; of one that is there again the latest. */
    return !s->sample || (strcmp(kvl_json_text(r, "cell"), kvl_json_text(s->sample, "cell")) == 0 &&
                          kvl_json_number(s->sample, "context") == context &&
                          kvl_json_number(s->sample, "question") == question);
}

static int show_record(json_t *r, void *user, struct kvl_err *err)
{
    struct show *s = user;
    const char *kind = kvl_json_text(r, "kind");
    int failed = 0;
    if (strcmp(kind, "run") == 0) failed = json_object_set(s->runs, kvl_json_text(r, "run"), r);
    if (strcmp(kind, "cell") == 0) failed = json_object_set(s->cells, kvl_json_text(r, "cell"), r);
    if (strcmp(kind, "sample") == 0 && s->a->cell && show_wanted(s, r)) {
        json_decref(s->sample);
        s->sample = json_incref(r);
    }
    return failed ? kvl_fail(err, KVL_ENOMEM, "out of memory for the log") : KVL_OK;
}

static int show_read(struct show *s)
{
    if (!s->runs || !s->cells) return kvl_fail(s->err, KVL_ENOMEM, "out of memory for the log");
    KVL_TRY(kvl_log_read(s->a->log, show_record, s, NULL, s->err));
    if (!s->a->cell || s->sample) return KVL_OK;
    const char *id;
    json_t *cell;
    json_object_foreach(s->cells, id, cell)
    {
        if (strncmp(id, s->a->cell, strlen(s->a->cell)) == 0)
            return kvl_fail(s->err, KVL_EINVAL, "%s: cell %s has no such answer", s->a->log, id);
    }
    return kvl_fail(s->err, KVL_EINVAL, "%s: no cell %s, see kvlab show %s", s->a->log, s->a->cell,
                    s->a->log);
}

/* ---- printing -------------------------------------------------------------------------------- */

/* A string of the log: somebody else may have written it. */
static void show_string(const json_t *r, const char *path)
{
    const char *text = kvl_json_text(r, path);
    kvl_shown_text(text, strlen(text));
}

static void show_named(const json_t *cell, const char *name, const char *options)
{
    show_string(cell, name);
    if (!kvl_json_text(cell, options)[0]) return;
    putchar('(');
    show_string(cell, options);
    putchar(')');
}

static void show_policy(const json_t *cell)
{
    show_named(cell, "policy", "options");
    if (strcmp(kvl_json_text(cell, "prefill"), "own") == 0) fputs(", own prefill", stdout);
    if (strcmp(kvl_json_text(cell, "budget"), "-") != 0) {
        fputs(", budget ", stdout);
        show_string(cell, "budget");
    }
}

static void show_cells(const struct show *s)
{
    const char *id;
    json_t *cell;
    json_object_foreach(s->cells, id, cell)
    {
        kvl_shown_text(id, strlen(id));
        fputs("  ", stdout);
        show_named(cell, "task", "task_options");
        printf("  %.0f  ", kvl_json_number(cell, "length_tok"));
        show_string(cell, "protocol");
        fputs("  ", stdout);
        show_policy(cell);
        double p = kvl_json_number(cell, "official.p");
        if (!isnan(p)) printf("  %.1f %%", 100.0 * p);
        putchar('\n');
    }
}

static void show_head(const struct show *s, const json_t *cell)
{
    fputs("cell      ", stdout);
    show_string(s->sample, "cell");
    fputs(": ", stdout);
    show_named(cell, "task", "task_options");
    printf(", %.0f tokens, ", kvl_json_number(cell, "length_tok"));
    show_string(cell, "protocol");
    fputs("\nmethod    ", stdout);
    show_policy(cell);
    printf("\nanswer    of context %.0f, question %.0f, seed ",
           kvl_json_number(s->sample, "context"), kvl_json_number(s->sample, "question"));
    show_string(s->sample, "seed");
    putchar('\n');
}

static void show_kept(const struct show *s)
{
    struct kvl_outcome o = { 0 };
    kvl_outcome_of(s->sample, &o);
    printf("kept      ");
    if (!isnan(o.attended_tok)) printf("a step attends to %.1f tokens per lane", o.attended_tok);
    if (!isnan(o.dense_tok)) printf(" (%.1f in dense layers)", o.dense_tok);
    printf(" of a prompt of %.0f", o.context_tok + kvl_json_number(s->sample, "question_tok"));
    if (!isnan(o.kv_physical)) printf("; %.0f bytes of keys and values held", o.kv_physical);
    if (!isnan(o.recall)) printf("; %.0f %% of the evidence attended to", 100.0 * o.recall);
    putchar('\n');
    kvl_outcome_free(&o);
}

/* Where in the prompt the evidence is. */
static void show_evidence(const struct kvl_shown *p, int32_t question)
{
    const struct kvl_question *q = &p->context.question[question];
    const struct kvl_tokens *t = &p->context.tokens;
    for (int32_t e = 0; e < q->n_evidence; e++)
        for (int32_t k = 0; k < q->evidence[e].n_spans; k++) {
            struct kvl_span span = q->evidence[e].span[k];
            int32_t first = 0, last;
            while (first + 1 < t->n && t->begin[first + 1] <= span.begin) first++;
            for (last = first; last + 1 < t->n && t->begin[last + 1] < span.end;) last++;
            printf("evidence  tokens %d to %d: ", first, last);
            kvl_shown_text(p->context.context + span.begin, span.end - span.begin);
            putchar('\n');
        }
}

static void show_answer(const struct show *s)
{
    const json_t *r = s->sample;
    const char *error = kvl_json_text(r, "error");
    if (error[0]) {
        fputs("--- no answer\n", stdout);
        show_string(r, "error");
        putchar('\n');
        return;
    }
    printf("--- answer, %.0f tokens, %s\n", kvl_json_number(r, "n_new_tok"),
           strcmp(kvl_json_text(r, "stop"), "end") == 0 ? "ended by the model"
                                                        : "as many as the task allows");
    show_string(r, "prediction");
    putchar('\n');
}

static void show_score(const struct show *s, const struct kvl_shown *p, int32_t question)
{
    const json_t *r = s->sample, *value;
    const char *name, *prediction = kvl_json_text(r, "prediction"),
                      *gold = kvl_json_text(r, "gold");
    fputs("--- score\ngold      ", stdout);
    show_string(r, "gold");
    printf("\nofficial  %g\nstrict    %g\n", kvl_json_number(r, "official"),
           kvl_json_number(r, "strict"));
    json_t *subs = json_object_get(r, "sub");
    json_object_foreach(subs, name, value)
    {
        kvl_shown_text(name, strlen(name));
        printf(" %g\n", json_number_value(value));
    }
    printf("why       the answer %s the gold text", strstr(prediction, gold) ? "has" : "lacks");
    if (!kvl_json_text(r, "error")[0] && !json_is_array(json_object_get(r, "answers"))) {
        struct kvl_task_score again = { 0 };
        p->group->task->task->score(&p->context.question[question], prediction, &again);
        printf("; scored again: official %g, strict %g", again.official, again.strict);
    }
    fputs(" (kvlab describe ", stdout);
    kvl_shown_text(p->group->task->task->name, strlen(p->group->task->task->name));
    puts(")");
}

static int show_all(const struct show *s, const json_t *cell, struct kvl_shown *p)
{
    int32_t question = (int32_t)kvl_json_number(s->sample, "question");
    if (s->a->ids) {
        for (int32_t i = 0; i < p->prompt.n; i++) printf("%s%d", i ? " " : "", p->prompt.id[i]);
        putchar('\n');
        return KVL_OK;
    }
    show_head(s, cell);
    printf("prompt    %d tokens, %s\n", p->prompt.n,
           p->same ? "those that were sent (by their hash)"
                   : "NOT those that were sent: their hash is another (another model or build?)");
    show_kept(s);
    show_evidence(p, question);
    KVL_TRY(kvl_shown_print(p, s->err));
    show_answer(s);
    show_score(s, p, question);
    return KVL_OK;
}

static int show_sample(const struct show *s)
{
    const json_t *cell = json_object_get(s->cells, kvl_json_text(s->sample, "cell"));
    if (!cell)
        return kvl_fail(s->err, KVL_EINVAL,
                        "%s: cell %s is not complete yet, its settings are written with its last "
                        "answer: want a cell that kvlab show %s lists",
                        s->a->log, kvl_json_text(s->sample, "cell"), s->a->log);
    const json_t *run = json_object_get(s->runs, kvl_json_text(s->sample, "run"));
    if (!run) return kvl_fail(s->err, KVL_ELOG, "%s: no run record of the answer", s->a->log);
    struct kvl_shown p = { .run = run,
                           .cell = cell,
                           .sample = s->sample,
                           .registry = s->a->registry,
                           .model = s->a->model,
                           .log = s->a->log };
    int rc = kvl_shown_open(&p, s->err);
    if (rc == KVL_OK) rc = show_all(s, cell, &p);
    kvl_shown_close(&p);
    return rc;
}

int cmd_show(int argc, char **argv, struct kvl_err *err)
{
    struct show_args a = { .context = -1, .question = -1 };
    struct show s = { .a = &a, .runs = json_object(), .cells = json_object(), .err = err };
    bool done = false;
    int rc = kvl_registry_create(&a.registry, err);
    if (rc == KVL_OK) rc = kvl_args_parse(&show_argp, argc, argv, &a, &done, err);
    if (rc == KVL_OK && !done && !a.log)
        rc = kvl_fail(err, KVL_EINVAL, "no log, want kvlab show LOG [CELL]");
    if (rc == KVL_OK && !done) rc = show_read(&s);
    if (rc == KVL_OK && !done && !a.cell) show_cells(&s);
    if (rc == KVL_OK && !done && a.cell) rc = show_sample(&s);
    json_decref(s.runs);
    json_decref(s.cells);
    json_decref(s.sample);
    kvl_registry_destroy(a.registry);
    return rc;
}
