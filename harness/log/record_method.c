/* What methods say of themselves, bounded. */
#include "record_method.h"

#include "record_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char method_cut[] =
    "its report is not kept whole: at most 64 numbers are, their names once each and of a-z, 0-9, "
    "_ and ., and 8 notes of a line";

/* ---- one session ----------------------------------------------------------------------------- */

struct method_take {
    struct kvl_method m;
    size_t n_notes; /* of the policy */
    bool cut, no_memory;
};

static bool method_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz";
    if (!name || !*name || !strchr(letters, *name)) return false;
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_.");
    return name[n] == '\0' && n <= KVL_METHOD_NAME;
}

static void method_num(void *user, const char *name, double value)
{
    struct method_take *t = user;
    if (!method_name(name) || json_object_get(t->m.numbers, name) ||
        json_object_size(t->m.numbers) == KVL_METHOD_NAMES)
        t->cut = true;
    else if (isfinite(value))
        t->no_memory |= json_object_set_new(t->m.numbers, name, kvl_record_real(value)) != 0;
}

static bool method_line(const char *text)
{
    size_t n = 0;
    for (; text && text[n] && n <= KVL_METHOD_NOTE; n++)
        if ((unsigned char)text[n] < ' ') return false;
    return n > 0 && n <= KVL_METHOD_NOTE;
}

static void method_write(struct method_take *t, const char *text)
{
    t->no_memory |= json_array_append_new(t->m.notes, kvl_record_text(text, strlen(text))) != 0;
}

static void method_note(void *user, const char *text)
{
    struct method_take *t = user;
    if (!method_line(text) || t->n_notes == KVL_METHOD_NOTES) {
        t->cut = true;
        return;
    }
    t->n_notes++;
    method_write(t, text);
}

int kvl_method_take(struct kvl_session *s, struct kvl_method *out, struct kvl_err *err)
{
    struct method_take t = { .m = { json_object(), json_array() } };
    struct kvl_err why = { 0 };
    struct kvl_report_to to = { .user = &t, .num = method_num, .note = method_note };
    t.no_memory = !t.m.numbers || !t.m.notes;
    int rc = t.no_memory ? KVL_OK : kvl_session_report(s, &to, &why);
    if (t.cut) method_write(&t, method_cut);
    if (rc != KVL_OK) {
        char text[KVL_METHOD_NOTE];
        snprintf(text, sizeof text, "its report failed: %.170s", why.msg);
        method_write(&t, text);
    }
    if (t.no_memory) {
        kvl_method_free(&t.m);
        return kvl_fail(err, KVL_ENOMEM, "out of memory for what a policy reports");
    }
    *out = t.m;
    return KVL_OK;
}

void kvl_method_free(struct kvl_method *m)
{
    json_decref(m->numbers);
    json_decref(m->notes);
    *m = (struct kvl_method){ 0 };
}

/* Null where nothing is in it. */
static json_t *method_or_null(json_t *v)
{
    return json_object_size(v) + json_array_size(v) > 0 ? json_incref(v) : json_null();
}

/* Both are stolen. */
static json_t *method_fields(json_t *numbers, json_t *notes)
{
    json_t *r = json_object();
#define METHOD(name, type, value, means) kvl_record_put(&r, #name, type, value);
#include "fields.def"
    return r;
}

json_t *kvl_record_method(const struct kvl_method *m)
{
    return method_fields(method_or_null(m->numbers), method_or_null(m->notes));
}

void kvl_method_of(const json_t *record, struct kvl_method *out)
{
    json_t *numbers = json_object_get(record, "method"), *notes = json_object_get(record, "notes");
    kvl_method_free(out);
    if (json_is_object(numbers)) out->numbers = json_incref(numbers);
    if (json_is_array(notes)) out->notes = json_incref(notes);
}

/* ---- many sessions --------------------------------------------------------------------------- */

/* Adds to a number of an object; names beyond `most` are left out. */
static void method_count(struct kvl_method_sum *all, json_t **object, const char *name,
                         double value, size_t most)
{
    if (!*object) *object = json_object();
    json_t *v = json_object_get(*object, name);
    if (v)
        json_real_set(v, json_real_value(v) + value);
    else if (json_object_size(*object) < most || !*object)
        all->no_memory |= json_object_set_new(*object, name, json_real(value)) != 0;
}

void kvl_method_add(struct kvl_method_sum *all, const struct kvl_method *m)
{
    const char *name;
    json_t *v;
    size_t i;
    json_object_foreach(m->numbers, name, v)
    {
        if (!json_is_number(v)) continue;
        method_count(all, &all->sum, name, json_number_value(v), KVL_METHOD_NAMES);
        method_count(all, &all->n, name, 1.0, KVL_METHOD_NAMES);
    }
    json_array_foreach(m->notes, i, v)
    {
        if (json_is_string(v))
            method_count(all, &all->notes, json_string_value(v), 1.0, 2 * KVL_METHOD_NOTES);
    }
}

json_t *kvl_record_method_sum(struct kvl_method_sum *all)
{
    const char *name;
    json_t *v, *means = all->sum ? json_object() : json_null();
    json_t *notes = all->notes ? json_object() : json_null();
    int failed = !means || !notes || all->no_memory;
    json_object_foreach(all->sum, name, v)
    {
        double n = json_real_value(json_object_get(all->n, name));
        failed |= json_object_set_new(means, name, kvl_record_real(json_real_value(v) / n));
    }
    json_object_foreach(all->notes, name, v) failed |=
        json_object_set_new(notes, name, json_integer((json_int_t)json_real_value(v)));
    json_decref(all->sum);
    json_decref(all->n);
    json_decref(all->notes);
    *all = (struct kvl_method_sum){ 0 };
    json_t *r = method_fields(means, notes);
    if (!failed) return r;
    json_decref(r);
    return NULL;
}
