/* run_and_sweep.h - what `sweep` and `run` share: options, and the way from a configuration to a table. */
#ifndef KVL_RUN_AND_SWEEP_H
#define KVL_RUN_AND_SWEEP_H

#include "args.h"
#include "sweep_plan.h"
#include "yamldoc.h"

struct kvl_sweep_args {
    struct kvl_args *args; /* of the command; set before parsing */
    struct kvl_model_args model;
    const char *log, *shard, *snapshots;
    int64_t snapshots_limit; /* bytes; 0: none */
    int32_t jobs;            /* 0 = auto */
    bool cell_limit;         /* asked for: */
    double cell_limit_s;
    int64_t cell_memory_bytes; /* 0: not asked for */
    enum kvl_only only;
    bool dry_run, cells, accept_stale, retry, strict, quiet, stats;
    struct kvl_yaml_override override[KVL_YAML_MAX_OVERRIDES];
    struct kvl_buf path[KVL_YAML_MAX_OVERRIDES], text[KVL_YAML_MAX_OVERRIDES]; /* their storage */
    size_t n_overrides;
    int argc; /* for the log: argp reorders the words that it parses */
    char **argv;
};
/* A child parser; its input is a struct kvl_sweep_args. */
extern const struct argp kvl_sweep_argp;

/* Keeps the words as they were given. */
int kvl_sweep_args_keep(struct kvl_sweep_args *a, int argc, char **argv, struct kvl_err *err);
/* Adds "path: text"; `flag` names it in messages.  path and flag are borrowed.  `quote`: text is one
 * word, not YAML. */
int kvl_sweep_override(struct kvl_sweep_args *a, const char *path, const char *flag,
                       const char *text, bool quote);
/* The same of a comma list of plain words: "a,b" is the YAML list ["a", "b"], a single word itself. */
int kvl_sweep_override_words(struct kvl_sweep_args *a, const char *path, const char *flag,
                             const char *text);
/* Flags that settings have (settings.def), as keys of argp. */
enum kvl_sweep_flag_id {
    KVL_FLAG_NONE = 0x600,
#define FLAG_ID(id, ...) KVL_FLAG_##id,
#define RUN_FLAG         FLAG_ID
#define CONTEXT_FLAG     FLAG_ID
#define ANALYZE_FLAG     FLAG_ID
#define SWEEP_FLAG       FLAG_ID
#include "settings.def"
};
/* Takes the value of one of them; ARGP_ERR_UNKNOWN: `key` is none. */
int kvl_sweep_flag(struct kvl_sweep_args *a, int key, const char *text);
/* Overrides of the flags that have a key of their own in the configuration; of those that every command with a model
 * has. */
int kvl_sweep_model_flags(struct kvl_sweep_args *a);
int kvl_sweep_flags(struct kvl_sweep_args *a);
void kvl_sweep_args_free(struct kvl_sweep_args *a);

/* Runs the sweep of a file (or of the overrides alone, as `name`) and prints its table. */
int kvl_sweep_command(struct kvl_sweep_args *a, const char *file, const char *name,
                      struct kvl_err *err);

#endif
