/* Memory of a device as a GPU gives and takes it: pieces may lie side by side, and a copy that runs over the end of
 * one is refused; what is freed is there again at the next sync.  On a device that only looks at
 * addresses. */
#include "place.h"
#include "restore.h"
#include "store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_LAYERS = 4, N_BLOCKS = 150, MAX_PIECES = 128 }; /* more blocks than two slabs have */

/* Pieces of each place lie one behind the other, and stay where they are. */
static struct piece {
    uintptr_t first, end;
} piece[MAX_PIECES];
static int n_pieces, n_copies;
static uintptr_t next[KVL_PLACES];
static size_t held[KVL_PLACES], freed[KVL_PLACES]; /* freed: of these, since the last sync */

static void *side_alloc(enum kvl_place place, size_t n, size_t item)
{
    size_t bytes = (n * item + 255) / 256 * 256;
    assert_true(n_pieces < MAX_PIECES);
    if (!next[place]) next[place] = ((uintptr_t)place + 1) << 40;
    piece[n_pieces++] = (struct piece){ next[place], next[place] + bytes };
    next[place] += bytes;
    held[place] += bytes;
    return (void *)(next[place] - bytes);
}

static void side_free(enum kvl_place place, void *p)
{
    for (int i = 0; i < n_pieces; i++)
        if (piece[i].first == (uintptr_t)p) freed[place] += piece[i].end - piece[i].first;
}

/* Memory of the host is in no piece. */
static void expect_one_piece(const void *p, size_t bytes)
{
    uintptr_t at = (uintptr_t)p;
    for (int i = 0; i < n_pieces; i++)
        if (at >= piece[i].first && at < piece[i].end)
            if (bytes > piece[i].end - at)
                fail_msg("%zu bytes of a piece that has %zu left", bytes,
                         (size_t)(piece[i].end - at));
}

static int side_copy(void *to, const void *from, size_t bytes, enum kvl_stream stream)
{
    (void)stream;
    expect_one_piece(to, bytes);
    expect_one_piece(from, bytes);
    n_copies++;
    return KVL_OK;
}

static int side_fill(void *p, uint8_t byte, size_t bytes, enum kvl_stream stream)
{
    (void)byte;
    (void)stream;
    expect_one_piece(p, bytes);
    return KVL_OK;
}

static int side_order(enum kvl_stream earlier, enum kvl_stream later)
{
    (void)earlier;
    (void)later;
    return KVL_OK;
}

static int side_sync(void)
{
    for (int i = 0; i < KVL_PLACES; i++) held[i] -= freed[i];
    memset(freed, 0, sizeof freed);
    return KVL_OK;
}

static const char *side_error(void)
{
    return "";
}

static const struct kvl_device side = { .name = "side",
                                        .discrete = true,
                                        .alloc = side_alloc,
                                        .free = side_free,
                                        .copy = side_copy,
                                        .fill = side_fill,
                                        .order = side_order,
                                        .sync = side_sync,
                                        .error = side_error };

/* Slabs of 64 blocks of half a mebibyte. */
enum { SLAB_BYTES = 32 << 20 };

static const struct kvl_store_desc desc = { .n_layers = N_LAYERS,
                                            .n_kv_heads = 1,
                                            .head_dim = 256,
                                            .block_tok = 256,
                                            .type = KVL_KV_F32,
                                            .device = &side };
static struct kvl_err err;
static struct kvl_store *store;
static struct kvl_seq *seq;
static uint8_t *block[N_BLOCKS];

static void open_store(void)
{
    assert_int_equal(kvl_store_create(&desc, &store, &err), KVL_OK);
    assert_int_equal(kvl_seq_create(store, &seq, &err), KVL_OK);
}

static void close_store(void)
{
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
    assert_int_equal(side_sync(), KVL_OK);
}

static void test_copies_end_with_their_slab(void **state)
{
    size_t bytes;
    (void)state;
    open_store();
    assert_int_equal(kvl_seq_restore(seq, 0, 0, N_BLOCKS * 256, N_BLOCKS * 256, block, &err),
                     KVL_OK);
    struct kvl_lane lane = kvl_seq_lane(seq, 0, 0);
    (void)kvl_layout_data(lane.layout, &bytes);
    uint8_t *stage = side_alloc(KVL_PLACE_SHARED, N_BLOCKS, bytes);

    n_copies = 0;
    assert_int_equal(kvl_blocks_write(store, block, N_BLOCKS, stage, &err), KVL_OK);
    assert_int_equal(n_copies, 3); /* a slab each */
    assert_int_equal(kvl_blocks_read(store, lane.blocks, N_BLOCKS, stage, &err), KVL_OK);
    assert_int_equal(n_copies, 6);
    assert_int_equal(kvl_seq_to_host(seq, 0, &err), KVL_OK);
    assert_int_equal(n_copies, 9);
    assert_int_equal(kvl_seq_host_slots(seq, 0), N_BLOCKS * 256);
    assert_int_equal(kvl_seq_to_device(seq, 0, &err), KVL_OK);
    assert_int_equal(kvl_seq_host_slots(seq, 0), 0);
    close_store();
}

/* One layer after the other, each of three slabs.  What a layer had left waited to be freed until memory was
 * short, and SHARED memory made room for it. */
static void test_layers_give_back(void **state)
{
    size_t before = 0;
    (void)state;
    open_store();
    for (int32_t l = 0; l < N_LAYERS; l++) {
        assert_int_equal(kvl_seq_restore(seq, l, 0, N_BLOCKS * 256, N_BLOCKS * 256, block, &err),
                         KVL_OK);
        assert_int_equal(kvl_seq_to_host(seq, l, &err), KVL_OK);
        if (l == 0) before = held[KVL_PLACE_DEVICE];
        assert_int_equal(held[KVL_PLACE_DEVICE], before);
    }
    assert_true(before < 2 * (size_t)SLAB_BYTES); /* one slab stays */
    close_store();
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_copies_end_with_their_slab),
                                        cmocka_unit_test(test_layers_give_back) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
