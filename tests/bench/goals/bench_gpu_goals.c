/* Goals of `kvlab bench --device cuda`. */
#include "bench_goals.h"

const char bench_gpu_how[] =
    "Llama-3-8B's shape with random bf16 weights (a vocabulary of 512, so a token reads 14.0 GB of "
    "weights\nwhere the real one reads 15.0), batch 1. On a machine with an NVIDIA GPU:\n\n"
    "```sh\n"
    "tests/run.sh --gpu                      # correctness first: results/gpu-checks.md\n"
    "cmake -S . -B build -G Ninja -DKVL_CUDA=ON -DKVL_TESTS=ON && ninja -C build    "
    "# without asserts\n"
    "python3 tests/bench/torch_attention.py >peers.jsonl             # where PyTorch is\n"
    "build/tests/bench_cuda_attn | grep '^{' >>peers.jsonl           # lanes alone: random pages\n"
    "build/tests/bench_goals --device cuda --peer-json peers.jsonl --json gpu.jsonl "
    "--report=results/gpu.md\n"
    "build/kvlab bench --device hybrid       # the CPU attends what lies in host memory: line "
    "quest_host\n"
    "build/tests/bench_goals --device cuda --prefill-host 1048576    # one layer's keys and values "
    "on the "
    "GPU at a time\n"
    "```\n\n"
    "The model takes 14 GB in TMPDIR, 128K tokens in bf16 take 17.2 GB on the GPU; `--depths` and "
    "`--quick`\nmake it smaller. Attention is what a token takes longer than at depth 0: a GPU "
    "works behind the program's\nback, so that its parts have no times of their own. For the last "
    "two no goal is set; a million "
    "tokens take about\n155 GB of host memory, by arithmetic. `KVL_CUDA_GRAPH=n` is how many "
    "kernels a graph "
    "of a step has (0: none).\n\n";

const char bench_gpu_bits[] =
    "## Same bits\n"
    "\n"
    "nvcc fuses no product with a sum unless the code says fmaf (-fmad=false), so that bits do not "
    "depend on the compiler. Numbers are the\n"
    "tolerances of tests/ops, relative to 1 + size, against the definitions in floats; where the "
    "tests run on a GPU they hold it to the same.\n"
    "\n"
    "| what | a GPU against the CPU |\n"
    "|---|---|\n"
    "| embeddings, residual sums, random numbers, weights of every type widened | the same bits |\n"
    "| keys and values stored, moved, fetched, rounded to 16 bits; rows read from lanes | the same "
    "bits |\n"
    "| top-k and top-p lists, pooling, group reductions, means of chunks, for the same scores | "
    "the same bits |\n"
    "| packed keys of ThinK-like methods, channels and boxes, LSH codes and what they find, "
    "moments | the same bits |\n"
    "| dots and squares of floats in double (k-means, cosines, bases) | the same terms, other "
    "order |\n"
    "| rmsnorm, RoPE, SwiGLU | 2e-6, 3e-7, 1e-6: other order, sine and exp of another library |\n"
    "| projections of a prefill in floats, decode with plain types, TQ1_0, TQ2_0 | 3e-6 times the "
    "root of the columns |\n"
    "| decode with Q8_0, Q4_0 to Q5_1, Q4_K to Q6_K | 3e-6 times the root of the columns; x is "
    "rounded to the same 16 bits |\n"
    "| decode with Q2_K, Q3_K, IQ4_NL, IQ4_XS, MXFP4 | 3e-5 times the root of the columns: the CPU "
    "rounds x, a GPU does not |\n"
    "| attention in floats: decode, prefill, windows, columns, masses | 1e-5 to 2e-5 |\n"
    "| attention of a prefill in bf16 | 3e-3: weights are rounded to bf16 |\n"
    "| scores and bounds of pages, channels, boxes | 1e-5 |\n"
    "\n"
    "| what | on one GPU |\n"
    "|---|---|\n"
    "| a token twice, with graphs or without, ahead of the host or waited for | the same bits; "
    "tests/gpu |\n"
    "| a row of a batch against the row alone: operators of our own | the same bits; sums are in "
    "an order of the shape alone |\n"
    "| the same through cuBLAS (projections of a prefill in bf16) | not promised by cuBLAS; not "
    "claimed until it has run |\n";

const struct bench_goal bench_gpu_goals[] = {
    { "gpu-attention",
      "full decode attention, 32K to 128K: bytes / time / stream",
      "0.80",
      "0.90",
      "attention",
      NULL,
      32768,
      131072,
      true,
      false,
      { 0.8, 0.8 },
      { 0.9, 0.9 } },
    { "gpu-torch",
      "full decode attention against torch SDPA, best backend, enable_gqa",
      "1.0x",
      "1.2x",
      "attention against torch",
      NULL,
      32768,
      131072,
      true,
      false,
      { 1.0, 1.0 },
      { 1.2, 1.2 } },
    { "gpu-torch-repeated",
      "full decode attention against torch SDPA over repeat_kv",
      "3x",
      "4x",
      "attention against torch, repeated",
      NULL,
      32768,
      131072,
      true,
      false,
      { 3, 3 },
      { 4, 4 } },
    { "gpu-pages",
      "random 16-token pages against contiguous",
      "0.90",
      "0.95",
      "attention, random pages",
      NULL,
      -1,
      BENCH_ANY_DEPTH,
      true,
      false,
      { 0.9, 0.9 },
      { 0.95, 0.95 } },
    { "gpu-quest-32k",
      "Quest 2048 / page 16 attention against full attention, 32K",
      "4x",
      "6x",
      "attention speed-up",
      "quest",
      32768,
      32768,
      true,
      false,
      { 4, 4 },
      { 6, 6 } },
    { "gpu-quest-128k",
      "Quest 2048 / page 16 attention against full attention, 128K",
      "8x",
      "10x",
      "attention speed-up",
      "quest",
      131072,
      131072,
      true,
      false,
      { 8, 8 },
      { 10, 10 } },
    { "gpu-flat",
      "eviction at budget 2048: token at the deepest / the shallowest depth",
      "<= 1.05",
      "",
      "token, deep / shallow",
      "streaming_llm,h2o,snapkv",
      131072,
      131072,
      false,
      false,
      { 1.05, 1.05 },
      { 0, 0 } },
    { "gpu-token",
      "whole token, eviction: time / ((weights + budget bytes) / stream)",
      "<= 1.25",
      "1.15",
      "token",
      "streaming_llm,h2o,snapkv",
      16384,
      131072,
      false,
      false,
      { 1.25, 1.25 },
      { 1.15, 1.15 } },
    { "gpu-host",
      "selected pages host to device against pinned copies",
      "0.80",
      "0.90",
      "pages from the host",
      "quest_host",
      16384,
      131072,
      true,
      false,
      { 0.8, 0.8 },
      { 0.9, 0.9 } },
    { "gpu-gemm",
      "prefill projections bf16, chunk of 512, against cuBLAS alone",
      "0.95",
      "",
      "projections of 512, bf16",
      NULL,
      -1,
      -1,
      true,
      false,
      { 0.95, 0.95 },
      { 0, 0 } },
    { "gpu-gemm-4096",
      "prefill projections bf16, 4096 rows, against cuBLAS alone",
      "0.95",
      "",
      "projections of 4096, bf16",
      NULL,
      -1,
      -1,
      true,
      false,
      { 0.95, 0.95 },
      { 0, 0 } },
    { "gpu-prefill",
      "prefill attention against torch's best backend",
      "0.5",
      "0.75",
      "prefill attention, bf16",
      NULL,
      0,
      BENCH_ANY_DEPTH,
      true,
      false,
      { 0.5, 0.5 },
      { 0.75, 0.75 } },
    { "gpu-quest-e2e",
      "token at 128K against full attention: Quest",
      "1.5x",
      "1.8x",
      "token speed-up",
      "quest",
      131072,
      131072,
      true,
      false,
      { 1.5, 1.5 },
      { 1.8, 1.8 } },
    { "gpu-omnikv-e2e",
      "token at 128K against full attention: OmniKV",
      "1.35x",
      "1.5x",
      "token speed-up",
      "omnikv",
      131072,
      131072,
      true,
      false,
      { 1.35, 1.35 },
      { 1.5, 1.5 } },
};
const size_t bench_n_gpu_goals = sizeof bench_gpu_goals / sizeof bench_gpu_goals[0];
