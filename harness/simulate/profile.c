/* Profiles of devices from YAML. */
#include "profile.h"

#include "data_home.h"
#include "kvl/opt.h"
#include "yamldoc.h"

#include <dirent.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- keys ---------------------------------------------------------------------------------------- */

static int profile_number(const struct kvl_yaml *y, const yaml_node_t *v, const char *key,
                          double *out)
{
    const char *text;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    if (kvl_parse_f64(text, out) == KVL_OK && *out > 0 && *out <= 1e9) return KVL_OK;
    return kvl_yaml_fail(y, v, key, "\"%.40s\", want a number above 0", text);
}

#define NUMBER_READER(field)                                                                       \
    static int read_##field(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)       \
    {                                                                                              \
        return profile_number(y, v, key, &((struct kvl_profile *)user)->field);                    \
    }
NUMBER_READER(memory_gib)
NUMBER_READER(memory_gbs)
NUMBER_READER(tflops)
NUMBER_READER(bus_gbs)
NUMBER_READER(link_gbs)
NUMBER_READER(link_us)
NUMBER_READER(ghz)
NUMBER_READER(mma_share)

#define COUNT_READER(field)                                                                        \
    static int read_##field(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)       \
    {                                                                                              \
        int64_t n;                                                                                 \
        KVL_TRY(kvl_yaml_i64(y, v, key, 1, 1 << 20, &n));                                          \
        ((struct kvl_profile *)user)->field = (int32_t)n;                                          \
        return KVL_OK;                                                                             \
    }
COUNT_READER(multiprocessors)
COUNT_READER(cores)

static int read_name(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    struct kvl_profile *p = user;
    const char *text;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    snprintf(p->name, sizeof p->name, "%s", text);
    return KVL_OK;
}

static int read_kind(struct kvl_yaml *y, yaml_node_t *v, const char *key, void *user)
{
    const char *text;
    KVL_TRY(kvl_yaml_text(y, v, key, &text));
    ((struct kvl_profile *)user)->gpu = strcmp(text, "gpu") == 0;
    if (strcmp(text, "gpu") == 0 || strcmp(text, "cpu") == 0) return KVL_OK;
    return kvl_yaml_fail(y, v, key, "\"%.40s\", want gpu or cpu", text);
}

static const struct kvl_yaml_key profile_keys[] = {
    { "name", read_name, false },
    { "kind", read_kind, false },
    { "memory_gib", read_memory_gib, false },
    { "memory_gbs", read_memory_gbs, false },
    { "tflops", read_tflops, false },
    { "bus_gbs", read_bus_gbs, false },
    { "link_gbs", read_link_gbs, false },
    { "link_us", read_link_us, false },
    { "ghz", read_ghz, false },
    { "mma_share", read_mma_share, false },
    { "multiprocessors", read_multiprocessors, false },
    { "cores", read_cores, false },
};

/* What times cannot be made without. */
static int profile_whole(const struct kvl_yaml *y, const struct kvl_profile *p)
{
    const struct {
        const char *key;
        bool there;
    } want[] = { { "name", p->name[0] != '\0' },
                 { "memory_gib", p->memory_gib > 0 },
                 { "memory_gbs", p->memory_gbs > 0 },
                 { "tflops", p->tflops > 0 },
                 { "bus_gbs", !p->gpu || p->bus_gbs > 0 },
                 { "ghz", !p->gpu || p->ghz > 0 },
                 { "multiprocessors", !p->gpu || p->multiprocessors > 0 },
                 { "cores", p->gpu || p->cores > 0 } };
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        if (!want[i].there)
            return kvl_fail(y->err, KVL_EINVAL, "%s: no %s, want it of a %s", y->name, want[i].key,
                            p->gpu ? "gpu" : "cpu");
    return KVL_OK;
}

/* ---- files --------------------------------------------------------------------------------------- */

static int profile_file(const char *path, struct kvl_profile *out, struct kvl_err *err)
{
    struct kvl_buf text = { 0 };
    struct kvl_yaml y = { 0 };
    struct kvl_profile p = { .mma_share = 1 };
    int rc = kvl_read_file(path, KVL_YAML_LIMIT, &text, err);
    if (rc == KVL_OK) rc = kvl_yaml_load(&y, path, true, text.data ? text.data : "", text.len, err);
    if (rc == KVL_OK)
        rc = kvl_yaml_walk(&y, kvl_yaml_root(&y), "", profile_keys,
                           sizeof profile_keys / sizeof profile_keys[0], &p);
    if (rc == KVL_OK) rc = profile_whole(&y, &p);
    if (rc == KVL_OK) *out = p;
    kvl_yaml_free(&y);
    kvl_buf_free(&text);
    return rc;
}

static int name_order(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int profile_unknown(const char *word, struct kvl_err *err)
{
    enum { MOST = 64 };
    char home[PATH_MAX], *name[MOST];
    size_t n = 0;
    struct kvl_buf all = { 0 };
    DIR *dir = kvl_home("harness/profiles", "h100.yaml", home, sizeof home, NULL) == KVL_OK
                   ? opendir(home)
                   : NULL;
    for (struct dirent *e; dir && n < MOST && (e = readdir(dir));) {
        char *dot = strstr(e->d_name, ".yaml");
        if (dot && (name[n] = strndup(e->d_name, (size_t)(dot - e->d_name)))) n++;
    }
    if (dir) closedir(dir);
    if (n) qsort(name, n, sizeof *name, name_order);
    for (size_t i = 0; i < n; i++) {
        kvl_buf_printf(&all, ", %s", name[i]);
        free(name[i]);
    }
    int rc = kvl_fail(err, KVL_EINVAL, "--profiles: \"%.60s\": want here%s, or the path of a file",
                      word, all.data ? all.data : "");
    kvl_buf_free(&all);
    return rc;
}

int kvl_profile_read(const char *word, struct kvl_profile *out, struct kvl_err *err)
{
    char home[PATH_MAX], file[NAME_MAX];
    struct kvl_buf path = { 0 };
    size_t len = strlen(word);
    if (strchr(word, '/') || (len > 5 && strcmp(word + len - 5, ".yaml") == 0))
        return profile_file(word, out, err);
    snprintf(file, sizeof file, "%s.yaml", word);
    if (len == 0 || kvl_home("harness/profiles", file, home, sizeof home, NULL) != KVL_OK)
        return profile_unknown(word, err);
    int rc = kvl_buf_printf(&path, "%s/%s", home, file);
    rc = rc == KVL_OK ? profile_file(path.data, out, err) : kvl_fail(err, rc, "out of memory");
    kvl_buf_free(&path);
    return rc;
}
