/* Memory, buffers, files, names, time. */
#include "kvl/base.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int kvl_mul_size(size_t n, size_t item, size_t *out)
{
    return __builtin_mul_overflow(n, item, out) ? KVL_ENOMEM : KVL_OK;
}

void *kvl_alloc(size_t n, size_t item)
{
    size_t bytes;
    if (kvl_mul_size(n, item, &bytes) != KVL_OK || bytes > SIZE_MAX - 64) return NULL;
    bytes = bytes ? (bytes + 63) / 64 * 64 : 64;
    void *p = aligned_alloc(64, bytes);
    if (p) memset(p, 0, bytes);
    return p;
}

void kvl_free(void *p)
{
    free(p);
}

static int buf_reserve(struct kvl_buf *b, size_t more)
{
    if (more > SIZE_MAX - b->len - 1) return KVL_ENOMEM;
    size_t need = b->len + more + 1;
    if (need <= b->cap) return KVL_OK;
    size_t cap = b->cap ? b->cap : 256;
    while (cap < need) cap = cap > SIZE_MAX / 2 ? need : cap * 2;
    char *data = realloc(b->data, cap);
    if (!data) return KVL_ENOMEM;
    b->data = data;
    b->cap = cap;
    return KVL_OK;
}

int kvl_buf_add(struct kvl_buf *b, const void *data, size_t len)
{
    KVL_TRY(buf_reserve(b, len));
    if (len) memcpy(b->data + b->len, data, len);
    b->len += len;
    b->data[b->len] = '\0';
    return KVL_OK;
}

int kvl_buf_adds(struct kvl_buf *b, const char *s)
{
    return kvl_buf_add(b, s, strlen(s));
}

int kvl_buf_printf(struct kvl_buf *b, const char *fmt, ...)
{
    va_list ap, again;
    va_start(ap, fmt);
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    int rc = n < 0 ? KVL_EINTERNAL : buf_reserve(b, (size_t)n);
    if (rc == KVL_OK) {
        vsnprintf(b->data + b->len, (size_t)n + 1, fmt, again);
        b->len += (size_t)n;
    }
    va_end(again);
    return rc;
}

void kvl_buf_free(struct kvl_buf *b)
{
    free(b->data);
    *b = (struct kvl_buf){ 0 };
}

static int read_fd(int fd, const char *path, size_t limit, struct kvl_buf *out, struct kvl_err *err)
{
    char chunk[65536];
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EISDIR)
            return kvl_fail(err, KVL_EINVAL, "%s: is a folder, want a file", path);
        if (n < 0) return kvl_fail(err, KVL_EIO, "%s: cannot read: %s", path, strerror(errno));
        if (n == 0) return kvl_buf_add(out, "", 0);
        if ((size_t)n > limit - out->len)
            return kvl_fail(err, KVL_EINVAL, "%s: larger than %zu bytes", path, limit);
        if (kvl_buf_add(out, chunk, (size_t)n) != KVL_OK)
            return kvl_fail(err, KVL_ENOMEM, "%s: out of memory after %zu bytes", path, out->len);
    }
}

int kvl_read_file(const char *path, size_t limit, struct kvl_buf *out, struct kvl_err *err)
{
    if (strcmp(path, "-") == 0) return read_fd(STDIN_FILENO, "standard input", limit, out, err);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return kvl_fail(err, KVL_EINVAL, "%s: cannot open: %s", path, strerror(errno));
    int rc = read_fd(fd, path, limit, out, err);
    close(fd);
    return rc;
}

/* Edit distance with insertions, deletions and substitutions of cost 1. */
static size_t edit_distance(const char *a, const char *b)
{
    enum { MAX = 64 };
    size_t la = strlen(a), lb = strlen(b);
    if (la >= MAX || lb >= MAX) return MAX;
    size_t row[MAX];
    for (size_t j = 0; j <= lb; j++) row[j] = j;
    for (size_t i = 1; i <= la; i++) {
        size_t diag = row[0];
        row[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            size_t best = diag + (a[i - 1] != b[j - 1]);
            diag = row[j];
            best = KVL_MIN(best, row[j] + 1);
            row[j] = KVL_MIN(best, row[j - 1] + 1);
        }
    }
    return row[lb];
}

const char *kvl_nearest(const char *word, const char *const *names, size_t n)
{
    const char *best = NULL;
    size_t best_d = (strlen(word) + 2) / 3; /* further away is no help */
    for (size_t i = 0; i < n; i++) {
        size_t d = edit_distance(word, names[i]);
        if (d <= best_d && (!best || d < best_d)) {
            best = names[i];
            best_d = d;
        }
    }
    return best;
}

uint64_t kvl_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
