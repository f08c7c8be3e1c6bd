/* Escapes of every medium. */
#include "show.h"

#include "kvl/utf8.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

/* ---- characters ------------------------------------------------------------------------------ */

/* Bytes of the character at s, of at most n; 0: it is cut off at the end; -1: no UTF-8. */
static int char_bytes(const unsigned char *s, size_t n)
{
    const char *c = (const char *)s;
    size_t len = kvl_utf8_len(c, n);
    return len > 0 ? (int)len : kvl_utf8_begun(c, n) == n ? 0 : -1;
}

/* A terminal acts on C0, DEL and C1; U+202A to U+202E and U+2066 to U+2069 turn the order of letters around. */
static bool char_acts(const unsigned char *s, int n)
{
    if (n == 1) return *s < 0x20 || *s == 0x7f;
    if (n == 2) return *s == 0xc2 && s[1] < 0xa0;
    if (n != 3 || *s != 0xe2) return false;
    return (s[1] == 0x80 && s[2] >= 0xaa && s[2] <= 0xae) ||
           (s[1] == 0x81 && s[2] >= 0xa6 && s[2] <= 0xa9);
}

/* ---- media ----------------------------------------------------------------------------------- */

struct escape {
    char c;
    const char *as;
};

static const struct escape escapes_html[] = { { '&', "&amp;" },  { '<', "&lt;" },   { '>', "&gt;" },
                                              { '"', "&quot;" }, { '\'', "&#39;" }, { 0 } };
static const struct escape escapes_markdown[] = { { '&', "&amp;" }, { '<', "&lt;" }, { '|', "\\|" },
                                                  { '\\', "\\\\" }, { '*', "\\*" },  { '`', "\\`" },
                                                  { '[', "\\[" },   { ']', "\\]" },  { '!', "\\!" },
                                                  { '\n', " " },    { '\t', " " },   { 0 } };
static const struct escape escapes_latex[] = { { '%', "\\%" },
                                               { '&', "\\&" },
                                               { '_', "\\_" },
                                               { '#', "\\#" },
                                               { '$', "\\$" },
                                               { '{', "\\{" },
                                               { '}', "\\}" },
                                               { '~', "\\textasciitilde{}" },
                                               { '^', "\\textasciicircum{}" },
                                               { '\\', "\\textbackslash{}" },
                                               { '\n', " " },
                                               { '\t', " " },
                                               { 0 } };
static const struct escape escapes_csv[] = {
    { '"', "\"\"" }, { '\n', "\n" }, { '\r', "\r" }, { '\t', "\t" }, { 0 }
};
static const struct escape escapes_tsv[] = {
    { '\t', "\\t" }, { '\n', "\\n" }, { '\r', "\\r" }, { '\\', "\\\\" }, { 0 }
};
static const struct escape escapes_gnuplot[] = { { '\'', "''" }, { 0 } };
static const struct escape escapes_text[] = { { 0 } };
static const struct escape *const escapes[] = {
    [KVL_SHOW_TEXT] = escapes_text,         [KVL_SHOW_HTML] = escapes_html,
    [KVL_SHOW_MARKDOWN] = escapes_markdown, [KVL_SHOW_LATEX] = escapes_latex,
    [KVL_SHOW_CSV] = escapes_csv,           [KVL_SHOW_TSV] = escapes_tsv,
    [KVL_SHOW_GNUPLOT] = escapes_gnuplot
};

static const char *escape_of(enum kvl_medium m, char c)
{
    for (const struct escape *e = escapes[m]; e->c; e++)
        if (e->c == c) return e->as;
    return NULL;
}

/* What a spreadsheet calculates: text that begins so, unless it is a number. */
static bool is_formula(const char *s, size_t n)
{
    char head[64], *end;
    if (n == 0 || !strchr("=+-@\t\r", *s) || (n == 1 && *s == '-')) return false;
    if (n >= sizeof head) return true;
    snprintf(head, sizeof head, "%.*s", (int)KVL_MIN(n, sizeof head - 1), s);
    strtod(head, &end);
    return *end || end == head;
}

static int show_chars(struct kvl_buf *out, enum kvl_medium m, const char *s, size_t n)
{
    while (n > 0) {
        int bytes = char_bytes((const unsigned char *)s, n);
        size_t step = bytes < 1 ? 1 : (size_t)bytes;
        const char *as = escape_of(m, *s);
        if (as)
            KVL_TRY(kvl_buf_adds(out, as));
        else if (bytes < 1 || char_acts((const unsigned char *)s, bytes))
            KVL_TRY(kvl_buf_adds(out, "?"));
        else
            KVL_TRY(kvl_buf_add(out, s, step));
        s += step;
        n -= step;
    }
    return KVL_OK;
}

int kvl_show_add(struct kvl_buf *out, enum kvl_medium m, const char *s, size_t n)
{
    bool csv = m == KVL_SHOW_CSV, formula = (csv || m == KVL_SHOW_TSV) && is_formula(s, n);
    bool quote = false;
    for (size_t i = 0; csv && i < n; i++) quote |= strchr(",\"\r\n\t", s[i]) != NULL;
    KVL_TRY(kvl_buf_adds(out, quote ? "\"" : ""));
    if (formula) KVL_TRY(kvl_buf_adds(out, "'"));
    KVL_TRY(show_chars(out, m, s, n));
    return kvl_buf_adds(out, quote ? "\"" : "");
}

/* What there is no memory for is a '?'. */
void kvl_show_n(FILE *out, enum kvl_medium m, const char *s, size_t n)
{
    struct kvl_buf text = { 0 };
    if (kvl_show_add(&text, m, s, n) == KVL_OK)
        fwrite(text.data, 1, text.len, out);
    else
        fputc('?', out);
    kvl_buf_free(&text);
}

void kvl_show(FILE *out, enum kvl_medium m, const char *s)
{
    kvl_show_n(out, m, s, strlen(s));
}

/* ---- lines and records ----------------------------------------------------------------------- */

void kvl_show_line(char *s)
{
    char *to = s;
    for (size_t n = strlen(s); n > 0;) {
        int bytes = char_bytes((const unsigned char *)s, n);
        size_t step = bytes < 1 ? 1 : (size_t)bytes;
        if (bytes < 1 || char_acts((const unsigned char *)s, bytes))
            *to++ = '?';
        else
            for (size_t i = 0; i < step; i++) *to++ = s[i];
        s += step;
        n -= step;
    }
    *to = '\0';
}

static bool line_acts(const char *s)
{
    for (size_t n = strlen(s); n > 0;) {
        int bytes = char_bytes((const unsigned char *)s, n);
        if (bytes < 1 || char_acts((const unsigned char *)s, bytes)) return true;
        s += bytes;
        n -= (size_t)bytes;
    }
    return false;
}

static json_t *record_value(json_t *v, struct kvl_err *err);

/* A string of one line; NULL: no memory. */
static json_t *record_line(const char *text)
{
    char *line = strdup(text);
    if (line) kvl_show_line(line);
    json_t *v = line ? json_string(line) : NULL;
    free(line);
    return v;
}

/* Texts of several lines by their meaning; `row` is a row of somebody's file. */
static bool record_is_text(const char *name)
{
    static const char *const names[] = { "prediction", "gold", "text", "row", "answers" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

/* A member whose name is no line gets one that is. */
static int record_name(json_t *o, const char *name, struct kvl_err *err)
{
    char *line = strdup(name);
    if (line) kvl_show_line(line);
    json_t *v = json_incref(json_object_get(o, name));
    int failed = line ? json_object_del(o, name) : -1;
    if (!failed) failed = json_object_set(o, line, v);
    json_decref(v);
    free(line);
    return failed ? kvl_fail(err, KVL_ENOMEM, "no memory for a record") : KVL_OK;
}

static int record_object(json_t *o, struct kvl_err *err)
{
    const char *name;
    json_t *v;
    void *next;
    json_object_foreach_safe(o, next, name, v)
    {
        if (record_is_text(name)) continue;
        json_t *shown = record_value(v, err);
        if (!shown || json_object_set_new(o, name, shown) != 0)
            return kvl_fail(err, KVL_ENOMEM, "no memory for a record");
    }
    json_object_foreach_safe(o, next, name, v)
    {
        if (line_acts(name)) KVL_TRY(record_name(o, name, err));
    }
    return KVL_OK;
}

static int record_array(json_t *a, struct kvl_err *err)
{
    for (size_t i = 0; i < json_array_size(a); i++) {
        json_t *shown = record_value(json_array_get(a, i), err);
        if (!shown || json_array_set_new(a, i, shown) != 0)
            return kvl_fail(err, KVL_ENOMEM, "no memory for a record");
    }
    return KVL_OK;
}

/* A new reference: to `v` itself, or to its line. */
static json_t *record_value(json_t *v, struct kvl_err *err)
{
    if (json_is_string(v) && line_acts(json_string_value(v)))
        return record_line(json_string_value(v));
    if (json_is_object(v) && record_object(v, err) != KVL_OK) return NULL;
    if (json_is_array(v) && record_array(v, err) != KVL_OK) return NULL;
    return json_incref(v);
}

int kvl_show_record(json_t *record, struct kvl_err *err)
{
    return record_object(record, err);
}

/* ---- names of files -------------------------------------------------------------------------- */

enum { FILE_NAME_MAX = 100 };

int kvl_show_file(struct kvl_buf *out, const char *name)
{
    char part[FILE_NAME_MAX + 1];
    size_t n = 0;
    bool same = *name != '\0';
    for (const char *s = name; *s && n < FILE_NAME_MAX; s++) {
        bool first = n == 0 && strchr(". -~", *s);
        bool may =
            isalnum((unsigned char)*s) || (unsigned char)*s >= 0x80 || strchr("-_.=+%,() ", *s);
        same = same && may && !first;
        part[n++] = may && !first ? *s : '_';
    }
    part[n] = '\0';
    same = same && !name[n] && !line_acts(part);
    kvl_show_line(part);
    KVL_TRY(kvl_buf_adds(out, *part ? part : "_"));
    if (same) return KVL_OK;
    return kvl_buf_printf(out, "-%08x", (unsigned)XXH3_64bits(name, strlen(name)));
}

/* ---- stdout and stderr ----------------------------------------------------------------------- */

/* A global, since streams are: whatever prints reaches them. */
static struct show_stream {
    int fd;
    bool data;             /* as it is */
    unsigned char part[4]; /* [n_part] of a character that is cut off */
    size_t n_part;
} show_out = { .fd = STDOUT_FILENO }, show_err = { .fd = STDERR_FILENO };

static bool stream_write(int fd, const char *data, size_t len)
{
    while (len > 0) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        data += n;
        len -= (size_t)n;
    }
    return true;
}

/* Into `to`, which has room for all of it; what is cut off at the end waits.  "\r\n" ends a line, "\r" alone would
 * write over it. */
static size_t stream_clean(struct show_stream *s, const unsigned char *in, size_t n, char *to)
{
    size_t len = 0;
    for (size_t i = 0; i < n;) {
        int bytes = char_bytes(in + i, n - i);
        if (bytes == 0 || (in[i] == '\r' && i + 1 == n)) {
            s->n_part = n - i;
            memcpy(s->part, in + i, s->n_part);
            break;
        }
        bool line = in[i] == '\n' || in[i] == '\t' || (in[i] == '\r' && in[i + 1] == '\n');
        if (bytes < 1 || (!line && char_acts(in + i, bytes)))
            to[len++] = '?';
        else
            for (int k = 0; k < bytes; k++) to[len++] = (char)in[i + (size_t)k];
        i += bytes < 1 ? 1 : (size_t)bytes;
    }
    return len;
}

enum { STREAM_PIECE = 4096 };

/* Without memory of its own: what is said may be that there is none. */
static ssize_t stream_put(void *cookie, const char *data, size_t len)
{
    struct show_stream *s = cookie;
    unsigned char in[sizeof s->part + STREAM_PIECE];
    char out[sizeof s->part + STREAM_PIECE];
    if (s->data) return stream_write(s->fd, data, len) ? (ssize_t)len : 0;
    for (size_t at = 0, m; at < len; at += m) {
        size_t n = s->n_part;
        m = KVL_MIN(len - at, (size_t)STREAM_PIECE);
        memcpy(in, s->part, n);
        memcpy(in + n, data + at, m);
        s->n_part = 0;
        if (!stream_write(s->fd, out, stream_clean(s, in, n + m, out))) return 0;
    }
    return (ssize_t)len;
}

static FILE *stream_open(struct show_stream *s, FILE *before, int mode)
{
    FILE *f = fopencookie(s, "w", (cookie_io_functions_t){ .write = stream_put });
    if (f) setvbuf(f, NULL, mode, BUFSIZ);
    return f ? f : before;
}

void kvl_show_streams(void)
{
    stdout = stream_open(&show_out, stdout, isatty(STDOUT_FILENO) ? _IOLBF : _IOFBF);
    stderr = stream_open(&show_err, stderr, _IONBF);
}

void kvl_show_data(void)
{
    show_out.data = !isatty(STDOUT_FILENO);
}

void kvl_show_clear_line(void)
{
    if (isatty(STDERR_FILENO)) stream_write(STDERR_FILENO, "\r\033[K", 4);
}
