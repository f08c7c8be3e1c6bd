/* Threads that are allowed. */
#include "allowed.h"

#include "kvl/opt.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALLOWED_PATH = 2048 };

/* The first `n` numbers of a file's first line; false: it has no such line ("max 100000"). */
static bool allowed_numbers(const char *path, double *out, int n)
{
    FILE *f = fopen(path, "r");
    int got = 0;
    if (!f) return false;
    while (got < n && fscanf(f, "%lf", &out[got]) == 1) got++;
    fclose(f);
    return got == n;
}

/* Of one group: "quota period" of version 2, a file each in version 1, where a quota below zero is none. */
static double group_cores(const char *folder, bool v1)
{
    char path[ALLOWED_PATH + 32];
    double v[2] = { 0 };
    bool known;
    if (v1) {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        known = allowed_numbers(path, &v[0], 1);
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        known = known && allowed_numbers(path, &v[1], 1);
    } else {
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        known = allowed_numbers(path, v, 2);
    }
    return known && v[0] > 0 && v[1] > 0 ? v[0] / v[1] : 0.0;
}

/* The group and those around it, up to the root, whose folder is the first n_root bytes of `folder`. */
static double group_least(char *folder, size_t n_root, bool v1)
{
    double least = 0.0;
    for (size_t n = strlen(folder);; folder[n] = '\0') {
        double cores = group_cores(folder, v1);
        if (cores > 0 && (least <= 0 || cores < least)) least = cores;
        if (n <= n_root) return least;
        while (n > n_root && folder[n - 1] != '/') n--;
        while (n > n_root && folder[n - 1] == '/') n--;
    }
}

/* "4:cpu,cpuacct:/path" of version 1 has cpu among its names. */
static bool group_has_cpu(const char *names)
{
    for (const char *p = names; *p;) {
        size_t n = strcspn(p, ",");
        if (n == 3 && strncmp(p, "cpu", 3) == 0) return true;
        p += n + (p[n] != '\0');
    }
    return false;
}

double kvl_cgroup_cores(const char *list, const char *root)
{
    char line[ALLOWED_PATH / 2], folder[ALLOWED_PATH];
    double least = 0.0;
    FILE *f = fopen(list, "r");
    if (!f) return 0.0;
    while (fgets(line, sizeof line, f)) {
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path) continue;
        *names++ = *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        bool v1 = *names != '\0';
        if (v1 && !group_has_cpu(names)) continue;
        int n_root = snprintf(folder, sizeof folder, "%s%s", root, v1 ? "/cpu" : "");
        if (n_root < 0 || (size_t)n_root + strlen(path) >= sizeof folder) continue;
        memcpy(folder + n_root, path, strlen(path) + 1);
        double cores = group_least(folder, (size_t)n_root, v1);
        if (cores > 0 && (least <= 0 || cores < least)) least = cores;
    }
    fclose(f);
    return least;
}

static int32_t allowed_env(const char *name)
{
    const char *text = getenv(name);
    int64_t n;
    return text && kvl_parse_i64(text, &n) == 0 && n > 0 && n < 100000 ? (int32_t)n : 0;
}

void kvl_allowed_read(struct kvl_allowed *out)
{
    cpu_set_t set;
    *out = (struct kvl_allowed){ .online = (int32_t)sysconf(_SC_NPROCESSORS_ONLN),
                                 .quota = kvl_cgroup_cores("/proc/self/cgroup", "/sys/fs/cgroup"),
                                 .slurm = allowed_env("SLURM_CPUS_PER_TASK"),
                                 .asked = allowed_env("OMP_NUM_THREADS") };
    out->cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : out->online;
    if (!out->slurm) out->slurm = allowed_env("SLURM_CPUS_ON_NODE");
}

int32_t kvl_allowed_threads(const struct kvl_allowed *a)
{
    int32_t n = a->cores;
    if (a->quota > 0 && a->quota < n) n = (int32_t)ceil(a->quota);
    if (a->slurm && a->slurm < n) n = a->slurm;
    return n > 1 ? n : 1;
}
