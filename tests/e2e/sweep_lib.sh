# sweep_lib.sh - a small sweep, and its results in a form that two runs can be compared in.  Sourced by
# the tests of sweeps.  Expects $program and $source_dir; sets $work, a folder of its own, and $model.
# An array job or a rank of MPI is a share of a sweep.
unset KVL_HOME "${!SLURM_@}" "${!KVLAB_SHARD@}" "${!OMPI_@}" "${!PMI_@}" "${!JOB_COMPLETION@}"
# Under nohup SIGHUP ends no sweep, and a shell cannot take that back.
[ -z "$(trap -p HUP)" ] || exec env --default-signal=HUP bash "$0" "$@"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
model=$source_dir/datasets/model/kvlab-test.gguf
name=$(basename "$0" .sh)

if [ ! -r "$model" ]; then
    echo "$name: skipped, no $model"
    exit 77
fi

fail() {
    echo "$name: $*" >&2
    [ ! -s "$work/err" ] || tail -n 5 "$work/err" >&2
    exit 1
}

# equal WHAT WANT GOT
equal() {
    [ "$2" = "$3" ] || fail "$1"$'\n'"want $2"$'\n'"got  $3"
}

# sweep_file CONTEXTS: the sweep as text.  One cell (quest with 16) is refused by its policy.
sweep_file() {
    cat <<EOF
name: small
model: $model
tasks: [{task: passkey, keys: 2}, kv_retrieval]
lengths: [256, 320]
protocols: [question_in_prefill, question_after_compress]
contexts: $1
questions: 2
policies: [full, quest, snapkv, random]
budgets: [16, 64]
exclude: [{policy: [snapkv, random], budget: 16}, {policy: quest, budget: 16, length: 320}]
EOF
}

run_sweep() {
    "$program" sweep --threads 1 --quiet "$@"
}

# Lines of a log, as far as they are whole.
lines_of() {
    zstd -dcq "$1" 2>/dev/null || true
}

# The same, without what differs between two runs of the same sweep (run ids, times), sorted.  Run
# records are left out, and what a cell had before it was finished.
results_of() {
    lines_of "$1" | grep -vE '"kind":"(run|partial)"' |
        sed -E 's/"(run|t_end)":"[^"]*",?//g
                s/"(wall_ns|prefill_ns|wall_s|prefill_s|prefill_tok_per_s)":[^,}]*,?//g' | LC_ALL=C sort
}

# groups_of LOG: where its commits begin, in bytes (a header: the frame's magic and the marker of log_frame.c)
groups_of() {
    LC_ALL=C grep -obUaP '\x50\x2a\x4d\x18\x58\x00\x00\x00\x9c\x4b\x76\x6c' "$1" | LC_ALL=C cut -d : -f 1
}

# eventually COMMAND...: waits until it succeeds.  A test that gets to the end of these minutes has found something that
# hangs, not a slow machine.
eventually() {
    local end=$((SECONDS + 600))
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.02
    done
}

gone() { ! kill -0 "$1" 2>/dev/null; }
# something_in LOG PID: it has a commit, or the process that should write it is gone
something_in() { [ -s "$1" ] || gone "$2"; }

# Samples that stand more than once.
repeated_samples() {
    lines_of "$1" | grep '"kind":"sample"' |
        sed -E 's/.*"cell":"([^"]*)","context":([0-9]*),"question":([0-9]*).*/\1 \2 \3/' |
        LC_ALL=C sort | uniq -d
}

repeated_cells() {
    lines_of "$1" | grep -E '"kind":"(cell|speed|error)"' |
        sed -E 's/.*"cell":"([^"]*)".*/\1/' | LC_ALL=C sort | uniq -d
}

# What vicuna's prompts begin with, and its template.
system="A chat between a curious user and an artificial intelligence assistant. The assistant gives helpful, \
detailed, and polite answers to the user's questions."
vicuna="{% for m in messages %}{% if m.role == 'system' %}{{ m.content + ' ' }}{% elif loop.first \
%}$system {% endif %}{% if m.role == 'user' %}USER: {{ m.content }} ASSISTANT:{% elif m.role == 'assistant' %} {{ m.content + eos_token \
}}{% endif %}{% endfor %}"

# with_template IN OUT TEXT: the file with tokenizer.chat_template as its first key.  What is put in is a
# multiple of 32 bytes, so that all else keeps its alignment.
with_template() {
    local n=$((${#3} + 4)) keys # a comment of spaces behind it
    while [ $(((43 + n) % 32)) != 0 ]; do n=$((n + 1)); done
    keys=$(od -An -tu1 -j16 -N1 "$1" | tr -d ' ')
    [ "$keys" -lt 255 ] || fail "too many keys in $1"
    {
        head -c 16 "$1"
        printf "\\x$(printf %x $((keys + 1)))"
        head -c 24 "$1" | tail -c 7
        printf '\x17\0\0\0\0\0\0\0tokenizer.chat_template\x08\0\0\0'
        printf "\\x$(printf %x $((n % 256)))\\x$(printf %x $((n / 256)))\0\0\0\0\0\0%-$((n - 2))s#}" "$3{#"
        tail -c +25 "$1"
    } >"$2"
}
