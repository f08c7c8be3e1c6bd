/* The figures of a report: what the goals stand on, one row for all numbers of threads. */
#include "bench_goals.h"

#include <stdlib.h>
#include <string.h>

/* ---- lines ------------------------------------------------------------------------------------ */

static double line_extra(const struct bench_line *l, const char *name)
{
    for (int32_t i = 0; i < l->n_extra; i++)
        if (strcmp(l->extra[i].name, name) == 0) return l->extra[i].value;
    return 0;
}

static bool is_of_policy(const struct bench_line *l)
{
    return strcmp(l->part, "policy") == 0;
}

static bool is_token(const struct bench_line *l)
{
    return is_of_policy(l) && strcmp(l->what, "token") == 0;
}

static bool is_same(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

/* But for their threads. */
static bool is_same_row(const struct bench_line *a, const struct bench_line *b)
{
    return strcmp(a->part, b->part) == 0 && strcmp(a->what, b->what) == 0 && a->depth == b->depth &&
           is_same(a->policy, b->policy) && is_same(a->against, b->against);
}

static bool is_first_of_row(const struct bench *b, size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (is_same_row(&b->line[k], &b->line[i])) return false;
    return true;
}

static void put(FILE *out, double v)
{
    char digits[BENCH_DIGITS];
    bench_digits(v, digits);
    fprintf(out, " %s |", digits);
}

static void put_threads(const struct bench_list *threads, FILE *out)
{
    for (int32_t t = 0; t < threads->n; t++)
        if (threads->v[t] > 0)
            fprintf(out, " %d thread%s |", threads->v[t], threads->v[t] > 1 ? "s" : "");
        else
            fputs(" measured |", out);
}

static void put_rule(int32_t n, FILE *out)
{
    for (int32_t i = 0; i < n; i++) fputs("|---", out);
    fputs("|\n", out);
}

/* ---- policies --------------------------------------------------------------------------------- */

static void figures_parts(const struct bench_line *l, FILE *out)
{
    static const char *const parts[] = { "meta_ms", "select_ms", "attend_ms", "evict_ms",
                                         "rest_ms" };
    fprintf(out, "| %s | %d |", l->policy, l->depth);
    put(out, l->value.mid);
    for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) put(out, line_extra(l, parts[k]));
    put(out, line_extra(l, "kv_read_bytes") / (1 << 20));
    put(out, line_extra(l, "index_read_bytes") / (1 << 20));
    put(out, l->ratio.mid);
    fputc('\n', out);
}

/* Where the time of a token goes. */
static void figures_tokens(const struct bench *b, int32_t threads, FILE *out)
{
    fprintf(out, "\n## A token under each policy, %d thread%s\n\n", threads,
            threads > 1 ? "s" : "");
    fputs(
        "Milliseconds: all, and its parts; MiB read of keys and values and of the index; bytes / "
        "time / stream.\n\n"
        "| policy | depth | all | metadata | score, top-k | attention | evict | rest | KV | index "
        "| of stream |\n",
        out);
    put_rule(11, out);
    for (size_t i = 0; i < b->n_lines; i++)
        if (is_token(&b->line[i]) && b->line[i].threads == threads) figures_parts(&b->line[i], out);
}

/* The ratio of another line of this policy and depth, for each number of threads. */
static void put_ratio(const struct bench *b, const struct bench_line *l, const char *what,
                      FILE *out)
{
    const struct bench_list *threads = &b->config.threads;
    for (int32_t t = 0; t < threads->n; t++) {
        char digits[BENCH_DIGITS] = "-";
        const struct bench_line *r = bench_find(b, what, l->policy, threads->v[t], l->depth);
        if (r) bench_digits(r->ratio.mid, digits);
        fprintf(out, "%s%s", t ? ", " : " ", digits);
    }
    fputs(" |", out);
}

static void figures_ratios(const struct bench *b, FILE *out)
{
    static const char *const what[] = { "attention time / bytes", "policy overhead",
                                        "attention speed-up", "token, deep / shallow" };
    fputs("\n## Policies against their bytes\n\n"
          "Attention with all that its policy does over its bytes / stream; scores, top-k and "
          "bookkeeping over\ntheir bytes / stream + attention; speed-up of attention over full "
          "attention; token over that at the\nfirst depth. ",
          out);
    fputs(b->config.threads.n > 1 ? "In each field one figure per number of threads.\n\n" : "\n\n",
          out);
    fputs("| policy | depth | time / bytes | overhead | speed-up | deep / shallow |\n", out);
    put_rule(6, out);
    for (size_t i = 0; i < b->n_lines; i++) {
        const struct bench_line *l = &b->line[i];
        if (!is_of_policy(l) || strcmp(l->what, what[0]) != 0 || !is_first_of_row(b, i)) continue;
        fprintf(out, "| %s | %d |", l->policy, l->depth);
        for (size_t k = 0; k < sizeof what / sizeof what[0]; k++) put_ratio(b, l, what[k], out);
        fputc('\n', out);
    }
}

static void figures_policies(const struct bench *b, FILE *out)
{
    bool any = false;
    for (size_t i = 0; i < b->n_lines && !any; i++) any = is_token(&b->line[i]);
    if (!any) return;
    figures_ratios(b, out);
    for (int32_t t = 0; t < b->config.threads.n; t++)
        figures_tokens(b, b->config.threads.v[t], out);
}

/* ---- lines of no policy ----------------------------------------------------------------------- */

/* "52.3 ms/token, 0.566"; where the value is the ratio, that alone. */
static void put_value(const struct bench_line *l, FILE *out)
{
    char value[BENCH_DIGITS], ratio[BENCH_DIGITS];
    bench_digits(l->value.mid, value);
    bench_digits(l->ratio.mid, ratio);
    fprintf(out, " %s", value);
    if (strcmp(l->unit, "ratio") != 0) fprintf(out, " %s", l->unit);
    if (l->against && strcmp(l->unit, "ratio") != 0) fprintf(out, ", %s", ratio);
}

static void figures_row(const struct bench *b, const struct bench_line *first, FILE *out)
{
    const struct bench_list *threads = &b->config.threads;
    fprintf(out, "| %s%s%s |", first->what, first->policy ? ", " : "",
            first->policy ? first->policy : "");
    if (first->depth >= 0) fprintf(out, " %d", first->depth);
    fputs(" |", out);
    for (int32_t t = 0; t < threads->n; t++) {
        const struct bench_line *l = NULL;
        for (size_t i = 0; i < b->n_lines && !l; i++)
            if (is_same_row(&b->line[i], first) && b->line[i].threads == threads->v[t])
                l = &b->line[i];
        if (l) put_value(l, out);
        fputs(" |", out);
    }
    fprintf(out, " %s |\n", first->against ? first->against : "");
}

static void figures_lines(const struct bench *b, FILE *out)
{
    fputs(
        "\n## Machine, operators, tokens, prefill, sweeps\n\nMedians, and their share of, or ratio "
        "to, the last column. `--json` writes spreads too.\n\n| what | depth |",
        out);
    put_threads(&b->config.threads, out);
    fputs(" of, against |\n", out);
    put_rule(3 + b->config.threads.n, out);
    for (size_t i = 0; i < b->n_lines; i++)
        if (!is_of_policy(&b->line[i]) && is_first_of_row(b, i)) figures_row(b, &b->line[i], out);
}

static void figures_left_out(const struct bench *b, FILE *out)
{
    const char *text = b->skipped.data;
    if (!text) return;
    fputs("\nLeft out:\n\n", out);
    for (size_t n; *text; text += n + (text[n] == '\n')) {
        n = strcspn(text, "\n");
        fprintf(out, "- %.*s\n", (int)n, text);
    }
}

void bench_figures(const struct bench *b, FILE *out)
{
    figures_lines(b, out);
    figures_policies(b, out);
    figures_left_out(b, out);
}
