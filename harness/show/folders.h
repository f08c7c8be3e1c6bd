/* folders.h - folders for what the program writes. */
#ifndef KVL_FOLDERS_H
#define KVL_FOLDERS_H

#include "kvl/base.h"

/* Makes the folders of a path, all that is before its last '/'.  KVL_EINVAL: too long; KVL_EIO. */
int kvl_make_folders(const char *path, struct kvl_err *err);

#endif
