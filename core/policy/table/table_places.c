/* Where a row or a column lies in what a hook was given of a table. */
#include "policy_impl.h"

#include <assert.h>

/* Called in loops of methods, once a row: there is no status to refuse with, so a wrong number is asserted. */
void *kvl_table_row_out(const struct kvl_rows *rows, int32_t kv_head, int32_t row)
{
    int part = row >= rows->part[0].n_rows;
    int32_t at = part ? row - rows->part[0].n_rows : row;
    assert(row >= 0 && at < rows->part[part].n_rows && rows->column_bytes == 0);
    return (uint8_t *)rows->part[part].data + (size_t)kv_head * rows->part[part].head_bytes +
           (size_t)at * rows->row_bytes;
}

const void *kvl_table_row(const struct kvl_rows *rows, int32_t kv_head, int32_t row)
{
    return kvl_table_row_out(rows, kv_head, row);
}

void *kvl_table_column(const struct kvl_rows *rows, int32_t kv_head, int32_t column)
{
    assert(column >= 0 && column < rows->row_elems && rows->unit == KVL_UNIT_LIVE);
    return (uint8_t *)rows->part[0].data + (size_t)kv_head * rows->part[0].head_bytes +
           (size_t)column * rows->column_bytes;
}
