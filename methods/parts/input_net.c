/* Networks over a layer's input. */
#include "input_net.h"

#include "kvl/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NET_MAX_HIDDEN = 1 << 20, NET_NAME = 48 };

/* In front of the weights: of each layer the first map with its bias, then the second. */
struct net {
    int32_t n_layers, n_embd, hidden, n_out; /* hidden 0: one map */
    uint8_t rest[48];                        /* weights begin at a cache line */
};

static size_t net_layer_floats(const struct net *net)
{
    size_t in = (size_t)net->n_embd, mid = (size_t)net->hidden, out = (size_t)net->n_out;
    return mid ? mid * (in + 1) + out * (mid + 1) : out * (in + 1);
}

static const float *net_layer(const struct net *net, int32_t layer)
{
    const float *all = (const float *)(const void *)(net + 1);
    return all + (size_t)layer * net_layer_floats(net);
}

/* ---- the file ---------------------------------------------------------------------------------------- */

/* "layers.3" or "layers.3.2", then "weight" or "bias". */
static const char *net_name(char name[NET_NAME], int32_t layer, const char *map, const char *what)
{
    snprintf(name, NET_NAME, "layers.%d%s.%s", layer, map, what);
    return name;
}

static bool net_has(const struct kvl_tensors *t, int32_t layer, const char *map)
{
    char name[NET_NAME];
    int64_t rows, cols;
    return kvl_tensors_shape(t, net_name(name, layer, map, "weight"), &rows, &cols);
}

/* A map and its bias to `to`, or a look at them where that is NULL. */
static int net_map(const struct kvl_tensors *t, int32_t layer, const char *map, int32_t n_out,
                   int32_t n_in, float *to, struct kvl_err *err)
{
    char name[NET_NAME];
    float *bias = to ? to + (size_t)n_out * (size_t)n_in : NULL;
    KVL_TRY(kvl_tensors_read(t, net_name(name, layer, map, "weight"), n_out, n_in, to, err));
    return kvl_tensors_read(t, net_name(name, layer, map, "bias"), 1, n_out, bias, err);
}

static int net_tensors(const struct kvl_tensors *t, const struct net *net, float *to,
                       struct kvl_err *err)
{
    size_t first = (size_t)net->hidden * ((size_t)net->n_embd + 1);
    for (int32_t l = 0; l < net->n_layers; l++) {
        float *second = to ? to + first : NULL;
        if (net->hidden == 0) {
            KVL_TRY(net_map(t, l, "", net->n_out, net->n_embd, to, err));
        } else {
            KVL_TRY(net_map(t, l, ".0", net->hidden, net->n_embd, to, err));
            KVL_TRY(net_map(t, l, ".2", net->n_out, net->hidden, second, err));
        }
        if (to) to += net_layer_floats(net);
    }
    return KVL_OK;
}

/* Sizes of the networks, which the shapes of the tensors tell. */
static int net_sizes(const struct kvl_tensors *t, const char *path, const struct kvl_shape *sh,
                     struct net *net, struct kvl_err *err)
{
    char name[NET_NAME];
    int64_t hidden = 0, cols = 0;
    *net = (struct net){ .n_embd = sh->n_embd, .n_out = sh->n_kv_heads };
    const char *map = net_has(t, 0, "") ? "" : ".0";
    if (!net_has(t, 0, map))
        return kvl_fail(err, KVL_EINVAL,
                        "%s: no tensor layers.0.weight or layers.0.0.weight, want those of a "
                        "KVzap model",
                        path);
    if (*map) kvl_tensors_shape(t, net_name(name, 0, map, "weight"), &hidden, &cols);
    if (*map && (hidden < 1 || hidden > NET_MAX_HIDDEN))
        return kvl_fail(err, KVL_EINVAL, "%s: layers.0.0.weight has %lld rows, want 1 to %d", path,
                        (long long)hidden, NET_MAX_HIDDEN);
    net->hidden = (int32_t)hidden;
    while (net_has(t, net->n_layers, map)) net->n_layers++;
    return KVL_OK;
}

static int net_check(const struct kvl_tensors *t, const char *path, const struct net *net,
                     struct kvl_err *err)
{
    int32_t n = net->n_layers * (net->hidden ? 4 : 2);
    KVL_TRY(net_tensors(t, net, NULL, err));
    if (kvl_tensors_count(t) == n) return KVL_OK;
    return kvl_fail(err, KVL_EINVAL, "%s: %d tensors, want %d, %d for each of %d layers", path,
                    kvl_tensors_count(t), n, net->hidden ? 4 : 2, net->n_layers);
}

/* The options live as long as the plan, which lives until an engine has loaded. */
static int net_load(const struct kvl_input_scorer *scorer, const struct kvl_shape *shape,
                    void *memory, struct kvl_err *err)
{
    const char *path = scorer->from;
    struct kvl_tensors *t;
    struct net *net = memory;
    KVL_TRY(kvl_tensors_open(path, &t, err));
    int rc = net_sizes(t, path, shape, net, err);
    size_t bytes = sizeof *net + (size_t)net->n_layers * net_layer_floats(net) * sizeof(float);
    if (rc == KVL_OK && net->n_layers != shape->n_layers)
        rc = kvl_fail(err, KVL_EINVAL, "%s: networks of %d layers, the model has %d", path,
                      net->n_layers, shape->n_layers);
    if (rc == KVL_OK && bytes != scorer->bytes)
        rc = kvl_fail(err, KVL_EINVAL, "%s: changed since it was planned with", path);
    if (rc == KVL_OK) rc = net_tensors(t, net, (float *)(void *)(net + 1), err);
    kvl_tensors_close(t);
    return rc;
}

/* ---- scores ------------------------------------------------------------------------------------------ */

/* hidden [n][net->hidden] = GELU of the first map.  What operators wrote the host does not write. */
static int net_hidden(const struct kvl_pctx *ctx, const struct net *net, const float *w,
                      const float *x, int32_t n, float **out)
{
    size_t all = (size_t)n * (size_t)net->hidden;
    const float *bias = w + (size_t)net->hidden * (size_t)net->n_embd;
    float *hidden, *biases;
    KVL_TRY(kvl_scratch_get(ctx, all, &hidden));
    KVL_TRY(kvl_scratch_get(ctx, all, &biases));
    for (size_t i = 0; i < all; i++) biases[i] = bias[i % (size_t)net->hidden];
    KVL_TRY(kvl_product(ctx, x, n, w, net->hidden, net->n_embd, hidden));
    KVL_TRY(ctx->ops->add(&(struct kvl_add_args){ .y = hidden, .x = biases, .n = all }));
    KVL_TRY(ctx->ops->glu(
        &(struct kvl_glu_args){ .y = hidden, .gate = hidden, .n = all, .act = KVL_ACT_GELU }));
    *out = hidden;
    return KVL_OK;
}

/* KVzapModel.forward() of one layer. */
static int net_score(const struct kvl_pctx *ctx, const void *memory, int32_t layer, const float *x,
                     int32_t n, float *score)
{
    const struct net *net = memory;
    const float *w = net_layer(net, layer);
    int32_t n_out = net->n_out, n_in = net->n_embd;
    float *y, *hidden;
    KVL_TRY(kvl_scratch_get(ctx, (size_t)n * (size_t)n_out, &y));
    if (net->hidden) {
        KVL_TRY(net_hidden(ctx, net, w, x, n, &hidden));
        w += (size_t)net->hidden * ((size_t)n_in + 1);
        n_in = net->hidden;
        x = hidden;
    }
    KVL_TRY(kvl_product(ctx, x, n, w, n_out, n_in, y));
    const float *bias = w + (size_t)n_out * (size_t)n_in;
    for (int32_t h = 0; h < n_out; h++)
        for (int32_t i = 0; i < n; i++)
            score[(size_t)h * (size_t)n + (size_t)i] =
                y[(size_t)i * (size_t)n_out + (size_t)h] + bias[h];
    return KVL_OK;
}

/* Another file's weights are another result: its sum is an option, which a log gives back. */
static int net_sum(const struct kvl_tensors *t, const char *path, char *option,
                   char is[KVL_TABLES_SUM], struct kvl_err *err)
{
    kvl_tensors_sum(t, is);
    if (option[0] && strcmp(option, is) != 0)
        return kvl_fail(err, KVL_EINVAL,
                        "%s: the checksum is %s, weights_sum=%s is another file's; want that "
                        "file, or no weights_sum",
                        path, is, option);
    memcpy(option, is, KVL_TABLES_SUM);
    return KVL_OK;
}

/* ---- plan ---------------------------------------------------------------------------------------------- */

int kvl_plan_input_net(struct kvl_plan *plan, const char *path, char *sum, int32_t *key)
{
    struct kvl_tensors *t;
    struct net net = { 0 };
    char is[KVL_TABLES_SUM];
    int rc = kvl_tensors_open(path, &t, plan->err);
    if (rc != KVL_OK) return kvl_fail_at(plan->err, rc, "weights");
    rc = net_sum(t, path, sum, is, plan->err);
    if (rc == KVL_OK) rc = net_sizes(t, path, plan->shape, &net, plan->err);
    if (rc == KVL_OK) rc = net_check(t, path, &net, plan->err);
    kvl_tensors_close(t);
    KVL_TRY(rc);
    /* A policy does not see the layers of a window, for which there are networks too. */
    if (net.n_layers < plan->shape->n_layers)
        return kvl_fail(plan->err, KVL_EINVAL, "%s: networks of %d layers, the model has %d", path,
                        net.n_layers, plan->shape->n_layers);
    *key = (int32_t)(strtoull(is, NULL, 16) & INT32_MAX);
    size_t floats = (size_t)net.n_layers * net_layer_floats(&net);
    return kvl_plan_inputs(plan,
                           &(struct kvl_input_scorer){ .key = *key,
                                                       .bytes = sizeof net + floats * sizeof(float),
                                                       .from = path,
                                                       .load = net_load,
                                                       .score = net_score });
}
