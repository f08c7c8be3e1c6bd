/* Edit distance, difflib, ROUGE. */
#include "similar.h"

#include <stdlib.h>
#include <string.h>

/* ---- edit distance ------------------------------------------------------------------------------- */

/* A substitution costs `change`: 1, or 2 where it is a deletion and an insertion. */
static int edit_distance(const struct kvl_letters *a, const struct kvl_letters *b, int32_t change,
                         int32_t *out)
{
    int32_t *row = kvl_alloc((size_t)b->n + 1, sizeof *row);
    if (!row) return KVL_ENOMEM;
    for (int32_t j = 0; j <= b->n; j++) row[j] = j;
    for (int32_t i = 0; i < a->n; i++) {
        int32_t before = row[0]++;
        for (int32_t j = 0; j < b->n; j++) {
            int32_t least = KVL_MIN(row[j], row[j + 1]) + 1;
            least = KVL_MIN(least, before + (a->v[i] == b->v[j] ? 0 : change));
            before = row[j + 1];
            row[j + 1] = least;
        }
    }
    *out = row[b->n];
    kvl_free(row);
    return KVL_OK;
}

int kvl_edit_distance(const struct kvl_letters *a, const struct kvl_letters *b, int32_t *out)
{
    return edit_distance(a, b, 1, out);
}

int kvl_lcs_ratio(const struct kvl_letters *a, const struct kvl_letters *b, double *out)
{
    int32_t distance;
    double sum = (double)a->n + b->n;
    KVL_TRY(edit_distance(a, b, 2, &distance));
    *out = sum > 0.0 ? (sum - distance) / sum : 1.0;
    return KVL_OK;
}

/* ---- difflib ------------------------------------------------------------------------------------- */

enum { DIFFLIB_POPULAR = 200 }; /* from so many code points on, those in over 1 % are left out */

struct match {
    int32_t a, b, size;
};

struct matcher {
    const struct kvl_letters *a, *b;
    bool *skip;    /* [b->n] a frequent one */
    int32_t *run;  /* [b->n + 1] length of the match that ends before b[j], in this row of a ... */
    int32_t *last; /* ... and in the one before */
};

static int letter_order(const void *x, const void *y)
{
    uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return (a > b) - (a < b);
}

static int matcher_popular(struct matcher *m)
{
    const struct kvl_letters *b = m->b;
    if (b->n < DIFFLIB_POPULAR) return KVL_OK;
    uint32_t *sorted = kvl_alloc((size_t)b->n, sizeof *sorted);
    if (!sorted) return KVL_ENOMEM;
    memcpy(sorted, b->v, (size_t)b->n * sizeof *sorted);
    qsort(sorted, (size_t)b->n, sizeof *sorted, letter_order);
    for (int32_t i = 0, end; i < b->n; i = end) {
        for (end = i; end < b->n && sorted[end] == sorted[i];) end++;
        for (int32_t j = 0; end - i > b->n / 100 + 1 && j < b->n; j++)
            if (b->v[j] == sorted[i]) m->skip[j] = true;
    }
    kvl_free(sorted);
    return KVL_OK;
}

/* The longest block in a[alo, ahi) and b[blo, bhi); of equal ones that which begins first in a, then in
 * b.  Frequent code points do not begin one, but lengthen it. */
static struct match matcher_longest(struct matcher *m, int32_t alo, int32_t ahi, int32_t blo,
                                    int32_t bhi)
{
    const uint32_t *a = m->a->v, *b = m->b->v;
    struct match best = { alo, blo, 0 };
    memset(m->last + blo, 0, (size_t)(bhi - blo + 1) * sizeof *m->last);
    for (int32_t i = alo; i < ahi; i++) {
        m->run[blo] = 0;
        for (int32_t j = blo; j < bhi; j++) {
            bool same = a[i] == b[j] && !m->skip[j];
            int32_t k = same ? m->last[j] + 1 : 0;
            m->run[j + 1] = k;
            if (k > best.size) best = (struct match){ i - k + 1, j - k + 1, k };
        }
        int32_t *swap = m->last;
        m->last = m->run;
        m->run = swap;
    }
    while (best.a > alo && best.b > blo && a[best.a - 1] == b[best.b - 1]) {
        best.a--;
        best.b--;
        best.size++;
    }
    while (best.a + best.size < ahi && best.b + best.size < bhi &&
           a[best.a + best.size] == b[best.b + best.size])
        best.size++;
    return best;
}

/* Code points in matching blocks: the longest one, and those before and behind it. */
static int matcher_sum(struct matcher *m, int32_t *out)
{
    struct kvl_buf left = { 0 };
    int32_t part[4] = { 0, m->a->n, 0, m->b->n };
    int rc = kvl_buf_add(&left, part, sizeof part);
    *out = 0;
    while (rc == KVL_OK && left.len > 0) {
        left.len -= sizeof part;
        memcpy(part, left.data + left.len, sizeof part);
        struct match x = matcher_longest(m, part[0], part[1], part[2], part[3]);
        int32_t before[4] = { part[0], x.a, part[2], x.b };
        int32_t behind[4] = { x.a + x.size, part[1], x.b + x.size, part[3] };
        *out += x.size;
        if (x.size == 0) continue;
        if (before[0] < before[1] && before[2] < before[3])
            rc = kvl_buf_add(&left, before, sizeof before);
        if (rc == KVL_OK && behind[0] < behind[1] && behind[2] < behind[3])
            rc = kvl_buf_add(&left, behind, sizeof behind);
    }
    kvl_buf_free(&left);
    return rc;
}

int kvl_difflib_ratio(const struct kvl_letters *a, const struct kvl_letters *b, double *out)
{
    struct matcher m = { .a = a, .b = b };
    int32_t same = 0;
    m.skip = kvl_alloc((size_t)b->n + 1, sizeof *m.skip);
    m.run = kvl_alloc((size_t)b->n + 1, sizeof *m.run);
    m.last = kvl_alloc((size_t)b->n + 1, sizeof *m.last);
    int rc = m.skip && m.run && m.last ? matcher_popular(&m) : KVL_ENOMEM;
    if (rc == KVL_OK) rc = matcher_sum(&m, &same);
    if (rc == KVL_OK) *out = a->n + b->n > 0 ? 2.0 * same / ((double)a->n + b->n) : 1.0;
    kvl_free(m.skip);
    kvl_free(m.run);
    kvl_free(m.last);
    return rc;
}

/* ---- the longest common subsequence ----------------------------------------------------------------- */

struct lcs {
    const struct kvl_words *x, *y;
    int32_t *table; /* [x + 1][y + 1] */
};

static int32_t lcs_at(const struct lcs *l, int32_t i, int32_t j)
{
    return l->table[(size_t)i * ((size_t)l->y->n + 1) + (size_t)j];
}

static int lcs_fill(struct lcs *l)
{
    size_t rows = (size_t)l->x->n + 1, columns = (size_t)l->y->n + 1, cells;
    KVL_TRY(kvl_mul_size(rows, columns, &cells));
    l->table = kvl_alloc(cells, sizeof *l->table);
    if (!l->table) return KVL_ENOMEM;
    for (int32_t i = 1; i <= l->x->n; i++)
        for (int32_t j = 1; j <= l->y->n; j++) {
            int32_t up = lcs_at(l, i - 1, j), left = lcs_at(l, i, j - 1);
            int32_t k = KVL_MAX(up, left);
            if (kvl_word_same(&l->x->v[i - 1], &l->y->v[j - 1])) k = lcs_at(l, i - 1, j - 1) + 1;
            l->table[(size_t)i * columns + (size_t)j] = k;
        }
    return KVL_OK;
}

/* Marks in `in` [x->n] what of x is in the subsequence that is found from the end.  Of two ways that are
 * as good the package `rouge` leaves out a word of y, `rouge_score` one of x.  Returns the steps. */
static int32_t lcs_trace(const struct lcs *l, bool skip_y, bool *in)
{
    int32_t i = l->x->n, j = l->y->n, steps = 0;
    for (; i > 0 && j > 0; steps++) {
        int32_t up = lcs_at(l, i - 1, j), left = lcs_at(l, i, j - 1);
        if (kvl_word_same(&l->x->v[i - 1], &l->y->v[j - 1])) {
            in[--i] = true;
            j--;
        } else if (skip_y ? up <= left : left > up) {
            j--;
        } else {
            i--;
        }
    }
    return steps;
}

/* ---- the package rouge -------------------------------------------------------------------------------- */

/* A text as sentences of words. */
struct rouge_text {
    struct kvl_buf text; /* words joined by one space, sentences by a full stop */
    struct kvl_words sentence;
    struct kvl_words *words; /* [sentence.n] */
    int32_t n_words;
};

static void rouge_free(struct rouge_text *t)
{
    for (int32_t i = 0; t->words && i < t->sentence.n; i++) kvl_free(t->words[i].v);
    kvl_free(t->words);
    kvl_free(t->sentence.v);
    kvl_buf_free(&t->text);
}

/* Sentences that are not empty, their words joined by one space. */
static int rouge_clean(const char *text, struct kvl_buf *out)
{
    struct kvl_words part = { 0 };
    int rc = kvl_words_cut(text, strlen(text), '.', &part);
    if (rc == KVL_OK) rc = kvl_buf_adds(out, "");
    for (int32_t i = 0, n = 0; i < part.n && rc == KVL_OK; i++) {
        struct kvl_words word = { 0 };
        if (part.v[i].n == 0) continue;
        if (n++) rc = kvl_buf_adds(out, ".");
        if (rc == KVL_OK) rc = kvl_words_split(part.v[i].s, part.v[i].n, &word);
        for (int32_t w = 0; w < word.n && rc == KVL_OK; w++) {
            if (w) rc = kvl_buf_adds(out, " ");
            if (rc == KVL_OK) rc = kvl_buf_add(out, word.v[w].s, word.v[w].n);
        }
        kvl_free(word.v);
    }
    kvl_free(part.v);
    return rc;
}

/* A sentence of nothing but space has one word, which is empty. */
static int rouge_read(const char *text, struct rouge_text *out)
{
    KVL_TRY(rouge_clean(text, &out->text));
    if (text[strspn(text, ".")] == '\0') return KVL_OK;
    KVL_TRY(kvl_words_cut(out->text.data, out->text.len, '.', &out->sentence));
    out->words = kvl_alloc((size_t)out->sentence.n, sizeof *out->words);
    if (!out->words) return KVL_ENOMEM;
    for (int32_t i = 0; i < out->sentence.n; i++) {
        const struct kvl_word *s = &out->sentence.v[i];
        KVL_TRY(kvl_words_cut(s->s, s->n, ' ', &out->words[i]));
        out->n_words += out->words[i].n;
    }
    return KVL_OK;
}

/* Different words among n. */
static int32_t rouge_different(struct kvl_word *v, int32_t n)
{
    int32_t different = n > 0;
    if (n == 0) return 0;
    qsort(v, (size_t)n, sizeof *v, kvl_word_order);
    for (int32_t i = 1; i < n; i++) different += !kvl_word_same(&v[i - 1], &v[i]);
    return different;
}

static int rouge_count(const struct rouge_text *t, int32_t *out)
{
    struct kvl_word *all = kvl_alloc((size_t)t->n_words + 1, sizeof *all);
    int32_t n = 0;
    if (!all) return KVL_ENOMEM;
    for (int32_t i = 0; i < t->sentence.n; i++)
        for (int32_t w = 0; w < t->words[i].n; w++) all[n++] = t->words[i].v[w];
    *out = rouge_different(all, n);
    kvl_free(all);
    return KVL_OK;
}

/* Adds to `found` the words that two sentences have in common in order. */
static int rouge_common(const struct kvl_words *x, const struct kvl_words *y, struct kvl_buf *found,
                        int32_t *steps)
{
    struct lcs l = { .x = x, .y = y };
    bool *in = kvl_alloc((size_t)x->n + 1, sizeof *in);
    int rc = in ? lcs_fill(&l) : KVL_ENOMEM;
    int32_t took = rc == KVL_OK ? lcs_trace(&l, true, in) : 0;
    *steps = KVL_MAX(*steps, took);
    for (int32_t i = 0; i < x->n && rc == KVL_OK; i++)
        if (in[i]) rc = kvl_buf_add(found, &x->v[i], sizeof x->v[i]);
    kvl_free(in);
    kvl_free(l.table);
    return rc;
}

/* Different words that any sentence of the one has in common, in order, with any of the other. */
static int rouge_union(const struct rouge_text *p, const struct rouge_text *r, int32_t *n,
                       int32_t *steps)
{
    struct kvl_buf found = { 0 };
    int rc = KVL_OK;
    for (int32_t i = 0; i < r->sentence.n; i++)
        for (int32_t j = 0; j < p->sentence.n && rc == KVL_OK; j++)
            rc = rouge_common(&r->words[i], &p->words[j], &found, steps);
    struct kvl_word *v = (struct kvl_word *)(void *)found.data;
    if (rc == KVL_OK) *n = rouge_different(v, (int32_t)(found.len / sizeof *v));
    kvl_buf_free(&found);
    return rc;
}

int kvl_rouge_l(const char *prediction, const char *reference, int32_t steps, double *out)
{
    struct rouge_text p = { 0 }, r = { 0 };
    int32_t common = 0, n = 0, m = 0, took = 0;
    int rc = rouge_read(prediction, &p);
    if (rc == KVL_OK) rc = rouge_read(reference, &r);
    bool some = p.sentence.n > 0 && r.sentence.n > 0;
    if (rc == KVL_OK && some) rc = rouge_union(&p, &r, &common, &took);
    if (rc == KVL_OK) rc = rouge_count(&p, &n);
    if (rc == KVL_OK) rc = rouge_count(&r, &m);
    if (rc == KVL_OK) {
        double precision = n ? (double)common / n : 0.0, recall = m ? (double)common / m : 0.0;
        *out = 2.0 * (precision * recall / (precision + recall + 1e-8));
        if (!some || (steps && took > steps)) *out = 0.0;
    }
    rouge_free(&p);
    rouge_free(&r);
    return rc;
}

/* ---- the package rouge_score ---------------------------------------------------------------------------- */

struct lsum_text {
    struct kvl_buf text;
    struct kvl_words *line;
    int32_t n_lines, n_words;
};

static void lsum_free(struct lsum_text *t)
{
    for (int32_t i = 0; t->line && i < t->n_lines; i++) kvl_free(t->line[i].v);
    kvl_free(t->line);
    kvl_buf_free(&t->text);
}

/* Everything but a-z, 0-9 and line ends becomes a space, after upper-case letters became lower-case. */
static int lsum_read(const char *text, struct lsum_text *out)
{
    struct kvl_words line = { 0 };
    KVL_TRY(kvl_text_lower(text, &out->text));
    for (char *c = out->text.data; *c; c++)
        if (*c != '\n' && !(*c >= 'a' && *c <= 'z') && !(*c >= '0' && *c <= '9')) *c = ' ';
    KVL_TRY(kvl_words_cut(out->text.data, out->text.len, '\n', &line));
    out->line = kvl_alloc((size_t)line.n, sizeof *out->line);
    int rc = out->line ? KVL_OK : KVL_ENOMEM;
    for (int32_t i = 0; i < line.n && rc == KVL_OK; i++) {
        if (line.v[i].n == 0) continue;
        rc = kvl_words_split(line.v[i].s, line.v[i].n, &out->line[out->n_lines]);
        if (rc == KVL_OK) out->n_words += out->line[out->n_lines++].n;
    }
    kvl_free(line.v);
    return rc;
}

/* All words of a text, sorted, each with how many are left: `used` counts those taken. */
struct lsum_bag {
    struct kvl_word *v;
    bool *used;
    int32_t n;
};

static int lsum_bag(const struct lsum_text *t, struct lsum_bag *out)
{
    out->v = kvl_alloc((size_t)t->n_words + 1, sizeof *out->v);
    out->used = kvl_alloc((size_t)t->n_words + 1, sizeof *out->used);
    if (!out->v || !out->used) return KVL_ENOMEM;
    for (int32_t i = 0; i < t->n_lines; i++)
        for (int32_t w = 0; w < t->line[i].n; w++) out->v[out->n++] = t->line[i].v[w];
    if (out->n > 0) qsort(out->v, (size_t)out->n, sizeof *out->v, kvl_word_order);
    return KVL_OK;
}

/* Where a word that is left stands; -1: none. */
static int32_t lsum_find(const struct lsum_bag *bag, const struct kvl_word *w)
{
    int32_t lo = 0, hi = bag->n;
    while (lo < hi) {
        int32_t mid = lo + (hi - lo) / 2;
        if (kvl_word_order(&bag->v[mid], w) < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    while (lo < bag->n && kvl_word_same(&bag->v[lo], w) && bag->used[lo]) lo++;
    return lo < bag->n && kvl_word_same(&bag->v[lo], w) ? lo : -1;
}

/* Marks what of a line of the reference any line of the prediction has in common with it, in order. */
static int lsum_line(const struct kvl_words *line, const struct lsum_text *p, bool *in)
{
    memset(in, 0, (size_t)line->n * sizeof *in);
    for (int32_t j = 0; j < p->n_lines; j++) {
        struct lcs l = { .x = line, .y = &p->line[j] };
        int rc = lcs_fill(&l);
        if (rc == KVL_OK) (void)lcs_trace(&l, false, in);
        kvl_free(l.table);
        KVL_TRY(rc);
    }
    return KVL_OK;
}

static int lsum_hits(const struct lsum_text *p, const struct lsum_text *r, int32_t *hits)
{
    struct lsum_bag bag[2] = { 0 };
    bool *in = kvl_alloc((size_t)r->n_words + 1, sizeof *in);
    int rc = in ? lsum_bag(p, &bag[0]) : KVL_ENOMEM;
    if (rc == KVL_OK) rc = lsum_bag(r, &bag[1]);
    *hits = 0;
    for (int32_t i = 0; i < r->n_lines && rc == KVL_OK; i++) {
        rc = lsum_line(&r->line[i], p, in);
        for (int32_t w = 0; rc == KVL_OK && w < r->line[i].n; w++) {
            int32_t a = in[w] ? lsum_find(&bag[0], &r->line[i].v[w]) : -1;
            int32_t b = a >= 0 ? lsum_find(&bag[1], &r->line[i].v[w]) : -1;
            if (b < 0) continue;
            bag[0].used[a] = bag[1].used[b] = true;
            ++*hits;
        }
    }
    for (int i = 0; i < 2; i++) {
        kvl_free(bag[i].v);
        kvl_free(bag[i].used);
    }
    kvl_free(in);
    return rc;
}

int kvl_rouge_lsum(const char *prediction, const char *reference, double *out)
{
    struct lsum_text p = { 0 }, r = { 0 };
    int32_t hits = 0;
    int rc = lsum_read(prediction, &p);
    if (rc == KVL_OK) rc = lsum_read(reference, &r);
    if (rc == KVL_OK) rc = lsum_hits(&p, &r, &hits);
    if (rc == KVL_OK) {
        double precision = (double)hits / KVL_MAX(p.n_words, 1);
        double recall = (double)hits / KVL_MAX(r.n_words, 1);
        *out = hits ? 2.0 * precision * recall / (precision + recall) : 0.0;
    }
    lsum_free(&p);
    lsum_free(&r);
    return rc;
}
