/* json.h - values of JSON objects by path: "official.p" looks into objects. */
#ifndef KVL_JSON_H
#define KVL_JSON_H

#include <jansson.h>

/* NULL when missing; borrowed. */
json_t *kvl_json_value(const json_t *record, const char *path);
/* "" when missing. */
const char *kvl_json_text(const json_t *record, const char *path);
/* NaN when missing or null. */
double kvl_json_number(const json_t *record, const char *path);

#endif
