/* Prefills and their snapshots. */
#include "context_prefill.h"

#include "snapshot_folder.h"

#include "folders.h"
#include "stats.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

int kvl_snapshots_open(struct kvl_snapshots *s, const char *dir, struct kvl_err *err)
{
    struct kvl_buf path = { 0 };
    struct stat st;
    *s = (struct kvl_snapshots){ 0 };
    if (!dir) return KVL_OK;
    if (!dir[0]) return kvl_fail(err, KVL_EINVAL, "--snapshots: is empty, want a folder");
    int rc = kvl_buf_printf(&path, "%s/", dir);
    rc = rc == KVL_OK ? kvl_make_folders(path.data, err)
                      : kvl_fail(err, rc, "out of memory for the path of the snapshots");
    kvl_buf_free(&path);
    if (rc != KVL_OK) return kvl_fail_at(err, rc, "--snapshots");
    if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode))
        return kvl_fail(err, KVL_EINVAL, "--snapshots %s: is no folder", dir);
    s->dir = dir;
    return KVL_OK;
}

/* Where the snapshot of a key lies. */
static int snapshot_path(const struct kvl_snapshots *s, const struct kvl_buf *key,
                         struct kvl_buf *out, struct kvl_err *err)
{
    XXH128_hash_t h = XXH3_128bits(key->data, key->len);
    int rc = kvl_buf_printf(out, "%s/%016llx%016llx.kvs", s->dir, (unsigned long long)h.high64,
                            (unsigned long long)h.low64);
    return rc == KVL_OK ? rc : kvl_fail(err, rc, "out of memory for the path of a snapshot");
}

static int prefill_run(struct kvl_engine *engine, const int32_t *id, int32_t n,
                       struct kvl_session **out, double *ns, struct kvl_err *err)
{
    struct kvl_session *s;
    uint64_t t0 = kvl_now_ns();
    KVL_TRY(kvl_session_create(engine, &s, err));
    int rc = n > 0 ? kvl_session_prefill(s, id, n, NULL, false, err) : KVL_OK;
    *ns = (double)(kvl_now_ns() - t0);
    if (rc == KVL_OK)
        *out = s;
    else
        kvl_session_destroy(s);
    return rc;
}

/* *out = NULL: nothing to load. */
static int snapshot_load(struct kvl_engine *engine, const char *path, const char *key,
                         struct kvl_session **out, struct kvl_err *err)
{
    *out = NULL;
    int rc = kvl_session_load(engine, path, key, out, err);
    if (rc != KVL_EIO) return rc;
    fprintf(stderr, "kvlab: %s; prefilled again here\n", err->msg);
    kvl_err_clear(err);
    *out = NULL;
    return KVL_OK;
}

static int snapshot_save(struct kvl_snapshots *s, struct kvl_session *session, const char *path,
                         const char *key, struct kvl_err *err)
{
    if (s->full) return KVL_OK;
    int rc = kvl_session_save(session, path, key, err);
    s->n_saved += rc == KVL_OK;
    if (rc == KVL_OK && s->limit_bytes) {
        struct kvl_snapshot_folder_gone gone;
        rc = kvl_snapshot_folder_prune(s->dir, s->limit_bytes, 0, &gone, err);
    }
    if (rc != KVL_EIO) return rc;
    fprintf(stderr, "kvlab: %s; no more snapshots are saved\n", err->msg);
    kvl_err_clear(err);
    s->full = true;
    return KVL_OK;
}

static int prefill_kept(struct kvl_engine *engine, struct kvl_snapshots *s, const int32_t *id,
                        int32_t n, const struct kvl_buf *key, const char *path,
                        struct kvl_session **out, double *ns, struct kvl_err *err)
{
    struct kvl_session *session;
    KVL_TRY(snapshot_load(engine, path, key->data, &session, err));
    if (session) {
        s->n_loaded++;
        utimensat(AT_FDCWD, path, NULL, 0); /* used just now: others give way before it */
        *ns = KVL_NAN;
        *out = session;
        return KVL_OK;
    }
    KVL_TRY(prefill_run(engine, id, n, &session, ns, err));
    int rc = snapshot_save(s, session, path, key->data, err);
    if (rc == KVL_OK)
        *out = session;
    else
        kvl_session_destroy(session);
    return rc;
}

int kvl_prefill(struct kvl_engine *engine, struct kvl_snapshots *s, const int32_t *id, int32_t n,
                struct kvl_session **out, double *ns, struct kvl_err *err)
{
    struct kvl_buf key = { 0 }, path = { 0 };
    if (!s->dir || n == 0) return prefill_run(engine, id, n, out, ns, err);
    int rc = kvl_snapshot_key(engine, id, n, &key, err);
    if (rc == KVL_OK) rc = snapshot_path(s, &key, &path, err);
    if (rc == KVL_OK) rc = prefill_kept(engine, s, id, n, &key, path.data, out, ns, err);
    kvl_buf_free(&key);
    kvl_buf_free(&path);
    return rc;
}
