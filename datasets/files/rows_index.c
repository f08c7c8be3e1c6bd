/* The index of a file of rows: groups of questions about one context. */
#include "rows.h"

#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- the index --------------------------------------------------------------------------------------- */

struct index {
    struct kvl_file_rows *r;
    struct kvl_buf items;  /* struct kvl_row */
    struct kvl_buf hashes; /* uint64_t, of what comes before the question */
    struct kvl_err *err;
};

/* Rows with equal contexts, and what stands before them, are one group. */
static int index_hash(const struct index *x, const struct kvl_row *row, uint64_t *out)
{
    const char *prompt = kvl_rows_prompt(row->set);
    struct kvl_jtext context = kvl_row_field(row, row->kind->context);
    struct kvl_buf head = { 0 };
    int rc = kvl_row_fill(row, prompt, kvl_rows_head(prompt), &head, x->err);
    XXH64_hash_t h = rc == KVL_OK ? XXH3_64bits(head.data, head.len) : 0;
    *out = context.n > 0 ? XXH3_64bits_withSeed(context.s, context.n, h) : h;
    if (row->set->mark || context.n == 0) *out = kvl_seed_mix(h, x->items.len + 1);
    kvl_buf_free(&head);
    return rc;
}

static int index_needs(const struct index *x, const struct kvl_row *row)
{
    const char *const *needs = row->kind->needs;
    for (size_t i = 0; i < sizeof row->kind->needs / sizeof *needs && needs[i]; i++)
        if (kvl_jtext_is_null(kvl_row_field(row, needs[i])))
            return kvl_fail(x->err, KVL_EINVAL, "line %d: field \"%s\" is missing", row->line,
                            needs[i]);
    if (kvl_row_part(row).task) return KVL_OK;
    return kvl_fail(x->err, KVL_EINVAL, "line %d: field \"task\" is none of those of %s, want %s",
                    row->line, row->set->name, row->set->parts[0].task);
}

/* Sees that the row can be asked and scored. */
static int index_check(const struct index *x, const struct kvl_row *row)
{
    struct kvl_buf gold = { 0 }, json = { 0 }, text = { 0 };
    struct kvl_answer_score s;
    const char *prompt = kvl_rows_prompt(row->set);
    int32_t n = 0;
    size_t head = kvl_rows_head(prompt), behind = head + (prompt[head] ? strlen("{context}") : 0);
    int rc = index_needs(x, row);
    if (rc == KVL_OK) rc = kvl_row_gold(row, &gold, &n, x->err);
    if (rc == KVL_OK && kvl_row_json(row, &gold, n, &json) != KVL_OK)
        rc = kvl_fail(x->err, KVL_ENOMEM, "out of memory for answers");
    if (rc == KVL_OK) {
        rc = kvl_row_score(json.data, "1", &s, x->err);
        if (rc != KVL_OK) rc = kvl_fail_at(x->err, rc, "line %d", row->line);
    }
    if (rc == KVL_OK) rc = kvl_row_misses(row, json.data, x->err);
    if (rc == KVL_OK)
        rc = kvl_row_fill(row, prompt + behind, strlen(prompt + behind), &text, x->err);
    if (rc == KVL_OK && prompt[head] && row->kind->context &&
        kvl_row_field(row, row->kind->context).n == 0 && !row->kind->field)
        rc = kvl_fail(x->err, KVL_EINVAL, "line %d: field \"%s\" is missing, want the context",
                      row->line, row->kind->context);
    kvl_buf_free(&gold);
    kvl_buf_free(&json);
    kvl_buf_free(&text);
    return rc;
}

/* A row that cannot be used: an error, or a line for who looks for them. */
static int index_odd(struct index *x, int rc)
{
    struct kvl_buf *odd = x->r->opts->odd;
    if (rc != KVL_EINVAL || !odd) return rc;
    rc = kvl_buf_printf(odd, "%s\n", x->err->msg);
    kvl_err_clear(x->err);
    return rc;
}

static int index_item(struct index *x, const struct kvl_row *row)
{
    uint64_t hash;
    if (row->kind->wants && !row->kind->wants(row)) return KVL_OK;
    int rc = index_check(x, row);
    if (rc == KVL_OK) rc = index_hash(x, row, &hash);
    if (rc != KVL_OK) return index_odd(x, rc);
    if (kvl_buf_add(&x->items, row, sizeof *row) != KVL_OK ||
        kvl_buf_add(&x->hashes, &hash, sizeof hash) != KVL_OK)
        return kvl_fail(x->err, KVL_ENOMEM, "out of memory for rows");
    return KVL_OK;
}

/* `at`: where the line of the row begins, or the row where it has none of its own. */
static int index_row(struct index *x, struct kvl_jtext v, const char *at, int32_t line)
{
    size_t wrong = kvl_jtext_not_utf8(v);
    if (wrong < v.n)
        return index_odd(x,
                         kvl_fail(x->err, KVL_EINVAL,
                                  "line %d: byte %zu (0x%02x) is no UTF-8, want the file in UTF-8",
                                  line, (size_t)(v.s - at) + wrong + 1, (unsigned char)v.s[wrong]));
    struct kvl_row row = { .kind = &x->r->kind, .set = &x->r->set, .row = v, .line = line };
    if (!kvl_jtext_is_object(v))
        return index_odd(
            x, kvl_fail(x->err, KVL_EINVAL, "line %d: is no object, want {\"...\": ...}", line));
    if (!row.kind->turns) return index_item(x, &row);
    struct kvl_jtext turns = kvl_jtext_member(v, row.kind->turns);
    if (kvl_jtext_items(turns) < 1)
        return index_odd(x, kvl_fail(x->err, KVL_EINVAL,
                                     "line %d: field \"%s\" is no list of questions", line,
                                     row.kind->turns));
    for (;; row.i_turn++) {
        row.turn = kvl_jtext_item(turns, row.i_turn);
        if (row.turn.n == 0) return KVL_OK;
        KVL_TRY(index_item(x, &row));
    }
}

/* All elements of one array, as some benchmarks are. */
static int index_array(struct index *x, struct kvl_jtext all)
{
    const char *at = all.s;
    struct kvl_jtext v;
    for (int32_t i = 1; kvl_jtext_each(all, &at, &v); i++) KVL_TRY(index_row(x, v, v.s, i));
    return KVL_OK;
}

static int index_line(struct index *x, const char *at, const char *stop, int32_t line)
{
    const char *first = at, *wrong = at;
    struct kvl_jtext v;
    while (first < stop && strchr(" \t\r", *first) && *first) first++;
    if (first == stop) return KVL_OK;
    if (kvl_jtext_value(first, stop, &v, &wrong) != KVL_OK)
        return index_odd(x, kvl_fail(x->err, KVL_EINVAL, "line %d: is not JSON at byte %zu", line,
                                     (size_t)(wrong - at) + 1));
    return index_row(x, v, at, line);
}

static int index_file(struct index *x)
{
    const struct kvl_plainfile *f = &x->r->file;
    const char *at = f->data, *end = f->data + f->len;
    struct kvl_jtext v;
    if (f->len >= 3 && memcmp(at, "\xef\xbb\xbf", 3) == 0) at += 3;
    if (kvl_jtext_value(at, end, &v, NULL) == KVL_OK && kvl_jtext_is_array(v))
        return index_array(x, v);
    for (int32_t line = 1; at < end; line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop) stop = end;
        KVL_TRY(index_line(x, at, stop, line));
        at = stop + 1;
    }
    return KVL_OK;
}

/* ---- groups -------------------------------------------------------------------------------------------- */

struct order {
    uint64_t key; /* of the group: where it stands */
    int32_t item;
};

static int order_by_key(const void *a, const void *b)
{
    const struct order *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->item < y->item ? -1 : 1;
}

/* Key of every item: of its group the first item's place, in the file or shuffled. */
static void order_keys(const uint64_t *hash, struct order *by_hash, struct order *out, int32_t n,
                       bool shuffled)
{
    for (int32_t i = 0; i < n; i++) by_hash[i] = (struct order){ hash[i], i };
    qsort(by_hash, (size_t)n, sizeof *by_hash, order_by_key);
    for (int32_t i = 0, first = 0; i < n; i++) {
        if (by_hash[i].key != by_hash[first].key) first = i;
        uint64_t place = (uint64_t)by_hash[first].item;
        out[by_hash[i].item] =
            (struct order){ shuffled ? kvl_seed_mix(0x9e3779b97f4a7c15u, place) : place,
                            by_hash[i].item };
    }
    qsort(out, (size_t)n, sizeof *out, order_by_key);
}

static int rows_group(struct index *x)
{
    struct kvl_file_rows *r = x->r;
    const struct kvl_row *items = (const struct kvl_row *)(void *)x->items.data;
    const struct kvl_rows_opts *o = r->opts;
    int32_t n = (int32_t)(x->items.len / sizeof *items);
    bool by_depth = (r->set.flags & KVL_ROWS_BY_DEPTH) != 0;
    bool shuffled = o->order == KVL_ROWS_SHUFFLED || (o->order == KVL_ROWS_AUTO && by_depth);
    struct order *order = kvl_alloc(2 * (size_t)n + 1, sizeof *order);
    r->item = kvl_alloc((size_t)n + 1, sizeof *r->item);
    r->size = kvl_alloc((size_t)n + 1, sizeof *r->size);
    if (!order || !r->item || !r->size) {
        kvl_free(order);
        return kvl_fail(x->err, KVL_ENOMEM, "out of memory for rows");
    }
    order_keys((const uint64_t *)(void *)x->hashes.data, order + n, order, n, shuffled);
    for (int32_t i = 0; i < n; i++) {
        r->item[i] = items[order[i].item];
        bool next = i == 0 || order[i].key != order[i - 1].key;
        r->base.n_groups += next;
        r->size[r->base.n_groups - 1]++;
    }
    r->n = n;
    r->base.group = r->size;
    kvl_free(order);
    return KVL_OK;
}

/* ---- hooks ----------------------------------------------------------------------------------------------- */

void kvl_rows_close(struct kvl_task_source *source)
{
    struct kvl_file_rows *r = (struct kvl_file_rows *)source;
    if (!r) return;
    struct kvl_buf prompt = { .data = (char *)(uintptr_t)r->set.prompt };
    if (r->set.flags & KVL_ROWS_OWN) kvl_buf_free(&prompt);
    kvl_plainfile_close(&r->file);
    kvl_free(r->item);
    kvl_free(r->size);
    kvl_free(r);
}

/* The first of the kind's paths that is there. */
static int rows_file(struct kvl_file_rows *r, struct kvl_err *err)
{
    const struct kvl_rows_kind *k = &r->kind;
    const char *file = r->set.file ? r->set.file : r->set.name;
    struct kvl_err why = { 0 };
    for (size_t i = 0; i < 5 && k->paths[i]; i++) {
        struct kvl_buf path = { 0 };
        const char *mark = strstr(k->paths[i], "%s");
        int rc =
            kvl_buf_printf(&path, "%s/%.*s%s%s", r->opts->dir, (int)(mark ? mark - k->paths[i] : 0),
                           k->paths[i], mark ? file : "", mark ? mark + 2 : k->paths[i]);
        if (rc == KVL_OK) rc = kvl_plainfile_open(path.data, &r->file, &why);
        kvl_buf_free(&path);
        if (rc != KVL_EIO) return rc;
    }
    return kvl_fail(err, KVL_EIO, "%s", why.msg);
}

static int rows_read(struct kvl_file_rows *r, struct kvl_err *err)
{
    struct index x = { .r = r, .err = err };
    int rc = index_file(&x);
    if (rc == KVL_OK && x.items.len == 0)
        rc = kvl_fail(err, KVL_EINVAL, "has no rows, want JSON lines");
    if (rc == KVL_OK) rc = rows_group(&x);
    if (rc != KVL_OK) kvl_fail_at(err, rc, "%s", r->file.path);
    kvl_buf_free(&x.items);
    kvl_buf_free(&x.hashes);
    return rc;
}

int kvl_rows_open(const struct kvl_rows_kind *kind, const struct kvl_rows_set *set,
                  const struct kvl_rows_opts *opts, const char *path, struct kvl_task_source **out,
                  struct kvl_err *err)
{
    struct kvl_file_rows *r = kvl_alloc(1, sizeof *r);
    if (!r) return kvl_fail(err, KVL_ENOMEM, "out of memory for rows");
    *r = (struct kvl_file_rows){ .kind = *kind, .set = *set, .opts = opts };
    int rc = KVL_OK;
    if (!path && !opts->dir[0])
        rc = kvl_fail(err, KVL_EINVAL, "dir is missing, want the folder with the files of %s",
                      kind->name);
    else if (path)
        rc = kvl_plainfile_open(path, &r->file, err);
    else
        rc = rows_file(r, err);
    if (rc == KVL_OK) rc = rows_read(r, err);
    r->base.control = opts->control != 0;
    r->base.depths = (set->flags & KVL_ROWS_DEPTHS) != 0;
    r->base.hash = XXH3_64bits_withSeed(
        r->file.data ? r->file.data : "", r->file.len,
        XXH3_64bits(set->prompt ? set->prompt : "", set->prompt ? strlen(set->prompt) : 0));
    if (rc == KVL_OK)
        *out = &r->base;
    else
        kvl_rows_close(&r->base);
    return rc;
}
