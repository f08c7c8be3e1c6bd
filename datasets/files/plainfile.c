/* Files, mapped or unpacked. */
#include "plainfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { CHUNK = 1 << 17 };

/* ---- unpacking ----------------------------------------------------------------------------------- */

static int unpack_write(FILE *out, const void *data, size_t n, const char *path,
                        struct kvl_err *err)
{
    if (fwrite(data, 1, n, out) == n) return KVL_OK;
    return kvl_fail(err, KVL_EIO, "%s: cannot unpack it into a temporary file: %s", path,
                    strerror(errno));
}

static int unpack_gz(int fd, const char *path, FILE *out, struct kvl_err *err)
{
    char *buf = kvl_alloc(CHUNK, 1);
    int copy = dup(fd), n = 0, rc = KVL_OK;
    gzFile in = buf && copy >= 0 ? gzdopen(copy, "rb") : NULL;
    if (!in) {
        if (copy >= 0) close(copy);
        kvl_free(buf);
        return kvl_fail(err, KVL_ENOMEM, "%s: out of memory to unpack it", path);
    }
    while (rc == KVL_OK && (n = gzread(in, buf, CHUNK)) > 0)
        rc = unpack_write(out, buf, (size_t)n, path, err);
    int state = Z_OK;
    const char *why = gzerror(in, &state);
    if (rc == KVL_OK && (n < 0 || state == Z_BUF_ERROR))
        rc = kvl_fail(err, KVL_EIO, "%s: damaged gzip file: %s", path, n < 0 ? why : "cut off");
    gzclose(in);
    kvl_free(buf);
    return rc;
}

/* What is left to do of a frame after a block of input. */
static int unpack_zst_block(ZSTD_DStream *z, ZSTD_inBuffer *in, char *buf, const char *path,
                            FILE *out, size_t *left, struct kvl_err *err)
{
    while (in->pos < in->size) {
        ZSTD_outBuffer o = { buf, CHUNK, 0 };
        *left = ZSTD_decompressStream(z, &o, in);
        if (ZSTD_isError(*left))
            return kvl_fail(err, KVL_EIO, "%s: damaged zstd file: %s", path,
                            ZSTD_getErrorName(*left));
        KVL_TRY(unpack_write(out, buf, o.pos, path, err));
    }
    return KVL_OK;
}

static int unpack_zst(int fd, const char *path, FILE *out, struct kvl_err *err)
{
    char *buf = kvl_alloc(2, CHUNK);
    ZSTD_DStream *z = ZSTD_createDStream();
    ssize_t n = 0;
    size_t left = 0;
    int rc = buf && z ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "%s: out of memory to unpack it", path);
    while (rc == KVL_OK && (n = read(fd, buf, CHUNK)) > 0) {
        ZSTD_inBuffer in = { buf, (size_t)n, 0 };
        rc = unpack_zst_block(z, &in, buf + CHUNK, path, out, &left, err);
    }
    if (rc == KVL_OK && n < 0)
        rc = kvl_fail(err, KVL_EIO, "%s: cannot read: %s", path, strerror(errno));
    if (rc == KVL_OK && left > 0)
        rc = kvl_fail(err, KVL_EIO, "%s: damaged zstd file: cut off", path);
    ZSTD_freeDStream(z);
    kvl_free(buf);
    return rc;
}

/* ---- files ----------------------------------------------------------------------------------------- */

static int file_map(int fd, struct kvl_plainfile *f, struct kvl_err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        return kvl_fail(err, KVL_EIO, "%s: is no file", f->path);
    f->len = (size_t)st.st_size;
    f->data = "";
    if (f->len == 0) return KVL_OK;
    void *map = mmap(NULL, f->len, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED)
        return kvl_fail(err, KVL_EIO, "%s: cannot read: %s", f->path, strerror(errno));
    f->map = map;
    f->data = map;
    return KVL_OK;
}

static int file_unpack(int fd, bool gz, struct kvl_plainfile *f, struct kvl_err *err)
{
    FILE *out = tmpfile();
    if (!out)
        return kvl_fail(err, KVL_EIO, "%s: cannot make a temporary file: %s", f->path,
                        strerror(errno));
    int rc = (gz ? unpack_gz : unpack_zst)(fd, f->path, out, err);
    if (rc == KVL_OK && fflush(out) != 0)
        rc = kvl_fail(err, KVL_EIO, "%s: cannot unpack it into a temporary file: %s", f->path,
                      strerror(errno));
    if (rc == KVL_OK) rc = file_map(fileno(out), f, err);
    fclose(out);
    return rc;
}

static int file_read(int fd, struct kvl_plainfile *f, struct kvl_err *err)
{
    unsigned char magic[4] = { 0 };
    ssize_t n = pread(fd, magic, sizeof magic, 0);
    if (n < 0) return kvl_fail(err, KVL_EIO, "%s: cannot read: %s", f->path, strerror(errno));
    if (n >= 2 && magic[0] == 0x1f && magic[1] == 0x8b) return file_unpack(fd, true, f, err);
    if (n == 4 && memcmp(magic, "\x28\xb5\x2f\xfd", 4) == 0) return file_unpack(fd, false, f, err);
    if (n == 4 && memcmp(magic, "PAR1", 4) == 0)
        return kvl_fail(err, KVL_EIO,
                        "%s: is parquet, want JSON lines: python3 -c \"import pandas; "
                        "pandas.read_parquet('FILE').to_json('FILE.jsonl', orient='records', "
                        "lines=True, force_ascii=False)\"",
                        f->path);
    return file_map(fd, f, err);
}

static const char file_absent[] = ", nor with .gz or .zst behind it";

bool kvl_plainfile_absent(const char *msg)
{
    size_t n = strlen(msg), len = sizeof file_absent - 1;
    return n >= len && strcmp(msg + n - len, file_absent) == 0;
}

int kvl_plainfile_open(const char *path, struct kvl_plainfile *out, struct kvl_err *err)
{
    static const char *const tails[] = { "", ".gz", ".zst" };
    struct kvl_plainfile f = { 0 };
    struct kvl_buf name = { 0 };
    int fd = -1;
    for (size_t i = 0; i < 3 && fd < 0; i++) {
        name.len = 0;
        if (kvl_buf_printf(&name, "%s%s", path, tails[i]) != KVL_OK) break;
        fd = open(name.data, O_RDONLY | O_CLOEXEC);
        if (fd < 0 && errno != ENOENT && errno != ENOTDIR) break;
    }
    if (fd < 0) {
        int why = errno;
        kvl_buf_free(&name);
        return kvl_fail(err, KVL_EIO, "%s: %s%s", path, strerror(why),
                        why == ENOENT || why == ENOTDIR ? file_absent : "");
    }
    f.path = name.data;
    int rc = file_read(fd, &f, err);
    close(fd);
    if (rc == KVL_OK)
        *out = f;
    else
        kvl_plainfile_close(&f);
    return rc;
}

void kvl_plainfile_close(struct kvl_plainfile *f)
{
    if (f->map) munmap(f->map, f->len);
    struct kvl_buf name = { .data = f->path };
    kvl_buf_free(&name);
    *f = (struct kvl_plainfile){ 0 };
}
