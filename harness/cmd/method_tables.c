/* method_tables.c - tables of all methods, made of their cards, hooks and capabilities.
 *
 * methods/README.md and methods/cards.md hold what this prints; tests/structure/method_tables.sh compares and renews. */
#include "method_tables.h"

#include "kvl/policy.h"
#include "registry.h"

#include <string.h>

static bool default_is(const struct kvl_policy *p, const char *option, const char *value)
{
    for (const struct kvl_opt *o = p->opts; o && o->name; o++)
        if (strcmp(o->name, option) == 0) return strcmp(o->def, value) == 0;
    return false;
}

/* The n-th kind, or NULL where the method is not of it. */
enum { N_KINDS = 13 };
static const char *kind_of(const struct kvl_policy *p, int n)
{
    bool offloads = p->caps & KVL_CAP_OFFLOADS, moves = p->caps & KVL_CAP_REPOSITIONS;
    bool bound = p->caps & KVL_CAP_BOUND;
    const struct {
        bool is;
        const char *text;
    } kinds[N_KINDS] = {
        { bound, "bound" },
        { p->score && !p->evict && !p->inner && !bound, "evicts once" },
        { p->evict && !p->score, "evicts while decoding" },
        { p->evict && p->score, "evicts" }, /* an option says when */
        { p->inner && p->score, "wraps scores" },
        { p->inner && p->select, "wraps selections" },
        { p->caps & KVL_CAP_SELECTS && !p->inner && !bound, "selects" },
        { p->caps & KVL_CAP_SAMPLES && !bound, "samples" },
        { moves && !default_is(p, "positions", "original"), "moves positions" },
        { moves && default_is(p, "positions", "original"), "can move positions" },
        { offloads && !default_is(p, "offload", "false"), "offloads" },
        { offloads && default_is(p, "offload", "false"), "can offload" },
        { p->prefill_mask, "sparse prefill" },
    };
    return kinds[n].is ? kinds[n].text : NULL;
}

static int first_kind(const struct kvl_policy *p)
{
    int n = 0;
    while (n < N_KINDS && !kind_of(p, n)) n++;
    return n;
}

/* A cell: what Markdown would take for its own is escaped. */
static void cell(const char *text, FILE *out)
{
    fputs(" ", out);
    for (const char *c = text ? text : ""; *c; c++) {
        if (strchr("|*<\\", *c)) fputc('\\', out);
        fputc(*c, out);
    }
    fputs(" |", out);
}

static void kinds_row(const struct kvl_policy *p, FILE *out)
{
    char paper[512];
    snprintf(paper, sizeof paper, "%s: %s", p->title, p->paper);
    cell(paper, out);
    cell(p->help, out);
    const char *comma = " ";
    for (int i = 0; i < N_KINDS; i++) {
        const char *kind = kind_of(p, i);
        if (kind) fprintf(out, "%s%s", comma, kind);
        if (kind) comma = ", ";
    }
    fputs(" |", out);
}

static void follows_row(const struct kvl_policy *p, FILE *out)
{
    cell(p->follows, out);
}

static void deviations_row(const struct kvl_policy *p, FILE *out)
{
    cell(p->deviations, out);
}

static void cost_row(const struct kvl_policy *p, FILE *out)
{
    cell(p->cost, out);
}

void kvl_method_tables(const struct kvl_registry *r, FILE *out)
{
    static const struct {
        const char *name, *head, *rule;
        void (*row)(const struct kvl_policy *p, FILE *out);
    } tables[] = {
        { "kinds", "name | paper | what it does | kind", "---|---|---|---", kinds_row },
        { "follows", "method | follows", "---|---", follows_row },
        { "deviations", "method | differs in", "---|---", deviations_row },
        { "cost", "method | cost", "---|---", cost_row },
    };
    for (size_t t = 0; t < sizeof tables / sizeof tables[0]; t++) {
        fprintf(out, "<!-- made by: kvlab describe --markdown, %s -->\n| %s |\n|%s|\n",
                tables[t].name, tables[t].head, tables[t].rule);
        for (int kind = 0; kind <= N_KINDS; kind++)
            for (size_t i = 0; i < kvl_registry_n_policies(r); i++) {
                const struct kvl_policy *p = kvl_registry_policy(r, i);
                if (first_kind(p) != kind) continue;
                fprintf(out, "| `%s` |", p->name);
                tables[t].row(p, out);
                fputc('\n', out);
            }
        fputs("<!-- end -->\n", out);
    }
}
