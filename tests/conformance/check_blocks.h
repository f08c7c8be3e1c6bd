/* check_blocks.h - several tokens at once: a question under the policy. */
#ifndef KVL_TESTS_CHECK_BLOCKS_H
#define KVL_TESTS_CHECK_BLOCKS_H

#include "conformance/fixture.h"

/* Key of `pos` in the last layer after N_BLOCK tokens as one block behind the context: it depends on everything that
 * the token and those before it read.  False when the lane has lost it.  With KVL_LONG each block has a context that
 * shares nothing with the others'. */
static bool block_key(struct fixture *f, const struct rig_session *context, const int32_t *block,
                      int32_t pos, float *k)
{
    struct rig_session rs = fork_or_own(f, &f->run, context);
    int32_t last = rig_shape(&f->r)->n_layers - 1, slot;
    RIG_OK(&f->r.err, kvl_session_extend(rs.s, block, N_BLOCK, &f->r.err));
    bool live = kvl_seq_find(kvl_session_seq(rs.s), last, 0, &pos, 1, &slot) == 1;
    if (live)
        RIG_OK(&f->r.err,
               kvl_seq_read(kvl_session_seq(rs.s), last, 0, KVL_PART_K, slot, 1, k, &f->r.err));
    rig_end(&rs);
    return live;
}

/* Tokens that come later in a block cannot change what an earlier one reads. */
static void check_blocks_are_causal(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        int32_t head_dim = rig_shape(&f.r)->head_dim, other[N_BLOCK];
        float *a = rig_floats((size_t)head_dim), *b = rig_floats((size_t)head_dim);
        const int32_t *block = f.id + f.run.n_ctx;
        struct rig_session context = rig_start(&f.r, &f.run);
        for (int32_t cut = 1; cut < N_BLOCK; cut += 5) {
            memcpy(other, block, sizeof other);
            for (int32_t j = cut; j < N_BLOCK; j++) other[j] = block[j] % 200 + 10;
            /* Whether it stays may depend on what came later. */
            bool live = block_key(&f, &context, block, f.run.n_ctx + cut - 1, a);
            live = block_key(&f, &context, other, f.run.n_ctx + cut - 1, b) && live;
            if (live) assert_memory_equal(a, b, (size_t)head_dim * sizeof *a);
        }
        rig_end(&context);
        kvl_free(a);
        kvl_free(b);
        close_model(&f);
    }
}

/* A block is its tokens one after the other, up to rounding; a policy that evicts after every step
 * does so once per block, and may differ. */
static void check_block_equals_steps(void **state)
{
    struct fixture f;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        const int32_t *block = f.id + f.run.n_ctx;
        struct rig_session a = rig_start(&f.r, &f.run), b = rig_start(&f.r, &f.run);
        float *logits = rig_logits(&f.r, N_BLOCK), *want = rig_logits(&f.r, 1);
        float *got = rig_logits(&f.r, 1);
        RIG_OK(&f.r.err, kvl_session_extend(a.s, block, N_BLOCK, &f.r.err));
        assert_int_equal(kvl_session_len(a.s), f.run.n_ctx + N_BLOCK);
        rig_decode(&f.r, &b, block, N_BLOCK, logits);
        rig_decode(&f.r, &a, block + N_BLOCK, 1, got);
        rig_decode(&f.r, &b, block + N_BLOCK, 1, want);
        if (!f.run.policy->evict) rig_expect_near(&f.r, want, got, 1, 5e-3, "a block and steps");
        assert_int_equal(kvl_session_counters(a.s)->n_tokens, N_BLOCK + 1);
        kvl_free(logits);
        kvl_free(want);
        kvl_free(got);
        rig_end(&a);
        rig_end(&b);
        close_model(&f);
    }
}

#endif
