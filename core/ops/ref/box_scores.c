#include "ref.h"

#include <assert.h>
#include <math.h>

enum { MAX_HEAD_DIM = 1024 };

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

/* Of a kv head: which channels count, and of which the upper bound. */
struct box_channels {
    bool chosen[MAX_HEAD_DIM], upper[MAX_HEAD_DIM];
};

static double box_score(const struct kvl_box_scores_args *a, const struct box_channels *ch,
                        int32_t head, int32_t box)
{
    int32_t kv = head / (a->n_heads / a->n_kv_heads);
    double sum = 0;
    for (int32_t c = 0; c < a->head_dim; c++) {
        int32_t v = ch->upper[c] ? a->head_dim + c : c;
        size_t at = (size_t)kv * a->head_stride + (size_t)(v / a->box_tok) * a->column_stride +
                    (size_t)box * (size_t)a->box_tok + (size_t)(v % a->box_tok);
        if (ch->chosen[c])
            sum += (double)a->q[(size_t)head * (size_t)a->head_dim + (size_t)c] *
                   (double)kvl_ref_elem(a->boxes, a->type, at);
    }
    return sum * (double)a->scale;
}

int kvl_ref_box_scores(const struct kvl_box_scores_args *a)
{
    struct box_channels ch;
    assert(a->head_dim <= MAX_HEAD_DIM);
    for (int32_t h = 0; h < a->n_heads; h++) {
        int32_t kv = h / (a->n_heads / a->n_kv_heads);
        for (int32_t c = 0; c < a->head_dim; c++) {
            ch.chosen[c] = is_chosen(a, kv, c);
            ch.upper[c] = group_sum(a, kv, c, false) >= 0;
        }
        for (int32_t i = 0; i < a->n; i++)
            a->score[(size_t)h * a->score_stride + (size_t)i] = (float)box_score(a, &ch, h, i);
    }
    return KVL_OK;
}
