/* The tables of harness/sweeps/README.md, from the rows of harness/plan/settings.def (tests/structure/settings.sh). */
#include <stdio.h>
#include <string.h>

static const struct {
    const char *key, *page, *takes, *otherwise, *means, *example;
} rows[] = {
#define SETTING(key, how, shown, in_key, page, takes, otherwise, means, example)                   \
    { key, #page, takes, otherwise, means, example },
#include "settings.def"
};

int main(void)
{
    static const char *const pages[] = { "ASKED", "MEASURED", "RUN" };
    for (size_t p = 0; p < sizeof pages / sizeof pages[0]; p++) {
        printf("<!-- made by: tests/structure/settings.sh, %s -->\n", pages[p]);
        puts("| key | takes | default | meaning | example |\n|---|---|---|---|---|");
        for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
            if (strcmp(rows[i].page, pages[p]) == 0)
                printf("| `%s` | %s | %s | %s | `%s` |\n", rows[i].key, rows[i].takes,
                       rows[i].otherwise, rows[i].means, rows[i].example);
        puts("<!-- end -->");
    }
    return 0;
}
