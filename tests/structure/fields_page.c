/* The tables of results/README.md, from the rows of harness/log/fields.def (tests/structure/fields.sh). */
#include "fields.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct row {
    const char *kind, *name, *type, *means;
};

/* Of the group of that name; `records`: kinds that have the row. */
static const struct row_of_group {
    const char *group;
    struct row row;
    unsigned records;
} group_rows[] = {
#define POINT(name, type, column, value, means) { "POINT", { "", #name, type, means }, KVL_OF_ALL },
#define OBSERVED(member, name, type, records, whole, value, means)                                 \
    { "OBSERVED", { "", #name, type, means }, (records) },
#define TIERS(name, type, means)         { "OBSERVED", { "", #name, type, means }, KVL_OF_ALL },
#define METHOD(name, type, value, means) { "METHOD", { "", #name, type, means }, KVL_OF_ALL },
#include "fields.def"
};
enum { GROUP_ROWS = sizeof group_rows / sizeof group_rows[0] };

static const struct row rows[] = {
#define ROW(kind, name, type, means)                 { kind, #name, type, means },
#define ALL(name, type, column, value, means)        ROW("All kinds", name, type, means)
#define RUN(name, type, column, value, means)        ROW("run", name, type, means)
#define SAMPLE(name, type, column, value, means)     ROW("sample", name, type, means)
#define QUALITY(name, type, column, value, means)    ROW("quality", name, type, means)
#define CELL(name, type, column, value, means)       ROW("cell", name, type, means)
#define NLL(name, type, column, value, means)        ROW("nll", name, type, means)
#define PERPLEXITY(name, type, column, value, means) ROW("perplexity", name, type, means)
#define PARTIAL(name, type, column, value, means)    ROW("partial", name, type, means)
#define SPEED(name, type, column, value, means)      ROW("speed", name, type, means)
#define ANALYSIS(name, type, column, value, means)   ROW("analysis", name, type, means)
#define ERROR(name, type, column, value, means)      ROW("error", name, type, means)
#include "fields.def"
};
enum { ROWS = sizeof rows / sizeof rows[0] };

/* The numbers of the map `tiers`, behind what it means. */
static void print_tiers(void)
{
    static const struct {
        const char *name, *means;
    } tiers[] = {
#define TIER(member, name, tokens, value, means) { #name, means },
#include "fields.def"
    };
    const char *sep = ". ";
    for (size_t i = 0; i < sizeof tiers / sizeof tiers[0]; i++, sep = ", ")
        printf(*tiers[i].means ? "%s`%s` (%s)" : "%s`%s`", sep, tiers[i].name, tiers[i].means);
}

static unsigned records_of(const char *kind)
{
    static const struct {
        const char *kind;
        unsigned records;
    } of[] = { { "sample", KVL_OF_SAMPLE },
               { "nll", KVL_OF_NLL },
               { "cell", KVL_OF_CELL },
               { "perplexity", KVL_OF_PERPLEXITY },
               { "speed", KVL_OF_SPEED } };
    for (size_t i = 0; i < sizeof of / sizeof of[0]; i++)
        if (strcmp(of[i].kind, kind) == 0) return of[i].records;
    return 0;
}

static bool in_group(size_t i, const struct row *r)
{
    return i < GROUP_ROWS && strcmp(group_rows[i].group, r->name) == 0 &&
           (group_rows[i].records & records_of(r->kind));
}

/* One line for those of the group that follow each other and have one type. */
static void print_group(const struct row *r)
{
    for (size_t i = 0, next; i < GROUP_ROWS; i = next) {
        const char *type = group_rows[i].row.type, *sep = "| ";
        next = i + 1;
        if (!in_group(i, r)) continue;
        for (next = i; in_group(next, r) && strcmp(group_rows[next].row.type, type) == 0; next++) {
            printf("%s`%s`", sep, group_rows[next].row.name);
            sep = ", ";
        }
        printf(" | %s | %s |\n", type, r->means);
    }
}

static void print_row(const struct row *r)
{
    printf("| `%s` | %s | %s", r->name, r->type, r->means);
    if (strcmp(r->name, "tiers") == 0) print_tiers();
    puts(*r->means ? " |" : "|");
}

/* A group stands in full where it is first met. */
static bool is_first(size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (strcmp(rows[k].name, rows[i].name) == 0) return false;
    return true;
}

int main(void)
{
    const char *kind = "";
    for (size_t i = 0; i < ROWS; i++) {
        const struct row *r = &rows[i];
        if (strcmp(kind, r->kind) != 0) {
            if (*kind) puts("<!-- end -->");
            kind = r->kind;
            printf("<!-- made by: tests/structure/fields.sh, %s -->\n", kind);
            puts("| field | type | meaning |\n|---|---|---|");
        }
        if (strcmp(r->type, "group") != 0) {
            print_row(r);
        } else if (is_first(i)) {
            for (size_t g = 0; g < GROUP_ROWS; g++)
                if (in_group(g, r)) print_row(&group_rows[g].row);
        } else {
            print_group(r);
        }
    }
    puts("<!-- end -->");
    return 0;
}
