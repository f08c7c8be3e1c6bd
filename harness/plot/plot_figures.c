/* Every figure, once. */
#include "plot.h"

#include "lane_recall.h"

static double x_read(const struct kvl_result *r)
{
    return r->read_tok;
}

static double x_share(const struct kvl_result *r)
{
    return 100 * r->read_tok / r->length_tok;
}

static double x_length(const struct kvl_result *r)
{
    return r->length_tok;
}

static struct kvl_interval y_accuracy(const struct kvl_result *r, bool strict)
{
    return strict ? r->strict : r->official;
}

static struct kvl_interval y_recall(const struct kvl_result *r, bool strict)
{
    (void)strict;
    return (struct kvl_interval){ r->recall, KVL_NAN, KVL_NAN };
}

/* Beside full attention on the same tokens of a text. */
static struct kvl_interval y_kl(const struct kvl_result *r, bool strict)
{
    (void)strict;
    return r->kl;
}

static struct kvl_interval y_top1(const struct kvl_result *r, bool strict)
{
    (void)strict;
    return r->top1;
}

/* Of the ten tokens of largest weight, those that were read (reference passes); where every layer is
 * dense, of those layers. */
static struct kvl_interval y_top10(const struct kvl_result *r, bool strict)
{
    const json_t *q = json_object_get(r->record, "quality"), *top = json_object_get(q, "top");
    const json_t *layers = json_object_get(q, "select");
    if (!json_is_object(layers)) layers = json_object_get(q, "dense");
    (void)strict;
    for (size_t i = 0; i < json_array_size(top); i++) {
        const json_t *v = json_array_get(json_object_get(layers, "recall"), i);
        if (json_integer_value(json_array_get(top, i)) != 10 || !json_is_object(v)) continue;
        return kvl_interval_of(v, "mean");
    }
    return (struct kvl_interval){ KVL_NAN, KVL_NAN, KVL_NAN };
}

static struct kvl_interval y_decode(const struct kvl_result *r, bool strict)
{
    (void)strict;
    return r->decode;
}

/* What one sequence occupies, with the tables of its policy. */
static struct kvl_interval y_kv_mib(const struct kvl_result *r, bool strict)
{
    (void)strict;
    double mib = (r->kv_physical + r->meta) / 1048576;
    return (struct kvl_interval){ mib, KVL_NAN, KVL_NAN };
}

const struct kvl_figure kvl_figures[] = {
    { .name = "accuracy_budget",
      .title = "Accuracy against tokens read",
      .help = "accuracy over tokens read, a line per policy, a panel per task, protocol, length",
      .x_label = "tokens read, mean over all layers (counted)",
      .y_label = "right answers, %",
      .columns = "read_tok accuracy_pct lo hi budget_tok n n_errors",
      .note = "; bars: 95 %.",
      .y_axis = KVL_AXIS_PERCENT,
      .x = x_read,
      .y = y_accuracy,
      .build = kvl_chart_lines },
    { .name = "methods",
      .title = "All methods at equal budgets",
      .help = "accuracy at each budget, a row per policy, best first, a panel per task",
      .x_label = "right answers, %",
      .y_label = "",
      .columns = "accuracy_pct row lo hi budget_tok attended_tok n_errors",
      .note = "; bars: 95 %.  Open: attended over 110 % of the budget.",
      .x_axis = KVL_AXIS_PERCENT,
      .y_axis = KVL_AXIS_LINEAR,
      .build = kvl_chart_methods },
    { .name = "recall_budget",
      .title = "Evidence recall against tokens read",
      .help = "share of the evidence attended by retrieving heads, over tokens read",
      .x_label = "tokens read, mean over all layers (counted)",
      .y_label = "evidence recall of retrieving heads, %",
      .columns = "read_tok recall_pct lo hi budget_tok n n_errors",
      .note = "; retrieving: oracle attends half of it at its smallest budget.",
      .y_axis = KVL_AXIS_PERCENT,
      .x = x_read,
      .y = y_recall,
      .lack = kvl_lanes_lack,
      .build = kvl_chart_lines },
    { .name = "passkey_budget",
      .title = "Passkey accuracy against budget",
      .help = "Quest's table 1 as curves: passkey at two lengths",
      .x_label = "tokens read, mean over all layers (counted)",
      .y_label = "right answers, %",
      .columns = "read_tok accuracy_pct lo hi budget_tok n n_errors",
      .note = "; bars: 95 %.",
      .y_axis = KVL_AXIS_PERCENT,
      .x = x_read,
      .y = y_accuracy,
      .build = kvl_chart_lines },
    { .name = "two_stage_share",
      .title = "2StageRetr accuracy against budget share",
      .help = "OmniKV's figure 3: answers that need an entry nobody knew of before",
      .x_label = "% of the context read, all layers",
      .x_axis = KVL_AXIS_ZERO,
      .y_label = "right answers, %",
      .columns = "read_pct accuracy_pct lo hi budget_tok n n_errors",
      .note = "; bars: 95 %.",
      .y_axis = KVL_AXIS_PERCENT,
      .x = x_share,
      .y = y_accuracy,
      .build = kvl_chart_lines },
    { .name = "preselect_effect",
      .title = "Selecting every token, preselecting, dense layers",
      .help = "KTransformers' effect: what is gained by each, over tokens read",
      .x_label = "tokens read, mean over all layers (counted)",
      .y_label = "right answers, %",
      .columns = "read_tok accuracy_pct lo hi budget_tok n n_errors",
      .note = "; bars: 95 %.",
      .y_axis = KVL_AXIS_PERCENT,
      .x = x_read,
      .y = y_accuracy,
      .build = kvl_chart_lines },
    { .name = "top10_budget",
      .title = "Recall of the ten heaviest tokens against budget",
      .help = "Quest's figure 4: share of full attention's top 10 tokens that was read",
      .x_label = "tokens read, mean over all layers (counted)",
      .y_label = "top-10 tokens read, %",
      .columns = "read_tok recall_pct lo hi budget_tok n n_errors",
      .note = "; reference passes, mean over selecting layers, heads, steps; bars: 95 %.",
      .y_axis = KVL_AXIS_PERCENT,
      .x = x_read,
      .y = y_top10,
      .build = kvl_chart_lines },
    { .name = "kl_budget",
      .title = "Next token against that of full attention",
      .help = "KL to full attention on texts, over tokens read, a line per policy",
      .x_label = "tokens read, mean over all layers (counted)",
      .y_label = "KL to full attention, nats",
      .columns = "read_tok kl_nats lo hi budget_tok n_texts n_errors",
      .note = "; mean over tokens; bars: 95 %.",
      .y_axis = KVL_AXIS_LOG,
      .texts = true,
      .x = x_read,
      .y = y_kl,
      .build = kvl_chart_lines },
    { .name = "top1_budget",
      .title = "Same best next token as full attention",
      .help = "top-1 agreement with full attention on texts, over tokens read",
      .x_label = "tokens read, mean over all layers (counted)",
      .y_label = "same best next token, %",
      .columns = "read_tok top1_pct lo hi budget_tok n_texts n_errors",
      .note = "; bars: 95 %.",
      .y_axis = KVL_AXIS_PERCENT,
      .texts = true,
      .x = x_read,
      .y = y_top1,
      .build = kvl_chart_lines },
    { .name = "evict_or_quantise",
      .title = "Fewer tokens, fewer bits, or both",
      .help = "accuracy, KL and perplexity over bytes held and read: policies in each kv_type",
      .x_label = "times fewer bytes than in f16, all tokens",
      .y_label = "",
      .columns = "times_fewer y lo hi budget_tok n bytes",
      .note = "; bars: 95 %, by contexts.  Colour: type of keys and values; marker: policy.",
      .x_axis = KVL_AXIS_LOG,
      .y_axis = KVL_AXIS_LINEAR,
      .build = kvl_chart_trade },
    { .name = "mass_layer",
      .title = "Tokens that hold 90, 95, 99 % of the attention",
      .help = "share of the tokens needed, per layer (kvlab analyze mass)",
      .x_label = "layer",
      .y_label = "share of all tokens, %",
      .columns = "layer share_pct least_head most_head - n_heads -",
      .note = "  Mean over heads; bars: sparsest and densest head.",
      .x_axis = KVL_AXIS_LINEAR,
      .build = kvl_chart_mass },
    { .name = "layers_alike",
      .title = "Attention of the next layers on a layer's tokens",
      .help = "mean share caught, per layer (kvlab analyze similarity)",
      .x_label = "layer that chooses",
      .y_label = "attention caught, %",
      .columns = "layer captured_pct - - - - -",
      .x_axis = KVL_AXIS_LINEAR,
      .y_axis = KVL_AXIS_PERCENT,
      .build = kvl_chart_alike },
    { .name = "layers_heatmap",
      .title = "Attention of a layer on another layer's tokens",
      .help = "layer by layer (kvlab analyze similarity)",
      .x_label = "layer that attends",
      .y_label = "layer that chooses",
      .columns = "layer2_index layer1_index captured_pct layer2 layer1 - -",
      .x_axis = KVL_AXIS_LINEAR,
      .y_axis = KVL_AXIS_LINEAR,
      .bar = true,
      .build = kvl_chart_capture },
    { .name = "filter_hit",
      .title = "Evidence among a layer's tokens",
      .help = "hit rate of each layer as a filter (kvlab analyze similarity)",
      .x_label = "layer that chooses",
      .y_label = "evidence hit, %",
      .columns = "layer hit_pct lo hi - n_answers -",
      .x_axis = KVL_AXIS_LINEAR,
      .y_axis = KVL_AXIS_PERCENT,
      .build = kvl_chart_hits },
    { .name = "token_drift",
      .title = "Important tokens, some steps later",
      .help = "share that is important still, per layer (kvlab analyze drift)",
      .x_label = "decode steps later",
      .y_label = "still important, %",
      .columns = "lag kept_pct - - - - -",
      .x_axis = KVL_AXIS_LINEAR,
      .y_axis = KVL_AXIS_PERCENT,
      .build = kvl_chart_drift },
    { .name = "needle_heatmap",
      .title = "Needle in a haystack: length and depth",
      .help = "accuracy over context length and depth of the needle, a panel per policy",
      .x_label = "context, tokens",
      .y_label = "depth of the needle, %",
      .columns = "length_index depth_index accuracy_pct length_tok depth n n_errors",
      .note = "; the number in a cell is its accuracy in %.",
      .x_axis = KVL_AXIS_LINEAR,
      .y_axis = KVL_AXIS_LINEAR,
      .bar = true,
      .build = kvl_chart_depths },
    { .name = "perplexity_length",
      .title = "Perplexity against length",
      .help = "running perplexity of texts, a line per policy, a panel per budget",
      .x_label = "tokens of the text",
      .y_label = "perplexity so far",
      .columns = "position_tok ppl ppl ppl budget_tok n_texts n_errors",
      .note = ", each token fed as it is; from 16 tokens on.",
      .x_axis = KVL_AXIS_LINEAR,
      .texts = true,
      .build = kvl_chart_perplexity },
    { .name = "speed_length",
      .title = "Decoding speed against context length",
      .help = "tokens per second over context length, a line per policy, a panel per budget",
      .x_label = "context, tokens",
      .y_label = "decoding, tokens/s",
      .columns = "length_tok tok_per_s slowest fastest budget_tok n_repeats n_errors",
      .note = "Median of the repeats; bars: slowest and fastest; × full at its longest length.",
      .tail = 7,
      .by_length = true,
      .x = x_length,
      .y = y_decode,
      .build = kvl_chart_lines },
    { .name = "kv_length",
      .title = "KV cache against context length",
      .help = "bytes that one sequence holds, over context length, per policy and cell type",
      .x_label = "context, tokens",
      .y_label = "KV cache and metadata, MiB",
      .columns = "length_tok kv_mib kv_mib kv_mib budget_tok n_repeats n_errors",
      .note = "Blocks of one sequence after its answer or the timed steps, tables of the policy "
              "included.",
      .by_length = true,
      .x = x_length,
      .y = y_kv_mib,
      .build = kvl_chart_lines },
    { .name = "step_breakdown",
      .title = "Where the time of a decode step goes",
      .help = "attention, selection, metadata, eviction and the rest, stacked, per policy",
      .x_label = "",
      .y_label = "milliseconds per token",
      .columns = "bar_index ms from to budget_tok n_records x_full",
      .x_axis = KVL_AXIS_LINEAR,
      .y_axis = KVL_AXIS_ZERO,
      .build = kvl_chart_breakdown },
};
const size_t kvl_n_figures = sizeof kvl_figures / sizeof kvl_figures[0];
