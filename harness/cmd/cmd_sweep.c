/* kvlab sweep: a YAML file of axes. */
#include "cmds.h"
#include "registry.h"
#include "run_and_sweep.h"

#include <stdio.h>
#include <stdlib.h>

struct sweep_command {
    struct kvl_args base;
    struct kvl_sweep_args sweep;
    const char *file;
};

static error_t sweep_command_parse(int key, char *arg, struct argp_state *state)
{
    struct sweep_command *a = state->input;
    if (key == ARGP_KEY_INIT) {
        a->sweep.args = &a->base;
        state->child_inputs[0] = &a->sweep;
        return 0;
    }
    if (key != ARGP_KEY_ARG) return ARGP_ERR_UNKNOWN;
    if (a->file)
        return kvl_args_fail(&a->base,
                             kvl_fail(a->base.err, KVL_EINVAL, "\"%s\": one sweep at a time", arg));
    a->file = arg;
    return 0;
}

static const struct argp_child sweep_command_children[] = { { &kvl_sweep_argp, 0, NULL, 0 },
                                                            { 0 } };
static const struct argp sweep_command_argp = {
    .parser = sweep_command_parse,
    .args_doc = "FILE.yaml",
    .doc = "Runs every cell of a sweep that its log does not have yet, and prints the table.  "
           "harness/plan/config.h says what a file may hold; harness/sweeps/ has some.",
    .children = sweep_command_children,
};

int cmd_sweep(int argc, char **argv, struct kvl_err *err)
{
    struct sweep_command *a = kvl_alloc(1, sizeof *a);
    bool done;
    if (!a) return kvl_fail(err, KVL_ENOMEM, "out of memory");
    int rc = kvl_sweep_args_keep(&a->sweep, argc, argv, err);
    if (rc == KVL_OK) rc = kvl_registry_create(&a->sweep.model.registry, err);
    if (rc == KVL_OK) rc = kvl_args_parse(&sweep_command_argp, argc, argv, a, &done, err);
    if (rc == KVL_OK && !done && !a->file)
        rc = kvl_fail(err, KVL_EINVAL, "no sweep, want a YAML file (harness/sweeps/demo.yaml)");
    if (rc == KVL_OK && !done) rc = kvl_sweep_command(&a->sweep, a->file, NULL, err);
    kvl_sweep_args_free(&a->sweep);
    kvl_registry_destroy(a->sweep.model.registry);
    kvl_free(a);
    return rc;
}
