/* data_home.h - where the files lie that the program works with: scripts of figures, recipes, models. */
#ifndef KVL_DATA_HOME_H
#define KVL_DATA_HOME_H

#include "kvl/base.h"

/* The folder `folder` ("plots"), in KVL_HOME where that is set, else where the sources are, or beside an installed
 * program.  KVL_EIO: it has no file `name`. */
int kvl_home(const char *folder, const char *name, char *home, size_t room, struct kvl_err *err);

#endif
