/* Finds the program's own files. */
#include "data_home.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int kvl_home(const char *folder, const char *name, char *home, size_t room, struct kvl_err *err)
{
    char exe[1024] = "";
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
    char *slash = n > 0 ? strrchr(exe, '/') : NULL;
    if (slash) *slash = '\0';
    const char *chosen = getenv("KVL_HOME");
    const char *const roots[] = { chosen ? chosen : KVL_SOURCE_DIR, exe, exe, exe };
    const char *const below[] = { "", "", "../", "../share/kvlab/" };
    size_t n_places = chosen ? 1 : sizeof roots / sizeof roots[0];
    for (size_t i = 0; i < n_places; i++) {
        char file[1400];
        snprintf(home, room, "%s/%s%s", roots[i], below[i], folder);
        snprintf(file, sizeof file, "%s/%s", home, name);
        if (access(file, R_OK) != 0) continue;
        char *real = realpath(home, NULL);
        if (real) snprintf(home, room, "%s", real);
        free(real);
        return KVL_OK;
    }
    return kvl_fail(err, KVL_EIO, "%s/%s/%s: not found; set KVL_HOME to the folder that has %s/",
                    roots[0], folder, name, folder);
}
