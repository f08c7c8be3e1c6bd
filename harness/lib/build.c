/* The facts that build_info.cmake found. */
#include "build.h"

#include "kvl_build_info.h"

const struct kvl_build kvl_build = {
    .version = KVL_BUILD_VERSION,
    .git = KVL_BUILD_GIT,
    .type = KVL_BUILD_TYPE,
    .compiler = KVL_BUILD_COMPILER,
    .sanitizers = KVL_BUILD_SANITIZERS,
};
