/* The texts that training shows the shipped model are those of the tasks: datasets/model/train takes
 * samples of the C generators apart and puts them together with its own code.  Needs python3. */
#include "task_maker.h"

#include <unistd.h>

enum { N_SEEDS = 6 };

static const struct form {
    const char *task, *options;
} forms[] = {
    { "passkey", NULL },
    { "passkey", "keys=8,wording=2" },
    { "passkey", "keys=3,wording=3" },
    { "passkey", "wording=2" },
    { "passkey", "wording=3" },
    { "number_string", NULL },
    { "number_string", "wording=2" },
    { "number_string", "wording=3" },
    { "needle", NULL },
    { "needle", "facts=6,wording=2" },
    { "needle", "facts=6,wording=3,digits=4" },
    { "needle", "language=german" },
    { "needle", "language=german,facts=6,wording=2" },
    { "needle", "language=german,facts=6,wording=3" },
    { "kv_retrieval", NULL },
    { "kv_retrieval", "uuid=true,wording=2" },
    { "kv_retrieval", "pairs=4,wording=3" },
    { "two_stage_retr", NULL },
    { "two_stage_retr", "wording=2,keys=random" },
    { "two_stage_retr", "wording=3,entries=20" },
    { "two_stage_retr", "answer=direct" },
    { "two_stage_retr", "answer=direct,wording=2" },
    { "two_stage_retr", "answer=direct,wording=3" },
    { "niah_multikey", NULL },
    { "niah_multikey", "keys=1,wording=2,value=words" },
    { "niah_multikey", "keys=2,wording=3,key=uuids,value=uuids" },
    { "niah_multikey", "haystack=needles" },
    { "niah_multikey", "haystack=needles,key=uuids,value=uuids,wording=2" },
    { "niah_multikey", "haystack=needles,keys=6,key=numbers,value=words,wording=3" },
    { "niah_multivalue", NULL },
    { "niah_multivalue", "keys=2,values=3,wording=2,key=uuids" },
    { "niah_multivalue", "values=2,value=uuids,wording=3" },
    { "niah_multiquery", NULL },
    { "niah_multiquery", "queries=2,keys=5,wording=2,value=words" },
    { "niah_multiquery", "queries=3,wording=3,key=uuids" },
    { "vt", NULL },
    { "vt", "chains=3,hops=2,wording=2" },
    { "vt", "chains=2,hops=0,wording=3" },
    { "cwe", NULL },
    { "cwe", "words=3,common=7,uncommon=2,wording=2" },
    { "cwe", "words=2,common=2,wording=3" },
    { "fwe", NULL },
    { "fwe", "alpha=1.5,asked=2,wording=2" },
    { "fwe", "asked=1,wording=3" },
};

static const struct kvl_task *find_task(const char *name)
{
    static const struct kvl_task *const *const all[] = {
#define KVL_TASK_X(name) &kvl_task_##name,
#include "kvl_tasks.def"
#undef KVL_TASK_X
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (strcmp((*all[i])->name, name) == 0) return *all[i];
    fail_msg("no task %s", name);
    return NULL;
}

static void write_ids(FILE *f, const struct kvl_tokens *t)
{
    for (int32_t i = 0; i < t->n; i++) fprintf(f, " %d", (int)t->id[i]);
}

/* One record of check_texts.py: fields end with 1f, the record with 1e. */
static void write_sample(FILE *f, const struct want *w)
{
    struct kvl_sample s = must_generate(w);
    fprintf(f, "%s\x1f%s\x1f%s\x1f%s\x1f", w->task->name, s.context, s.question[0].text,
            s.question[0].answer);
    struct kvl_tokens question = encode(w, s.question[0].text, KVL_ENCODE_CONTINUE);
    struct kvl_tokens answer = encode(w, s.question[0].answer, KVL_ENCODE_CONTINUE);
    write_ids(f, &s.tokens);
    write_ids(f, &question);
    write_ids(f, &answer);
    fputs("\x1e", f);
    kvl_tokens_free(&question);
    kvl_tokens_free(&answer);
    kvl_sample_free(&s);
}

static int32_t shipped_tokenizer(void)
{
    for (int32_t i = 0; i < n_tokenizers; i++)
        if (strcmp(tokenizers[i].name, "kvlab-tiny") == 0) return i;
    return -1;
}

static void test_training_shows_the_tasks(void **state)
{
    (void)state;
    static const char train[] = KVL_SOURCE_DIR "/datasets/model/train";
    char path[] = "/tmp/kvl_texts_XXXXXX", command[1024];
    if (shipped_tokenizer() < 0 || system("python3 -c 'import random' 2> /dev/null") != 0) skip();
    int fd = mkstemp(path);
    FILE *f = fd >= 0 ? fdopen(fd, "wb") : NULL;
    assert_non_null(f);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
        for (uint64_t seed = 0; seed < N_SEEDS; seed++) {
            struct want w = { .task = find_task(forms[i].task),
                              .options = forms[i].options,
                              .i_tokenizer = shipped_tokenizer(),
                              .length = 600 + (int32_t)seed * 137,
                              .depth = -1.0,
                              .seed = seed };
            write_sample(f, &w);
        }
    assert_int_equal(fclose(f), 0);
    snprintf(command, sizeof command, "cd '%s' && python3 -B check_texts.py %s", train, path);
    int rc = system(command);
    unlink(path);
    assert_int_equal(rc, 0);
}

/* Every kind of training document is made, and its tokens are what encoding its text gives. */
static void test_training_documents(void **state)
{
    (void)state;
    static const char command[] = "cd '" KVL_SOURCE_DIR "/datasets/model/train' && "
                                  "python3 -B kinds.py > /dev/null";
    if (system("python3 -c 'import random' 2> /dev/null") != 0) skip();
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_training_shows_the_tasks),
                                        cmocka_unit_test(test_training_documents) };
    return cmocka_run_group_tests(tests, open_tokenizers, close_tokenizers);
}
