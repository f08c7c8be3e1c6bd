/* fields.h - kinds of record that have what was observed of a session (fields.def). */
#ifndef KVL_FIELDS_H
#define KVL_FIELDS_H

enum kvl_fields_of {
    KVL_OF_SAMPLE = 1,
    KVL_OF_NLL = 2,
    KVL_OF_CELL = 4,
    KVL_OF_PERPLEXITY = 8,
    KVL_OF_SPEED = 16,
    KVL_OF_ALL = 31,
    KVL_OF_SAMPLE_ROW = 32 /* a column of kvlab export --kind sample */
};

#endif
