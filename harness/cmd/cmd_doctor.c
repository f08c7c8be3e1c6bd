/* kvlab doctor: what this machine has for kvlab, what it lacks, and what to do about it. */
#include "allowed.h"
#include "args.h"
#include "build.h"
#include "cmds.h"
#include "device_probe.h"
#include "machine.h"

#include "kvl/ops.h"
#include "kvl/peak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

struct doctor_args {
    struct kvl_args base;
};

static const struct argp doctor_argp = {
    .doc = "What this machine has for kvlab: threads that the system, control groups and Slurm "
           "allow, memory and how fast "
           "it is read, disk, GPU; where there is no GPU, why; and what to do about it.",
};

static void doctor_machine(void)
{
    struct kvl_machine m;
    kvl_machine_read(&m);
    printf("program    kvlab %s (%s, %s, %s)\n", kvl_build.version, kvl_build.git, kvl_build.type,
           kvl_build.compiler);
    printf("processor  %s, %d core%s, vector code %s\n", m.cpu, m.cores, m.cores == 1 ? "" : "s",
           m.isa);
    printf("memory     %.1f GiB, %.1f of them free\n", (double)m.ram_bytes / 0x1p30,
           (double)kvl_memory_free_bytes() / 0x1p30);
    printf("system     %s\n", m.os);
}

/* A line of a small file of the system; "" = there is none. */
static void doctor_line(const char *path, char *out, size_t size)
{
    FILE *f = fopen(path, "r");
    out[0] = '\0';
    if (!f) return;
    if (!fgets(out, (int)size, f)) out[0] = '\0';
    fclose(f);
    out[strcspn(out, "\n")] = '\0';
}

static void doctor_threads(const struct kvl_allowed *a)
{
    char governor[64];
    struct kvl_machine m;
    printf("threads    %d of %d processors may be used", a->cores, a->online);
    if (a->quota > 0) printf(", time of %.2f by control groups", a->quota);
    if (a->slurm) printf(", %d by Slurm", a->slurm);
    if (a->asked) printf(", OMP_NUM_THREADS is %d", a->asked);
    putchar('\n');
    kvl_machine_read(&m);
    doctor_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", governor, sizeof governor);
    if (m.mhz > 0)
        printf("clock      %.0f MHz now%s%s\n", m.mhz, *governor ? ", governor " : "", governor);
}

enum { DOCTOR_STREAM = 256 << 20, DOCTOR_READS = 3 };

/* The best of some reads of memory that no cache holds; 0: there is none to spare. */
static double doctor_stream(int32_t threads)
{
    size_t n = DOCTOR_STREAM / sizeof(float);
    int64_t free_bytes = kvl_memory_free_bytes();
    if (free_bytes && free_bytes / 4 < DOCTOR_STREAM) return 0;
    float *v = aligned_alloc(64, DOCTOR_STREAM);
    double best = 0;
    if (!v) return 0;
    for (size_t i = 0; i < n; i++) v[i] = 1e-3f;
    kvl_ops_set_threads(threads);
    for (int i = 0; i < DOCTOR_READS; i++) {
        uint64_t t0 = kvl_now_ns();
        (void)kvl_peak_read(v, n);
        double s = (double)DOCTOR_STREAM / (double)(kvl_now_ns() - t0);
        best = KVL_MAX(best, s);
    }
    free(v);
    return best;
}

static void doctor_disk(const char *what, const char *path, double *least_gib)
{
    struct statvfs st;
    if (statvfs(path, &st) != 0) return;
    double gib = (double)st.f_bavail * (double)st.f_frsize / 0x1p30;
    printf("disk       %.1f GiB free %s\n", gib, what);
    *least_gib = KVL_MIN(*least_gib, gib);
}

enum { DOCTOR_FEW_GIB = 2 };

/* What would go wrong, or slowly. */
static void doctor_advice(const struct kvl_allowed *a, double disk_gib)
{
    int32_t best = kvl_allowed_threads(a), now = a->asked ? a->asked : a->cores;
    int64_t free_bytes = kvl_memory_free_bytes();
    if (now > best)
        printf("do         --threads %d: more would wait for each other, %d are the default here\n",
               best, now);
    if (now < best)
        printf("do         --threads %d, or unset OMP_NUM_THREADS: %d of them are used otherwise\n",
               best, now);
    if (disk_gib < DOCTOR_FEW_GIB)
        printf("do         free disk space: logs stop when it is full (%.1f GiB left)\n", disk_gib);
    if (free_bytes && free_bytes < (int64_t)DOCTOR_FEW_GIB << 30)
        puts("do         kvlab models says which models fit such a memory; --kv-type q8_0 and "
             "kv_limit_mib keep it small");
}

static void doctor_gpu(void)
{
    struct kvl_err why = { 0 };
    struct kvl_probed p;
    if (kvl_device_probe("cuda", 0, &p, &why) != KVL_OK) {
        printf("GPU        none: %s\n", why.msg);
        return;
    }
    printf("GPU        %s, compute %d.%d, %d multiprocessors", p.info.name, p.info.compute_major,
           p.info.compute_minor, p.info.n_sm);
    if (p.info.clock_mhz > 0) printf(", up to %.0f MHz", p.info.clock_mhz);
    putchar('\n');
    printf("driver     %s; this program was built with CUDA %s\n", p.info.driver, p.info.toolkit);
    printf("its memory %.1f GiB, %.1f of them free", (double)p.memory.total_bytes / 0x1p30,
           (double)p.memory.free_bytes / 0x1p30);
    if (p.info.memory_gbs > 0) printf("; %.0f GB/s by its data sheet", p.info.memory_gbs);
    putchar('\n');
    printf("graphs     %s\n", p.info.graphs ? "taken: steps of decoding are gathered"
                                            : "none: refused, or switched off (KVL_CUDA_GRAPH=0, "
                                              "KVL_CUDA_CHECKS); steps run as they come");
}

int cmd_doctor(int argc, char **argv, struct kvl_err *err)
{
    struct doctor_args a = { 0 };
    bool done;
    KVL_TRY(kvl_args_parse(&doctor_argp, argc, argv, &a, &done, err));
    if (done) return KVL_OK;
    struct kvl_allowed allowed;
    double disk_gib = 1e9;
    const char *temporary = getenv("TMPDIR");
    kvl_allowed_read(&allowed);
    doctor_machine();
    doctor_threads(&allowed);
    double stream = doctor_stream(kvl_allowed_threads(&allowed));
    if (stream > 0)
        printf("reads      %.1f GB/s of memory with %d thread%s\n", stream,
               kvl_allowed_threads(&allowed), kvl_allowed_threads(&allowed) == 1 ? "" : "s");
    doctor_disk("here", ".", &disk_gib);
    doctor_disk("for temporary files", temporary ? temporary : "/tmp", &disk_gib);
    doctor_gpu();
    doctor_advice(&allowed, disk_gib);
    return KVL_OK;
}
