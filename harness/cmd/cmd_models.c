/* kvlab models: which public models run, and what memory they take. */
#include "args.h"
#include "cmds.h"
#include "model_list.h"

#include <stdio.h>

struct models_args {
    struct kvl_args base;
};

static const struct argp models_argp = {
    .doc = "Public models by family: the smallest one that is of use, and the memory that weights, "
           "keys and values "
           "(16 bits) take at 8K, 32K and 128K tokens; then what does not run, and why.  `kvlab "
           "inspect FILE` says it "
           "of a file of yours.",
};

static void models_memory(const struct kvl_family *f, int32_t n_tok)
{
    double weights = f->weights_gb * 1e9 / 0x1p30;
    if (n_tok > f->n_ctx)
        printf(" %6s", "-");
    else
        printf(" %6.1f", weights + kvl_family_kv_gib(f, n_tok));
}

static void models_print(void)
{
    const struct kvl_family *f;
    const struct kvl_refused_family *r;
    printf("%-26s %-10s %-27s %8s %-11s %6s %6s %6s\n", "family", "", "smallest of use", "context",
           "weights", "8K", "32K", "128K");
    for (int32_t i = 0; (f = kvl_family_at(i)); i++) {
        printf("%-26s %-10s %-27s %8d %-6s %4.1f", f->family, f->arch, f->model, f->n_ctx,
               f->weights, f->weights_gb * 1e9 / 0x1p30);
        models_memory(f, 8192);
        models_memory(f, 32768);
        models_memory(f, 131072);
        printf("%s%s\n", f->note ? "  " : "", f->note ? f->note : "");
    }
    puts("GiB of weights, keys and values, about; -: beyond the context.  As GGUF, or as a folder "
         "with config.json and "
         "*.safetensors.\nSmall ones can be had by name: harness/models.sh smollm2-135m, "
         "gemma3-270m, "
         "qwen2.5-coder-0.5b, qwen2.5-coder-1.5b.\n\nDo not run:");
    for (int32_t i = 0; (r = kvl_refused_family_at(i)); i++)
        printf("  %-38s %s\n", r->family, r->why);
}

int cmd_models(int argc, char **argv, struct kvl_err *err)
{
    struct models_args a = { 0 };
    bool done;
    KVL_TRY(kvl_args_parse(&models_argp, argc, argv, &a, &done, err));
    if (!done) models_print();
    return KVL_OK;
}
