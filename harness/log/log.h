/* log.h - the result log: JSON lines in zstd frames that survive crashes, full disks and flipped
 * bits.
 *
 * Vocabulary
 *   record   one JSON object = one line (results/README.md is the dictionary of its fields)
 *   group    the records of one commit: a header (a zstd skippable frame of KVL_LOG_HEADER bytes)
 *            and one zstd frame of whole lines.  `zstd -dc log` prints the lines of all groups
 *   run      one opening of a log for writing; its groups count up from 0
 *   torn     bytes at the end that are no complete group: a crash or a full disk in mid-write
 *   damaged  bytes elsewhere that are no valid group
 *
 * Header, little-endian: magic 184D2A50, size of what follows (u32), marker [16], version (u32),
 * run [16], sequence number (u64), records (u32), compressed bytes (u64), uncompressed bytes (u64),
 * XXH64 of the compressed bytes, XXH64 of the run's previous header (0 for the first), XXH64 of all
 * of the header before it.  A reader that meets damage looks for the next marker whose header
 * verifies, so that a damaged group costs itself and no other.  Sequence numbers show what is
 * missing.  Frames without a header are read as well: a log recompressed or made by `zstd`.
 *
 * A record is safe once kvl_log_commit has returned KVL_OK: fdatasync is behind it.  Committed
 * bytes are never rewritten.
 *
 * Thread-safe: no; one log = one thread.  Between processes: one writer (an advisory lock, freed by
 * the kernel when the process dies), any number of readers without a lock, who see a prefix.
 */
#ifndef KVL_LOG_H
#define KVL_LOG_H

#include "kvl/base.h"

#include <jansson.h>

#define KVL_LOG_SCHEMA   "kvlab/1"
#define KVL_LOG_VERSION  1u
#define KVL_LOG_HEADER   96
#define KVL_LOG_RUN_SIZE 33 /* 32 hexadecimal digits and NUL */

/* ---- health -------------------------------------------------------------------------------- */

/* One stretch of bytes that holds no valid group, or a gap in the sequence numbers (bytes 0). */
struct kvl_log_damage {
    char *path;
    const char *what; /* static text */
    uint64_t offset, bytes;
    int64_t sequence;  /* first group lost; -1 unknown */
    int64_t n_groups;  /* groups lost; -1 unknown */
    int64_t n_records; /* records lost; -1 unknown */
    bool tail;         /* up to the end of the file: torn, or being written just now */
};

/* What a reader found.  Counts add up over files; { 0 } is empty. */
struct kvl_log_health {
    uint64_t bytes;      /* compressed, headers included */
    uint64_t text_bytes; /* uncompressed */
    uint64_t n_files, n_groups, n_records;
    uint64_t n_plain;     /* groups of n_groups that have no header */
    uint64_t n_bad_lines; /* lines of valid groups that are no JSON object; skipped */
    /* What repairs of the log left out, and say so where it stood. */
    uint64_t n_repairs, lost_bytes;
    int64_t lost_groups, lost_records; /* -1 unknown */
    struct kvl_log_damage *damage;
    size_t n_damage;
};
void kvl_log_health_free(struct kvl_log_health *h);
/* True when nothing but torn tails is wrong: no record that was ever committed is missing. */
bool kvl_log_health_ok(const struct kvl_log_health *h);

/* ---- reading ------------------------------------------------------------------------------- */

/* A record, borrowed for the call (json_incref keeps it).  Anything but KVL_OK stops the reader and
 * is returned by it. */
typedef int (*kvl_log_fn)(json_t *record, void *user, struct kvl_err *err);

/* Hands every record of every valid group to `fn` (NULL: only looks), in the order of the file.
 * `path` "-" is standard input.  Damage is no error; it is added to `health` (may be NULL).
 * KVL_EINVAL: cannot be opened.  KVL_ELOG: written by a newer format, or no log at all. */
int kvl_log_read(const char *path, kvl_log_fn fn, void *user, struct kvl_log_health *health,
                 struct kvl_err *err);

/* The same over several files. */
int kvl_log_each(const char *const *paths, size_t n_paths, kvl_log_fn fn, void *user,
                 struct kvl_log_health *health, struct kvl_err *err);

/* The same over memory; `name` is for messages (tests, fuzzing). */
int kvl_log_read_memory(const char *name, const void *data, size_t len, kvl_log_fn fn, void *user,
                        struct kvl_log_health *health, struct kvl_err *err);

/* Files behind command-line words: a file, "-", a folder (its *.zst, sorted) or a glob pattern.
 * KVL_EINVAL when a word stands for no file.  `out` is freed with kvl_log_paths_free. */
struct kvl_log_paths {
    char **path;
    size_t n;
};
int kvl_log_paths(char *const *words, size_t n_words, struct kvl_log_paths *out,
                  struct kvl_err *err);
void kvl_log_paths_free(struct kvl_log_paths *p);

/* Writes the valid groups of `from` to the new file `to`, byte for byte, and between them notes of what was left out:
 * the new log is whole, and whoever checks it is told what was lost.  KVL_EINVAL when `to`
 * exists; KVL_EIO when it cannot be written (it is removed). */
int kvl_log_repair(const char *from, const char *to, struct kvl_log_health *health,
                   struct kvl_err *err);

/* ---- writing ------------------------------------------------------------------------------- */

struct kvl_log;

/* Opens `path` for appending, creating it when there is none.  Under the lock it hands the records
 * that are already there to `fn` (may be NULL): what is done, for a resume.  A torn tail is copied
 * to `path.torn-<n>` and cut off; it stands in `health` (may be NULL) with tail = true.
 * KVL_ELOG: another process writes to it (message: its pid and host), a newer format, or not a log.
 * KVL_EIO: cannot be created, read or cut. */
int kvl_log_open(const char *path, kvl_log_fn fn, void *user, struct kvl_log_health *health,
                 struct kvl_log **out, struct kvl_err *err);

/* Whether some process has the log open for writing now. */
bool kvl_log_busy(const char *path);

/* Id of this run, for the field `run` of every record. */
const char *kvl_log_run(const struct kvl_log *log);
const char *kvl_log_path(const struct kvl_log *log);

/* Adds a record (an object; borrowed, not changed) to the group being built.  Nothing is written.
 * KVL_EINTERNAL: not an object, or a string that is not UTF-8. */
int kvl_log_append(struct kvl_log *log, const json_t *record, struct kvl_err *err);
/* Records appended since the last commit, and their bytes. */
size_t kvl_log_pending(const struct kvl_log *log);
size_t kvl_log_pending_bytes(const struct kvl_log *log);
/* Forgets them. */
void kvl_log_discard(struct kvl_log *log);

/* Writes the pending records as one group and waits until they are on the disk.  Nothing pending:
 * KVL_OK.  KVL_EIO: no space (disk, quota, file size limit); the log is cut back to the last commit
 * and the records stay pending, so that one may free space and commit again.  KVL_ELOG: an I/O
 * error; what is on the disk is unknown, the log takes nothing more. */
int kvl_log_commit(struct kvl_log *log, struct kvl_err *err);

/* What gets a commit instead of the file: `lines` are its records, one per line. */
typedef int (*kvl_log_commit_fn)(const char *lines, size_t len, void *user, struct kvl_err *err);
/* In a process that the writer forked off: leaves the file and its lock to the writer alone, forgets
 * what is pending, and hands commits to `fn` from here on. */
void kvl_log_redirect(struct kvl_log *log, kvl_log_commit_fn fn, void *user);

/* Closes without committing; NULL is a no-op.  KVL_ELOG when the last bytes may not have arrived. */
int kvl_log_close(struct kvl_log *log, struct kvl_err *err);

#endif
