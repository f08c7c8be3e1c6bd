/* code.h - the code that answers depend on, as hashes of its sources (code_hashes.cmake), and the names of
 * results that are made of them.
 *
 * A result is of the code of its engine, its method and its task.  A change in any of them may change
 * it; one in another method, or in what reports and draws, cannot.
 *
 * The key of a cell is the text of its point (what is asked for) and ";code=" with those hashes.  Its id is
 * 16 digits of the point and 8 of the code: results of one point by different code have the first 16 in
 * common.  Logs that were written before ids had those 8 digits have the 16 alone.
 * Thread-safe: yes.
 */
#ifndef KVL_CODE_H
#define KVL_CODE_H

#include "kvl/opt.h"
#include "kvl/policy.h"
#include "kvl/task.h"

enum { KVL_POINT_DIGITS = 16, KVL_CELL_ID = KVL_POINT_DIGITS + 8 + 1 };

/* What a result depends on. */
struct kvl_code {
    uint64_t engine, method, task;
    uint64_t cuda; /* 0: not on a GPU */
};

/* Core without its GPU kernels, and what of the harness makes contexts, runs answers and scores them. */
uint64_t kvl_code_engine(void);
/* The GPU kernels. */
uint64_t kvl_code_cuda(void);
/* A built-in method with its headers; 0: not built in. */
uint64_t kvl_code_policy(const struct kvl_policy *policy);
/* A task, with what all tasks share; 0: not built in. */
uint64_t kvl_code_task(const struct kvl_task *task);
/* What `kvlab analyze` counts, in the place of a method. */
uint64_t kvl_code_analysis(void);

/* Appends the code to the text of a point.  KVL_ENOMEM. */
int kvl_code_print(const struct kvl_code *code, struct kvl_buf *key);
/* The code of a key; false: it has none, it was written by an older program. */
bool kvl_code_of_key(const char *key, struct kvl_code *out);
/* The id of a key that has a code. */
void kvl_cell_id(const char *key, char id[KVL_CELL_ID]);
/* How many characters of an id name its point: all where there is no code in it. */
size_t kvl_point_len(const char *id);
/* The digits of the point as a number: the seed of what is drawn for a cell. */
uint64_t kvl_point_number(const char *id);

#endif
