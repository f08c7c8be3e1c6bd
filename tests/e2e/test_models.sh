#!/usr/bin/env bash
# test_models.sh - a public model that somebody else trained: ids and text of greedy decoding.
#
# TinyStories-656K-Q8_0.gguf (2 layers, 8 query and 4 kv heads, Q8_0, tied embeddings) is looked for
# in $KVL_TEST_DATA, or in ../shared/data beside the sources.  Skipped when it is not there.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
data=${KVL_TEST_DATA-$(realpath "$2")/../shared/data}
model=$data/models/TinyStories-656K-Q8_0.gguf

if [ ! -r "$model" ]; then
    echo "test_models: skipped, no $model (set KVL_TEST_DATA)"
    exit 77
fi

fail() {
    echo "test_models: $*" >&2
    exit 1
}

# expect WHAT WANT GOT
expect() {
    [ "$2" = "$3" ] || fail "$1"$'\n'"want $2"$'\n'"got  $3"
}

generate() {
    "$program" generate --model "$model" --ignore-end "$@"
}

once_ids='313 598 303 1049 1468 178 163 436 1027 1376 1203 615 242 328 552 319'
once_ids+=' 1269 776 1864 617 167 753 1027 119 1380 1900 521 163 645 2029 1189 135'
once_text=', a little girl named Lily lived in a small house. She loved to eat yummy food. One day, '
hello_text=' and a girl were walking in the park. One day she saw a small bird flying in the sk'

expect 'prompt ids' '1 80 147 201 282 57' \
    "$(printf 'Once upon a time' | "$program" tokenize --model "$model" --bos --ids -)"
for kv_type in f32 f16; do
    expect "ids, $kv_type cache" "$once_ids" \
        "$(generate --prompt 'Once upon a time' -n 32 --kv-type $kv_type --show-ids)"
done
expect 'ids as a prompt' "$once_ids" \
    "$(generate --ids 1,80,147,201,282,57 -n 32 --show-ids)"
text=$(generate --prompt 'Once upon a time' -n 32)
[ "${text#"$once_text"}" != "$text" ] || fail "text: $text"
expect 'end of the text' 'tried to eat the food and' "$(grep -o 'tried to eat the food and' <<<"$text")"
expect 'text after Hello' "$hello_text" "$(generate --prompt Hello -n 16)"

# A budget that holds everything changes nothing; threads do not matter.
for policy in quest:budget=512 snapkv:budget=512 oracle:budget=512 streaming_llm:budget=512; do
    expect "ids under $policy" "$once_ids" \
        "$(generate --prompt 'Once upon a time' -n 32 --policy $policy --show-ids)"
done
expect 'ids on one thread' "$once_ids" \
    "$(generate --prompt 'Once upon a time' -n 32 --threads 1 --show-ids)"
echo "test_models: ok"
