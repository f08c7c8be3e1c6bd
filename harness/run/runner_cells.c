/* The cells of one protocol on a context: sessions and batches.
 *
 * All cells open their sessions in the order of the sweep and decode together, so that weights are read
 * once for all policies and budgets; an answer does not depend on its batch.  A batch decodes when
 *   - it has `batch` sessions (kvl_sweep), or
 *   - what they own (compacted copies of methods that evict, contexts that a method read itself, tables)
 *     has grown to as much as the context has, 256 MiB at least, or the store by half of what the KV
 *     limit left: memory is bounded by the context, not by the number of cells.  Tables that lie on a device
 *     are not among it.
 * A session without memory waits for the next batch; only one that is alone in its batch fails.
 *
 * When a batch fails, one cannot tell whose failure it was: its cells run again apart, and the questions
 * of the one that fails again each alone.  Budgets of a policy share tables of the context where they
 * may (kvl_session_attach_like): each takes those of the latest one before it.  Tables of a question are made for
 * each question, so that budgets come one after another within it: the one before is still in the batch. */
#include "runner_context.h"

#include "kv_held.h"
#include "machine.h"
#include "memory.h"

#include <assert.h>
#include <string.h>

/* A question of a cell.  Its answers are forks of the first one, and decode in one batch. */
struct item {
    struct kvl_cell_run *run;
    int32_t question;
    struct kvl_ask *ask; /* [n] */
    int32_t n;
};

struct batch {
    struct kvl_context *c;
    struct item item[KVL_ASK_MAX];
    int32_t n, n_asks, max;   /* items, their sessions; sessions at most */
    size_t store, heap;       /* bytes of both when the batch was empty */
    size_t room, kv_room;     /* what it may add: all in all, and to a store with a limit */
    struct kvl_cell_run *run; /* cells begun, in order */
    int32_t n_runs, n_ended;
    struct kvl_session
        *donor; /* parent of the last cell that ended, if others may take its tables */
};

/* ---- memory ---------------------------------------------------------------------------------- */

/* Of the store. */
static size_t store_bytes(const struct kvl_context *c)
{
    struct kvl_store_stats s;
    kvl_store_stats(kvl_engine_store(c->r->engine), &s);
    return s.bytes;
}

static size_t bytes_added(size_t now, size_t before)
{
    return now > before ? now - before : 0;
}

/* The next session is the first of a batch. */
static void batch_measure(struct batch *b)
{
    struct kvl_store_stats store;
    struct kvl_seq_stats context = { 0 };
    kvl_store_stats(kvl_engine_store(b->c->r->engine), &store);
    if (b->c->session) kvl_seq_stats(kvl_session_seq(b->c->session), &context);
    b->store = store.bytes;
    b->heap = (size_t)kvl_heap_bytes();
    b->room = kvl_memory_room(context.physical_bytes);
    b->kv_room = SIZE_MAX;
    if (store.limit_bytes > 0)
        b->kv_room = (store.limit_bytes - KVL_MIN(store.bytes, store.limit_bytes)) / 2;
}

/* Tables are in the heap, and may be larger than the keys that they are made of.  A limit of keys and values does not
 * count them. */
static bool batch_full(const struct batch *b)
{
    size_t kv = bytes_added(store_bytes(b->c), b->store);
    size_t all = kv + bytes_added((size_t)kvl_heap_bytes(), b->heap);
    return b->n_asks == b->max || all >= b->room || (kv > 0 && kv >= b->kv_room);
}

/* ---- sessions -------------------------------------------------------------------------------- */

static int cell_attach(const struct kvl_cell_run *run, const struct kvl_session *from,
                       uint64_t seed, const struct kvl_session *like, struct kvl_session **out,
                       struct kvl_err *err)
{
    struct kvl_session *s;
    KVL_TRY(kvl_session_fork(from, &s, err));
    int rc = kvl_session_attach_like(s, run->cell->planned, seed, KVL_EXEC_REAL, like, err);
    if (rc == KVL_OK)
        *out = s;
    else
        kvl_session_destroy(s);
    return rc;
}

static bool same_policy(const struct kvl_cell_run *a, const struct kvl_cell_run *b)
{
    return a != b && a->cell->policy == b->cell->policy;
}

/* The latest session of the batch that the policy has on this prompt, at another budget. */
static const struct kvl_session *prompt_donor(const struct batch *b, const struct item *it)
{
    for (int32_t i = b->n; i-- > 0;)
        if (b->item[i].question == it->question && same_policy(b->item[i].run, it->run))
            return b->item[i].ask ? b->item[i].ask->session : NULL;
    return NULL;
}

static const struct kvl_session *parent_donor(const struct batch *b, const struct kvl_cell_run *run)
{
    for (int32_t i = b->n_runs; i-- > b->n_ended;)
        if (b->run[i].parent && same_policy(&b->run[i], run)) return b->run[i].parent;
    return b->donor;
}

static int prompt_make(struct kvl_context *c, const struct kvl_context_question *q,
                       const struct kvl_session *context, struct kvl_session **out)
{
    struct kvl_session *s;
    if (*out) return KVL_OK;
    KVL_TRY(kvl_session_fork(context, &s, c->err));
    int rc = KVL_OK;
    if (q->tokens.n > 1)
        rc = kvl_session_prefill(s, q->tokens.id, q->tokens.n - 1, NULL, false, c->err);
    if (rc == KVL_OK)
        *out = s;
    else
        kvl_session_destroy(s);
    return rc;
}

/* question_in_prefill: the context with the question but its last token, once for all policies. */
static int context_prompt(struct kvl_context *c, struct kvl_context_question *q)
{
    return prompt_make(c, q, c->session, &q->prompt);
}

/* What reference passes compare with: the same tokens, read densely over keys and values of the reference type. */
static int context_reference(struct kvl_context *c, struct kvl_context_question *q,
                             const struct kvl_session **out)
{
    struct kvl_runner *r = c->r;
    const struct kvl_tokens *t = &c->sample.tokens;
    double ns;
    if (!r->reference) {
        KVL_TRY(context_prompt(c, q));
        *out = q->prompt;
        return KVL_OK;
    }
    if (!c->reference)
        KVL_TRY(kvl_prefill(r->reference, &r->snapshots, t->id, t->n, &c->reference, &ns, c->err));
    KVL_TRY(prompt_make(c, q, c->reference, &q->reference));
    *out = q->reference;
    return KVL_OK;
}

/* The context with the first question but its last token. */
static int turn_first(struct kvl_cell_run *run, struct kvl_err *err)
{
    struct kvl_context *c = run->c;
    struct kvl_context_question *q = &c->question[0];
    if (!run->own) {
        KVL_TRY(context_prompt(c, q));
        return cell_attach(run, q->prompt, c->seed, NULL, &run->turn, err);
    }
    KVL_TRY(kvl_session_fork(run->parent, &run->turn, err));
    if (q->tokens.n == 1) return KVL_OK;
    return kvl_session_extend(run->turn, q->tokens.id, q->tokens.n - 1, err);
}

/* What follows it: the end of the question, its right answer, the next question but its last token. */
static int turn_next(struct kvl_cell_run *run, struct kvl_err *err)
{
    const struct kvl_context *c = run->c;
    const struct kvl_context_question *q = &c->question[run->n_turns - 1];
    struct kvl_tokens t = { 0 };
    int32_t *id = NULL;
    int rc =
        kvl_prompt_turn(kvl_group_prompt(c->r->work, c->g), &c->sample, run->n_turns - 1, &t, err);
    if (rc == KVL_OK) {
        assert(t.id[t.n - 1] == q[1].turn_last);
        id = kvl_alloc((size_t)t.n, sizeof *id);
        if (!id) rc = kvl_fail(err, KVL_ENOMEM, "out of memory for a turn");
    }
    if (rc == KVL_OK) {
        id[0] = run->n_turns > 1 ? q->turn_last : q->tokens.id[q->tokens.n - 1];
        memcpy(id + 1, t.id, (size_t)(t.n - 1) * sizeof *id);
        rc = kvl_session_extend(run->turn, id, t.n, err);
    }
    kvl_free(id);
    kvl_tokens_free(&t);
    return rc;
}

/* multi_turn: the session of the turn before is read on, or, where that is too far already, once more from
 * the beginning. */
static int cell_turn(struct kvl_cell_run *run, int32_t question, struct kvl_err *err)
{
    int rc = KVL_OK;
    if (run->n_turns > question + 1) run->n_turns = 0;
    while (rc == KVL_OK && run->n_turns <= question) {
        if (run->n_turns == 0) {
            kvl_session_destroy(run->turn);
            run->turn = NULL;
        }
        rc = run->n_turns == 0 ? turn_first(run, err) : turn_next(run, err);
        run->n_turns = rc == KVL_OK ? run->n_turns + 1 : 0;
    }
    return rc;
}

/* The session of one question, up to the tokens that are decoded. */
static int item_session(struct item *it, const struct kvl_session *like)
{
    struct kvl_cell_run *run = it->run;
    struct kvl_context *c = run->c;
    struct kvl_context_question *q = &c->question[it->question];
    struct kvl_ask *a = it->ask;
    if (run->cell->protocol == KVL_QUESTION_IN_PREFILL && !run->own) {
        KVL_TRY(context_prompt(c, q));
        uint64_t seed = kvl_seed_mix(c->seed, (uint64_t)it->question);
        KVL_TRY(cell_attach(run, q->prompt, seed, like, &a->session, &a->error));
        a->shared_blocks = kvl_runner_shared_blocks(a->session);
        return KVL_OK;
    }
    if (run->cell->protocol == KVL_MULTI_TURN) {
        KVL_TRY(cell_turn(run, it->question, &a->error));
        KVL_TRY(kvl_session_fork(run->turn, &a->session, &a->error));
        a->shared_blocks = kvl_runner_shared_blocks(a->session);
        return KVL_OK;
    }
    a->shared_blocks = run->parent_shared;
    KVL_TRY(kvl_session_fork(run->parent, &a->session, &a->error));
    if (run->cell->protocol == KVL_QUESTION_AS_DECODE || q->tokens.n == 1) return KVL_OK;
    return kvl_session_extend(a->session, q->tokens.id, q->tokens.n - 1, &a->error);
}

static void item_close(struct item *it)
{
    for (int32_t i = 0; it->ask && i < it->n; i++) kvl_ask_free(&it->ask[i]);
    kvl_free(it->ask);
    it->ask = NULL;
}

/* An answer before its session. */
static struct kvl_ask item_ask(const struct item *it, int32_t answer)
{
    const struct kvl_context *c = it->run->c;
    const struct kvl_context_question *q = &c->question[it->question];
    const struct kvl_sampling *how = &c->r->work->sweep->sampling;
    bool as_decode = it->run->cell->protocol == KVL_QUESTION_AS_DECODE;
    bool turn = it->run->cell->protocol == KVL_MULTI_TURN && it->question > 0;
    return (struct kvl_ask){
        .feed = turn        ? &q->turn_last
                : as_decode ? q->tokens.id
                            : q->tokens.id + q->tokens.n - 1,
        .n_feed = as_decode ? q->tokens.n : 1,
        .max_new = q->q->max_new_tok,
        .watch = &q->watch,
        .prompt = kvl_group_prompt(c->r->work, c->g),
        .sampling = how,
        .stream = kvl_sampler_stream(how, c->seed, it->question, answer),
        .error = it->run->failed,
    };
}

static int item_room(struct item *it)
{
    struct kvl_context *c = it->run->c;
    it->ask = kvl_alloc((size_t)it->n, sizeof *it->ask);
    if (!it->ask) return kvl_fail(c->err, KVL_ENOMEM, "out of memory for %d answers", it->n);
    for (int32_t i = 0; i < it->n; i++) it->ask[i] = item_ask(it, i);
    if (it->ask->error.code != KVL_OK) return KVL_OK;
    for (int32_t i = 0; i < it->n; i++)
        KVL_TRY(kvl_ask_begin(&it->ask[i], kvl_model_shape(c->r->work->model), c->err));
    return KVL_OK;
}

/* Failures of a policy are the sample's; what ends the process, and failures outside of it, are the
 * caller's. */
static int item_open(struct item *it, const struct kvl_session *like)
{
    struct kvl_context *c = it->run->c;
    uint64_t t0 = kvl_now_ns();
    KVL_TRY(item_room(it));
    struct kvl_ask *a = it->ask;
    if (a->error.code != KVL_OK) return KVL_OK;
    int rc = item_session(it, like);
    for (int32_t i = 1; i < it->n && rc == KVL_OK; i++) {
        it->ask[i].shared_blocks = a->shared_blocks;
        rc = kvl_session_fork(a->session, &it->ask[i].session, &a->error);
    }
    if (rc != KVL_OK && a->error.code == KVL_OK) {
        a->error = *c->err; /* the prompt of a question: it ends this sample alone */
        kvl_err_clear(c->err);
    }
    a->wall_ns = kvl_now_ns() - t0;
    if (kvl_runner_ends(a->error.code)) return kvl_fail(c->err, a->error.code, "%s", a->error.msg);
    return KVL_OK;
}

/* ---- decoding -------------------------------------------------------------------------------- */

/* An answer whose bytes are not those that its keys and values claim is none. */
static void item_held(struct item *it)
{
    const struct kvl_store *store = kvl_engine_store(it->run->c->r->engine);
    for (int32_t k = 0; k < it->n && it->ask->error.code == KVL_OK; k++)
        (void)kvl_kv_held(it->ask[k].session, kvl_store_desc(store), &it->ask->error);
}

/* KVL_OK: each has its answer or its error.  Else `why` says what failed for all of them. */
static int items_decode(struct batch *b, int32_t first, int32_t last, struct kvl_err *why)
{
    struct kvl_ask *ask[KVL_ASK_MAX];
    int32_t n = 0, n_items = 0;
    for (int32_t i = first; i < last; i++) {
        bool ok = b->item[i].ask->error.code == KVL_OK;
        for (int32_t k = 0; ok && k < b->item[i].n; k++) ask[n++] = &b->item[i].ask[k];
        n_items += ok;
    }
    if (n == 0) return KVL_OK;
    int rc = kvl_ask_decode(ask, n, b->c->r->work->model, &b->c->r->room, why);
    for (int32_t i = first; i < last && rc == KVL_OK; i++) item_held(&b->item[i]);
    if (rc == KVL_OK || kvl_runner_ends(rc) || n_items > 1) return rc;
    ask[0]->error = *why;
    ask[0]->error.code = rc;
    return KVL_OK;
}

/* What is recorded makes room for those that run again. */
static int items_record(struct batch *b, int32_t first, int32_t last)
{
    for (int32_t i = first; i < last; i++)
        KVL_TRY(
            kvl_sample_append(b->item[i].run, b->item[i].question, b->item[i].ask, b->item[i].n));
    for (int32_t i = first; i < last; i++) item_close(&b->item[i]);
    return KVL_OK;
}

static void items_free(struct batch *b, int32_t first, int32_t last)
{
    for (int32_t i = first; i < last; i++)
        if (b->item[i].ask->error.code == KVL_OK) item_close(&b->item[i]);
}

/* Where the part of first .. last - 1 ends that runs again together. */
static int32_t items_part(const struct batch *b, int32_t first, int32_t last, bool by_cell)
{
    int32_t end = first + 1;
    while (by_cell && end < last && b->item[end].run == b->item[first].run) end++;
    return end;
}

/* Answers and records; those with an error have no answer. */
static int items_run(struct batch *b, int32_t first, int32_t last)
{
    struct kvl_err why = { 0 };
    int rc = items_decode(b, first, last, &why);
    if (rc == KVL_OK) return items_record(b, first, last);
    if (kvl_runner_ends(rc)) return kvl_fail(b->c->err, rc, "%s", why.msg);
    items_free(b, first, last);
    bool by_cell = rc != KVL_ENOMEM && b->item[first].run != b->item[last - 1].run;
    for (int32_t i = first, end; i < last; i = end) {
        end = items_part(b, i, last, by_cell);
        for (int32_t j = i; j < end; j++)
            if (!b->item[j].ask) KVL_TRY(item_open(&b->item[j], NULL));
        KVL_TRY(items_run(b, i, end));
    }
    return KVL_OK;
}

/* ---- a cell ---------------------------------------------------------------------------------- */

static bool sample_missing(const struct kvl_context *c, size_t cell, int32_t question)
{
    const struct kvl_progress_cell *p = &c->r->state->cell[cell];
    return !p->outcome[c->index * c->r->work->sweep->questions + question].have;
}

/* A policy that fails on the context fails for all its questions. */
static int cell_parent(struct kvl_cell_run *run, const struct kvl_session *like)
{
    struct kvl_context *c = run->c;
    struct kvl_err *why = &run->failed;
    int rc = KVL_OK;
    kvl_err_clear(why);
    run->prefill_ns = c->prefill_ns;
    if (run->own) {
        /* A question in its prefill is one that it reads behind the context: the same run. */
        rc = kvl_runner_stream(c->r, run->cell, c->seed, c->sample.tokens.id, c->sample.tokens.n,
                               &run->parent, &run->prefill_ns, why);
    } else if (run->cell->protocol != KVL_QUESTION_IN_PREFILL &&
               run->cell->protocol != KVL_MULTI_TURN) {
        uint64_t t0 = kvl_now_ns();
        rc = cell_attach(run, c->session, c->seed, like, &run->parent, why);
        run->parent_ns = kvl_now_ns() - t0;
        if (rc == KVL_OK) run->parent_shared = kvl_runner_shared_blocks(run->parent);
    }
    return kvl_runner_ends(rc) ? kvl_fail(c->err, rc, "%s", why->msg) : KVL_OK;
}

/* A reference pass: the question once more, tapped, beside a dense session. */
static int cell_quality(struct kvl_cell_run *run, int32_t question)
{
    struct kvl_context *c = run->c;
    struct kvl_context_question *q = &c->question[question];
    struct item it = { .run = run, .question = question, .n = 1 };
    struct kvl_session *dense = NULL;
    const struct kvl_session *reference;
    int rc = item_open(&it, NULL);
    if (rc == KVL_OK) rc = context_reference(c, q, &reference);
    if (rc == KVL_OK) rc = kvl_session_fork(reference, &dense, c->err);
    struct kvl_ask none = { 0 }, *ask = it.ask ? it.ask : &none;
    struct kvl_quality_run pass = { .prompt = ask->prompt,
                                    .policy = ask->session,
                                    .dense = dense,
                                    .feed = ask->feed,
                                    .n_feed = ask->n_feed,
                                    .max_new = ask->max_new };
    if (rc == KVL_OK)
        rc = kvl_runner_quality(c->r, run->index, c->index, question, &pass, &ask->error, c->err);
    kvl_session_destroy(dense);
    item_close(&it);
    return rc;
}

/* All its answers are recorded. */
static int cell_end(struct batch *b, struct kvl_cell_run *run)
{
    struct kvl_context *c = run->c;
    int rc = KVL_OK;
    for (int32_t q = 0; rc == KVL_OK && q < c->r->work->sweep->quality.questions; q++)
        if (kvl_state_wants_quality(c->r->state, run->index, c->index, q))
            rc = cell_quality(run, q);
    if (run->cell->policy->policy->caps & KVL_CAP_SHARES_META) {
        struct kvl_session *older = b->donor;
        b->donor = run->parent;
        run->parent = older;
    }
    kvl_session_destroy(run->parent);
    kvl_session_destroy(run->turn);
    run->parent = run->turn = NULL;
    return rc;
}

/* ---- batches --------------------------------------------------------------------------------- */

static int batch_run(struct batch *b)
{
    int rc = items_run(b, 0, b->n);
    for (int32_t i = 0; i < b->n; i++) {
        b->item[i].run->n_waiting--;
        item_close(&b->item[i]);
    }
    b->n = b->n_asks = 0;
    for (; b->n_ended < b->n_runs && rc == KVL_OK; b->n_ended++) {
        struct kvl_cell_run *run = &b->run[b->n_ended];
        if (!run->asked || run->n_waiting > 0) break;
        rc = cell_end(b, run);
    }
    batch_measure(b);
    return rc;
}

static int batch_add(struct batch *b, struct kvl_cell_run *run, int32_t question)
{
    struct item it = { .run = run, .question = question, .n = b->c->r->work->sweep->sampling.n };
    if (b->n_asks + it.n > b->max) KVL_TRY(batch_run(b));
    int rc = item_open(&it, prompt_donor(b, &it));
    if (rc == KVL_OK && it.ask->error.code == KVL_ENOMEM && b->n > 0) {
        item_close(&it);
        KVL_TRY(batch_run(b));
        rc = item_open(&it, NULL);
    }
    b->item[b->n++] = it;
    b->n_asks += it.n;
    run->n_waiting++;
    if (rc == KVL_OK && batch_full(b)) rc = batch_run(b);
    return rc;
}

/* A cell of the batch: what all its questions start from. */
static int batch_begin(struct batch *b, size_t index)
{
    struct kvl_context *c = b->c;
    struct kvl_cell_run *run = &b->run[b->n_runs++];
    *run = (struct kvl_cell_run){ .c = c, .index = index, .cell = &c->r->work->cell[index] };
    run->own = kvl_planned_own_prefill(run->cell->planned);
    KVL_TRY(cell_parent(run, parent_donor(b, run)));
    if (run->failed.code != KVL_ENOMEM || b->n == 0) return KVL_OK;
    KVL_TRY(batch_run(b));
    return cell_parent(run, NULL);
}

/* Cells first .. last - 1, which are of one policy, question by question.  Pending records of a cell are whole: a cut-off
 * context is answered again for this cell. */
static int batch_cells(struct batch *b, size_t first, size_t last)
{
    struct kvl_context *c = b->c;
    struct kvl_cell_run *run = &b->run[b->n_runs];
    int32_t n = 0, n_waiting = 0;
    for (size_t i = first; i < last; i++) {
        if (!kvl_state_wants(c->r->state, c->index, i)) continue;
        KVL_TRY(batch_begin(b, i));
        n++;
    }
    for (int32_t q = 0; q < c->sample.n_questions; q++)
        for (int32_t k = 0; k < n; k++) {
            if (!sample_missing(c, run[k].index, q)) continue;
            /* A worker is silent while answers of other budgets begin: it tells of each. */
            if (n > 1) KVL_TRY(kvl_runner_next(c->r, run[k].index, c->err));
            KVL_TRY(batch_add(b, &run[k], q));
        }
    for (int32_t k = 0; k < n; k++) {
        run[k].asked = true;
        n_waiting += run[k].n_waiting;
    }
    return n_waiting > 0 ? KVL_OK : batch_run(b);
}

static void batch_free(struct batch *b)
{
    if (!b) return;
    for (int32_t i = 0; i < b->n; i++) item_close(&b->item[i]);
    for (int32_t i = b->n_ended; i < b->n_runs; i++) {
        kvl_session_destroy(b->run[i].parent);
        kvl_session_destroy(b->run[i].turn);
    }
    kvl_session_destroy(b->donor);
    kvl_free(b->run);
    kvl_free(b);
}

/* The end of the cells from `first` on that are answered together: the budgets of a policy where each question has tables
 * of its own.  Elsewhere they start from tables of the context: a cell at a time, as its parent is its own. */
static size_t cells_end(const struct kvl_context *c, size_t first)
{
    const struct kvl_cell *cell = c->r->work->cell, *f = &cell[first];
    size_t end = first + 1;
    if (f->protocol != KVL_QUESTION_IN_PREFILL || kvl_planned_own_prefill(f->planned)) return end;
    while (end < c->g->first + c->g->n && cell[end].policy == f->policy &&
           cell[end].protocol == f->protocol)
        end++;
    return end;
}

int kvl_cells_answer(struct kvl_context *c, enum kvl_protocol protocol)
{
    struct kvl_runner *r = c->r;
    struct batch *b = kvl_alloc(1, sizeof *b);
    struct kvl_cell_run *run = kvl_alloc(c->g->n, sizeof *run);
    if (!b || !run) {
        kvl_free(b);
        kvl_free(run);
        return kvl_fail(c->err, KVL_ENOMEM, "out of memory for a batch of answers");
    }
    *b = (struct batch){ .c = c, .max = r->work->sweep->batch, .run = run };
    batch_measure(b);
    int rc = KVL_OK;
    for (size_t i = c->g->first, end; i < c->g->first + c->g->n && rc == KVL_OK; i = end) {
        end = i + 1;
        if (r->work->cell[i].protocol != protocol || !kvl_state_wants(r->state, c->index, i))
            continue;
        end = cells_end(c, i);
        rc = kvl_runner_next(r, i, c->err);
        if (rc == KVL_OK) rc = batch_cells(b, i, end);
    }
    if (rc == KVL_OK) rc = batch_run(b);
    batch_free(b);
    return rc;
}
