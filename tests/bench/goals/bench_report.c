/* The table of goals from the lines of one run, and the figures it stands on. */
#include "bench_goals.h"
#include "outfile.h"

#include <stdlib.h>
#include <string.h>

static const struct bench_goal cpu_goals[] = {
    { "attention",
      "full decode attention, 16K to 64K: bytes / time / stream",
      "0.60, 0.75",
      "0.75, 0.90",
      "attention",
      NULL,
      16384,
      65536,
      true,
      false,
      { 0.60, 0.75 },
      { 0.75, 0.90 } },
    { "attention-bf16",
      "full decode attention, bf16 pages",
      "0.60, 0.75",
      "0.85",
      "attention, bf16 pages",
      NULL,
      16384,
      65536,
      true,
      false,
      { 0.60, 0.75 },
      { 0.85, 0.85 } },
    { "peer-token",
      "token at 32K against llama.cpp",
      "3.0x, 2.5x",
      "3.7x, 3.3x",
      "decode at a depth",
      NULL,
      32768,
      32768,
      true,
      false,
      { 3.0, 2.5 },
      { 3.7, 3.3 } },
    { "weights-f16",
      "token at depth 0, F16 weights: bytes / time / stream",
      "0.75",
      "0.90",
      "decode, F16 weights",
      NULL,
      0,
      0,
      true,
      false,
      { 0.75, 0.75 },
      { 0.90, 0.90 } },
    { "weights-q8_0",
      "token at depth 0, Q8_0 weights",
      "0.75",
      "0.90",
      "decode, Q8_0 weights",
      NULL,
      0,
      0,
      true,
      false,
      { 0.75, 0.75 },
      { 0.90, 0.90 } },
    { "weights-q4_0",
      "token at depth 0, Q4_0 weights",
      "0.75",
      "0.90",
      "decode, Q4_0 weights",
      NULL,
      0,
      0,
      true,
      false,
      { 0.75, 0.75 },
      { 0.90, 0.90 } },
    { "flat",
      "eviction at budget 2048: token at 128K / at 16K",
      "<= 1.05",
      "1.02",
      "token, deep / shallow",
      "streaming_llm,h2o,snapkv",
      131072,
      131072,
      false,
      false,
      { 1.05, 1.05 },
      { 1.02, 1.02 } },
    { "quest-bytes",
      "Quest: time / (its bytes / stream), 16K to 128K",
      "<= 2.0",
      "1.5",
      "attention time / bytes",
      "quest",
      16384,
      131072,
      false,
      false,
      { 2.0, 2.0 },
      { 1.5, 1.5 } },
    { "quest-32k",
      "Quest attention against full attention, 32K",
      "4.5x",
      "6x",
      "attention speed-up",
      "quest",
      32768,
      32768,
      true,
      false,
      { 4.5, 4.5 },
      { 6, 6 } },
    { "quest-128k",
      "Quest attention against full attention, 128K",
      "7x",
      "9x",
      "attention speed-up",
      "quest",
      131072,
      131072,
      true,
      false,
      { 7, 7 },
      { 9, 9 } },
    { "omnikv-bytes",
      "OmniKV: time / (its bytes / stream)",
      "<= 1.5",
      "1.15",
      "attention time / bytes",
      "omnikv",
      16384,
      131072,
      false,
      false,
      { 1.5, 1.5 },
      { 1.15, 1.15 } },
    { "infllm-bytes",
      "InfLLM: time / (its bytes / stream)",
      "<= 1.5",
      "1.15",
      "attention time / bytes",
      "infllm",
      16384,
      131072,
      false,
      false,
      { 1.5, 1.5 },
      { 1.15, 1.15 } },
    { "overhead",
      "policy overhead / (its bytes / stream + attention), the worst",
      "<= 1.5",
      "1.3",
      "policy overhead",
      "streaming_llm,h2o,snapkv,quest,omnikv,infllm",
      16384,
      131072,
      false,
      false,
      { 1.5, 1.5 },
      { 1.3, 1.3 } },
    { "gemm-f32",
      "prefill projections against OpenBLAS, f32",
      "0.90",
      "",
      "projections of 512, f32",
      NULL,
      -1,
      -1,
      true,
      false,
      { 0.90, 0.90 },
      { 0, 0 } },
    { "gemm-bf16",
      "prefill projections against OpenBLAS, bf16 path",
      "0.90",
      "1.8",
      "projections of 512, bf16",
      NULL,
      -1,
      -1,
      true,
      false,
      { 0.90, 0.90 },
      { 1.8, 1.8 } },
    { "peer-prefill",
      "prefill of 4096 tokens against llama.cpp, f32",
      "1.2x",
      "2x",
      "prefill of a prompt",
      NULL,
      0,
      0,
      true,
      false,
      { 1.2, 1.2 },
      { 2, 2 } },
    { "peer-prefill-bf16",
      "prefill of 4096 tokens against llama.cpp, bf16 path",
      "1.2x",
      "2x",
      "prefill of a prompt",
      "bf16",
      0,
      0,
      true,
      false,
      { 1.2, 1.2 },
      { 2, 2 } },
    { "peer-chunk",
      "chunk of 512 at depth 16K against llama.cpp, f32",
      "1.5x",
      "2x",
      "chunk of 512 at a depth",
      NULL,
      16384,
      16384,
      true,
      false,
      { 1.5, 1.5 },
      { 2, 2 } },
    { "peer-chunk-bf16",
      "chunk of 512 at depth 16K against llama.cpp, bf16 path",
      "1.5x",
      "2x",
      "chunk of 512 at a depth",
      "bf16",
      16384,
      16384,
      true,
      false,
      { 1.5, 1.5 },
      { 2, 2 } },
    { "memory",
      "prefill memory beyond weights and KV at 128K, MiB",
      "< 256",
      "",
      "memory beyond weights, KV",
      NULL,
      131072,
      131072,
      false,
      true,
      { 256, 256 },
      { 0, 0 } },
    { "columns",
      "column sums (H2O) on top of prefill",
      "<= 60 %",
      "35 %",
      "observer: column sums",
      NULL,
      0,
      BENCH_ANY_DEPTH,
      false,
      false,
      { 0.60, 0.60 },
      { 0.35, 0.35 } },
    { "window",
      "window (SnapKV) on top of prefill",
      "<= 2 %",
      "1 %",
      "observer: window",
      NULL,
      0,
      BENCH_ANY_DEPTH,
      false,
      false,
      { 0.02, 0.02 },
      { 0.01, 0.01 } },
    { "sweep",
      "sweep: wall / (1 prefill + its decodes)",
      "<= 1.05",
      "1.02",
      "sweep wall",
      NULL,
      0,
      BENCH_ANY_DEPTH,
      false,
      false,
      { 1.05, 1.05 },
      { 1.02, 1.02 } },
    { "batch",
      "its cells in one batch / one by one",
      "< 1",
      "",
      "all cells in one batch",
      NULL,
      0,
      BENCH_ANY_DEPTH,
      false,
      false,
      { 1, 1 },
      { 0, 0 } },
    { "sweep-memory",
      "sweep memory / (store + metadata + copies)",
      "<= 1.10",
      "",
      "memory of all forks",
      NULL,
      0,
      BENCH_ANY_DEPTH,
      false,
      false,
      { 1.10, 1.10 },
      { 0, 0 } },
};

struct goal_table {
    const struct bench_goal *goal;
    size_t n;
    const char *missing; /* of a goal without a line */
};

static bool is_gpu(const struct bench *b)
{
    return b->origin.device.name[0] != '\0';
}

static struct goal_table goal_table(const struct bench *b)
{
    if (is_gpu(b))
        return (struct goal_table){ bench_gpu_goals, bench_n_gpu_goals, "not run on a GPU yet" };
    return (struct goal_table){ cpu_goals, sizeof cpu_goals / sizeof cpu_goals[0], "not measured" };
}

static const char million_title[] =
    "1M tokens of a small model: store, fork, Quest and eviction decode";

static const char *goal_note(const char *key)
{
    static const struct {
        const char *key, *text;
    } note[] = {
#define BENCH_NOTE(goal, text) { (goal), (text) },
#include "goal_notes.def"
#undef BENCH_NOTE
    };
    for (size_t i = 0; i < sizeof note / sizeof note[0]; i++)
        if (strcmp(note[i].key, key) == 0) return note[i].text;
    return "";
}

/* ---- goals ------------------------------------------------------------------------------------------------------- */

/* Whether "a,b" has this word. */
static bool goal_has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = strstr(list, word); p; p = strstr(p + 1, word))
        if ((p == list || p[-1] == ',') && (p[n] == ',' || p[n] == '\0')) return true;
    return false;
}

static bool goal_wants(const struct bench_goal *g, const struct bench_line *l, int32_t threads)
{
    if (strcmp(l->what, g->what) != 0 || l->threads != threads) return false;
    if (l->depth < g->depth_min || l->depth > g->depth_max) return false;
    if (!g->policies) return !l->policy;
    return l->policy && goal_has_word(g->policies, l->policy);
}

static struct bench_spread goal_spread(const struct bench_goal *g, const struct bench_line *l)
{
    return g->of_value ? l->value : l->ratio;
}

/* The line that is farthest from the goal; NULL: not measured. */
static const struct bench_line *goal_worst(const struct bench *b, const struct bench_goal *g,
                                           int32_t threads)
{
    const struct bench_line *worst = NULL;
    for (size_t i = 0; i < b->n_lines; i++) {
        const struct bench_line *l = &b->line[i];
        if (!goal_wants(g, l, threads)) continue;
        bool lower = worst && goal_spread(g, l).mid < goal_spread(g, worst).mid;
        if (!worst || lower == g->at_least) worst = l;
    }
    return worst;
}

static bool goal_reaches(const struct bench_goal *g, const struct bench_line *l,
                         const double *bound)
{
    double v = goal_spread(g, l).mid, want = bound[l->threads > 1];
    return g->at_least ? v >= want : v <= want;
}

/* In the unit of its bound: "18 %", "8.03x", "0.514". */
static void goal_number(const struct bench_goal *g, double v, FILE *out)
{
    char digits[BENCH_DIGITS];
    bool percent = strchr(g->least, '%') != NULL;
    bool times = strchr(g->least, 'x') || strchr(g->aim, 'x');
    bench_digits(percent ? 100 * v : v, digits);
    fprintf(out, " %s%s", digits, percent ? " %" : (times ? "x" : ""));
}

/* The spread where there were rounds that differ. */
static void goal_cell(const struct bench_goal *g, const struct bench_line *l, FILE *out)
{
    char lo[BENCH_DIGITS], hi[BENCH_DIGITS];
    if (!l) {
        fputs(" - |", out);
        return;
    }
    struct bench_spread s = goal_spread(g, l);
    double scale = strchr(g->least, '%') ? 100 : 1;
    bench_digits(scale * s.lo, lo);
    bench_digits(scale * s.hi, hi);
    goal_number(g, s.mid, out);
    if (strcmp(lo, hi) != 0) fprintf(out, " (%s .. %s)", lo, hi);
    if (l->policy && g->policies && strchr(g->policies, ',')) fprintf(out, " %s", l->policy);
    fputs(" |", out);
}

/* One core and several, where both were measured. */
static int goal_columns(const struct bench *b)
{
    return b->config.threads.n > 1 ? 2 : 1;
}

static void goal_row(const struct bench *b, const struct bench_goal *g, FILE *out)
{
    const struct bench_list *threads = &b->config.threads;
    const struct bench_line *l[2] = { NULL, NULL };
    int n = 0, met = 0, aim = 0;
    for (int k = 0; k < goal_columns(b); k++) {
        l[k] = goal_worst(b, g, threads->v[k ? threads->n - 1 : 0]);
        if (!l[k]) continue;
        n++;
        met += goal_reaches(g, l[k], g->bound);
        aim += g->best[0] > 0 && goal_reaches(g, l[k], g->best);
    }
    fprintf(out, "| %s | %s | %s |", g->title, g->least, g->aim);
    if (is_gpu(b)) goal_number(g, bench_forecast(g->key, b->origin.device.name), out);
    if (is_gpu(b)) fputs(" |", out);
    for (int k = 0; k < goal_columns(b); k++) goal_cell(g, l[k], out);
    fprintf(out, " %s |\n",
            n == 0     ? goal_table(b).missing
            : aim == n ? "yes, the aim too"
            : met == n ? "yes"
            : met > 0  ? "in part"
                       : "no");
}

/* The row of a million tokens: it works, or is not there.  The figures are in the last table. */
static void million_row(const struct bench *b, FILE *out)
{
    int32_t threads = b->config.threads.v[b->config.threads.n - 1];
    bool there = bench_find(b, "fork", NULL, threads, 1 << 20) != NULL;
    fprintf(out, "| %s | works | |%s %s |\n", million_title, goal_columns(b) > 1 ? " - |" : "",
            there ? "works | yes" : "- | not measured");
}

static void goal_say(const char *title, const char *key, FILE *out)
{
    const char *note = goal_note(key);
    if (*note) fprintf(out, "- %s: %s\n", title, note);
}

/* ---- the report ---------------------------------------------------------------------------------------------------- */

static void report_machine(const struct bench_origin *o, FILE *out)
{
    if (o->device.name[0])
        fprintf(out, "%s, driver %s, %s; host ", o->device.name, o->device.driver, o->date);
    fprintf(out, "%s, %d core%s, %s; kvlab %s (%s, %s). ", o->machine.cpu, o->machine.cores,
            o->machine.cores == 1 ? "" : "s", o->machine.isa, o->version, o->git, o->compiler);
}

static void report_head(const struct bench *b, FILE *out)
{
    const struct bench_config *c = &b->config;
    bool gpu = is_gpu(b);
    fprintf(out,
            "# What the %s path reaches\n\n"
            "Written by `bench_goals --report`; do not edit. Sentences beside the goals come from\n"
            "`results/goal_notes.def`.\n\n",
            gpu ? "GPU" : "CPU");
    if (gpu) fputs(bench_gpu_how, out);
    if (!b->origin.model) {
        fputs("**Nothing has run on a GPU yet.**\n\n", out);
        return;
    }
    report_machine(&b->origin, out);
    fprintf(out, "Model %s", b->origin.model);
    if (b->origin.weights) fprintf(out, ", %s weights", b->origin.weights);
    fprintf(out, ", %s pages, budget %d. ", kvl_kv_name(c->kv_type).text, c->budget_tok);
    fprintf(out,
            "Medians of up to %d round%s;\nall sides of a ratio run by turns in each round.\n\n",
            c->rounds, c->rounds == 1 ? "" : "s");
    if (c->rounds < 3)
        fputs("**Fewer than three rounds: this shows the form, its figures are not to be "
              "quoted.**\n\n",
              out);
}

static void report_forecast(FILE *out)
{
    fputs("\n## Forecast\n\n"
          "By arithmetic (`bench_goals --forecast`; `tests/bench/goals/bench_forecast.c` has the "
          "model and what it assumes),\nnot measured; (no): the goal is not reached as the code "
          "is. The column above is of the GPU at hand, of an H100\nbefore there is one.\n\n",
          out);
    bench_forecast_table(out);
    fprintf(out, "\n%s", bench_gpu_bits);
}

static void report_goals(const struct bench *b, FILE *out)
{
    const struct bench_list *t = &b->config.threads;
    bool gpu = is_gpu(b);
    fprintf(out, "## Goals\n\n| what | at least | aim |%s", gpu ? " forecast |" : "");
    for (int k = 0; k < goal_columns(b); k++) {
        int32_t n = t->v[k ? t->n - 1 : 0];
        if (n == 0) fputs(" measured |", out);
        if (n > 0) fprintf(out, " %d thread%s |", n, n > 1 ? "s" : "");
    }
    fprintf(out, " met |\n|---|---|---|---|---|%s%s\n", goal_columns(b) > 1 ? "---|" : "",
            gpu ? "---|" : "");
    struct goal_table g = goal_table(b);
    for (size_t i = 0; i < g.n; i++) goal_row(b, &g.goal[i], out);
    if (!gpu) million_row(b, out);
    fputs("\n", out);
    if (!gpu)
        fputs("With two figures in \"at least\" or \"aim\" the first is for one core, the second "
              "for more.\n",
              out);
    fputs("In brackets the smallest and the largest round. Of several lines (depths, policies) the "
          "worst counts.\n\n### Limits, reasons, next steps\n\n",
          out);
    for (size_t i = 0; i < g.n; i++) goal_say(g.goal[i].title, g.goal[i].key, out);
    if (!gpu) goal_say(million_title, "million", out);
    if (gpu) report_forecast(out);
}

int bench_report(const struct bench *b, const char *path)
{
    struct kvl_outfile o = { .f = stdout };
    if (path) KVL_TRY(kvl_outfile_open(&o, path, b->err));
    FILE *out = o.f;
    report_head(b, out);
    report_goals(b, out);
    if (b->n_lines > 0 || !b->origin.device.name[0]) bench_figures(b, out);
    if (path) return kvl_outfile_close(&o, KVL_OK, b->err);
    if (fflush(out) == 0 && !ferror(out)) return KVL_OK;
    return kvl_fail(b->err, KVL_EIO, "--report: cannot write, want a disk with space");
}
