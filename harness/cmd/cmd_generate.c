/* kvlab generate: continues a prompt, greedily or drawn, under a policy if wanted. */
#include "answer.h"
#include "args.h"
#include "cmds.h"
#include "context_prefill.h"
#include "crash_line.h"
#include "policy_spec.h"
#include "progress.h"
#include "prompt.h"
#include "settings.h"
#include "show.h"
#include "stop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GENERATE_KEY_IDS = 0x100,
    GENERATE_KEY_CHAT,
    GENERATE_KEY_SYSTEM,
    GENERATE_KEY_TEMPERATURE,
    GENERATE_KEY_TOP_P,
    GENERATE_KEY_TOP_K,
    GENERATE_KEY_MIN_P,
    GENERATE_KEY_ANSWERS,
    GENERATE_KEY_SHOW,
    GENERATE_KEY_SEED,
    GENERATE_KEY_SNAPSHOTS,
    GENERATE_KEY_NO_END
};

struct generate_args {
    struct kvl_args base;
    struct kvl_model_args model;
    const char *prompt, *ids, *policy, *snapshots, *chat, *system;
    int32_t n;
    int64_t seed;
    struct kvl_sampling sampling;
    bool show_ids, no_end;
};

static const struct argp_option generate_options[] = {
    { "prompt", 'p', "TEXT", 0, "what to continue", 0 },
    { "ids", GENERATE_KEY_IDS, "1,2,3", 0, "the same as token ids, BOS included", 0 },
    { "chat", GENERATE_KEY_CHAT, "NAME", 0,
      "put the prompt in a chat template: auto (that of the model file), none (default), or a name",
      0 },
    { "system", GENERATE_KEY_SYSTEM, "TEXT", 0, "system text of the chat template", 0 },
    { NULL, 'n', "N", 0, "new tokens at most (default 32)", 0 },
    { "policy", 'P', "NAME[:budget=B,prefill=own,OPTION=V,...]", 0,
      "under which to decode (default full)", 0 },
    { "snapshots", GENERATE_KEY_SNAPSHOTS, "DIR", 0,
      "load the prefilled prompt from DIR, or save it there", 0 },
    { "temperature", GENERATE_KEY_TEMPERATURE, "T", 0,
      "draw tokens from softmax(logits / T) (default 0: the best one)", 0 },
    { "top-p", GENERATE_KEY_TOP_P, "P", 0,
      "of the fewest tokens with a probability of P together (default 1: of all)", 0 },
    { "top-k", GENERATE_KEY_TOP_K, "K", 0, "of the K best ones (default 0: of all)", 0 },
    { "min-p", GENERATE_KEY_MIN_P, "P", 0,
      "of those with at least P of the best one's probability (default 0)", 0 },
    { "answers", GENERATE_KEY_ANSWERS, "N", 0,
      "so many, as forks of the prompt that decode together (default 1)", 0 },
    { "seed", GENERATE_KEY_SEED, "N", 0,
      "of draws, and for policies that draw random numbers (default 0)", 0 },
    { "ignore-end", GENERATE_KEY_NO_END, NULL, 0, "go on after an end token", 0 },
    { "show-ids", GENERATE_KEY_SHOW, NULL, 0, "print the new ids instead of text", 0 },
    { 0 }
};

static int generate_number(const struct generate_args *a, const char *what, const char *text,
                           int64_t min, int64_t max, int64_t *out)
{
    if (kvl_parse_i64(text, out) == KVL_OK && *out >= min && *out <= max) return KVL_OK;
    return kvl_fail(a->base.err, KVL_EINVAL, "%s: \"%s\" is out of range, want %lld to %lld", what,
                    text, (long long)min, (long long)max);
}

static int generate_share(const struct generate_args *a, const char *what, const char *text,
                          double max, double *out)
{
    if (kvl_parse_f64(text, out) == KVL_OK && *out >= 0.0 && *out <= max) return KVL_OK;
    return kvl_fail(a->base.err, KVL_EINVAL, "%s: \"%s\" is out of range, want 0 to %g", what, text,
                    max);
}

/* What belongs to draws; ARGP_ERR_UNKNOWN: another one. */
static int generate_draws(struct generate_args *a, int key, const char *arg)
{
    struct kvl_sampling *s = &a->sampling;
    int64_t n = 0;
    int rc = KVL_OK;
    switch (key) {
    case GENERATE_KEY_TEMPERATURE:
        return generate_share(a, "--temperature", arg, 100.0, &s->temperature);
    case GENERATE_KEY_TOP_P: return generate_share(a, "--top-p", arg, 1.0, &s->top_p);
    case GENERATE_KEY_MIN_P: return generate_share(a, "--min-p", arg, 1.0, &s->min_p);
    case GENERATE_KEY_TOP_K:
        rc = generate_number(a, "--top-k", arg, 0, 1 << 24, &n);
        s->top_k = (int32_t)n;
        return rc;
    case GENERATE_KEY_ANSWERS:
        rc = generate_number(a, "--answers", arg, 1, KVL_ASK_MAX, &n);
        s->n = (int32_t)n;
        return rc;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static error_t generate_parse(int key, char *arg, struct argp_state *state)
{
    struct generate_args *a = state->input;
    int64_t n = 0;
    int rc = KVL_OK;
    switch (key) {
    case ARGP_KEY_INIT: state->child_inputs[0] = &a->model; break;
    case 'p': a->prompt = arg; break;
    case GENERATE_KEY_IDS: a->ids = arg; break;
    case 'n':
        rc = generate_number(a, "-n", arg, 0, INT32_MAX, &n);
        a->n = (int32_t)n;
        break;
    case GENERATE_KEY_CHAT: a->chat = arg; break;
    case GENERATE_KEY_SYSTEM: a->system = arg; break;
    case 'P': a->policy = arg; break;
    case GENERATE_KEY_SEED: rc = generate_number(a, "--seed", arg, 0, INT64_MAX, &a->seed); break;
    case GENERATE_KEY_SNAPSHOTS: a->snapshots = arg; break;
    case GENERATE_KEY_NO_END: a->no_end = true; break;
    case GENERATE_KEY_SHOW: a->show_ids = true; break;
    case ARGP_KEY_ARG:
        rc = kvl_fail(a->base.err, KVL_EINVAL, "\"%s\": want --prompt TEXT, no other words", arg);
        break;
    default:
        rc = generate_draws(a, key, arg);
        if (rc == ARGP_ERR_UNKNOWN) return ARGP_ERR_UNKNOWN;
    }
    return rc == KVL_OK ? 0 : kvl_args_fail(&a->base, rc);
}

static const struct argp_child generate_children[] = { { &kvl_model_argp, 0, NULL, 0 }, { 0 } };
static const struct argp generate_argp = {
    .options = generate_options,
    .parser = generate_parse,
    .doc = "Continuation of a prompt.  The prompt is prefilled densely but for its last "
           "token, which is the first step under the policy; with prefill=own the policy reads all "
           "of it.",
    .children = generate_children,
};

struct generate {
    struct kvl_progress progress;
    const struct generate_args *a;
    const struct kvl_device *device;
    struct kvl_model *model;
    struct kvl_engine *engine;
    struct kvl_policy_spec spec;
    struct kvl_planned *planned;
    struct kvl_snapshots snapshots;
    struct kvl_prompt chat;
    struct kvl_tokens prompt;
    struct kvl_ask_room room;
    struct kvl_err *err;
};

static int generate_prompt(struct generate *g)
{
    const struct generate_args *a = g->a;
    if (!a->prompt == !a->ids)
        return kvl_fail(g->err, KVL_EINVAL, "want one of --prompt TEXT and --ids 1,2,3");
    const char *chat = a->chat ? a->chat : "none";
    if (a->ids && strcmp(chat, "none") != 0)
        return kvl_fail(g->err, KVL_EINVAL, "--chat: goes with --prompt, not with --ids");
    KVL_TRY(kvl_prompt_open(g->model, chat, a->system, &g->chat, g->err));
    if (a->system && !g->chat.chat)
        return kvl_fail(g->err, KVL_EINVAL,
                        "--system: without a chat template; want --chat auto, or --chat NAME "
                        "where the model has none");
    if (a->ids)
        KVL_TRY(kvl_ids_parse(a->ids, kvl_model_shape(g->model)->n_vocab, &g->prompt.id,
                              &g->prompt.n, g->err));
    else
        KVL_TRY(kvl_prompt_whole(&g->chat, a->prompt, &g->prompt, g->err));
    if (g->prompt.n == 0) return kvl_fail(g->err, KVL_EINVAL, "an empty prompt, want a token");
    int64_t end = (int64_t)g->prompt.n + a->n, limit = kvl_model_shape(g->model)->n_ctx_train;
    if (end > limit && !a->model.allow_overlong)
        return kvl_fail(g->err, KVL_EINVAL,
                        "%d prompt tokens and %d new ones, the model's context is %lld: shorten it "
                        "or give --allow-overlong",
                        g->prompt.n, a->n, (long long)limit);
    return KVL_OK;
}

static int generate_plan(struct generate *g)
{
    const struct generate_args *a = g->a;
    int32_t budget = 0;
    KVL_TRY(
        kvl_policy_spec_parse(a->model.registry, a->policy ? a->policy : "full", &g->spec, g->err));
    if (g->spec.budget.data)
        KVL_TRY(kvl_budget_parse(g->spec.budget.data, g->prompt.n, &budget, g->err));
    else if (!kvl_policy_ignores_budget(g->spec.policy))
        return kvl_fail(g->err, KVL_EINVAL, "policy \"%s\" needs a budget, want %s:budget=256",
                        a->policy, g->spec.policy->name);
    return (g->spec.own ? kvl_planned_create_own : kvl_planned_create)(
        g->spec.policy, kvl_model_shape(g->model), g->spec.options.data, budget, g->prompt.n - 1,
        &g->planned, g->err);
}

/* A long prompt says how far it is read. */
static void generate_tell(const char *what, void *user)
{
    struct kvl_progress *p = user;
    if (p->tty) kvl_show_clear_line();
    fprintf(stderr, "%s%s", what, p->tty ? "" : "\n");
    fflush(stderr);
    p->shown = true;
}

static void generate_watch(struct generate *g)
{
    g->progress.tell = generate_tell;
    g->progress.tell_user = &g->progress;
    kvl_progress_name(&g->progress, "generate");
    kvl_progress_begin(&g->progress, false);
    kvl_progress_watch(&g->progress, g->engine);
}

static int generate_engine(struct generate *g)
{
    struct kvl_engine_desc desc = {
        .model = g->model,
        .device = g->device,
        .raw_keys = kvl_planned_raw_keys(g->planned),
        .observers = *kvl_planned_observers(g->planned),
        .max_tok = (int32_t)KVL_MIN((int64_t)g->prompt.n + g->a->n, INT32_MAX),
    };
    KVL_TRY(kvl_model_args_engine(&g->a->model, &desc, g->err));
    KVL_TRY(kvl_ask_room_create(kvl_model_shape(g->model)->n_vocab, &g->room, g->err));
    KVL_TRY(kvl_engine_create(&desc, &g->engine, g->err));
    kvl_engine_set_stop(g->engine, kvl_stop_flag());
    generate_watch(g);
    return KVL_OK;
}

/* Text of ids so far, less what is printed already: a token may be part of a character. */
static int generate_show(const struct generate *g, int32_t id, bool first)
{
    if (g->a->show_ids) {
        printf("%s%d", first ? "" : " ", id);
        return KVL_OK;
    }
    struct kvl_buf text = { 0 };
    int rc = kvl_decode(kvl_model_tokenizer(g->model), &id, 1, false, false, &text, g->err);
    if (text.len) fwrite(text.data, 1, text.len, stdout);
    kvl_buf_free(&text);
    fflush(stdout);
    return rc;
}

static int generate_steps(struct generate *g, struct kvl_session *s)
{
    const struct kvl_sampling *how = &g->a->sampling;
    uint64_t stream = kvl_sampler_stream(how, 0, 0, 0);
    int32_t id = g->prompt.id[g->prompt.n - 1];
    for (int32_t i = 0; i < g->a->n; i++) {
        KVL_TRY(kvl_session_decode(&s, 1, &id, g->room.logits, g->err));
        id = kvl_sampler_token(&g->room.sampler, how, stream, i, g->room.logits,
                               kvl_model_shape(g->model)->n_vocab);
        if (kvl_prompt_ends(&g->chat, id) && !g->a->no_end) break;
        KVL_TRY(generate_show(g, id, i == 0));
    }
    putchar('\n');
    return KVL_OK;
}

/* A fork of the prompt, up to the tokens that are decoded. */
static int generate_fork(struct generate *g, const struct kvl_session *s, int32_t answer,
                         struct kvl_ask *out)
{
    *out = (struct kvl_ask){ .feed = g->prompt.id + g->prompt.n - 1,
                             .n_feed = 1,
                             .max_new = g->a->n,
                             .prompt = g->a->no_end ? NULL : &g->chat,
                             .sampling = &g->a->sampling,
                             .stream = kvl_sampler_stream(&g->a->sampling, 0, 0, answer) };
    KVL_TRY(kvl_ask_begin(out, kvl_model_shape(g->model), g->err));
    return kvl_session_fork(s, &out->session, g->err);
}

/* One after the other, a line with its number before each text. */
static int generate_print(const struct generate *g, const struct kvl_ask *ask)
{
    for (int32_t i = 0; i < g->a->sampling.n; i++) {
        if (!g->a->show_ids) printf("--- %d of %d\n", i + 1, g->a->sampling.n);
        for (int32_t k = 0; k < ask[i].n_id; k++) KVL_TRY(generate_show(g, ask[i].id[k], k == 0));
        putchar('\n');
    }
    return KVL_OK;
}

static int generate_answers(struct generate *g, const struct kvl_session *s)
{
    int32_t n = g->a->sampling.n;
    struct kvl_ask *ask = kvl_alloc((size_t)n, sizeof *ask), *all[KVL_ASK_MAX];
    if (!ask) return kvl_fail(g->err, KVL_ENOMEM, "out of memory for %d answers", n);
    int rc = KVL_OK;
    for (int32_t i = 0; i < n; i++) all[i] = &ask[i];
    for (int32_t i = 0; i < n && rc == KVL_OK; i++) rc = generate_fork(g, s, i, &ask[i]);
    if (rc == KVL_OK && g->a->n > 0) rc = kvl_ask_decode(all, n, g->model, &g->room, g->err);
    if (rc == KVL_OK) rc = generate_print(g, ask);
    for (int32_t i = 0; i < n; i++) kvl_ask_free(&ask[i]);
    kvl_free(ask);
    return rc;
}

static int generate_session(struct generate *g)
{
    struct kvl_session *s = NULL;
    double ns;
    int32_t n = g->prompt.n - 1;
    KVL_TRY(
        kvl_prefill(g->engine, &g->snapshots, g->prompt.id, g->spec.own ? 0 : n, &s, &ns, g->err));
    int rc = KVL_OK;
    kvl_guard_policy(g->spec.policy->name);
    /* A policy decides on a context; a prompt of one token has none, and full needs none. */
    if (n > 0 || !kvl_policy_ignores_budget(g->spec.policy))
        rc = kvl_session_attach(s, g->planned, (uint64_t)g->a->seed, KVL_EXEC_REAL, g->err);
    if (rc == KVL_OK && g->spec.own && n > 0)
        rc = kvl_session_prefill(s, g->prompt.id, n, NULL, false, g->err);
    kvl_progress_end(&g->progress);
    if (rc == KVL_OK) rc = g->a->sampling.n > 1 ? generate_answers(g, s) : generate_steps(g, s);
    kvl_session_destroy(s);
    kvl_guard_policy(NULL);
    return rc;
}

static int generate_run(struct generate *g)
{
    if (g->a->sampling.n > 1 && !(g->a->sampling.temperature > 0.0))
        return kvl_fail(g->err, KVL_EINVAL,
                        "--answers: %d without a temperature are all the same, want --temperature",
                        g->a->sampling.n);
    KVL_TRY(generate_prompt(g));
    KVL_TRY(generate_plan(g));
    KVL_TRY(kvl_snapshots_open(&g->snapshots, g->a->snapshots, g->err));
    KVL_TRY(generate_engine(g));
    kvl_stop_install();
    return generate_session(g);
}

int cmd_generate(int argc, char **argv, struct kvl_err *err)
{
    struct generate_args a = { .n = 32, .sampling = kvl_greedy() };
    struct generate g = { .a = &a, .err = err };
    bool done;
    a.model.args = &a.base;
    kvl_show_data();
    KVL_TRY(kvl_registry_create(&a.model.registry, err));
    int rc = kvl_args_parse(&generate_argp, argc, argv, &a, &done, err);
    if (rc == KVL_OK && !done) rc = kvl_model_args_open(&a.model, &g.device, &g.model, err);
    a.sampling.seed = (uint64_t)a.seed;
    if (rc == KVL_OK && !done) rc = generate_run(&g);
    kvl_progress_end(&g.progress);
    kvl_engine_destroy(g.engine);
    kvl_planned_destroy(g.planned);
    kvl_policy_spec_free(&g.spec);
    kvl_tokens_free(&g.prompt);
    kvl_prompt_close(&g.chat);
    kvl_ask_room_free(&g.room);
    kvl_model_close(g.model);
    kvl_registry_destroy(a.model.registry);
    return rc;
}
