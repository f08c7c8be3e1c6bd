#include "ref.h"

/* InfiniGen (Lee et al. 2024), section 4.3. */
int kvl_ref_near_max(const struct kvl_near_max_args *a)
{
    for (int32_t r = 0; r < a->n_rows; r++) {
        float *x = a->x + (size_t)r * (size_t)a->n, max = a->n > 0 ? x[0] : 0;
        for (int32_t i = 0; i < a->n; i++) max = x[i] > max ? x[i] : max;
        a->count[r] = 0;
        for (int32_t i = 0; i < a->n; i++) {
            x[i] -= max;
            a->count[r] += x[i] > -a->alpha;
        }
    }
    return KVL_OK;
}
