/* What a table says about a task of a benchmark's files: whose score it is, what the cut took, what is answered
 * without the context. */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char files_control[] = KVL_CONTROL_NO_CONTEXT;

/* A label without the option that leaves contexts out; NULL: it has none, or no memory.  free. */
static char *files_label(const char *label)
{
    const char *at = strstr(label, files_control);
    char *bare = at ? strdup(label) : NULL;
    if (!bare) return NULL;
    size_t begin = (size_t)(at - label), n = strlen(files_control);
    if (begin > 0 && bare[begin - 1] == ',')
        begin--, n++;
    else if (bare[begin + n] == ',')
        n++;
    else if (begin > 0 && bare[begin - 1] == '(' && bare[begin + n] == ')')
        begin--, n += 2;
    memmove(bare + begin, bare + begin + n, strlen(bare + begin + n) + 1);
    return bare;
}

/* Whether `x` asks the questions of `block` without their contexts. */
static bool files_control_of(const struct kvl_result *x, const struct kvl_result *block)
{
    if (!x->is_cell || x->length_tok != block->length_tok || isnan(x->official.mean) ||
        strcmp(x->task, block->task) != 0 || strcmp(x->model_hash, block->model_hash) != 0)
        return false;
    char *label = files_label(x->task_label);
    bool same = label && strcmp(label, block->task_label) == 0;
    free(label);
    return same;
}

double kvl_report_lost(const struct kvl_result *x, size_t n)
{
    double lost = 0.0;
    for (size_t i = 0; i < n; i++) lost = fmax(lost, kvl_json_number(x[i].record, "evidence.lost"));
    return lost;
}

const char *kvl_report_unofficial(const struct kvl_result *x)
{
    const char *why = json_string_value(json_object_get(x->record, "not_official"));
    bool judged = json_is_true(json_object_get(x->record, "judged")); /* of older logs */
    return why ? why : judged ? "the benchmark lets a language model judge" : NULL;
}

const struct kvl_result *kvl_report_no_context(const struct kvl_results *r,
                                               const struct kvl_result *x)
{
    for (size_t i = 0; r->has_no_context && i < r->n; i++)
        if (files_control_of(&r->result[i], x)) return &r->result[i];
    return NULL;
}

void kvl_report_files(const struct kvl_results *r, const struct kvl_result *x, size_t n, FILE *out)
{
    double lost = kvl_report_lost(x, n);
    const struct kvl_result *control = kvl_report_no_context(r, x);
    if (kvl_report_unofficial(x))
        fprintf(out, "  ! not official, a score of kvlab's: %s\n", kvl_report_unofficial(x));
    if (lost > 0.0)
        fprintf(out, "  ! of %.0f questions the evidence was cut off before any policy read it\n",
                lost);
    if (control)
        fprintf(
            out, "  asked without the context, whatever the policy: %.1f %% right (%.0f-%.0f)\n",
            100 * control->official.mean, 100 * control->official.lo, 100 * control->official.hi);
}
