/* The index of a file of rows: groups of questions about one context. */
#include "jlines.h"
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

/* Rows with equal contexts, and what stands before them, are one group; so are the questions of a row. */
static int index_hash(const struct index *x, const struct kvl_row *row, uint64_t *out)
{
    if (row->turn.n > 0) {
        *out = kvl_seed_mix(0, (uint64_t)row->line);
        return KVL_OK;
    }
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

/* Fills a part of the prompt to see that it can be. */
static int index_fill(const struct index *x, const struct kvl_row *row, const char *pattern,
                      size_t n)
{
    struct kvl_buf text = { 0 };
    int rc = kvl_row_fill(row, pattern, n, &text, x->err);
    kvl_buf_free(&text);
    return rc;
}

/* Sees that answers can be compared with. */
static int index_score(const struct index *x, const struct kvl_row *row)
{
    struct kvl_buf gold = { 0 }, json = { 0 };
    struct kvl_answer_score s;
    int32_t n = 0;
    int rc = kvl_row_gold(row, &gold, &n, x->err);
    if (rc == KVL_OK) rc = kvl_row_json(row, &gold, n, &json, x->err);
    if (rc == KVL_OK) {
        rc = kvl_row_score(json.data, "1", &s, x->err);
        if (rc != KVL_OK) rc = kvl_fail_at(x->err, rc, "line %d", row->line);
    }
    if (rc == KVL_OK) rc = kvl_row_misses(row, json.data, x->err);
    kvl_buf_free(&gold);
    kvl_buf_free(&json);
    return rc;
}

/* Sees that the row can be asked and scored. */
static int index_check(const struct index *x, const struct kvl_row *row)
{
    const char *prompt = kvl_rows_prompt(row->set), *later = row->set->later;
    KVL_TRY(index_needs(x, row));
    KVL_TRY(index_score(x, row));
    KVL_TRY(index_fill(x, row, prompt, strlen(prompt)));
    if (row->i_turn == 0 || !later) return KVL_OK;
    return index_fill(x, row, later, strlen(later));
}

/* A row that cannot be used: an error, or a line for who looks for them. */
static int index_odd(void *user, int rc)
{
    struct index *x = user;
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

static int index_row(void *user, struct kvl_jtext v, int32_t line)
{
    struct index *x = user;
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
        if (kvl_jtext_is_object(row.turn))
            KVL_TRY(index_item(x, &row));
        else
            KVL_TRY(index_odd(x, kvl_fail(x->err, KVL_EINVAL,
                                          "line %d: field \"%s\" has an element that is no "
                                          "object, want questions like {\"%s\": ...}",
                                          line, row.kind->turns, row.kind->question)));
    }
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
    const struct kvl_jlines lines = { index_row, index_odd, &x, err };
    int rc = kvl_jlines_each(r->file.data, r->file.len, &lines);
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
    r->base.around = kind->around;
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
