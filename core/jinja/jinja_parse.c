/* Statements: tokens to trees. */
#include "jinja_impl.h"

#include <stdlib.h>

enum { PARSE_BYTES = 64 << 20 };

static struct jin_node *statements(struct jin_parse *p, const char *const *ends);

static bool at_block(const struct jin_parse *p, const char *name)
{
    return p->tok->kind == TK_BLOCK && p->tok[1].kind == TK_NAME && p->tok[1].len == strlen(name) &&
           memcmp(p->tok[1].s, name, p->tok[1].len) == 0;
}

static bool take_block(struct jin_parse *p, const char *name)
{
    if (!at_block(p, name)) return false;
    p->tok += 2;
    return true;
}

static void end_block(struct jin_parse *p)
{
    jin_want(p, TK_BLOCK_END, "%}");
}

/* {% endfor %} and its like. */
static void close_block(struct jin_parse *p, const char *name)
{
    if (p->rc == KVL_OK && !take_block(p, name)) jin_refuse(p, "want {%% %s %%}", name);
    if (p->rc == KVL_OK) end_block(p);
}

static struct jin_node *for_block(struct jin_parse *p)
{
    static const char *const ends[] = { "endfor", "else", NULL }, *const last[] = { "endfor",
                                                                                    NULL };
    struct jin_node *n = jin_new(p, N_FOR);
    n->a = jin_target(p);
    jin_want(p, TK_NAME, "in");
    n->b = jin_tuple(p, false);
    if (jin_take(p, TK_NAME, "if")) n->c = jin_expression(p);
    if (jin_is(p, TK_NAME, "recursive")) return jin_refuse(p, "recursive is not known here");
    end_block(p);
    p->loops++;
    n->body = statements(p, ends);
    p->loops--;
    if (take_block(p, "else")) {
        end_block(p);
        n->other = statements(p, last);
    }
    close_block(p, "endfor");
    return n;
}

/* Behind "if" or "elif". */
static struct jin_node *if_block(struct jin_parse *p)
{
    static const char *const ends[] = { "endif", "else", "elif", NULL }, *const last[] = { "endif",
                                                                                           NULL };
    struct jin_node *first = jin_new(p, N_IF), *n = first;
    for (;;) {
        n->a = jin_tuple(p, false);
        end_block(p);
        n->body = statements(p, ends);
        if (p->rc != KVL_OK || !take_block(p, "elif")) break;
        n = n->other = jin_new(p, N_IF);
    }
    if (p->rc == KVL_OK && take_block(p, "else")) {
        end_block(p);
        n->other = statements(p, last);
    }
    close_block(p, "endif");
    return first;
}

static struct jin_node *set_block(struct jin_parse *p)
{
    static const char *const ends[] = { "endset", NULL };
    struct jin_node *n = jin_new(p, N_SET);
    n->a = jin_target(p);
    if (jin_take(p, TK_OP, "=")) {
        n->b = jin_tuple(p, true);
        end_block(p);
        return n;
    }
    n->kind = N_SET_BLOCK;
    if (jin_is(p, TK_OP, "|")) return jin_refuse(p, "filters of a set block are not known here");
    end_block(p);
    n->body = statements(p, ends);
    close_block(p, "endset");
    return n;
}

/* Statements that no break or continue leaves. */
static struct jin_node *apart(struct jin_parse *p, const char *const *ends)
{
    int loops = p->loops;
    p->loops = 0;
    struct jin_node *body = statements(p, ends);
    p->loops = loops;
    return body;
}

static struct jin_node *macro_block(struct jin_parse *p)
{
    static const char *const ends[] = { "endmacro", NULL };
    struct jin_node *n = jin_new(p, N_MACRO);
    n->name = jin_name(p);
    jin_want(p, TK_OP, "(");
    while (p->rc == KVL_OK && !jin_take(p, TK_OP, ")")) {
        const char *name = jin_name(p);
        jin_append(p, n, name, jin_take(p, TK_OP, "=") ? jin_expression(p) : NULL);
        if (!jin_is(p, TK_OP, ")")) jin_want(p, TK_OP, ",");
    }
    end_block(p);
    n->body = apart(p, ends);
    close_block(p, "endmacro");
    return n;
}

/* What training marks as the model's own says nothing here; it is a scope. */
static struct jin_node *generation_block(struct jin_parse *p)
{
    static const char *const ends[] = { "endgeneration", NULL };
    struct jin_node *n = jin_new(p, N_GENERATION);
    end_block(p);
    n->body = apart(p, ends);
    close_block(p, "endgeneration");
    return n;
}

static struct jin_node *jump_block(struct jin_parse *p, enum jin_kind kind)
{
    if (p->loops == 0) jin_refuse(p, "break or continue outside a loop");
    struct jin_node *n = jin_new(p, kind);
    end_block(p);
    return n;
}

static struct jin_node *block(struct jin_parse *p)
{
    if (take_block(p, "for")) return for_block(p);
    if (take_block(p, "if")) return if_block(p);
    if (take_block(p, "set")) return set_block(p);
    if (take_block(p, "macro")) return macro_block(p);
    if (take_block(p, "generation")) return generation_block(p);
    if (take_block(p, "break")) return jump_block(p, N_BREAK);
    if (take_block(p, "continue")) return jump_block(p, N_CONTINUE);
    const struct jin_tok *t = p->tok + 1;
    return jin_refuse(p, "{%% %.*s %%} is not known here", (int)KVL_MIN(t->len, (size_t)32), t->s);
}

static struct jin_node *data(struct jin_parse *p)
{
    struct jin_node *n = jin_new(p, N_DATA);
    struct jin_str *s = jin_arena_get(p->arena, sizeof *s);
    if (!s) return jin_refuse(p, "a chat template that is too large");
    *s = (struct jin_str){ p->tok->s, NULL, p->tok->len };
    n->val = (struct jin_val){ JIN_STR, { .s = s } };
    p->tok++;
    return n;
}

static struct jin_node *print(struct jin_parse *p)
{
    struct jin_node *n = jin_new(p, N_PRINT);
    p->tok++;
    n->a = jin_tuple(p, true);
    if (p->rc == KVL_OK && n->a->kind == N_FILTER && n->a->n == 0 &&
        strcmp(n->a->name, "safe") == 0)
        n->a = n->a->a;
    jin_want(p, TK_VAR_END, "}}");
    return n;
}

/* Up to a block whose name is one of `ends`, which is left. */
static struct jin_node *statements(struct jin_parse *p, const char *const *ends)
{
    struct jin_node *first = NULL, **next = &first;
    if (++p->depth > JIN_DEPTH) jin_refuse(p, "blocks nested deeper than %d", JIN_DEPTH);
    while (p->rc == KVL_OK && p->tok->kind != TK_END) {
        bool end = false;
        for (size_t i = 0; ends[i]; i++) end |= at_block(p, ends[i]);
        if (end) break;
        struct jin_node *n = p->tok->kind == TK_DATA  ? data(p)
                             : p->tok->kind == TK_VAR ? print(p)
                                                      : block(p);
        if (p->rc != KVL_OK) break;
        *next = n;
        next = &n->next;
    }
    p->depth--;
    return first;
}

/* Line ends are \n, and one at the end is none. */
static char *parse_text(struct jin_arena *a, const char *text, size_t *len)
{
    char *out = jin_arena_get(a, *len + 1);
    size_t n = 0;
    for (size_t i = 0; out && i < *len; i++) {
        bool cr = text[i] == '\r';
        if (cr && i + 1 < *len && text[i + 1] == '\n') continue;
        out[n++] = cr ? '\n' : text[i];
    }
    if (out && n > 0 && out[n - 1] == '\n') n--;
    *len = n;
    return out;
}

int kvl_jinja_parse(const char *text, size_t len, struct kvl_jinja **out, struct kvl_err *err)
{
    static const char *const no_ends[] = { NULL };
    struct kvl_jinja *t = kvl_alloc(1, sizeof *t);
    if (!t) return kvl_fail(err, KVL_ENOMEM, "no memory for a chat template");
    t->arena.most = PARSE_BYTES;
    struct jin_lex x = { .arena = &t->arena, .err = err };
    x.text = parse_text(&t->arena, text, &len);
    x.len = len;
    int rc = x.text ? jin_lex(&x) : kvl_fail(err, KVL_ENOMEM, "no memory for a chat template");
    if (rc == KVL_OK) {
        struct jin_parse p = { .arena = &t->arena, .tok = x.tok, .err = err };
        t->body = statements(&p, no_ends);
        rc = p.rc;
    }
    free(x.tok);
    if (rc != KVL_OK) {
        kvl_jinja_free(t);
        return rc;
    }
    *out = t;
    return KVL_OK;
}

void kvl_jinja_free(struct kvl_jinja *t)
{
    if (!t) return;
    jin_arena_free(&t->arena);
    kvl_free(t);
}
