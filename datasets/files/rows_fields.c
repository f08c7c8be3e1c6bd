/* Fields of a row, by their paths. */
#include "rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct kvl_jtext row_path(struct kvl_jtext v, const char *path)
{
    char name[64];
    while (v.n > 0 && *path) {
        size_t n = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)n, path);
        struct kvl_jtext item = { 0 };
        if (kvl_jtext_is_array(v) && n > 0 && strspn(name, "0123456789") == n)
            item = kvl_jtext_item(v, atoi(name));
        else
            item = kvl_jtext_member(v, name);
        v = item;
        path += n + (path[n] == '.');
    }
    return v;
}

/* What each question has of its own, so that no other field of that name is meant. */
static bool row_own(const struct kvl_row *r, const char *path)
{
    const char *const own[] = { r->kind->question, r->kind->answers, r->kind->choices };
    for (size_t i = 0; i < 3; i++)
        if (own[i] && strcmp(own[i], path) == 0) return true;
    return false;
}

struct kvl_jtext kvl_row_field(const struct kvl_row *r, const char *path)
{
    struct kvl_jtext v = { 0 };
    if (!path || !*path) return v;
    if (r->turn.n > 0) v = row_path(r->turn, path);
    if (v.n > 0 || (r->turn.n > 0 && row_own(r, path))) return v;
    return row_path(r->row, path);
}

int kvl_row_text(const struct kvl_row *r, const char *path, struct kvl_buf *out)
{
    struct kvl_jtext v = kvl_row_field(r, path), item;
    const char *at = v.s;
    if (kvl_jtext_is_null(v)) return KVL_EINVAL;
    if (!kvl_jtext_is_array(v)) return kvl_jtext_add(v, out);
    /* a list as Python prints it */
    KVL_TRY(kvl_buf_adds(out, "["));
    for (int32_t i = 0; kvl_jtext_each(v, &at, &item); i++) {
        if (i) KVL_TRY(kvl_buf_adds(out, ", "));
        KVL_TRY(kvl_jtext_add(item, out));
    }
    return kvl_buf_adds(out, "]");
}
