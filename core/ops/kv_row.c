/* The table of types of keys and values, and whole rows of them on the host. */
#include "kv_rows.h"

#include "half.h"
#include "kv_row.h"

#include <stdio.h>

static const struct kvl_kv_facts facts[] = {
#define KVL_KV_TYPE(name_, number, text, family, unit_, bytes, head, turn_, most_, open)           \
    [number] = { .name = (text),                                                                   \
                 .unit = (unit_),                                                                  \
                 .unit_bytes = (bytes),                                                            \
                 .head_bytes = (head),                                                             \
                 .turn = KVL_TURN_##turn_,                                                         \
                 .most = (most_),                                                                  \
                 .open_tok = (open) },
#include "kvl/kvtypes.def"
};
enum { N_TYPES = sizeof facts / sizeof *facts };

const struct kvl_kv_facts *kvl_kv_facts(enum kvl_kv_type type)
{
    return (unsigned)type < N_TYPES ? &facts[type] : NULL;
}

static const char *type_name(enum kvl_kv_type type)
{
    const struct kvl_kv_facts *f = kvl_kv_facts(type);
    return f ? f->name : "unknown";
}

struct kvl_kv_name kvl_kv_name(enum kvl_kv_type type)
{
    struct kvl_kv_name name;
    enum kvl_kv_type k = kvl_kv_keys(type), v = kvl_kv_values(type);
    snprintf(name.text, sizeof name.text, "%s%s%s", type_name(k), k == v ? "" : "/",
             k == v ? "" : type_name(v));
    return name;
}

static bool find_one(const char *name, size_t n, enum kvl_kv_type *out)
{
    for (int i = 0; i < N_TYPES; i++)
        if (strlen(facts[i].name) == n && memcmp(facts[i].name, name, n) == 0) {
            *out = (enum kvl_kv_type)i;
            return true;
        }
    return false;
}

bool kvl_kv_find(const char *name, enum kvl_kv_type *out)
{
    const char *slash = strchr(name, '/');
    enum kvl_kv_type k, v;
    if (!slash) return find_one(name, strlen(name), out);
    if (!find_one(name, (size_t)(slash - name), &k) || !find_one(slash + 1, strlen(slash + 1), &v))
        return false;
    *out = kvl_kv_pair(k, v);
    return true;
}

const char *kvl_kv_list(void)
{
#define KVL_KV_TYPE(name, number, text, ...) ", " text
    static const char list[] =
#include "kvl/kvtypes.def"
        ;
    return list + 2;
}

static enum kvl_kv_type open_one(enum kvl_kv_type type)
{
    const struct kvl_kv_facts *f = kvl_kv_facts(type);
    return f && f->open_tok > 0 ? KVL_KV_F16 : type;
}

enum kvl_kv_type kvl_kv_open(enum kvl_kv_type type)
{
    return kvl_kv_pair(open_one(kvl_kv_keys(type)), open_one(kvl_kv_values(type)));
}

bool kvl_kv_seals(enum kvl_kv_type type)
{
    return kvl_kv_open(type) != type;
}

size_t kvl_kv_row_bytes(enum kvl_kv_type type, int32_t head_dim)
{
    const struct kvl_kv_facts *f = kvl_kv_facts(type);
    size_t n = (size_t)f->head_bytes + (size_t)(head_dim / f->unit) * (size_t)f->unit_bytes;
    return n + n % 2;
}

size_t kvl_kv_slot_bytes(enum kvl_kv_type type, int32_t head_dim, bool raw_keys)
{
    size_t key = kvl_kv_row_bytes(kvl_kv_keys(type), head_dim);
    return (raw_keys ? 2 * key : key) + kvl_kv_row_bytes(kvl_kv_values(type), head_dim);
}

/* The names of types that take heads of any size. */
static void any_names(char *out, size_t size)
{
    size_t at = 0;
    out[0] = 0;
    for (int i = 0; i < N_TYPES && at < size; i++)
        if (facts[i].unit == 1)
            at += (size_t)snprintf(out + at, size - at, "%s%s", at > 0 ? ", " : "", facts[i].name);
}

int kvl_kv_check(enum kvl_kv_type type, int32_t head_dim, struct kvl_err *err)
{
    const enum kvl_kv_type part[] = { kvl_kv_keys(type), kvl_kv_values(type) };
    char names[64];
    for (int i = 0; i < 2; i++) {
        const struct kvl_kv_facts *f = kvl_kv_facts(part[i]);
        if (!f)
            return kvl_fail(err, KVL_EINVAL, "KV store: element type %d, want one of %s",
                            (int)part[i], kvl_kv_list());
        if (head_dim % f->unit == 0) continue;
        any_names(names, sizeof names);
        return kvl_fail(err, KVL_EINVAL,
                        "%s in %s: a head has %d elements, want a multiple of %d; --kv-type %s "
                        "take any",
                        part[0] == part[1] ? "keys and values"
                        : i == 0           ? "keys"
                                           : "values",
                        f->name, head_dim, f->unit, names);
    }
    return KVL_OK;
}

/* ---- rows -------------------------------------------------------------------------------------------- */

static void turn_signs(float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i++) x[i] = kvl_turn_sign(i) ? -x[i] : x[i];
}

/* The steps of less than eight, all at once. */
static void turn_eight(float *x)
{
#pragma GCC unroll 3
    for (int32_t step = 1; step < 8; step *= 2)
#pragma GCC unroll 4
        for (int32_t i = 0; i < 4; i++) {
            int32_t a, b;
            kvl_turn_pair(i, step, &a, &b);
            float sum = x[a] + x[b], rest = x[a] - x[b];
            x[a] = sum;
            x[b] = rest;
        }
}

static void turn_piece(float *x, int32_t piece)
{
    int32_t first = piece < 8 ? 1 : 8;
    for (int32_t i = 0; first == 8 && i < piece; i += 8) turn_eight(x + i);
    for (int32_t step = first; step < piece; step *= 2)
        for (int32_t a = 0; a < piece; a += 2 * step)
            for (int32_t i = a; i < a + step; i++) {
                float sum = x[i] + x[i + step], rest = x[i] - x[i + step];
                x[i] = sum;
                x[i + step] = rest;
            }
}

void kvl_row_turn_by(enum kvl_kv_turn turn, float *x, int32_t n, bool back)
{
    if (turn == KVL_TURN_NONE) return;
    const int32_t piece = kvl_turn_piece(n);
    const float scale = kvl_turn_scale(piece);
    if (turn == KVL_TURN_SIGNED && !back) turn_signs(x, n);
    for (int32_t i = 0; i < n; i += piece) turn_piece(x + i, piece);
    for (int32_t i = 0; i < n; i++) x[i] *= scale;
    if (turn == KVL_TURN_SIGNED && back) turn_signs(x, n);
}

/* Types of 16 bits as loops that vectorise. */
static bool put_plain(enum kvl_kv_type type, uint8_t *row, const float *x, int32_t n)
{
    uint16_t *half = (uint16_t *)(void *)row;
    if (type == KVL_KV_F16)
        for (int32_t i = 0; i < n; i++) half[i] = kvl_f32_to_f16(x[i]);
    if (type == KVL_KV_BF16)
        for (int32_t i = 0; i < n; i++) half[i] = kvl_f32_to_bf16(x[i]);
    return type == KVL_KV_F16 || type == KVL_KV_BF16;
}

static bool get_plain(enum kvl_kv_type type, float *x, const uint8_t *row, int32_t n)
{
    const uint16_t *half = (const uint16_t *)(const void *)row;
    if (type == KVL_KV_F16)
        for (int32_t i = 0; i < n; i++) x[i] = kvl_f16_to_f32(half[i]);
    if (type == KVL_KV_BF16)
        for (int32_t i = 0; i < n; i++) x[i] = kvl_bf16_to_f32(half[i]);
    return type == KVL_KV_F16 || type == KVL_KV_BF16;
}

/* Codes of 32 elements as kvl_turbo_code has them: how many edges a size is above. */
static void turbo_codes(int32_t *code, const float *x, float times, int32_t bits)
{
    const int32_t half = 1 << (bits - 1);
    int32_t above[32] = { 0 };
    float v[32];
    for (int32_t i = 0; i < 32; i++) v[i] = x[i] * times;
    for (int32_t e = 0; e < half - 1; e++) {
        const float edge = kvl_turbo_edge(bits, e);
        for (int32_t i = 0; i < 32; i++) above[i] += fabsf(v[i]) > edge;
    }
    for (int32_t i = 0; i < 32; i++) code[i] = v[i] < 0 ? half - 1 - above[i] : half + above[i];
}

/* Eight of them. */
static void turbo_pack(uint8_t *to, const int32_t *code, int32_t bits)
{
    uint32_t all = 0;
    for (int32_t i = 0; i < 8; i++) all |= (uint32_t)code[i] << i * bits;
    for (int32_t b = 0; b < bits; b++) to[b] = (uint8_t)(all >> 8 * b);
}

/* As kvl_turbo_put, bit for bit, in loops that vectorise. */
static void put_turbo(uint8_t *row, const float *x, int32_t n, int32_t bits)
{
    double norm = 0, values = 0, square[16];
    int32_t code[32];
    for (int32_t c = 0; c < 1 << bits; c++) {
        double value = (double)kvl_turbo_value(bits, c);
        square[c] = value * value;
    }
    for (int32_t i = 0; i < n; i++) norm += (double)x[i] * (double)x[i];
    const float times = norm > 0 && norm < (double)INFINITY ? (float)(1 / sqrt(norm / n)) : 0;
    for (int32_t i = 0; i < n; i += 32) {
        turbo_codes(code, x + i, times, bits);
        for (int32_t j = 0; j < 32; j++) values += square[code[j]];
        for (int32_t j = 0; j < 32; j += 8)
            turbo_pack(row + 2 + (i + j) / 8 * bits, code + j, bits);
    }
    uint16_t scale = kvl_block_to_half((float)sqrt(norm / values));
    kvl_row_put_u16(row, (scale & 0x7fffu) < 0x7c00u ? scale : 0x7e00u);
}

/* As kvl_kivi_group_put, bit for bit, a row at a time, so that loops vectorise: GROUP_PIECE channels. */
enum { GROUP_PIECE = 64 };

struct group_piece {
    float low[GROUP_PIECE], high[GROUP_PIECE], by[GROUP_PIECE]; /* by: scale, 1 where it is 0 */
    uint32_t top[GROUP_PIECE],
        counts[GROUP_PIECE]; /* bits of the largest size; whether scale > 0 */
};

static void piece_range(struct group_piece *p, const float *x, int32_t n, int32_t len)
{
    memcpy(p->low, x, (size_t)len * sizeof *x);
    memcpy(p->high, x, (size_t)len * sizeof *x);
    memset(p->top, 0, sizeof p->top);
    for (int32_t t = 0; t < KVL_KV_GROUP; t++, x += n)
        for (int32_t c = 0; c < len; c++) {
            uint32_t size = kvl_row_bits(x[c]) & 0x7fffffffu;
            p->top[c] = size > p->top[c] ? size : p->top[c];
            p->low[c] = x[c] < p->low[c] ? x[c] : p->low[c];
            p->high[c] = x[c] > p->high[c] ? x[c] : p->high[c];
        }
}

/* What is stored of it, and read back into it: codes count from what readers see. */
static void piece_scales(struct group_piece *p, uint16_t *min, uint16_t *scale, int32_t bits,
                         int32_t len)
{
    const float most = (float)((1 << bits) - 1);
    for (int32_t c = 0; c < len; c++) {
        bool finite = p->top[c] < 0x7f800000u;
        min[c] = finite ? kvl_f32_to_f16(p->low[c]) : 0x7e00u;
        scale[c] = finite ? kvl_f32_to_f16((p->high[c] - p->low[c]) / most) : 0x7e00u;
        p->low[c] = kvl_f16_to_f32(min[c]);
        p->by[c] = kvl_f16_to_f32(scale[c]);
        p->counts[c] = p->by[c] > 0;
        p->by[c] = p->counts[c] ? p->by[c] : 1;
    }
}

static void piece_codes(const struct group_piece *p, uint8_t *codes, const float *x, int32_t bits,
                        int32_t len)
{
    const float magic = 12582912.0f, most = (float)((1 << bits) - 1);
    int32_t code[GROUP_PIECE];
    for (int32_t c = 0; c < len; c++) {
        float q = (x[c] - p->low[c]) / p->by[c];
        q = q > 0 ? q : 0;
        q = q < most ? q : most;
        code[c] = (int32_t)(q + magic - magic) * (int32_t)p->counts[c];
    }
    for (int32_t c = 0; bits == 4 && c < len; c += 2)
        codes[c / 2] = (uint8_t)(code[c] | code[c + 1] << 4);
    for (int32_t c = 0; bits == 2 && c < len; c += 4)
        codes[c / 4] = (uint8_t)(code[c] | code[c + 1] << 2 | code[c + 2] << 4 | code[c + 3] << 6);
}

/* As kvl_kivi_row_put, bit for bit. */
static void put_kivi(uint8_t *row, const float *x, int32_t n, int32_t bits)
{
    struct group_piece p;
    for (int32_t u = 0; u < n; u += 32, row += 4 + 4 * bits) {
        kvl_kivi_range(x + u, 1, bits, row, row + 2);
        const float min = kvl_block_half(row), scale = kvl_block_half(row + 2);
        for (int32_t c = 0; c < 32; c++) {
            p.low[c] = min;
            p.by[c] = scale > 0 ? scale : 1;
            p.counts[c] = scale > 0;
        }
        piece_codes(&p, row + 4, x + u, bits, 32);
    }
}

static void put_turned(enum kvl_kv_type type, uint8_t *row, const float *x, int32_t n)
{
    switch (type) {
    case KVL_KV_TURBOQUANT4: put_turbo(row, x, n, 4); break;
    case KVL_KV_TURBOQUANT3: put_turbo(row, x, n, 3); break;
    case KVL_KV_KIVI4: put_kivi(row, x, n, 4); break;
    case KVL_KV_KIVI2: put_kivi(row, x, n, 2); break;
    default: kvl_row_put_turned(type, row, x, n);
    }
}

void kvl_row_put(enum kvl_kv_type type, uint8_t *row, const float *x, int32_t n)
{
    const enum kvl_kv_turn turn = kvl_kv_facts(type)->turn;
    float turned[KVL_ROW_MOST];
    if (put_plain(type, row, x, n)) return;
    if (turn == KVL_TURN_NONE) {
        put_turned(type, row, x, n);
        return;
    }
    memcpy(turned, x, (size_t)n * sizeof *x);
    kvl_row_turn_by(turn, turned, n, false);
    put_turned(type, row, turned, n);
}

void kvl_row_get_turned(enum kvl_kv_type type, float *x, const uint8_t *row, int32_t n)
{
    if (get_plain(type, x, row, n)) return;
    switch (type) { /* once for the row */
#define KVL_KV_TYPE(name, number, text, family, ...)                                               \
    case KVL_KV_##name:                                                                            \
        for (int32_t i = 0; i < n; i++) x[i] = kvl_##family##_at(row, i);                          \
        break;
#include "kvl/kvtypes.def"
    case KVL_KV_PAIRS: break;
    }
}

void kvl_row_get(enum kvl_kv_type type, float *x, const uint8_t *row, int32_t n)
{
    kvl_row_get_turned(type, x, row, n);
    kvl_row_turn_by(kvl_kv_facts(type)->turn, x, n, true);
}

void kvl_group_put(enum kvl_kv_type type, uint8_t *group, const float *x, int32_t n)
{
    const int32_t bits = kvl_kivi_bits(type);
    uint16_t *min = (uint16_t *)(void *)group, *scale = min + n;
    struct group_piece p;
    for (int32_t c = 0, len; c < n; c += len) {
        len = KVL_MIN(GROUP_PIECE, n - c);
        piece_range(&p, x + c, n, len);
        piece_scales(&p, min + c, scale + c, bits, len);
        for (int32_t t = 0; t < KVL_KV_GROUP; t++)
            piece_codes(&p, group + kvl_kivi_group_codes(n, bits, t) + c * bits / 8,
                        x + (size_t)t * (size_t)n + c, bits, len);
    }
}

void kvl_group_get(enum kvl_kv_type type, float *x, const uint8_t *group, int32_t n, int32_t token)
{
    for (int32_t c = 0; c < n; c++) x[c] = kvl_kivi_group_at(type, group, n, token, c);
}
