/* Blocks of a device whose pieces of memory lie side by side, as those of a GPU may: what goes from one to
 * another in one copy must not run over the end of a piece, which the driver refuses.  On a device that
 * only looks at addresses. */
#include "kv/place.h"
#include "kv/restore.h"
#include "kv/store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { N_BLOCKS = 150, MAX_PIECES = 64 }; /* more blocks than two slabs have */

/* Pieces of each place lie one behind the other, and stay where they are. */
static struct piece {
    uintptr_t first, end;
} piece[MAX_PIECES];
static int n_pieces, n_copies;
static uintptr_t next[KVL_PLACES];

static void *side_alloc(enum kvl_place place, size_t n, size_t item)
{
    size_t bytes = (n * item + 255) / 256 * 256;
    assert_true(n_pieces < MAX_PIECES);
    if (!next[place]) next[place] = ((uintptr_t)place + 1) << 40;
    piece[n_pieces++] = (struct piece){ next[place], next[place] + bytes };
    next[place] += bytes;
    return (void *)(next[place] - bytes);
}

static void side_free(enum kvl_place place, void *p)
{
    (void)place;
    (void)p;
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
static void test_copies_end_with_their_slab(void **state)
{
    const struct kvl_store_desc d = { .n_layers = 1,
                                      .n_kv_heads = 1,
                                      .head_dim = 256,
                                      .block_tok = 256,
                                      .type = KVL_KV_F32,
                                      .device = &side };
    struct kvl_err err = { 0 };
    struct kvl_store *store;
    struct kvl_seq *seq;
    uint8_t *block[N_BLOCKS];
    size_t bytes;
    (void)state;
    assert_int_equal(kvl_store_create(&d, &store, &err), KVL_OK);
    assert_int_equal(kvl_seq_create(store, &seq, &err), KVL_OK);
    assert_int_equal(kvl_seq_restore(seq, 0, N_BLOCKS, block, &err), KVL_OK);
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
    kvl_seq_destroy(seq);
    kvl_store_destroy(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_copies_end_with_their_slab) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
