#include "ref.h"

int kvl_ref_lsh_build(const struct kvl_lsh_build_args *a)
{
    int32_t n_codes = 1 << a->n_bits;
    for (int32_t l = 0; l < a->n_tables; l++) {
        int32_t *start = a->start + (size_t)l * ((size_t)n_codes + 1), at = 0;
        for (int32_t b = 0; b < n_codes; b++) {
            start[b] = at;
            for (int32_t i = 0; i < a->n; i++)
                if (a->code[(size_t)i * (size_t)a->n_tables + (size_t)l] == b)
                    a->id[(size_t)l * (size_t)a->n + (size_t)at++] = i;
        }
        start[n_codes] = at;
    }
    return KVL_OK;
}
