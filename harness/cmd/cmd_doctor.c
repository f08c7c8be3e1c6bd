/* kvlab doctor: what this machine has for kvlab, and what it lacks. */
#include "args.h"
#include "build.h"
#include "cmds.h"
#include "device_probe.h"
#include "machine.h"

#include <stdio.h>

struct doctor_args {
    struct kvl_args base;
};

static const struct argp doctor_argp = {
    .doc = "What this machine has for kvlab: processor, memory, GPU; where there is no GPU, why.",
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

static void doctor_gpu(void)
{
    struct kvl_err why = { 0 };
    struct kvl_probed p;
    if (kvl_device_probe("cuda", 0, &p, &why) != KVL_OK) {
        printf("GPU        none: %s\n", why.msg);
        return;
    }
    printf("GPU        %s, compute %d.%d, %d multiprocessors\n", p.info.name, p.info.compute_major,
           p.info.compute_minor, p.info.n_sm);
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
    doctor_machine();
    doctor_gpu();
    return KVL_OK;
}
