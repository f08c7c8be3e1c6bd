/* Reads recipes, finds our numbers for theirs. */
#include "published.h"

#include "summary.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- measures -------------------------------------------------------------------------------- */

static struct kvl_interval times(struct kvl_interval v, double factor)
{
    return (struct kvl_interval){ factor * v.mean, factor * v.lo, factor * v.hi };
}

static struct kvl_interval exactly(double v)
{
    return (struct kvl_interval){ v, KVL_NAN, KVL_NAN };
}

static struct kvl_interval measure_accuracy(const struct kvl_result *r, const struct kvl_result *f)
{
    (void)f;
    return times(r->official, 100);
}

static struct kvl_interval measure_recall(const struct kvl_result *r, const struct kvl_result *f)
{
    (void)f;
    return (struct kvl_interval){ 100 * r->recall, KVL_NAN, KVL_NAN };
}

/* Of the smallest number of top tokens that was asked for. */
static struct kvl_interval measure_top(const struct kvl_result *r, const struct kvl_result *f)
{
    (void)f;
    const json_t *all = kvl_json_value(r->record, "quality.select.recall");
    if (!all && r->bound == KVL_BOUND_FULL) return exactly(100);
    const json_t *first = json_is_array(all) ? json_array_get(all, 0) : NULL;
    return times(kvl_interval_of(first, "mean"), 100);
}

static struct kvl_interval measure_perplexity(const struct kvl_result *r,
                                              const struct kvl_result *f)
{
    (void)f;
    return r->ppl;
}

static struct kvl_interval measure_tok_s(const struct kvl_result *r, const struct kvl_result *f)
{
    (void)f;
    return r->decode;
}

static struct kvl_interval measure_ms(const struct kvl_result *r, const struct kvl_result *f)
{
    (void)f;
    return (struct kvl_interval){ 1000 / r->decode.mean, 1000 / r->decode.hi, 1000 / r->decode.lo };
}

static struct kvl_interval measure_speedup(const struct kvl_result *r, const struct kvl_result *f)
{
    bool may = f && kvl_result_same_setup(r, f);
    return exactly(may ? r->decode.mean / f->decode.mean : KVL_NAN);
}

static struct kvl_interval measure_read(const struct kvl_result *r, const struct kvl_result *f)
{
    double own = r->kv_read + (r->index_read > 0 ? r->index_read : 0);
    return exactly(f ? 100 * own / f->kv_read : KVL_NAN);
}

/* Gigabytes as papers count: 10^9. */
static struct kvl_interval measure_held(const struct kvl_result *r, const struct kvl_result *f)
{
    (void)f;
    return exactly(r->kv_physical / 1e9);
}

static struct kvl_interval measure_attention(const struct kvl_result *r, const struct kvl_result *f)
{
    bool may = f && kvl_result_same_setup(r, f);
    return exactly(may ? f->attention_ns / r->attention_ns : KVL_NAN);
}

/* Kibibytes of one token, of `full`, which reads all that it holds: what is held in the end is of more tokens than
 * the context has. */
static struct kvl_interval measure_token(const struct kvl_result *r, const struct kvl_result *f)
{
    (void)f;
    return exactly(r->kv_read / r->attended_tok / 1024);
}

const struct kvl_measure kvl_measures[] = {
    { "accuracy", "official accuracy, %", measure_accuracy, true, 1 },
    { "recall", "evidence attended, %", measure_recall, false, 1 },
    { "top", "top attention tokens read, %", measure_top, false, 1 },
    { "perplexity", "perplexity", measure_perplexity, false, 2 },
    { "tok_s", "decoding, tokens/s", measure_tok_s, false, 1 },
    { "ms", "decoding, ms per token", measure_ms, false, 2 },
    { "speedup", "decoding, times full attention", measure_speedup, false, 2 },
    { "attention", "attention of a step, times as fast as full", measure_attention, false, 2 },
    { "read", "keys and values read, % of full attention", measure_read, false, 1 },
    { "held", "keys and values held, GB", measure_held, false, 3 },
    { "token", "keys and values, KiB per token", measure_token, false, 2 },
};
const size_t kvl_n_measures = sizeof kvl_measures / sizeof kvl_measures[0];

/* ---- reading a recipe ------------------------------------------------------------------------ */

static int read_text(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    return kvl_yaml_text(y, v, key, user);
}

/* One reader per text: the table of keys has no place for where it goes. */
#define TEXT_READER(field)                                                                         \
    static int read_##field(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)       \
    {                                                                                              \
        return read_text(y, v, key, &((struct kvl_published *)user)->field);                       \
    }
TEXT_READER(paper)
TEXT_READER(where)
TEXT_READER(title)
TEXT_READER(data)
TEXT_READER(expect)
TEXT_READER(note)
TEXT_READER(sweep)
TEXT_READER(small)

/* One of some words: its index. */
static int read_word(struct kvl_yaml *y, const yaml_node_t *v, const char *key,
                     const char *const *words, size_t n, size_t *out)
{
    const char *text;
    struct kvl_buf list = { 0 };
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    for (*out = 0; *out < n; ++*out)
        if (!strcmp(text, words[*out])) return KVL_OK;
    for (size_t i = 0; i < n; i++) kvl_buf_printf(&list, "%s%s", i ? ", " : "", words[i]);
    int rc = kvl_yaml_fail(y, v, key, "\"%s\", want one of: %s", text, list.data ? list.data : "");
    kvl_buf_free(&list);
    return rc;
}

static int read_source(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    static const char *const words[] = { "stated", "picture", "secondary" };
    size_t i;
    KVL_TRY(read_word(y, v, key, words, 3, &i));
    ((struct kvl_published *)user)->source = words[i];
    return KVL_OK;
}

static int read_x(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    static const char *const words[] = { "budget", "share", "length" };
    size_t i;
    KVL_TRY(read_word(y, v, key, words, 3, &i));
    ((struct kvl_published *)user)->x = (enum kvl_published_x)i;
    return KVL_OK;
}

static int read_measure(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    const char *words[16];
    size_t i;
    for (i = 0; i < kvl_n_measures; i++) words[i] = kvl_measures[i].name;
    KVL_TRY(read_word(y, v, key, words, kvl_n_measures, &i));
    ((struct kvl_published *)user)->measure = &kvl_measures[i];
    return KVL_OK;
}

static int read_analysis(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    static const char *const words[] = { "false", "true" };
    size_t i;
    KVL_TRY(read_word(y, v, key, words, 2, &i));
    ((struct kvl_published *)user)->analysis = i;
    return KVL_OK;
}

static int read_setup(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct kvl_published *p = user;
    for (size_t i = 0; i < kvl_yaml_n_pairs(v); i++) {
        yaml_node_t *text;
        if (p->n_setup == KVL_PUBLISHED_SETUP)
            return kvl_yaml_fail(y, v, key, "more than %d lines", KVL_PUBLISHED_SETUP);
        KVL_TRY(kvl_yaml_pair(y, v, i, &p->setup[p->n_setup].name, &text));
        KVL_TRY(kvl_yaml_text(y, text, key, &p->setup[p->n_setup++].text));
    }
    return KVL_OK;
}

/* "~" is NaN. */
static int read_numbers(struct kvl_yaml *y, yaml_node_t *v, const char *key, double *out, size_t *n)
{
    if (kvl_yaml_len(v) > KVL_PUBLISHED_X)
        return kvl_yaml_fail(y, v, key, "%zu numbers, at most %d", kvl_yaml_len(v),
                             KVL_PUBLISHED_X);
    for (*n = 0; *n < kvl_yaml_len(v); ++*n) {
        const char *text;
        char *end;
        KVL_TRY(kvl_yaml_text(y, kvl_yaml_at(y, v, *n), key, &text));
        out[*n] = strtod(text, &end);
        if (!strcmp(text, "~"))
            out[*n] = KVL_NAN;
        else if (end == text || *end)
            return kvl_yaml_fail(y, v, key, "\"%s\", want a number or ~", text);
    }
    return KVL_OK;
}

static int read_small_x(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct kvl_published *p = user;
    return read_numbers(y, v, key, p->small_x, &p->n_small_x);
}

static int read_figures(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct kvl_published *p = user;
    for (size_t i = 0; i < kvl_yaml_len(v) && i < sizeof p->figure / sizeof *p->figure; i++)
        KVL_TRY(kvl_yaml_text(y, kvl_yaml_at(y, v, i), key, &p->figure[p->n_figures++]));
    return KVL_OK;
}

static int read_series_key(struct kvl_yaml *y, yaml_node_t *v, const char *name,
                           struct kvl_published_series *s, size_t *n_x, size_t *n_y)
{
    const struct {
        const char *name, **text;
    } texts[] = { { "name", &s->name },
                  { "policy", &s->policy },
                  { "options", &s->options },
                  { "task", &s->task },
                  { "protocol", &s->protocol },
                  { "budget", &s->budget },
                  { "small_budget", &s->small_budget } };
    if (!strcmp(name, "x")) return read_numbers(y, v, "series.x", s->x, n_x);
    if (!strcmp(name, "y")) return read_numbers(y, v, "series.y", s->y, n_y);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        if (!strcmp(name, texts[i].name)) return kvl_yaml_text(y, v, name, texts[i].text);
    return kvl_yaml_fail(y, v, "series", "unknown key \"%s\"", name);
}

static int read_series(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct kvl_published *p = user;
    for (size_t i = 0; i < kvl_yaml_len(v); i++) {
        yaml_node_t *item = kvl_yaml_at(y, v, i), *value;
        struct kvl_published_series *s = &p->series[p->n_series];
        size_t n_y = 0;
        const char *name;
        if (p->n_series++ == KVL_PUBLISHED_SERIES)
            return kvl_yaml_fail(y, v, key, "more than %d series", KVL_PUBLISHED_SERIES);
        *s = (struct kvl_published_series){ 0 };
        for (size_t k = 0; k < kvl_yaml_n_pairs(item); k++) {
            KVL_TRY(kvl_yaml_pair(y, item, k, &name, &value));
            KVL_TRY(read_series_key(y, value, name, s, &s->n, &n_y));
        }
        if (!s->name || s->n == 0 || n_y != s->n)
            return kvl_yaml_fail(y, item, key, "%zu x and %zu y, want a name and as many of both",
                                 s->n, n_y);
    }
    return KVL_OK;
}

static const struct kvl_yaml_key published_keys[] = {
    { "paper", read_paper, false },     { "where", read_where, false },
    { "title", read_title, false },     { "source", read_source, false },
    { "measure", read_measure, false }, { "x", read_x, false },
    { "setup", read_setup, false },     { "data", read_data, false },
    { "series", read_series, false },   { "expect", read_expect, false },
    { "note", read_note, false },       { "sweep", read_sweep, false },
    { "small", read_small, false },     { "small_x", read_small_x, false },
    { "figures", read_figures, false }, { "analysis", read_analysis, false },
};

static int published_check(const struct kvl_published *p, struct kvl_err *err)
{
    if (!p->paper || !p->where || !p->title || !p->source || !p->expect || !p->sweep || !p->small)
        return kvl_fail(err, KVL_EINVAL,
                        "%s: want paper, where, title, source, expect, sweep and small",
                        p->yaml.name);
    if (p->n_series && !p->measure)
        return kvl_fail(err, KVL_EINVAL, "%s: series without a measure", p->yaml.name);
    for (size_t s = 0; s < p->n_series; s++)
        if (p->n_small_x && p->series[s].n > p->n_small_x)
            return kvl_fail(err, KVL_EINVAL, "%s: small_x has %zu numbers, series \"%s\" %zu",
                            p->yaml.name, p->n_small_x, p->series[s].name, p->series[s].n);
    return KVL_OK;
}

static int published_read(struct kvl_published *p, const char *path, const char *name,
                          struct kvl_err *err)
{
    snprintf(p->id, sizeof p->id, "%.*s", (int)(strlen(name) - strlen(".yaml")), name);
    KVL_TRY(kvl_read_file(path, KVL_YAML_LIMIT, &p->text, err));
    KVL_TRY(kvl_yaml_load(&p->yaml, p->id, true, p->text.data, p->text.len, err));
    KVL_TRY(kvl_yaml_walk(&p->yaml, kvl_yaml_root(&p->yaml), "", published_keys,
                          sizeof published_keys / sizeof published_keys[0], p));
    return published_check(p, err);
}

/* ---- all recipes ----------------------------------------------------------------------------- */

static int is_recipe(const struct dirent *e)
{
    size_t len = strlen(e->d_name);
    return len > 5 && len < 60 && !strcmp(e->d_name + len - 5, ".yaml");
}

int kvl_published_load(const char *folder, struct kvl_published **out, size_t *n,
                       struct kvl_err *err)
{
    struct dirent **entry;
    int found = scandir(folder, &entry, is_recipe, alphasort), rc = KVL_OK;
    if (found < 0)
        return kvl_fail(err, KVL_EIO, "%s: cannot read the folder: %s", folder, strerror(errno));
    struct kvl_published *p = kvl_alloc((size_t)found + 1, sizeof *p);
    if (!p) rc = kvl_fail(err, KVL_ENOMEM, "out of memory");
    for (int i = 0; i < found; i++) {
        char path[1400];
        snprintf(path, sizeof path, "%s/%s", folder, entry[i]->d_name);
        if (rc == KVL_OK) rc = published_read(&p[i], path, entry[i]->d_name, err);
        free(entry[i]);
    }
    free(entry);
    if (rc == KVL_OK) {
        *out = p;
        *n = (size_t)found;
    } else {
        kvl_published_free(p, p ? (size_t)found : 0);
    }
    return rc;
}

void kvl_published_free(struct kvl_published *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        kvl_yaml_free(&p[i].yaml);
        kvl_buf_free(&p[i].text);
    }
    kvl_free(p);
}

/* ---- scales ---------------------------------------------------------------------------------- */

const char *const kvl_scale_names[KVL_N_SCALES] = { "paper", "small", "real" };

/* The line of a sweep that names its tasks, up to its end; NULL: it only times. */
static const char *tasks_line(const char *sweep)
{
    const char *at = strstr(sweep, "tasks: [");
    return at && (at == sweep || at[-1] == '\n') ? at : NULL;
}

/* Whether both scales have the same tasks. */
static bool tasks_stay(const struct kvl_published *p)
{
    const char *a = tasks_line(p->sweep), *b = tasks_line(p->small);
    size_t n = b ? strcspn(b, "\n") : 0;
    return a && b && strcspn(a, "\n") == n && strncmp(a, b, n) == 0;
}

static bool line_has(const char *line, const char *word)
{
    const char *at = strstr(line, word);
    return at && at < line + strcspn(line, "\n");
}

/* Whether the list on the line has two entries or more. */
static bool several(const char *line)
{
    int32_t depth = 0;
    for (const char *at = line; *at && *at != '\n'; at++) {
        depth += *at == '{' || *at == '[';
        depth -= *at == '}' || *at == ']';
        if (*at == ',' && depth == 1) return true;
    }
    return false;
}

/* What a real model is asked instead; NULL: the same.  A single task is the paper's own, and so are those that series
 * or its own sweep name; several others stand for a benchmark, as well as they were within reach of the model that
 * ships. */
static const char *real_tasks(const struct kvl_published *p)
{
    const char *line = tasks_line(p->small);
    if (!line) return NULL;
    if (line_has(line, "perplexity"))
        return "tasks: [{task: perplexity, mode: decode, tokens: 256, text: \"{data}\"}]";
    for (size_t i = 0; i < p->n_series; i++)
        if (p->series[i].task) return NULL;
    return several(line) && !tasks_stay(p) ? "tasks: [{preset: small}]" : NULL;
}

bool kvl_published_wants_data(const struct kvl_published *p, enum kvl_scale scale)
{
    const char *tasks = scale == KVL_SCALE_REAL ? real_tasks(p) : NULL;
    return p->data && (scale == KVL_SCALE_PAPER || (tasks && strstr(tasks, "{data}")));
}

static void write_text(const char *text, size_t n, const char *data, FILE *out)
{
    static const char word[] = "{data}";
    const size_t len = sizeof word - 1;
    for (const char *s = text; s < text + n;) {
        bool is_data = data && !strncmp(s, word, len);
        if (is_data)
            fputs(data, out);
        else
            fputc(*s, out);
        s += is_data ? len : 1;
    }
}

void kvl_published_write(const struct kvl_published *p, enum kvl_scale scale, const char *data,
                         FILE *out)
{
    const char *text = scale == KVL_SCALE_PAPER ? p->sweep : p->small;
    const char *tasks = scale == KVL_SCALE_REAL ? real_tasks(p) : NULL;
    if (tasks) {
        const char *line = tasks_line(p->small);
        write_text(text, (size_t)(line - text), data, out);
        write_text(tasks, strlen(tasks), data, out);
        text = line + strcspn(line, "\n");
    }
    write_text(text, strlen(text), data, out);
}

/* ---- our numbers ----------------------------------------------------------------------------- */

double kvl_published_our_x(const struct kvl_published *p, const struct kvl_published_series *s,
                           size_t i, bool small)
{
    return small && i < p->n_small_x ? p->small_x[i] : s->x[i];
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-6 * fabs(b);
}

/* Whether a list of options has all of another one: whole items, since sink=1 is in sink=16. */
static bool options_have(const char *asked, const char *wanted)
{
    for (const char *w = wanted; *w;) {
        size_t n = strcspn(w, ",");
        bool found = false;
        for (const char *a = asked; *a && !found;) {
            size_t m = strcspn(a, ",");
            found = m == n && memcmp(a, w, n) == 0;
            a += m + (a[m] == ',');
        }
        if (!found) return false;
        w += n + (w[n] == ',');
    }
    return true;
}

/* Of the model of the newest run alone: a log may have several. */
static bool series_takes(const struct kvl_published *p, const struct kvl_published_series *s,
                         double x, bool small, const struct kvl_results *all,
                         const struct kvl_result *r)
{
    const char *budget = small && s->small_budget ? s->small_budget : s->budget;
    if (strcmp(r->model_hash, kvl_json_text(all->newest_run, "model.hash")) != 0) return false;
    if (strcmp(r->policy, s->policy ? s->policy : s->name) != 0) return false;
    if (s->options && !options_have(r->asked, s->options)) return false;
    if (s->task && strcmp(r->task, s->task) != 0 && strcmp(r->task_label, s->task) != 0)
        return false;
    if (s->protocol && strcmp(r->protocol, s->protocol) != 0) return false;
    if (budget && strcmp(r->budget, budget) != 0) return false;
    if (p->x == KVL_X_LENGTH) return near(r->length_tok, x);
    if (r->bound == KVL_BOUND_FULL || isnan(r->budget_tok))
        return true; /* level: at every budget */
    bool share = strchr(r->budget, '%') != NULL;
    return share == (p->x == KVL_X_SHARE) && near(strtod(r->budget, NULL), x);
}

static const struct kvl_result *full_of(const struct kvl_results *all, const struct kvl_result *r)
{
    const struct kvl_result *best = NULL;
    for (size_t i = 0; i < all->n; i++) {
        const struct kvl_result *f = &all->result[i];
        if (f->bound != KVL_BOUND_FULL || kvl_result_block_cmp(f, r, 0)) continue;
        if (!best || kvl_result_kv_cmp(f, best) <= 0) best = f;
    }
    return best;
}

static int contexts_order(const void *a, const void *b)
{
    return kvl_result_contexts_cmp(*(const struct kvl_result *const *)a,
                                   *(const struct kvl_result *const *)b);
}

/* The accuracy of all cells of a point together. */
static struct kvl_interval pooled(const struct kvl_published *p,
                                  const struct kvl_published_series *s, double x, bool small,
                                  const struct kvl_results *r)
{
    struct kvl_pool pool = { 0 };
    const struct kvl_result **cell = kvl_alloc(r->n + 1, sizeof *cell);
    size_t n = 0;
    for (size_t k = 0; cell && k < r->n; k++)
        if (series_takes(p, s, x, small, r, &r->result[k])) cell[n++] = &r->result[k];
    if (n > 1) qsort(cell, n, sizeof *cell, contexts_order);
    for (size_t k = 0; k < n; k++) kvl_pool_add(&pool, cell[k]);
    kvl_free(cell);
    return kvl_pool_accuracy(&pool);
}

struct kvl_interval kvl_published_ours(const struct kvl_published *p,
                                       const struct kvl_published_series *s, size_t i, bool small,
                                       const struct kvl_results *r)
{
    double x = kvl_published_our_x(p, s, i, small), sum = 0, n = 0;
    struct kvl_interval v = { KVL_NAN, KVL_NAN, KVL_NAN };
    if (p->measure->pools) return times(pooled(p, s, x, small, r), 100);
    for (size_t k = 0; k < r->n; k++) {
        const struct kvl_result *c = &r->result[k];
        if (!series_takes(p, s, x, small, r, c)) continue;
        struct kvl_interval one = p->measure->of(c, full_of(r, c));
        if (isnan(one.mean)) continue;
        v = one;
        sum += one.mean;
        n++;
    }
    return n > 1 ? exactly(sum / n) : v;
}
