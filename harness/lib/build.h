/* build.h - what this program was built from. */
#ifndef KVL_BUILD_H
#define KVL_BUILD_H

struct kvl_build {
    const char *version;
    const char *git; /* commit, "-dirty-HASH" if sources differ; "unknown-HASH" without git */
    const char *type, *compiler;
    const char *sanitizers; /* "" when there are none */
};

extern const struct kvl_build kvl_build;

#endif
