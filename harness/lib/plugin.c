/* Policies and tasks from shared objects. */
#include "plugin.h"

#include "kvl/fpenv.h"

#include "crash_line.h"

#include <dlfcn.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

enum { PLUGIN_LIMIT = 1 << 30 };

struct kvl_plugin {
    void *handle;
    char *path; /* as opened */
    uint64_t hash;
    const void *object;
};

static const struct plugin_kind {
    int code; /* of a failure */
    const char *symbol, *what, *flag;
} plugin_kinds[] = {
    [KVL_PLUGIN_POLICY] = { KVL_EPOLICY, "kvl_plugin_policy", "method", "--plugin" },
    [KVL_PLUGIN_TASK] = { KVL_ETASK, "kvl_plugin_task", "task", "--task-plugin" },
};

/* dlopen searches folders for a name without '/'; "./name" is that file and no other. */
static char *plugin_path_copy(const char *path)
{
    struct kvl_buf copy = { 0 };
    if (kvl_buf_printf(&copy, "%s%s", strchr(path, '/') ? "" : "./", path) != KVL_OK) return NULL;
    return copy.data;
}

static int plugin_read(struct kvl_plugin *p, struct kvl_err *err)
{
    struct kvl_buf file = { 0 };
    int rc = kvl_read_file(p->path, PLUGIN_LIMIT, &file, err);
    p->hash = rc == KVL_OK ? XXH3_64bits(file.data, file.len) | 1u : 0;
    kvl_buf_free(&file);
    return rc;
}

static int plugin_find(struct kvl_plugin *p, enum kvl_plugin_kind kind, struct kvl_err *err)
{
    const struct plugin_kind *k = &plugin_kinds[kind];
    const struct plugin_kind *other =
        &plugin_kinds[kind == KVL_PLUGIN_TASK ? KVL_PLUGIN_POLICY : KVL_PLUGIN_TASK];
    const void *const *symbol = dlsym(p->handle, k->symbol);
    if (symbol && *symbol) {
        p->object = *symbol;
        return KVL_OK;
    }
    if (dlsym(p->handle, other->symbol))
        return kvl_fail(err, k->code, "%s: is a %s, want %s %s", p->path, other->what, other->flag,
                        p->path);
    return kvl_fail(err, k->code, "%s: has no symbol %s, want a %s compiled with -DKVL_PLUGIN",
                    p->path, k->symbol, k->what);
}

/* What is linked with -Ofast turns on flush-to-zero for the whole process when it is loaded. */
static void plugin_tidy(const struct kvl_plugin *p)
{
    const char *locale = setlocale(LC_ALL, NULL);
    bool changed = !kvl_fp_default(), numbers = locale && strcmp(locale, "C") != 0;
    if (changed)
        fprintf(stderr,
                "kvlab: %s: changed how floating point rounds, flushes to zero or traps when it "
                "was loaded "
                "(-Ofast or -ffast-math?); that is undone\n",
                p->path);
    if (numbers)
        fprintf(stderr, "kvlab: %s: changed the locale when it was loaded; that is undone\n",
                p->path);
    if (changed) kvl_fp_restore();
    if (numbers) setlocale(LC_ALL, "C");
}

static int plugin_load(struct kvl_plugin *p, enum kvl_plugin_kind kind, struct kvl_err *err)
{
    KVL_TRY(plugin_read(p, err));
    p->handle = dlopen(p->path, RTLD_NOW | RTLD_LOCAL);
    plugin_tidy(p);
    if (!p->handle) {
        const char *why = dlerror();
        size_t n = strlen(p->path);
        if (why && strncmp(why, p->path, n) == 0 && strncmp(why + n, ": ", 2) == 0) why += n + 2;
        return kvl_fail(err, plugin_kinds[kind].code, "%s: cannot be loaded: %s", p->path,
                        why ? why : "unknown reason");
    }
    return plugin_find(p, kind, err);
}

int kvl_plugin_open(const char *path, enum kvl_plugin_kind kind, struct kvl_plugin **out,
                    struct kvl_err *err)
{
    struct kvl_plugin *p = kvl_alloc(1, sizeof *p);
    if (p) p->path = plugin_path_copy(path);
    if (!p || !p->path) {
        kvl_free(p);
        return kvl_fail(err, KVL_ENOMEM, "%s: out of memory", path);
    }
    kvl_guard_enter();
    int rc = plugin_load(p, kind, err);
    if (rc != KVL_OK) {
        kvl_plugin_close(p);
        return rc;
    }
    *out = p;
    return KVL_OK;
}

void kvl_plugin_close(struct kvl_plugin *p)
{
    if (!p) return;
    if (p->handle) dlclose(p->handle);
    kvl_fp_restore();
    kvl_guard_leave();
    kvl_free(p->path);
    kvl_free(p);
}

const void *kvl_plugin_object(const struct kvl_plugin *p)
{
    return p->object;
}

const char *kvl_plugin_path(const struct kvl_plugin *p)
{
    return p->path;
}

uint64_t kvl_plugin_hash(const struct kvl_plugin *p)
{
    return p->hash;
}
