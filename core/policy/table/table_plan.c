/* Tables that plans declare, and what they will take. */
#include "policy_impl.h"

/* Gives the layers of a table their places. */
static int table_layers(struct kvl_plan *plan, const uint8_t *layers, struct kvl_row_decl *d)
{
    int32_t n_layers = plan->shape->n_layers;
    d->n_layers = n_layers;
    if (!layers) return KVL_OK;
    d->at = kvl_alloc((size_t)n_layers, sizeof *d->at);
    if (!d->at) return kvl_fail(plan->err, KVL_ENOMEM, "out of memory for a table's layers");
    d->n_layers = 0;
    for (int32_t l = 0; l < n_layers; l++) d->at[l] = layers[l] ? d->n_layers++ : -1;
    return KVL_OK;
}

/* Checked in plan, so that a wrong table is refused before a context was prefilled for it. */
int kvl_plan_table_desc(struct kvl_plan *plan, const struct kvl_table_desc *desc, int32_t *out)
{
    struct kvl_plan_private *p = plan->p;
    if (p->n_tables == KVL_MAX_TABLES)
        return kvl_fail(plan->err, KVL_EPOLICY, "more than %d tables", KVL_MAX_TABLES);
    bool live = desc->unit == KVL_UNIT_LIVE, lane = desc->unit == KVL_UNIT_LANE;
    if (desc->unit < KVL_UNIT_PAGE || desc->unit > KVL_UNIT_LANE || desc->unit_tok < 1 ||
        desc->row_elems < 1 || (!lane && desc->row_elems > 1 << 20))
        return kvl_fail(
            plan->err, KVL_EPOLICY,
            "table of unit %d, %d tokens, %d elements a row: want unit %d to %d, at least "
            "1, 1 to 1048576 (any number in a row per lane)",
            (int)desc->unit, desc->unit_tok, desc->row_elems, KVL_UNIT_PAGE, KVL_UNIT_LANE);
    if (desc->elem < KVL_ELEM_F32 || desc->elem > KVL_ELEM_U8)
        return kvl_fail(plan->err, KVL_EPOLICY,
                        "table of elements %d, want %d (float), %d (as stored keys) to %d (bytes)",
                        (int)desc->elem, KVL_ELEM_F32, KVL_ELEM_KEY, KVL_ELEM_U8);
    if (lane && desc->unit_tok != 1)
        return kvl_fail(plan->err, KVL_EPOLICY,
                        "table of a row per lane in units of %d tokens, want 1", desc->unit_tok);
    if (live && (desc->unit_tok != 1 || desc->per_layer))
        return kvl_fail(plan->err, KVL_EPOLICY,
                        "table of live tokens in units of %d%s, want 1 and rows per kv head",
                        desc->unit_tok, desc->per_layer ? ", per layer" : "");
    struct kvl_row_decl d = { .unit = desc->unit,
                              .unit_tok = desc->unit_tok,
                              .row_elems = desc->row_elems,
                              .elem = desc->elem,
                              .per_layer = desc->per_layer };
    KVL_TRY(table_layers(plan, desc->layers, &d));
    p->table[p->n_tables] = d;
    *out = p->n_tables++;
    return KVL_OK;
}

size_t kvl_row_elem_bytes(const struct kvl_row_table *t)
{
    switch (t->decl.elem) {
    case KVL_ELEM_I32: return sizeof(int32_t);
    case KVL_ELEM_U8: return sizeof(uint8_t);
    default: return (size_t)kvl_kv_elem_bytes(t->type);
    }
}

int32_t kvl_row_decl_rows(const struct kvl_row_decl *d, int32_t n_pos)
{
    if (d->unit == KVL_UNIT_LANE) return 1;
    return n_pos / d->unit_tok + (n_pos % d->unit_tok != 0);
}

/* Rows that hold keys have the store's type, so that a minimum of keys is one of them. */
struct kvl_row_table kvl_row_table_shape(const struct kvl_row_decl *decl, int32_t n_kv_heads,
                                         enum kvl_kv_type store, int32_t n_pos)
{
    struct kvl_row_table t = {
        .decl = *decl,
        .type = decl->elem == KVL_ELEM_KEY ? kvl_kv_table_type(store) : KVL_KV_F32,
        .n_kv_heads = n_kv_heads,
        .n_lanes = decl->per_layer ? 1 : (size_t)n_kv_heads,
        .n_rows = kvl_row_decl_rows(decl, n_pos),
    };
    t.row_bytes = kvl_row_elem_bytes(&t);
    *(decl->unit == KVL_UNIT_LIVE ? &t.n_lanes : &t.row_bytes) *= (size_t)decl->row_elems;
    return t;
}
