/* two_stage_file - 2StageRetr as OmniKV's script writes it: a sum, then the color of that number.
 *
 * File: 2stage.jsonl with {"prompt", "answers"}.  The question begins at the equation.
 */
#include "rows.h"

#define TWO_STAGE(X)                                                                               \
    X("2stage", .max_new = 200, .scorer = KVL_SCORE_COLOR, .flags = KVL_ROWS_NOWHERE,              \
      .mark = "The equation is")

static const struct kvl_rows_set two_stage_file_sets[] = { TWO_STAGE(KVL_ROWS_SET) };
static const char *const two_stage_file_names[] = { TWO_STAGE(KVL_ROWS_NAME) NULL };

static const struct kvl_rows_kind two_stage_file_kind = {
    .name = "two_stage_file",
    .paths = { "%s.jsonl", "data/%s.jsonl" },
    .context = "prompt",
    .answers = "answers",
    .keep = { "answers" },
};

KVL_ROWS_TASK(two_stage_file, "2stage", "middle", "2StageRetr, from OmniKV's file",
              "Hao et al., OmniKV, ICLR 2025", "a sum, then the color that a list has for it");

KVL_TASK_EXPORT(two_stage_file)
