#include "cpu.h"

int kvl_cpu_lsh_codes(const struct kvl_lsh_codes_args *a)
{
    int threads = kvl_team((double)a->n * a->n_tables * a->n_bits * 0.3);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t i = 0; i < a->n; i++) {
        const float *side = a->side + (size_t)i * (size_t)a->n_tables * (size_t)a->n_bits;
        uint16_t *code = a->code + (size_t)i * (size_t)a->n_tables;
        for (int32_t l = 0; l < a->n_tables; l++, side += a->n_bits) {
            uint32_t bits = 0;
            for (int32_t j = 0; j < a->n_bits; j++) bits |= (uint32_t)(side[j] > 0) << j;
            code[l] = (uint16_t)bits;
        }
    }
    return KVL_OK;
}
