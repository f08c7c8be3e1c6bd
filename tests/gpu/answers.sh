#!/usr/bin/env bash
# answers.sh - one sweep of all methods on the model that ships, on the CPU and on the GPU of this machine: the same answers, and
# as many tokens and bytes read for each.
#
#   answers.sh KVLAB FOLDER [DEVICE]   results in FOLDER; prints how many answers are the same, and those that are not
#
# Keys and values in floats, so that what differs is the order of sums alone: logits within 1e-4.  Near-ties may fall the
# other way: exit status 1 where more than one answer in fifty differs.  Wants jq.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
kvlab=$1 out=$2 device=${3:-cuda}
mkdir -p "$out"
cat >"$out/answers.yaml" <<END
model: $root/datasets/model/kvlab-small.gguf
tasks: [{task: passkey, keys: 4}, kv_retrieval]
lengths: [${KVL_ANSWERS_LENGTHS:-512, 2048}]
protocols: [question_in_prefill, question_after_compress]
contexts: 2
questions: 2
policies: ["*"]
budgets: [128]
kv_type: f32
END
for d in cpu "$device"; do
    "$kvlab" sweep "$out/answers.yaml" --device "$d" --log "$out/$d.jsonl.zst" >"$out/$d.txt" 2>&1 ||
        { tail -n 3 "$out/$d.txt" >&2; exit 1; }
    "$kvlab" export "$out/$d.jsonl.zst" --kind sample --format jsonl --out "$out/$d.jsonl"
done
jq -rn --slurpfile a "$out/cpu.jsonl" --slurpfile b "$out/$device.jsonl" '
    def key: [.task, .length_tok, .protocol, .label, .options, .budget, .context, .question] | map(tostring) | join(" ");
    def said: [.prediction, .error];
    def read: [.attended_tok, .kv_read_bytes_per_tok, .n_new_tok];
    ($b | map({(key): .}) | add) as $other |
    [$a[] | {key: key, here: ., there: $other[key]}] as $pairs |
    [$pairs[] | select(.there == null or (.here | said) != (.there | said))] as $differ |
    [$pairs[] | select(.there != null and (.here | said) == (.there | said) and (.here | read) != (.there | read))] as $reads |
    "\($pairs | length) answers of \([$pairs[].here.policy] | unique | length) methods: \($differ | length) differ, " +
    "\($reads | length) of the same ones read another number of tokens or bytes",
    ($differ[] | "differs: \(.key): \(.here.prediction | tojson) \(.there.prediction | tojson) \(.there.error // "")"),
    ($reads[] | "reads: \(.key): \(.here | read | tojson) \(.there | read | tojson)"),
    (if ($differ | length) * 50 > ($pairs | length) or ($pairs | length) < 100 then error("too many differ") else empty end)'
