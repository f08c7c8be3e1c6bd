/* Snapshot files: writing under a temporary name, reading with every byte checked. */
#include "model/snapshot_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

enum {
    FILE_FORMAT = 1,
    FILE_BUFFER = 1 << 17,
    /* Stored floats hardly compress: level 1 takes what is to be had, at disk speed. */
    FILE_LEVEL = 1,
    FILE_WINDOW_LOG = 20, /* memory that a reader needs, whatever a frame says */
    HASH_BYTES = 16
};

static const char file_magic[] = "KVLSNAP\n";

/* magic, format, length of the key */
enum { HEAD_BYTES = 8 + 4 + 4 };

static void put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) p[i] = (uint8_t)(v >> (8 * i));
}

static uint32_t get_u32(const uint8_t *p)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) v |= (uint32_t)p[i] << (8 * i);
    return v;
}

static void put_u64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++) p[i] = (uint8_t)(v >> (8 * i));
}

static void put_hash(uint8_t *p, XXH128_hash_t h)
{
    put_u64(p, h.low64);
    put_u64(p + 8, h.high64);
}

/* ---- writing ------------------------------------------------------------------------------------- */

struct kvl_snapshot_writer {
    char *path, *tmp;
    int fd;
    ZSTD_CCtx *zstd;
    XXH3_state_t *hash; /* of the body */
    uint8_t *buffer;    /* [FILE_BUFFER] */
};

static int write_failed(const struct kvl_snapshot_writer *w, const char *what, struct kvl_err *err)
{
    return kvl_fail(err, KVL_EIO, "%s: cannot %s the snapshot: %s", w->path, what, strerror(errno));
}

static int write_all(struct kvl_snapshot_writer *w, const uint8_t *data, size_t n,
                     struct kvl_err *err)
{
    while (n > 0) {
        ssize_t m = write(w->fd, data, n);
        if (m < 0 && errno == EINTR) continue;
        if (m < 0) return write_failed(w, "write", err);
        data += m;
        n -= (size_t)m;
    }
    return KVL_OK;
}

static int write_head(struct kvl_snapshot_writer *w, const char *key, struct kvl_err *err)
{
    size_t n = strlen(key);
    struct kvl_buf head = { 0 };
    uint8_t number[8];
    int rc = kvl_buf_add(&head, file_magic, 8);
    put_u32(number, FILE_FORMAT);
    put_u32(number + 4, (uint32_t)n);
    if (rc == KVL_OK) rc = kvl_buf_add(&head, number, 8);
    if (rc == KVL_OK) rc = kvl_buf_add(&head, key, n);
    if (rc == KVL_OK) {
        put_u64(number, XXH3_64bits(head.data, head.len));
        rc = kvl_buf_add(&head, number, 8);
    }
    if (rc == KVL_OK)
        rc = write_all(w, (const uint8_t *)head.data, head.len, err);
    else
        kvl_fail(err, rc, "%s: out of memory for a snapshot", w->path);
    kvl_buf_free(&head);
    return rc;
}

static char *copy_text(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    char *copy = kvl_alloc(n + m + 1, 1);
    if (!copy) return NULL;
    memcpy(copy, text, n);
    memcpy(copy + n, end, m);
    return copy;
}

static int writer_open(struct kvl_snapshot_writer *w, const char *path, struct kvl_err *err)
{
    w->fd = -1;
    w->path = copy_text(path, "");
    w->tmp = copy_text(path, ".tmp-XXXXXX");
    w->zstd = ZSTD_createCCtx();
    w->hash = XXH3_createState();
    w->buffer = kvl_alloc(FILE_BUFFER, 1);
    if (!w->path || !w->tmp || !w->zstd || !w->hash || !w->buffer)
        return kvl_fail(err, KVL_ENOMEM, "%s: out of memory for a snapshot", path);
    ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_compressionLevel, FILE_LEVEL);
    ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_windowLog, FILE_WINDOW_LOG);
    ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_checksumFlag, 1);
    XXH3_128bits_reset(w->hash);
    w->fd = mkostemp(w->tmp, O_CLOEXEC);
    if (w->fd >= 0) return KVL_OK;
    kvl_free(w->tmp); /* nothing to remove */
    w->tmp = NULL;
    return write_failed(w, "create", err);
}

int kvl_snapshot_create(const char *path, const char *key, struct kvl_snapshot_writer **out,
                        struct kvl_err *err)
{
    if (strlen(key) > KVL_SNAPSHOT_KEY_BYTES)
        return kvl_fail(err, KVL_EINVAL, "%s: a key of %zu bytes, want at most %d", path,
                        strlen(key), KVL_SNAPSHOT_KEY_BYTES);
    struct kvl_snapshot_writer *w = kvl_alloc(1, sizeof *w);
    if (!w) return kvl_fail(err, KVL_ENOMEM, "%s: out of memory for a snapshot", path);
    int rc = writer_open(w, path, err);
    if (rc == KVL_OK) rc = write_head(w, key, err);
    if (rc != KVL_OK) {
        kvl_snapshot_close_writer(w);
        return rc;
    }
    *out = w;
    return KVL_OK;
}

static int compress(struct kvl_snapshot_writer *w, const void *data, size_t n,
                    ZSTD_EndDirective mode, struct kvl_err *err)
{
    ZSTD_inBuffer in = { data, n, 0 };
    for (;;) {
        ZSTD_outBuffer out = { w->buffer, FILE_BUFFER, 0 };
        size_t left = ZSTD_compressStream2(w->zstd, &out, &in, mode);
        if (ZSTD_isError(left))
            return kvl_fail(err, KVL_EIO, "%s: cannot compress the snapshot: %s", w->path,
                            ZSTD_getErrorName(left));
        KVL_TRY(write_all(w, w->buffer, out.pos, err));
        if (mode == ZSTD_e_end ? left == 0 : in.pos == in.size) return KVL_OK;
    }
}

int kvl_snapshot_put(struct kvl_snapshot_writer *w, const void *data, size_t n, struct kvl_err *err)
{
    XXH3_128bits_update(w->hash, data, n);
    return compress(w, data, n, ZSTD_e_continue, err);
}

/* A rename is on disk once its folder is. */
static void sync_folder(const char *path)
{
    char *folder = copy_text(path, "");
    char *slash = folder ? strrchr(folder, '/') : NULL;
    if (slash) slash[slash == folder ? 1 : 0] = '\0';
    int fd = folder ? open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd); /* some file systems cannot: the file itself is safe */
        close(fd);
    }
    kvl_free(folder);
}

int kvl_snapshot_commit(struct kvl_snapshot_writer *w, struct kvl_err *err)
{
    uint8_t hash[HASH_BYTES];
    put_hash(hash, XXH3_128bits_digest(w->hash));
    KVL_TRY(compress(w, hash, sizeof hash, ZSTD_e_end, err));
    if (fchmod(w->fd, 0644) != 0) return write_failed(w, "share", err);
    if (fsync(w->fd) != 0) return write_failed(w, "write", err);
    if (rename(w->tmp, w->path) != 0) return write_failed(w, "rename", err);
    kvl_free(w->tmp);
    w->tmp = NULL;
    sync_folder(w->path);
    return KVL_OK;
}

void kvl_snapshot_close_writer(struct kvl_snapshot_writer *w)
{
    if (!w) return;
    if (w->fd >= 0) close(w->fd);
    if (w->fd >= 0 && w->tmp) unlink(w->tmp);
    ZSTD_freeCCtx(w->zstd);
    XXH3_freeState(w->hash);
    kvl_free(w->buffer);
    kvl_free(w->path);
    kvl_free(w->tmp);
    kvl_free(w);
}

/* ---- reading ------------------------------------------------------------------------------------- */

struct kvl_snapshot_reader {
    char *path;
    int fd;
    ZSTD_DCtx *zstd;
    XXH3_state_t *hash; /* of the body */
    uint8_t *buffer;    /* [FILE_BUFFER] */
    ZSTD_inBuffer in;   /* what is left of it */
    bool frame_ended;
};

int kvl_snapshot_damaged(const struct kvl_snapshot_reader *r, const char *what, struct kvl_err *err)
{
    return kvl_fail(err, KVL_EIO,
                    "%s: damaged snapshot (%s); delete the file and it will be made again", r->path,
                    what);
}

/* At most n bytes; *got = 0 at the end of the file. */
static int read_some(struct kvl_snapshot_reader *r, void *data, size_t n, size_t *got,
                     struct kvl_err *err)
{
    ssize_t m;
    do m = read(r->fd, data, n);
    while (m < 0 && errno == EINTR);
    if (m < 0)
        return kvl_fail(err, KVL_EIO, "%s: cannot read the snapshot: %s", r->path, strerror(errno));
    *got = (size_t)m;
    return KVL_OK;
}

static int read_all(struct kvl_snapshot_reader *r, void *data, size_t n, struct kvl_err *err)
{
    uint8_t *at = data;
    while (n > 0) {
        size_t got;
        KVL_TRY(read_some(r, at, n, &got, err));
        if (got == 0) return kvl_snapshot_damaged(r, "it ends too early", err);
        at += got;
        n -= got;
    }
    return KVL_OK;
}

/* The first line in which two keys differ. */
static int another_key(const struct kvl_snapshot_reader *r, const char *have, const char *want,
                       struct kvl_err *err)
{
    size_t line = 0;
    for (size_t i = 0; have[i] && have[i] == want[i]; i++)
        if (have[i] == '\n') line = i + 1;
    return kvl_fail(err, KVL_EIO,
                    "%s: snapshot of something else (\"%.*s\", want \"%.*s\"); delete the file and "
                    "it will be made again",
                    r->path, (int)strcspn(have + line, "\n"), have + line,
                    (int)strcspn(want + line, "\n"), want + line);
}

static int read_head(struct kvl_snapshot_reader *r, const char *key, struct kvl_err *err)
{
    uint8_t *head = r->buffer, hash[8], want[8];
    KVL_TRY(read_all(r, head, HEAD_BYTES, err));
    if (memcmp(head, file_magic, 8) != 0)
        return kvl_fail(err, KVL_EIO, "%s: not a snapshot; delete the file", r->path);
    uint32_t format = get_u32(head + 8), n = get_u32(head + 12);
    if (n > KVL_SNAPSHOT_KEY_BYTES) return kvl_snapshot_damaged(r, "its key is too long", err);
    KVL_TRY(read_all(r, head + HEAD_BYTES, n, err));
    KVL_TRY(read_all(r, hash, sizeof hash, err));
    put_u64(want, XXH3_64bits(head, HEAD_BYTES + n));
    if (memcmp(hash, want, sizeof hash) != 0)
        return kvl_snapshot_damaged(r, "checksum of its key", err);
    if (format != FILE_FORMAT)
        return kvl_fail(err, KVL_EIO,
                        "%s: snapshot of format %u, this program reads %d; delete the file and it "
                        "will be made again",
                        r->path, format, FILE_FORMAT);
    char *have = (char *)head + HEAD_BYTES;
    have[n] = '\0';
    return strcmp(have, key) == 0 ? KVL_OK : another_key(r, have, key, err);
}

static int reader_open(struct kvl_snapshot_reader *r, const char *path, struct kvl_err *err)
{
    _Static_assert(HEAD_BYTES + KVL_SNAPSHOT_KEY_BYTES < FILE_BUFFER, "a key fits the buffer");
    r->path = copy_text(path, "");
    r->zstd = ZSTD_createDCtx();
    r->hash = XXH3_createState();
    r->buffer = kvl_alloc(FILE_BUFFER, 1);
    if (!r->path || !r->zstd || !r->hash || !r->buffer)
        return kvl_fail(err, KVL_ENOMEM, "%s: out of memory for a snapshot", path);
    ZSTD_DCtx_setParameter(r->zstd, ZSTD_d_windowLogMax, FILE_WINDOW_LOG);
    XXH3_128bits_reset(r->hash);
    return KVL_OK;
}

int kvl_snapshot_open(const char *path, const char *key, struct kvl_snapshot_reader **out,
                      struct kvl_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        *out = NULL;
        return KVL_OK;
    }
    if (fd < 0)
        return kvl_fail(err, KVL_EIO, "%s: cannot open the snapshot: %s", path, strerror(errno));
    struct kvl_snapshot_reader *r = kvl_alloc(1, sizeof *r);
    if (!r) {
        close(fd);
        return kvl_fail(err, KVL_ENOMEM, "%s: out of memory for a snapshot", path);
    }
    r->fd = fd;
    int rc = reader_open(r, path, err);
    if (rc == KVL_OK) rc = read_head(r, key, err);
    if (rc != KVL_OK) {
        kvl_snapshot_close_reader(r);
        return rc;
    }
    *out = r;
    return KVL_OK;
}

/* Decodes up to out->size from one buffer of the file. */
static int decode_some(struct kvl_snapshot_reader *r, ZSTD_outBuffer *out, struct kvl_err *err)
{
    if (r->in.pos == r->in.size) {
        size_t got;
        KVL_TRY(read_some(r, r->buffer, FILE_BUFFER, &got, err));
        if (got == 0) return kvl_snapshot_damaged(r, "it ends too early", err);
        r->in = (ZSTD_inBuffer){ r->buffer, got, 0 };
    }
    size_t left = ZSTD_decompressStream(r->zstd, out, &r->in);
    if (ZSTD_isError(left)) return kvl_snapshot_damaged(r, ZSTD_getErrorName(left), err);
    r->frame_ended = left == 0;
    return KVL_OK;
}

static int decode(struct kvl_snapshot_reader *r, void *data, size_t n, struct kvl_err *err)
{
    ZSTD_outBuffer out = { data, n, 0 };
    while (out.pos < n) {
        if (r->frame_ended) return kvl_snapshot_damaged(r, "it holds too little", err);
        KVL_TRY(decode_some(r, &out, err));
    }
    return KVL_OK;
}

int kvl_snapshot_get(struct kvl_snapshot_reader *r, void *data, size_t n, struct kvl_err *err)
{
    KVL_TRY(decode(r, data, n, err));
    XXH3_128bits_update(r->hash, data, n);
    return KVL_OK;
}

int kvl_snapshot_end(struct kvl_snapshot_reader *r, struct kvl_err *err)
{
    uint8_t hash[HASH_BYTES], want[HASH_BYTES], more;
    size_t got;
    KVL_TRY(decode(r, hash, sizeof hash, err));
    put_hash(want, XXH3_128bits_digest(r->hash));
    if (memcmp(hash, want, sizeof hash) != 0)
        return kvl_snapshot_damaged(r, "checksum of its content", err);
    while (!r->frame_ended) {
        ZSTD_outBuffer out = { &more, 1, 0 };
        KVL_TRY(decode_some(r, &out, err));
        if (out.pos > 0) return kvl_snapshot_damaged(r, "it holds too much", err);
    }
    KVL_TRY(read_some(r, &more, 1, &got, err));
    if (got > 0 || r->in.pos < r->in.size)
        return kvl_snapshot_damaged(r, "something follows its end", err);
    return KVL_OK;
}

void kvl_snapshot_close_reader(struct kvl_snapshot_reader *r)
{
    if (!r) return;
    close(r->fd);
    ZSTD_freeDCtx(r->zstd);
    XXH3_freeState(r->hash);
    kvl_free(r->buffer);
    kvl_free(r->path);
    kvl_free(r);
}
