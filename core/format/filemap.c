/* Reads or maps files. */
#include "filemap.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILEMAP_HUGE_PAGE ((size_t)2 << 20)
#define FILEMAP_SMALL     ((size_t)64 << 20)

bool kvl_filemap_reads(size_t total)
{
    const char *how = getenv("KVL_WEIGHTS");
    return total <= FILEMAP_SMALL || (how && strcmp(how, "copy") == 0);
}

size_t kvl_filemap_size(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) ? (size_t)st.st_size : 0;
}

static uint8_t *filemap_room(struct kvl_filemap *f)
{
    if (f->size < FILEMAP_HUGE_PAGE) return f->owned = kvl_alloc(f->size, 1);
    size_t room = f->size + FILEMAP_HUGE_PAGE;
    void *p = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    f->map = p;
    f->mapped = room;
    size_t past = (uintptr_t)p % FILEMAP_HUGE_PAGE;
    uint8_t *at = (uint8_t *)p + (past ? FILEMAP_HUGE_PAGE - past : 0);
    (void)madvise(at, f->size, MADV_HUGEPAGE); /* where there are none, small ones do */
    return at;
}

static int filemap_read(struct kvl_filemap *f, int fd, struct kvl_err *err)
{
    uint8_t *p = filemap_room(f);
    if (!p) return kvl_fail(err, KVL_ENOMEM, "no memory for %zu bytes", f->size);
    for (size_t done = 0; done < f->size;) {
        ssize_t n = pread(fd, p + done, f->size - done, (off_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return kvl_fail(err, KVL_EIO, "cannot read: %s", strerror(errno));
        if (n == 0) return kvl_fail(err, KVL_EIO, "shrank to %zu bytes while being read", done);
        done += (size_t)n;
    }
    f->data = p;
    f->copied = true;
    return KVL_OK;
}

static int filemap_fill(struct kvl_filemap *f, int fd, bool read, struct kvl_err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0) return kvl_fail(err, KVL_EIO, "cannot stat: %s", strerror(errno));
    if (!S_ISREG(st.st_mode)) return kvl_fail(err, KVL_EMODEL, "not a regular file");
    f->size = (size_t)st.st_size;
    if (read || f->size == 0) return filemap_read(f, fd, err);
    void *p = mmap(NULL, f->size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return kvl_fail(err, KVL_EIO, "cannot map %zu bytes: %s", f->size, strerror(errno));
    (void)madvise(p, f->size, MADV_HUGEPAGE); /* some systems then read and map 2 MiB at a time */
    f->map = p;
    f->mapped = f->size;
    f->data = p;
    return KVL_OK;
}

int kvl_filemap_open(const char *path, bool read, struct kvl_filemap *out, struct kvl_err *err)
{
    struct kvl_filemap f = { 0 };
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block */
    if (fd < 0) return kvl_fail(err, KVL_EMODEL, "%s: cannot open: %s", path, strerror(errno));
    int rc = filemap_fill(&f, fd, read, err);
    close(fd);
    if (rc == KVL_OK)
        *out = f;
    else
        kvl_filemap_close(&f);
    return rc == KVL_OK ? KVL_OK : kvl_fail_at(err, rc, "%s", path);
}

void kvl_filemap_close(struct kvl_filemap *f)
{
    if (f->mapped) munmap(f->map, f->mapped);
    kvl_free(f->owned);
    *f = (struct kvl_filemap){ 0 };
}
