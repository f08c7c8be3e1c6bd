/* What a result is called in tables and figures, and where it stands.
 *
 * A policy is called by its name alone, unless two results of one block, budget and prefill differ in
 * options: then those that differ belong to the name of all results of that policy that were given
 * them.  What the method made of others does not: it follows from the budget, the prefill and what
 * was given.  Where a log has results of several versions of a policy, the version follows: "quest v3"; where it has
 * results of one model with several types of keys and values, the type: "quest, kv q8_0".  A task is called by its name and the options that are not its defaults. */
#include "registry.h"
#include "report.h"
#include "results.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int labels_memory(struct kvl_err *err)
{
    return kvl_fail(err, KVL_ENOMEM, "no memory for the names of results");
}

/* ---- order --------------------------------------------------------------------------------- */

/* NaN (none) comes first. */
static int number_cmp(double a, double b)
{
    if (isnan(a) || isnan(b)) return isnan(b) - isnan(a);
    return (a > b) - (a < b);
}

int kvl_result_set_cmp(const struct kvl_result *a, const struct kvl_result *b)
{
    int c = strcmp(a->model, b->model);
    if (!c) c = strcmp(a->model_hash, b->model_hash);
    if (!c) c = strcmp(a->prefill_type, b->prefill_type);
    if (!c) c = strcmp(a->decode_act, b->decode_act);
    if (!c) c = strcmp(a->prefill_kv, b->prefill_kv);
    if (!c) c = number_cmp(a->seed, b->seed);
    return c ? c : strcmp(a->device, b->device);
}

/* "data=" and the hash of the files in the text of a point; "" where its contexts are made. */
static const char *contexts_data(const struct kvl_result *x)
{
    const char *options = strstr(kvl_json_text(x->record, "key"), ";task_options=data=");
    return options ? options + strlen(";task_options=") : "";
}

int kvl_result_contexts_cmp(const struct kvl_result *a, const struct kvl_result *b)
{
    const char *x = contexts_data(a), *y = contexts_data(b);
    int c = strncmp(x, y, strlen("data=0123456789abcdef"));
    if (c || *x) return c;
    c = number_cmp(a->seed, b->seed);
    if (!c) c = strcmp(a->task, b->task);
    if (!c) c = strcmp(a->task_options, b->task_options);
    if (!c) c = number_cmp(a->length_tok, b->length_tok);
    return c ? c : number_cmp(a->depth, b->depth);
}

int kvl_result_setup_cmp(const struct kvl_result *a, const struct kvl_result *b)
{
    int c = number_cmp(a->threads, b->threads);
    if (!c) c = strcmp(a->host, b->host);
    if (!c) c = strcmp(a->gpu, b->gpu);
    return c ? c : strcmp(a->driver, b->driver);
}

bool kvl_result_same_setup(const struct kvl_result *a, const struct kvl_result *b)
{
    return strcmp(a->device, b->device) == 0 && kvl_result_setup_cmp(a, b) == 0;
}

int kvl_result_block_cmp(const struct kvl_result *a, const struct kvl_result *b, unsigned skip)
{
    int c = kvl_result_set_cmp(a, b);
    if (!c && !(skip & KVL_BLOCK_TASK)) {
        c = strcmp(a->task, b->task);
        if (!c) c = strcmp(a->task_options, b->task_options);
    }
    if (!c && !(skip & KVL_BLOCK_PROTOCOL)) {
        c = strcmp(a->protocol, b->protocol);
        if (!c) c = (int)b->is_cell - (int)a->is_cell;
        if (!c) c = strcmp(a->chat, b->chat);
        if (!c) c = strcmp(a->system, b->system);
        if (!c) c = strcmp(a->sampling, b->sampling);
        if (!c && !a->is_cell) c = kvl_result_setup_cmp(a, b);
    }
    if (!c && !(skip & KVL_BLOCK_LENGTH)) c = number_cmp(a->length_tok, b->length_tok);
    if (!c && !(skip & KVL_BLOCK_DEPTH)) c = number_cmp(a->depth, b->depth);
    return c;
}

static int budget_cmp(const struct kvl_result *a, const struct kvl_result *b)
{
    int c = number_cmp(a->budget_tok, b->budget_tok);
    return c ? c : strcmp(a->budget, b->budget);
}

/* Types in the order of their table, and pairs behind it: f16 before what loses more. */
int kvl_result_kv_cmp(const struct kvl_result *a, const struct kvl_result *b)
{
    enum kvl_kv_type x = KVL_KV_PAIRS, y = KVL_KV_PAIRS;
    (void)kvl_kv_find(a->kv_type, &x);
    (void)kvl_kv_find(b->kv_type, &y);
    return x != y ? (x > y) - (x < y) : strcmp(a->kv_type, b->kv_type);
}

int kvl_result_row_cmp(const struct kvl_result *a, const struct kvl_result *b)
{
    int c = (int)a->bound - (int)b->bound;
    if (!c) c = strcmp(a->policy, b->policy);
    if (!c) c = (a->version > b->version) - (a->version < b->version);
    if (!c) c = kvl_result_kv_cmp(a, b);
    if (!c && a->label && b->label) c = strcmp(a->label, b->label);
    return c ? c : budget_cmp(a, b);
}

static int result_order(const void *a, const void *b)
{
    const struct kvl_result *x = a, *y = b;
    int c = (int)x->outdone - (int)y->outdone;
    if (!c) c = kvl_result_block_cmp(x, y, 0);
    if (!c) c = kvl_result_row_cmp(x, y);
    if (!c) c = strcmp(x->options, y->options);
    if (!c) c = strcmp(x->exec, y->exec);
    if (!c) c = strcmp(x->prefill, y->prefill);
    return c ? c : strcmp(x->id, y->id);
}

/* ---- options ------------------------------------------------------------------------------- */

/* The next "key=value" of an option text; commas inside parentheses belong to the value. */
static const char *option_next(const char *text, const char **end)
{
    int depth = 0;
    const char *p = text;
    for (; *p && (depth || *p != ','); p++) depth += (*p == '(') - (*p == ')');
    *end = p;
    return *text ? text : NULL;
}

static bool option_has(const char *options, const char *pair, size_t len)
{
    const char *end;
    for (const char *o = options; (o = option_next(o, &end)); o = end + (*end == ','))
        if ((size_t)(end - o) == len && memcmp(o, pair, len) == 0) return true;
    return false;
}

/* Adds to `keys` the names of options of a that b has not with the same value. */
static int options_differ(const char *a, const char *b, json_t *keys)
{
    const char *end;
    for (const char *o = a; (o = option_next(o, &end)); o = end + (*end == ',')) {
        if (option_has(b, o, (size_t)(end - o))) continue;
        size_t n = strcspn(o, "=");
        char key[64];
        if (n >= sizeof key) continue;
        memcpy(key, o, n);
        key[n] = '\0';
        if (json_object_set_new(keys, key, json_true()) != 0) return -1;
    }
    return 0;
}

/* policy -> names of the options that belong to its label */
static json_t *policy_keys(json_t *all, const char *policy)
{
    json_t *keys = json_object_get(all, policy);
    if (!keys && json_object_set_new(all, policy, json_object()) == 0)
        keys = json_object_get(all, policy);
    return keys;
}

/* Whether they stand beside each other and nothing but options can tell them apart. */
static bool keys_same_place(const struct kvl_result *a, const struct kvl_result *b)
{
    return !kvl_result_block_cmp(a, b, 0) && strcmp(a->policy, b->policy) == 0 &&
           a->version == b->version && !kvl_result_kv_cmp(a, b) && !budget_cmp(a, b) &&
           strcmp(a->prefill, b->prefill) == 0;
}

/* Results of one place follow each other, but for the prefill: each is compared with the next of its
 * own. */
static int keys_collect(const struct kvl_results *r, json_t *all)
{
    for (size_t i = 0; i < r->n; i++) {
        const struct kvl_result *a = &r->result[i], *b = a + 1, *end = r->result + r->n;
        while (b < end && strcmp(a->policy, b->policy) == 0 && !keys_same_place(a, b)) b++;
        if (b == end || strcmp(a->policy, b->policy) != 0) continue;
        json_t *keys = policy_keys(all, a->policy);
        if (!keys || options_differ(a->options, b->options, keys) != 0 ||
            options_differ(b->options, a->options, keys) != 0)
            return -1;
    }
    return 0;
}

/* ---- labels -------------------------------------------------------------------------------- */

/* policy -> its version; 0: of several. */
static json_t *versions_collect(const struct kvl_results *r)
{
    json_t *all = json_object();
    for (size_t i = 0; i < r->n_all && all; i++) {
        const struct kvl_result *x = &r->result[i];
        json_t *known = json_object_get(all, x->policy);
        bool same = !known || json_integer_value(known) == x->version;
        if (json_object_set_new(all, x->policy, json_integer(same ? x->version : 0)) != 0) {
            json_decref(all);
            return NULL;
        }
    }
    return all;
}

/* Models of which the log has several types of keys and values; NULL: no memory. */
static json_t *kv_collect(const struct kvl_results *r)
{
    json_t *first = json_object(), *several = json_object();
    int failed = first && several ? 0 : -1;
    for (size_t i = 0; i < r->n_all && !failed; i++) {
        const struct kvl_result *x = &r->result[i];
        const json_t *known = json_object_get(first, x->model);
        if (!known)
            failed = json_object_set_new(first, x->model, json_string(x->kv_type));
        else if (strcmp(json_string_value(known), x->kv_type) != 0)
            failed = json_object_set_new(several, x->model, json_true());
    }
    json_decref(first);
    if (!failed) return several;
    json_decref(several);
    return NULL;
}

static int label_build(struct kvl_result *x, const json_t *keys, const json_t *versions,
                       const json_t *kv)
{
    struct kvl_buf b = { 0 };
    const char *end;
    int n = 0, rc = kvl_buf_adds(&b, x->policy);
    for (const char *o = x->asked; (o = option_next(o, &end)); o = end + (*end == ',')) {
        char key[64];
        size_t len = strcspn(o, "=");
        if (len >= sizeof key) continue;
        memcpy(key, o, len);
        key[len] = '\0';
        if (!json_object_get(keys, key)) continue;
        if (rc == KVL_OK) rc = kvl_buf_printf(&b, "%s%.*s", n++ ? "," : "(", (int)(end - o), o);
    }
    if (rc == KVL_OK && n) rc = kvl_buf_adds(&b, ")");
    if (rc == KVL_OK && json_integer_value(json_object_get(versions, x->policy)) != x->version)
        rc = kvl_buf_printf(&b, " v%lld", (long long)x->version);
    if (rc == KVL_OK && json_object_get(kv, x->model))
        rc = kvl_buf_printf(&b, ", kv %s", x->kv_type);
    /* Whoever reads the context itself meets it otherwise, always said; shared is what goes without
     * saying. */
    if (rc == KVL_OK && strcmp(x->prefill, "own") == 0) rc = kvl_buf_adds(&b, ", own prefill");
    /* A masked run only imitates what a method does: it is never shown as the method. */
    if (rc == KVL_OK && strcmp(x->exec, "masked") == 0) rc = kvl_buf_adds(&b, " masked");
    x->label = b.data;
    return rc;
}

/* The defaults of a task as options are written; empty for one that this program does not have. */
static int task_defaults(const char *name, struct kvl_buf *out)
{
    const struct kvl_task *task = kvl_builtin_task(name);
    if (!task || !task->opts) return kvl_buf_adds(out, "");
    void *opts = kvl_alloc(1, task->opts_size);
    int rc = opts ? kvl_opt_defaults(task->opts, opts, NULL) : KVL_ENOMEM;
    if (rc == KVL_OK) rc = kvl_opt_print(task->opts, opts, out);
    kvl_free(opts);
    return rc == KVL_OK ? kvl_buf_adds(out, "") : rc;
}

/* Of a task that reads files: the part of the benchmark, which has its name always, and not where the files
 * lie. */
static bool task_option_shown(const char *task, const char *option, const char *defaults, size_t n)
{
    const struct kvl_task *t = kvl_builtin_task(task);
    for (const struct kvl_opt *o = t && t->open ? t->opts : NULL; o && o->name; o++) {
        size_t len = strlen(o->name);
        if (len >= n || option[len] != '=' || memcmp(option, o->name, len) != 0) continue;
        if (o->type == KVL_OPT_PATH && strcmp(o->name, "dir") == 0) return false;
        if (strcmp(o->name, "name") == 0) return true;
    }
    return !option_has(defaults, option, n);
}

/* An option as the label has it: of a file its name, not where it lies. */
static int task_option_add(const char *task, const char *option, size_t n, const char *before,
                           struct kvl_buf *out)
{
    const struct kvl_task *t = kvl_builtin_task(task);
    const char *value = memchr(option, '=', n);
    size_t name = value ? (size_t)(value - option) : 0;
    for (const struct kvl_opt *o = t ? t->opts : NULL; value && o && o->name; o++) {
        if (o->type != KVL_OPT_PATH || strlen(o->name) != name) continue;
        if (memcmp(option, o->name, name) != 0) continue;
        const char *file = option + n;
        while (file > value + 1 && file[-1] != '/') file--;
        return kvl_buf_printf(out, "%s%.*s=%.*s", before, (int)name, option,
                              (int)(option + n - file), file);
    }
    return kvl_buf_printf(out, "%s%.*s", before, (int)n, option);
}

static int task_label_build(struct kvl_result *x)
{
    struct kvl_buf b = { 0 }, defaults = { 0 };
    const char *end;
    int n = 0, rc = kvl_buf_adds(&b, x->task);
    if (rc == KVL_OK) rc = task_defaults(x->task, &defaults);
    for (const char *o = x->task_options; rc == KVL_OK && (o = option_next(o, &end));
         o = end + (*end == ',')) {
        if (!task_option_shown(x->task, o, defaults.data, (size_t)(end - o))) continue;
        rc = task_option_add(x->task, o, (size_t)(end - o), n++ ? "," : "(", &b);
    }
    if (rc == KVL_OK && n) rc = kvl_buf_adds(&b, ")");
    if (rc == KVL_OK && kvl_report_unofficial(x)) rc = kvl_buf_adds(&b, " [not official]");
    kvl_buf_free(&defaults);
    x->task_label = b.data;
    return rc;
}

/* What tells results of one model from each other, as far as it does in this log. */
struct set_keys {
    bool file, prefill_type, decode_act, prefill_kv, seed, setup;
};

static struct set_keys set_keys(const struct kvl_results *r)
{
    struct set_keys k = { .setup = r->n_setups > 1 };
    for (size_t i = 1; i < r->n; i++) {
        const struct kvl_result *a = &r->result[i - 1], *b = &r->result[i];
        if (strcmp(a->model, b->model) != 0) continue;
        k.file |= strcmp(a->model_hash, b->model_hash) != 0;
        k.prefill_type |= strcmp(a->prefill_type, b->prefill_type) != 0;
        k.decode_act |= strcmp(a->decode_act, b->decode_act) != 0;
        k.prefill_kv |= strcmp(a->prefill_kv, b->prefill_kv) != 0;
        k.seed |= number_cmp(a->seed, b->seed) != 0;
    }
    return k;
}

static int set_build(struct kvl_result *x, const struct set_keys *k)
{
    struct kvl_buf b = { 0 };
    int rc = kvl_buf_adds(&b, "");
    if (rc == KVL_OK && k->file) rc = kvl_buf_printf(&b, ", file %.12s", x->model_hash);
    if (rc == KVL_OK && k->prefill_type) rc = kvl_buf_printf(&b, ", prefill %s", x->prefill_type);
    if (rc == KVL_OK && k->decode_act) rc = kvl_buf_printf(&b, ", decode %s", x->decode_act);
    if (rc == KVL_OK && k->prefill_kv)
        rc = kvl_buf_printf(&b, ", prefill to the %s", x->prefill_kv);
    if (rc == KVL_OK && k->seed && !isnan(x->seed)) rc = kvl_buf_printf(&b, ", seed %.0f", x->seed);
    if (rc == KVL_OK && k->setup && !x->is_cell)
        rc = kvl_buf_printf(&b, ", %.0f threads on %s", x->threads, x->host);
    if (rc == KVL_OK && k->setup && !x->is_cell && *x->gpu)
        rc = kvl_buf_printf(&b, " (%s, driver %s)", x->gpu, x->driver);
    x->set = b.data;
    return rc;
}

/* ---- one cell per point -------------------------------------------------------------------- */

static double samples_of(const struct kvl_result *x)
{
    return (isnan(x->n) ? 0 : x->n) + (isnan(x->n_errors) ? 0 : x->n_errors);
}

static bool same_row(const struct kvl_result *a, const struct kvl_result *b)
{
    return a->is_cell && kvl_result_block_cmp(a, b, 0) == 0 && kvl_result_row_cmp(a, b) == 0 &&
           strcmp(a->options, b->options) == 0 && strcmp(a->exec, b->exec) == 0 &&
           strcmp(a->prefill, b->prefill) == 0;
}

/* Pooled or side by side, cells that differ in contexts, questions or versions of the task alone would
 * count contexts twice. */
size_t kvl_results_outdone(struct kvl_results *r)
{
    struct kvl_result *best = r->result;
    size_t n = 0;
    if (r->n_all) qsort(r->result, r->n_all, sizeof *r->result, result_order);
    for (size_t i = 1; i < r->n_all; i++) {
        struct kvl_result *x = &r->result[i], *less = x;
        if (!same_row(best, x)) {
            best = x;
            continue;
        }
        double more = samples_of(x) - samples_of(best);
        int later = strcmp(kvl_json_text(x->record, "t_end"), kvl_json_text(best->record, "t_end"));
        if (more > 0 || (!(more < 0) && later > 0)) {
            less = best;
            best = x;
        }
        less->outdone = true;
        n++;
    }
    return n;
}

bool kvl_results_stale(const struct kvl_results *r)
{
    for (size_t i = 0; i < r->n; i++)
        if (r->result[i].stale) return true;
    return false;
}

/* A star where any result of the label is stale: a curve is of all of them. */
static int shown_build(struct kvl_results *r)
{
    json_t *stale = json_object();
    int failed = stale ? 0 : -1;
    for (size_t i = 0; i < r->n; i++)
        if (r->result[i].stale)
            failed |= json_object_set_new(stale, r->result[i].label, json_true());
    for (size_t i = 0; i < r->n_all && !failed; i++) {
        struct kvl_buf b = { 0 };
        const char *label = r->result[i].label;
        failed = kvl_buf_printf(&b, "%s%s", label, json_object_get(stale, label) ? " *" : "");
        r->result[i].shown = b.data;
    }
    json_decref(stale);
    return failed ? KVL_ENOMEM : KVL_OK;
}

int kvl_results_label(struct kvl_results *r, struct kvl_err *err)
{
    if (r->n_all == 0) return KVL_OK;
    qsort(r->result, r->n_all, sizeof *r->result, result_order);
    json_t *all = json_object(), *versions = versions_collect(r), *kv = kv_collect(r);
    struct set_keys set = set_keys(r);
    bool ok = all && versions && kv && keys_collect(r, all) == 0;
    for (size_t i = 0; i < r->n_all && ok; i++)
        ok = label_build(&r->result[i], json_object_get(all, r->result[i].policy), versions, kv) ==
                 KVL_OK &&
             task_label_build(&r->result[i]) == KVL_OK && set_build(&r->result[i], &set) == KVL_OK;
    json_decref(all);
    json_decref(versions);
    json_decref(kv);
    if (!ok || shown_build(r) != KVL_OK) return labels_memory(err);
    qsort(r->result, r->n_all, sizeof *r->result, result_order);
    return KVL_OK;
}
