/* Folders, one level after the other. */
#include "folders.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

int kvl_make_folders(const char *path, struct kvl_err *err)
{
    char part[4096];
    if (strlen(path) >= sizeof part)
        return kvl_fail(err, KVL_EINVAL, "a path of %zu bytes is too long, want less than %zu",
                        strlen(path), sizeof part);
    for (const char *p = path; *p; p++) {
        if (*p != '/' || p == path) continue;
        snprintf(part, sizeof part, "%.*s", (int)(p - path), path);
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return kvl_fail(err, KVL_EIO, "%s: cannot create the folder: %s", part,
                            strerror(errno));
    }
    return KVL_OK;
}
