/* Figures of other programs on the same GPU, beside ours. */
#include "bench_goals.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* The best backend's seconds for attention of one layer, or a ratio where there is no variant; 0: there is none. */
static double peers_best(const struct bench *b, const char *what, const char *variant,
                         int32_t depth)
{
    const struct bench_goals *g = (const void *)b; /* its first member */
    const char *member = variant ? "seconds" : "ratio";
    double best = 0;
    size_t i;
    const json_t *o;
    json_array_foreach(g->peers, i, o)
    {
        const char *how = json_string_value(json_object_get(o, "variant"));
        double v = json_number_value(json_object_get(o, member));
        if (strcmp(json_string_value(json_object_get(o, "what")), what) != 0) continue;
        if (variant && !(how && strcmp(how, variant) == 0)) continue;
        if (json_integer_value(json_object_get(o, "depth_tok")) != depth || !(v > 0)) continue;
        if (best == 0 || v < best) best = v;
    }
    return best;
}

int bench_peers_read(struct bench_goals *g, const char *path)
{
    struct bench *b = &g->bench;
    char *text = NULL;
    size_t cap = 0;
    int rc = KVL_OK;
    FILE *f = fopen(path, "re");
    if (!f)
        return kvl_fail(b->err, KVL_EIO, "--peer-json: %s: cannot open: %s", path, strerror(errno));
    g->peers = json_array();
    b->peer = peers_best;
    for (int n = 1; rc == KVL_OK && getline(&text, &cap, f) > 0; n++) {
        json_t *o = json_loads(text, 0, NULL);
        if (!json_is_string(json_object_get(o, "what")) || json_array_append(g->peers, o) != 0)
            rc = kvl_fail(b->err, KVL_EINVAL,
                          "--peer-json: %s:%d: want lines of tests/bench/torch_attention.py or "
                          "bench_cuda_attn",
                          path, n);
        json_decref(o);
    }
    free(text);
    fclose(f);
    return rc;
}
