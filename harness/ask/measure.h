/* measure.h - what the harness observes of an answer, never the method: evidence recall and bytes.
 *
 * Recall.  Evidence is the last evidence group of the question that is needed by then (for a key and its
 * value: the value; of an answer of several parts: the part whose turn it is, kvl_evidence.after).
 * Where a span spells the expected answer, or a part of one that has several, an answer step needs it up
 * to and including what this step is to copy: the tokens that cover the answer's bytes so far and those of
 * the expected token.  Any
 * other span is needed whole at every step.  A step is a hit when in some layer the union of the kv
 * heads attended to what it needs, of one span (ANY) or of every span (ALL); layers that the policy
 * left dense do not count unless there are no others.  Steps that need nothing (a space, an end mark)
 * are not counted.  Evidence that is needed only once some text was generated (kvl_evidence.after) is
 * needed as from the step at which the expected answer has that text; steps before it are not counted,
 * and none at all is when it never comes.
 */
#ifndef KVL_MEASURE_H
#define KVL_MEASURE_H

#include "kvl/task.h"
#include "measured.h"

enum {
    KVL_WATCH_STAGES = sizeof((struct kvl_question *)0)->evidence / sizeof(struct kvl_evidence),
    KVL_WATCH_SPANS =
        KVL_WATCH_STAGES * sizeof((struct kvl_evidence *)0)->span / sizeof(struct kvl_span),
};

/* An evidence group that steps need. */
struct kvl_watch_stage {
    enum kvl_evidence_kind kind;
    int32_t span, n_spans; /* of the watch */
    /* Text that the answer must hold before; "" = none.  first_step: of the expected answer, from which
     * on it does; needed until the next stage is. */
    char after[sizeof((struct kvl_evidence *)0)->after];
    int32_t first_step;
};

/* Positions of the evidence of a question. */
struct kvl_watch {
    int32_t *pos; /* [n], span after span */
    int32_t n;
    int32_t first[KVL_WATCH_SPANS], count[KVL_WATCH_SPANS]; /* of each span, in pos */
    int32_t n_spans;
    struct kvl_watch_stage stage[KVL_WATCH_STAGES];
    int32_t n_stages;
    /* [n_steps][n_spans]: span tokens from..to-1 are needed at this answer step */
    int32_t *from, *to;
    int32_t n_steps;
};

/* The stage whose turn it is at a step of the expected answer; NULL: none yet. */
const struct kvl_watch_stage *kvl_watch_stage_at(const struct kvl_watch *w, int32_t step);
/* Whether text of the answer tells which stage it is in. */
bool kvl_watch_reads(const struct kvl_watch *w);

/* Tokens that cover a byte of a span, for the evidence groups that count; n = 0 when there is none.
 * `answer`: tokens of q->answer. */
int kvl_watch_create(const struct kvl_sample *sample, const struct kvl_question *q,
                     const struct kvl_tokens *answer, struct kvl_watch *out, struct kvl_err *err);
void kvl_watch_free(struct kvl_watch *w);
/* Whether text [n] holds `word` with no letter or digit next to it. */
bool kvl_text_holds(const char *text, size_t n, const char *word);

int kvl_recall_create(const struct kvl_shape *shape, struct kvl_recall *out, struct kvl_err *err);
void kvl_recall_free(struct kvl_recall *r);
/* The next answer step, after the answer so far, text [n]: hit [n_layers][n_kv_heads][watch->n],
 * dense [n_layers]. */
void kvl_recall_add(struct kvl_recall *r, const struct kvl_watch *watch, const char *text, size_t n,
                    const uint8_t *hit, const uint8_t *dense);

/* Bytes of a slot and of a block without and with keys before RoPE; of sealed ones where the type seals. */
struct kvl_kv_units {
    size_t slot[2], block[2], sealed_slot[2], sealed_block[2];
};
int kvl_kv_units(const struct kvl_store *store, struct kvl_kv_units *out, struct kvl_err *err);
/* `shared_blocks`: blocks that the policy shared with the prefilled context when it was attached. */
void kvl_kv_measure(const struct kvl_session *s, const struct kvl_kv_units *units, bool raw_keys,
                    int64_t shared_blocks, struct kvl_kv_bytes *out);

#endif
