/* llama.cpp beside us: its llama-bench runs a test several times, and whenever it has printed a
 * result it is stopped while we take our turn.  (It keeps the state of a depth between tests, so that
 * the depth is prefilled once; the next test begins with a warm-up that is not timed.)
 *
 * Of its flash attention settings the better counts.  Both run where that is cheap; at a depth, both
 * are tried at a small depth first. */
#include "bench_goals.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    PEER_GENERATED = 16, /* tokens of a test */
    PEER_CHUNK = 512,
    PEER_PROMPT = 4096,
    PEER_TOKEN_DEPTH = 32768,
    PEER_CHUNK_DEPTH = 16384,
    PEER_PROBE_DEPTH = 8192, /* which setting is faster turns over at a few thousand tokens */
    PEER_ROUNDS = 3,
};

extern char **environ;

/* One of what is compared. */
struct peer_case {
    const char *what;
    int32_t n_prompt, n_gen, depth; /* one of the first two is 0 */
    bool bf16;                      /* ours a second time, in bf16 */
};

struct peer {
    struct bench *b;
    const char *path;
    struct bench_depths d[2]; /* ours, f32 and bf16 */
    int32_t threads, rounds;
    pid_t pid; /* of llama-bench; 0: it does not run */
    FILE *out;
};

/* ---- the process --------------------------------------------------------------------------------------------- */

/* "512,512,512": as many tests. */
static void peer_repeated(char *to, size_t size, int32_t n, int32_t times)
{
    size_t len = 0;
    for (int32_t i = 0; i < times && len < size; i++)
        len += (size_t)snprintf(to + len, size - len, "%s%d", i ? "," : "", n);
}

static int peer_start(struct peer *p, const struct peer_case *c, int fa, int32_t times)
{
    struct bench *b = p->b;
    char prompt[512], gen[512], depth[16], threads[16], flash[8];
    peer_repeated(prompt, sizeof prompt, c->n_prompt, c->n_prompt ? times : 1);
    peer_repeated(gen, sizeof gen, c->n_gen, c->n_gen ? times : 1);
    snprintf(depth, sizeof depth, "%d", c->depth);
    snprintf(threads, sizeof threads, "%d", p->threads);
    snprintf(flash, sizeof flash, "%d", fa);
    const char *const words[] = { p->path, "-m", b->model_path, "-p", prompt,  "-n",
                                  gen,     "-d", depth,         "-t", threads, "-fa",
                                  flash,   "-r", "1",           "-o", "jsonl", NULL };
    char *argv[sizeof words / sizeof words[0]];
    memcpy(argv, words, sizeof argv);
    int fd[2];
    if (pipe(fd) != 0) return kvl_fail(b->err, KVL_EIO, "no pipe: %s", strerror(errno));
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, fd[0]);
    posix_spawn_file_actions_addclose(&actions, fd[1]);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", 1 /* O_WRONLY */, 0);
    int rc = posix_spawn(&p->pid, p->path, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(fd[1]);
    if (rc == 0) p->out = fdopen(fd[0], "r");
    if (p->out) return KVL_OK;
    close(fd[0]);
    if (rc != 0) p->pid = 0;
    return kvl_fail(b->err, KVL_EIO, "--peer: %s: cannot run: %s", p->path,
                    strerror(rc ? rc : errno));
}

static void peer_end(struct peer *p)
{
    if (p->out) fclose(p->out);
    if (p->pid > 0) {
        kill(p->pid, SIGKILL); /* it is done, or nobody wants the rest */
        waitpid(p->pid, NULL, 0);
    }
    p->out = NULL;
    p->pid = 0;
}

/* Seconds per token, or of the whole prompt, of its next test. */
static int peer_next(struct peer *p, const struct peer_case *c, double *seconds)
{
    char *line = NULL;
    size_t cap = 0;
    double rate = 0;
    if (getline(&line, &cap, p->out) > 0) {
        json_t *o = json_loads(line, 0, NULL);
        rate = json_number_value(json_object_get(o, "avg_ts"));
        json_decref(o);
    }
    free(line);
    KVL_TRY(bench_stopped(p->b));
    if (!(rate > 0))
        return kvl_fail(p->b->err, KVL_EINVAL,
                        "--peer: %s gave no result, want a llama-bench that knows -fa 0 and -d",
                        p->path);
    *seconds = (c->n_prompt ? c->n_prompt : 1) / rate;
    return KVL_OK;
}

/* ---- our turn -------------------------------------------------------------------------------------------------- */

static int peer_ours(struct peer *p, const struct peer_case *c, int which, double *seconds)
{
    struct bench_depths *d = &p->d[which];
    const struct kvl_session *s = NULL;
    kvl_ops_set_threads(p->threads);
    for (int32_t i = 0; i < d->depth.n; i++)
        if (d->depth.v[i] == c->depth) s = d->at[i];
    if (c->n_prompt) return bench_prefill_time(p->b, d->engine, s, c->n_prompt, seconds);
    struct bench_window w;
    KVL_TRY(bench_decode(p->b, s, d->logits, c->n_gen, &w));
    *seconds = w.token_s;
    return KVL_OK;
}

struct peer_times {
    double theirs[BENCH_MAX_ROUNDS], ours[2][BENCH_MAX_ROUNDS];
};

static int peer_rounds(struct peer *p, const struct peer_case *c, struct peer_times *t)
{
    for (int32_t r = 0; r < p->rounds; r++) {
        KVL_TRY(peer_next(p, c, &t->theirs[r]));
        kill(p->pid, SIGSTOP);
        int rc = KVL_OK;
        for (int k = 0; rc == KVL_OK && k < (c->bf16 ? 2 : 1); k++)
            rc = peer_ours(p, c, k, &t->ours[k][r]);
        kill(p->pid, SIGCONT);
        KVL_TRY(rc);
        bench_say("%s, depth %d: round %d of %d", c->what, c->depth, r + 1, p->rounds);
    }
    return KVL_OK;
}

static int peer_measure(struct peer *p, const struct peer_case *c, int fa, struct peer_times *t)
{
    int rc = peer_start(p, c, fa, p->rounds);
    if (rc == KVL_OK) rc = peer_rounds(p, c, t);
    peer_end(p);
    return rc;
}

/* The setting that is faster on one test. */
static int peer_probe(struct peer *p, const struct peer_case *c, int *fa)
{
    struct peer_case small = *c;
    double seconds[2];
    small.depth = KVL_MIN(c->depth, PEER_PROBE_DEPTH);
    for (int k = 0; k < 2; k++) {
        int rc = peer_start(p, &small, k, 1);
        if (rc == KVL_OK) rc = peer_next(p, &small, &seconds[k]);
        peer_end(p);
        KVL_TRY(rc);
    }
    *fa = seconds[1] < seconds[0];
    return KVL_OK;
}

/* ---- cases --------------------------------------------------------------------------------------------------------- */

static int peer_emit(struct peer *p, const struct peer_case *c, int fa, struct peer_times *t)
{
    for (int k = 0; k < (c->bf16 ? 2 : 1); k++) {
        struct bench_line line = {
            .part = "peer",
            .what = c->what,
            .policy = k ? "bf16" : NULL,
            .unit = c->n_prompt ? "s" : "s/token",
            .threads = p->threads,
            .depth = c->depth,
            .against = fa ? "llama.cpp's speed, fa on" : "llama.cpp's speed, fa off",
            .ratio = bench_ratio(t->theirs, t->ours[k], p->rounds),
        };
        line.value = bench_spread(t->ours[k], p->rounds);
        double theirs[BENCH_MAX_ROUNDS];
        memcpy(theirs, t->theirs, sizeof theirs);
        bench_extra(&line, "peer_s", bench_spread(theirs, p->rounds).mid);
        bench_extra(&line, "peer_fa", fa);
        KVL_TRY(bench_emit(p->b, &line));
    }
    return KVL_OK;
}

static int peer_case(struct peer *p, const struct peer_case *c)
{
    struct peer_times t[2];
    int fa = 0;
    if (c->depth > PEER_PROBE_DEPTH) {
        KVL_TRY(peer_probe(p, c, &fa));
        bench_say("%s: llama-bench prefills its depth of %d first, which can take minutes", c->what,
                  c->depth);
        KVL_TRY(peer_measure(p, c, fa, &t[fa]));
    } else {
        for (int k = 0; k < 2; k++) KVL_TRY(peer_measure(p, c, k, &t[k]));
        double off[BENCH_MAX_ROUNDS], on[BENCH_MAX_ROUNDS];
        memcpy(off, t[0].theirs, sizeof off);
        memcpy(on, t[1].theirs, sizeof on);
        fa = bench_spread(on, p->rounds).mid < bench_spread(off, p->rounds).mid;
    }
    return peer_emit(p, c, fa, &t[fa]);
}

static int peer_open(struct peer *p, int32_t chunk_depth, int32_t token_depth)
{
    struct bench *b = p->b;
    struct bench_list depth = { .v = { 0, chunk_depth, token_depth }, .n = 3 };
    for (int k = 0; k < 2; k++) {
        struct bench_engine want = { .model = b->model,
                                     .kv_type = b->config.kv_type,
                                     .bf16 = k == 1 };
        depth.n = k == 1 ? 2 : 3; /* decode has no bf16 products */
        KVL_TRY(bench_depths_open(b, &want, &depth, &p->d[k]));
    }
    return KVL_OK;
}

static int peer_run(struct peer *p)
{
    const struct bench_config *k = &p->b->config;
    int32_t deepest = k->depths.v[k->depths.n - 1];
    int32_t chunk = KVL_MIN(PEER_CHUNK_DEPTH, deepest), token = KVL_MIN(PEER_TOKEN_DEPTH, deepest);
    const struct peer_case cases[] = {
        { "decode, first tokens", 0, PEER_GENERATED, 0, false },
        { "decode at a depth", 0, PEER_GENERATED, token, false },
        { "prefill of a prompt", KVL_MIN(PEER_PROMPT, KVL_MAX(deepest, PEER_CHUNK)), 0, 0, true },
        { "chunk of 512 at a depth", PEER_CHUNK, 0, chunk, true },
    };
    KVL_TRY(peer_open(p, chunk, token));
    for (int32_t t = 0; t < k->threads.n; t++) {
        p->threads = k->threads.v[t];
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            bench_say("llama.cpp, %d thread%s: %s", p->threads, p->threads > 1 ? "s" : "",
                      cases[i].what);
            KVL_TRY(peer_case(p, &cases[i]));
        }
    }
    return KVL_OK;
}

int bench_peer(struct bench *b, const char *path)
{
    struct peer p = { .b = b, .path = path, .rounds = KVL_MIN(b->config.rounds, PEER_ROUNDS) };
    if (b->config.kv_type != KVL_KV_F16)
        return bench_skip(b, "comparison with llama.cpp: its cache is f16, ours is %s",
                          kvl_kv_name(b->config.kv_type).text);
    int rc = peer_run(&p);
    for (int k = 0; k < 2; k++) bench_depths_close(&p.d[k]);
    return rc;
}
