/* The bytes of a log: headers, frames, and how a reader gets past damage. */
#include "log_frame.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <xxhash.h>
#include <zstd.h>
#include <zstd_errors.h>

#define MAGIC_SKIP  0x184D2A50u
#define MAGIC_ZSTD  0xFD2FB528u
#define MARKER_SIZE 16
#define FRAME_HEAD  8 /* magic and size of a skippable frame */
/* A header of a later version may be longer, but marker and version stay where they are. */
#define HEADER_MAX 4096
/* Decoders refuse larger windows by default; a log of ours never needs one. */
#define WINDOW_LOG_MAX 27
/* What may be looked at for nothing: some bytes, and so many times the file.  The size of a frame is found from block to
 * block, of which the smallest has so many bytes. */
#define WASTE_MIN   ((uint64_t)256 << 20)
#define WASTE_TIMES 64
#define WASTE_STEP  4
/* JSON lines do not become smaller than that. */
#define FRAME_TIMES 4096

/* Chosen at random once: 128 bits that occur nowhere else. */
static const uint8_t marker[MARKER_SIZE] = { 0x9c, 0x4b, 0x76, 0x6c, 0xe1, 0x0d, 0x6b, 0x61,
                                             0x33, 0xf7, 0x6c, 0x6f, 0x67, 0x8e, 0xa2, 0x15 };

static const uint8_t lost_marker[MARKER_SIZE] = { 0x5d, 0x90, 0x1f, 0xc2, 0x38, 0xee, 0x07, 0xa4,
                                                  0xd1, 0x6a, 0x4e, 0x93, 0x2b, 0xf8, 0x75, 0x0c };

/* ---- headers ------------------------------------------------------------------------------- */

static uint8_t *put_le(uint8_t *p, uint64_t v, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++) *p++ = (uint8_t)(v >> (8 * i));
    return p;
}

static uint64_t get_le(const uint8_t **p, int n_bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < n_bytes; i++) v |= (uint64_t)(*p)[i] << (8 * i);
    *p += n_bytes;
    return v;
}

static uint32_t peek_u32(const uint8_t *p)
{
    return (uint32_t)get_le(&p, 4);
}

void kvl_log_header_pack(struct kvl_log_header *h, uint8_t out[KVL_LOG_HEADER])
{
    uint8_t *p = put_le(out, MAGIC_SKIP, 4);
    p = put_le(p, KVL_LOG_HEADER - FRAME_HEAD, 4);
    memcpy(p, marker, sizeof marker);
    p = put_le(p + sizeof marker, h->version, 4);
    memcpy(p, h->run, sizeof h->run);
    p = put_le(p + sizeof h->run, h->sequence, 8);
    p = put_le(p, h->n_records, 4);
    p = put_le(p, h->packed, 8);
    p = put_le(p, h->unpacked, 8);
    p = put_le(p, h->packed_hash, 8);
    p = put_le(p, h->prev_hash, 8);
    h->hash = XXH64(out, (size_t)(p - out), 0);
    put_le(p, h->hash, 8);
}

bool kvl_log_header_unpack(const uint8_t *p, size_t len, struct kvl_log_header *h)
{
    if (len < KVL_LOG_HEADER || peek_u32(p) != MAGIC_SKIP) return false;
    if (memcmp(p + FRAME_HEAD, marker, sizeof marker) != 0) return false;
    size_t size = peek_u32(p + 4);
    if (size < KVL_LOG_HEADER - FRAME_HEAD || size > HEADER_MAX || size > len - FRAME_HEAD)
        return false;
    size_t hashed = FRAME_HEAD + size - 8;
    const uint8_t *at = p + hashed;
    uint64_t hash = get_le(&at, 8);
    if (hash != XXH64(p, hashed, 0)) return false;

    const uint8_t *q = p + FRAME_HEAD + sizeof marker;
    *h = (struct kvl_log_header){ .version = (uint32_t)get_le(&q, 4), .hash = hash };
    if (h->version > KVL_LOG_VERSION) return true;
    if (size != KVL_LOG_HEADER - FRAME_HEAD) return false;
    memcpy(h->run, q, sizeof h->run);
    q += sizeof h->run;
    h->sequence = get_le(&q, 8);
    h->n_records = (uint32_t)get_le(&q, 4);
    h->packed = get_le(&q, 8);
    h->unpacked = get_le(&q, 8);
    h->packed_hash = get_le(&q, 8);
    h->prev_hash = get_le(&q, 8);
    return true;
}

/* ---- what a repair left out -------------------------------------------------------------------- */

enum { LOST_BYTES = FRAME_HEAD + MARKER_SIZE + 4 + 16 + 5 * 8 };

void kvl_log_lost_pack(const struct kvl_log_lost *l, uint8_t out[KVL_LOG_LOST])
{
    uint8_t *p = put_le(out, MAGIC_SKIP + 1, 4);
    p = put_le(p, LOST_BYTES - FRAME_HEAD, 4);
    memcpy(p, lost_marker, sizeof lost_marker);
    p = put_le(p + sizeof lost_marker, KVL_LOG_VERSION, 4);
    memcpy(p, l->run, sizeof l->run);
    p = put_le(p + sizeof l->run, l->next, 8);
    p = put_le(p, (uint64_t)l->n_groups, 8);
    p = put_le(p, (uint64_t)l->n_records, 8);
    p = put_le(p, l->bytes, 8);
    put_le(p, XXH64(out, (size_t)(p - out), 0), 8);
}

static_assert(LOST_BYTES == KVL_LOG_LOST, "log_frame.h says so");

static bool lost_unpack(const uint8_t *p, size_t len, struct kvl_log_lost *l)
{
    if (len < LOST_BYTES || peek_u32(p) != MAGIC_SKIP + 1) return false;
    if (memcmp(p + FRAME_HEAD, lost_marker, sizeof lost_marker) != 0) return false;
    const uint8_t *at = p + LOST_BYTES - 8;
    if (get_le(&at, 8) != XXH64(p, LOST_BYTES - 8, 0)) return false;
    const uint8_t *q = p + FRAME_HEAD + sizeof lost_marker + 4;
    memcpy(l->run, q, sizeof l->run);
    q += sizeof l->run;
    l->next = get_le(&q, 8);
    l->n_groups = (int64_t)get_le(&q, 8);
    l->n_records = (int64_t)get_le(&q, 8);
    l->bytes = get_le(&q, 8);
    return true;
}

/* ---- frames -------------------------------------------------------------------------------- */

static int unpacker_ready(struct kvl_log_unpacker *u, struct kvl_err *err)
{
    if (!u->ctx) u->ctx = ZSTD_createDCtx();
    if (!u->text) u->text = malloc(ZSTD_DStreamOutSize());
    if (!u->ctx || !u->text) return kvl_fail(err, KVL_ENOMEM, "no memory to unpack a log");
    ZSTD_DCtx_reset(u->ctx, ZSTD_reset_session_and_parameters);
    ZSTD_DCtx_setParameter(u->ctx, ZSTD_d_windowLogMax, WINDOW_LOG_MAX);
    return KVL_OK;
}

int kvl_log_unpack(struct kvl_log_unpacker *u, const uint8_t *src, size_t len, kvl_log_text_fn fn,
                   void *user, struct kvl_err *err)
{
    KVL_TRY(unpacker_ready(u, err));
    ZSTD_inBuffer in = { .src = src, .size = len };
    size_t left = 1; /* 0 exactly at the end of a frame */
    while (left != 0) {
        ZSTD_outBuffer out = { .dst = u->text, .size = ZSTD_DStreamOutSize() };
        size_t before = in.pos;
        left = ZSTD_decompressStream(u->ctx, &out, &in);
        if (ZSTD_getErrorCode(left) == ZSTD_error_memory_allocation)
            return kvl_fail(err, KVL_ENOMEM, "no memory to unpack a frame of %zu bytes", len);
        if (ZSTD_isError(left)) return kvl_fail(err, KVL_ELOG, "%s", ZSTD_getErrorName(left));
        if (left != 0 && out.pos == 0 && in.pos == before)
            return kvl_fail(err, KVL_ELOG, "the frame is cut off");
        if (out.pos) KVL_TRY(fn(u->text, out.pos, user, err));
    }
    if (in.pos != len) return kvl_fail(err, KVL_ELOG, "%zu bytes after the frame", len - in.pos);
    return KVL_OK;
}

void kvl_log_unpacker_free(struct kvl_log_unpacker *u)
{
    ZSTD_freeDCtx(u->ctx);
    free(u->text);
    *u = (struct kvl_log_unpacker){ 0 };
}

struct frame_count {
    uint64_t bytes, lines;
    uint64_t most; /* bytes: with more it is no frame of ours */
};

static int count_text(const char *text, size_t len, void *user, struct kvl_err *err)
{
    struct frame_count *c = user;
    c->bytes += len;
    if (c->bytes > c->most) return kvl_fail(err, KVL_ELOG, "the frame is larger than it says");
    const char *end = text + len;
    while (text < end && (text = memchr(text, '\n', (size_t)(end - text)))) {
        c->lines++;
        text++;
    }
    return KVL_OK;
}

/* ---- the walk ------------------------------------------------------------------------------ */

enum spot_kind {
    SPOT_NOTHING,     /* no frame starts here, or it does not verify */
    SPOT_GROUP,       /* header and frame */
    SPOT_PLAIN,       /* a frame */
    SPOT_LOST,        /* what a repair left out there */
    SPOT_FOREIGN,     /* somebody else's skippable frame: skipped in silence */
    SPOT_BAD_PAYLOAD, /* a right header before a frame that is cut off or wrong */
};

/* What stands at one offset. */
struct spot {
    enum spot_kind kind;
    struct kvl_log_header header;
    struct kvl_log_lost lost;
    size_t bytes; /* to the next spot */
    uint64_t text_bytes;
};

struct walk {
    const char *name;
    const uint8_t *data;
    size_t len;
    kvl_log_group_fn fn;
    void *user;
    struct kvl_log_health *health;
    struct kvl_err *err;
    struct kvl_log_unpacker unpacker;
    bool any, last_plain, no_memory;
    uint64_t wasted; /* bytes that were hashed or unpacked for nothing */
    /* The run that is being followed, and plain frames whose header was lost since. */
    bool in_run;
    uint8_t run[16];
    uint64_t next, orphans;
    size_t n_known; /* damage entries that already name what they lost */
};

/* Damage wastes no more than what is there, once; a file made for it has groups in groups in groups, each of which is
 * looked at up to the end.  True: it is such a file. */
static bool walk_trapped(const struct walk *w)
{
    return w->wasted > WASTE_MIN + WASTE_TIMES * (uint64_t)w->len;
}

/* A lack of memory is no damage: whoever opens the log for writing would cut good groups off. */
static bool frame_verifies(struct walk *w, const uint8_t *src, size_t len, struct frame_count *c)
{
    int rc = kvl_log_unpack(&w->unpacker, src, len, count_text, c, NULL);
    w->no_memory |= rc == KVL_ENOMEM;
    if (rc != KVL_OK) w->wasted += c->bytes + len;
    return rc == KVL_OK;
}

static bool group_verifies(struct walk *w, const uint8_t *frame, size_t len,
                           const struct kvl_log_header *h)
{
    if (h->packed > len) return false;
    bool whole = XXH64(frame, (size_t)h->packed, 0) == h->packed_hash;
    struct frame_count c = { .most = h->unpacked };
    if (whole && frame_verifies(w, frame, (size_t)h->packed, &c) && c.bytes == h->unpacked &&
        c.lines == h->n_records)
        return true;
    w->wasted += h->packed + c.bytes;
    return false;
}

static bool is_skip_magic(uint32_t magic)
{
    return (magic & ~15u) == MAGIC_SKIP;
}

/* A skippable frame that is not ours.  What is, but for a flipped bit, must not be skipped: a wrong
 * size would take the next group with it. */
static bool foreign_at(const struct walk *w, size_t pos, size_t *bytes)
{
    const uint8_t *p = w->data + pos;
    size_t len = w->len - pos;
    if (len < FRAME_HEAD || !is_skip_magic(peek_u32(p))) return false;
    size_t size = peek_u32(p + 4);
    if (size > len - FRAME_HEAD || size == KVL_LOG_HEADER - FRAME_HEAD) return false;
    if (size >= MARKER_SIZE && memcmp(p + FRAME_HEAD, marker, MARKER_SIZE) == 0) return false;
    *bytes = FRAME_HEAD + size;
    if (*bytes == len) return true;
    if (len - *bytes < 4) return false;
    uint32_t next = peek_u32(p + *bytes);
    return next == MAGIC_ZSTD || is_skip_magic(next);
}

static struct spot plain_at(struct walk *w, size_t pos)
{
    const uint8_t *p = w->data + pos;
    size_t len = w->len - pos;
    struct spot s = { .kind = SPOT_NOTHING };
    if (len < 4 || peek_u32(p) != MAGIC_ZSTD) return s;
    size_t size = ZSTD_findFrameCompressedSize(p, len);
    struct frame_count c = { .most = WASTE_MIN + FRAME_TIMES * (uint64_t)len };
    if (ZSTD_isError(size))
        w->wasted += len / WASTE_STEP; /* it goes from block to block, to the end at most */
    if (ZSTD_isError(size) || !frame_verifies(w, p, size, &c)) return s;
    return (struct spot){ .kind = SPOT_PLAIN, .bytes = size, .text_bytes = c.bytes };
}

static struct spot spot_at(struct walk *w, size_t pos)
{
    const uint8_t *p = w->data + pos;
    size_t len = w->len - pos;
    struct spot s = { .kind = SPOT_GROUP };
    if (kvl_log_header_unpack(p, len, &s.header)) {
        if (!group_verifies(w, p + KVL_LOG_HEADER, len - KVL_LOG_HEADER, &s.header)) {
            s.kind = SPOT_BAD_PAYLOAD;
            s.bytes = KVL_LOG_HEADER;
            return s;
        }
        s.bytes = KVL_LOG_HEADER + (size_t)s.header.packed;
        s.text_bytes = s.header.unpacked;
        return s;
    }
    if (lost_unpack(p, len, &s.lost)) {
        s.kind = SPOT_LOST;
        s.bytes = LOST_BYTES;
        return s;
    }
    if (foreign_at(w, pos, &s.bytes)) {
        s.kind = SPOT_FOREIGN;
        return s;
    }
    return plain_at(w, pos);
}

/* The next offset at or after `pos` where something of ours starts; the end when nothing does.
 * Behind a right header only headers count: its own frame, which is wrong, starts there. */
static size_t resync(struct walk *w, size_t pos, bool headers_only)
{
    struct kvl_log_header h;
    for (; pos < w->len && !walk_trapped(w); pos++) {
        const uint8_t *p = w->data + pos;
        if (*p == (MAGIC_SKIP & 0xff) && kvl_log_header_unpack(p, w->len - pos, &h)) return pos;
        if (!headers_only && *p == (MAGIC_ZSTD & 0xff) && plain_at(w, pos).kind == SPOT_PLAIN)
            return pos;
    }
    return pos;
}

static int walk_damage(struct walk *w, struct kvl_log_damage d)
{
    struct kvl_log_health *h = w->health;
    d.path = strdup(w->name);
    struct kvl_log_damage *grown = realloc(h->damage, (h->n_damage + 1) * sizeof *grown);
    if (grown) h->damage = grown;
    if (!d.path || !grown) {
        free(d.path);
        return kvl_fail(w->err, KVL_ENOMEM, "no memory for %zu entries on damage", h->n_damage + 1);
    }
    h->damage[h->n_damage++] = d;
    return KVL_OK;
}

/* Compares a right header with what its run should show next. */
static int walk_sequence(struct walk *w, const struct kvl_log_header *h, size_t pos)
{
    bool same = w->in_run && memcmp(w->run, h->run, sizeof w->run) == 0;
    uint64_t next = same ? w->next : 0;
    uint64_t skipped = h->sequence > next ? h->sequence - next : 0;
    uint64_t gap = skipped > w->orphans ? skipped - w->orphans : 0;
    w->in_run = true;
    memcpy(w->run, h->run, sizeof w->run);
    w->next = h->sequence + 1;
    w->orphans = 0;

    struct kvl_log_health *health = w->health;
    bool explained = w->n_known < health->n_damage;
    if (explained && (same || skipped)) { /* the missing groups stood where the damage is */
        struct kvl_log_damage *d = &health->damage[health->n_damage - 1];
        d->n_groups = (int64_t)gap;
        if (gap)
            d->sequence = (int64_t)next;
        else
            d->n_records = 0;
    }
    w->n_known = health->n_damage;
    if (explained || !gap) return KVL_OK;
    w->n_known++;
    return walk_damage(w, (struct kvl_log_damage){ .what = "groups are missing",
                                                   .offset = pos,
                                                   .sequence = (int64_t)next,
                                                   .n_groups = (int64_t)gap,
                                                   .n_records = -1 });
}

/* What is missing there is known: the run goes on behind it. */
static int walk_lost(struct walk *w, const struct spot *s, size_t pos)
{
    const struct kvl_log_lost *l = &s->lost;
    struct kvl_log_group g = { .start = w->data + pos, .start_bytes = s->bytes, .lost = l };
    struct kvl_log_health *h = w->health;
    h->n_repairs++;
    h->lost_bytes += l->bytes;
    h->lost_groups = l->n_groups < 0 || h->lost_groups < 0 ? -1 : h->lost_groups + l->n_groups;
    h->lost_records = l->n_records < 0 || h->lost_records < 0 ? -1 : h->lost_records + l->n_records;
    w->last_plain = false;
    w->any = true;
    if (l->next != KVL_LOG_LOST_NO_RUN) {
        w->in_run = true;
        memcpy(w->run, l->run, sizeof w->run);
        w->next = l->next;
        w->orphans = 0;
    }
    return w->fn ? w->fn(&g, w->user, w->err) : KVL_OK;
}

static int walk_group(struct walk *w, const struct spot *s, size_t pos)
{
    bool plain = s->kind == SPOT_PLAIN;
    size_t head = plain ? 0 : KVL_LOG_HEADER;
    struct kvl_log_group g = { .start = w->data + pos,
                               .start_bytes = s->bytes,
                               .frame = w->data + pos + head,
                               .frame_bytes = s->bytes - head,
                               .header = plain ? NULL : &s->header,
                               .joined = plain && w->last_plain };
    w->health->n_groups++;
    w->health->n_plain += plain;
    w->health->text_bytes += s->text_bytes;
    w->orphans += plain && w->n_known < w->health->n_damage;
    w->last_plain = plain;
    w->any = true;
    return w->fn ? w->fn(&g, w->user, w->err) : KVL_OK;
}

static int walk_goes_on(const struct walk *w)
{
    if (walk_trapped(w))
        return kvl_fail(
            w->err, KVL_ELOG,
            "%s: groups within groups, no log of kvlab has them: it was made to take for ever",
            w->name);
    if (!w->no_memory) return KVL_OK;
    return kvl_fail(w->err, KVL_ENOMEM, "%s: no memory to unpack it", w->name);
}

/* Bytes [pos, *end) hold no valid group. */
static int walk_bad(struct walk *w, const struct spot *s, size_t pos, size_t *end)
{
    bool header = s->kind == SPOT_BAD_PAYLOAD;
    *end = resync(w, pos + (header ? s->bytes : 1), header);
    KVL_TRY(walk_goes_on(w));
    w->last_plain = false;
    struct kvl_log_damage d = { .what = "no valid group",
                                .offset = pos,
                                .bytes = *end - pos,
                                .sequence = -1,
                                .n_groups = -1,
                                .n_records = -1,
                                .tail = *end == w->len };
    if (header) {
        d.what = s->header.packed > w->len - pos - KVL_LOG_HEADER ? "the group is cut off"
                                                                  : "the group is damaged";
        d.sequence = (int64_t)s->header.sequence;
        d.n_groups = 1;
        d.n_records = (int64_t)s->header.n_records;
    }
    KVL_TRY(walk_damage(w, d));
    if (header) w->n_known = w->health->n_damage;
    return KVL_OK;
}

/* A crash leaves a beginning of a header, or zeros where the data did not arrive. */
static bool could_be_log(const uint8_t *data, size_t len)
{
    struct kvl_log_header h = { .version = KVL_LOG_VERSION };
    uint8_t head[KVL_LOG_HEADER];
    kvl_log_header_pack(&h, head);
    if (memcmp(data, head, KVL_MIN(len, (size_t)FRAME_HEAD + MARKER_SIZE)) == 0) return true;
    if (len >= 4 && peek_u32(data) == MAGIC_ZSTD) return true;
    for (size_t i = 0; i < len; i++)
        if (data[i]) return false;
    return true;
}

static int walk_all(struct walk *w)
{
    for (size_t pos = 0; pos < w->len;) {
        struct spot s = spot_at(w, pos);
        KVL_TRY(walk_goes_on(w));
        bool header = s.kind == SPOT_GROUP || s.kind == SPOT_BAD_PAYLOAD;
        if (header && s.header.version > KVL_LOG_VERSION)
            return kvl_fail(w->err, KVL_ELOG,
                            "%s: log format %u, this program reads up to %u; use a newer kvlab",
                            w->name, s.header.version, KVL_LOG_VERSION);
        if (header) KVL_TRY(walk_sequence(w, &s.header, pos));
        if (s.kind == SPOT_GROUP || s.kind == SPOT_PLAIN) KVL_TRY(walk_group(w, &s, pos));
        size_t end = pos + s.bytes;
        if (s.kind == SPOT_LOST) KVL_TRY(walk_lost(w, &s, pos));
        if (s.kind == SPOT_NOTHING || s.kind == SPOT_BAD_PAYLOAD)
            KVL_TRY(walk_bad(w, &s, pos, &end));
        pos = end;
    }
    if (w->len && !w->any && !could_be_log(w->data, w->len))
        return kvl_fail(w->err, KVL_ELOG, "%s: not a kvlab log (no zstd frame in %zu bytes)",
                        w->name, w->len);
    return KVL_OK;
}

int kvl_log_write_all(int fd, const void *data, size_t len)
{
    const char *p = data;
    while (len) {
        ssize_t n = write(fd, p, len);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        if (n == 0) return EIO;
        p += n;
        len -= (size_t)n;
    }
    return 0;
}

int kvl_log_walk(const char *name, const uint8_t *data, size_t len, kvl_log_group_fn fn, void *user,
                 struct kvl_log_health *health, struct kvl_err *err)
{
    struct walk w = { .name = name,
                      .data = data,
                      .len = len,
                      .fn = fn,
                      .user = user,
                      .health = health,
                      .err = err,
                      .n_known = health->n_damage };
    health->n_files++;
    health->bytes += len;
    int rc = walk_all(&w);
    kvl_log_unpacker_free(&w.unpacker);
    return rc;
}
