/* check_cost.h - budgets are kept, bytes counted, memory given back. */
#ifndef KVL_TESTS_CHECK_COST_H
#define KVL_TESTS_CHECK_COST_H

#include "conformance/fixture.h"

/* Decides once and lets the cache grow by what comes later. */
static bool grows(const struct kvl_policy *p)
{
    return (p->caps & KVL_CAP_EVICTS) && !(p->caps & KVL_CAP_SELECTS) && !p->evict;
}

static bool saves(const struct kvl_policy *p)
{
    return (p->caps & (KVL_CAP_EVICTS | KVL_CAP_SELECTS)) != 0;
}

/* Positions that the lanes read, dense layers left out: the most of one, or the mean of all where lanes
 * may differ, rounded up; -1 when all are dense. */
static int32_t most_read(const struct rig *r, const struct rig_session *rs, int32_t n_tok,
                         bool ragged)
{
    const struct kvl_shape *sh = rig_shape(r);
    const uint8_t *hit, *dense;
    int32_t most = -1, sum = 0, n_lanes = 0;
    kvl_session_probe_hits(rs->s, &hit, &dense);
    for (int32_t l = 0; l < sh->n_layers; l++)
        for (int32_t h = 0; h < sh->n_kv_heads; h++) {
            const uint8_t *row = hit + (size_t)(l * sh->n_kv_heads + h) * (size_t)n_tok;
            int32_t n = 0;
            for (int32_t i = 0; i < n_tok; i++) n += row[i];
            assert_true(row[n_tok - 1]); /* the current token is always attended */
            if (dense[l]) continue;
            most = KVL_MAX(most, n);
            sum += n;
            n_lanes++;
        }
    return ragged && n_lanes ? (sum + n_lanes - 1) / n_lanes : most;
}

static void check_budget_is_kept(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        struct rig_session rs = rig_start(&f.r, &f.run);
        float *logits = rig_logits(&f.r, 1);
        for (int32_t t = 0; t < N_STEPS; t++) {
            int32_t at = f.run.n_ctx + t;
            int32_t limit = f.run.budget + (grows(f.run.policy) ? t : 0);
            kvl_session_reset_counters(rs.s);
            rig_decode_probed(&f.r, &rs, f.id[at], logits);
            bool ragged = (f.run.policy->caps & KVL_CAP_RAGGED) != 0;
            int32_t most = most_read(&f.r, &rs, at + 1, ragged);
            if (saves(f.run.policy) && (most < 1 || most > limit))
                fail_msg("step %d: a lane reads %d tokens, want 1 to %d", t, most, limit);
            expect_counters(&f, &rs, at + 1);
        }
        kvl_free(logits);
        rig_end(&rs);
        close_model(&f);
    }
}

/* Blocks of a sequence: as many as its slots fill, lane by lane, and no more in the store. */
static void expect_compact(struct fixture *f, const struct rig_session *rs)
{
    const struct kvl_shape *sh = rig_shape(&f->r);
    struct kvl_seq_stats seq;
    struct kvl_store_stats store;
    int64_t n_blocks = 0, n_slots = 0;
    int32_t block_tok = kvl_store_desc(kvl_engine_store(f->r.engine))->block_tok;
    for (int32_t l = 0; l < sh->n_layers; l++)
        for (int32_t h = 0; h < sh->n_kv_heads; h++) {
            int32_t n = kvl_seq_len(kvl_session_seq(rs->s), l, h);
            n_slots += n;
            n_blocks += (n + block_tok - 1) / block_tok;
        }
    kvl_seq_stats(kvl_session_seq(rs->s), &seq);
    kvl_store_stats(kvl_engine_store(f->r.engine), &store);
    assert_int_equal(seq.n_slots, n_slots);
    assert_int_equal(seq.n_blocks, n_blocks);
    assert_int_equal(store.n_blocks, n_blocks);
    assert_int_equal(kvl_kv_seals(kv_type(f)), seq.n_sealed > 0);
    assert_int_equal(seq.physical_bytes, (size_t)(n_blocks - seq.n_sealed) * store.block_bytes +
                                             (size_t)seq.n_sealed * store.sealed_block_bytes);
}

/* An evicting method gives memory back; one that only selects keeps every token. */
static void check_memory(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        const struct kvl_shape *sh = rig_shape(&f.r);
        const struct kvl_policy *p = f.run.policy;
        struct rig_session rs = rig_start(&f.r, &f.run);
        float *logits = rig_logits(&f.r, N_STEPS);
        expect_compact(&f, &rs);
        rig_decode(&f.r, &rs, f.id + f.run.n_ctx, N_STEPS, logits);
        expect_compact(&f, &rs);
        bool evicts = (p->caps & KVL_CAP_EVICTS) && !(p->caps & KVL_CAP_SELECTS);
        int32_t limit = f.run.budget + (grows(p) ? N_STEPS : 0), sum = 0, n_lanes = 0;
        for (int32_t l = 0; l < sh->n_layers; l++)
            for (int32_t h = 0; h < sh->n_kv_heads; h++) {
                int32_t n = kvl_seq_len(kvl_session_seq(rs.s), l, h);
                if (sh->window && sh->window[l]) {
                    assert_true(n >= sh->window[l] - 1 && n < sh->window[l] - 1 + BLOCK_TOK);
                    continue;
                }
                sum += n;
                n_lanes++;
                if (evicts && !(p->caps & KVL_CAP_RAGGED)) assert_true(n <= limit);
                if (!(p->caps & KVL_CAP_EVICTS)) assert_int_equal(n, f.run.n_ctx + N_STEPS);
            }
        if (evicts) assert_true(sum <= limit * n_lanes);
        bool may_do_both = (p->caps & KVL_CAP_EVICTS) && (p->caps & KVL_CAP_SELECTS);
        if (!may_do_both) assert_int_equal(kvl_session_counters(rs.s)->n_evicted > 0, evicts);
        kvl_free(logits);
        rig_end(&rs);
        close_model(&f);
    }
}

#endif
