/* Sizes of weights, from the table of tensors alone. */
#include "model_fits.h"

#include "kvl/gguf.h"

#include <stdio.h>

struct room {
    int64_t bytes, weights; /* weights: how many there are */
};

static struct room room_of(const struct kvl_gguf *g)
{
    struct room r = { 0 };
    for (int64_t i = 0; i < kvl_gguf_n_tensors(g); i++) {
        const struct kvl_gguf_tensor *t = kvl_gguf_tensor_at(g, i);
        r.bytes += (int64_t)t->bytes;
        r.weights += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
    }
    return r;
}

/* The first of the usual types, from large to small, in which so many weights fit. */
static void room_advice(const struct room *r, int64_t free_bytes, char *out, size_t cap)
{
    static const struct {
        const char *name;
        double bits; /* of a weight, scales included; the mixed types as they are mixed */
    } type[] = { { "BF16", 16 },    { "Q8_0", 8.5 },   { "Q6_K", 6.6 },
                 { "Q5_K_M", 5.7 }, { "Q4_K_M", 4.9 }, { "Q3_K_M", 3.9 } };
    snprintf(out, cap, "want a smaller model or more memory");
    for (size_t i = 0; i < sizeof type / sizeof type[0]; i++) {
        double bytes = (double)r->weights * type[i].bits / 8;
        if (bytes >= (double)r->bytes || bytes > (double)free_bytes) continue;
        snprintf(out, cap, "want a GGUF file of it as %s (about %.1f GiB) or smaller", type[i].name,
                 bytes / 0x1p30);
        return;
    }
}

int kvl_model_room(const char *path, int64_t free_bytes, struct kvl_err *err)
{
    struct kvl_gguf *g = NULL;
    struct kvl_err ignored = { 0 };
    char advice[96];
    if (free_bytes <= 0 || kvl_gguf_map(path, &g, &ignored) != KVL_OK) return KVL_OK;
    struct room r = room_of(g);
    kvl_gguf_close(g);
    if (r.bytes <= free_bytes) return KVL_OK;
    room_advice(&r, free_bytes, advice, sizeof advice);
    return kvl_fail(err, KVL_ENOMEM,
                    "%s: its weights take %.1f GiB, %.1f GiB of memory are free: %s", path,
                    (double)r.bytes / 0x1p30, (double)free_bytes / 0x1p30, advice);
}
