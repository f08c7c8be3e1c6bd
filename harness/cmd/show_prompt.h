/* show_prompt.h - the prompt of a recorded answer, made again: its context and questions follow from the settings in
 * the log and its seed, and the record has the hash of the tokens that were sent.
 *
 * Thread-safe: no.
 */
#ifndef KVL_SHOW_PROMPT_H
#define KVL_SHOW_PROMPT_H

#include "registry.h"
#include "sweep_plan.h"

#include <jansson.h>

struct kvl_shown {
    const json_t *run, *cell, *sample; /* records, borrowed */
    const struct kvl_registry *registry;
    const char *model; /* file instead of that of the run; NULL: that one */
    const char *
        log; /* its path: names in it that are not found here are looked for from its folder upwards */
    /* What is made. */
    struct kvl_sweep sweep;
    struct kvl_model *file;
    struct kvl_work *work;
    const struct kvl_group *group;
    struct kvl_sample context;
    struct kvl_tokens prompt;   /* all of it */
    struct kvl_tokens question; /* the question as it stands behind the context */
    bool same;                  /* the hash is the record's */
};

/* May change the working folder.  KVL_EINVAL: this build, or the files that are there now, make other contexts; with what is missing. */
int kvl_shown_open(struct kvl_shown *s, struct kvl_err *err);
void kvl_shown_close(struct kvl_shown *s);

/* Prints the prompt in its parts, the template's by themselves. */
int kvl_shown_print(const struct kvl_shown *s, struct kvl_err *err);
/* Text with all that a terminal would act on as \xNN; line feeds and tabs stay. */
void kvl_shown_text(const char *s, size_t n);

#endif
