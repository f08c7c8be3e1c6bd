/* log_frame.h - the bytes of a log: headers, frames, and the walk over a file's groups.
 *
 * Shared by the reader (log_read.c) and the writer (log.c); log.h describes the format.
 *
 * Thread-safe: yes.
 */
#ifndef KVL_LOG_FRAME_H
#define KVL_LOG_FRAME_H

#include "log.h"

#include <stdio.h>

/* Larger files are refused: they are read into memory as a whole. */
#define KVL_LOG_FILE_MAX ((size_t)16 << 30)

struct kvl_log_header {
    uint32_t version;
    uint8_t run[16];
    uint64_t sequence;
    uint32_t n_records;
    uint64_t packed, unpacked; /* bytes of the frame and of its text */
    uint64_t packed_hash;      /* XXH64 of the frame */
    uint64_t prev_hash;        /* `hash` of the run's previous header, or 0 */
    uint64_t hash;             /* XXH64 of this header; filled by pack and unpack */
};

void kvl_log_header_pack(struct kvl_log_header *h, uint8_t out[KVL_LOG_HEADER]);
/* True when a header with a right hash stands at `p`.  Of a newer version only `version` is set. */
bool kvl_log_header_unpack(const uint8_t *p, size_t len, struct kvl_log_header *h);

/* What a repair left out at a place: a skippable frame of KVL_LOG_LOST bytes, with marker and hash like a header. */
#define KVL_LOG_LOST        84
#define KVL_LOG_LOST_NO_RUN UINT64_MAX
struct kvl_log_lost {
    uint8_t run[16];
    uint64_t next; /* the run goes on with that group; KVL_LOG_LOST_NO_RUN: none does */
    int64_t n_groups, n_records; /* -1 unknown */
    uint64_t bytes;
};
void kvl_log_lost_pack(const struct kvl_log_lost *l, uint8_t out[KVL_LOG_LOST]);

/* One valid group of a file. */
struct kvl_log_group {
    const uint8_t *start, *frame; /* start = header, or frame when there is none */
    size_t start_bytes, frame_bytes;
    const struct kvl_log_header *header; /* NULL: a plain frame */
    const struct kvl_log_lost *lost;     /* no group, but such a note, which fills `start` */
    bool joined; /* a plain frame right behind a plain frame: a line may span both */
};
typedef int (*kvl_log_group_fn)(const struct kvl_log_group *g, void *user, struct kvl_err *err);

/* Visits the valid groups and the notes of repairs; everything else becomes damage in `health`.  Errors as kvl_log_read. */
int kvl_log_walk(const char *name, const uint8_t *data, size_t len, kvl_log_group_fn fn, void *user,
                 struct kvl_log_health *health, struct kvl_err *err);

/* Decodes frames one after the other; { 0 } is ready, memory comes with the first frame. */
struct kvl_log_unpacker {
    struct ZSTD_DCtx_s *ctx;
    char *text;
};
void kvl_log_unpacker_free(struct kvl_log_unpacker *u);
/* Decodes a frame that fills `src`, handing its text to `fn` piece by piece.  KVL_ELOG: not a frame,
 * cut off, wrong checksum, or something behind it. */
typedef int (*kvl_log_text_fn)(const char *text, size_t len, void *user, struct kvl_err *err);
int kvl_log_unpack(struct kvl_log_unpacker *u, const uint8_t *src, size_t len, kvl_log_text_fn fn,
                   void *user, struct kvl_err *err);

/* The lines of a log as they are (kvl_log_read_memory hands on records that are safe to show). */
typedef int (*kvl_log_line_fn)(const char *text, size_t len, void *user, struct kvl_err *err);
int kvl_log_lines(const char *path, kvl_log_line_fn fn, void *user, struct kvl_log_health *health,
                  struct kvl_err *err);

/* A new log in the open, empty file `fd`, which it closes, as the groups of `run`.  Nobody else has the file: no lock. */
int kvl_log_new(int fd, const char *path, const uint8_t run[16], struct kvl_log **out,
                struct kvl_err *err);
/* As kvl_log_append, of one line without its line feed. */
int kvl_log_append_line(struct kvl_log *log, const char *text, size_t len, struct kvl_err *err);

/* Writes all of it: short writes and EINTR are taken care of.  0 or the errno. */
int kvl_log_write_all(int fd, const void *data, size_t len);
/* Makes the creation or removal of `path` safe.  0 or the errno. */
int kvl_log_sync_dir(const char *path);

#endif
