/* What a folder of snapshots holds, and what of it gives way. */
#include "snapshot_folder.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { FOLDER_PART_S = 24 * 3600 };

static const char folder_tail[] = ".kvs", folder_part[] = ".kvs.tmp-";

/* Anything else in the folder is somebody else's. */
static bool folder_is_ours(const char *name, bool *part)
{
    size_t n = strlen(name), tail = sizeof folder_tail - 1;
    *part = strstr(name, folder_part) != NULL;
    return *part || (n > tail && strcmp(name + n - tail, folder_tail) == 0);
}

static int folder_add(struct kvl_snapshot_folder *f, const char *dir, const char *name,
                      struct kvl_err *err)
{
    struct kvl_buf path = { 0 };
    struct stat st;
    bool part;
    if (!folder_is_ours(name, &part)) return KVL_OK;
    struct kvl_snapshot_entry *grown = realloc(f->entry, (f->n + 1) * sizeof *grown);
    if (grown) f->entry = grown;
    if (!grown || kvl_buf_printf(&path, "%s/%s", dir, name) != KVL_OK)
        return kvl_fail(err, KVL_ENOMEM, "%s: no memory for the names in it", dir);
    if (lstat(path.data, &st) != 0 || !S_ISREG(st.st_mode)) { /* removed meanwhile */
        kvl_buf_free(&path);
        return KVL_OK;
    }
    f->entry[f->n++] =
        (struct kvl_snapshot_entry){ path.data, st.st_size, st.st_mtim.tv_sec, part };
    f->bytes += st.st_size;
    return KVL_OK;
}

static int folder_order(const void *a, const void *b)
{
    const struct kvl_snapshot_entry *x = a, *y = b;
    if (x->used_s != y->used_s) return x->used_s < y->used_s ? -1 : 1;
    return strcmp(x->path, y->path);
}

int kvl_snapshot_folder_read(const char *dir, struct kvl_snapshot_folder *out, struct kvl_err *err)
{
    struct kvl_snapshot_folder f = { 0 };
    DIR *d = opendir(dir);
    if (!d)
        return kvl_fail(err, KVL_EINVAL, "%s: cannot open the folder: %s", dir, strerror(errno));
    int rc = KVL_OK;
    for (struct dirent *e; rc == KVL_OK && (e = readdir(d));)
        rc = folder_add(&f, dir, e->d_name, err);
    closedir(d);
    if (rc != KVL_OK) {
        kvl_snapshot_folder_free(&f);
        return rc;
    }
    if (f.n) qsort(f.entry, f.n, sizeof *f.entry, folder_order);
    *out = f;
    return KVL_OK;
}

void kvl_snapshot_folder_free(struct kvl_snapshot_folder *f)
{
    for (size_t i = 0; i < f->n; i++) free(f->entry[i].path);
    free(f->entry);
    *f = (struct kvl_snapshot_folder){ 0 };
}

int kvl_snapshot_folder_prune(const char *dir, int64_t limit_bytes, int64_t older_s,
                              struct kvl_snapshot_folder_gone *gone, struct kvl_err *err)
{
    struct kvl_snapshot_folder f;
    int64_t now = time(NULL);
    int rc = kvl_snapshot_folder_read(dir, &f, err);
    *gone = (struct kvl_snapshot_folder_gone){ 0 };
    if (rc != KVL_OK) return rc;
    int64_t left = f.bytes;
    for (size_t i = 0; i < f.n && rc == KVL_OK; i++) {
        const struct kvl_snapshot_entry *e = &f.entry[i];
        bool late = older_s > 0 && now - e->used_s > older_s;
        bool much = limit_bytes > 0 && left > limit_bytes;
        if (e->part ? now - e->used_s < FOLDER_PART_S : !late && !much) continue;
        left -= e->bytes;
        if (unlink(e->path) == 0) {
            gone->n++;
            gone->bytes += e->bytes;
        } else if (errno != ENOENT) { /* somebody else was faster */
            rc = kvl_fail(err, KVL_EIO, "%s: cannot remove it: %s", e->path, strerror(errno));
        }
    }
    kvl_snapshot_folder_free(&f);
    return rc;
}

int kvl_size_parse(const char *flag, const char *text, int64_t *out, struct kvl_err *err)
{
    static const char units[] = "KMGT";
    char *end;
    double v = strtod(text, &end);
    const char *unit = *end ? strchr(units, toupper((unsigned char)*end)) : NULL;
    for (const char *u = units; unit && u <= unit; u++) v *= 1024.0;
    if (end == text || !isdigit((unsigned char)*text) || (*end && (!unit || end[1])) || !(v >= 1) ||
        v > 0x1p62)
        return kvl_fail(err, KVL_EINVAL, "%s: \"%s\": want a size such as 500M or 200G", flag,
                        text);
    *out = (int64_t)v;
    return KVL_OK;
}
