/* kvstore_driver.h - runs a string of bytes as operations on a KV store and on a naive model of it,
 * and compares the two: used with random bytes by the unit test, with a fuzzer's by the fuzz target.
 *
 * The model keeps, per lane, an array of (position, tag) in ascending order, copied on fork.  What a
 * slot must hold follows from its tag; the values are whole numbers that every element type holds.
 */
#ifndef KVSTORE_DRIVER_H
#define KVSTORE_DRIVER_H

#include "kvl/device.h"
#include "place.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DRIVE_SEQS = 5,
    DRIVE_LANES = 9,   /* 3 layers of 3 heads */
    DRIVE_SLOTS = 400, /* of a lane */
    DRIVE_DIM = 64,
    DRIVE_BATCH = 40, /* slots of one append */
};

struct drive_slot {
    int32_t pos;
    uint32_t tag;
};

struct drive_lane {
    struct drive_slot slot[DRIVE_SLOTS];
    int32_t n;
};

struct drive_seq {
    struct kvl_seq *real; /* NULL: unused */
    struct drive_lane lane[DRIVE_LANES];
};

struct drive {
    const uint8_t *bytes;
    size_t n_bytes;
    const struct kvl_device *device; /* of the store; set by the caller, or NULL */
    struct kvl_store *store;
    struct kvl_store_desc desc;
    struct kvl_err err;
    struct drive_seq seq[DRIVE_SEQS];
    uint32_t next_tag;
    int64_t n_ops, n_refused; /* operations; those over the limit */
    char msg[1400];           /* the first divergence */
};

/* ---- plumbing ------------------------------------------------------------------------------- */

static inline bool drive_differs(struct drive *d, int line, const char *fmt, ...) KVL_PRINTF(3, 4);
static inline bool drive_differs(struct drive *d, int line, const char *fmt, ...)
{
    va_list ap;
    int n = snprintf(d->msg, sizeof d->msg, "driver line %d, operation %lld: ", line,
                     (long long)d->n_ops);
    va_start(ap, fmt);
    vsnprintf(d->msg + n, sizeof d->msg - (size_t)n, fmt, ap);
    va_end(ap);
    return false;
}

#define DRIVE_CHECK(cond, ...)                                                                     \
    do {                                                                                           \
        if (!(cond)) return drive_differs(d, __LINE__, #cond ": " __VA_ARGS__);                    \
    } while (0)

static inline uint32_t drive_byte(struct drive *d)
{
    if (d->n_bytes == 0) return 0;
    d->n_bytes--;
    return *d->bytes++;
}

static inline int32_t drive_below(struct drive *d, int32_t n)
{
    uint32_t v = drive_byte(d);
    if (n > 256) v = v << 8 | drive_byte(d);
    return (int32_t)(v % (uint32_t)n);
}

static inline struct drive_lane *drive_lane(struct drive *d, struct drive_seq *s, int32_t layer,
                                            int32_t head)
{
    return &s->lane[layer * d->desc.n_kv_heads + head];
}

/* Eight bits and a power of two: what types of 16 bits hold. */
static inline float drive_value(uint32_t tag, int part, int32_t c)
{
    uint32_t mix = tag * 37u + (uint32_t)part * 11u + (uint32_t)c * 5u;
    return (float)(((int32_t)(mix % 511u) - 255) * (1 << (mix / 511u % 8u)));
}

/* A row of them, as the store keeps it. */
static inline void drive_row(const struct drive *d, uint32_t tag, int part, float *row)
{
    for (int32_t c = 0; c < d->desc.head_dim; c++) row[c] = drive_value(tag, part, c);
    kvl_store_round(d->store, (enum kvl_kv_part)part, row, (size_t)d->desc.head_dim);
}

static inline struct drive_seq *drive_pick(struct drive *d)
{
    int32_t from = drive_below(d, DRIVE_SEQS);
    for (int32_t i = 0; i < DRIVE_SEQS; i++)
        if (d->seq[(from + i) % DRIVE_SEQS].real) return &d->seq[(from + i) % DRIVE_SEQS];
    return NULL;
}

static inline struct drive_seq *drive_unused(struct drive *d)
{
    for (int32_t i = 0; i < DRIVE_SEQS; i++)
        if (!d->seq[i].real) return &d->seq[i];
    return NULL;
}

/* ---- comparing ------------------------------------------------------------------------------ */

static inline int32_t drive_index(const struct drive_lane *m, int32_t pos)
{
    for (int32_t i = 0; i < m->n; i++)
        if (m->slot[i].pos == pos) return i;
    return -1;
}

/* The values of a lane; slot [n] of each entry of the model. */
static inline bool drive_compare_rows(struct drive *d, const struct drive_seq *s, int32_t layer,
                                      int32_t head, const int32_t *slot, const struct drive_lane *m)
{
    static float rows[DRIVE_SLOTS * DRIVE_DIM];
    for (int part = 0; part < (d->desc.raw_keys ? 3 : 2); part++) {
        int rc = kvl_seq_read(s->real, layer, head, (enum kvl_kv_part)part, 0, m->n, rows, &d->err);
        DRIVE_CHECK(rc == KVL_OK, "%s", d->err.msg);
        for (int32_t i = 0; i < m->n; i++) {
            float want[DRIVE_DIM];
            drive_row(d, m->slot[i].tag, part, want);
            for (int32_t c = 0; c < d->desc.head_dim; c++)
                DRIVE_CHECK(rows[slot[i] * d->desc.head_dim + c] == want[c],
                            "layer %d head %d pos %d part %d", layer, head, m->slot[i].pos, part);
        }
    }
    return true;
}

/* Everything that can be seen of a lane. */
static inline bool drive_compare_lane(struct drive *d, struct drive_seq *s, int32_t layer,
                                      int32_t head)
{
    const struct drive_lane *m = drive_lane(d, s, layer, head);
    DRIVE_CHECK(kvl_seq_len(s->real, layer, head) == m->n, "length of layer %d head %d, want %d",
                layer, head, m->n);
    int32_t want[DRIVE_SLOTS], slot[DRIVE_SLOTS], pos[DRIVE_SLOTS];
    for (int32_t i = 0; i < m->n; i++) want[i] = m->slot[i].pos;
    DRIVE_CHECK(kvl_seq_find(s->real, layer, head, want, m->n, slot) == m->n, "positions found");
    kvl_seq_positions(s->real, layer, head, pos);
    for (int32_t i = 0; i < m->n; i++) {
        DRIVE_CHECK(slot[i] >= 0 && slot[i] < m->n, "slot %d", slot[i]);
        DRIVE_CHECK(pos[slot[i]] == want[i], "got %d, want %d", pos[slot[i]], want[i]);
    }
    return drive_compare_rows(d, s, layer, head, slot, m);
}

static inline bool drive_compare_seq(struct drive *d, struct drive_seq *s)
{
    int64_t n_slots = 0, n_blocks = 0;
    for (int32_t layer = 0; layer < d->desc.n_layers; layer++)
        for (int32_t head = 0; head < d->desc.n_kv_heads; head++) {
            if (!drive_compare_lane(d, s, layer, head)) return false;
            int32_t n = drive_lane(d, s, layer, head)->n;
            n_slots += n;
            n_blocks += (n + d->desc.block_tok - 1) / d->desc.block_tok;
        }
    struct kvl_seq_stats st;
    kvl_seq_stats(s->real, &st);
    size_t slot_bytes = kvl_kv_slot_bytes(d->desc.type, d->desc.head_dim, d->desc.raw_keys);
    DRIVE_CHECK(st.n_slots == n_slots && st.n_blocks == n_blocks, "want %lld blocks",
                (long long)n_blocks);
    DRIVE_CHECK(st.logical_bytes == (size_t)n_slots * slot_bytes, "logical bytes");
    DRIVE_CHECK(st.n_shared >= 0 && st.n_shared <= n_blocks, "shared %lld", (long long)st.n_shared);
    return true;
}

static inline bool drive_compare_all(struct drive *d)
{
    for (int32_t i = 0; i < DRIVE_SEQS; i++)
        if (d->seq[i].real && !drive_compare_seq(d, &d->seq[i])) return false;
    DRIVE_CHECK(kvl_store_check(d->store, &d->err) == KVL_OK, "%s", d->err.msg);
    return true;
}

/* A refusal must have a reason: `need` more blocks, at most, pass the limit. */
static inline bool drive_refusal(struct drive *d, int rc, int32_t need)
{
    struct kvl_store_stats st;
    kvl_store_stats(d->store, &st);
    DRIVE_CHECK(rc == KVL_ENOMEM, "%s", d->err.msg);
    DRIVE_CHECK(d->err.code == rc && d->err.msg[0], "a message");
    DRIVE_CHECK(st.limit_bytes && st.bytes + (size_t)need * st.block_bytes > st.limit_bytes,
                "refused %d blocks with %zu bytes of %zu used", need, st.bytes, st.limit_bytes);
    kvl_err_clear(&d->err);
    d->n_refused++;
    return true;
}

/* ---- operations ----------------------------------------------------------------------------- */

static inline bool drive_create(struct drive *d)
{
    struct drive_seq *s = drive_unused(d);
    if (!s) return true;
    for (int32_t i = 0; i < DRIVE_LANES; i++) s->lane[i].n = 0;
    DRIVE_CHECK(kvl_seq_create(d->store, &s->real, &d->err) == KVL_OK, "%s", d->err.msg);
    return true;
}

static inline bool drive_fork(struct drive *d)
{
    struct drive_seq *from = drive_pick(d), *s = drive_unused(d);
    if (!from || !s) return true;
    struct kvl_store_stats before, after;
    kvl_store_stats(d->store, &before);
    memcpy(s->lane, from->lane, sizeof s->lane);
    DRIVE_CHECK(kvl_seq_fork(from->real, &s->real, &d->err) == KVL_OK, "%s", d->err.msg);
    kvl_store_stats(d->store, &after);
    DRIVE_CHECK(after.bytes == before.bytes, "a fork takes no block");
    return true;
}

static inline bool drive_destroy(struct drive *d)
{
    struct drive_seq *s = drive_pick(d);
    if (!s || drive_byte(d) % 4) return true;
    kvl_seq_destroy(s->real);
    s->real = NULL;
    return true;
}

static inline void drive_model_add(struct drive_lane *m, int32_t pos, uint32_t tag)
{
    int32_t i = m->n++;
    for (; i > 0 && m->slot[i - 1].pos > pos; i--) m->slot[i] = m->slot[i - 1];
    m->slot[i] = (struct drive_slot){ .pos = pos, .tag = tag };
}

/* Positions to append: after all others with gaps, or anything. */
static inline int32_t drive_positions(struct drive *d, struct drive_seq *s, int32_t layer,
                                      bool wild, int32_t *pos)
{
    int32_t n = drive_byte(d) % 4 ? 1 + drive_below(d, 3) : drive_below(d, DRIVE_BATCH), next = 0;
    int32_t gap = drive_byte(d) % 8 ? 1 : 3;
    for (int32_t h = 0; h < d->desc.n_kv_heads; h++) {
        const struct drive_lane *m = drive_lane(d, s, layer, h);
        if (m->n > 0) next = KVL_MAX(next, m->slot[m->n - 1].pos + 1);
        n = KVL_MIN(n, DRIVE_SLOTS - m->n);
    }
    for (int32_t i = 0; i < n; i++) {
        pos[i] = next;
        next += gap;
        if (wild) pos[i] = drive_below(d, 600) - 1;
    }
    return n;
}

static inline bool drive_appendable(struct drive *d, struct drive_seq *s, int32_t layer,
                                    const int32_t *pos, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (pos[i] < 0) return false;
        for (int32_t j = 0; j < i; j++)
            if (pos[i] == pos[j]) return false;
        for (int32_t h = 0; h < d->desc.n_kv_heads; h++)
            if (drive_index(drive_lane(d, s, layer, h), pos[i]) >= 0) return false;
    }
    return true;
}

static inline bool drive_compare_layer(struct drive *d, struct drive_seq *s, int32_t layer)
{
    for (int32_t h = 0; h < d->desc.n_kv_heads; h++)
        if (!drive_compare_lane(d, s, layer, h)) return false;
    return true;
}

static inline bool drive_append(struct drive *d, bool wild)
{
    struct drive_seq *s = drive_pick(d);
    if (!s) return drive_create(d);
    int32_t layer = drive_below(d, d->desc.n_layers), pos[DRIVE_BATCH];
    int32_t n = drive_positions(d, s, layer, wild, pos), n_heads = d->desc.n_kv_heads;
    static float value[3][DRIVE_BATCH * 3 * DRIVE_DIM];
    uint32_t tag = d->next_tag;
    for (int part = 0; part < 3; part++)
        for (int32_t i = 0; i < n * n_heads * d->desc.head_dim; i++)
            value[part][i] =
                drive_value(tag + (uint32_t)(i / d->desc.head_dim), part, i % d->desc.head_dim);
    d->next_tag += (uint32_t)(n * n_heads);
    int rc = kvl_seq_append(s->real, layer, n, pos, value[0], d->desc.raw_keys ? value[2] : NULL,
                            value[1], &d->err);
    if (!drive_appendable(d, s, layer, pos, n)) {
        DRIVE_CHECK(rc == KVL_EINVAL && d->err.msg[0], "code %d", rc);
        kvl_err_clear(&d->err);
    } else if (rc != KVL_OK) {
        if (!drive_refusal(d, rc, n_heads * (n / d->desc.block_tok + 2))) return false;
    } else {
        for (int32_t i = 0; i < n * n_heads; i++)
            drive_model_add(drive_lane(d, s, layer, i % n_heads), pos[i / n_heads],
                            tag + (uint32_t)i);
    }
    return drive_compare_layer(d, s, layer);
}

static inline bool drive_truncate(struct drive *d)
{
    struct drive_seq *s = drive_pick(d);
    if (!s) return true;
    int32_t last = 0, need = 0, n_lanes = d->desc.n_layers * d->desc.n_kv_heads;
    for (int32_t i = 0; i < n_lanes; i++) {
        const struct drive_lane *m = &s->lane[i];
        if (m->n > 0) last = KVL_MAX(last, m->slot[m->n - 1].pos + 1);
        need += (m->n + d->desc.block_tok - 1) / d->desc.block_tok;
    }
    int32_t drop = drive_below(d, drive_byte(d) % 8 ? 8 : last + 1), end = KVL_MAX(last - drop, 0);
    int rc = kvl_seq_truncate(s->real, end, &d->err);
    if (rc != KVL_OK) return drive_refusal(d, rc, need) && drive_compare_seq(d, s);
    for (int32_t i = 0; i < n_lanes; i++)
        while (s->lane[i].n > 0 && s->lane[i].slot[s->lane[i].n - 1].pos >= end) s->lane[i].n--;
    return drive_compare_seq(d, s);
}

/* Whether the i-th of n slots stays, by one of several habits of real policies. */
static inline bool drive_stays(struct drive *d, uint32_t habit, int32_t i, int32_t n, int32_t at)
{
    switch (habit) {
    case 0: return true;
    case 1: return i != at % n;                        /* one goes */
    case 2: return drive_byte(d) % 16 != 0;            /* few go */
    case 3: return drive_byte(d) % 8 == 0;             /* few stay */
    case 4: return i < 4 || i >= n - at % n;           /* start and window */
    case 5: return i < 4 || i != 4;                    /* the oldest after the start goes */
    case 6: return (i / 20 + at) % 3 != 0;             /* chunks */
    case 7: return drive_byte(d) % 64 != 0 && i != at; /* very few go */
    default: return drive_byte(d) % 2;
    }
}

/* Takes the blocks of which nothing is in `m` out of a list of positions in slot order. */
static inline int32_t drive_splice(const struct drive *d, const struct drive_lane *m, int32_t *pos,
                                   int32_t n)
{
    int32_t left = 0, b = d->desc.block_tok;
    for (int32_t from = 0; from < n; from += b) {
        int32_t end = KVL_MIN(from + b, n), n_live = 0;
        for (int32_t i = from; i < end; i++) n_live += drive_index(m, pos[i]) >= 0;
        for (int32_t i = from; i < end && n_live > 0; i++) pos[left++] = pos[i];
    }
    return left;
}

/* Few go: survivors below the new end stay where they are.  Many go: order is preserved. */
static inline bool drive_check_order(struct drive *d, const int32_t *before, int32_t n_before,
                                     const int32_t *after, const struct drive_lane *m)
{
    int32_t j = 0, n_gone = n_before - m->n;
    for (int32_t i = 0; i < n_before; i++) {
        if (drive_index(m, before[i]) < 0) continue;
        if (n_gone <= n_before / 8) {
            DRIVE_CHECK(i >= m->n || after[i] == before[i], "slot %d moved", i);
        } else {
            DRIVE_CHECK(after[j] == before[i], "slot %d out of order", j);
            j++;
        }
    }
    return true;
}

static inline bool drive_keep(struct drive *d)
{
    struct drive_seq *s = drive_pick(d);
    if (!s) return true;
    int32_t layer = drive_below(d, d->desc.n_layers), head = drive_below(d, d->desc.n_kv_heads);
    struct drive_lane *m = drive_lane(d, s, layer, head), next = { .n = 0 };
    uint32_t habit = drive_byte(d) % 10;
    int32_t pos[DRIVE_SLOTS], before[DRIVE_SLOTS], after[DRIVE_SLOTS], at = drive_below(d, 400);
    int32_t gone[DRIVE_SLOTS], n_gone = 0;
    for (int32_t i = 0; i < m->n; i++) {
        if (!drive_stays(d, habit, i, m->n, at)) {
            gone[n_gone++] = i;
            continue;
        }
        pos[next.n] = m->slot[i].pos;
        next.slot[next.n++] = m->slot[i];
    }
    int32_t n_before = m->n;
    kvl_seq_positions(s->real, layer, head, before);
    bool sorted = kvl_seq_lane(s->real, layer, head).sorted;
    /* By what stays or by what goes, which is the same. */
    int rc = at % 2 ? kvl_seq_keep(s->real, layer, head, pos, next.n, &d->err)
                    : kvl_seq_drop(s->real, layer, head, gone, n_gone, &d->err);
    if (rc != KVL_OK) {
        if (!drive_refusal(d, rc, (n_before + d->desc.block_tok - 1) / d->desc.block_tok))
            return false;
        return drive_compare_layer(d, s, layer);
    }
    *m = next;
    if (sorted && n_before - m->n >= d->desc.block_tok)
        n_before = drive_splice(d, m, before, n_before);
    kvl_seq_positions(s->real, layer, head, after);
    return drive_compare_layer(d, s, layer) && drive_check_order(d, before, n_before, after, m);
}

/* One entry of a good list is spoilt: nothing may change. */
static inline bool drive_keep_wrong(struct drive *d)
{
    struct drive_seq *s = drive_pick(d);
    if (!s) return true;
    int32_t layer = drive_below(d, d->desc.n_layers), head = drive_below(d, d->desc.n_kv_heads);
    const struct drive_lane *m = drive_lane(d, s, layer, head);
    int32_t pos[DRIVE_SLOTS + 1], n = 0;
    for (int32_t i = 0; i < m->n; i++)
        if (drive_byte(d) % 4) pos[n++] = m->slot[i].pos;
    int32_t at = drive_below(d, n + 1);
    switch (drive_byte(d) % 4) {
    case 0: pos[at] = at > 0 ? pos[at - 1] : -1; break;        /* repeated, negative */
    case 1: pos[at] = 1000000 + (int32_t)drive_byte(d); break; /* never seen */
    case 2: pos[at] = at > 1 ? pos[0] : -7; break;             /* descending */
    default:
        pos[at] = drive_below(d, 600); /* evicted or never seen */
        if (drive_index(m, pos[at]) >= 0) pos[at] = INT32_MAX;
    }
    int rc = kvl_seq_keep(s->real, layer, head, pos, KVL_MAX(n, at + 1), &d->err);
    char entry[32];
    snprintf(entry, sizeof entry, "entry %d is position %d", at, pos[at]);
    DRIVE_CHECK(rc == KVL_EINVAL, "code %d", rc);
    DRIVE_CHECK(strstr(d->err.msg, entry), "want '%s' in '%s'", entry, d->err.msg);
    kvl_err_clear(&d->err);
    return drive_compare_layer(d, s, layer);
}

static inline bool drive_find(struct drive *d)
{
    struct drive_seq *s = drive_pick(d);
    if (!s) return true;
    int32_t layer = drive_below(d, d->desc.n_layers), head = drive_below(d, d->desc.n_kv_heads);
    const struct drive_lane *m = drive_lane(d, s, layer, head);
    int32_t pos[32] = { 0 }, slot[32], at[DRIVE_SLOTS], n = drive_below(d, 32), n_live = 0;
    bool ordered = drive_byte(d) % 4 != 0;
    for (int32_t i = 0; i < n; i++)
        pos[i] = ordered ? (i > 0 ? pos[i - 1] + 1 : 0) + drive_below(d, 20) : drive_below(d, 600);
    int32_t got = kvl_seq_find(s->real, layer, head, pos, n, slot);
    kvl_seq_positions(s->real, layer, head, at);
    for (int32_t i = 0; i < n; i++) {
        bool live = drive_index(m, pos[i]) >= 0;
        n_live += live;
        DRIVE_CHECK(live == (slot[i] >= 0), "position %d", pos[i]);
        DRIVE_CHECK(!live || at[slot[i]] == pos[i], "slot %d", slot[i]);
    }
    DRIVE_CHECK(got == n_live, "got %d", got);
    return true;
}

/* Where blocks lie is not seen. */
static inline bool drive_place(struct drive *d)
{
    struct drive_seq *s = drive_pick(d);
    if (!s) return true;
    int32_t layer = drive_below(d, d->desc.n_layers), need = 0;
    bool back = drive_byte(d) % 3 == 0;
    for (int32_t h = 0; h < d->desc.n_kv_heads; h++)
        need += kvl_seq_len(s->real, layer, h) / d->desc.block_tok + 1;
    int rc = (back ? kvl_seq_to_device : kvl_seq_to_host)(s->real, layer, &d->err);
    if (rc != KVL_OK && !drive_refusal(d, rc, need)) return false;
    if (back && rc == KVL_OK) DRIVE_CHECK(kvl_seq_host_slots(s->real, layer) == 0, "all back");
    return drive_compare_layer(d, s, layer);
}

static inline bool drive_step(struct drive *d)
{
    d->n_ops++;
    switch (drive_byte(d) % 16) {
    case 0: return drive_create(d);
    case 1: return drive_fork(d);
    case 2: return drive_destroy(d);
    case 3:
    case 4:
    case 5:
    case 6:
    case 7: return drive_append(d, false);
    case 8: return drive_append(d, true);
    case 9: return drive_truncate(d);
    case 10: return drive_keep_wrong(d);
    case 11: return drive_find(d);
    case 12: return d->device ? drive_place(d) : drive_keep(d);
    default: return drive_keep(d);
    }
}

/* ---- the run -------------------------------------------------------------------------------- */

/* One for keys and values, or a pair. */
static inline enum kvl_kv_type drive_type(struct drive *d)
{
    uint32_t byte = drive_byte(d), n = 0;
    while (kvl_kv_facts((enum kvl_kv_type)n)) n++;
    enum kvl_kv_type k = (enum kvl_kv_type)(byte % n);
    /* Types that seal keep what the model does not: test_kv_sealed has one of its own. */
    return kvl_kv_open(byte < 128 ? k : kvl_kv_pair(k, (enum kvl_kv_type)(byte / n % n)));
}

static inline bool drive_begin(struct drive *d)
{
    static const int32_t dims[] = { 1, 2, 3, 6 }, blocks[] = { 8, 16, 32, 0 };
    d->desc = (struct kvl_store_desc){ .n_layers = 1 + drive_below(d, 3),
                                       .n_kv_heads = 1 + drive_below(d, 3),
                                       .head_dim = dims[drive_byte(d) % 4],
                                       .block_tok = blocks[drive_byte(d) % 4],
                                       .type = drive_type(d),
                                       .raw_keys = drive_byte(d) % 4 == 0,
                                       .device = d->device };
    if (kvl_kv_check(d->desc.type, d->desc.head_dim, NULL) != KVL_OK)
        d->desc.head_dim = d->desc.head_dim % 2 ? 32 : 64;
    uint32_t limit = drive_byte(d);
    struct kvl_store_stats st;
    for (int i = 0; i < 2; i++) { /* the block size is known once a store was made */
        DRIVE_CHECK(kvl_store_create(&d->desc, &d->store, &d->err) == KVL_OK, "%s", d->err.msg);
        kvl_store_stats(d->store, &st);
        if (i > 0 || limit % 2 == 0) break;
        d->desc.limit_bytes = st.block_bytes * (4 + limit / 2) + limit % 7;
        kvl_store_destroy(d->store);
    }
    d->desc.block_tok = kvl_store_desc(d->store)->block_tok;
    return drive_create(d);
}

/* Runs the operations; false with d->msg at the first divergence.  `d` is zeroed by the caller. */
static inline bool drive_run(struct drive *d, const uint8_t *bytes, size_t n)
{
    d->bytes = bytes;
    d->n_bytes = n;
    bool same = drive_begin(d);
    while (same && d->n_bytes > 0) {
        same = drive_step(d);
        if (same && d->n_ops % 16 == 0) same = drive_compare_all(d);
    }
    same = same && drive_compare_all(d);
    for (int32_t i = 0; i < DRIVE_SEQS; i++) kvl_seq_destroy(d->seq[i].real);
    struct kvl_store_stats st;
    kvl_store_stats(d->store, &st);
    kvl_store_destroy(d->store);
    DRIVE_CHECK(!same || (st.n_blocks == 0 && st.n_refs == 0 && st.bytes == 0), "blocks are left");
    return same;
}

#endif
