/* Tables that methods read, measured on a model: those of all layers and heads, beside the model's file, or of heads
 * for one method. */
#include "tables_made.h"

#include "build.h"
#include "crash_line.h"
#include "kvl/model_tables.h"
#include "registry.h"
#include "stop.h"
#include "tables_maps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TABLES_PATTERNS = 3 };
enum { TABLES_ROOM = 2048 }; /* of a question and its answer */

/* ---- what each method's table is ----------------------------------------------------------------- */

/* What the table of a method is. */
struct tables_kind {
    const char *policy;
    const char *options; /* that make it measure, and report what it measured */
    bool per_kv_head;
    int32_t vectors; /* times head_dim numbers of a head; 0: a few */
    int (*write)(const struct kvl_tables_made *t, FILE *out); /* NULL: networks, in a folder */
};

static const char *const tables_patterns[TABLES_PATTERNS] = { "vertical_slash", "a_shape",
                                                              "block_sparse" };
/* Options that hold the sizes of each pattern. */
static const char *const tables_sizes[TABLES_PATTERNS][2] = { { "vertical_size", "slash_size" },
                                                              { "sink", "local" },
                                                              { "block_topk", NULL } };

static const double *tables_values(const struct kvl_tables_made *t, int32_t layer, int32_t head)
{
    return t->value + ((size_t)layer * (size_t)t->n_heads + (size_t)head) * (size_t)t->n_columns;
}

static int tables_option(const struct kvl_tables_made *t, const char *name, FILE *out)
{
    struct kvl_buf rest = { 0 }, value = { 0 };
    int rc = kvl_options_take(t->options.data, name, &rest, &value, t->err);
    if (rc == KVL_OK) fprintf(out, " %s", value.data ? value.data : "?");
    kvl_buf_free(&rest);
    kvl_buf_free(&value);
    return rc;
}

/* Of equal ones the first. */
static int tables_pattern(const struct kvl_tables_made *t, int32_t layer, int32_t head, FILE *out)
{
    const double *v = tables_values(t, layer, head);
    int32_t best = 0;
    for (int32_t k = 1; k < TABLES_PATTERNS; k++)
        if (v[k] > v[best]) best = k;
    fprintf(out, "%d %d %s", layer, head, tables_patterns[best]);
    for (int i = 0; i < 2 && tables_sizes[best][i]; i++)
        KVL_TRY(tables_option(t, tables_sizes[best][i], out));
    fprintf(out, "  #");
    for (int32_t k = 0; k < TABLES_PATTERNS; k++) fprintf(out, " %.4f", v[k] / t->n_measured);
    fputc('\n', out);
    return KVL_OK;
}

static int tables_write_patterns(const struct kvl_tables_made *t, FILE *out)
{
    fprintf(out, "# layer, query head, kind, sizes  # captured by vertical_slash, a_shape, "
                 "block_sparse\n");
    for (int32_t l = 0; l < kvl_model_shape(t->model)->n_layers; l++)
        for (int32_t h = 0; h < t->n_heads; h++) KVL_TRY(tables_pattern(t, l, h, out));
    return KVL_OK;
}

static int tables_write_gates(const struct kvl_tables_made *t, FILE *out)
{
    fprintf(out,
            "# a line per layer, a number per kv head: the share of attention outside sink and "
            "window\n");
    for (int32_t l = 0; l < kvl_model_shape(t->model)->n_layers; l++)
        for (int32_t h = 0; h < t->n_heads; h++)
            fprintf(out, "%.6f%c", tables_values(t, l, h)[0] / t->n_measured,
                    h + 1 < t->n_heads ? ' ' : '\n');
    return KVL_OK;
}

/* Means over the contexts. */
static int tables_write_vectors(const struct kvl_tables_made *t, FILE *out)
{
    fprintf(out, "# layer, head, %d numbers\n", t->n_columns);
    for (int32_t l = 0; l < kvl_model_shape(t->model)->n_layers; l++)
        for (int32_t h = 0; h < t->n_heads; h++) {
            fprintf(out, "%d %d", l, h);
            for (int32_t i = 0; i < t->n_columns; i++)
                fprintf(out, " %.6g", tables_values(t, l, h)[i] / t->n_measured);
            fputc('\n', out);
        }
    return KVL_OK;
}

static const struct tables_kind tables_kinds[] = {
    { "minference", "search=true", false, 0, tables_write_patterns },
    { "duo_attention", "gates=measure,report_gates=true", true, 0, tables_write_gates },
    { "qfilters", "samples=65536,report_filters=true", true, 1, tables_write_vectors },
    { "triattention", "samples=65536,report_means=true", false, 2, tables_write_vectors },
    { "kvzap", "", true, 0, NULL },
};
enum { TABLES_N_KINDS = sizeof tables_kinds / sizeof tables_kinds[0] };

/* "capture.<layer>.<head>.<kind>", "gate.<layer>.<head>" or "vector.<layer>.<head>.<channel>". */
static void tables_num(void *user, const char *name, double value)
{
    struct kvl_tables_made *t = user;
    int layer, head, k = 0;
    char kind[32] = "";
    if (sscanf(name, "capture.%d.%d.%31s", &layer, &head, kind) == 3) {
        while (k < TABLES_PATTERNS && strcmp(kind, tables_patterns[k]) != 0) k++;
    } else if (sscanf(name, "vector.%d.%d.%d", &layer, &head, &k) != 3 &&
               sscanf(name, "gate.%d.%d", &layer, &head) != 2) {
        return;
    }
    if (layer < 0 || layer >= kvl_model_shape(t->model)->n_layers || head < 0 ||
        head >= t->n_heads || k < 0 || k >= t->n_columns)
        return;
    t->value[((size_t)layer * (size_t)t->n_heads + (size_t)head) * (size_t)t->n_columns +
             (size_t)k] += value;
}

/* ---- measuring -------------------------------------------------------------------------------------- */

int kvl_tables_policy(struct kvl_tables_made *t)
{
    const struct kvl_tables_want *a = t->want;
    const char *policy = a->policy ? a->policy : "duo_attention"; /* the model's gates */
    size_t n = strcspn(policy, ":");
    if (!a->policy && a->budget)
        return kvl_fail(t->err, KVL_EINVAL, "--budget: is for the table of a method");
    for (int i = 0; i < TABLES_N_KINDS; i++)
        if (strlen(tables_kinds[i].policy) == n && strncmp(policy, tables_kinds[i].policy, n) == 0)
            t->kind = &tables_kinds[i];
    if (!t->kind)
        return kvl_fail(t->err, KVL_EINVAL,
                        "%.*s: has no table of heads, want minference, duo_attention, qfilters, "
                        "triattention or kvzap",
                        (int)n, policy);
    struct kvl_buf text = { 0 };
    const char *more = t->kind->options, *between = !*more ? "" : policy[n] ? "," : ":";
    int rc = kvl_buf_printf(&text, "%s%s%s", policy, between, more);
    if (rc == KVL_OK) rc = kvl_policy_spec_parse(t->registry, text.data, &t->spec, t->err);
    kvl_buf_free(&text);
    return rc;
}

static int tables_engine(struct kvl_tables_made *t)
{
    KVL_TRY(kvl_engine_create(&t->desc, &t->engine, t->err));
    kvl_stop_install();
    kvl_engine_set_stop(t->engine, kvl_stop_flag());
    return KVL_OK;
}

/* For one method. */
static int tables_open(struct kvl_tables_made *t)
{
    const struct kvl_shape *sh = kvl_model_shape(t->model);
    const char *budget = t->want->budget ? t->want->budget : t->spec.budget.data;
    if (budget)
        KVL_TRY(kvl_budget_parse(budget, t->want->length[0], &t->budget, t->err));
    else if (!t->kind->per_kv_head || t->kind->vectors > 0)
        t->budget = KVL_MAX(96, t->want->length[0] / 4);
    t->n_columns = t->kind->vectors > 0 ? t->kind->vectors * sh->head_dim : TABLES_PATTERNS;
    t->n_heads = t->kind->per_kv_head ? sh->n_kv_heads : sh->n_heads;
    t->value = kvl_alloc((size_t)sh->n_layers * (size_t)t->n_heads * (size_t)t->n_columns,
                         sizeof *t->value);
    return t->value ? KVL_OK : kvl_fail(t->err, KVL_ENOMEM, "out of memory for a table");
}

static int tables_session(struct kvl_tables_made *t, const struct kvl_planned *planned,
                          const int32_t *id, int32_t n)
{
    struct kvl_report_to to = { .user = t, .num = tables_num };
    bool own = kvl_planned_own_prefill(planned);
    struct kvl_session *s;
    KVL_TRY(kvl_engine_observe(t->engine, kvl_planned_observers(planned), t->err));
    KVL_TRY(kvl_session_create(t->engine, &s, t->err));
    kvl_guard_policy(t->kind->policy);
    int rc = own ? KVL_OK : kvl_session_prefill(s, id, n, NULL, false, t->err);
    if (rc == KVL_OK) rc = kvl_session_attach(s, planned, 1, KVL_EXEC_REAL, t->err);
    if (rc == KVL_OK && own) rc = kvl_session_prefill(s, id, n, NULL, false, t->err);
    if (rc == KVL_OK) rc = kvl_session_report(s, &to, t->err);
    kvl_session_destroy(s);
    kvl_guard_policy(NULL);
    t->n_measured++;
    return rc;
}

static int tables_measure(struct kvl_tables_made *t, const struct kvl_table_text *text)
{
    struct kvl_planned *planned;
    int32_t n = text->n;
    KVL_TRY((t->spec.own ? kvl_planned_create_own : kvl_planned_create)(
        t->spec.policy, kvl_model_shape(t->model), t->spec.options.data, t->budget, n, &planned,
        t->err));
    int rc = KVL_OK;
    if (!t->options.data) rc = kvl_buf_adds(&t->options, kvl_planned_options(planned));
    if (rc == KVL_OK) rc = tables_session(t, planned, text->id, n);
    kvl_planned_destroy(planned);
    return rc;
}

/* The context with its question and the answer to it: that is where heads retrieve. */
static int tables_sample(struct kvl_tables_made *t, struct kvl_sample *sample)
{
    const struct kvl_tokenizer *tokenizer = kvl_model_tokenizer(t->model);
    struct kvl_table_text all = { .n_context = sample->tokens.n };
    struct kvl_buf ids = { 0 };
    int rc = kvl_buf_add(&ids, sample->tokens.id, (size_t)sample->tokens.n * sizeof(int32_t));
    for (int i = 0; i < 2 && sample->n_questions > 0 && rc == KVL_OK; i++) {
        const char *text = i == 0 ? sample->question[0].text : sample->question[0].answer;
        struct kvl_tokens more = { 0 };
        rc = kvl_encode(tokenizer, text, strlen(text), KVL_ENCODE_CONTINUE, &more, t->err);
        if (rc == KVL_OK && more.n > 0)
            rc = kvl_buf_add(&ids, more.id, (size_t)more.n * sizeof(int32_t));
        all.n_answer = more.n;
        kvl_tokens_free(&more);
    }
    all.id = (const int32_t *)(const void *)ids.data;
    all.n = (int32_t)(ids.len / sizeof(int32_t));
    if (rc == KVL_OK) rc = t->feed(t, &all);
    kvl_buf_free(&ids);
    return rc;
}

/* Those of the model are no sweep's. */
static uint64_t tables_seed(const struct kvl_tables_made *t, const struct kvl_task *task,
                            int32_t length, int32_t index)
{
    uint64_t seed = kvl_seed_str((uint64_t)t->want->seed, task->name);
    if (!t->want->policy) seed = kvl_seed_mix(kvl_seed_str(seed, "tables"), (uint64_t)length);
    return kvl_seed_mix(seed, (uint64_t)index);
}

static int tables_context(struct kvl_tables_made *t, const struct kvl_task *task, const void *opts,
                          int32_t length, int32_t index)
{
    struct kvl_sample sample = { 0 };
    uint64_t seed = tables_seed(t, task, length, index);
    struct kvl_task_request req = { .tokenizer = kvl_model_tokenizer(t->model),
                                    .length_tok = length,
                                    .depth = -1.0,
                                    .n_questions = task->score ? 1 : 0,
                                    .seed = seed,
                                    .index = index,
                                    .opts = opts };
    int rc = task->generate(&req, &sample, t->err);
    if (rc == KVL_OK) rc = tables_sample(t, &sample);
    kvl_sample_free(&sample);
    return rc == KVL_OK ? rc : kvl_fail_at(t->err, rc, "%s", task->name);
}

static int tables_task_contexts(struct kvl_tables_made *t, const char *name, int32_t length)
{
    const struct kvl_task *task;
    KVL_TRY(kvl_registry_find_task(t->registry, name, &task, t->err));
    void *opts = kvl_alloc(1, task->opts_size ? task->opts_size : 1);
    if (!opts) return kvl_fail(t->err, KVL_ENOMEM, "out of memory for options");
    int rc = task->opts ? kvl_opt_defaults(task->opts, opts, t->err) : KVL_OK;
    for (int32_t c = 0; c < t->want->contexts && rc == KVL_OK; c++)
        rc = tables_context(t, task, opts, length, c);
    kvl_free(opts);
    return rc;
}

static int tables_contexts(struct kvl_tables_made *t,
                           int (*feed)(struct kvl_tables_made *, const struct kvl_table_text *))
{
    t->feed = feed;
    for (int32_t l = 0; l < t->want->n_lengths; l++)
        for (int32_t i = 0; i < t->want->n_tasks; i++)
            KVL_TRY(tables_task_contexts(t, t->want->task[i], t->want->length[l]));
    return KVL_OK;
}

/* ---- the file ----------------------------------------------------------------------------------------- */

static int tables_source(const struct kvl_tables_made *t, struct kvl_buf *out)
{
    const struct kvl_tables_want *a = t->want;
    KVL_TRY(kvl_buf_printf(out, "%d contexts of", a->contexts));
    for (int32_t i = 0; i < a->n_lengths; i++)
        KVL_TRY(kvl_buf_printf(out, "%s %d", i ? "," : "", a->length[i]));
    KVL_TRY(kvl_buf_adds(out, " tokens each of"));
    for (int32_t i = 0; i < a->n_tasks; i++)
        KVL_TRY(kvl_buf_printf(out, "%s %s", i ? "," : "", a->task[i]));
    return kvl_buf_printf(out, ", seed %lld", (long long)a->seed);
}

static void tables_write_source(const struct kvl_tables_made *t, FILE *out)
{
    struct kvl_buf text = { 0 };
    if (tables_source(t, &text) == KVL_OK) fprintf(out, "# measured on %s\n", text.data);
    kvl_buf_free(&text);
}

static int tables_write_method(const struct kvl_tables_made *t, FILE *out)
{
    fprintf(out, "# %s table of %s (%s), by kvlab %s\n", t->kind->policy, kvl_model_name(t->model),
            kvl_model_hash(t->model), kvl_build.version);
    tables_write_source(t, out);
    fprintf(out, "# %s, budget %d\n", t->options.data, t->budget);
    return t->kind->write(t, out);
}

/* What was tried for filter layers, as remarks. */
static int tables_write_sets(const struct kvl_tables_made *t, FILE *out)
{
    const struct kvl_model_tables *m = t->all;
    fprintf(
        out,
        "# filter layers, layers left dense at most: mean share that the layers after them keep, "
        "answer tokens of %lld\n# that stay what full attention makes them, with lists of %g of "
        "the context\n",
        (long long)m->n_answer, m->share);
    for (int32_t i = 0; i < m->n_sets; i++) {
        struct kvl_buf text = { 0 };
        int rc = kvl_filter_set_print(&m->set[i], kvl_model_shape(t->model)->n_layers, &text);
        fprintf(out, "#   %s, %d: %.3f, %lld\n", text.data ? text.data : "", m->set[i].dense,
                m->set[i].kept, (long long)m->set[i].n_same);
        kvl_buf_free(&text);
        if (rc != KVL_OK) return kvl_fail(t->err, rc, "out of memory for filter layers");
    }
    fprintf(out, "dense %d\n", m->set[m->chosen].dense);
    return KVL_OK;
}

static int tables_write_model(const struct kvl_tables_made *t, FILE *out)
{
    const struct kvl_shape *sh = kvl_model_shape(t->model);
    fprintf(out, "kvlab-tables %d\nmodel %s\n# %s, by kvlab %s\n", KVL_TABLES_VERSION,
            kvl_model_hash(t->model), kvl_model_name(t->model), kvl_build.version);
    tables_write_source(t, out);
    KVL_TRY(tables_write_sets(t, out));
    fprintf(out, "# layer, then of itself and those after it: attention kept with its list, as a "
                 "share of that with their own\n");
    for (int32_t l = 0; l < sh->n_layers; l++) {
        fprintf(out, "kept %d", l);
        for (int32_t m = l; m < sh->n_layers; m++)
            fprintf(out, " %.6f", t->all->kept[l * sh->n_layers + m]);
        fputc('\n', out);
    }
    fprintf(out, "# layer, of each kv head the share of attention outside sink and window: %s\n",
            t->options.data);
    for (int32_t l = 0; l < sh->n_layers; l++) {
        fprintf(out, "gates %d", l);
        for (int32_t h = 0; h < sh->n_kv_heads; h++)
            fprintf(out, " %.6f", tables_values(t, l, h)[0] / t->n_measured);
        fputc('\n', out);
    }
    return KVL_OK;
}

static int tables_write(const struct kvl_tables_made *t, FILE *out)
{
    return t->want->policy ? tables_write_method(t, out) : tables_write_model(t, out);
}

static int tables_file(const struct kvl_tables_made *t)
{
    const char *path = t->want->out;
    if (!path) return tables_write(t, stdout);
    FILE *out = fopen(path, "wx");
    if (!out)
        return kvl_fail(t->err, KVL_EINVAL, "%s: exists already or cannot be made, want a new file",
                        path);
    int rc = tables_write(t, out);
    if (ferror(out) | fclose(out) && rc == KVL_OK)
        rc = kvl_fail(t->err, KVL_EIO, "%s: cannot write", path);
    if (rc != KVL_OK) unlink(path);
    return rc;
}

/* Contexts no longer than what is always read tell nothing. */
static int tables_check(const struct kvl_tables_made *t)
{
    size_t n =
        (size_t)kvl_model_shape(t->model)->n_layers * (size_t)t->n_heads * (size_t)t->n_columns;
    for (size_t i = 0; i < n; i++)
        if (t->value[i] > 1e-4 * t->n_measured) return KVL_OK;
    return kvl_fail(
        t->err, KVL_EINVAL,
        "--length %d: nothing of such contexts lies outside what %s reads with %s, budget "
        "%d; want longer ones, or smaller sizes",
        t->want->length[0], t->kind->policy, t->options.data, t->budget);
}

static int tables_fresh(const struct kvl_tables_made *t, const char *path)
{
    if (!path || access(path, F_OK) != 0) return KVL_OK;
    return kvl_fail(t->err, KVL_EINVAL, "%s: exists already, want a new file", path);
}

static int tables_run_maps(struct kvl_tables_made *t)
{
    struct kvl_buf source = { 0 };
    KVL_TRY(kvl_tables_maps_check(t));
    KVL_TRY(tables_contexts(t, kvl_tables_maps_text));
    int rc = tables_source(t, &source);
    if (rc == KVL_OK) rc = kvl_tables_maps_write(t, source.data);
    kvl_buf_free(&source);
    return rc;
}

static int tables_run_method(struct kvl_tables_made *t)
{
    KVL_TRY(tables_fresh(t, t->want->out));
    if (!t->kind->write) return tables_run_maps(t);
    if (t->want->n_lengths > 1)
        return kvl_fail(t->err, KVL_EINVAL,
                        "--length: %d numbers, want one for the table of a method",
                        t->want->n_lengths);
    KVL_TRY(tables_open(t));
    KVL_TRY(tables_contexts(t, tables_measure));
    KVL_TRY(tables_check(t));
    return tables_file(t);
}

/* ---- of the model ------------------------------------------------------------------------------------- */

/* The same with the question, but for its last token, in the context: where a question comes with the
 * prefill, a method may drop what of it is near. */
static struct kvl_table_text tables_asked(const struct kvl_table_text *text)
{
    struct kvl_table_text asked = *text;
    asked.n_context = text->n - text->n_answer - 1;
    return asked;
}

static int tables_capture(struct kvl_tables_made *t, const struct kvl_table_text *text)
{
    struct kvl_table_text asked = tables_asked(text);
    if (text->n_answer < 1 || asked.n_context < text->n_context)
        return kvl_fail(t->err, KVL_EINVAL, "asks nothing, want tasks with questions and answers");
    KVL_TRY(kvl_model_tables_capture(t->all, text, t->err));
    return kvl_model_tables_capture(t->all, &asked, t->err);
}

static int tables_compare(struct kvl_tables_made *t, const struct kvl_table_text *text)
{
    struct kvl_table_text asked = tables_asked(text);
    KVL_TRY(kvl_model_tables_compare(t->all, text, t->err));
    return kvl_model_tables_compare(t->all, &asked, t->err);
}

static int tables_filters(struct kvl_tables_made *t)
{
    const struct kvl_policy *omnikv;
    int32_t longest = 0;
    for (int32_t i = 0; i < t->want->n_lengths; i++) longest = KVL_MAX(longest, t->want->length[i]);
    KVL_TRY(kvl_registry_find_policy(t->registry, "omnikv", &omnikv, t->err));
    KVL_TRY(kvl_model_tables_create(t->engine, omnikv, 1.0 / 16, longest + TABLES_ROOM, &t->all,
                                    t->err));
    KVL_TRY(tables_contexts(t, tables_capture));
    KVL_TRY(kvl_model_tables_search(t->all, t->err));
    KVL_TRY(tables_contexts(t, tables_compare));
    kvl_model_tables_choose(t->all);
    return KVL_OK;
}

static int tables_say(const struct kvl_tables_made *t, const char *path)
{
    const struct kvl_model_tables *m = t->all;
    const struct kvl_filter_set *set = &m->set[m->chosen];
    struct kvl_buf text = { 0 };
    int rc = kvl_filter_set_print(set, kvl_model_shape(t->model)->n_layers, &text);
    if (rc == KVL_OK)
        fprintf(stderr,
                "kvlab: %s: filter layers %s, %d layers dense; %lld of %lld answer tokens stay as "
                "they are\n",
                path, text.data, set->dense, (long long)set->n_same, (long long)m->n_answer);
    kvl_buf_free(&text);
    return rc == KVL_OK ? rc : kvl_fail(t->err, rc, "out of memory for filter layers");
}

static int tables_run_model(struct kvl_tables_made *t)
{
    char *beside = t->want->out ? NULL : kvl_tables_path(kvl_model_path(t->model));
    if (!t->want->out && !beside) return kvl_fail(t->err, KVL_ENOMEM, "out of memory for a path");
    if (beside) t->want->out = beside;
    int rc = tables_fresh(t, t->want->out);
    if (rc == KVL_OK) rc = tables_filters(t);
    if (rc == KVL_OK) rc = tables_open(t);
    if (rc == KVL_OK) rc = tables_contexts(t, tables_measure);
    if (rc == KVL_OK) rc = tables_file(t);
    if (rc == KVL_OK) rc = tables_say(t, t->want->out);
    t->want->out = NULL;
    kvl_free(beside);
    return rc;
}

int kvl_tables_make(struct kvl_tables_made *t)
{
    if (kvl_model_shape(t->model)->window)
        return kvl_fail(t->err, KVL_EINVAL,
                        "%s: some layers have a window; tables are of models whose layers all read "
                        "everything",
                        kvl_model_path(t->model));
    KVL_TRY(tables_engine(t));
    return t->want->policy ? tables_run_method(t) : tables_run_model(t);
}

void kvl_tables_made_free(struct kvl_tables_made *t)
{
    kvl_model_tables_destroy(t->all);
    kvl_input_fit_destroy(t->fit);
    kvl_engine_destroy(t->engine);
    kvl_policy_spec_free(&t->spec);
    kvl_buf_free(&t->options);
    kvl_free(t->value);
}
