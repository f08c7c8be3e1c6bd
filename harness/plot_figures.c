/* Every figure, once. */
#include "plot.h"

static double x_attended(const struct kvl_result *r)
{
    return r->attended_tok;
}

static double x_share(const struct kvl_result *r)
{
    return 100 * r->attended_tok / r->length_tok;
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
    return r->recall;
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
    return (struct kvl_interval){ mib, mib, mib };
}

const struct kvl_figure kvl_figures[] = {
    { .name = "accuracy_budget",
      .title = "Accuracy against attended budget",
      .help =
          "accuracy over tokens attended, a line per policy, a panel per task, protocol, length",
      .x_label = "tokens attended per lane (counted)",
      .y_label = "right answers, %",
      .columns = "attended_tok accuracy_pct lo hi budget_tok n n_errors",
      .note = "; bars: 95 %.",
      .y_axis = KVL_AXIS_PERCENT,
      .x = x_attended,
      .y = y_accuracy,
      .build = kvl_chart_lines },
    { .name = "recall_budget",
      .title = "Evidence recall against attended budget",
      .help = "share of answer steps whose evidence was attended, over tokens attended",
      .x_label = "tokens attended per lane (counted)",
      .y_label = "evidence recall, %",
      .columns = "attended_tok recall_pct lo hi budget_tok n n_errors",
      .note = "; bars: 95 %.",
      .y_axis = KVL_AXIS_PERCENT,
      .x = x_attended,
      .y = y_recall,
      .build = kvl_chart_lines },
    { .name = "passkey_budget",
      .title = "Passkey accuracy against budget",
      .help = "Quest's table 1 as curves: passkey at two lengths",
      .x_label = "tokens attended per lane (counted)",
      .y_label = "right answers, %",
      .columns = "attended_tok accuracy_pct lo hi budget_tok n n_errors",
      .note = "; bars: 95 %.",
      .y_axis = KVL_AXIS_PERCENT,
      .x = x_attended,
      .y = y_accuracy,
      .build = kvl_chart_lines },
    { .name = "two_stage_share",
      .title = "2StageRetr accuracy against budget share",
      .help = "OmniKV's figure 3: answers that need an entry nobody knew of before",
      .x_label = "tokens attended per lane, % of the context",
      .y_label = "right answers, %",
      .columns = "attended_pct accuracy_pct lo hi budget_tok n n_errors",
      .note = "; bars: 95 %.",
      .y_axis = KVL_AXIS_PERCENT,
      .x = x_share,
      .y = y_accuracy,
      .build = kvl_chart_lines },
    { .name = "preselect_effect",
      .title = "Selecting every token, preselecting, dense layers",
      .help = "KTransformers' effect: what is gained by each, over tokens attended",
      .x_label = "tokens attended per lane (counted)",
      .y_label = "right answers, %",
      .columns = "attended_tok accuracy_pct lo hi budget_tok n n_errors",
      .note = "; bars: 95 %.",
      .y_axis = KVL_AXIS_PERCENT,
      .x = x_attended,
      .y = y_accuracy,
      .build = kvl_chart_lines },
    { .name = "needle_heatmap",
      .title = "Needle in a haystack: length and depth",
      .help = "accuracy over context length and depth of the needle, a panel per policy",
      .x_label = "context, tokens",
      .y_label = "depth of the needle, %",
      .columns = "length_index depth_index accuracy_pct length_tok depth n n_errors",
      .note = "; the number in a cell is its accuracy in %.",
      .x_axis = KVL_AXIS_LINEAR,
      .y_axis = KVL_AXIS_LINEAR,
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
      .note = "Median of the repeats; bars: slowest and fastest.",
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
      .note = "Blocks of one sequence after the timed steps, tables of the policy included.",
      .by_length = true,
      .x = x_length,
      .y = y_kv_mib,
      .build = kvl_chart_lines },
    { .name = "step_breakdown",
      .title = "Where the time of a decode step goes",
      .help = "attention, selection, metadata, eviction and the rest, stacked, per policy",
      .x_label = "",
      .y_label = "milliseconds per token",
      .columns = "bar_index ms from to budget_tok n_records n_errors",
      .x_axis = KVL_AXIS_LINEAR,
      .y_axis = KVL_AXIS_ZERO,
      .build = kvl_chart_breakdown },
};
const size_t kvl_n_figures = sizeof kvl_figures / sizeof kvl_figures[0];
