/* Snapshot files: writing under a temporary name, reading with every byte checked. */
#include "snapshot_file.h"

#include "kvl/model.h"

#include <assert.h>
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
    /* Goes up with the layout of the file; what the content means is in the key. */
    FILE_FORMAT = 3,
    FILE_PIECE = 1 << 20,
    /* Stored floats hardly compress: level 1 takes what is to be had, at disk speed. */
    FILE_LEVEL = 1,
    FILE_AHEAD = 8 << 20, /* asked of the disk before it is needed */
    PIECE_HEAD = 12,
    HASH_BYTES = 16
};

static const char file_magic[] = "KVLSNAP\n";

/* magic, format, length of the key */
enum { HEAD_BYTES = 8 + 4 + 4 };

/* Little-endian by hand: a file may be read on another machine. */
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

/* ---- planes -------------------------------------------------------------------------------------- */

/* n elements of `width` bytes, byte b of all of them from plane + b * stride on.  High bytes of neighbouring floats are
 * alike and low ones are noise: apart they compress, together they hardly do. */
static void planes_split(uint8_t *plane, size_t stride, const uint8_t *from, size_t n, size_t width)
{
    /* Nearly all content is of two bytes; with the width known and no overlap the compiler makes
     * vectors of the loop. */
    if (width == 2) {
        uint8_t *restrict low = plane, *restrict high = plane + stride;
        for (size_t i = 0; i < n; i++) {
            low[i] = from[2 * i];
            high[i] = from[2 * i + 1];
        }
        return;
    }
    for (size_t b = 0; b < width; b++)
        for (size_t i = 0; i < n; i++) plane[b * stride + i] = from[i * width + b];
}

static void planes_join(uint8_t *restrict to, const uint8_t *plane, size_t stride, size_t n,
                        size_t width)
{
    if (width == 2) {
        const uint8_t *low = plane, *high = plane + stride;
        for (size_t i = 0; i < n; i++) {
            to[2 * i] = low[i];
            to[2 * i + 1] = high[i];
        }
    } else if (width == 4) {
        const uint8_t *a = plane, *b = a + stride, *c = b + stride, *d = c + stride;
        for (size_t i = 0; i < n; i++) {
            to[4 * i] = a[i];
            to[4 * i + 1] = b[i];
            to[4 * i + 2] = c[i];
            to[4 * i + 3] = d[i];
        }
    } else {
        memcpy(to, plane, n);
    }
}

/* ---- writing ------------------------------------------------------------------------------------- */

struct kvl_snapshot_writer {
    char *path, *tmp;
    int fd;
    ZSTD_CCtx *zstd;
    XXH3_state_t *hash; /* of the pieces */
    uint8_t *piece;     /* [FILE_PIECE]: planes of FILE_PIECE / width bytes each */
    uint8_t *frame;     /* [frame_room]: a piece's head and frame */
    size_t width, n;    /* of the elements of the piece; how many it has */
};

/* What a piece takes at worst, head included. */
static size_t frame_room(void)
{
    return PIECE_HEAD + ZSTD_compressBound(FILE_PIECE);
}

static int write_failed(const struct kvl_snapshot_writer *w, const char *what, struct kvl_err *err)
{
    return kvl_fail(err, KVL_EIO, "%s: cannot %s the snapshot: %s", w->path, what, strerror(errno));
}

/* A write may be short, on a full disk or by a signal. */
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

/* The key has a checksum of its own, so that a damaged key is not taken for another one. */
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

/* Under a temporary name beside the file: a reader sees a whole snapshot or none. */
static int writer_open(struct kvl_snapshot_writer *w, const char *path, struct kvl_err *err)
{
    w->fd = -1;
    w->path = copy_text(path, "");
    w->tmp = copy_text(path, ".tmp-XXXXXX");
    w->zstd = ZSTD_createCCtx();
    w->hash = XXH3_createState();
    w->piece = kvl_alloc(FILE_PIECE, 1);
    w->frame = kvl_alloc(frame_room(), 1);
    /* Not 0: piece_end divides by it before the first element has said its width. */
    w->width = 1;
    if (!w->path || !w->tmp || !w->zstd || !w->hash || !w->piece || !w->frame)
        return kvl_fail(err, KVL_ENOMEM, "%s: out of memory for a snapshot", path);
    ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_compressionLevel, FILE_LEVEL);
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

/* A head of n bytes of content and a frame of m bytes lie in w->frame. */
static int piece_write(struct kvl_snapshot_writer *w, size_t n, size_t m, struct kvl_err *err)
{
    put_u32(w->frame, (uint32_t)n);
    put_u32(w->frame + 4, (uint32_t)w->width);
    put_u32(w->frame + 8, (uint32_t)m);
    XXH3_128bits_update(w->hash, w->frame, PIECE_HEAD + m);
    return write_all(w, w->frame, PIECE_HEAD + m, err);
}

/* The piece ends here, full or not. */
static int piece_end(struct kvl_snapshot_writer *w, struct kvl_err *err)
{
    size_t n = w->n * w->width, stride = FILE_PIECE / w->width;
    if (n == 0) return KVL_OK;
    /* A reader expects planes n bytes apart, as a piece that is not full does not have them. */
    for (size_t b = 1; w->n < stride && b < w->width; b++)
        memmove(w->piece + b * w->n, w->piece + b * stride, w->n);
    size_t m =
        ZSTD_compress2(w->zstd, w->frame + PIECE_HEAD, frame_room() - PIECE_HEAD, w->piece, n);
    if (ZSTD_isError(m))
        return kvl_fail(err, KVL_EIO, "%s: cannot compress the snapshot: %s", w->path,
                        ZSTD_getErrorName(m));
    w->n = 0;
    return piece_write(w, n, m, err);
}

/* Pieces are of one width; another one ends the piece. */
int kvl_snapshot_put(struct kvl_snapshot_writer *w, const void *data, size_t n, size_t width,
                     struct kvl_err *err)
{
    const uint8_t *from = data;
    assert((width == 1 || width == 2 || width == 4) && n % width == 0);
    if (width != w->width) KVL_TRY(piece_end(w, err));
    w->width = width;
    for (size_t left = n / width; left > 0;) {
        size_t m = KVL_MIN(left, FILE_PIECE / width - w->n);
        planes_split(w->piece + w->n, FILE_PIECE / width, from, m, width);
        w->n += m;
        from += m * width;
        left -= m;
        if (w->n == FILE_PIECE / width) KVL_TRY(piece_end(w, err));
    }
    return KVL_OK;
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

/* On disk before it has its name: after a crash there is the old state or the new one. */
int kvl_snapshot_commit(struct kvl_snapshot_writer *w, struct kvl_err *err)
{
    uint8_t hash[HASH_BYTES];
    KVL_TRY(piece_end(w, err));
    KVL_TRY(piece_write(w, 0, 0, err));
    put_hash(hash, XXH3_128bits_digest(w->hash));
    KVL_TRY(write_all(w, hash, sizeof hash, err));
    /* mkostemp makes files for their owner alone, and a folder of snapshots may serve several
     * users. */
    if (fchmod(w->fd, 0644) != 0) return write_failed(w, "share", err);
    if (fsync(w->fd) != 0) return write_failed(w, "write", err);
    if (rename(w->tmp, w->path) != 0) return write_failed(w, "rename", err);
    /* It has its name: close_writer must not remove it any more. */
    kvl_free(w->tmp);
    w->tmp = NULL;
    sync_folder(w->path);
    return KVL_OK;
}

/* What was not committed leaves no file. */
void kvl_snapshot_close_writer(struct kvl_snapshot_writer *w)
{
    if (!w) return;
    if (w->fd >= 0) close(w->fd);
    if (w->fd >= 0 && w->tmp) unlink(w->tmp);
    ZSTD_freeCCtx(w->zstd);
    XXH3_freeState(w->hash);
    kvl_free(w->piece);
    kvl_free(w->frame);
    kvl_free(w->path);
    kvl_free(w->tmp);
    kvl_free(w);
}

/* ---- reading ------------------------------------------------------------------------------------- */

struct kvl_snapshot_reader {
    char *path;
    int fd;
    ZSTD_DCtx *zstd;
    XXH3_state_t *hash;  /* of the pieces */
    uint8_t *frame;      /* [frame_room] */
    uint8_t *piece;      /* [FILE_PIECE]: planes of n bytes */
    size_t width, n, at; /* of its elements; how many it has; how many were taken */
    int64_t asked;       /* of the file, ahead of need */
};

int kvl_snapshot_damaged(const struct kvl_snapshot_reader *r, const char *what, struct kvl_err *err)
{
    return kvl_fail(err, KVL_EIO,
                    "%s: damaged snapshot (%s); delete the file and it will be made again", r->path,
                    what);
}

/* At most n bytes; *got = 0 at the end of the file.  A signal in between is no error. */
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

/* Checked in the order in which a wrong file would show: what it is, whether it is whole, which format, whose (key
 * NULL: any).  The key stays in r->frame, after the head, until something is read. */
static int read_head(struct kvl_snapshot_reader *r, const char *key, struct kvl_err *err)
{
    uint8_t *head = r->frame, hash[8], want[8];
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
    /* The buffer has room for one byte more (reader_open); the checksum that stands here in the
     * file was read elsewhere. */
    have[n] = '\0';
    return !key || strcmp(have, key) == 0 ? KVL_OK : another_key(r, have, key, err);
}

static int reader_open(struct kvl_snapshot_reader *r, const char *path, struct kvl_err *err)
{
    _Static_assert(HEAD_BYTES + KVL_SNAPSHOT_KEY_BYTES < FILE_PIECE, "a key fits the buffer");
    r->path = copy_text(path, "");
    r->zstd = ZSTD_createDCtx();
    r->hash = XXH3_createState();
    r->frame = kvl_alloc(frame_room(), 1);
    r->piece = kvl_alloc(FILE_PIECE, 1);
    if (!r->path || !r->zstd || !r->hash || !r->frame || !r->piece)
        return kvl_fail(err, KVL_ENOMEM, "%s: out of memory for a snapshot", path);
    XXH3_128bits_reset(r->hash);
    return KVL_OK;
}

/* A file that is not there is no error: the context is prefilled then. */
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

/* The disk works on what follows while this piece is decoded. */
static void read_ahead(struct kvl_snapshot_reader *r)
{
    int64_t at = lseek(r->fd, 0, SEEK_CUR);
    if (at < 0 || r->asked - at > FILE_AHEAD / 2) return;
    posix_fadvise(r->fd, at, FILE_AHEAD, POSIX_FADV_WILLNEED);
    r->asked = at + FILE_AHEAD;
}

/* *m = bytes of the frame that follows; r->n = 0: it was the last piece.  Lengths are checked before they are used: the
 * checksum comes only at the end, and a frame must fit the room that was made for the largest. */
static int piece_head(struct kvl_snapshot_reader *r, size_t *m, struct kvl_err *err)
{
    uint8_t *head = r->frame;
    KVL_TRY(read_all(r, head, PIECE_HEAD, err));
    size_t n = get_u32(head), width = get_u32(head + 4);
    *m = get_u32(head + 8);
    if (n > FILE_PIECE || (width != 1 && width != 2 && width != 4) || n % width != 0 ||
        *m > frame_room() - PIECE_HEAD || (*m == 0) != (n == 0))
        return kvl_snapshot_damaged(r, "impossible lengths of a piece", err);
    r->width = width;
    r->n = n / width;
    r->at = 0;
    return KVL_OK;
}

static int piece_read(struct kvl_snapshot_reader *r, struct kvl_err *err)
{
    size_t m;
    KVL_TRY(piece_head(r, &m, err));
    KVL_TRY(read_all(r, r->frame + PIECE_HEAD, m, err));
    /* As the bytes lie in the file: zstd may well decode a frame that is damaged. */
    XXH3_128bits_update(r->hash, r->frame, PIECE_HEAD + m);
    if (r->n == 0) return KVL_OK;
    read_ahead(r);
    size_t got = ZSTD_decompressDCtx(r->zstd, r->piece, FILE_PIECE, r->frame + PIECE_HEAD, m);
    if (ZSTD_isError(got)) return kvl_snapshot_damaged(r, ZSTD_getErrorName(got), err);
    if (got != r->n * r->width) return kvl_snapshot_damaged(r, "a piece of another length", err);
    return KVL_OK;
}

int kvl_snapshot_get(struct kvl_snapshot_reader *r, void *data, size_t n, struct kvl_err *err)
{
    uint8_t *to = data;
    while (n > 0) {
        /* Also true before the first piece, when both are 0. */
        if (r->at == r->n) {
            KVL_TRY(piece_read(r, err));
            if (r->n == 0) return kvl_snapshot_damaged(r, "it holds too little", err);
        }
        /* Elements stay whole: what asks for less than one was written with another width. */
        size_t m = KVL_MIN(n / r->width, r->n - r->at);
        if (m == 0) return kvl_snapshot_damaged(r, "elements of another width", err);
        planes_join(to, r->piece + r->at, r->n, m, r->width);
        r->at += m;
        to += m * r->width;
        n -= m * r->width;
    }
    return KVL_OK;
}

/* What follows the last piece: the checksum, and nothing more. */
static int read_tail(struct kvl_snapshot_reader *r, struct kvl_err *err)
{
    uint8_t hash[HASH_BYTES], want[HASH_BYTES], more;
    size_t got;
    KVL_TRY(read_all(r, hash, sizeof hash, err));
    put_hash(want, XXH3_128bits_digest(r->hash));
    if (memcmp(hash, want, sizeof hash) != 0)
        return kvl_snapshot_damaged(r, "checksum of its content", err);
    KVL_TRY(read_some(r, &more, 1, &got, err));
    return got > 0 ? kvl_snapshot_damaged(r, "something follows its end", err) : KVL_OK;
}

/* Content that is short, long or followed by something is as damaged as a wrong checksum. */
int kvl_snapshot_end(struct kvl_snapshot_reader *r, struct kvl_err *err)
{
    if (r->at == r->n) KVL_TRY(piece_read(r, err));
    return r->n > 0 ? kvl_snapshot_damaged(r, "it holds too much", err) : read_tail(r, err);
}

/* Opens a snapshot whatever its key, which is given out. */
static int open_any(const char *path, struct kvl_buf *key, struct kvl_snapshot_reader **out,
                    struct kvl_err *err)
{
    struct kvl_snapshot_reader *r;
    KVL_TRY(kvl_snapshot_open(path, NULL, &r, err));
    if (!r) return kvl_fail(err, KVL_EIO, "%s: no such snapshot", path);
    int rc = kvl_buf_adds(key, (const char *)r->frame + HEAD_BYTES);
    if (rc != KVL_OK) {
        kvl_snapshot_close_reader(r);
        return kvl_fail(err, rc, "%s: out of memory for its key", path);
    }
    *out = r;
    return KVL_OK;
}

int kvl_snapshot_key_of(const char *path, struct kvl_buf *key, struct kvl_err *err)
{
    struct kvl_snapshot_reader *r;
    KVL_TRY(open_any(path, key, &r, err));
    kvl_snapshot_close_reader(r);
    return KVL_OK;
}

int kvl_snapshot_check(const char *path, struct kvl_buf *key, struct kvl_err *err)
{
    struct kvl_snapshot_reader *r;
    KVL_TRY(open_any(path, key, &r, err));
    int rc = piece_read(r, err);
    while (rc == KVL_OK && r->n > 0) rc = piece_read(r, err);
    if (rc == KVL_OK) rc = read_tail(r, err);
    kvl_snapshot_close_reader(r);
    return rc;
}

void kvl_snapshot_close_reader(struct kvl_snapshot_reader *r)
{
    if (!r) return;
    close(r->fd);
    ZSTD_freeDCtx(r->zstd);
    XXH3_freeState(r->hash);
    kvl_free(r->frame);
    kvl_free(r->piece);
    kvl_free(r->path);
    kvl_free(r);
}
