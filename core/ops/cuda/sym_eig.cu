/* On the host, by the CPU's operator: the matrix is fetched and the vectors go back, some megabytes once per
 * layer of a context.  What defines vectors of equal eigenvalues, and ranks of nearly equal ones, is the order in
 * which one thread rounds: this way devices of one machine agree on them to the bit, which rotations by many
 * blocks would not. */
#include "cuda.cuh"
#include "runtime.cuh"

/* a, vec [n][n], val [n] in host memory; then out to the device. */
static void eig_on_host(struct kvl_cuda_call *c, const struct kvl_sym_eig_args *arg, float *a,
                        float *vec, float *val, const float *in, float *out_vec, float *out_val)
{
    size_t n = (size_t)arg->n, square = n * n * sizeof(float);
    cudaStream_t main = kvl_cuda_main();
    struct kvl_sym_eig_args host = { vec, val, a, arg->n };
    if (kvl_cuda_fetch(c, a, in, square) != KVL_OK) return;
    c->rc = kvl_cpu_sym_eig(&host);
    if (c->rc == KVL_EDEVICE) c->rc = kvl_cuda_fail("%s", kvl_ops_blas_error());
    const float *up_vec = kvl_cuda_upload(c, vec, n * n), *up_val = kvl_cuda_upload(c, val, n);
    if (c->rc != KVL_OK) return;
    c->rc = kvl_cuda_check(cudaMemcpyAsync(out_vec, up_vec, square, cudaMemcpyDefault, main),
                           "eigenvectors");
    if (c->rc == KVL_OK && out_val)
        c->rc = kvl_cuda_check(
            cudaMemcpyAsync(out_val, up_val, n * sizeof(float), cudaMemcpyDefault, main),
            "eigenvalues");
}

/* ---- entry ----------------------------------------------------------------------------------------- */

int kvl_cuda_sym_eig(const struct kvl_sym_eig_args *arg)
{
    struct kvl_cuda_call c;
    size_t n = (size_t)arg->n;
    assert(arg->n >= 1 && arg->n <= KVL_SYM_EIG_MAX);
    float *a = static_cast<float *>(kvl_alloc(2 * n * n + n, sizeof *a));
    if (!a) return KVL_ENOMEM;
    kvl_cuda_begin(&c);
    const float *in = kvl_cuda_in(&c, arg->a, n * n);
    float *vec = kvl_cuda_out(&c, arg->vec, n * n), *val = kvl_cuda_out(&c, arg->val, n);
    if (c.rc == KVL_OK) eig_on_host(&c, arg, a, a + n * n, a + 2 * n * n, in, vec, val);
    kvl_free(a);
    return kvl_cuda_end(&c);
}
