#!/usr/bin/env bash
# test_cli.sh - the commands that need no sweep, and plug-ins.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
cd "$work"

# has WHAT PATTERN: the last output has a line like this
has() {
    grep -Eq -- "$2" out.txt || fail "$1: no \"$2\" in"$'\n'"$(cat out.txt)"
}

run() {
    "$program" "$@" >out.txt 2>err || fail "kvlab $*"
}

# ---- help ---------------------------------------------------------------------------------------

run --version
has version '^kvlab [0-9]+\.[0-9]+\.[0-9]+ \('
run --help
commands=$(sed -nE 's/^  ([a-z]+) +[a-z].*/\1/p' out.txt)
[ "$(wc -w <<<"$commands")" -ge 13 ] || fail "--help lists $commands"
for command in $commands; do
    run "$command" --help
    has "$command --help" "^Usage: kvlab $command\\b"
done

# ---- models, inspect ----------------------------------------------------------------------------

run models
has models '^Qwen 2, 2\.5 +qwen2 +Qwen2\.5-0\.5B-Instruct '
has models '^  DeepSeek V2, V3, R1 +MLA'
run inspect "$source_dir/datasets/model/kvlab-test.gguf"
has "inspect" '^shape +2 layers, 2 query and 1 kv heads of 32'
has "inspect" '^KV cache +[0-9]+ bytes per token \(f16\): [0-9.]+ MiB at 8K'
has "inspect" '^runs +yes'
! grep -q 'blk\.0' out.txt || fail "inspect lists tensors"
run inspect --all "$source_dir/datasets/model/kvlab-test.gguf"
has "inspect --all" '^blk\.0\.attn_q\.weight '

# ---- list, describe -----------------------------------------------------------------------------

run list
for policy in full random oracle streaming_llm snapkv quest; do has list "^  $policy +[a-z]"; done
equal "bounds stand first" "brute_offload full oracle random random_decode" "$(awk '/^ bounds/ { on = 1; next } /^ [a-z]/ { on = 0 } on { print $1 }' out.txt | xargs)"
for task in passkey kv_retrieval needle number_string two_stage_retr; do has list "^  $task  "; done
run list tasks
! grep -q '^  quest ' out.txt || fail "list tasks lists policies"
for file in $(grep -lE '^KVL_POLICY_EXPORT\(' "$source_dir"/methods/[a-z]*.c); do
    run describe "$(basename "$file" .c)"
    for row in paper what follows deviations cost does; do has describe "^$row  +[A-Za-z0-9]"; done
    has describe '^budget +[1-9][0-9]* tokens per lane at least'
    ! grep -nE '^.{89,}' out.txt || fail "describe $file: lines over 88 columns"
done
run describe --markdown
has describe '^\| `quest` \| Quest: Tang et al\., .* \| selects, can offload \|$'
equal "rows of four tables" $((4 * $(grep -lE '^KVL_POLICY_EXPORT\(' "$source_dir"/methods/[a-z]*.c | wc -l))) \
    "$(grep -cE '^\| `[a-z0-9_]+` \|' out.txt)"
run describe quest
has describe '^  page=16  \(int 1\.\.4096\)$'
has describe '^  reduce=sum  \(none\|sum\|max\|mean_q\)$'
run describe passkey
has describe '^  keys=1  \(int 1\.\.32\)$'
run describe needle
has describe '^  language=english  \(english\|german\)$'

# ---- tokens -------------------------------------------------------------------------------------

printf 'The key is 4711.\nJSON {"a b": "\xc3\xa9"}  \xff\x00.' >text
"$program" tokenize -m "$model" --ids text >ids || fail "tokenize --ids"
"$program" tokenize -m "$model" --decode ids >back || fail "tokenize --decode"
cmp -s text back || fail "text does not come back: $(od -c back | head -n 5)"
"$program" tokenize -m "$model" --ids --bos text >bos
equal "BOS" "1 $(cat ids)" "$(cat bos)"
"$program" tokenize -m "$model" --info | grep -c >/dev/null '^bos  *1 .*, put in front$' || fail "tokenize --info"
equal "a folder" "1 $(printf 'A key' | "$program" tokenize -m "$source_dir/tests/tokenizers/llama2" --ids -)" \
    "$(printf 'A key' | "$program" tokenize -m "$source_dir/tests/tokenizers/llama2" --ids --bos -)"
equal "a line a token" "$(wc -w <ids)" "$("$program" tokenize -m "$model" - <text | wc -l)"

# ---- generate, logits ---------------------------------------------------------------------------

ids=$(tr ' ' , <bos)
generate=("$program" generate -m "$model" --kv-type f32 --ids "$ids" --ignore-end --show-ids)
want=$("${generate[@]}" -n 8)
equal "eight tokens" 8 "$(wc -w <<<"$want")"
printf 'The key is 4711.\nJSON {"a b": "\xc3\xa9"}' >prompt
"$program" tokenize -m "$model" --ids --bos prompt | tr ' ' , >prompt.ids
equal "a file's text as prompt" \
    "$("$program" generate -m "$model" --kv-type f32 --ids "$(cat prompt.ids)" -n 8)" \
    "$("$program" generate -m "$model" --kv-type f32 --prompt "$(cat prompt)" -n 8)"
# A budget beyond the context is full attention.
for policy in quest snapkv random oracle streaming_llm:positions=original; do
    between=:
    [[ $policy != *:* ]] || between=,
    equal "$policy with room for all" "$want" \
        "$("${generate[@]}" -n 8 --policy "$policy${between}budget=4096")"
done
# The largest logit after the prompt is the first token (od reads the .npy: 128 bytes of header).
"$program" logits -m "$model" --ids "$ids" --out x.npy
shape=$(head -c 128 x.npy | tr -cd '[:print:]')
[[ $shape == *"'descr': '<f4', 'fortran_order': False, 'shape': ($(wc -w <bos), "* ]] ||
    fail "header of x.npy: $shape"
n_vocab=$(sed -E 's/.*, ([0-9]+)\).*/\1/' <<<"$shape")
equal "size of x.npy" $((128 + 4 * n_vocab * $(wc -w <bos))) "$(stat -c %s x.npy)"
equal "the largest logit" "${want%% *}" "$(tail -c $((4 * n_vocab)) x.npy | od -An -v -t f4 -w4 |
    awk 'NR == 1 || $1 > best { best = $1; at = NR - 1 } END { print at }')"

# Layer by layer, with keys and values on the host: the same logits.
"$program" logits -m "$model" --prefill-kv host --ids "$ids" --out layers.npy
equal "logits of a prefill layer by layer" "$(cksum <x.npy)" "$(cksum <layers.npy)"

# Prefill in bf16: other logits, by hundredths.
for type in f32 bf16 blas; do
    "$program" logits -m "$model" --prefill-type $type --ids "$ids" --out $type.npy
done
equal "float is the default" "$(cksum <x.npy)" "$(cksum <f32.npy)"
# distance TYPE: the largest between its logits and those in float
distance() {
    paste <(tail -c +129 f32.npy | od -An -v -t f4 -w4) <(tail -c +129 $1.npy | od -An -v -t f4 -w4) |
        awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d } END { print most + 0 }'
}
awk -v d="$(distance bf16)" 'BEGIN { exit !(d > 0.001 && d < 0.5) }' ||
    fail "logits in bf16 are up to $(distance bf16) from those in float"

# By OpenBLAS: the same arithmetic in another order.  Where it is not there, that is said, and so it is to a
# method that wants eigenvectors; nothing else asks for it.
awk -v d="$(distance blas)" 'BEGIN { exit !(d < 0.001) }' ||
    fail "logits by OpenBLAS are up to $(distance blas) from those in float"
mkdir none
: >none/libopenblas.so.0
: >none/libopenblas.so
without() {
    local rc=0
    LD_LIBRARY_PATH=$work/none "$program" "$@" >out.txt 2>err || rc=$?
    echo $rc
}
equal "no OpenBLAS" 2 "$(without logits -m "$model" --prefill-type blas --ids "$ids" --out none.npy)"
equal "its line" "kvlab: prefill_type blas: OpenBLAS with LAPACK (libopenblas.so.0) is not there; want the package libopenblas0, or prefill_type f32 or bf16" "$(cat err)"
equal "in float without it" 0 "$(without logits -m "$model" --ids "$ids" --out none.npy)"
equal "no eigenvectors" 7 "$(without generate -m "$model" --policy shadowkv:budget=96 --prompt "$(seq 300)" -n 2)"
equal "a line of it" 1 "$(grep -c 'shadowkv: .*libopenblas.so.0' err)"

# ---- plug-ins -----------------------------------------------------------------------------------

if ! command -v cc >out.txt; then
    echo "test_cli: no cc, plug-ins are not tested"
    exit 0
fi

# plugin FILE.so SOURCE [FLAG...]
plugin() {
    local out=$1 source=$2
    shift 2
    cc -std=c17 -O1 -shared -fPIC -DKVL_PLUGIN -I "$source_dir/core/include" "$@" -o "$out" "$source"
}

# refuse PATTERN FILE: not loaded, one line
refuse() {
    local rc=0
    "$program" list --plugin "$2" >out.txt 2>err || rc=$?
    equal "exit code for $2" 6 $rc
    [ "$(wc -l <err)" = 1 ] || fail "$2: not one line: $(cat err)"
    grep -Eqx -- "kvlab: $1" err || fail "$2: $(cat err)"
}

plugin p.so "$source_dir/methods/_template.c"
run list --plugin p.so
has "a plug-in" '^  template +[a-z].*\(\./p\.so\)$'
run describe template --plugin ./p.so
has "a plug-in" '^plug-in +\./p\.so$'
run generate -m "$model" --ids "$ids" -n 4 --policy template:budget=64 --plugin "$work/p.so"
cat >plug.yaml <<EOF
model: $model
tasks: [passkey]
lengths: [256]
contexts: 1
policies: ["*"]
budgets: [64]
EOF
run sweep plug.yaml --quiet --threads 1 --plugin p.so --log plug.zst
lines_of plug.zst | grep '"kind":"cell"' | grep '"policy":"template"' > /dev/null || fail "* has no plug-ins"
# An edited method is another one: its cells run again, those of the others do not.
lines_of plug.zst | grep -c '"kind":"cell"' >before
{ cat "$source_dir/methods/_template.c" && echo 'int edited; int edited;'; } >edited.c
plugin p.so edited.c
run sweep plug.yaml --threads 1 --plugin p.so --log plug.zst --quiet --stats
has "an edited plug-in" '^prefilled 1 contexts .* for 1 samples, '
equal "cells after an edit" $(($(cat before) + 1)) "$(lines_of plug.zst | grep -c '"kind":"cell"')"

sed 's/KVL_POLICY_ABI,/99,/' "$source_dir/methods/_template.c" >abi.c
plugin abi.so abi.c
refuse '\./abi\.so: policy ABI is 99, this program wants [0-9]+: rebuild it' abi.so
sed 's/sizeof(struct kvl_policy)/12/' "$source_dir/methods/_template.c" >size.c
plugin size.so size.c
refuse '\./size\.so: struct kvl_policy has 12 bytes, this program wants [0-9]+: rebuild it' size.so
sed 's/KVL_CAP_EVICTS/KVL_CAP_SELECTS/' "$source_dir/methods/_template.c" >caps.c
plugin caps.so caps.c
refuse '\./caps\.so: policy template: .*' caps.so
plugin quest.so "$source_dir/methods/quest.c"
refuse '\./quest\.so: policy "quest" exists already \(built in\), want another name' quest.so
echo 'int nothing; int nothing;' >none.c
plugin none.so none.c
refuse '\./none\.so: has no symbol kvl_plugin_policy, want a method compiled with -DKVL_PLUGIN' none.so
refuse '\./text: cannot be loaded: (invalid ELF header|file too short)' text
# No search path is used.
rc=0
"$program" list --plugin libm.so.6 >out.txt 2>err || rc=$?
equal "exit code for a plug-in that is not there" 2 $rc
equal "a plug-in that is not there" \
    'kvlab: ./libm.so.6: cannot open: No such file or directory' "$(cat err)"
