/* Writing logs: the lock, the torn tail, groups, and what to do when the disk says no. */
#include "log_frame.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <xxhash.h>
#include <zstd.h>

/* Level 3 has a window of 2 MiB: any decoder takes it without being asked. */
#define LEVEL 3
/* One group is one unit of loss and of memory. */
#define GROUP_MAX_BYTES ((size_t)1 << 30)
/* As many digits as every double keeps when it is read back: 0.1 stays 0.1. */
#define JSON_FLAGS (JSON_COMPACT | JSON_REAL_PRECISION(15))

struct kvl_log {
    int fd;
    char *path, *note; /* note: `path`.lock, says who writes */
    uint8_t run[16];
    char run_text[KVL_LOG_RUN_SIZE];
    uint64_t sequence, prev_hash;
    ZSTD_CCtx *ctx;
    struct kvl_buf text; /* pending lines */
    uint32_t n_pending;
    bool locked;
    off_t end;                  /* behind the last commit: nobody else writes */
    bool broken;                /* an I/O error: what the disk holds is unknown */
    kvl_log_commit_fn redirect; /* NULL: commits go to the file */
    void *redirect_user;
};

/* ---- files --------------------------------------------------------------------------------- */

int kvl_log_sync_dir(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *dir = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    if (!dir) return ENOMEM;
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(dir);
    if (fd < 0) return errno;
    /* Some file systems cannot sync a folder and say EINVAL: nothing more can be done there. */
    int error = fsync(fd) != 0 && errno != EINVAL ? errno : 0;
    close(fd);
    return error;
}

static bool no_space(int error)
{
    return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

/* ---- the lock ------------------------------------------------------------------------------ */

/* The kernel does not tell who holds such a lock, so the holder leaves a note.  The lock decides;
 * the note is only for the message, and one that a killed process left is overwritten. */
static void lock_note(const struct kvl_log *log)
{
    char host[256] = "?", note[400], when[32] = "?";
    gethostname(host, sizeof host - 1);
    time_t now = time(NULL);
    struct tm tm;
    if (gmtime_r(&now, &tm)) strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &tm);
    int n =
        snprintf(note, sizeof note, "pid %lld on %s since %s\n", (long long)getpid(), host, when);
    int fd = open(log->note, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0644);
    struct stat st;
    if (fd >= 0 && n >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && ftruncate(fd, 0) == 0)
        kvl_log_write_all(fd, note, (size_t)n);
    if (fd >= 0) close(fd);
}

/* The first line of the note, "" when there is none: beside a log of somebody else's anything may stand, so that no link
 * is followed and only a file is read. */
static void lock_holder(const struct kvl_log *log, char *out, size_t size)
{
    int fd = open(log->note, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat st;
    ssize_t n = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) ? read(fd, out, size - 1) : 0;
    out[KVL_MAX(n, 0)] = '\0';
    out[strcspn(out, "\n")] = '\0';
    if (fd >= 0) close(fd);
}

static int lock_refused(const struct kvl_log *log, int error, struct kvl_err *err)
{
    if (error != EACCES && error != EAGAIN)
        return kvl_fail(err, KVL_EIO, "%s: cannot lock: %s", log->path, strerror(error));
    char holder[400];
    lock_holder(log, holder, sizeof holder);
    return kvl_fail(err, KVL_ELOG, "%s: another process writes to it (%s); wait or use another log",
                    log->path, holder[0] ? holder : "unknown");
}

/* Held by the open file, not by the process: reading the log here does not drop it, and the kernel
 * frees it however the process ends. */
static int lock_take(struct kvl_log *log, struct kvl_err *err)
{
    struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    if (fcntl(log->fd, F_OFD_SETLK, &whole) != 0) return lock_refused(log, errno, err);
    log->locked = true;
    lock_note(log);
    return KVL_OK;
}

bool kvl_log_busy(const char *path)
{
    struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool busy = fd >= 0 && fcntl(fd, F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
    if (fd >= 0) close(fd);
    return busy;
}

/* ---- opening ------------------------------------------------------------------------------- */

static int torn_save(const char *path, const char *data, size_t len, struct kvl_err *err)
{
    for (int n = 1; n < 10000; n++) {
        struct kvl_buf name = { 0 };
        if (kvl_buf_printf(&name, "%s.torn-%d", path, n) != KVL_OK)
            return kvl_fail(err, KVL_ENOMEM, "no memory for a file name");
        int fd = open(name.data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
        int error = fd < 0 ? errno : kvl_log_write_all(fd, data, len);
        if (fd >= 0 && !error && fsync(fd) != 0) error = errno;
        if (fd >= 0) close(fd);
        if (fd >= 0 && error) unlink(name.data);
        if (error && error != EEXIST)
            kvl_fail(err, KVL_EIO, "%s: cannot save %zu torn bytes: %s", name.data, len,
                     strerror(error));
        kvl_buf_free(&name);
        if (error != EEXIST) return error ? KVL_EIO : KVL_OK;
    }
    return kvl_fail(err, KVL_EIO, "%s: 9999 torn tails beside it; remove some", path);
}

/* Cuts what a crash left at the end, after saving it. */
static int torn_cut(struct kvl_log *log, const struct kvl_buf *file,
                    const struct kvl_log_health *health, size_t n_before, struct kvl_err *err)
{
    if (health->n_damage == n_before) return KVL_OK;
    const struct kvl_log_damage *d = &health->damage[health->n_damage - 1];
    if (!d->tail) return KVL_OK;
    KVL_TRY(torn_save(log->path, file->data + d->offset, (size_t)d->bytes, err));
    if (ftruncate(log->fd, (off_t)d->offset) != 0 || fsync(log->fd) != 0)
        return kvl_fail(err, KVL_EIO, "%s: cannot cut to %llu bytes: %s", log->path,
                        (unsigned long long)d->offset, strerror(errno));
    return KVL_OK;
}

static int log_scan(struct kvl_log *log, kvl_log_fn fn, void *user, struct kvl_log_health *health,
                    struct kvl_err *err)
{
    struct kvl_log_health own = { 0 };
    struct kvl_log_health *h = health ? health : &own;
    size_t n_before = h->n_damage;
    struct kvl_buf file = { 0 };
    int rc = kvl_read_file(log->path, KVL_LOG_FILE_MAX, &file, err);
    if (rc == KVL_OK)
        rc = kvl_log_read_memory(log->path, file.len ? file.data : "", file.len, fn, user, h, err);
    if (rc == KVL_OK) rc = torn_cut(log, &file, h, n_before, err);
    kvl_buf_free(&file);
    kvl_log_health_free(&own);
    return rc;
}

static int log_new_run(struct kvl_log *log, struct kvl_err *err)
{
    if (getrandom(log->run, sizeof log->run, 0) != (ssize_t)sizeof log->run)
        return kvl_fail(err, KVL_EINTERNAL, "no random bytes for a run id: %s", strerror(errno));
    for (size_t i = 0; i < sizeof log->run; i++)
        snprintf(log->run_text + 2 * i, 3, "%02x", log->run[i]);
    return KVL_OK;
}

static int log_start(struct kvl_log *log, kvl_log_fn fn, void *user, struct kvl_log_health *health,
                     struct kvl_err *err)
{
    log->fd = open(log->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (log->fd < 0)
        return kvl_fail(err, KVL_EIO, "%s: cannot open for writing: %s", log->path,
                        strerror(errno));
    struct stat st;
    if (fstat(log->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return kvl_fail(err, KVL_EINVAL, "%s: not a regular file, want a path for a log",
                        log->path);
    KVL_TRY(lock_take(log, err));
    KVL_TRY(log_scan(log, fn, user, health, err));
    if (fstat(log->fd, &st) != 0)
        return kvl_fail(err, KVL_EIO, "%s: cannot look at it: %s", log->path, strerror(errno));
    log->end = st.st_size;
    int error = kvl_log_sync_dir(log->path);
    if (error)
        return kvl_fail(err, KVL_EIO, "%s: cannot sync its folder: %s", log->path, strerror(error));
    return log_new_run(log, err);
}

static void log_destroy(struct kvl_log *log)
{
    if (log->locked) unlink(log->note); /* before the lock goes: a later holder's note stays */
    if (log->fd >= 0) close(log->fd);
    ZSTD_freeCCtx(log->ctx);
    kvl_buf_free(&log->text);
    free(log->path);
    free(log->note);
    free(log);
}

static struct kvl_log *log_alloc(const char *path)
{
    struct kvl_log *log = calloc(1, sizeof *log);
    struct kvl_buf note = { 0 };
    if (!log) return NULL;
    log->fd = -1;
    log->path = strdup(path);
    log->ctx = ZSTD_createCCtx();
    if (kvl_buf_printf(&note, "%s.lock", path) == KVL_OK) log->note = note.data;
    if (log->path && log->note && log->ctx) {
        ZSTD_CCtx_setParameter(log->ctx, ZSTD_c_compressionLevel, LEVEL);
        ZSTD_CCtx_setParameter(log->ctx, ZSTD_c_checksumFlag, 1);
        return log;
    }
    log_destroy(log);
    return NULL;
}

int kvl_log_open(const char *path, kvl_log_fn fn, void *user, struct kvl_log_health *health,
                 struct kvl_log **out, struct kvl_err *err)
{
    struct kvl_log *log = log_alloc(path);
    if (!log) return kvl_fail(err, KVL_ENOMEM, "%s: no memory to open it", path);
    int rc = log_start(log, fn, user, health, err);
    if (rc != KVL_OK) {
        log_destroy(log);
        return rc;
    }
    *out = log;
    return KVL_OK;
}

int kvl_log_new(int fd, const char *path, const uint8_t run[16], struct kvl_log **out,
                struct kvl_err *err)
{
    struct kvl_log *log = log_alloc(path);
    if (!log) {
        close(fd);
        return kvl_fail(err, KVL_ENOMEM, "%s: no memory to write it", path);
    }
    log->fd = fd;
    memcpy(log->run, run, sizeof log->run);
    *out = log;
    return KVL_OK;
}

/* Somebody who does not ask for the lock may cut it, copy over it or append to it: earlier records are lost then. */
static int commit_grown(struct kvl_log *log, const struct stat *st, struct kvl_err *err)
{
    if (st->st_size == log->end) return KVL_OK;
    log->broken = true;
    return kvl_fail(
        err, KVL_ELOG,
        "%s: has %lld bytes, want %lld: somebody else changed it meanwhile; check it with "
        "`kvlab log check` and start again",
        log->path, (long long)st->st_size, (long long)log->end);
}

int kvl_log_close(struct kvl_log *log, struct kvl_err *err)
{
    if (!log) return KVL_OK;
    if (log->locked) unlink(log->note);
    log->locked = false;
    struct stat st;
    bool there = log->fd >= 0 && !log->broken && fstat(log->fd, &st) == 0 && st.st_nlink > 0;
    int rc = there ? commit_grown(log, &st, err) : KVL_OK;
    int closed = close(log->fd);
    log->fd = -1;
    if (closed != 0 && rc == KVL_OK)
        rc = kvl_fail(err, KVL_ELOG, "%s: closing it: %s; check it with `kvlab log check`",
                      log->path, strerror(errno));
    log_destroy(log);
    return rc;
}

const char *kvl_log_run(const struct kvl_log *log)
{
    return log->run_text;
}

const char *kvl_log_path(const struct kvl_log *log)
{
    return log->path;
}

/* ---- appending ----------------------------------------------------------------------------- */

static int append_text(const char *text, size_t len, void *user)
{
    return kvl_buf_add(user, text, len) == KVL_OK ? 0 : -1;
}

int kvl_log_append(struct kvl_log *log, const json_t *record, struct kvl_err *err)
{
    if (!json_is_object(record))
        return kvl_fail(err, KVL_EINTERNAL, "%s: a record is no JSON object", log->path);
    size_t before = log->text.len;
    errno = 0; /* jansson does not say what was wrong, its allocations do */
    int rc = json_dump_callback(record, append_text, &log->text, JSON_FLAGS);
    if (rc == 0 && kvl_buf_adds(&log->text, "\n") == KVL_OK && log->text.len <= GROUP_MAX_BYTES) {
        log->n_pending++;
        return KVL_OK;
    }
    size_t len = log->text.len;
    log->text.len = before;
    if (len > GROUP_MAX_BYTES)
        return kvl_fail(err, KVL_ENOMEM, "%s: %zu bytes without a commit, at most %zu", log->path,
                        len, GROUP_MAX_BYTES);
    const char *kind = json_string_value(json_object_get(record, "kind"));
    if (errno == ENOMEM)
        return kvl_fail(err, KVL_ENOMEM, "%s: no memory for a record of kind %s", log->path,
                        kind ? kind : "?");
    return kvl_fail(err, KVL_EINTERNAL, "%s: a record of kind %s cannot be written as JSON",
                    log->path, kind ? kind : "?");
}

int kvl_log_append_line(struct kvl_log *log, const char *text, size_t len, struct kvl_err *err)
{
    if (kvl_buf_add(&log->text, text, len) != KVL_OK || kvl_buf_adds(&log->text, "\n") != KVL_OK)
        return kvl_fail(err, KVL_ENOMEM, "%s: no memory for a line of %zu bytes", log->path, len);
    log->n_pending++;
    return KVL_OK;
}

size_t kvl_log_pending(const struct kvl_log *log)
{
    return log->n_pending;
}

size_t kvl_log_pending_bytes(const struct kvl_log *log)
{
    return log->text.len;
}

void kvl_log_discard(struct kvl_log *log)
{
    log->text.len = 0;
    log->n_pending = 0;
}

/* ---- committing ---------------------------------------------------------------------------- */

/* `out` [KVL_LOG_HEADER + ZSTD_compressBound] gets header and frame. */
static int commit_pack(struct kvl_log *log, uint8_t *out, size_t room, struct kvl_log_header *h,
                       struct kvl_err *err)
{
    uint8_t *frame = out + KVL_LOG_HEADER;
    size_t packed = ZSTD_compress2(log->ctx, frame, room, log->text.data, log->text.len);
    if (ZSTD_isError(packed))
        return kvl_fail(err, KVL_ENOMEM, "%s: cannot compress %zu bytes: %s", log->path,
                        log->text.len, ZSTD_getErrorName(packed));
    *h = (struct kvl_log_header){ .version = KVL_LOG_VERSION,
                                  .sequence = log->sequence,
                                  .n_records = log->n_pending,
                                  .packed = packed,
                                  .unpacked = log->text.len,
                                  .packed_hash = XXH64(frame, packed, 0),
                                  .prev_hash = log->prev_hash };
    memcpy(h->run, log->run, sizeof h->run);
    kvl_log_header_pack(h, out);
    return KVL_OK;
}

static int commit_broken(struct kvl_log *log, const char *what, int error, struct kvl_err *err)
{
    log->broken = true;
    return kvl_fail(err, KVL_ELOG,
                    "%s: %s: %s; what is on the disk is unknown, check it with "
                    "`kvlab log check` and start again",
                    log->path, what, strerror(error));
}

/* A disk may have taken a part of the group: it is cut off, so that the log ends with the last
 * commit. */
static int commit_undo(struct kvl_log *log, off_t end, size_t len, int error, struct kvl_err *err)
{
    if (ftruncate(log->fd, end) != 0) return commit_broken(log, "cannot cut it back", errno, err);
    if (!no_space(error)) return commit_broken(log, "cannot write", error, err);
    return kvl_fail(err, KVL_EIO,
                    "%s: no space for %zu bytes (%s); all earlier records are safe, free space and "
                    "start again",
                    log->path, len, strerror(error));
}

static int commit_write(struct kvl_log *log, const uint8_t *data, size_t len, struct kvl_err *err)
{
    struct stat st;
    if (fstat(log->fd, &st) != 0) return commit_broken(log, "cannot look at it", errno, err);
    if (st.st_nlink == 0) return commit_broken(log, "it was deleted meanwhile", ENOENT, err);
    KVL_TRY(commit_grown(log, &st, err));
    int error = kvl_log_write_all(log->fd, data, len);
    if (error) return commit_undo(log, st.st_size, len, error, err);
    /* After a failed sync the kernel may have dropped the pages: a second one that succeeds says
     * nothing. */
    if (fdatasync(log->fd) != 0) return commit_broken(log, "cannot sync", errno, err);
    log->end += (off_t)len;
    return KVL_OK;
}

int kvl_log_commit(struct kvl_log *log, struct kvl_err *err)
{
    if (log->broken)
        return kvl_fail(err, KVL_ELOG, "%s: an earlier write went wrong, nothing more is taken",
                        log->path);
    if (log->n_pending == 0) return KVL_OK;
    if (log->redirect) {
        KVL_TRY(log->redirect(log->text.data, log->text.len, log->redirect_user, err));
        kvl_log_discard(log);
        return KVL_OK;
    }
    size_t room = ZSTD_compressBound(log->text.len);
    uint8_t *data = malloc(KVL_LOG_HEADER + room);
    if (!data)
        return kvl_fail(err, KVL_ENOMEM, "%s: no memory to compress %zu bytes", log->path,
                        log->text.len);
    struct kvl_log_header h;
    int rc = commit_pack(log, data, room, &h, err);
    if (rc == KVL_OK) rc = commit_write(log, data, KVL_LOG_HEADER + (size_t)h.packed, err);
    free(data);
    KVL_TRY(rc);
    log->sequence++;
    log->prev_hash = h.hash;
    kvl_log_discard(log);
    return KVL_OK;
}

/* ---- in another process ---------------------------------------------------------------------- */

/* The lock is held by the open file, so by every process that has it open: a child that kept it would
 * keep others out after the writer was killed. */
void kvl_log_redirect(struct kvl_log *log, kvl_log_commit_fn fn, void *user)
{
    if (log->fd >= 0) close(log->fd);
    log->fd = -1;
    log->locked = false;
    log->redirect = fn;
    log->redirect_user = user;
    kvl_log_discard(log);
}
