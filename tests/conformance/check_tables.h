/* check_tables.h - budgets of a policy on one context share its tables where it says that they may. */
#ifndef KVL_TESTS_CHECK_TABLES_H
#define KVL_TESTS_CHECK_TABLES_H

#include "conformance/fixture.h"
#include "engine_impl.h"

/* The policy with its append counted: hooks know no more than their context. */
static struct {
    const struct kvl_policy *policy;
    int n_replays;
} counted;

static int counted_append(struct kvl_pctx *ctx, const struct kvl_step *step, const float *k,
                          const float *v)
{
    counted.n_replays += step->replay;
    return counted.policy->append(ctx, step, k, v);
}

static struct kvl_policy counted_policy(const struct kvl_policy *policy)
{
    struct kvl_policy p = *policy;
    counted.policy = policy;
    counted.n_replays = 0;
    if (p.append) p.append = counted_append;
    return p;
}

static void expect_same_part(const struct rig_session *want, const struct rig_session *got,
                             int32_t table, int32_t layer)
{
    const struct kvl_row_table *t = want->s->host.table[table];
    int32_t n_lanes = t->decl.per_layer ? 1 : want->s->ctx.shape->n_kv_heads;
    struct kvl_rows rows[2];
    struct kvl_err err = { 0 };
    const struct rig_session *both[] = { want, got };
    for (int i = 0; i < 2; i++) {
        kvl_hook_begin(both[i]->s, &err);
        RIG_OK(&err, kvl_table_read_operand(&both[i]->s->ctx, table, layer, t->n_rows, &rows[i]));
    }
    for (int32_t row = 0; row < t->n_rows; row++)
        for (int32_t lane = 0; lane < n_lanes; lane++) {
            const void *at[2];
            for (int i = 0; i < 2; i++) at[i] = kvl_table_row(&rows[i], lane, row);
            if (memcmp(at[0], at[1], t->row_bytes) != 0)
                fail_msg("table %d, layer %d, lane %d: row %d differs", table, layer, lane, row);
        }
}

/* The same for a table of live tokens, which lies by column. */
static void expect_same_live(const struct rig_session *want, const struct rig_session *got,
                             int32_t table, int32_t layer)
{
    const struct rig_session *both[] = { want, got };
    const struct kvl_row_table *t = want->s->host.table[table];
    struct kvl_rows rows[2];
    struct kvl_err err = { 0 };
    for (int i = 0; i < 2; i++) {
        kvl_hook_begin(both[i]->s, &err);
        RIG_OK(&err, kvl_table_all(&both[i]->s->ctx, table, layer, &rows[i]));
    }
    assert_int_equal(rows[0].n_rows, rows[1].n_rows);
    for (size_t column = 0; column < t->n_lanes; column++) {
        const uint8_t *at[2];
        for (int i = 0; i < 2; i++)
            at[i] = (const uint8_t *)rows[i].part[0].data + column * rows[i].column_bytes;
        if (memcmp(at[0], at[1], (size_t)rows[0].n_rows * t->row_bytes) != 0)
            fail_msg("table %d, layer %d: column %zu differs", table, layer, column);
    }
}

static void expect_same_tables(const struct rig_session *want, const struct rig_session *got)
{
    for (int32_t i = 0; i < want->s->planned->p.n_tables; i++) {
        const struct kvl_row_decl *d = &want->s->host.table[i]->decl;
        assert_int_equal(want->s->host.table[i]->n_rows, got->s->host.table[i]->n_rows);
        for (int32_t l = 0; l < want->s->ctx.shape->n_layers; l++)
            if (d->unit == KVL_UNIT_LIVE)
                expect_same_live(want, got, i, l);
            else if (!d->at || d->at[kvl_layer_of(&want->s->ctx, l)] >= 0)
                expect_same_part(want, got, i, l);
    }
    assert_int_equal(kvl_session_meta_bytes(want->s), kvl_session_meta_bytes(got->s));
}

/* A fork of the prefilled context under a plan; `like` NULL: a plain attach. */
static struct rig_session attach_fork(struct fixture *f, const struct kvl_session *prefill,
                                      const struct kvl_planned *p, const struct rig_session *like)
{
    struct rig_session rs = { 0 };
    struct kvl_err *err = &f->r.err;
    RIG_OK(err, kvl_session_fork(prefill, &rs.s, err));
    RIG_OK(err,
           kvl_session_attach_like(rs.s, p, f->run.seed, f->run.exec, like ? like->s : NULL, err));
    return rs;
}

static void expect_same_counters(const struct rig_session *want, const struct rig_session *got)
{
    const struct kvl_counters *a = kvl_session_counters(want->s), *b = kvl_session_counters(got->s);
    assert_int_equal(a->attended_tok, b->attended_tok);
    assert_int_equal(a->kv_read_bytes, b->kv_read_bytes);
    assert_int_equal(a->index_read_bytes, b->index_read_bytes);
    assert_int_equal(a->n_evicted, b->n_evicted);
}

/* Two budgets on one context: the second takes the tables of the first, and both go on; then the first
 * again, from the second, which has gone on. */
static void check_two_budgets(struct fixture *f)
{
    struct kvl_policy policy = counted_policy(f->run.policy);
    const int32_t *id = f->id + f->run.n_ctx;
    struct kvl_err *err = &f->r.err;
    struct kvl_planned *wide, *narrow;
    struct kvl_session *prefill;
    const struct kvl_shape *sh = rig_shape(&f->r);
    size_t n_vocab = (size_t)sh->n_vocab;
    float *want = rig_logits(&f->r, N_STEPS), *got = rig_logits(&f->r, N_STEPS);
    RIG_OK(err, kvl_planned_create(&policy, sh, f->run.options, f->run.budget + 32, f->run.n_ctx,
                                   &wide, err));
    RIG_OK(err, kvl_planned_create(&policy, sh, f->run.options, f->run.budget, f->run.n_ctx,
                                   &narrow, err));
    struct kvl_observer_set set = *kvl_planned_observers(wide);
    RIG_OK(err, kvl_observer_set_merge(&set, kvl_planned_observers(narrow), err));
    RIG_OK(err, kvl_engine_observe(f->r.engine, &set, err));
    RIG_OK(err, kvl_session_create(f->r.engine, &prefill, err));
    RIG_OK(err, kvl_session_prefill(prefill, f->id, f->run.n_ctx, NULL, true, err));

    struct rig_session first = attach_fork(f, prefill, wide, NULL);
    struct rig_session plain = attach_fork(f, prefill, narrow, NULL);
    counted.n_replays = 0;
    struct rig_session taken = attach_fork(f, prefill, narrow, &first);
    bool alike = strcmp(wide->tabled.data, narrow->tabled.data) == 0;
    if (policy.caps & KVL_CAP_SHARES_META && alike) assert_int_equal(counted.n_replays, 0);
    expect_same_tables(&plain, &taken);
    rig_decode(&f->r, &first, id, 3, want);
    expect_same_tables(&plain, &taken);
    rig_decode(&f->r, &plain, id, N_STEPS, want);
    rig_decode(&f->r, &taken, id, N_STEPS, got);
    rig_expect_same(&f->r, want, got, N_STEPS, "tables built and taken");
    expect_same_tables(&plain, &taken);
    expect_same_counters(&plain, &taken);

    struct rig_session again = attach_fork(f, prefill, wide, &taken);
    rig_end(&taken); /* who gave them may go first */
    rig_decode(&f->r, &again, id, N_STEPS, want);
    rig_decode(&f->r, &first, id + 3, N_STEPS - 3, got);
    rig_expect_same(&f->r, want + 3 * n_vocab, got, N_STEPS - 3, "who gave its tables away");
    rig_end(&first);
    rig_end(&plain);
    rig_end(&again);
    kvl_session_destroy(prefill);
    kvl_planned_destroy(wide);
    kvl_planned_destroy(narrow);
    kvl_free(want);
    kvl_free(got);
}

static void check_budgets_share(void **state)
{
    struct fixture f;
    if (((const struct subject *)*state)->policy->prefill == KVL_PREFILL_OWN) return;
    for (int i = 0; i < N_MODELS; i++) {
        if (!open_model(&f, state, i)) continue;
        check_two_budgets(&f);
        close_model(&f);
    }
}

#endif
