#include "openblas.h"

#include "kvl/ops.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

static enum { OPENBLAS_UNKNOWN, OPENBLAS_MISSING, OPENBLAS_LOADED } openblas_state;

/* It starts its threads while it is loaded, unless this variable says otherwise. */
static void *openblas_open(void)
{
    static const char *const names[] = { "libopenblas.so.0", "libopenblas.so" };
    static const char variable[] = "OPENBLAS_NUM_THREADS";
    const char *set = getenv(variable);
    char *old = set ? strdup(set) : NULL;
    void *library = NULL;
    setenv(variable, "1", 1);
    for (size_t i = 0; !library && i < sizeof names / sizeof *names; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (old)
        setenv(variable, old, 1);
    else
        unsetenv(variable);
    free(old);
    return library;
}

static bool openblas_load(struct kvl_openblas *blas)
{
    void *library = openblas_open();
    if (!library) return false;
    *(void **)(void *)&blas->sgemm = dlsym(library, "cblas_sgemm");
    *(void **)(void *)&blas->dsyevd = dlsym(library, "dsyevd_");
    *(void **)(void *)&blas->config = dlsym(library, "openblas_get_config");
    *(void **)(void *)&blas->set_threads = dlsym(library, "openblas_set_num_threads");
    return blas->sgemm && blas->dsyevd && blas->config && blas->set_threads;
}

const struct kvl_openblas *kvl_openblas(void)
{
    static struct kvl_openblas blas;
    if (openblas_state == OPENBLAS_UNKNOWN)
        openblas_state = openblas_load(&blas) ? OPENBLAS_LOADED : OPENBLAS_MISSING;
    if (openblas_state != OPENBLAS_LOADED) return NULL;
    blas.set_threads(1); /* `kvlab bench` gives it others for its yardsticks */
    return &blas;
}

const char *kvl_ops_blas(void)
{
    const struct kvl_openblas *blas = kvl_openblas();
    return blas ? blas->config() : NULL;
}

const char *kvl_ops_blas_error(void)
{
    return openblas_state == OPENBLAS_MISSING ? "OpenBLAS with LAPACK (libopenblas.so.0) is not "
                                                "there; want the package libopenblas0"
                                              : "";
}
