/* Cosines and sines by position, kept between calls: the layers of a model turn by the same angles,
 * and a repositioned cache asks for the same few thousand positions at every step.
 *
 * Direct-mapped by position.  A row is the same whether it comes from the table or is computed on
 * the spot. */
#include "cpu.h"

#include <math.h>
#include <string.h>

enum { TABLE_ROWS = 8192 };

struct kvl_rope_table {
    double *inv_freq; /* [half] the table is for */
    float *row;       /* [TABLE_ROWS][2 * half] */
    int32_t pos[TABLE_ROWS];
    int32_t half;
};

static struct kvl_rope_table table;

static void table_compute(float *row, const double *inv_freq, int32_t half, int32_t pos)
{
    for (int32_t i = 0; i < half; i++) {
        double angle = pos * inv_freq[i];
        row[i] = (float)cos(angle);
        row[half + i] = (float)sin(angle);
    }
}

static int table_open(const double *inv_freq, int32_t half)
{
    size_t bytes = (size_t)half * sizeof *inv_freq;
    if (table.half == half && memcmp(table.inv_freq, inv_freq, bytes) == 0) return KVL_OK;
    if (table.half != half) {
        double *freq = kvl_alloc((size_t)half, sizeof *freq);
        float *row = kvl_alloc((size_t)TABLE_ROWS * 2 * (size_t)half, sizeof *row);
        if (!freq || !row) {
            kvl_free(freq);
            kvl_free(row);
            return KVL_ENOMEM;
        }
        kvl_free(table.inv_freq);
        kvl_free(table.row);
        table.inv_freq = freq;
        table.row = row;
        table.half = half;
    }
    memcpy(table.inv_freq, inv_freq, bytes);
    for (int32_t i = 0; i < TABLE_ROWS; i++) table.pos[i] = INT32_MIN;
    return KVL_OK;
}

const struct kvl_rope_table *kvl_rope_prepare(const double *inv_freq, int32_t half,
                                              const int32_t *pos, int32_t n)
{
    if (table_open(inv_freq, half) != KVL_OK) return NULL;
    for (int32_t i = 0; i < n; i++) {
        size_t at = (uint32_t)pos[i] % TABLE_ROWS;
        if (table.pos[at] == pos[i]) continue;
        table_compute(table.row + at * 2 * (size_t)half, inv_freq, half, pos[i]);
        table.pos[at] = pos[i];
    }
    return &table;
}

const float *kvl_rope_row(const struct kvl_rope_table *t, int32_t pos, float *tmp)
{
    size_t at = (uint32_t)pos % TABLE_ROWS;
    if (t->pos[at] == pos) return t->row + at * 2 * (size_t)t->half;
    table_compute(tmp, t->inv_freq, t->half, pos);
    return tmp;
}
