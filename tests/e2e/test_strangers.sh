#!/usr/bin/env bash
# test_strangers.sh - nothing in a file from a stranger can act: markup, terminal escapes, formulas, commands and paths
# in every string of every kind of record, of a model and of a sweep, through every command that shows them.
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1")
source_dir=$(realpath "$2")
. "$(dirname "${BASH_SOURCE[0]}")/sweep_lib.sh"
. "$(dirname "${BASH_SOURCE[0]}")/fake_log.sh"
cd "$work"
zst() { zstd -q -f -o "$1"; }
fake_contexts=2 fake_group=passkey-question_in_prefill-1024

# ---- a log with every kind of record ----------------------------------------------------------------

for i in $(seq 1 40); do printf 'The river of %d was long, and the key is %d. ' $((i * 37 % 101)) $((i * 53 % 997)); done >text.txt
"$program" run -m "$model" --threads 1 --quiet --text text.txt --length 120 --contexts 1 --policy full,quest --budget 48 \
    --task perplexity:tokens=20 --log real.zst 2>err || fail "perplexity"
run_sweep <(sweep_file 1) --set 'quality={questions: 1, steps: 2, top: [1, 10]}' --set lengths=256 --set budgets=16 --set 'tasks=[{task: passkey, keys: 2}]' \
    --set 'exclude=[]' --set 'policies=[full, quest]' --log real.zst 2>err || fail "quality"
"$program" analyze -m "$source_dir/datasets/model/kvlab-tiny.gguf" mass --threads 1 --task passkey --length 120 --contexts 1 \
    --out real.zst >said 2>err || fail "analyze"
{ fake_log; lines_of real.zst; } >clean.jsonl
jq -nc '{schema:"kvlab/1", kind:"error", run:"5eed", cell:"lost", key:"k", task:"passkey", policy:"quest", status:"a policy broke its contract", message:"quest: select: 7 rows"}' >>clean.jsonl
equal "kinds of records" "analysis cell error nll perplexity quality run sample speed" \
    "$(jq -r .kind clean.jsonl | sort -u | xargs)"

# ---- what acts ----------------------------------------------------------------------------------------

esc=$(printf '\033')
evil="=1+1;\"'><zz onerror=a>|\\\\input{zz}\`touch ran\`\$zz_\$[zz](javascript:zz)${esc}]0;zz${esc}[2J\\u009b31m\\u0007\\u202ezz\\r\\nFORGED zz/../../../zz"
printf '%s' "\"${evil//\"/\\\"}\"" | sed "s/$esc/\\\\u001b/g" >evil.json
jq -e 'type == "string"' evil.json >seen || fail "the payload is no JSON"

# Names of kinds, runs and cells hold the log together; of the rest every string is one of a stranger.
poison='def keep: ["kind","schema"]; def kept: ["run","cell","protocol","exec","prefill"];
    def bad: if type == "string" then . + $evil elif type == "array" then map(bad)
        elif type == "object" then with_entries(.key as $k | .value |= (if keep + kept | index([$k]) then . else bad end)) else . end;'
jq -c --slurpfile e evil.json "\$e[0] as \$evil | $poison bad" clean.jsonl | zst evil.zst
# The names that hold it together, and names of members.
jq -c --slurpfile e evil.json '$e[0] as $evil | with_entries(.value |= (if type == "string" then . + $evil else . end))
    | if .kind | startswith("run") then . else . end' clean.jsonl | zst ends.zst
jq -c --slurpfile e evil.json '$e[0] as $evil | .method = {($evil): 1} | .notes = {($evil): 1} | .sub = {($evil): {p: 1}}
    | if .kind == "run" then .kvlab.git = $evil | .t_start = "\"onload=a " + $evil else . end' clean.jsonl | zst names.zst

# harmless FILE MEDIUM: no control character but line feeds and tabs, no turned text, and what the medium acts on
harmless() {
    local acts='[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]|\r(?!$)|\xc2[\x80-\x9f]|\xe2\x80[\xaa-\xae]'
    case $2 in *jsonl*) acts='[\x00-\x1f]' ;; esac # JSON has its own escapes, and keeps what is no ASCII
    ! LC_ALL=C grep -aqP "$acts" "$1" ||
        fail "$2: control characters: $(LC_ALL=C grep -aP "$acts" "$1" | head -n 1 | cat -v | cut -c 1-300)"
    # A field of a CSV has lines where an answer has; it is in quotes.
    case $2 in export*csv*) ;; *) ! grep -q '^FORGED' "$1" || fail "$2: a string began a line" ;; esac
}
# shown WHAT COMMAND...: runs it; what it says is harmless whether it works or not
shown() {
    local what=$1 rc=0
    shift
    "$program" "$@" >out.txt 2>err.txt || rc=$?
    [ $rc -lt 64 ] || fail "$what: exit code $rc: $(head -n 3 err.txt | cat -v)"
    harmless out.txt "$what"
    harmless err.txt "$what"
}
markdown() { ! grep -qE '(^|[^\\])(`|\[zz)|<zz' out.txt || fail "$1: Markdown: $(grep -E '(^|[^\\])(`|\[zz)|<zz' out.txt | head -n 1)"; }
latex() { ! sed 's/^%.*//' out.txt | grep -qE '\\input|(^|[^\\])[$_]' || fail "$1: LaTeX: $(sed 's/^%.*//' out.txt | grep -E '\\input|(^|[^\\])[$_]' | head -n 1)"; }
html() { ! grep -qE "<zz|'><|onload=a \"|\"onload" "$2" || fail "$1: HTML: $(grep -oE ".{60}(<zz|'><|\"onload).{20}" "$2" | head -n 1)"; }
formulas() { ! LC_ALL=C grep -qE '(^|,)"?[=+@]' out.txt || fail "$1: a formula: $(LC_ALL=C grep -oE '(^|,)"?[=+@].{40}' out.txt | head -n 1)"; }

for log in evil.zst ends.zst names.zst; do
    shown "report $log" report $log
    for flag in --summary --method --stages --evidence --quality '--by length' '--vs full'; do
        # shellcheck disable=SC2086
        shown "report $flag $log" report $flag $log
        # shellcheck disable=SC2086
        shown "report $flag markdown $log" report $flag --format markdown $log && markdown "report $flag $log"
        # shellcheck disable=SC2086
        shown "report $flag latex $log" report $flag --format latex $log && latex "report $flag $log"
    done
    shown "status $log" status $log
    shown "inspect $log" inspect $log
    shown "log check $log" log check $log
    shown "compare $log" compare full quest $log
    shown "compare logs $log" compare $log real.zst
    for format in markdown latex csv html; do shown "compare $format $log" compare --format $format full quest $log; done
    for kind in cell sample speed curve quality analysis; do
        for format in tsv jsonl csv; do shown "export $kind $format $log" export --kind $kind --format $format $log; done
        formulas "export $kind $log"
    done
    shown "html $log" report --html page.html $log && html "$log" page.html && rm page.html
    shown "site $log" report --html site/ $log && for page in site/*.html; do html "$log" "$page"; done
    for figure in accuracy_budget length_curve; do shown "plot $figure $log" plot $figure $log --out figures --format svg; done
    [ ! -e ran ] && [ ! -e figures/ran ] || fail "plot $log: a command was run"
    ! cat figures/*.svg 2>/dev/null | grep -q '<zz' || fail "plot $log: markup in a picture"
done

# ---- paths ---------------------------------------------------------------------------------------------

for bad in ../../zz /tmp/../zz .. . '' '..%2fzz' "a/$(printf '%0300d' 0)"; do
    jq -c --arg name "$bad" 'if .kind == "run" then .model.name = $name
        elif .kind == "sample" then .row = {set: $name, answers: ["1"], all_classes: null, length: 1} else . + {task: (if .task then "longbench" else null end)} end' clean.jsonl | zst paths.zst
    mkdir -p deep/er
    (cd deep/er && "$program" export --as longbench --out out ../../paths.zst >../../said 2>../../err) || fail "export --as, $bad: $(cat err)"
    [ "$(find deep -name '*.jsonl' | grep -vc '^deep/er/out/[^/]*/[^/]*/[^/]*$')" = 0 ] || fail "export --as wrote outside: $(find deep -name '*.jsonl')"
    [ -n "$(find deep/er/out -name '*.jsonl')" ] || fail "export --as, $bad: nothing written"
    find . -newer paths.zst -name '*zz*' | grep -v '^./deep/er/out/' >elsewhere || true
    equal "files elsewhere, $bad" "" "$(cat elsewhere)"
    rm -r deep
done

# ---- a model and a sweep --------------------------------------------------------------------------------

printf 's/kvlab-test/\\x1b[2J\\nFOR\\r\\x07/g; s/apache-2.0/\\x1b]0;\\n\\x07<zzz/' >change
sed -b -f change "$model" >evil.gguf
cmp -s "$model" evil.gguf && fail "the model was not changed"
equal "bytes of the model" "$(wc -c <"$model")" "$(wc -c <evil.gguf)"
shown "inspect model" inspect evil.gguf
shown "inspect --all" inspect --all evil.gguf
shown "tokenize --info" tokenize -m evil.gguf --info
sweep_file 1 | sed "s|^model:.*|model: evil.gguf|; s|^name:.*|name: \"zz\\\\e[2J\\\\nFORGED\\\\a\"|" >evil.yaml
evil=(--set lengths=256 --set budgets=64 --set 'tasks=[{task: passkey, keys: 2}]' --set 'policies=[full, snapkv]')
shown "sweep" sweep evil.yaml "${evil[@]}" --threads 1 --log swept.zst
shown "run" run -m evil.gguf --task passkey --length 256 --contexts 1 --policy full --threads 1 --log ran.zst
shown "dry run" sweep evil.yaml "${evil[@]}" --threads 1 --dry-run --quiet
for command in report status inspect export; do shown "$command swept" $command swept.zst; done
shown "html swept" report --html page.html swept.zst && html swept page.html
shown "unknown" report "$(printf 'no\033[2J\nFORGED')"
shown "unknown option" run -m evil.gguf --task "$(printf 'no\033[2J\nFORGED')"

# ---- files ------------------------------------------------------------------------------------------------

# A link is written through, a pipe and a device are written to; the name beside a file that others could guess is not used.
echo mine >precious
ln -s precious page.html.part
ln -s target link.html
mkfifo pipe.html
cat pipe.html >piped &
for to in page.html link.html pipe.html /dev/null; do
    "$program" report --html $to real.zst >said 2>err || fail "report --html $to: $(cat err)"
done
wait $!
equal "what a link leads to" mine "$(cat precious)"
[ -h link.html ] && [ -s target ] || fail "a link was replaced"
[ -p pipe.html ] && grep -q '</html>' piped || fail "a pipe was replaced"
[ -c /dev/null ] || fail "a device was replaced"
rm page.html.part
printf old >kept.csv && chmod 640 kept.csv
"$program" export --out kept.csv real.zst && equal "rights of a file" 640 "$(stat -c %a kept.csv)"
rc=0
"$program" export --kind cell --out kept.csv no.zst 2>err || rc=$?
equal "exit code without a log" 2 $rc
grep -q '^cell,' kept.csv || fail "a file was lost for an error"
equal "names that are left" "" "$(find . -name '.part*')"
