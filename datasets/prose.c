/* Sentences of a text file. */
#include "prose.h"

#include <ctype.h>
#include <string.h>

enum {
    PROSE_FILE_LIMIT = 1 << 30,
    PROSE_SHORTEST = 16, /* bytes of a sentence */
    PROSE_LONGEST = 400,
    PROSE_SHORT_WORD = 3, /* letters of a word whose full stop does not end a sentence: Mr. */
    PROSE_FEWEST = 100,   /* sentences: a text that is shorter would repeat */
};

static bool prose_is(char c, const char *set)
{
    return c != '\0' && strchr(set, c) != NULL;
}

/* Bytes of what closes a quotation at s: ASCII marks, and the curly ones of UTF-8. */
static size_t prose_closing(const char *s)
{
    if (prose_is(*s, "\"')]_")) return 1;
    return strncmp(s, "\xe2\x80\x99", 3) == 0 || strncmp(s, "\xe2\x80\x9d", 3) == 0 ? 3 : 0;
}

/* Whether the full stop at text[at] is that of a short capitalised word (Mr. or an initial). */
static bool prose_shortened(const char *text, size_t begin, size_t at)
{
    size_t word = at;
    while (word > begin && isalpha((unsigned char)text[word - 1])) word--;
    return at > word && at - word <= PROSE_SHORT_WORD && isupper((unsigned char)text[word]);
}

/* One behind the end of the sentence that begins at `begin`; 0 = the paragraph ends before it does. */
static size_t prose_end(const char *text, size_t begin, size_t len)
{
    for (size_t i = begin; i < len; i++) {
        if (!prose_is(text[i], ".!?")) continue;
        size_t end = i + 1;
        while (end < len && prose_is(text[end], ".!?")) end++;
        for (size_t n; end < len && (n = prose_closing(text + end)) > 0;) end += n;
        if (end < len && text[end] != ' ') continue;
        if (end + 1 < len && islower((unsigned char)text[end + 1]))
            continue; /* "Is it?" asked he. */
        if (text[i] == '.' && prose_shortened(text, begin, i)) continue;
        return end;
    }
    return 0;
}

static bool prose_wanted(const char *s, size_t n)
{
    bool lower = false;
    if (n < PROSE_SHORTEST || n > PROSE_LONGEST) return false;
    for (size_t i = 0; i < n; i++) {
        if (isdigit((unsigned char)s[i])) return false;
        lower |= islower((unsigned char)s[i]) != 0;
    }
    return lower; /* no title in capitals */
}

static int prose_add(struct kvl_prose *p, const char *s, size_t n)
{
    size_t at = p->text.len;
    if (!prose_wanted(s, n)) return KVL_OK;
    KVL_TRY(kvl_buf_add(&p->begin, &at, sizeof at));
    KVL_TRY(kvl_buf_add(&p->text, s, n));
    p->n++;
    return KVL_OK;
}

static int prose_paragraph(struct kvl_prose *p, const char *text, size_t len)
{
    for (size_t begin = 0, end; begin < len && (end = prose_end(text, begin, len)) > 0;
         begin = end + 1)
        KVL_TRY(prose_add(p, text + begin, end - begin));
    return KVL_OK;
}

/* Reads paragraph by paragraph, white space made one. */
static int prose_split(struct kvl_prose *p, const struct kvl_buf *file)
{
    struct kvl_buf paragraph = { 0 };
    int rc = KVL_OK;
    for (size_t i = 0; rc == KVL_OK && i < file->len;) {
        size_t lines = 0;
        for (; i < file->len && prose_is(file->data[i], " \t\r\n\f\v"); i++)
            lines += file->data[i] == '\n';
        if (lines > 1) {
            rc = prose_paragraph(p, paragraph.data ? paragraph.data : "", paragraph.len);
            paragraph.len = 0;
        } else if (paragraph.len > 0) {
            rc = kvl_buf_adds(&paragraph, " ");
        }
        size_t word = i;
        while (i < file->len && !prose_is(file->data[i], " \t\r\n\f\v")) i++;
        if (rc == KVL_OK) rc = kvl_buf_add(&paragraph, file->data + word, i - word);
    }
    if (rc == KVL_OK) rc = prose_paragraph(p, paragraph.data ? paragraph.data : "", paragraph.len);
    kvl_buf_free(&paragraph);
    return rc;
}

int kvl_prose_open(const char *path, struct kvl_prose *out, struct kvl_err *err)
{
    struct kvl_prose p = { 0 };
    struct kvl_buf file = { 0 };
    KVL_TRY(kvl_read_file(path, PROSE_FILE_LIMIT, &file, err));
    int rc = KVL_OK;
    if (file.len > 0 && memchr(file.data, '\0', file.len))
        rc = kvl_fail(err, KVL_EINVAL, "%s: has a zero byte, want a text", path);
    else if (prose_split(&p, &file) != KVL_OK ||
             kvl_buf_add(&p.begin, &p.text.len, sizeof p.text.len) != KVL_OK)
        rc = kvl_fail(err, KVL_ENOMEM, "%s: out of memory", path);
    else if (p.n < PROSE_FEWEST)
        rc = kvl_fail(err, KVL_EINVAL, "%s: %zu sentences, want a text of at least %d", path, p.n,
                      PROSE_FEWEST);
    kvl_buf_free(&file);
    if (rc == KVL_OK)
        *out = p;
    else
        kvl_prose_close(&p);
    return rc;
}

void kvl_prose_close(struct kvl_prose *p)
{
    kvl_buf_free(&p->text);
    kvl_buf_free(&p->begin);
}

int kvl_prose_sentence(const struct kvl_prose *p, size_t i, struct kvl_buf *out)
{
    size_t at[2];
    memcpy(at, p->begin.data + i % p->n * sizeof at[0], sizeof at);
    return kvl_buf_add(out, p->text.data + at[0], at[1] - at[0]);
}
