/* Cosines and sines by position, kept between calls: most layers of a model turn by the same angles,
 * and a repositioned cache asks for the same few thousand positions at every step.
 *
 * Direct-mapped by position, as many rows as positions up to TABLE_MOST.  A row is the same whether it comes from the
 * table or is computed on the spot. */
#include "cpu.h"

#include <math.h>
#include <string.h>

/* A model turns in two ways at most (local and global layers); methods may ask for another. */
enum { TABLE_LEAST = 1 << 10, TABLE_MOST = 1 << 15, TABLES = 3 };

struct kvl_rope_table {
    double *inv_freq; /* [half] the table is for; NULL: for nothing yet */
    float *row;       /* [n_rows][2 * half] */
    int32_t *pos;     /* [n_rows] */
    uint32_t n_rows;  /* a power of two */
    int32_t half;
    float mag;
};

static struct kvl_rope_table table[TABLES]; /* the last used first */

static void table_compute(float *row, const struct kvl_rope_table *t, int32_t pos)
{
    for (int32_t i = 0; i < t->half; i++) {
        double angle = pos * t->inv_freq[i], mag = (double)t->mag;
        row[i] = (float)(mag * cos(angle));
        row[t->half + i] = (float)(mag * sin(angle));
    }
}

static void table_close(struct kvl_rope_table *t)
{
    kvl_free(t->inv_freq);
    kvl_free(t->row);
    kvl_free(t->pos);
    *t = (struct kvl_rope_table){ 0 };
}

static int table_open(struct kvl_rope_table *t, const struct kvl_rope *rope, uint32_t n_rows)
{
    size_t half = (size_t)rope->n_rot / 2;
    table_close(t);
    t->inv_freq = kvl_alloc(half, sizeof *t->inv_freq);
    t->row = kvl_alloc(n_rows * 2 * half, sizeof *t->row);
    t->pos = kvl_alloc(n_rows, sizeof *t->pos);
    if (!t->inv_freq || !t->row || !t->pos) {
        table_close(t);
        return KVL_ENOMEM;
    }
    memcpy(t->inv_freq, rope->inv_freq, half * sizeof *t->inv_freq);
    t->half = (int32_t)half;
    t->mag = rope->mag;
    t->n_rows = n_rows;
    for (uint32_t i = 0; i < n_rows; i++) t->pos[i] = INT32_MIN;
    return KVL_OK;
}

static bool table_fits(const struct kvl_rope_table *t, const struct kvl_rope *rope)
{
    size_t bytes = (size_t)(rope->n_rot / 2) * sizeof *t->inv_freq;
    bool same = t->mag <= rope->mag && t->mag >= rope->mag;
    return t->inv_freq && t->half == rope->n_rot / 2 && same &&
           memcmp(t->inv_freq, rope->inv_freq, bytes) == 0;
}

/* Rows that hold all of these positions, as far as there may be so many. */
static uint32_t table_rows(const int32_t *pos, int32_t n)
{
    int32_t most = 0;
    uint32_t rows = TABLE_LEAST;
    for (int32_t i = 0; i < n; i++) most = KVL_MAX(most, pos[i]);
    while (rows < TABLE_MOST && rows <= (uint32_t)most) rows *= 2;
    return rows;
}

/* Brings the table for `rope` to the front, with so many rows or more; one that grows begins anew. */
static int table_find(const struct kvl_rope *rope, uint32_t n_rows)
{
    int32_t i = 0;
    while (i < TABLES - 1 && !table_fits(&table[i], rope)) i++;
    struct kvl_rope_table t = table[i];
    memmove(table + 1, table, (size_t)i * sizeof *table);
    table[0] = t;
    return table_fits(&t, rope) && t.n_rows >= n_rows ? KVL_OK : table_open(table, rope, n_rows);
}

const struct kvl_rope_table *kvl_rope_prepare(const struct kvl_rope *rope, const int32_t *pos,
                                              int32_t n)
{
    struct kvl_rope_table *t = table;
    if (table_find(rope, table_rows(pos, n)) != KVL_OK) return NULL;
    for (int32_t i = 0; i < n; i++) {
        size_t at = (uint32_t)pos[i] & (t->n_rows - 1);
        if (t->pos[at] == pos[i]) continue;
        table_compute(t->row + at * 2 * (size_t)t->half, t, pos[i]);
        t->pos[at] = pos[i];
    }
    return t;
}

const float *kvl_rope_row(const struct kvl_rope_table *t, int32_t pos, float *tmp)
{
    size_t at = (uint32_t)pos & (t->n_rows - 1);
    if (t->pos[at] == pos) return t->row + at * 2 * (size_t)t->half;
    table_compute(tmp, t, pos);
    return tmp;
}
