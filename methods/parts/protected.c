#include "protected.h"

#include <math.h>

float kvl_protected_score(int32_t n_heads, const struct kvl_scores *scores)
{
    int32_t n = scores->n_tok, last = n - scores->protect_last;
    float best = -INFINITY;
    for (int32_t h = 0; h < n_heads; h++)
        for (int32_t i = scores->protect_first; i < last; i++)
            best = fmaxf(best, scores->score[h * n + i]);
    return best + (float)KVL_MAX(1, scores->n_summed);
}
