#include "ref.h"

#include <math.h>

/* Sum of the group's queries in one channel, or of their absolute values. */
static double group_sum(const struct kvl_box_scores_args *a, int32_t kv, int32_t c, bool absolute)
{
    int32_t group = a->n_heads / a->n_kv_heads;
    float sum = 0;
    for (int32_t g = 0; g < group; g++) {
        float q = a->q[(size_t)(kv * group + g) * (size_t)a->head_dim + (size_t)c];
        sum += absolute ? fabsf(q) : q;
    }
    return (double)sum;
}

/* Whether channel c is among the chosen ones: few are larger, or as large and before it. */
static bool is_chosen(const struct kvl_box_scores_args *a, int32_t kv, int32_t c)
{
    double own = group_sum(a, kv, c, true);
    int32_t n = 0;
    for (int32_t i = 0; i < a->head_dim; i++) {
        double other = group_sum(a, kv, i, true);
        n += other > own || (other >= own && i < c);
    }
    return n < a->n_channels;
}

static double box_score(const struct kvl_box_scores_args *a, int32_t head, int32_t box)
{
    int32_t kv = head / (a->n_heads / a->n_kv_heads);
    double sum = 0;
    for (int32_t c = 0; c < a->head_dim; c++) {
        int32_t v = group_sum(a, kv, c, false) >= 0 ? a->head_dim + c : c;
        size_t at = (size_t)kv * a->head_stride + (size_t)(v / a->box_tok) * a->column_stride +
                    (size_t)box * (size_t)a->box_tok + (size_t)(v % a->box_tok);
        if (is_chosen(a, kv, c))
            sum += (double)a->q[(size_t)head * (size_t)a->head_dim + (size_t)c] *
                   (double)kvl_ref_elem(a->boxes, a->type, at);
    }
    return sum * (double)a->scale;
}

int kvl_ref_box_scores(const struct kvl_box_scores_args *a)
{
    for (int32_t h = 0; h < a->n_heads; h++)
        for (int32_t i = 0; i < a->n; i++)
            a->score[(size_t)h * a->score_stride + (size_t)i] = (float)box_score(a, h, i);
    return KVL_OK;
}
