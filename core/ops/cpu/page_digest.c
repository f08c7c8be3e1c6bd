#include "cpu.h"

#include <math.h>

/* Keys are taken one by one, so that the loops run over channels. */
static void digest_page(const struct kvl_page_digest_args *a, int32_t page)
{
    size_t dim = (size_t)a->head_dim, tok = (size_t)a->page_tok;
    const float *k = a->k + (size_t)page * tok * dim;
    float *lo = a->digest + (size_t)page * 2 * dim, *hi = lo + dim;
    const float scale = 1.0f / (float)a->page_tok;
    for (size_t c = 0; c < dim; c++) lo[c] = hi[c] = k[c];
    for (size_t i = 1; i < tok; i++)
        for (size_t c = 0; c < dim; c++) {
            float x = k[i * dim + c];
            lo[c] = x < lo[c] ? x : lo[c];
            hi[c] = x > hi[c] ? x : hi[c];
        }
    for (size_t c = 0; c < dim; c++) {
        lo[c] = 0.5f * (lo[c] + hi[c]); /* the centre */
        hi[c] = 0;                      /* sum of distances */
    }
    for (size_t i = 0; i < tok; i++)
        for (size_t c = 0; c < dim; c++) hi[c] += fabsf(k[i * dim + c] - lo[c]);
    for (size_t c = 0; c < dim; c++) {
        float radius = hi[c] * scale, middle = lo[c];
        lo[c] = middle - radius;
        hi[c] = middle + radius;
    }
}

int kvl_cpu_page_digest(const struct kvl_page_digest_args *a)
{
    int threads = kvl_team((double)a->n_pages * a->page_tok * a->head_dim * 0.3);
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int32_t p = 0; p < a->n_pages; p++) digest_page(a, p);
    return KVL_OK;
}
