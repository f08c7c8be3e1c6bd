/* kvlab trace: what a policy reads and keeps, step by step, as a file that anybody can compare with. */
#include "args.h"
#include "cmds.h"
#include "crash_line.h"
#include "policy_spec.h"
#include "stats.h"
#include "stop.h"
#include "trace.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    TRACE_KEY_IDS = 0x100,
    TRACE_KEY_TEXT,
    TRACE_KEY_CONTEXT,
    TRACE_KEY_BUDGET,
    TRACE_KEY_STEPS,
    TRACE_KEY_OUT,
    TRACE_KEY_SEED,
    TRACE_KEY_NO_SCORES
};
enum { TRACE_TEXT_LIMIT = 1 << 28 };

struct trace_args {
    struct kvl_args base;
    struct kvl_model_args model;
    const char *ids, *prompt, *text, *policy, *budget, *out;
    int32_t context, steps; /* -1: not given */
    int64_t seed;
    bool no_scores;
};

static const struct argp_option trace_options[] = {
    { "ids", TRACE_KEY_IDS, "1,2,3|FILE", 0, "the tokens, BOS included: a list, or a file of ids",
      0 },
    { "prompt", 'p', "TEXT", 0, "the tokens as text", 0 },
    { "text", TRACE_KEY_TEXT, "FILE", 0, "the tokens as a text file", 0 },
    { "context", TRACE_KEY_CONTEXT, "N", 0,
      "tokens before the first step (default: all but the last)", 0 },
    { "steps", TRACE_KEY_STEPS, "N", 0, "steps (default: all tokens after the context)", 0 },
    { "policy", 'P', "NAME[:budget=B,prefill=own,OPTION=V,...]", 0, "whose choices", 0 },
    { "budget", TRACE_KEY_BUDGET, "B", 0, "tokens per lane (256), or part of the context (25%)",
      0 },
    { "seed", TRACE_KEY_SEED, "N", 0, "for policies that draw random numbers (default 0)", 0 },
    { "no-scores", TRACE_KEY_NO_SCORES, NULL, 0, "leave out the scores: they are most of a trace",
      0 },
    { "out", TRACE_KEY_OUT, "X.jsonl.zst", 0, "file to write; it must not exist", 0 },
    { 0 }
};

static int trace_number(const struct trace_args *a, const char *what, const char *text, int64_t min,
                        int64_t max, int64_t *out)
{
    if (kvl_parse_i64(text, out) == KVL_OK && *out >= min && *out <= max) return KVL_OK;
    return kvl_fail(a->base.err, KVL_EINVAL, "%s: \"%s\" is out of range, want %lld to %lld", what,
                    text, (long long)min, (long long)max);
}

static int trace_count(const struct trace_args *a, const char *what, const char *text, int64_t min,
                       int32_t *out)
{
    int64_t n;
    KVL_TRY(trace_number(a, what, text, min, INT32_MAX, &n));
    *out = (int32_t)n;
    return KVL_OK;
}

static error_t trace_parse(int key, char *arg, struct argp_state *state)
{
    struct trace_args *a = state->input;
    int rc = KVL_OK;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &a->model; break;
    case TRACE_KEY_IDS: a->ids = arg; break;
    case 'p': a->prompt = arg; break;
    case TRACE_KEY_TEXT: a->text = arg; break;
    case TRACE_KEY_CONTEXT: rc = trace_count(a, "--context", arg, 0, &a->context); break;
    case TRACE_KEY_STEPS: rc = trace_count(a, "--steps", arg, 1, &a->steps); break;
    case 'P': a->policy = arg; break;
    case TRACE_KEY_BUDGET: a->budget = arg; break;
    case TRACE_KEY_SEED: rc = trace_number(a, "--seed", arg, 0, INT64_MAX, &a->seed); break;
    case TRACE_KEY_NO_SCORES: a->no_scores = true; break;
    case TRACE_KEY_OUT: a->out = arg; break;
    case ARGP_KEY_ARG:
        rc = kvl_fail(a->base.err, KVL_EINVAL, "\"%s\": want flags only (--ids 1,2,3 ...)", arg);
        break;
    default: return ARGP_ERR_UNKNOWN;
    }
    return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
}

static const struct argp_child trace_children[] = { { &kvl_model_argp, 0, NULL, 0 }, { 0 } };
static const struct argp trace_argp = {
    .options = trace_options,
    .parser = trace_parse,
    .doc =
        "Positions that attention reads under a policy, per step, layer and head, with the scores "
        "that chose them, and positions that evictions keep.\v"
        "The context is prefilled densely (with prefill=own the policy reads it, untraced), the "
        "policy starts, and the tokens after the context are its steps, whatever the model would "
        "say.  results/README.md, \"A trace\", has the fields; zstdcat prints them.",
    .children = trace_children,
};

struct trace {
    const struct trace_args *a;
    const struct kvl_device *device;
    struct kvl_model *model;
    struct kvl_engine *engine;
    enum kvl_kv_type kv_type;
    enum kvl_prefill_type prefill_type;
    enum kvl_decode_act decode_act;
    struct kvl_policy_spec spec;
    struct kvl_planned *planned;
    struct kvl_tokens tokens;
    int32_t context, steps;
    float *logits;
    struct kvl_trace out;
    struct kvl_err *err;
};

/* ---- tokens ---------------------------------------------------------------------------------- */

/* A list holds digits, commas and white space; anything else is the name of a file. */
static int trace_ids(struct trace *t)
{
    int32_t n_vocab = kvl_model_shape(t->model)->n_vocab;
    const char *ids = t->a->ids;
    if (ids[strspn(ids, "0123456789, \t\r\n-")] == '\0')
        return kvl_ids_parse(ids, n_vocab, &t->tokens.id, &t->tokens.n, t->err);
    struct kvl_buf file = { 0 };
    KVL_TRY(kvl_read_file(ids, TRACE_TEXT_LIMIT, &file, t->err));
    int rc =
        kvl_ids_parse(file.data ? file.data : "", n_vocab, &t->tokens.id, &t->tokens.n, t->err);
    kvl_buf_free(&file);
    return rc == KVL_OK ? rc : kvl_fail_at(t->err, rc, "%s", ids);
}

static int trace_text(struct trace *t)
{
    const struct kvl_tokenizer *tokenizer = kvl_model_tokenizer(t->model);
    struct kvl_buf file = { 0 };
    if (t->a->prompt)
        return kvl_encode(tokenizer, t->a->prompt, strlen(t->a->prompt), KVL_ENCODE_BOS, &t->tokens,
                          t->err);
    KVL_TRY(kvl_read_file(t->a->text, TRACE_TEXT_LIMIT, &file, t->err));
    int rc = kvl_encode(tokenizer, file.data ? file.data : "", file.len, KVL_ENCODE_BOS, &t->tokens,
                        t->err);
    kvl_buf_free(&file);
    return rc;
}

/* Where the context ends and how many steps follow. */
static int trace_span(struct trace *t)
{
    const struct trace_args *a = t->a;
    int32_t n = t->tokens.n, least = t->spec.own ? 0 : 1;
    if (n < 2) return kvl_fail(t->err, KVL_EINVAL, "%d tokens, want at least 2", n);
    t->context = a->context < 0 ? n - 1 : a->context;
    if (t->context < least || t->context >= n)
        return kvl_fail(t->err, KVL_EINVAL, "--context: %d of %d tokens, want %d to %d", t->context,
                        n, least, n - 1);
    t->steps = a->steps < 0 ? n - t->context : a->steps;
    if (t->steps > n - t->context)
        return kvl_fail(t->err, KVL_EINVAL, "--steps: %d, but %d tokens follow the context of %d",
                        t->steps, n - t->context, t->context);
    int32_t end = t->context + t->steps, limit = kvl_model_shape(t->model)->n_ctx_train;
    if (end > limit && !a->model.allow_overlong)
        return kvl_fail(t->err, KVL_EINVAL,
                        "%d tokens, the model's context is %d: shorten them or give "
                        "--allow-overlong",
                        end, limit);
    return KVL_OK;
}

/* ---- policy ---------------------------------------------------------------------------------- */

static int trace_policy(struct trace *t)
{
    const struct trace_args *a = t->a;
    KVL_TRY(kvl_policy_spec_parse(a->model.registry, a->policy, &t->spec, t->err));
    if (!a->budget) return KVL_OK;
    if (t->spec.budget.data)
        return kvl_fail(t->err, KVL_EINVAL, "--budget %s: the policy has one already, budget=%s",
                        a->budget, t->spec.budget.data);
    return kvl_buf_adds(&t->spec.budget, a->budget);
}

static int trace_plan(struct trace *t)
{
    int32_t budget = 0;
    if (t->spec.budget.data)
        KVL_TRY(kvl_budget_parse(t->spec.budget.data, t->context, &budget, t->err));
    else if (!kvl_policy_ignores_budget(t->spec.policy))
        return kvl_fail(t->err, KVL_EINVAL, "policy \"%s\" needs a budget, want --budget 256",
                        t->a->policy);
    return (t->spec.own ? kvl_planned_create_own : kvl_planned_create)(
        t->spec.policy, kvl_model_shape(t->model), t->spec.options.data, budget, t->context,
        &t->planned, t->err);
}

static int trace_engine(struct trace *t)
{
    struct kvl_engine_desc desc = {
        .model = t->model,
        .device = t->device,
        .raw_keys = kvl_planned_raw_keys(t->planned),
        .observers = *kvl_planned_observers(t->planned),
        .max_tok = t->context + t->steps,
    };
    KVL_TRY(kvl_model_args_engine(&t->a->model, &desc, t->err));
    t->kv_type = desc.kv_type;
    t->prefill_type = desc.prefill_type;
    t->decode_act = desc.decode_act;
    t->logits = kvl_alloc((size_t)kvl_model_shape(t->model)->n_vocab, sizeof *t->logits);
    if (!t->logits) return kvl_fail(t->err, KVL_ENOMEM, "out of memory for logits");
    KVL_TRY(kvl_engine_create(&desc, &t->engine, t->err));
    kvl_engine_set_stop(t->engine, kvl_stop_flag());
    return KVL_OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

static int trace_steps(struct trace *t, struct kvl_session *s)
{
    int32_t n_vocab = kvl_model_shape(t->model)->n_vocab;
    for (int32_t i = 0; i < t->steps; i++) {
        int32_t pos = t->context + i;
        KVL_TRY(kvl_session_decode(&s, 1, &t->tokens.id[pos], t->logits, t->err));
        double nll = pos + 1 < t->tokens.n ? kvl_nll(t->logits, n_vocab, t->tokens.id[pos + 1])
                                           : (double)NAN;
        int32_t index = t->spec.own && !t->spec.policy->prefill_mask ? pos : i;
        KVL_TRY(kvl_trace_step(&t->out, index, pos, t->tokens.id[pos],
                               kvl_argmax(t->logits, n_vocab), nll, t->err));
    }
    return kvl_log_commit(t->out.log, t->err);
}

/* What a policy does when it starts on a shared prefill belongs to the trace; what it reads of a context
 * of its own does not. */
static int trace_session(struct trace *t, struct kvl_session *s)
{
    if (!t->spec.own)
        KVL_TRY(kvl_session_prefill(s, t->tokens.id, t->context, NULL, false, t->err));
    if (!t->spec.own) kvl_trace_session(&t->out, s);
    KVL_TRY(kvl_session_attach(s, t->planned, (uint64_t)t->a->seed, KVL_EXEC_REAL, t->err));
    if (t->spec.own && t->context > 0)
        KVL_TRY(kvl_session_prefill(s, t->tokens.id, t->context, NULL, false, t->err));
    if (t->spec.own) kvl_trace_session(&t->out, s);
    return trace_steps(t, s);
}

static int trace_records(struct trace *t)
{
    struct kvl_trace_info info = { .model = t->model,
                                   .planned = t->planned,
                                   .budget = t->spec.budget.data ? t->spec.budget.data : "-",
                                   .kv_type = t->kv_type,
                                   .prefill_type = t->prefill_type,
                                   .decode_act = t->decode_act,
                                   .seed = (uint64_t)t->a->seed,
                                   .id = t->tokens.id,
                                   .n = t->tokens.n,
                                   .context_tok = t->context,
                                   .n_steps = t->steps };
    struct kvl_session *s;
    t->out.scores = !t->a->no_scores;
    KVL_TRY(kvl_trace_begin(&t->out, &info, t->err));
    KVL_TRY(kvl_session_create(t->engine, &s, t->err));
    kvl_guard_policy(t->spec.policy->name);
    int rc = trace_session(t, s);
    kvl_guard_policy(NULL);
    kvl_session_destroy(s);
    return rc;
}

/* A trace that is cut off is no trace. */
static int trace_file(struct trace *t)
{
    const char *out = t->a->out;
    struct stat st;
    if (stat(out, &st) == 0)
        return kvl_fail(t->err, KVL_EINVAL, "%s: exists already, want a new file", out);
    KVL_TRY(kvl_log_open(out, NULL, NULL, NULL, &t->out.log, t->err));
    int rc = trace_records(t);
    int closed = kvl_log_close(t->out.log, rc == KVL_OK ? t->err : NULL);
    if (rc == KVL_OK) rc = closed;
    if (rc != KVL_OK) unlink(out);
    return rc;
}

static int trace_run(struct trace *t)
{
    const struct trace_args *a = t->a;
    if ((a->ids != NULL) + (a->prompt != NULL) + (a->text != NULL) != 1)
        return kvl_fail(t->err, KVL_EINVAL,
                        "want one of --ids 1,2,3, --prompt TEXT and --text FILE");
    if (!a->policy) return kvl_fail(t->err, KVL_EINVAL, "no policy, want --policy NAME");
    if (!a->out) return kvl_fail(t->err, KVL_EINVAL, "no file, want --out X.jsonl.zst");
    KVL_TRY(trace_policy(t));
    KVL_TRY(a->ids ? trace_ids(t) : trace_text(t));
    KVL_TRY(trace_span(t));
    KVL_TRY(trace_plan(t));
    KVL_TRY(trace_engine(t));
    kvl_stop_install();
    KVL_TRY(trace_file(t));
    printf(
        "%s: %d steps of %s after %d tokens: %lld reads, %lld lists of scores, %lld evictions of "
        "a lane\n",
        a->out, t->steps, t->spec.policy->name, t->context, (long long)t->out.n_reads,
        (long long)t->out.n_scores, (long long)t->out.n_keeps);
    return KVL_OK;
}

int cmd_trace(int argc, char **argv, struct kvl_err *err)
{
    struct trace_args a = { .context = -1, .steps = -1 };
    struct trace t = { .a = &a, .err = err };
    bool done;
    a.model.args = &a.base;
    KVL_TRY(kvl_registry_create(&a.model.registry, err));
    int rc = kvl_args_parse(&trace_argp, argc, argv, &a, &done, err);
    if (rc == KVL_OK && !done) rc = kvl_model_args_open(&a.model, &t.device, &t.model, err);
    if (rc == KVL_OK && !done) rc = trace_run(&t);
    kvl_engine_destroy(t.engine);
    kvl_planned_destroy(t.planned);
    kvl_policy_spec_free(&t.spec);
    kvl_tokens_free(&t.tokens);
    kvl_free(t.logits);
    kvl_model_close(t.model);
    kvl_registry_destroy(a.model.registry);
    return rc;
}
