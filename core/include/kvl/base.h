/* kvl/base.h - status codes, error messages, checked sizes, buffers.
 *
 * Every function that can fail returns KVL_OK or a negative KVL_E* and writes its results through
 * `out` parameters only on success.  The message of the first failure is kept in a `struct kvl_err`
 * that the caller owns: one line that says what was wrong, the value, and what would be right.
 *
 * Thread-safe: yes (there are no globals).
 */
#ifndef KVL_BASE_H
#define KVL_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Visible to plug-ins; everything else is hidden. */
#define KVL_API               __attribute__((visibility("default")))
#define KVL_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

/* X(symbol, value, exit code of the program, text).  Exit codes: kvlab --help. */
#define KVL_STATUS_LIST(X)                                                                         \
    X(KVL_OK, 0, 0, "ok")                                                                          \
    X(KVL_EINVAL, -1, 2, "bad argument or configuration")                                          \
    X(KVL_EMODEL, -2, 3, "bad model or tokenizer file")                                            \
    X(KVL_ENOMEM, -3, 4, "out of memory or over a limit")                                          \
    X(KVL_EIO, -4, 4, "input or output error")                                                     \
    X(KVL_ELOG, -5, 5, "damaged or locked log")                                                    \
    X(KVL_EPOLICY, -6, 6, "a policy broke its contract")                                           \
    X(KVL_EDEVICE, -7, 7, "device error")                                                          \
    X(KVL_EINTERNAL, -8, 70, "internal error")                                                     \
    X(KVL_ESTOP, -9, 130, "stopped by a signal")                                                   \
    X(KVL_ENUMERIC, -10, 6, "not a finite number")                                                 \
    X(KVL_ETASK, -11, 6, "a task broke its contract")

enum kvl_status {
#define KVL_X(sym, val, ex, text) sym = (val),
    KVL_STATUS_LIST(KVL_X)
#undef KVL_X
};

KVL_API const char *kvl_status_name(int status);
int kvl_status_exit(int status);

/* The first failure wins: kvl_fail does not overwrite a message that is already there. */
struct kvl_err {
    int code;
    char msg[1024];
};

/* Stores the message (unless one is stored) and returns `code`.  `err` may be NULL. */
KVL_API int kvl_fail(struct kvl_err *err, int code, const char *fmt, ...) KVL_PRINTF(3, 4);
/* Puts "prefix: " in front of a stored message: where it happened (file, key, policy). */
KVL_API int kvl_fail_at(struct kvl_err *err, int code, const char *fmt, ...) KVL_PRINTF(3, 4);
KVL_API void kvl_err_clear(struct kvl_err *err);

#define KVL_TRY(expr)                                                                              \
    do {                                                                                           \
        int kvl_try_ = (expr);                                                                     \
        if (kvl_try_ != KVL_OK) return kvl_try_;                                                   \
    } while (0)

/* Size of n items; KVL_ENOMEM on overflow. */
KVL_API int kvl_mul_size(size_t n, size_t item, size_t *out);

/* 64-byte aligned, zeroed memory.  NULL when there is none, or when n * item overflows.
 * kvl_free(NULL) is a no-op. */
KVL_API void *kvl_alloc(size_t n, size_t item);
KVL_API void kvl_free(void *p);

/* A growable byte string, always NUL-terminated once it holds anything.  { 0 } is an empty one. */
struct kvl_buf {
    char *data;
    size_t len, cap;
};
KVL_API int kvl_buf_add(struct kvl_buf *b, const void *data, size_t len);
KVL_API int kvl_buf_adds(struct kvl_buf *b, const char *s);
KVL_API int kvl_buf_printf(struct kvl_buf *b, const char *fmt, ...) KVL_PRINTF(2, 3);
KVL_API void kvl_buf_free(struct kvl_buf *b);

/* Reads a whole file (or standard input for "-") of at most `limit` bytes. */
KVL_API int kvl_read_file(const char *path, size_t limit, struct kvl_buf *out, struct kvl_err *err);

/* The entry of `names` nearest to `word`, or NULL when none is near: "did you mean".  By edits, and behind those
 * words that begin alike (policy: policies). */
const char *kvl_nearest(const char *word, const char *const *names, size_t n);

/* Nanoseconds of CLOCK_MONOTONIC. */
KVL_API uint64_t kvl_now_ns(void);

#define KVL_MIN(a, b) ((a) < (b) ? (a) : (b))
#define KVL_MAX(a, b) ((a) > (b) ? (a) : (b))

#ifdef __cplusplus
}
#endif

#endif
