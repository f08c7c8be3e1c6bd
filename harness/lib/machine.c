/* Facts about this machine. */
#include "machine.h"

#include "kvl/base.h"
#include "kvl/ops.h"
#include "kvl/opt.h"

#include <malloc.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum { CGROUP_PATH = 2048 };

/* The value of the first line "key : value" of a file, or of `key=value`. */
static void machine_line(const char *path, const char *key, char between, char *out, size_t size)
{
    char line[512];
    size_t n = strlen(key);
    FILE *f = fopen(path, "r");
    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        const char *sep = strchr(line, between);
        if (strncmp(line, key, n) != 0 || !sep) continue;
        const char *value = sep + 1 + strspn(sep + 1, " \t\"");
        snprintf(out, size, "%.*s", (int)strcspn(value, "\"\n"), value);
        break;
    }
    fclose(f);
}

static int32_t machine_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    return (int32_t)sysconf(_SC_NPROCESSORS_ONLN);
}

static double machine_mhz(void)
{
    char line[256];
    double mhz, sum = 0;
    int n = 0;
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "cpu MHz : %lf", &mhz) == 1) {
            sum += mhz;
            n++;
        }
    if (f) fclose(f);
    return n ? sum / n : 0;
}

void kvl_machine_read(struct kvl_machine *out)
{
    struct utsname name;
    char distribution[80] = "";
    *out = (struct kvl_machine){ .cores = machine_cores() };
    if (gethostname(out->host, sizeof out->host - 1) != 0) out->host[0] = '\0';
    machine_line("/proc/cpuinfo", "model name", ':', out->cpu, sizeof out->cpu);
    machine_line("/etc/os-release", "PRETTY_NAME", '=', distribution, sizeof distribution);
    if (uname(&name) == 0)
        snprintf(out->os, sizeof out->os, "%s, %.30s %.40s", distribution, name.sysname,
                 name.release);
    if (!out->cpu[0]) snprintf(out->cpu, sizeof out->cpu, "%.60s", name.machine);
    snprintf(out->isa, sizeof out->isa, "%s", kvl_ops_isa());
    out->ram_bytes = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    out->mhz = machine_mhz();
}

/* A number in the first line of a file; -1 when there is none ("max"). */
static int64_t machine_number(const char *path)
{
    char line[64] = "";
    int64_t n = -1;
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    if (fgets(line, sizeof line, f)) line[strcspn(line, "\n")] = '\0';
    fclose(f);
    return kvl_parse_i64(line, &n) == KVL_OK ? n : -1;
}

/* The value of "key: N ..." of a file; 0 when there is none. */
static int64_t machine_count(const char *path, const char *key)
{
    char text[64] = "";
    int64_t n = 0;
    machine_line(path, key, ':', text, sizeof text);
    text[strspn(text, "0123456789")] = '\0';
    return kvl_parse_i64(text, &n) == KVL_OK ? n : 0;
}

/* The number behind "key " in a file of such lines; 0 when there is none. */
static int64_t machine_stat(const char *path, const char *key)
{
    char text[64] = "";
    int64_t n = 0;
    machine_line(path, key, ' ', text, sizeof text);
    return kvl_parse_i64(text, &n) == KVL_OK ? n : 0;
}

/* ---- control groups -------------------------------------------------------------------------- */

/* What a version calls its files. */
struct cgroup_names {
    const char *limit, *used, *files[2];
};
static const struct cgroup_names cgroup_v2 = { "memory.max",
                                               "memory.current",
                                               { "active_file", "inactive_file" } };
static const struct cgroup_names cgroup_v1 = { "memory.limit_in_bytes",
                                               "memory.usage_in_bytes",
                                               { "total_active_file", "total_inactive_file" } };

/* What one group leaves; -1 = it has no limit.  Pages of files count as used and are given up on demand. */
static int64_t cgroup_left(const char *folder, const struct cgroup_names *names)
{
    char path[CGROUP_PATH + 32];
    snprintf(path, sizeof path, "%s/%s", folder, names->limit);
    int64_t limit = machine_number(path);
    snprintf(path, sizeof path, "%s/%s", folder, names->used);
    int64_t used = machine_number(path);
    if (limit < 0 || used < 0) return -1;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    for (size_t i = 0; i < 2; i++) used -= machine_stat(path, names->files[i]);
    return KVL_MAX(limit - KVL_MAX(used, 0), 1);
}

static int64_t machine_least(int64_t a, int64_t b)
{
    if (a < 0 || b < 0) return KVL_MAX(a, b);
    return KVL_MIN(a, b);
}

/* The group and those around it, up to the root, whose folder is the first n_root bytes of `folder`. */
static int64_t cgroup_least(char *folder, size_t n_root, const struct cgroup_names *names)
{
    int64_t least = -1;
    for (size_t n = strlen(folder);; folder[n] = '\0') {
        least = machine_least(least, cgroup_left(folder, names));
        if (n <= n_root) return least;
        while (n > n_root && folder[n - 1] != '/') n--;
        while (n > n_root && folder[n - 1] == '/') n--;
    }
}

int64_t kvl_cgroup_free_bytes(const char *list, const char *root)
{
    char line[CGROUP_PATH / 2], folder[CGROUP_PATH];
    int64_t least = -1;
    FILE *f = fopen(list, "r");
    if (!f) return -1;
    while (fgets(line, sizeof line, f)) { /* "0::/path", or "7:memory:/path" of version 1 */
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        path[strcspn(path, "\n")] = '\0';
        bool v1 = strcmp(names, ":memory") == 0;
        if (!v1 && strcmp(names, ":") != 0) continue;
        int n_root = snprintf(folder, sizeof folder, "%s%s", root, v1 ? "/memory" : "");
        if (n_root < 0 || (size_t)n_root + strlen(path) >= sizeof folder) continue;
        memcpy(folder + n_root, path, strlen(path) + 1);
        least = machine_least(least,
                              cgroup_least(folder, (size_t)n_root, v1 ? &cgroup_v1 : &cgroup_v2));
    }
    fclose(f);
    return least;
}

/* ---- free memory ----------------------------------------------------------------------------- */

/* What ulimit leaves of address space or data; -1 = no limit. */
static int64_t machine_rlimit(__rlimit_resource_t which, const char *used)
{
    struct rlimit limit;
    if (getrlimit(which, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
    int64_t most = (int64_t)KVL_MIN(limit.rlim_cur, (rlim_t)INT64_MAX);
    return KVL_MAX(most - machine_count("/proc/self/status", used) * 1024, 1);
}

int64_t kvl_memory_free_bytes(void)
{
    int64_t bytes = machine_count("/proc/meminfo", "MemAvailable") * 1024;
    if (bytes <= 0) bytes = -1;
    bytes = machine_least(bytes, kvl_cgroup_free_bytes("/proc/self/cgroup", "/sys/fs/cgroup"));
    bytes = machine_least(bytes, machine_rlimit(RLIMIT_AS, "VmSize"));
    bytes = machine_least(bytes, machine_rlimit(RLIMIT_DATA, "VmData"));
    return KVL_MAX(bytes, 0);
}

int64_t kvl_process_bytes(int64_t pid)
{
    char path[64];
    long long total, resident, shared, n = 0;
    snprintf(path, sizeof path, "/proc/%lld/statm", (long long)pid);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    if (fscanf(f, "%lld %lld %lld", &total, &resident, &shared) == 3) n = resident - shared;
    fclose(f);
    return (int64_t)n * sysconf(_SC_PAGESIZE);
}

#ifndef __GLIBC_PREREQ /* another C library */
#define __GLIBC_PREREQ(major, minor) 0
#endif

int64_t kvl_heap_bytes(void)
{
#if __GLIBC_PREREQ(2, 33)
    struct mallinfo2 m = mallinfo2();
    return (int64_t)(m.uordblks + m.hblkhd);
#else
    return 0;
#endif
}

int32_t kvl_machine_threads(void)
{
    return (int32_t)machine_count("/proc/self/status", "Threads");
}

void kvl_time_utc(char out[32])
{
    struct timespec now;
    struct tm utc;
    char text[24];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(out, 32, "%s.%03dZ", text, (int)(now.tv_nsec / 1000000));
}

int64_t kvl_rss_peak_bytes(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
    return (int64_t)usage.ru_maxrss * 1024;
}
