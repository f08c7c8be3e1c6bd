#include "ref.h"

/* MagicPIG (Chen et al. 2025), section 4.2: SimHash. */
int kvl_ref_lsh_codes(const struct kvl_lsh_codes_args *a)
{
    size_t n = (size_t)a->n * (size_t)a->n_tables;
    for (size_t i = 0; i < n; i++) {
        uint32_t code = 0;
        for (int32_t j = 0; j < a->n_bits; j++)
            if (a->side[i * (size_t)a->n_bits + (size_t)j] > 0) code |= 1u << j;
        a->code[i] = (uint16_t)code;
    }
    return KVL_OK;
}
