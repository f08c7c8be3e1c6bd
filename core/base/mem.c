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

enum { NEAR_MAX = 64 };

struct near {
    size_t whole; /* edits from one word to the other; two letters that changed places are one */
    size_t part;  /* the same, where the longer one may go on */
};

static struct near near_of(const char *a, const char *b)
{
    size_t la = strlen(a), lb = strlen(b);
    if (la >= NEAR_MAX || lb >= NEAR_MAX) return (struct near){ NEAR_MAX, NEAR_MAX };
    size_t rows[3][NEAR_MAX], *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= lb; j++) last[j] = j;
    size_t part = lb;
    for (size_t i = 1; i <= la; i++) {
        row[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            best = KVL_MIN(best, KVL_MIN(last[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = KVL_MIN(best, before[j - 2] + 1);
            row[j] = best;
        }
        part = KVL_MIN(part, row[lb]); /* a goes on behind b */
        size_t *old = before;
        before = last;
        last = row;
        row = old;
    }
    for (size_t j = 0; j <= lb; j++) part = KVL_MIN(part, last[j]); /* b behind a */
    return (struct near){ last[lb], part };
}

const char *kvl_nearest(const char *word, const char *const *names, size_t n)
{
    const char *best = NULL;
    size_t len = strlen(word), most = (len + 2) / 3, best_d = SIZE_MAX; /* further is no help */
    for (size_t i = 0; i < n; i++) {
        struct near d = near_of(word, names[i]);
        bool goes_on = KVL_MIN(len, strlen(names[i])) >= 4 && d.part <= len / 4;
        size_t as = d.whole <= most ? d.whole : goes_on ? most + 1 + d.part : SIZE_MAX;
        if (as >= best_d) continue;
        best = names[i];
        best_d = as;
    }
    return best;
}

uint64_t kvl_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}
