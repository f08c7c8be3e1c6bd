/* Status codes and messages. */
#include "kvl/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct status_row {
    int status, exit_code;
    const char *text;
};

static const struct status_row status_rows[] = {
#define KVL_X(sym, val, ex, text) { (val), (ex), (text) },
    KVL_STATUS_LIST(KVL_X)
#undef KVL_X
};

static const struct status_row *status_find(int status)
{
    for (size_t i = 0; i < sizeof status_rows / sizeof status_rows[0]; i++)
        if (status_rows[i].status == status) return &status_rows[i];
    return NULL;
}

const char *kvl_status_name(int status)
{
    const struct status_row *row = status_find(status);
    return row ? row->text : "unknown status";
}

int kvl_status_exit(int status)
{
    const struct status_row *row = status_find(status);
    return row ? row->exit_code : 70;
}

/* Messages are one line, and often have a name from a file in them. */
static void err_line(char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) *text = '?';
}

int kvl_fail(struct kvl_err *err, int code, const char *fmt, ...)
{
    if (!err || err->code != KVL_OK) return code;
    err->code = code;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    err_line(err->msg);
    return code;
}

int kvl_fail_at(struct kvl_err *err, int code, const char *fmt, ...)
{
    if (!err) return code;
    char prefix[512], old[sizeof err->msg];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    err_line(prefix);
    memcpy(old, err->code == KVL_OK ? "" : err->msg, err->code == KVL_OK ? 1 : sizeof old);
    if (err->code == KVL_OK) snprintf(old, sizeof old, "%s", kvl_status_name(code));
    err->code = code;
    /* A message too long to keep whole is cut at its end. */
    size_t n = strlen(prefix), left = sizeof err->msg - n;
    memcpy(err->msg, prefix, n);
    snprintf(err->msg + n, left, ": %.*s", (int)left, old);
    return code;
}

void kvl_err_clear(struct kvl_err *err)
{
    if (!err) return;
    err->code = KVL_OK;
    err->msg[0] = '\0';
}
