/* hf_json.h - JSON of model folders.  Errors: KVL_EMODEL, KVL_EIO.  Thread-safe: yes. */
#ifndef KVL_HF_JSON_H
#define KVL_HF_JSON_H

#include "kvl/base.h"

#include <jansson.h>

/* An object without double names; json_decref releases it. */
int kvl_hf_json(const char *text, size_t len, json_t **out, struct kvl_err *err);
/* The same of a file; its path is in front of a message. */
int kvl_hf_json_file(const char *path, json_t **out, struct kvl_err *err);

#endif
