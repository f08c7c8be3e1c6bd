/* What methods count and say of themselves: `kvlab report --method`, and notes below the tables. */
#include "report.h"

#include "text_table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { METHOD_BUDGETS = 8 }; /* columns that fit a terminal */

/* ---- numbers --------------------------------------------------------------------------------- */

static json_t *method_numbers(const struct kvl_result *x)
{
    json_t *v = x->is_cell ? kvl_json_value(x->record, "method") : NULL;
    return json_is_object(v) && json_object_size(v) > 0 ? v : NULL;
}

static void method_number(struct kvl_table *t, const json_t *v)
{
    if (json_is_number(v))
        kvl_table_add(t, "%.4g", json_number_value(v));
    else
        kvl_table_add(t, "-");
}

/* A row per name that any of n results of one label has, a column per budget. */
static int method_table(const struct kvl_result *x, size_t n, enum kvl_table_form form, FILE *out,
                        struct kvl_err *err)
{
    char label[160];
    struct kvl_column column[METHOD_BUDGETS + 1] = { { label, true } };
    struct kvl_table t = { .form = form, .column = column, .n_columns = n + 1 };
    const char *name;
    json_t *v, *names = json_object();
    bool stale = false;
    for (size_t i = 0; i < n; i++) {
        stale |= x[i].stale;
        column[i + 1] = (struct kvl_column){ x[i].budget, false };
        json_object_update(names, method_numbers(&x[i]));
    }
    snprintf(label, sizeof label, "%s%s", x->label, stale ? " *" : "");
    json_object_foreach(names, name, v)
    {
        kvl_table_add(&t, "%s", name);
        for (size_t i = 0; i < n; i++)
            method_number(&t, json_object_get(method_numbers(&x[i]), name));
    }
    json_decref(names);
    int rc = names ? kvl_table_print(&t, 2, out, err)
                   : kvl_fail(err, KVL_ENOMEM, "no memory for a table of results");
    kvl_table_free(&t);
    return rc;
}

int kvl_report_method(const struct kvl_result *x, size_t n, enum kvl_table_form form, FILE *out,
                      struct kvl_err *err)
{
    bool any = false;
    for (size_t i = 0, end; i < n; i = end) {
        end = i + 1;
        if (!method_numbers(&x[i])) continue;
        while (end < n && end - i < METHOD_BUDGETS && method_numbers(&x[end]) &&
               strcmp(x[i].label, x[end].label) == 0)
            end++;
        if (any) fputc('\n', out);
        KVL_TRY(method_table(&x[i], end - i, form, out, err));
        any = true;
    }
    return KVL_OK;
}

/* ---- notes ----------------------------------------------------------------------------------- */

/* Results of one model and label that have one note. */
struct method_note {
    const struct kvl_results *r;
    const struct kvl_result *of;
    const char *text;
};

static double method_note_count(const struct method_note *note, const struct kvl_result *x)
{
    json_t *notes = x->is_cell ? kvl_json_value(x->record, "notes") : NULL;
    if (kvl_result_set_cmp(x, note->of) != 0 || strcmp(x->label, note->of->label) != 0) return 0;
    const json_t *n = json_object_get(notes, note->text);
    return json_is_number(n) ? json_number_value(n) : 0;
}

/* Mean of a number over the answers that have the note. */
static double method_note_mean(const struct method_note *note, const char *name)
{
    double sum = 0, n = 0;
    for (size_t i = 0; i < note->r->n; i++) {
        const struct kvl_result *x = &note->r->result[i];
        double count = method_note_count(note, x);
        const json_t *v = json_object_get(method_numbers(x), name);
        if (count <= 0 || !json_is_number(v)) continue;
        sum += count * json_number_value(v);
        n += count;
    }
    return n > 0 ? sum / n : KVL_NAN;
}

/* What stands for "{name}" or "{name%}", `at` behind the brace. */
static void method_note_value(const struct method_note *note, const char *at, size_t len, FILE *out)
{
    char name[64];
    bool percent = len > 0 && at[len - 1] == '%';
    if (len >= sizeof name) len = sizeof name - 1;
    memcpy(name, at, len - percent);
    name[len - percent] = '\0';
    double v = method_note_mean(note, name);
    if (isnan(v))
        fputc('?', out);
    else if (percent)
        fprintf(out, "%.0f %%", 100 * v);
    else
        fprintf(out, "%.4g", v);
}

static void method_note_print(const struct method_note *note, FILE *out)
{
    double n = 0, all = 0;
    for (size_t i = 0; i < note->r->n; i++) {
        const struct kvl_result *x = &note->r->result[i];
        bool same = x->is_cell && kvl_result_set_cmp(x, note->of) == 0 &&
                    strcmp(x->label, note->of->label) == 0;
        n += method_note_count(note, x);
        if (same && !isnan(x->n)) all += x->n;
    }
    fprintf(out, "%s: ", note->of->label);
    for (const char *p = note->text; *p; p++) {
        size_t len = *p == '{' ? strcspn(p, "}") : 0;
        if (len > 1 && p[len] == '}') {
            method_note_value(note, p + 1, len - 1, out);
            p += len;
        } else {
            fputc(*p, out);
        }
    }
    fprintf(out, "; %.0f of %.0f answers.\n", n, all);
}

/* Whether an earlier result of that label has the note, too. */
static bool method_note_said(const struct method_note *note)
{
    for (const struct kvl_result *x = note->r->result; x < note->of; x++)
        if (method_note_count(note, x) > 0) return true;
    return false;
}

void kvl_report_method_notes(const struct kvl_results *r, FILE *out)
{
    for (size_t i = 0; i < r->n; i++) {
        const char *text;
        json_t *v;
        struct method_note note = { .r = r, .of = &r->result[i] };
        json_t *notes = r->result[i].is_cell ? kvl_json_value(r->result[i].record, "notes") : NULL;
        json_object_foreach(notes, text, v)
        {
            note.text = text;
            if (!method_note_said(&note)) method_note_print(&note, out);
        }
    }
}
