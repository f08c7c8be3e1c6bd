/* Prompts of a sweep in a chat template: contexts of exact length, evidence where it was, keys. */
#include "measure.h"
#include "sweep_plan.h"

#include "gguf_writer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct prompt_test {
    struct kvl_registry *registry;
    struct kvl_model *model;
    struct kvl_sweep s;
    struct kvl_work *work;
    struct kvl_err err;
};

static const struct kvl_where prompt_where = { "here", 2, NULL };

static const char *file_template; /* of the model that is written next */

static void more_keys(struct gw *w)
{
    if (file_template) gw_str(w, "tokenizer.chat_template", file_template);
}

static void prompt_open(struct prompt_test *t, const char *chat)
{
    char path[] = "/tmp/kvl-prompt-XXXXXX";
    struct kvl_buf file = { 0 };
    struct gw_llama llama = { .n_ctx = 4096, .more = more_keys };
    *t = (struct prompt_test){ 0 };
    file_template = chat;
    assert_int_equal(kvl_registry_create(&t->registry, &t->err), KVL_OK);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    gw_llama(&llama, &file);
    assert_true(gw_save(&file, path));
    kvl_buf_free(&file);
    if (kvl_model_open(path, &t->model, &t->err) != KVL_OK) fail_msg("%s", t->err.msg);
    unlink(path);
}

static int prompt_make(struct prompt_test *t, const char *tasks, const char *more)
{
    char path[] = "/tmp/kvl-prompt-XXXXXX";
    FILE *f = fdopen(mkstemp(path), "w");
    assert_non_null(f);
    fprintf(f,
            "model: m\ntasks: [%s]\nlengths: [1200]\npolicies: [full]\ncontexts: 2\nquestions: 1\n"
            "%s",
            tasks, more);
    assert_int_equal(fclose(f), 0);
    kvl_work_destroy(t->work);
    t->work = NULL;
    kvl_sweep_free(&t->s);
    kvl_err_clear(&t->err);
    int rc = kvl_sweep_load(path, NULL, t->registry, NULL, 0, &t->s, &t->err);
    unlink(path);
    if (rc == KVL_OK)
        rc = kvl_work_create(&t->s, t->model, &prompt_where, false, &t->work, &t->err);
    return rc;
}

static void prompt_ok(struct prompt_test *t, const char *tasks, const char *more)
{
    if (prompt_make(t, tasks, more) != KVL_OK) fail_msg("%s", t->err.msg);
}

static void prompt_refused(struct prompt_test *t, const char *tasks, const char *more,
                           const char *why)
{
    assert_int_equal(prompt_make(t, tasks, more), KVL_EINVAL);
    if (!strstr(t->err.msg, why)) fail_msg("\"%s\" does not say \"%s\"", t->err.msg, why);
    assert_null(strchr(t->err.msg, '\n'));
}

static void prompt_close(struct prompt_test *t)
{
    kvl_work_destroy(t->work);
    kvl_sweep_free(&t->s);
    kvl_model_close(t->model);
    kvl_registry_destroy(t->registry);
}

#define TASKS                                                                                      \
    "{task: passkey, keys: 2}, kv_retrieval, {task: needle, language: german}, two_stage_retr, "   \
    "niah_multikey, vt, cwe"

/* ---- contexts -------------------------------------------------------------------------------- */

/* The text of a prompt's tokens is what the template makes of the texts. */
static void check_text(const struct prompt_test *t, const struct kvl_prompt *p, const char *system,
                       const struct kvl_sample *s, int32_t i)
{
    const struct kvl_question *q = &s->question[i];
    struct kvl_buf user = { 0 }, got = { 0 };
    struct kvl_chat_text want = { 0 };
    struct kvl_chat_turn turn[3];
    struct kvl_tokens question = { 0 };
    const char *prefix = q->text + strlen(q->text) - q->n_prefix;
    size_t n = 0;
    assert_int_equal(kvl_prompt_question(p, s, i, &question, &(struct kvl_err){ 0 }), KVL_OK);
    kvl_buf_printf(&user, "%s%.*s", s->context, (int)(prefix - q->text), q->text);
    if (system) turn[n++] = (struct kvl_chat_turn){ "system", system, strlen(system) };
    turn[n++] = (struct kvl_chat_turn){ "user", user.data, user.len };
    prefix += *prefix == ' ';
    turn[n++] = (struct kvl_chat_turn){ "assistant", prefix, strlen(prefix) };
    if (p->chat)
        assert_int_equal(kvl_chat_render(p->chat, turn, n, &want, NULL), KVL_OK);
    else
        kvl_buf_printf(&want.text, "%s%s", s->context, q->text);
    const struct kvl_tokenizer *tokenizer = kvl_model_tokenizer(t->model);
    assert_int_equal(s->tokens.id[0], GW_BOS);
    kvl_decode(tokenizer, s->tokens.id + 1, s->tokens.n - 1, true, false, &got, NULL);
    kvl_decode(tokenizer, question.id, question.n, true, false, &got, NULL);
    assert_string_equal(got.data, want.text.data);
    bool joint = false;
    assert_int_equal(kvl_prompt_joint(p, s, i, &joint, NULL), KVL_OK);
    assert_true(joint); /* a token per byte */
    kvl_tokens_free(&question);
    kvl_buf_free(&user);
    kvl_chat_text_free(&want);
    kvl_buf_free(&got);
}

/* With a token per byte the watched tokens spell the evidence. */
static void check_evidence(const struct prompt_test *t, const struct kvl_sample *s,
                           const struct kvl_question *q)
{
    struct kvl_tokens answer = { 0 };
    struct kvl_watch watch;
    const struct kvl_tokenizer *tokenizer = kvl_model_tokenizer(t->model);
    if (q->n_evidence == 0) return;
    kvl_encode(tokenizer, q->answer, strlen(q->answer), KVL_ENCODE_CONTINUE, &answer, NULL);
    assert_int_equal(kvl_watch_create(s, q, &answer, &watch, NULL), KVL_OK);
    const struct kvl_evidence *last = &q->evidence[q->n_evidence - 1];
    for (int32_t i = 0; i < last->n_spans; i++) {
        struct kvl_buf text = { 0 };
        struct kvl_span span = last->span[i];
        int32_t at = watch.n_spans - last->n_spans + i;
        assert_int_equal(watch.count[at], span.end - span.begin);
        for (int32_t k = 0; k < watch.count[at]; k++)
            kvl_decode(tokenizer, &s->tokens.id[watch.pos[watch.first[at] + k]], 1, true, false,
                       &text, NULL);
        assert_memory_equal(text.data, s->context + span.begin, span.end - span.begin);
        kvl_buf_free(&text);
    }
    kvl_watch_free(&watch);
    kvl_tokens_free(&answer);
}

static void check_groups(struct prompt_test *t, const char *chat, const char *system)
{
    assert_int_equal(t->work->n_groups, 7);
    assert_string_equal(t->work->asks.name, chat);
    for (size_t i = 0; i < t->work->n_groups; i++) {
        const struct kvl_group *g = &t->work->group[i];
        struct kvl_sample s;
        if (kvl_context_generate(t->work, g, 0, &s, &t->err) != KVL_OK) fail_msg("%s", t->err.msg);
        assert_int_equal(s.tokens.n, 1200);
        for (int32_t q = 0; q < s.n_questions; q++) {
            const struct kvl_question *ask = &s.question[q];
            check_text(t, &t->work->asks, system, &s, q);
            check_evidence(t, &s, ask);
            if (ask->n_evidence)
                assert_float_equal(ask->depth * 1200, round(ask->depth * 1200), 1e-6);
        }
        kvl_sample_free(&s);
    }
}

static void test_contexts(void **state)
{
    static const char *const chats[] = { "none",   "chatml", "llama-2", "mistral-v1",
                                         "vicuna", "gemma",  "gpt-oss", "zephyr" };
    struct prompt_test t;
    (void)state;
    prompt_open(&t, NULL);
    for (size_t i = 0; i < sizeof chats / sizeof chats[0]; i++) {
        char more[128];
        snprintf(more, sizeof more, "chat: %s\n", chats[i]);
        prompt_ok(&t, TASKS, more);
        check_groups(&t, chats[i], NULL);
        if (i == 0) continue;
        strcat(more, "system: \"Be </s> brief.\"\n");
        prompt_ok(&t, TASKS, more);
        check_groups(&t, chats[i], "Be </s> brief.");
    }
    prompt_close(&t);
}

/* The template's length is part of the context's. */
static void test_too_short(void **state)
{
    struct prompt_test t;
    (void)state;
    prompt_open(&t, NULL);
    prompt_refused(&t, "passkey", "chat: vicuna\nlengths: 100\n", "stands twice");
    char more[4096] = "chat: chatml\nsystem: ";
    size_t n = strlen(more);
    memset(more + n, 'x', 1300);
    strcpy(more + n + 1300, "\n");
    prompt_refused(&t, "passkey", more, "length 1200: chat template chatml takes 1");
    prompt_close(&t);
}

/* Templates that drop white space around a message drop it around the context, too. */
static void test_trim(void **state)
{
    static const struct kvl_evidence evidence = { .n_spans = 1, .span = { { 5, 7 } } };
    struct prompt_test t;
    struct kvl_prompt p;
    struct kvl_question q = { .text = strdup("Q? \n A:"), .n_prefix = 3, .depth = 0.5 };
    struct kvl_sample s = { .context = strdup(" \n text 42 "), .question = &q, .n_questions = 1 };
    (void)state;
    prompt_open(&t, NULL);
    q.evidence[0] = evidence;
    q.n_evidence = 1;
    assert_int_equal(kvl_prompt_open(t.model, "llama-3", NULL, &p, &t.err), KVL_OK);
    kvl_encode(kvl_prompt_inside(&p), s.context, strlen(s.context), KVL_ENCODE_BOS, &s.tokens,
               NULL);
    assert_int_equal(kvl_prompt_context(&p, &s, &t.err), KVL_OK);
    assert_string_equal(s.context, "text 42 ");
    assert_int_equal(q.evidence[0].span[0].begin, 2);
    assert_int_equal(q.evidence[0].span[0].end, 4);
    check_text(&t, &p, NULL, &s, 0);
    kvl_prompt_close(&p);
    free(s.context);
    free(q.text);
    kvl_tokens_free(&s.tokens);
    prompt_close(&t);
}

/* ---- which template, and keys ------------------------------------------------------------------ */

#define CHATML                                                                                     \
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"   \
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

static void test_auto(void **state)
{
    struct prompt_test t;
    (void)state;
    prompt_open(&t, CHATML);
    prompt_ok(&t, "passkey", "");
    assert_memory_equal(t.work->cell[0].chat, "own-", 4);
    assert_non_null(strstr(t.work->cell[0].key, ";chat=own-"));
    prompt_ok(&t, "passkey", "chat: none\n");
    assert_string_equal(t.work->cell[0].chat, "none");
    prompt_ok(&t, "perplexity", "");
    assert_string_equal(t.work->cell[0].chat, "none");
    assert_null(strstr(t.work->cell[0].key, "chat"));
    prompt_close(&t);
    prompt_open(&t, "### Instruction: {{ messages | shout }}");
    prompt_refused(&t, "passkey", "",
                   "no filter \"shout\" is known here, want chat: none, or one of phi-4,");
    prompt_ok(&t, "passkey", "chat: none\n");
    prompt_ok(&t, "passkey", "chat: llama-3\n");
    assert_string_equal(t.work->cell[0].chat, "llama-3");
    prompt_ok(&t, "perplexity", "");
    prompt_refused(&t, "passkey", "chat: lama-3\n", "did you mean \"llama-3\"?");
    prompt_refused(&t, "passkey", "chat: none\nsystem: x\n", "without a chat template");
    prompt_close(&t);
}

/* Raw text has the key that it had before there were templates. */
static void test_keys(void **state)
{
    struct prompt_test t;
    char raw[KVL_CELL_ID], chat[KVL_CELL_ID];
    (void)state;
    prompt_open(&t, NULL);
    prompt_ok(&t, "passkey", "");
    assert_null(strstr(t.work->cell[0].key, "chat"));
    memcpy(raw, t.work->cell[0].id, sizeof raw);
    prompt_ok(&t, "passkey", "chat: none\n");
    assert_string_equal(t.work->cell[0].id, raw);
    prompt_ok(&t, "passkey", "system: for models that have a template\n");
    assert_string_equal(t.work->cell[0].id, raw);
    prompt_ok(&t, "passkey", "chat: chatml\n");
    memcpy(chat, t.work->cell[0].id, sizeof chat);
    assert_string_not_equal(chat, raw);
    prompt_ok(&t, "passkey", "chat: chatml\nsystem: x\n");
    assert_string_not_equal(t.work->cell[0].id, chat);
    assert_non_null(strstr(t.work->cell[0].key, ";system="));
    prompt_ok(&t, "passkey", "chat: chatml\nsystem: \"\"\n"); /* an empty one is not none */
    assert_string_not_equal(t.work->cell[0].id, chat);
    prompt_close(&t);
}

/* A task that was published without a template has none for any model. */
static void test_raw_task(void **state)
{
    struct prompt_test t;
    (void)state;
    prompt_open(&t, CHATML);
    prompt_ok(&t, "passkey, kv_retrieval", "");
    kvl_work_destroy(t.work);
    t.s.tasks.v[1].raw = true;
    assert_int_equal(kvl_work_create(&t.s, t.model, &prompt_where, false, &t.work, &t.err), KVL_OK);
    assert_memory_equal(t.work->cell[0].chat, "own-", 4);
    assert_string_equal(t.work->cell[1].chat, "none");
    assert_null(strstr(t.work->cell[1].key, "chat"));
    struct kvl_sample s;
    assert_int_equal(kvl_context_generate(t.work, &t.work->group[1], 0, &s, &t.err), KVL_OK);
    check_text(&t, &t.work->raw, NULL, &s, 0);
    assert_int_equal(s.tokens.n, 1200);
    kvl_sample_free(&s);
    prompt_close(&t);
}

/* ---- answer prefixes --------------------------------------------------------------------------- */

static void test_prefixes(void **state)
{
    static const char *const tasks[] = {
        "passkey",
        "passkey, keys: 2",
        "number_string",
        "kv_retrieval",
        "needle",
        "needle, language: german",
        "niah_multikey",
        "niah_multivalue",
        "niah_multiquery",
        "vt",
        "cwe",
        "fwe",
        "two_stage_retr",
        "niah_multikey, key: uuids",
    };
    struct prompt_test t;
    (void)state;
    prompt_open(&t, NULL);
    for (size_t i = 0; i < sizeof tasks / sizeof tasks[0]; i++)
        for (int wording = 1; wording <= 3; wording++) {
            char text[128];
            struct kvl_sample s;
            snprintf(text, sizeof text, "{task: %s, wording: %d}", tasks[i], wording);
            prompt_ok(&t, text, "");
            if (kvl_context_generate(t.work, &t.work->group[0], 0, &s, &t.err) != KVL_OK)
                fail_msg("%s", t.err.msg);
            const struct kvl_question *q = &s.question[0];
            size_t len = strlen(q->text);
            if (q->n_prefix < 3 || q->n_prefix >= len) fail_msg("%s: \"%s\"", text, q->text);
            assert_int_equal(q->text[len - q->n_prefix], ' ');
            assert_non_null(strchr("?.", q->text[len - q->n_prefix - 1]));
            assert_null(strpbrk(q->text + len - q->n_prefix, "?."));
            kvl_sample_free(&s);
        }
    prompt_close(&t);
}

/* ---- turns -------------------------------------------------------------------------------------- */

/* What is read behind an answer makes the prompt that the template makes of the whole conversation, or is refused. */
static void test_turns(void **state)
{
    static const char own[] = CHATML, moves[] =
                                          "{% for m in messages %}{% if m.role == 'user' %}[I] {% "
                                          "if loop.last and messages[0].role == 'system' %}"
                                          "{{ messages[0].content }} {% endif %}{{ m.content }} "
                                          "[/I]{% elif m.role == 'assistant' %}{{ m.content }}. "
                                          "{% endif %}{% endfor %}";
    /* The second question begins with white space of its own, the third is parted from what stands before it; the
     * second answer is said with a space. */
    char text[3][32] = { "Why? It is", "\n\n  How?", "\nWho? It is" };
    char answer[3][32] = { " so", " thus", " I" }, turn[] = "  How?", said[] = " thus";
    struct kvl_question q[3] = {
        { .text = text[0], .n_prefix = 6, .answer = answer[0] },
        { .text = text[1], .answer = answer[1], .turn = turn, .said = said },
        { .text = text[2], .n_prefix = 6, .answer = answer[2] }
    };
    struct prompt_test t;
    (void)state;
    for (int moved = 0; moved < 2; moved++) {
        struct kvl_sample s = { .context = strdup("Text. "), .question = q, .n_questions = 3 };
        struct kvl_prompt p;
        struct kvl_tokens all = { 0 };
        struct kvl_buf got = { 0 };
        prompt_open(&t, moved ? moves : own);
        assert_int_equal(kvl_prompt_open(t.model, "auto", moved ? "S" : NULL, &p, &t.err), KVL_OK);
        kvl_encode(kvl_prompt_inside(&p), s.context, strlen(s.context), KVL_ENCODE_BOS, &s.tokens,
                   NULL);
        int rc = kvl_prompt_question(&p, &s, 0, &all, &t.err);
        if (rc == KVL_OK) rc = kvl_prompt_turn(&p, &s, 0, &all, &t.err);
        assert_int_equal(rc, moved ? KVL_EINVAL : KVL_OK);
        if (moved) assert_non_null(strstr(t.err.msg, "writes earlier turns otherwise"));
        if (!moved) {
            assert_int_equal(kvl_prompt_turn(&p, &s, 1, &all, &t.err), KVL_OK);
            kvl_decode(p.tokenizer, all.id, all.n, true, false, &got, NULL);
            assert_string_equal(got.data,
                                "Why?<|im_end|>\n<|im_start|>assistant\nIt is so<|im_end|>\n"
                                "<|im_start|>user\n  How?<|im_end|>\n<|im_start|>assistant\n thus"
                                "<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n"
                                "<|im_start|>assistant\nIt is");
        }
        kvl_buf_free(&got);
        kvl_tokens_free(&all);
        kvl_tokens_free(&s.tokens);
        kvl_prompt_close(&p);
        free(s.context);
        prompt_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_contexts), cmocka_unit_test(test_too_short),
        cmocka_unit_test(test_trim),     cmocka_unit_test(test_auto),
        cmocka_unit_test(test_keys),     cmocka_unit_test(test_prefixes),
        cmocka_unit_test(test_raw_task), cmocka_unit_test(test_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
