/* Text of a template to tokens. */
#include "jinja_impl.h"

#include <ctype.h>
#include <stdlib.h>

static int lex_push(struct jin_lex *x, enum jin_tok_kind kind, const char *s, size_t len)
{
    if (x->n == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 256;
        struct jin_tok *p = realloc(x->tok, cap * sizeof *p);
        if (!p) return kvl_fail(x->err, KVL_ENOMEM, "no memory for a chat template");
        x->tok = p;
        x->cap = cap;
    }
    x->tok[x->n++] = (struct jin_tok){ kind, x->line, s, len };
    return KVL_OK;
}

static bool lex_at(const struct jin_lex *x, const char *s)
{
    size_t n = strlen(s);
    return x->len - x->at >= n && memcmp(x->text + x->at, s, n) == 0;
}

static void lex_skip(struct jin_lex *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x->line += x->text[x->at + i] == '\n';
    x->at += n;
    if (n) x->line_starts = x->text[x->at - 1] == '\n';
}

/* ---- what stands between tags ---------------------------------------------------------------- */

/* Text up to a tag whose own begin is `tag`; '-' there takes the white space before it, and a block alone in its
 * line the blanks. */
static int lex_data(struct jin_lex *x, size_t len, const char *tag)
{
    const char *s = x->text + x->at;
    size_t keep = len, line = len;
    char sign = tag && s + len + 2 < x->text + x->len ? s[len + 2] : '\0';
    while (line > 0 && s[line - 1] != '\n') line--;
    if (tag && sign == '-')
        keep = kvl_utf8_trimmed(s, len);
    else if (tag && sign != '+' && tag[1] != '{' && (line > 0 || x->line_starts) &&
             line + kvl_utf8_blanks(s + line, len - line) == len)
        keep = line;
    if (keep > 0) KVL_TRY(lex_push(x, TK_DATA, s, keep));
    lex_skip(x, len);
    if (!tag) return KVL_OK;
    lex_skip(x, sign == '-' || sign == '+' ? 3 : 2);
    return KVL_OK;
}

/* Behind the end of a tag: all white space after '-', the end of the line after a block. */
static void lex_after(struct jin_lex *x, bool all, bool line_end)
{
    if (all)
        lex_skip(x, kvl_utf8_blanks(x->text + x->at, x->len - x->at));
    else if (line_end && x->at < x->len && x->text[x->at] == '\n')
        lex_skip(x, 1);
}

static int lex_comment(struct jin_lex *x)
{
    const char *end = memmem(x->text + x->at, x->len - x->at, "#}", 2);
    if (!end)
        return kvl_fail(x->err, KVL_EMODEL, "line %d: a comment that does not end, want #}",
                        x->line);
    bool all = end > x->text + x->at && end[-1] == '-';
    bool none = end > x->text + x->at && end[-1] == '+';
    lex_skip(x, (size_t)(end - x->text) - x->at + 2);
    lex_after(x, all, !none);
    return KVL_OK;
}

/* ---- inside tags ----------------------------------------------------------------------------- */

/* \xNN, \uNNNN or \UNNNNNNNN at s, which stands on the letter: its bytes, 0 where it is none. */
static size_t lex_number(const char *s, size_t len, char *out, size_t *n)
{
    size_t digits = *s == 'x' ? 2 : *s == 'u' ? 4 : *s == 'U' ? 8 : 0;
    uint32_t c = 0;
    if (digits == 0 || len <= digits) return 0;
    for (size_t i = 1; i <= digits; i++) {
        if (!isxdigit((unsigned char)s[i])) return 0;
        c = c << 4 | (uint32_t)(isdigit((unsigned char)s[i]) ? s[i] - '0' : (s[i] | 32) - 'a' + 10);
    }
    if (c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return 0;
    *n += kvl_utf8_put(c, out + *n);
    return digits + 1;
}

/* The value of a quoted text [len], as Python has it. */
static int lex_string(struct jin_lex *x, const char *s, size_t len)
{
    static const char from[] = "nrtbfav0\\'\"", to[] = "\n\r\t\b\f\a\v\0\\'\"";
    char *out = jin_arena_get(x->arena, len + 1);
    size_t n = 0;
    if (!out) return kvl_fail(x->err, KVL_ENOMEM, "no memory for a chat template");
    for (size_t i = 0; i < len; i++) {
        if (s[i] != '\\' || i + 1 == len) {
            out[n++] = s[i];
            continue;
        }
        const char *at = strchr(from, s[i + 1]);
        size_t used = lex_number(s + i + 1, len - i - 1, out, &n);
        /* Python knows names, numbers of eight, and bytes that are none; a digit behind \0 is one of eight, too. */
        if ((!used && strchr("NxuU123456789", s[i + 1])) || (unsigned char)s[i + 1] >= 0x80 ||
            (s[i + 1] == '0' && i + 2 < len && isdigit((unsigned char)s[i + 2])))
            return kvl_fail(x->err, KVL_EMODEL, "line %d: such a \\ in a text is not known here",
                            x->line);
        if (used)
            i += used;
        else if (s[++i] == '\n')
            continue;
        else if (at && s[i])
            out[n++] = to[at - from];
        else {
            out[n++] = '\\';
            out[n++] = s[i];
        }
    }
    return lex_push(x, TK_STR, out, n);
}

static int lex_quoted(struct jin_lex *x)
{
    char quote = x->text[x->at];
    size_t end = x->at + 1;
    while (end < x->len && x->text[end] != quote) end += x->text[end] == '\\' ? 2 : 1;
    if (end >= x->len)
        return kvl_fail(x->err, KVL_EMODEL, "line %d: a text that does not end", x->line);
    KVL_TRY(lex_string(x, x->text + x->at + 1, end - x->at - 1));
    lex_skip(x, end + 1 - x->at);
    return KVL_OK;
}

static int lex_digits(struct jin_lex *x)
{
    size_t end = x->at;
    bool whole = true;
    while (end < x->len && isdigit((unsigned char)x->text[end])) end++;
    bool zeros = x->text[x->at] == '0' && end > x->at + 1;
    if (end + 1 < x->len && x->text[end] == '.' && isdigit((unsigned char)x->text[end + 1])) {
        whole = false;
        for (end++; end < x->len && isdigit((unsigned char)x->text[end]);) end++;
    }
    if (zeros || end - x->at > 18 ||
        (end < x->len && (isalpha((unsigned char)x->text[end]) || x->text[end] == '_')))
        return kvl_fail(x->err, KVL_EMODEL, "line %d: a number that is not known here", x->line);
    KVL_TRY(lex_push(x, whole ? TK_INT : TK_FLOAT, x->text + x->at, end - x->at));
    lex_skip(x, end - x->at);
    return KVL_OK;
}

static int lex_operator(struct jin_lex *x, int *depth)
{
    static const char *const two[] = { "==", "!=", "<=", ">=", "//", "**" };
    size_t n = 1;
    for (size_t i = 0; i < sizeof two / sizeof two[0]; i++)
        if (lex_at(x, two[i])) n = 2;
    char c = x->text[x->at];
    if (!strchr("+-/*%~[](){}=<>.:|,!", c) || (n == 1 && c == '!'))
        return kvl_fail(x->err, KVL_EMODEL, "line %d: '%c' is not known here", x->line,
                        isprint((unsigned char)c) ? c : '?');
    *depth += strchr("([{", c) != NULL;
    *depth -= strchr(")]}", c) != NULL;
    KVL_TRY(lex_push(x, TK_OP, x->text + x->at, n));
    lex_skip(x, n);
    return KVL_OK;
}

/* One token of a tag whose end is `end`; *done where that is it. */
static int lex_inside(struct jin_lex *x, const char *end, int *depth, bool *done)
{
    const char *s = x->text + x->at;
    char c = *s;
    bool sign = (c == '-' || (c == '+' && end[0] == '%')) && x->len - x->at > 2 && s[1] == end[0] &&
                s[2] == '}';
    if (*depth <= 0 && (lex_at(x, end) || sign)) {
        KVL_TRY(lex_push(x, end[0] == '%' ? TK_BLOCK_END : TK_VAR_END, end, 2));
        lex_skip(x, 2 + (size_t)sign);
        lex_after(x, c == '-', end[0] == '%' && c != '+');
        *done = true;
        return KVL_OK;
    }
    if (c == '\'' || c == '"') return lex_quoted(x);
    if (isdigit((unsigned char)c)) return lex_digits(x);
    if (!isalpha((unsigned char)c) && c != '_') return lex_operator(x, depth);
    size_t n = 1;
    while (x->at + n < x->len && (isalnum((unsigned char)s[n]) || s[n] == '_')) n++;
    KVL_TRY(lex_push(x, TK_NAME, s, n));
    lex_skip(x, n);
    return KVL_OK;
}

static int lex_tag(struct jin_lex *x, const char *end)
{
    int depth = 0, line = x->line;
    bool done = false;
    KVL_TRY(lex_push(x, end[0] == '%' ? TK_BLOCK : TK_VAR, end, 2));
    while (!done) {
        lex_skip(x, kvl_utf8_blanks(x->text + x->at, x->len - x->at));
        if (x->at == x->len)
            return kvl_fail(x->err, KVL_EMODEL, "line %d: a tag that does not end, want %s", line,
                            end);
        KVL_TRY(lex_inside(x, end, &depth, &done));
    }
    return KVL_OK;
}

int jin_lex(struct jin_lex *x)
{
    x->line = 1;
    x->line_starts = true;
    while (x->at < x->len) {
        const char *s = x->text + x->at, *tag = s;
        size_t left = x->len - x->at;
        while ((tag = memchr(tag, '{', left - (size_t)(tag - s))))
            if (tag + 1 < s + left && strchr("{%#", tag[1]))
                break;
            else
                tag++;
        if (!tag) {
            KVL_TRY(lex_data(x, left, NULL));
            break;
        }
        char kind = tag[1];
        KVL_TRY(lex_data(x, (size_t)(tag - s), tag));
        KVL_TRY(kind == '#' ? lex_comment(x) : lex_tag(x, kind == '%' ? "%}" : "}}"));
    }
    return lex_push(x, TK_END, x->text + x->len, 0);
}
