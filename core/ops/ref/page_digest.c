#include "ref.h"

#include <math.h>

/* ArkVale (Chen et al. 2024), section 4.2: c = (max + min) / 2, r = mean |k - c|. */
static void digest_channel(const struct kvl_page_digest_args *a, int32_t page, int32_t c)
{
    size_t dim = (size_t)a->head_dim, tok = (size_t)a->page_tok;
    const float *k = a->k + (size_t)page * tok * dim + (size_t)c;
    double min = (double)k[0], max = min, radius = 0;
    for (size_t i = 1; i < tok; i++) {
        min = KVL_MIN(min, (double)k[i * dim]);
        max = KVL_MAX(max, (double)k[i * dim]);
    }
    double centre = (min + max) / 2;
    for (size_t i = 0; i < tok; i++) radius += fabs((double)k[i * dim] - centre);
    radius /= a->page_tok;
    float *lo = a->digest + (size_t)page * 2 * dim + (size_t)c;
    lo[0] = (float)(centre - radius);
    lo[dim] = (float)(centre + radius);
}

int kvl_ref_page_digest(const struct kvl_page_digest_args *a)
{
    for (int32_t p = 0; p < a->n_pages; p++)
        for (int32_t c = 0; c < a->head_dim; c++) digest_channel(a, p, c);
    return KVL_OK;
}
