/* Opens a GGUF file by its path, and with one part of a split file all others.
 *
 * The parts of NAME-00001-of-0000N.gguf are files of their own: the first has all keys, each says which
 * part it is.  Their tables of tensors become one. */
#include "gguf_impl.h"
#include "hf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -00001-of-00003.gguf */
static const char split_form[] = "-%05lld-of-%05lld.gguf";

struct split {
    char *path;  /* of the part in hand */
    size_t stem; /* bytes before split_form */
    size_t room; /* bytes of `path` */
    int64_t no,
        n; /* part no (from 1) of n, by the file's name; n 0: the name says nothing of parts */
    struct kvl_gguf **part;
};

static int64_t split_digits(const char **s)
{
    char *end;
    if (**s < '0' || **s > '9') return -1;
    long long v = strtoll(*s, &end, 10);
    bool five = end - *s == 5;
    *s = end;
    return five ? v : -1;
}

static int split_init(struct split *s, const char *path)
{
    size_t len = strlen(path), tail = sizeof "-00001-of-00003.gguf" - 1;
    s->room = len + 64;
    s->path = kvl_alloc(s->room, 1);
    if (!s->path) return KVL_ENOMEM;
    memcpy(s->path, path, len);
    if (len <= tail) return KVL_OK;
    const char *at = path + len - tail;
    if (*at++ != '-') return KVL_OK;
    int64_t no = split_digits(&at);
    if (strncmp(at, "-of-", 4) != 0) return KVL_OK;
    at += 4;
    int64_t n = split_digits(&at);
    if (strcmp(at, ".gguf") != 0 || no < 1 || n < no) return KVL_OK;
    s->stem = len - tail;
    s->no = no;
    s->n = n;
    return KVL_OK;
}

/* s->path becomes that of part `no`. */
static const char *split_path(struct split *s, int64_t no)
{
    snprintf(s->path + s->stem, s->room - s->stem, split_form, (long long)no, (long long)s->n);
    return s->path;
}

/* ---- one part ------------------------------------------------------------------------------ */

static int open_part(const char *path, bool read, struct kvl_gguf **out, struct kvl_err *err)
{
    struct kvl_filemap f, *file = kvl_alloc(1, sizeof *file);
    struct kvl_gguf *g = NULL;
    if (!file) return kvl_fail(err, KVL_ENOMEM, "%s: no memory", path);
    int rc = kvl_filemap_open(path, read, &f, err);
    if (rc == KVL_OK) {
        rc = kvl_gguf_check_magic(f.data, f.size, err);
        if (rc == KVL_OK) rc = kvl_gguf_parse(f.data, f.size, &g, err);
        if (rc != KVL_OK) {
            kvl_filemap_close(&f);
            rc = kvl_fail_at(err, rc, "%s", path);
        }
    }
    if (rc != KVL_OK) {
        kvl_free(file);
        return rc;
    }
    *file = f;
    g->file = file;
    g->n_files = 1;
    *out = g;
    return KVL_OK;
}

static int split_key(const struct kvl_gguf *g, const char *key, int64_t def, int64_t *out,
                     struct kvl_err *err)
{
    return kvl_gguf_i64(g, key, 0, INT32_MAX, &def, out, err);
}

/* What the part says of itself against its file's name. */
static int split_check(const struct kvl_gguf *g, int64_t no, int64_t n, struct kvl_err *err)
{
    int64_t said_no, said_n;
    KVL_TRY(split_key(g, "split.no", -1, &said_no, err));
    KVL_TRY(split_key(g, "split.count", -1, &said_n, err));
    if (said_no == no - 1 && said_n == n) return KVL_OK;
    return kvl_fail(
        err, KVL_EMODEL,
        "its keys say part %lld of %lld, its name part %lld of %lld: want files as they "
        "were published, under their own names",
        (long long)said_no + 1, (long long)said_n, (long long)no, (long long)n);
}

/* ---- all parts ----------------------------------------------------------------------------- */

static int split_all_there(struct split *s, struct kvl_err *err)
{
    for (int64_t no = 1; no <= s->n; no++)
        if (kvl_filemap_size(split_path(s, no)) == 0)
            return kvl_fail(
                err, KVL_EMODEL,
                "%s: part %lld of %lld is missing or empty, want all parts in one folder", s->path,
                (long long)no, (long long)s->n);
    return KVL_OK;
}

/* Opens those that are not open yet. */
static int split_open(struct split *s, bool read, struct kvl_err *err)
{
    for (int64_t no = 1; no <= s->n; no++) {
        struct kvl_gguf **g = &s->part[no - 1];
        split_path(s, no);
        if (!*g) KVL_TRY(open_part(s->path, read, g, err));
        int rc = split_check(*g, no, s->n, err);
        if (rc != KVL_OK) return kvl_fail_at(err, rc, "%s", s->path);
    }
    return KVL_OK;
}

/* Tensors and files of all parts go to the first one. */
static int split_merge(struct split *s, struct kvl_err *err)
{
    struct kvl_gguf *first = s->part[0];
    int64_t want;
    size_t n = 0, parts = (size_t)s->n;
    for (size_t i = 0; i < parts; i++) n += s->part[i]->n_tensors;
    KVL_TRY(split_key(first, "split.tensors.count", (int64_t)n, &want, err));
    if (want != (int64_t)n)
        return kvl_fail(err, KVL_EMODEL,
                        "%zu tensors in its %zu parts, split.tensors.count of the first says %lld",
                        n, parts, (long long)want);
    struct gguf_tensor *all = kvl_alloc(n, sizeof *all);
    struct kvl_filemap *file = kvl_alloc(parts, sizeof *file);
    if (!all || !file) {
        kvl_free(all);
        kvl_free(file);
        return kvl_fail(err, KVL_ENOMEM, "no memory for %zu tensors", n);
    }
    n = 0;
    for (size_t i = 0; i < parts; i++) {
        struct kvl_gguf *g = s->part[i];
        memcpy(all + n, g->tensor, g->n_tensors * sizeof *all);
        n += g->n_tensors;
        file[i] = g->file[0];
        g->n_files = 0;
    }
    kvl_free(first->file);
    first->file = file;
    first->n_files = parts;
    return kvl_gguf_set_tensors(first, all, n, err);
}

static size_t split_bytes(struct split *s, const char *path)
{
    size_t total = 0;
    if (s->n == 0) return kvl_filemap_size(path);
    for (int64_t no = 1; no <= s->n; no++) total += kvl_filemap_size(split_path(s, no));
    return total;
}

/* `g` is one of several parts; it is taken over. */
static int open_split(struct split *s, const char *path, struct kvl_gguf *g, int64_t n, bool read,
                      struct kvl_err *err)
{
    bool named = s->n == n;
    s->part = named ? kvl_alloc((size_t)n, sizeof(struct kvl_gguf *)) : NULL;
    if (!s->part) {
        kvl_gguf_close(g);
        return named ? kvl_fail(err, KVL_ENOMEM, "%s: no memory for %lld parts", path, (long long)n)
                     : kvl_fail(err, KVL_EMODEL,
                                "%s: one of %lld parts (split.count): want its name to be "
                                "NAME-00001-of-%05lld.gguf, and the other parts beside it",
                                path, (long long)n, (long long)n);
    }
    s->part[s->no - 1] = g;
    KVL_TRY(split_all_there(s, err));
    KVL_TRY(split_open(s, read, err));
    int rc = split_merge(s, err);
    return rc == KVL_OK ? KVL_OK : kvl_fail_at(err, rc, "%s", path);
}

static int open_path(struct split *s, const char *path, bool map, struct kvl_gguf **out,
                     struct kvl_err *err)
{
    struct kvl_gguf *g = NULL;
    int64_t n;
    bool read = !map && kvl_filemap_reads(split_bytes(s, path));
    KVL_TRY(open_part(path, read, &g, err));
    int rc = split_key(g, "split.count", 1, &n, err);
    if (rc != KVL_OK) {
        kvl_gguf_close(g);
        return kvl_fail_at(err, rc, "%s", path);
    }
    if (n > 1) {
        KVL_TRY(open_split(s, path, g, n, read, err));
        g = s->part[0];
        s->part[0] = NULL;
    }
    *out = g;
    return KVL_OK;
}

static int gguf_open(const char *path, bool map, struct kvl_gguf **out, struct kvl_err *err)
{
    struct split s = { 0 };
    if (kvl_hf_is(path)) return kvl_hf_open(path, map, out, err);
    int rc = split_init(&s, path);
    rc = rc == KVL_OK ? open_path(&s, path, map, out, err)
                      : kvl_fail(err, rc, "%s: no memory", path);
    for (int64_t i = 0; s.part && i < s.n; i++) kvl_gguf_close(s.part[i]);
    kvl_free(s.part);
    kvl_free(s.path);
    return rc;
}

int kvl_gguf_open(const char *path, struct kvl_gguf **out, struct kvl_err *err)
{
    return gguf_open(path, false, out, err);
}

int kvl_gguf_map(const char *path, struct kvl_gguf **out, struct kvl_err *err)
{
    return gguf_open(path, true, out, err);
}

int kvl_gguf_open_memory(const void *data, size_t size, struct kvl_gguf **out, struct kvl_err *err)
{
    static const int64_t one = 1;
    int64_t n_parts;
    struct kvl_gguf *g = NULL;
    if ((uintptr_t)data % 8 != 0)
        return kvl_fail(err, KVL_EINVAL, "GGUF data at %p, want memory aligned to 8 bytes", data);
    KVL_TRY(kvl_gguf_parse(data, size, &g, err));
    int rc = kvl_gguf_i64(g, "split.count", 0, 1, &one, &n_parts, err);
    if (rc == KVL_OK)
        *out = g;
    else
        kvl_gguf_close(g);
    return rc;
}
