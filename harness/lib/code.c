/* The hashes that code_hashes.cmake found. */
#include "code.h"

#include "kvl_code.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define CODE_POLICY(stem, hash) extern const struct kvl_policy *const kvl_policy_##stem;
#define CODE_TASK(stem, hash)   extern const struct kvl_task *const kvl_task_##stem;
KVL_CODE_POLICIES(CODE_POLICY)
KVL_CODE_TASKS(CODE_TASK)
#undef CODE_POLICY
#undef CODE_TASK

uint64_t kvl_code_engine(void)
{
    return KVL_CODE_ENGINE;
}

uint64_t kvl_code_cuda(void)
{
    return KVL_CODE_CUDA;
}

uint64_t kvl_code_policy(const struct kvl_policy *policy)
{
#define CODE_POLICY(stem, hash) { &kvl_policy_##stem, hash },
    static const struct {
        const struct kvl_policy *const *exported;
        uint64_t hash;
    } rows[] = { KVL_CODE_POLICIES(CODE_POLICY) };
#undef CODE_POLICY
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (*rows[i].exported == policy) return rows[i].hash;
    return 0;
}

uint64_t kvl_code_task(const struct kvl_task *task)
{
#define CODE_TASK(stem, hash) { &kvl_task_##stem, hash },
    static const struct {
        const struct kvl_task *const *exported;
        uint64_t hash;
    } rows[] = { KVL_CODE_TASKS(CODE_TASK) };
#undef CODE_TASK
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (*rows[i].exported == task) return rows[i].hash;
    return 0;
}

uint64_t kvl_code_analysis(void)
{
    return KVL_CODE_ANALYSIS;
}

/* ---- names of results ------------------------------------------------------------------------ */

static const char code_mark[] = ";code=";

int kvl_code_print(const struct kvl_code *code, struct kvl_buf *key)
{
    KVL_TRY(kvl_buf_printf(key, "%s%016llx.%016llx.%016llx", code_mark,
                           (unsigned long long)code->engine, (unsigned long long)code->method,
                           (unsigned long long)code->task));
    return code->cuda ? kvl_buf_printf(key, ".%016llx", (unsigned long long)code->cuda) : KVL_OK;
}

/* Nothing stands after the code: an option that spells the mark comes before it. */
static const char *code_find(const char *key)
{
    const char *found = NULL;
    for (const char *p = key; (p = strstr(p, code_mark)); p++) found = p;
    return found;
}

bool kvl_code_of_key(const char *key, struct kvl_code *out)
{
    uint64_t part[4] = { 0 };
    const char *p = code_find(key);
    if (!p) return false;
    p += sizeof code_mark - 1;
    for (size_t i = 0; i < 4 && *p; i++) {
        char *end;
        part[i] = strtoull(p, &end, 16);
        p = end + (*end == '.');
    }
    *out = (struct kvl_code){ part[0], part[1], part[2], part[3] };
    return true;
}

void kvl_cell_id(const char *key, char id[KVL_CELL_ID])
{
    const char *code = code_find(key);
    size_t n = strlen(key), n_point = code ? (size_t)(code - key) : n;
    snprintf(id, KVL_CELL_ID, "%016llx%08x", (unsigned long long)XXH3_64bits(key, n_point),
             (unsigned)XXH3_64bits(key + n_point, n - n_point));
}

size_t kvl_point_len(const char *id)
{
    size_t n = strlen(id);
    bool both = n == KVL_CELL_ID - 1 && strspn(id, "0123456789abcdef") == n;
    return both ? KVL_POINT_DIGITS : n;
}

uint64_t kvl_point_number(const char *id)
{
    char digits[KVL_POINT_DIGITS + 1];
    snprintf(digits, sizeof digits, "%s", id);
    return strtoull(digits, NULL, 16);
}
