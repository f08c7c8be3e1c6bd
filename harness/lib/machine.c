/* Facts about this machine. */
#include "machine.h"

#include "kvl/base.h"
#include "kvl/ops.h"
#include "kvl/opt.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

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

int64_t kvl_memory_free_bytes(void)
{
    int64_t bytes = machine_count("/proc/meminfo", "MemAvailable") * 1024;
    int64_t limit = machine_number("/sys/fs/cgroup/memory.max");
    int64_t used = machine_number("/sys/fs/cgroup/memory.current");
    if (limit >= 0 && used >= 0 && bytes > 0) bytes = KVL_MIN(bytes, KVL_MAX(limit - used, 1));
    return bytes;
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
