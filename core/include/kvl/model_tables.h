/* kvl/model_tables.h - what was measured of a model beforehand and lies in a file beside it, and the search for
 * filter layers.
 *
 * `kvlab tables x.gguf` writes x.tables; kvl_model_open reads it where it is there and of this very model,
 * and policies find it in struct kvl_shape.  Lines of words and numbers between blanks; what stands behind
 * # is a remark:
 *
 *     kvlab-tables 1            the format's version
 *     model HASH                kvl_model_hash of the model that was measured
 *     dense N                   layers that filter layers may leave dense, unless others are asked for
 *     kept L S ...              S(L, L), S(L, L + 1), ...: see struct kvl_tables; a line for every layer
 *     gates L G ...             of every kv head of layer L; a line for every layer, or none
 *
 * Thread-safe: yes, tables are constant once they are read.
 */
#ifndef KVL_MODEL_TABLES_H
#define KVL_MODEL_TABLES_H

#include "kvl/base.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { KVL_TABLES_VERSION = 1, KVL_TABLES_SUM = 17 };

struct kvl_tables {
    char sum[KVL_TABLES_SUM]; /* XXH3-64 of the file's text, as hex */
    int32_t n_layers, n_kv_heads;
    int32_t dense; /* layers that filter layers leave dense */
    /* [n_layers][n_layers], 0 below the diagonal, which is 1: S(l, m), what layer m keeps of its attention
     * with layer l's list, divided by what it keeps with a list of its own. */
    double *kept;
    float *gate; /* [n_layers][n_kv_heads] share of attention outside sink and window; NULL: none */
};

struct kvl_shape;

/* The file beside a model: its path with .tables in place of .gguf (else behind it).  NULL: out of memory;
 * freed with kvl_free. */
char *kvl_tables_path(const char *model_path);
/* Reads a text.  KVL_EINVAL: the line that is wrong, or what is missing; KVL_EMODEL: of another version or
 * of another model (`hash`). */
int kvl_tables_parse(const char *text, size_t len, const char *hash, const struct kvl_shape *shape,
                     struct kvl_tables **out, struct kvl_err *err);
void kvl_tables_free(struct kvl_tables *tables);

/* XXH3-64 of n bytes, as hex. */
KVL_API void kvl_table_sum(const void *data, size_t n, char sum[KVL_TABLES_SUM]);
/* What a file of tables says changes answers, so that its sum belongs to the options of who reads it.
 * Writes `sum` into the option, "" or what was given [KVL_TABLES_SUM and more]; KVL_EINVAL: another one was
 * given.  `what` names the file. */
KVL_API int kvl_table_sum_check(const char sum[KVL_TABLES_SUM], char *option, const char *what,
                                struct kvl_err *err);

/* Filter layers: each finds the tokens that the layers behind it read, up to the next (Hao et al.: OmniKV,
 * ICLR 2025); chosen by dynamic programming over how alike layers are (Deshmukh et al.: Kascade, arXiv
 * 2512.16391, for its anchor layers).  Of all sets that leave at most `dense` layers dense - those before
 * the first filter, the filters, and `wait` behind each - and serve a layer each, the one of largest sum
 * over layers of capture[filter][layer], dense layers counting 1; ties to the lower layers; exact.
 *   capture [n][n]     what layer m keeps with layer l's list, in [l][m], m > l; 0 or more
 *   filter  [n]        non-zero where one is
 *   sparse             mean capture of the layers that read a list
 * KVL_EINVAL: no set leaves so few layers dense; KVL_ENOMEM.  Allocates n * (dense + 1) states until it
 * returns. */
KVL_API int kvl_filter_layers(const double *capture, int32_t n, int32_t dense, int32_t wait,
                              uint8_t *filter, double *sparse, struct kvl_err *err);

#ifdef __cplusplus
}
#endif

#endif
