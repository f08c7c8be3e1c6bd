/* hf_json.h - JSON of model folders.  Errors: KVL_EMODEL, KVL_EIO.  Thread-safe: yes. */
#ifndef KVL_HF_JSON_H
#define KVL_HF_JSON_H

#include "kvl/base.h"

#include <jansson.h>

/* Names that occur twice in an object are refused, or the later value counts, as in the programs that the file was
 * written for. */
enum kvl_hf_json_how { KVL_HF_JSON_DOUBLES = 1 };

/* An object; json_decref releases it.  Numbers too large for an integer or a double are kept (hf_json.c). */
int kvl_hf_json(const char *text, size_t len, uint32_t how, json_t **out, struct kvl_err *err);
/* The same of a file; its path is in front of a message. */
int kvl_hf_json_file(const char *path, uint32_t how, json_t **out, struct kvl_err *err);

/* The text of a string, "" for another value; whether it is this one. */
struct kvl_str kvl_hf_json_str(const json_t *v);
bool kvl_hf_json_is(const json_t *v, const char *text);
/* "<path> is <what is there>, want <want>". */
int kvl_hf_json_refuse(struct kvl_err *err, const char *path, const json_t *found,
                       const char *want);

#endif
