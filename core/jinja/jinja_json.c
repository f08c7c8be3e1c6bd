/* The filter tojson, as transformers has it: Python's json.dumps with ensure_ascii off. */
#include "jinja_impl.h"

#include <math.h>
#include <stdio.h>

struct json {
    struct jin_out o;
    struct jin_val comma, colon; /* texts */
    int64_t indent;              /* -1: in one line */
    bool ascii, sort;
};

static void json_value(struct kvl_jinja_run *r, struct json *j, struct jin_val v, int64_t depth);

static void json_text(struct kvl_jinja_run *r, struct json *j, const struct jin_str *s)
{
    jin_adds(r, &j->o, "\"");
    for (size_t i = 0; i < s->len && r->rc == KVL_OK; i++) {
        unsigned char c = (unsigned char)s->s[i];
        static const char named[] = "\"\\\n\r\t\b\f", letter[] = "\"\\nrtbf";
        const char *at = c ? strchr(named, c) : NULL;
        char code[8] = { (char)c };
        if (at)
            snprintf(code, sizeof code, "\\%c", letter[at - named]);
        else if (c < 0x20)
            snprintf(code, sizeof code, "\\u%04x", c);
        else if (c >= 0x80 && j->ascii)
            jin_fail(r,
                     "tojson(ensure_ascii=true) of other characters than ASCII is not known here");
        uint8_t mark[8];
        memset(mark, s->mark ? s->mark[i] : 0, sizeof mark);
        jin_add(r, &j->o, &(struct jin_str){ code, mark, strlen(code) });
    }
    jin_adds(r, &j->o, "\"");
}

static void json_line(struct kvl_jinja_run *r, struct json *j, int64_t depth)
{
    if (j->indent < 0) return;
    jin_adds(r, &j->o, "\n");
    for (int64_t i = 0; i < depth * j->indent && r->rc == KVL_OK; i++) jin_adds(r, &j->o, " ");
}

/* Places of the keys, by their order where they are sorted; NULL: an error. */
static size_t *json_order(struct kvl_jinja_run *r, const struct json *j, const struct jin_dict *d)
{
    size_t *at = jin_get(r, d->n + 1, sizeof *at);
    for (size_t i = 0; at && i < d->n; i++) {
        size_t k = i;
        for (; j->sort && k > 0 && jin_order(r, d->key[at[k - 1]], d->key[i]) > 0; k--)
            at[k] = at[k - 1];
        at[k] = i;
    }
    return at;
}

static void json_items(struct kvl_jinja_run *r, struct json *j, struct jin_val v, int64_t depth)
{
    bool dict = v.type == JIN_DICT;
    size_t n = dict ? v.d->n : v.l->n, *at = dict ? json_order(r, j, v.d) : NULL;
    jin_adds(r, &j->o, dict ? "{" : "[");
    for (size_t i = 0; i < n && r->rc == KVL_OK; i++) {
        if (i) jin_add(r, &j->o, j->comma.s);
        json_line(r, j, depth + 1);
        if (dict && v.d->key[at[i]].type != JIN_STR)
            jin_fail(r, "tojson of keys that are no texts is not known here");
        if (dict) {
            json_text(r, j, jin_to_str(r, v.d->key[at[i]]).s);
            jin_add(r, &j->o, j->colon.s);
        }
        json_value(r, j, dict ? v.d->v[at[i]] : v.l->v[i], depth + 1);
    }
    if (n) json_line(r, j, depth);
    jin_adds(r, &j->o, dict ? "}" : "]");
}

static void json_value(struct kvl_jinja_run *r, struct json *j, struct jin_val v, int64_t depth)
{
    if (depth > JIN_DEPTH) jin_fail(r, "values nested deeper than %d", JIN_DEPTH);
    if (r->rc != KVL_OK) return;
    switch (v.type) {
    case JIN_NONE: jin_adds(r, &j->o, "null"); break;
    case JIN_BOOL: jin_adds(r, &j->o, v.b ? "true" : "false"); break;
    case JIN_FLOAT:
        if (!isfinite(v.f)) jin_fail(r, "tojson of such a number is not known here");
        jin_add(r, &j->o, jin_to_str(r, v).s);
        break;
    case JIN_INT: jin_add(r, &j->o, jin_to_str(r, v).s); break;
    case JIN_STR: json_text(r, j, v.s); break;
    default:
        if (!jin_plain(v) && !jin_is_dict(v))
            jin_fail(r, "%s is not JSON serializable", jin_type_name(v));
        else
            json_items(r, j, v, depth);
    }
}

struct jin_val jin_json(struct kvl_jinja_run *r, struct jin_args a)
{
    struct jin_val indent = a.v[2], parts = a.v[3];
    struct json j = { .indent = indent.type == JIN_INT ? indent.i : -1,
                      .ascii = jin_true(a.v[1]),
                      .sort = jin_true(a.v[4]) };
    if (a.v[1].type == JIN_INT) /* Jinja's own order */
        return jin_fail(r, "tojson with an indent that is not named is not known here");
    if (indent.type == JIN_INT ? indent.i < 0 || indent.i > 64
                               : indent.type != JIN_UNDEFINED && indent.type != JIN_NONE)
        return jin_fail(r, "such an indent is not known here");
    bool two = jin_plain(parts) && parts.l->n == 2 && parts.l->v[0].type == JIN_STR &&
               parts.l->v[1].type == JIN_STR;
    if (!two && parts.type != JIN_UNDEFINED && parts.type != JIN_NONE)
        return jin_fail(r, "such separators are not known here");
    j.comma = jin_lit(r, j.indent >= 0 ? "," : ", ");
    j.colon = jin_lit(r, ": ");
    if (two) {
        j.comma = parts.l->v[0];
        j.colon = parts.l->v[1];
    }
    json_value(r, &j, a.v[0], 0);
    return jin_made(r, &j.o);
}
