/* Numbers, texts and means as records have them. */
#include "record_parts.h"

#include "kvl/utf8.h"

#include "args.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { RECORD_DIGITS = 15 }; /* of a number in the log, see kvl_log_append */

/* Rounded to the digits that the log writes, so that a sample that was read back is the sample that
 * was measured: a resumed sweep has the means of an uninterrupted one, to the last digit. */
json_t *kvl_record_real(double v)
{
    char text[40];
    double rounded = v;
    if (!isfinite(v)) return json_null();
    snprintf(text, sizeof text, "%.*g", RECORD_DIGITS, v);
    return json_real(kvl_parse_f64(text, &rounded) == KVL_OK ? rounded : v);
}

json_t *kvl_record_ns(double ns)
{
    return isfinite(ns) ? json_integer((json_int_t)ns) : json_null();
}

/* JSON holds UTF-8 only: other bytes become U+FFFD, the ids beside the text tell them apart. */
json_t *kvl_record_text(const char *s, size_t n)
{
    struct kvl_buf clean = { 0 };
    int rc = kvl_buf_adds(&clean, "");
    for (size_t i = 0; i < n && rc == KVL_OK;) {
        size_t len = kvl_utf8_len(s + i, n - i);
        rc = len ? kvl_buf_add(&clean, s + i, len) : kvl_buf_adds(&clean, "\xef\xbf\xbd");
        i += len ? len : 1;
    }
    json_t *text = rc == KVL_OK ? json_stringn(clean.data, clean.len) : NULL;
    kvl_buf_free(&clean);
    return text;
}

json_t *kvl_record_path_text(const char *s)
{
    return s ? kvl_record_text(s, strlen(s)) : json_null();
}

json_t *kvl_record_hex(uint64_t v)
{
    char text[17];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)v);
    return json_string(text);
}

double kvl_record_per(double sum, double n)
{
    return n > 0.0 ? sum / n : KVL_NAN;
}

json_t *kvl_record_add(json_t *o, json_t *more)
{
    if (o && more && json_object_update(o, more) == 0) {
        json_decref(more);
        return o;
    }
    json_decref(o);
    json_decref(more);
    return NULL;
}

void kvl_record_put(json_t **r, const char *name, const char *type, json_t *value)
{
    if (!value && strstr(type, "absent")) return;
    if (strcmp(type, "group") == 0) {
        *r = kvl_record_add(*r, value);
    } else if (json_object_set_new(*r, name, value) != 0) {
        json_decref(*r);
        *r = NULL;
    }
}

void kvl_record_item(json_t **list, json_t *item)
{
    if (json_array_append_new(*list, item) == 0) return;
    json_decref(*list);
    *list = NULL;
}

int kvl_record_column_create(const struct kvl_sweep *s, const struct kvl_point *task,
                             int32_t questions, struct kvl_record_column *out)
{
    size_t n = (size_t)s->contexts * (size_t)questions;
    *out = (struct kvl_record_column){ .value = kvl_alloc(n, sizeof(double)),
                                       .context = kvl_alloc(n, sizeof(int64_t)),
                                       .text = kvl_alloc((size_t)s->contexts, sizeof(int32_t)) };
    if (!out->value || !out->context || !out->text) return KVL_ENOMEM;
    for (int32_t i = 0; i < s->contexts; i++) out->text[i] = kvl_point_text(s, task, i);
    return KVL_OK;
}

void kvl_record_column_free(struct kvl_record_column *c)
{
    kvl_free(c->value);
    kvl_free(c->context);
    kvl_free(c->text);
}

json_t *kvl_record_interval(const struct kvl_record_column *c, struct kvl_range range,
                            const char *id)
{
    struct kvl_interval b;
    uint64_t seed = kvl_point_number(id);
    if (kvl_mean_interval(c->value, c->context, c->n, range, seed, &b) != KVL_OK) return NULL;
    return json_pack("{s:o, s:o, s:o}", "mean", kvl_record_real(b.mean), "lo",
                     kvl_record_real(b.lo), "hi", kvl_record_real(b.hi));
}
