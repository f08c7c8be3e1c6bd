/* snapshot_folder.h - a folder of snapshots that several machines use at once.
 *
 * Nothing is locked: a snapshot has its name when it is whole, by a rename, and who has one open keeps it when it is
 * removed.  Two that want the same one at the same time both make it; it is the same file.  The time of a file is that of
 * its last use.
 */
#ifndef KVL_SNAPSHOT_FOLDER_H
#define KVL_SNAPSHOT_FOLDER_H

#include "kvl/base.h"

struct kvl_snapshot_entry {
    char *path;
    int64_t bytes, used_s; /* seconds since 1970 */
    bool part;             /* is being written, or was left so */
};
struct kvl_snapshot_folder {
    struct kvl_snapshot_entry *entry; /* what was used longest ago first */
    size_t n;
    int64_t bytes; /* of all of them */
};
/* KVL_EINVAL: no folder. */
int kvl_snapshot_folder_read(const char *dir, struct kvl_snapshot_folder *out, struct kvl_err *err);
void kvl_snapshot_folder_free(struct kvl_snapshot_folder *f);

struct kvl_snapshot_folder_gone {
    size_t n;
    int64_t bytes;
};
/* Removes what was not used for `older_s` seconds (0: nothing for that), what was used longest ago until at most
 * `limit_bytes` are left (0: no limit), and parts that nobody has written to for a day.  KVL_EIO. */
int kvl_snapshot_folder_prune(const char *dir, int64_t limit_bytes, int64_t older_s,
                              struct kvl_snapshot_folder_gone *gone, struct kvl_err *err);

/* "1000", "500M", "200G", "2T" in powers of 1024; `flag` is for the message. */
int kvl_size_parse(const char *flag, const char *text, int64_t *out, struct kvl_err *err);

#endif
