/* What a generated sample owns. */
#include "kvl/task.h"

void kvl_sample_free(struct kvl_sample *s)
{
    for (int32_t i = 0; s->question && i < s->n_questions; i++) {
        kvl_free(s->question[i].text);
        kvl_free(s->question[i].answer);
        kvl_free(s->question[i].gold);
        kvl_free(s->question[i].row);
        kvl_free(s->question[i].said);
        kvl_free(s->question[i].later);
        kvl_free(s->question[i].turn);
    }
    kvl_free(s->question);
    kvl_free(s->context);
    kvl_tokens_free(&s->tokens);
    *s = (struct kvl_sample){ 0 };
}
