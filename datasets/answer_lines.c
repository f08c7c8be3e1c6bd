/* Answers of many lines, judged line by line. */
#include "answer_lines.h"

#include <string.h>

enum { LINES_QUARTERS = KVL_TASK_SUBS };

int32_t kvl_lines_index(const struct kvl_list *l, const struct kvl_list_entry *e)
{
    return (int32_t)(e - (const struct kvl_list_entry *)(const void *)l->entries.data);
}

const struct kvl_list_entry *kvl_lines_entry(const struct kvl_list *l, int32_t i)
{
    return (const struct kvl_list_entry *)(const void *)l->entries.data + i % l->n;
}

/* Keys are short and lists are not long: looking through the text will do. */
int kvl_lines_key(const struct kvl_list *l, struct kvl_rng *rng, size_t n, char *out)
{
    for (int32_t tries = 0; tries < 1000; tries++) {
        for (size_t i = 0; i < n; i++)
            out[i] = (i % 2 ? "aeiou" : "bdfgklmnprst")[kvl_rng_below(rng, i % 2 ? 5 : 12)];
        out[n] = '\0';
        if (!l->text.data || !strstr(l->text.data, out)) return KVL_OK;
    }
    return kvl_fail(l->err, KVL_EINVAL,
                    "%d lines use up the names of %zu letters; want fewer lines", l->n, n);
}

/* The next line that is not empty, without white space at its ends; NULL: there is none. */
static const char *line_next(const char **text, size_t *n)
{
    for (const char *s = *text; *s;) {
        size_t len = strcspn(s, "\n");
        const char *begin = s + strspn(s, " \t\r"), *end = s + len;
        s += len + (s[len] == '\n');
        *text = s;
        while (end > begin && strchr(" \t\r", end[-1])) end--;
        *n = end > begin ? (size_t)(end - begin) : 0;
        if (*n > 0) return begin;
    }
    return NULL;
}

static int32_t lines_count(const char *text)
{
    size_t n;
    int32_t count = 0;
    while (line_next(&text, &n)) count++;
    return count;
}

void kvl_lines_score(const struct kvl_question *q, const char *prediction,
                     struct kvl_task_score *out)
{
    static const char *const names[LINES_QUARTERS] = { "quarter_1", "quarter_2", "quarter_3",
                                                       "quarter_4" };
    const char *gold = q->gold, *said = prediction;
    int32_t n = lines_count(gold), right = 0, of[LINES_QUARTERS] = { 0 },
            all[LINES_QUARTERS] = { 0 };
    size_t want, have;
    for (int32_t i = 0; i < n; i++) {
        const char *a = line_next(&gold, &want), *b = line_next(&said, &have);
        bool same = b && want == have && memcmp(a, b, want) == 0;
        int32_t quarter = (int32_t)((int64_t)i * LINES_QUARTERS / n);
        right += same;
        of[quarter] += same;
        all[quarter]++;
    }
    bool more = line_next(&said, &have) != NULL;
    *out = (struct kvl_task_score){ .official = n > 0 ? (double)right / n : 0,
                                    .strict = n > 0 && right == n && !more,
                                    .n_sub = LINES_QUARTERS };
    for (int k = 0; k < LINES_QUARTERS; k++) {
        out->sub[k].name = names[k];
        out->sub[k].value = all[k] > 0 ? (double)of[k] / all[k] : 0;
    }
}
