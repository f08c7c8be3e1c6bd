/* Any bytes as a result log: the reader gives records of valid groups and names everything else as
 * damage; what repair would keep reads back whole.
 *
 * The first byte chooses: even = the rest is the file; odd = the rest is one group, whose header is
 * made with right hashes, so that the fuzzer gets behind them.
 *
 *   cmake -B build-fuzz -DCMAKE_C_COMPILER=clang -DKVL_FUZZ=ON -DKVL_SAN=address,undefined,fuzzer-no-link
 *   tests/fuzz/corpus.sh unpack log build-fuzz/log
 *   fuzz_log -malloc_limit_mb=256 -timeout=5 -max_len=4096 build-fuzz/log
 */
#include "log_frame.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(bool ok)
{
    if (!ok) abort();
}

static int count_record(json_t *record, void *user, struct kvl_err *err)
{
    (void)err;
    must(json_is_object(record));
    ++*(uint64_t *)user;
    return KVL_OK;
}

static int keep_group(const struct kvl_log_group *g, void *user, struct kvl_err *err)
{
    (void)err;
    must(g->start + g->start_bytes == g->frame + g->frame_bytes);
    must(!g->header == (g->start == g->frame));
    must(kvl_buf_add(user, g->start, g->start_bytes) == KVL_OK);
    return KVL_OK;
}

/* Stretches of damage lie in the file, in order, without overlap. */
static void check_damage(const struct kvl_log_health *h, size_t size)
{
    uint64_t end = 0;
    for (size_t i = 0; i < h->n_damage; i++) {
        const struct kvl_log_damage *d = &h->damage[i];
        must(d->offset >= end && d->bytes <= size - d->offset);
        must(!d->tail || (d->offset + d->bytes == size && i + 1 == h->n_damage));
        end = d->offset + d->bytes;
    }
}

static void check_file(const uint8_t *data, size_t size)
{
    struct kvl_log_health h = { 0 }, kept_h = { 0 }, walk_h = { 0 };
    struct kvl_err err = { 0 };
    struct kvl_buf kept = { 0 };
    uint64_t n = 0, n_kept = 0;
    int rc = kvl_log_read_memory("fuzz", data, size, count_record, &n, &h, &err);
    check_damage(&h, size);
    if (rc == KVL_OK) {
        must(n == h.n_records);
        must(kvl_log_walk("fuzz", data, size, keep_group, &kept, &walk_h, &err) == KVL_OK);
        const void *bytes = kept.len ? kept.data : "";
        rc = kvl_log_read_memory("kept", bytes, kept.len, count_record, &n_kept, &kept_h, &err);
        must(rc == KVL_OK && kept_h.n_groups == h.n_groups);
        for (size_t i = 0; i < kept_h.n_damage; i++) must(kept_h.damage[i].bytes == 0);
    } else {
        must(rc == KVL_ELOG || rc == KVL_ENOMEM);
        must(err.msg[0] && !strchr(err.msg, '\n'));
    }
    kvl_buf_free(&kept);
    kvl_log_health_free(&h);
    kvl_log_health_free(&kept_h);
    kvl_log_health_free(&walk_h);
}

/* sequence (1 byte), records (1), bytes of text (2), then the frame. */
static void check_group(const uint8_t *data, size_t size)
{
    if (size < 4) return;
    struct kvl_log_header h = { .version = KVL_LOG_VERSION,
                                .sequence = data[0],
                                .n_records = data[1],
                                .unpacked = data[2] | (uint64_t)data[3] << 8,
                                .packed = size - 4,
                                .packed_hash = XXH64(data + 4, size - 4, 0) };
    uint8_t *file = malloc(KVL_LOG_HEADER + size - 4);
    must(file != NULL);
    kvl_log_header_pack(&h, file);
    memcpy(file + KVL_LOG_HEADER, data + 4, size - 4);
    check_file(file, KVL_LOG_HEADER + size - 4);
    free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) return 0;
    if (data[0] % 2)
        check_group(data + 1, size - 1);
    else
        check_file(data + 1, size - 1);
    return 0;
}
