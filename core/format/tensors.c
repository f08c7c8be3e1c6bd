/* Tensors of methods. */
#include "kvl/tensors.h"

#include "safetensors.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

struct kvl_tensors {
    struct kvl_safetensors st;
    char *path;
};

/* The files of safetensors are models elsewhere; here they are what an option names. */
static int tensors_files(struct kvl_tensors *t, struct kvl_err *err)
{
    struct stat s;
    bool folder = stat(t->path, &s) == 0 && S_ISDIR(s.st_mode);
    return folder ? kvl_safetensors_open(t->path, true, &t->st, err)
                  : kvl_safetensors_open_file(t->path, true, &t->st, err);
}

int kvl_tensors_open(const char *path, struct kvl_tensors **out, struct kvl_err *err)
{
    struct kvl_tensors *t = kvl_alloc(1, sizeof *t);
    if (t) t->path = kvl_alloc(strlen(path) + 1, 1);
    if (!t || !t->path) {
        kvl_free(t);
        return kvl_fail(err, KVL_ENOMEM, "out of memory for tensors");
    }
    memcpy(t->path, path, strlen(path) + 1);
    int rc = tensors_files(t, err);
    if (rc == KVL_OK) {
        *out = t;
        return KVL_OK;
    }
    rc = kvl_fail_at(err, rc == KVL_ENOMEM ? rc : KVL_EINVAL, "%s", path);
    kvl_tensors_close(t);
    return rc;
}

void kvl_tensors_close(struct kvl_tensors *t)
{
    if (!t) return;
    kvl_safetensors_close(&t->st);
    kvl_free(t->path);
    kvl_free(t);
}

int32_t kvl_tensors_count(const struct kvl_tensors *t)
{
    return (int32_t)t->st.n_tensors;
}
const char *kvl_tensors_name(const struct kvl_tensors *t, int32_t i)
{
    return t->st.tensor[i].name;
}

bool kvl_tensors_shape(const struct kvl_tensors *t, const char *name, int64_t *n_rows,
                       int64_t *n_cols)
{
    const struct st_tensor *s = kvl_safetensors_find(&t->st, name);
    if (!s || s->n_dims < 1 || s->n_dims > 2) return false;
    *n_rows = s->n_dims == 2 ? s->dims[0] : 1;
    *n_cols = s->dims[s->n_dims - 1];
    return true;
}

int kvl_tensors_read(const struct kvl_tensors *t, const char *name, int64_t n_rows, int64_t n_cols,
                     float *out, struct kvl_err *err)
{
    const struct st_tensor *s = kvl_safetensors_find(&t->st, name);
    int64_t rows, cols;
    if (!s)
        return kvl_fail(err, KVL_EINVAL, "%s: no tensor %s, want one of %lld x %lld", t->path, name,
                        (long long)n_rows, (long long)n_cols);
    if (!kvl_tensors_shape(t, name, &rows, &cols))
        return kvl_fail(err, KVL_EINVAL, "%s: tensor %s has %u dimensions, want %lld x %lld",
                        t->path, name, s->n_dims, (long long)n_rows, (long long)n_cols);
    if (rows != n_rows || cols != n_cols)
        return kvl_fail(err, KVL_EINVAL, "%s: tensor %s is %lld x %lld, want %lld x %lld", t->path,
                        name, (long long)rows, (long long)cols, (long long)n_rows,
                        (long long)n_cols);
    if (s->other)
        return kvl_fail(err, KVL_EINVAL, "%s: tensor %s is %s, want F32, F16 or BF16", t->path,
                        name, s->other);
    for (size_t i = 0; out && i < (size_t)rows * (size_t)cols; i++) {
        out[i] = kvl_safetensors_float(s, i);
        if (!isfinite(out[i]))
            return kvl_fail(err, KVL_EINVAL, "%s: element %zu of tensor %s is not finite", t->path,
                            i, name);
    }
    return KVL_OK;
}

void kvl_tensors_sum(const struct kvl_tensors *t, char sum[17])
{
    XXH64_hash_t hash = 0;
    for (size_t i = 0; i < t->st.n_files; i++)
        hash = XXH3_64bits_withSeed(t->st.file[i].data, t->st.file[i].size, hash);
    snprintf(sum, 17, "%016" PRIx64, (uint64_t)hash);
}
