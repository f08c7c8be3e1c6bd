/* fail_alloc.c - LD_PRELOAD: allocation number KVL_FAIL_AT of a process fails, with KVL_FAIL_ON=1 all later ones too.
 * KVL_FAIL_COUNT: a file that gets their number when the process ends. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

static atomic_long calls;
static long fail_at, fail_on;

__attribute__((constructor)) static void begin(void)
{
    const char *at = getenv("KVL_FAIL_AT"), *on = getenv("KVL_FAIL_ON");
    atomic_store(&calls, 0); /* what the loader took is not ours */
    fail_at = at ? atol(at) : 0;
    fail_on = on ? atol(on) : 0;
}

__attribute__((destructor)) static void end(void)
{
    const char *file = getenv("KVL_FAIL_COUNT");
    char text[32];
    int fd = file ? open(file, O_WRONLY | O_CREAT | O_TRUNC, 0644) : -1;
    if (fd < 0) return;
    int n = snprintf(text, sizeof text, "%ld\n", atomic_load(&calls));
    if (write(fd, text, (size_t)n) != n) _exit(99);
    close(fd);
}

static int fails(void)
{
    long n = atomic_fetch_add(&calls, 1) + 1;
    if (fail_at == 0 || n < fail_at || (n > fail_at && !fail_on)) return 0;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n)
{
    return fails() ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return fails() ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    return n && fails() ? NULL : __libc_realloc(p, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    return fails() ? NULL : __libc_memalign(align, n);
}

int posix_memalign(void **out, size_t align, size_t n)
{
    void *p = fails() ? NULL : __libc_memalign(align, n);
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}
