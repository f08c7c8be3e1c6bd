/* cuda_host_test.h - what the tests of the emulation share. */
#ifndef KVL_CUDA_HOST_TEST_H
#define KVL_CUDA_HOST_TEST_H

#include "cuda_host.h"

#include "kvl/rng.h"

#include <float.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#define LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                     \
    kvl_emu_call(#kernel, kernel, grid, block, shared_bytes, stream, ##__VA_ARGS__)

template <class T> static inline T *device_array(size_t n)
{
    T *p;
    assert_int_equal(cudaMalloc(&p, n * sizeof(T)), cudaSuccess);
    return p;
}
template <class T> static inline T *pinned_array(size_t n)
{
    T *p;
    assert_int_equal(cudaHostAlloc(&p, n * sizeof(T), cudaHostAllocDefault), cudaSuccess);
    return p;
}
template <class T> static inline void to_host(T *to, const T *from, size_t n)
{
    assert_int_equal(cudaMemcpy(to, from, n * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
}
template <class T> static inline void to_device(T *to, const T *from, size_t n)
{
    assert_int_equal(cudaMemcpy(to, from, n * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
}

/* `body(which)` ends a process with a signal and says `says` on stderr.
  */
static inline void expect_death(void (*body)(int), int which, const char *says, bool adopt = true)
{
    char text[8192];
    int out[2], status;
    size_t n = 0;
    assert_int_equal(pipe(out), 0);
    fflush(stdout);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(out[1], 2);
        close(out[0]);
        signal(SIGABRT, SIG_DFL);
        signal(SIGSEGV, SIG_DFL);
        if (adopt) kvl_emu_adopt();
        body(which);
        _exit(0);
    }
    close(out[1]);
    for (ssize_t got;
         n + 1 < sizeof text && (got = read(out[0], text + n, sizeof text - 1 - n)) > 0;)
        n += (size_t)got;
    text[n] = '\0';
    close(out[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) fail_msg("case %d lives on", which);
    if (!strstr(text, says)) fail_msg("case %d says \"%s\", want \"%s\"", which, text, says);
}

#endif
