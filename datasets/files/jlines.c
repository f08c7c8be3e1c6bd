/* Rows of a file of JSON. */
#include "jlines.h"

#include <string.h>

struct lines {
    const char *at, *end;
    const char *feed, *back; /* the next \n and \r at or behind `at`; `end`: none */
};

static const char *lines_next(const struct lines *l, char c)
{
    const char *found = memchr(l->at, c, (size_t)(l->end - l->at));
    return found ? found : l->end;
}

/* The next line; false: there are no more.  Each byte is looked for each end once. */
static bool lines_each(struct lines *l, struct kvl_jtext *out)
{
    if (l->at == l->end) return false;
    if (!l->feed || l->feed < l->at) l->feed = lines_next(l, '\n');
    if (!l->back || l->back < l->at) l->back = lines_next(l, '\r');
    const char *stop = KVL_MIN(l->feed, l->back);
    *out = (struct kvl_jtext){ l->at, (size_t)(stop - l->at) };
    l->at = stop + (stop < l->end);
    if (stop == l->back && l->feed == stop + 1) l->at++;
    l->at = KVL_MIN(l->at, l->end);
    return true;
}

static const char *lines_blank(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r')) at++;
    return at;
}

static int lines_odd(const struct kvl_jlines *how, int rc)
{
    return how->odd ? how->odd(how->user, rc) : rc;
}

/* A row, if it is text; `from`: where its line begins, or itself. */
static int lines_give(const struct kvl_jlines *how, struct kvl_jtext v, const char *from,
                      int32_t line)
{
    size_t wrong = kvl_jtext_not_utf8(v);
    if (wrong == v.n) return how->take(how->user, v, line);
    return lines_odd(how,
                     kvl_fail(how->err, KVL_EINVAL,
                              "line %d: byte %zu (0x%02x) is no UTF-8, want the file in UTF-8",
                              line, (size_t)(v.s - from) + wrong + 1, (unsigned char)v.s[wrong]));
}

static int lines_take(const struct kvl_jlines *how, struct kvl_jtext text, int32_t line)
{
    const char *end = text.s + text.n, *wrong = text.s;
    struct kvl_jtext v;
    if (lines_blank(text.s, end) == end) return KVL_OK;
    if (kvl_jtext_value(text.s, end, &v, &wrong) != KVL_OK)
        return lines_odd(how, kvl_fail(how->err, KVL_EINVAL, "line %d: is not JSON at byte %zu",
                                       line, (size_t)(wrong - text.s) + 1));
    const char *behind = lines_blank(v.s + v.n, end);
    if (behind < end)
        return lines_odd(how, kvl_fail(how->err, KVL_EINVAL,
                                       "line %d: has more behind its first value, at byte %zu: "
                                       "want one object a line",
                                       line, (size_t)(behind - text.s) + 1));
    return lines_give(how, v, text.s, line);
}

static int lines_array(const struct kvl_jlines *how, struct kvl_jtext all, const char *data,
                       const char *end)
{
    const char *at = all.s, *behind = lines_blank(all.s + all.n, end);
    struct kvl_jtext v;
    if (behind < end)
        KVL_TRY(lines_odd(how, kvl_fail(how->err, KVL_EINVAL,
                                        "has more behind its list, at byte %zu: want one list, or "
                                        "one object a line",
                                        (size_t)(behind - data) + 1)));
    for (int32_t i = 1; kvl_jtext_each(all, &at, &v); i++) KVL_TRY(lines_give(how, v, v.s, i));
    return KVL_OK;
}

int kvl_jlines_each(const char *data, size_t len, const struct kvl_jlines *how)
{
    const char *at = data, *end = data + len;
    struct kvl_jtext v;
    if (len >= 3 && memcmp(at, "\xef\xbb\xbf", 3) == 0) at += 3;
    const char *first = lines_blank(at, end);
    if (first < end && *first == '[' && kvl_jtext_value(first, end, &v, NULL) == KVL_OK)
        return lines_array(how, v, data, end);
    struct lines l = { .at = at, .end = end };
    for (int32_t line = 1; lines_each(&l, &v); line++) KVL_TRY(lines_take(how, v, line));
    return KVL_OK;
}
