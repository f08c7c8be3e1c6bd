/* plots_home.h - where the files lie that figures and pages are made with. */
#ifndef KVL_PLOTS_HOME_H
#define KVL_PLOTS_HOME_H

#include "kvl/base.h"

/* The folder plots/: of KVL_HOME where it is set, else where the sources are, or beside an installed program.
 * KVL_EIO: it has no file `name`. */
int kvl_plots_home(const char *name, char *home, size_t room, struct kvl_err *err);

#endif
