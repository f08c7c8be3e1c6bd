/* Buckets of every table by a counting sort (count_sort.cuh), all tables at once.
 *
 * Limit: n codes of 2 bytes read twice and n ids of 4 bytes written per table; ids are written in as many
 * places as there are codes, so a line is filled by several passes and waits in L2.  Not timed yet. */
#include "count_sort.cuh"

int kvl_cuda_lsh_build(const struct kvl_lsh_build_args *a)
{
    struct kvl_cuda_call c;
    size_t n_codes = (size_t)1 << a->n_bits, n = (size_t)a->n, n_tables = (size_t)a->n_tables;
    assert(a->n >= 0 && a->n_tables >= 1 && a->n_bits >= 1 && a->n_bits <= 16);
    kvl_cuda_begin(&c);
    struct kvl_sort<uint16_t> s = {
    };
    s.key = kvl_cuda_in(&c, a->code, n * n_tables);
    s.stride = n_tables;
    s.n = a->n;
    s.n_tables = a->n_tables;
    s.n_keys = (int32_t)n_codes;
    s.n_bits = a->n_bits;
    s.start = kvl_cuda_out(&c, a->start, n_tables * (n_codes + 1));
    s.id = kvl_cuda_out(&c, a->id, n_tables * n);
    if (c.rc == KVL_OK) kvl_sort_launch(&c, &s);
    return kvl_cuda_end(&c);
}
