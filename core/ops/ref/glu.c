#include "ref.h"

#include <assert.h>
#include <math.h>

static double glu_act(double g, enum kvl_act act)
{
    const double root = 0.79788456080286535588; /* of 2 / pi */
    switch (act) {
    case KVL_ACT_SILU: return g / (1 + exp(-g));
    case KVL_ACT_GELU_TANH: return g / 2 * (1 + tanh(root * (g + 0.044715 * g * g * g)));
    case KVL_ACT_GELU: return g / 2 * (1 + erf(g / 1.41421356237309504880));
    case KVL_ACT_RELU: return g > 0 ? g : 0;
    case KVL_ACT_SWISH_CLAMPED: return g / (1 + exp(-1.702 * g));
    }
    assert(!"a known activation");
    return 0;
}

/* Shazeer 2020: the activation of one branch, times the other. */
int kvl_ref_glu(const struct kvl_glu_args *a)
{
    bool clamped = a->act == KVL_ACT_SWISH_CLAMPED;
    for (size_t i = 0; i < a->n; i++) {
        double g = (double)a->gate[i], u = a->up ? (double)a->up[i] : 1;
        if (clamped) {
            g = fmin(g, 7);
            u = fmin(fmax(u, -7), 7) + 1;
        }
        a->y[i] = (float)(glu_act(g, a->act) * u);
    }
    return KVL_OK;
}
