/* kvlab data: what folders of benchmark files hold, and scores of predictions in their form. */
#include "args.h"
#include "cmds.h"
#include "data_score.h"
#include "registry.h"
#include "rows.h"

#include "kvl/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { DATA_AS = 0x300, DATA_NAME, DATA_PREDICTION, DATA_GOLD, DATA_SCORE, DATA_TASK, DATA_ROWS };
enum { DATA_LENGTH = 1 << 30, DATA_ODD_SHOWN = 10 };

struct data_args {
    struct kvl_args base;
    const char *model, *task;
    int64_t rows;
    struct kvl_score_ask ask;
    char **word;
    size_t n_words;
};

static const struct argp_option data_options[] = {
    { "model", 'm', "FILE", 0, "check: token lengths under this model", 0 },
    { "task", DATA_TASK, "NAME", 0, "check: files of this task alone", 0 },
    { "rows", DATA_ROWS, "N", 0, "check: tokenise the first N of a file (default: all)", 0 },
    { "as", DATA_AS, "FORM", 0,
      "score: longbench, longbench_v2, infinitebench, ruler, scbench or kv_files", 0 },
    { "name", DATA_NAME, "TASK", 0, "score: task of the benchmark (default: from the file's name)",
      0 },
    { "prediction", DATA_PREDICTION, "FIELD", 0, "score: field with what the model said", 0 },
    { "gold", DATA_GOLD, "FIELD", 0, "score: field with the answers", 0 },
    { "score", DATA_SCORE, "SCORER", 0, "score: as the option of the task jsonl", 0 },
    { 0 }
};

static error_t data_parse(int key, char *arg, struct argp_state *state)
{
    struct data_args *a = state->input;
    switch (key) {
    case 'm': a->model = arg; return 0;
    case DATA_TASK: a->task = arg; return 0;
    case DATA_ROWS:
        if (kvl_parse_i64(arg, &a->rows) == KVL_OK && a->rows > 0) return 0;
        return kvl_args_fail(
            &a->base, kvl_fail(a->base.err, KVL_EINVAL, "--rows %s: want a number from 1 on", arg));
    case DATA_AS: a->ask.as = arg; return 0;
    case DATA_NAME: a->ask.name = arg; return 0;
    case DATA_PREDICTION: a->ask.prediction = arg; return 0;
    case DATA_GOLD: a->ask.gold = arg; return 0;
    case DATA_SCORE: a->ask.scorer = arg; return 0;
    case ARGP_KEY_ARGS: kvl_args_words(state, &a->word, &a->n_words); return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp data_argp = {
    .options = data_options,
    .parser = data_parse,
    .args_doc = "check DIR...\nscore FILE...",
    .doc = "check: which benchmarks' files are in the folders, how many contexts and questions "
           "they have, "
           "rows that are odd, and token lengths under a model.  score: rows, official and strict "
           "mean "
           "of predictions in the form that a benchmark's scripts write, tab-separated."
};

/* ---- check ----------------------------------------------------------------------------------------- */

struct check {
    const struct data_args *a;
    const struct kvl_tokenizer *tokenizer; /* NULL: no model */
    const struct kvl_task *task;
    struct kvl_rows_opts *opts;
    int32_t n_found;
    struct kvl_err *err;
};

/* What the files of a task amount to. */
struct lengths {
    int32_t *tok, n;
    int32_t n_lost,
        n_cut; /* answers that are not in their context; longer than what is generated */
};

static int length_order(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int check_count(const struct check *c, const char *text, int32_t *n)
{
    struct kvl_tokens t = { 0 };
    int rc = kvl_encode(c->tokenizer, text, strlen(text), KVL_ENCODE_CONTINUE, &t, c->err);
    *n = t.n;
    kvl_tokens_free(&t);
    return rc;
}

static int check_sample(const struct check *c, const struct kvl_sample *s, struct lengths *out)
{
    const struct kvl_question *q = &s->question[0];
    int32_t question, answer;
    KVL_TRY(check_count(c, q->text, &question));
    KVL_TRY(check_count(c, q->answer, &answer));
    out->tok[out->n++] = s->tokens.n + question;
    out->n_cut += answer > q->max_new_tok;
    out->n_lost += q->n_evidence == 0;
    return KVL_OK;
}

static int check_lengths(const struct check *c, const struct kvl_task_source *source,
                         struct lengths *out)
{
    int32_t n = 0;
    for (int32_t g = 0; g < source->n_groups; g++) n += source->group[g];
    if (c->a->rows > 0) n = (int32_t)KVL_MIN(c->a->rows, n);
    out->tok = kvl_alloc((size_t)n + 1, sizeof *out->tok);
    if (!out->tok) return kvl_fail(c->err, KVL_ENOMEM, "out of memory for rows");
    for (int32_t i = 0; i < n; i++) {
        struct kvl_sample s = { 0 };
        struct kvl_task_request req = { .tokenizer = c->tokenizer,
                                        .length_tok = DATA_LENGTH,
                                        .depth = -1.0,
                                        .n_questions = 1,
                                        .index = i,
                                        .opts = c->opts,
                                        .source = source };
        int rc = c->task->generate(&req, &s, c->err);
        if (rc == KVL_EINVAL) { /* a row that can be read and not be asked */
            KVL_TRY(kvl_buf_printf(c->opts->odd, "%s\n", c->err->msg));
            kvl_err_clear(c->err);
            continue;
        }
        if (rc == KVL_OK) rc = check_sample(c, &s, out);
        kvl_sample_free(&s);
        KVL_TRY(rc);
    }
    qsort(out->tok, (size_t)n, sizeof *out->tok, length_order);
    return KVL_OK;
}

static void check_print(const struct check *c, const struct kvl_task_source *source,
                        const struct lengths *l)
{
    const struct kvl_file_rows *r = (const struct kvl_file_rows *)source;
    int32_t questions = 0;
    for (int32_t g = 0; g < source->n_groups; g++) questions += source->group[g];
    printf("%s %s: %d questions about %d contexts", c->task->name, r->set.name, questions,
           source->n_groups);
    const struct kvl_rows_part all[] = { { r->set.name, r->set.max_new, r->set.scorer }, { 0 } };
    for (const struct kvl_rows_part *p = r->set.parts ? r->set.parts : all; p->task; p++)
        printf(", %d tokens to generate, scored by %s", p->max_new, kvl_scorer_names[p->scorer]);
    if (r->set.unofficial) printf(", not official: %s", r->set.unofficial);
    if (l->n > 0)
        printf("; prompts of %d to %d tokens, half of them up to %d", l->tok[0], l->tok[l->n - 1],
               l->tok[(l->n - 1) / 2]);
    printf("\n  %s\n", r->file.path);
    if (l->n_cut)
        printf("  odd: %d of %d answers have more tokens than are generated\n", l->n_cut, l->n);
    if (l->n_lost && !(r->set.flags & KVL_ROWS_NOWHERE))
        printf("  %s: %d of %d answers do not stand in their context\n",
               r->set.flags & KVL_ROWS_EXACT ? "odd" : "note", l->n_lost, l->n);
}

static void check_odd(const struct kvl_buf *odd)
{
    int32_t n = 0;
    for (const char *line = odd->data; line && *line;) {
        size_t len = strcspn(line, "\n");
        if (n++ < DATA_ODD_SHOWN) printf("  odd: %.*s\n", (int)len, line);
        line += len + (line[len] == '\n');
    }
    if (n > DATA_ODD_SHOWN) printf("  odd: %d rows more\n", n - DATA_ODD_SHOWN);
}

/* The file of one choice of `name`, where it is there. */
static int check_file(struct check *c)
{
    struct kvl_task_source *source = NULL;
    struct kvl_err why = { 0 };
    struct kvl_buf odd = { 0 };
    struct lengths l = { 0 };
    c->opts->odd = &odd;
    int rc = c->task->open(c->opts, &source, &why);
    if (rc == KVL_EIO && kvl_plainfile_absent(why.msg)) return KVL_OK;
    c->n_found++;
    if (rc != KVL_OK) {
        printf("%s: %s\n", c->task->name, why.msg);
        check_odd(&odd);
        kvl_buf_free(&odd);
        return rc == KVL_ENOMEM ? kvl_fail(c->err, rc, "%s", why.msg) : KVL_OK;
    }
    rc = c->tokenizer ? check_lengths(c, source, &l) : KVL_OK;
    if (rc == KVL_OK) check_print(c, source, &l);
    check_odd(&odd);
    kvl_free(l.tok);
    kvl_buf_free(&odd);
    c->task->close(source);
    return rc;
}

/* All files of a task in a folder. */
static int check_task(struct check *c, const char *dir)
{
    const struct kvl_opt *name = kvl_opt_find(c->task->opts, "name");
    if (c->task->close != kvl_rows_close || !name || !kvl_opt_find(c->task->opts, "dir"))
        return KVL_OK;
    c->opts = kvl_alloc(1, c->task->opts_size);
    if (!c->opts) return kvl_fail(c->err, KVL_ENOMEM, "out of memory for options");
    int rc = kvl_opt_defaults(c->task->opts, c->opts, c->err);
    if (rc == KVL_OK) rc = kvl_opt_set(c->task->opts, c->opts, "dir", dir, c->err);
    for (int32_t i = 0; rc == KVL_OK && name->choices[i]; i++) {
        rc = kvl_opt_set(c->task->opts, c->opts, "name", name->choices[i], c->err);
        if (rc == KVL_OK) rc = check_file(c);
    }
    kvl_free(c->opts);
    return rc;
}

static int check_folders(struct check *c, const struct kvl_registry *registry)
{
    const struct kvl_task *only = NULL;
    if (c->a->task) KVL_TRY(kvl_registry_find_task(registry, c->a->task, &only, c->err));
    for (size_t w = 1; w < c->a->n_words; w++) {
        struct stat st;
        c->n_found = 0;
        if (stat(c->a->word[w], &st) != 0)
            return kvl_fail(c->err, KVL_EIO, "%s: no such folder", c->a->word[w]);
        if (!S_ISDIR(st.st_mode))
            return kvl_fail(c->err, KVL_EINVAL, "%s: a file, want the folder of a benchmark",
                            c->a->word[w]);
        for (size_t i = 0; i < kvl_registry_n_tasks(registry); i++) {
            c->task = kvl_registry_task(registry, i);
            if (!only || c->task == only) KVL_TRY(check_task(c, c->a->word[w]));
        }
        if (c->n_found == 0)
            return kvl_fail(c->err, KVL_EINVAL,
                            "%s: no file of a benchmark is there under its published name; kvlab "
                            "describe TASK says which, and the task jsonl reads any file",
                            c->a->word[w]);
    }
    return KVL_OK;
}

static int data_check(const struct data_args *a, struct kvl_err *err)
{
    struct check c = { .a = a, .err = err };
    struct kvl_gguf *gguf = NULL;
    struct kvl_tokenizer *t = NULL;
    struct kvl_registry *registry = NULL;
    int rc = KVL_OK;
    if (a->n_words < 2) return kvl_fail(err, KVL_EINVAL, "check: want a folder");
    if (a->model) rc = kvl_gguf_open(a->model, &gguf, err);
    if (rc == KVL_OK && gguf) rc = kvl_tokenizer_create(gguf, &t, err);
    if (rc == KVL_OK) rc = kvl_registry_create(&registry, err);
    c.tokenizer = t;
    if (rc == KVL_OK) rc = check_folders(&c, registry);
    kvl_registry_destroy(registry);
    kvl_tokenizer_destroy(t);
    kvl_gguf_close(gguf);
    return rc;
}

/* ---- the command --------------------------------------------------------------------------------------- */

static int data_score(const struct data_args *a, struct kvl_err *err)
{
    size_t n = 0;
    bool known = !a->ask.as;
    for (; kvl_score_forms[n]; n++) known |= a->ask.as && !strcmp(a->ask.as, kvl_score_forms[n]);
    const char *near = known ? NULL : kvl_nearest(a->ask.as, kvl_score_forms, n);
    if (!known)
        return kvl_fail(err, KVL_EINVAL, "--as %s: there is no such form%s%s%s", a->ask.as,
                        near ? ", did you mean \"" : ", kvlab data --help lists them",
                        near ? near : "", near ? "\"?" : "");
    if (a->n_words < 2) return kvl_fail(err, KVL_EINVAL, "score: want files of predictions");
    for (size_t i = 1; i < a->n_words; i++)
        KVL_TRY(kvl_score_file(&a->ask, a->word[i], i == 1, err));
    return KVL_OK;
}

int cmd_data(int argc, char **argv, struct kvl_err *err)
{
    struct data_args a = { 0 };
    bool done;
    KVL_TRY(kvl_args_parse(&data_argp, argc, argv, &a, &done, err));
    if (done) return KVL_OK;
    const char *what = a.n_words ? a.word[0] : "";
    if (strcmp(what, "check") == 0) return data_check(&a, err);
    if (strcmp(what, "score") == 0) return data_score(&a, err);
    return kvl_fail(err, KVL_EINVAL, "\"%s\": want check DIR or score FILE", what);
}
