/* Free memory and processors: what control groups leave, in trees that are made up. */
#include "allowed.h"
#include "machine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[] = "/tmp/kvl-machine-XXXXXX";

static int make(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int drop(void **state)
{
    char command[128];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static void put(const char *name, const char *text)
{
    char command[512];
    snprintf(command, sizeof command, "cd %s && mkdir -p \"$(dirname %s)\" && printf -- '%s' >%s",
             folder, name, text, name);
    assert_int_equal(system(command), 0);
}

static int64_t left(void)
{
    char list[64];
    snprintf(list, sizeof list, "%s/list", folder);
    return kvl_cgroup_free_bytes(list, folder);
}

static void test_second(void **state)
{
    (void)state;
    assert_int_equal(left(), -1); /* no such file */
    put("list", "0::/slurm/job/step\n");
    assert_int_equal(left(), -1); /* no such group */
    put("slurm/job/step/memory.max", "max\n");
    put("slurm/job/step/memory.current", "500\n");
    assert_int_equal(left(), -1);
    put("slurm/job/memory.max", "3000\n"); /* the limit of a job holds for its steps */
    put("slurm/job/memory.current", "1000\n");
    assert_int_equal(left(), 2000);
    put("slurm/job/memory.stat", "anon 300\nactive_file 150\ninactive_file 250\n");
    assert_int_equal(left(), 2400);
    put("slurm/job/step/memory.max", "900\n");
    assert_int_equal(left(), 400);
    put("memory.max", "700\n"); /* in a container the root is one like any other */
    put("memory.current", "600\n");
    assert_int_equal(left(), 100);
    put("memory.current", "800\n");
    assert_int_equal(left(), 1); /* none, but not unknown */
    put("list", "0::/\n");
    assert_int_equal(left(), 1);
    put("list", "0::/other\n");
    put("memory.max", "max\n");
    assert_int_equal(left(), -1);
}

static void test_first(void **state)
{
    (void)state;
    put("list", "9:cpu,cpuacct:/x\n4:memory:/lsf/job\n1:name=systemd:/y\n");
    put("x/memory.limit_in_bytes", "5\n"); /* of another tree */
    put("x/memory.usage_in_bytes", "1\n");
    assert_int_equal(left(), -1);
    put("memory/lsf/job/memory.limit_in_bytes", "8000\n");
    put("memory/lsf/job/memory.usage_in_bytes", "5000\n");
    put("memory/lsf/job/memory.stat", "total_inactive_file 1000\n");
    assert_int_equal(left(), 4000);
    put("memory/memory.limit_in_bytes", "9223372036854771712\n"); /* how version 1 says none */
    put("memory/memory.usage_in_bytes", "7000\n");
    assert_int_equal(left(), 4000);
}

static int64_t data_bytes(void)
{
    long long kib = 0;
    char line[256];
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "VmData: %lld kB", &kib) == 1) break;
    if (f) fclose(f);
    return kib << 10;
}

/* In a child, which has less room from then on. */
static void test_ulimit(void **state)
{
    (void)state;
    int64_t before = kvl_memory_free_bytes();
    assert_true(before > 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        enum { MOST = 64 << 20 };
        rlim_t end = (rlim_t)data_bytes() + MOST;
        struct rlimit limit = { .rlim_cur = end, .rlim_max = end };
        bool ok = setrlimit(RLIMIT_DATA, &limit) == 0;
        int64_t after = kvl_memory_free_bytes();
        _exit(ok && after > 0 && after <= MOST ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void cores_are(double want)
{
    char list[64];
    snprintf(list, sizeof list, "%s/list", folder);
    double got = kvl_cgroup_cores(list, folder);
    if (fabs(got - want) > 1e-9) fail_msg("%g processors, want %g", got, want);
}

static void test_cores(void **state)
{
    (void)state;
    put("list", "0::/slurm/job/step\n");
    put("slurm/job/step/cpu.max", "max 100000\n");
    cores_are(0);
    put("slurm/job/cpu.max", "250000 100000\n"); /* a limit of the job holds for its steps */
    cores_are(2.5);
    put("slurm/job/step/cpu.max", "400000 100000\n");
    cores_are(2.5);
    put("slurm/job/step/cpu.max", "50000 100000\n");
    cores_are(0.5);
    /* Version 1, where the controller has another list of names, and below zero there is no limit. */
    put("list", "3:cpuset:/a\n4:cpu,cpuacct:/a/b\n");
    put("cpu/a/b/cpu.cfs_quota_us", "-1\n");
    put("cpu/a/b/cpu.cfs_period_us", "100000\n");
    cores_are(0);
    put("cpu/a/cpu.cfs_quota_us", "300000\n");
    put("cpu/a/cpu.cfs_period_us", "100000\n");
    cores_are(3);
}

static void test_threads(void **state)
{
    struct kvl_allowed a = { .online = 64, .cores = 16 };
    (void)state;
    assert_int_equal(kvl_allowed_threads(&a), 16);
    a.slurm = 32;
    assert_int_equal(kvl_allowed_threads(&a), 16);
    a.slurm = 8;
    assert_int_equal(kvl_allowed_threads(&a), 8);
    a.quota = 2.5;
    assert_int_equal(kvl_allowed_threads(&a), 3);
    a.quota = 0.2;
    assert_int_equal(kvl_allowed_threads(&a), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_second),  cmocka_unit_test(test_first),
        cmocka_unit_test(test_ulimit),  cmocka_unit_test(test_cores),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, make, drop);
}
