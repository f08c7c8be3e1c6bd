/* measured.h - what a run measured, before it is a record: answers, bytes, reference passes, analyses.
 *
 * Data alone; run/ fills it (answer.h, measure.h, quality.h, analysis.h say what the numbers mean).
 */
#ifndef KVL_MEASURED_H
#define KVL_MEASURED_H

#include "config.h"
#include "kvl/model.h"
#include "prompt.h"

/* Evidence recall of an answer. */
struct kvl_recall {
    int32_t stage, n_seen;  /* stage of the answer so far, steps in it */
    int32_t n_steps, n_hit; /* of these: counted, hits */
    int32_t n_layers, n_kv_heads;
    double *lane; /* [n_layers][n_kv_heads] sums over steps of the share of evidence attended */
};

/* KV bytes of one sequence as this policy alone needs them: keys before RoPE that another policy of
 * the sweep made the store keep do not count. */
struct kvl_kv_bytes {
    double logical, physical, own, meta;
};

/* One question being answered.  Tokens in `feed` are decoded first, one at a time; the step of the
 * last of them makes the first answer token. */
struct kvl_ask {
    struct kvl_session *session; /* owned */
    const int32_t *feed;         /* [n_feed], n_feed >= 1; borrowed */
    int32_t n_feed, i_feed;
    int32_t max_new;                     /* answer tokens at most */
    const struct kvl_watch *watch;       /* borrowed */
    const struct kvl_prompt *prompt;     /* borrowed: what ends an answer; NULL: nothing does */
    const struct kvl_sampling *sampling; /* borrowed; NULL: greedy */
    uint64_t stream;                     /* of its draws (sampler.h) */
    int64_t shared_blocks;               /* see kvl_kv_measure */
    /* results */
    int32_t *id; /* [n_id], room for max_new; end token not included */
    int32_t n_id;
    bool end, done;
    struct kvl_recall recall;
    uint64_t wall_ns; /* this question's share: of a step's weights as much as any other's, of the
                             rest by the bytes that its session read */
    struct kvl_err error; /* code != KVL_OK: no answer */
};

/* What was found for one question; s = step, l = layer, h = query head. */
struct kvl_quality_result {
    int32_t n_top, n_layers, n_heads;
    int32_t max_steps, n_steps; /* room for; measured */
    int32_t *pos;               /* [s] */
    uint8_t *dense;             /* [s][l] left dense by the policy */
    float *recall;              /* [top][s][l][h] with room for max_steps */
    float *mass, *error;        /* [s][l][h] */
    double *kl;                 /* [s] */
    uint8_t *same;              /* [s] */
};

/* ---- analyses ---------------------------------------------------------------------------------- */

enum { KVL_ANALYSIS_M = 8, KVL_ANALYSIS_P = 3 };

enum kvl_analysis_reduce { KVL_ANALYSIS_MAX = 0, KVL_ANALYSIS_MEAN, KVL_ANALYSIS_REDUCES };

struct kvl_analysis_want {
    bool mass, similarity, drift;
    int32_t m[KVL_ANALYSIS_M], n_m; /* ascending, different */
    int32_t lag;                    /* 1 .. KVL_ANALYSIS_LAG */
};

/* Sums over observations.  Indices: r = reduce, m, l = layer, h = query head. */
struct kvl_analysis {
    struct kvl_analysis_want want; /* as given to create */
    int32_t n_layers, n_heads;
    int64_t n_steps;
    /* mass: counts of every observation, [n_steps][l][h][KVL_ANALYSIS_P], and sums of shares */
    struct kvl_buf counts;
    double *share;   /* [l][h][KVL_ANALYSIS_P] */
    double *capture; /* [r][m][l][l] */
    double *hit;     /* [r][m][l], over n_hits steps */
    int64_t n_hits;
    double *jaccard, *kept; /* [r][m][lag - 1][l] */
    int64_t *n_pairs;       /* [lag - 1] */
    struct kvl_analysis_step *step;
};

/* The masses that are looked for: 0.90, 0.95, 0.99. */
extern const double kvl_analysis_mass[KVL_ANALYSIS_P];
const char *kvl_analysis_reduce_name(enum kvl_analysis_reduce r);

#endif
