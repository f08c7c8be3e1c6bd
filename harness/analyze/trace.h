/* trace.h - what a policy chose, as records: positions read per step, layer and query head, the scores
 * that decided, positions kept by evictions.  For comparison with other implementations.
 *
 * Records are those of "A trace" in results/README.md, in a log of their own.
 * Thread-safe: no.
 */
#ifndef KVL_TRACE_H
#define KVL_TRACE_H

#include "kvl/model.h"
#include "log.h"

struct kvl_trace {
    struct kvl_log *log; /* borrowed */
    const struct kvl_shape *shape;
    bool scores; /* write them, too */
    int64_t n_reads, n_scores, n_keeps;
};

/* What is traced; strings and arrays are borrowed. */
struct kvl_trace_info {
    const struct kvl_model *model;
    const struct kvl_planned *planned;
    const char *budget; /* as written; "-" = none */
    enum kvl_kv_type kv_type;
    enum kvl_prefill_type prefill_type;
    enum kvl_decode_act decode_act;
    uint64_t seed;
    const int32_t *id; /* [n] all tokens */
    int32_t n;
    int32_t context_tok; /* those before the first step */
    int32_t n_steps;
};
int kvl_trace_begin(struct kvl_trace *t, const struct kvl_trace_info *info, struct kvl_err *err);
/* Listens to a session: attach, extend and decode append records from here on.  `t` must outlive the
 * session. */
void kvl_trace_session(struct kvl_trace *t, struct kvl_session *s);
/* After a step: the token it ran, the most likely next one, the nll of the next one (NaN: there is
 * none).  Commits now and then. */
int kvl_trace_step(struct kvl_trace *t, int32_t index, int32_t pos, int32_t id, int32_t argmax,
                   double nll, struct kvl_err *err);

#endif
