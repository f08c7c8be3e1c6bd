/* Pages of results. */
#include "report_html.h"

#include "folders.h"
#include "outfile.h"
#include "page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What a page is made of: a page of `r`, or the index of a site. */
struct html {
    const struct kvl_results *r;
    const struct kvl_registry *registry;
    const char *up;
    const struct kvl_site_page *page; /* [n] of the index; NULL: a page */
    size_t n;
};

static int html_file(const struct html *h, const char *path, struct kvl_err *err)
{
    struct kvl_outfile o;
    KVL_TRY(kvl_make_folders(path, err));
    KVL_TRY(kvl_outfile_open(&o, path, err));
    int rc = h->page ? kvl_page_index(h->r, h->registry, h->page, h->n, o.f, err)
                     : kvl_page_write(h->r, h->registry, h->up, o.f, err);
    rc = kvl_outfile_close(&o, rc, err);
    if (rc == KVL_OK) printf("%s\n", path);
    return rc;
}

/* ---- a site ---------------------------------------------------------------------------------- */

#define SITE_BYTES "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-"

static bool is_folder(const char *path)
{
    struct stat st;
    size_t n = strlen(path);
    return (n > 0 && path[n - 1] == '/') || (stat(path, &st) == 0 && S_ISDIR(st.st_mode));
}

/* The name of the log without what tells its form, and a number where another page or the index has
 * it.  As it stands it is a URL of the index: bytes that may mean something there become '-'. */
static char *site_name(const struct kvl_site_page *page, size_t n)
{
    const char *log = strrchr(page[n].log, '/');
    log = log ? log + 1 : page[n].log;
    char stem[201], name[300];
    snprintf(stem, sizeof stem, "%.*s", (int)KVL_MIN(strcspn(log, "."), sizeof stem - 1), log);
    for (char *c = stem; *c; c++)
        if (!strchr(SITE_BYTES, *c)) *c = '-';
    for (int k = 1;; k++) {
        if (k == 1)
            snprintf(name, sizeof name, "%s.html", stem);
        else
            snprintf(name, sizeof name, "%s-%d.html", stem, k);
        bool taken = strcmp(name, "index.html") == 0 || name[0] == '.';
        for (size_t i = 0; i < n; i++) taken |= strcmp(page[i].file, name) == 0;
        if (!taken) return strdup(name);
    }
}

static int site_write(const struct html *h, const char *folder, const char *file,
                      struct kvl_err *err)
{
    char path[4096];
    bool slash = folder[strlen(folder) - 1] == '/';
    if (snprintf(path, sizeof path, "%s%s%s", folder, slash ? "" : "/", file) >= (int)sizeof path)
        return kvl_fail(err, KVL_EINVAL, "--html: a path of %zu bytes is too long", strlen(folder));
    return html_file(h, path, err);
}

static int site_page(const struct kvl_registry *registry, const char *folder, char *log,
                     struct kvl_site_page *page, size_t n, struct kvl_err *err)
{
    struct kvl_results r = { 0 };
    page[n].log = log;
    if (!(page[n].file = site_name(page, n))) return kvl_fail(err, KVL_ENOMEM, "out of memory");
    KVL_TRY(kvl_results_load(&log, 1, &r, err));
    page[n].n_results = r.n;
    snprintf(page[n].newest, sizeof page[n].newest, "%s", kvl_json_text(r.newest_run, "t_start"));
    struct html h = { .r = &r, .registry = registry, .up = "index.html" };
    int rc = site_write(&h, folder, page[n].file, err);
    kvl_results_free(&r);
    return rc;
}

static int site(const struct kvl_results *r, const struct kvl_registry *registry,
                const struct kvl_log_paths *logs, const char *folder, struct kvl_err *err)
{
    struct kvl_site_page *page = kvl_alloc(logs->n, sizeof *page);
    int rc = page ? KVL_OK : kvl_fail(err, KVL_ENOMEM, "out of memory for %zu pages", logs->n);
    for (size_t i = 0; i < logs->n && rc == KVL_OK; i++)
        rc = site_page(registry, folder, logs->path[i], page, i, err);
    struct html h = { .r = r, .registry = registry, .page = page, .n = logs->n };
    if (rc == KVL_OK) rc = site_write(&h, folder, "index.html", err);
    for (size_t i = 0; page && i < logs->n; i++) free(page[i].file);
    kvl_free(page);
    return rc;
}

int kvl_report_html(const struct kvl_results *r, char *const *words, size_t n_words,
                    const char *path, struct kvl_err *err)
{
    struct kvl_registry *registry;
    struct kvl_log_paths logs;
    if (!*path) return kvl_fail(err, KVL_EINVAL, "--html: an empty name, want a file or a folder");
    KVL_TRY(kvl_registry_create(&registry, err));
    struct html h = { .r = r, .registry = registry };
    int rc = KVL_OK;
    if (!is_folder(path)) {
        rc = html_file(&h, path, err);
    } else if ((rc = kvl_log_paths(words, n_words, &logs, err)) == KVL_OK) {
        rc = site(r, registry, &logs, path, err);
        kvl_log_paths_free(&logs);
    }
    kvl_registry_destroy(registry);
    return rc;
}
