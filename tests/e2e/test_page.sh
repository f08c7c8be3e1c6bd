#!/usr/bin/env bash
# test_page.sh - report --html: the page has the numbers of the log, needs nothing beside it, and works in a
# browser (Chromium, where there is one).
#   $1 the program   $2 the sources
set -euo pipefail
program=$(realpath "$1") sources=$(realpath "$2")
. "$sources/tests/e2e/fake_log.sh"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

fail() {
    echo "test_page: $*" >&2
    exit 1
}
contains() { grep -qF -- "$2" "$3" || fail "$1: no \"$2\" in $3"; }
lacks() { ! grep -qE -- "$2" "$3" || fail "$1: \"$2\" in $3"; }

# A message and a label of characters that HTML takes for its own.
fake_log > log.jsonl
jq -nc '{kind:"error",schema:"kvlab/1",run:"5eed",cell:"00ff",policy:"quest",status:"EPOLICY",message:"page <b> & \"c\""}' >> log.jsonl
zstd -qf -o log.zst < log.jsonl
"$program" report log.zst --html new/page.html > out
[ "$(cat out)" = new/page.html ] || fail "it does not name the file it wrote"
[ ! -e new/page.html.part ] || fail "a part of the page is left"
page=new/page.html

# ---- what it says --------------------------------------------------------------------------------
contains "a message is text" 'page &lt;b&gt; &amp; &quot;c&quot;' $page
lacks "nothing is loaded" '(src|href)="?(https?:)?//' $page
for policy in full quest snapkv h2o streaming_llm random oracle; do
    contains "card of $policy" "<details class=card id=\"method-$policy\">" $page
done
# Every cell stands in the page under its id, and in the row the accuracy that the log has.
jq -r 'select(.kind == "cell") | "\(.cell) \(.official.p)"' log.jsonl > cells
[ "$(grep -c '<td><code>' $page)" = "$(wc -l < cells)" ] || fail "not as many cells as the log has"
while read -r id p; do
    row=$(grep -F "<code>$id</code>" $page) || fail "cell $id is not in the page"
    shown=$(grep -oE 'class=share style="[^"]*" data-v="[^"]*"' <<< "$row" | head -1 | grep -oE 'v="[^"]*' | cut -c4-)
    jq -en --argjson a "$p" --argjson b "$shown" '($a - $b | fabs) < 1e-8' > same ||
        fail "cell $id: accuracy $shown, the log has $p"
done < <(shuf -n 12 --random-source=<(yes) cells)
# The headline pools: quest at 256, over both tasks and protocols and all lengths.
want=$(jq -s '[.[] | select(.kind == "cell" and .policy == "quest" and .budget == "256")]
    | (map(.official.p * .n) | add) / (map(.n) | add)' log.jsonl)
got=$(grep -m1 -A1 'href="#method-quest">quest</a></th><td data-v="256">' $page |
    grep -oE 'class=share style="[^"]*" data-v="[^"]*"' | head -1 | grep -oE 'v="[^"]*' | cut -c4-)
jq -en --argjson a "$want" --argjson b "$got" '($a - $b | fabs) < 1e-8' > same ||
    fail "quest at 256: $got in the headline, want $want"
# Quest reads budget / length and its bounds of what full reads: 4096 and 2048 / 16 bytes per token.
want=$(jq -s '[.[] | select(.kind == "cell" and .policy == "quest" and .budget == "256")]
    | 100 * (map((.kv_read_bytes_per_tok + .index_read_bytes_per_tok) * .n) | add) / (map(.length_tok * 4096 * .n) | add)' log.jsonl)
grep -m1 'href="#method-quest">quest</a></th><td data-v="256">' $page |
    grep -oE '<td data-v="[^"]*"' | cut -d'"' -f2 > numbers
jq -en --argjson a "$want" --slurpfile b numbers '[$b[] | (. - $a | fabs) < 1e-5] | any' > same ||
    fail "quest at 256 reads $(tr '\n' ' ' < numbers), want a $want among them"

# ---- a task of benchmark files ---------------------------------------------------------------------
lacks "a task that is not official" '<b>(not official|evidence lost|no context)</b>' $page
jq -c 'if .kind == "cell" and .task == "passkey" then .not_official = "a < b" | .evidence.lost = 3 else . end' log.jsonl > files.jsonl
jq -c 'select(.kind == "cell" and (.cell | test("^passkey-question_in_prefill-4096-full-")))
    | .not_official = "a < b" | .cell = "00aa" | .task_options = "control=no_context" | .official.p = 0.125' log.jsonl >> files.jsonl
zstd -qf -o files.zst < files.jsonl
"$program" report files.zst --html files.html > out
for what in "not official</b>, a score of kvlab's: a &lt; b" 'evidence lost</b>: of 3 questions' 'no context</b>: asked without it, whatever the policy, 12.5 %'; do
    contains "of benchmark files" "$what" files.html
done
"$program" export files.zst --format jsonl | jq -s 'map(select(.task == "passkey" and .cell != "00aa" and .length_tok == 4096))
    | (map(.not_official == "a < b" and .evidence_lost == 3) | all), (map(.no_context) | unique == [0.125])' | xargs > said
[ "$(cat said)" = "true true" ] || fail "not official, lost, no_context in the export: $(cat said)"

# ---- several logs are a site ----------------------------------------------------------------------
jq -c 'select(.kind == "run" or .policy == "quest" or .policy == "full")' log.jsonl | zstd -q -o part.zst
mkdir other && cp part.zst other/log.zst
"$program" report log.zst part.zst other/log.zst --html site/ > out
[ "$(xargs < out)" = "site/log.html site/part.html site/log-2.html site/index.html" ] || fail "a site: $(cat out)"
lacks "nothing is loaded by the index" '(src|href)="?(https?:)?//' site/index.html
for file in log part log-2; do
    contains "a page of the index" "<a href=\"$file.html\">" site/index.html
    contains "the way back" '<a href="index.html">All logs</a>' site/$file.html
done
# The name of a page is a URL: a '#' or ':' in it led elsewhere.  What a run says of its time is text.
mkdir names && jq -c 'if .kind == "run" then .t_start = "<b>&" else . end' log.jsonl | zstd -q -o 'names/a:b#1 é%.zst'
cp part.zst 'names/a-b-1----.zst'
"$program" report names/* --html names/site/ > out
[ "$(LC_ALL=C sort out | xargs)" = "names/site/a-b-1-----2.html names/site/a-b-1----.html names/site/index.html" ] ||
    fail "names of pages: $(cat out)"
contains "a link of plain bytes" '<a href="a-b-1-----2.html">' names/site/index.html
contains "the log as it is named" 'names/a:b#1 é%.zst</a>' names/site/index.html
contains "the time of a run is text" '<td>&lt;b&gt;&amp;</td>' names/site/index.html
# Links lead somewhere; every share of a page with cells is one, but in the cells themselves and in the
# column "all".
for file in site/index.html $page; do
    grep -oE 'href="#[^"]*"' $file | sort -u | sed 's/href="#//; s/"//' | while read -r id; do
        grep -qE "id=\"?$id[\" >]" $file || fail "$file links to #$id, which is not there"
    done
done
grep -v '<td><code>' $page | grep -oE 'data-v="[^"]*">(<a href="[^"]*">)?[0-9.]+(</a>)? <small>' > links
[ "$(grep -c '<a href="#m1-t' links)" -gt 50 ] || fail "numbers that do not link to their cells"
shares() { sed -n '/<table class=sort>/,/<\/table>/p;/<\/table>/q' $page | grep '^<tr><th scope=row'; }
all=$(shares | grep -cE '^[^%]*</td><td class=share style="[^"]*" data-v="[^"]*">[0-9]')
[ "$(grep -vc '<a href="#m1-t' links)" = "$all" ] || fail "shares that do not link: $(grep -vc '<a href="#m1-t' links), the column \"all\" has $all"
# A method is one entry of a legend, and has one colour in all charts, whatever the order of the rows.
grep -oE '<ul class=legend>.*</ul>' site/index.html > legends
[ "$(wc -l < legends)" -ge 2 ] || fail "the index has $(wc -l < legends) charts"
while read -r legend; do
    grep -oE '</i>[^<]*' <<< "$legend" | sort | uniq -d > twice
    [ ! -s twice ] || fail "twice in a legend: $(cat twice)"
done < legends
grep -oE '<li class="c[0-9][^<]*<i class=[a-z]*></i>[^<]*' legends | sed -E 's/.*class="(c[0-9]).*<\/i>(.*)/\2 \1/' | sort -u |
    cut -d ' ' -f 1 | uniq -d > twice
[ ! -s twice ] || fail "several colours of $(xargs < twice)"
# A column that no row has is not there, and the page says why.
contains "why there is no recall" 'No recall: the log has no samples.' site/part.html
lacks "recall without a value" 'title="share of the evidence attended' site/part.html
contains "recall" 'title="share of the evidence attended' $page
# The rows of the index come by accuracy.
grep -oE '</th><td data-v="[^"]*">[^<]*</td><td class=share style="[^"]*" data-v="[^"]*"' site/index.html |
    grep -oE '[0-9.e-]+"$' | tr -d '"' > shares
[ "$(wc -l < shares)" -ge 20 ] || fail "the leaderboard has $(wc -l < shares) rows"
sort -grc shares || fail "the leaderboard is not in the order of accuracy"

# ---- wrong input ---------------------------------------------------------------------------------
rc=0; "$program" report log.zst --html page.html --summary > out 2> err || rc=$?
[ $rc = 2 ] && [ "$(wc -l < err)" = 1 ] || fail "--html with --summary: exit $rc, $(cat err)"
touch file
rc=0; "$program" report log.zst --html file/page.html > out 2> err || rc=$?
[ $rc != 0 ] && [ "$(wc -l < err)" = 1 ] || fail "a folder that is a file: exit $rc, $(cat err)"

rc=0; "$program" report log.zst nosuch.zst --html site/ > out 2> err || rc=$?
[ $rc = 2 ] && [ "$(wc -l < err)" = 1 ] || fail "a site of a log that is not there: exit $rc, $(cat err)"
rc=0; "$program" report log.zst --html file/ > out 2> err || rc=$?
[ $rc != 0 ] && [ "$(wc -l < err)" = 1 ] || fail "a site in a file: exit $rc, $(cat err)"

# ---- in a browser --------------------------------------------------------------------------------
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$browser" ]; then
    echo "test_page: no Chromium: sorting and the console were not looked at"
    exit 0
fi
in_browser() { # in_browser PAGE
    local page=$1
sed '$d' $page > try.html
tail -n 1 $page | sed 's,</body></html>,,' >> try.html
cat >> try.html <<'END'
<script>
const table = document.querySelector("table.sort"), heads = table.tHead.rows[0].cells;
const column = [...heads].findIndex(h => h.textContent.startsWith("all"));
const shown = () => [...table.tBodies[0].rows].map(r => Number(r.cells[column].dataset.v));
const sorted = (x, f) => x.every((v, i) => i === 0 || f(x[i - 1], v));
heads[column].querySelector("button").click();
const down = sorted(shown(), (a, b) => a >= b);
heads[column].querySelector("button").click();
const up = sorted(shown(), (a, b) => a <= b);
document.body.dataset.test = `rows ${table.tBodies[0].rows.length} down ${down} up ${up} ` +
  `series ${document.querySelectorAll("g.serie").length > 0}`;
</script></body></html>
END
"$browser" --headless --no-sandbox --disable-gpu --enable-logging=stderr --v=0 --virtual-time-budget=2000 \
    --user-data-dir="$dir/profile" --dump-dom "file://$dir/try.html" > dom 2> console || fail "the browser: $(tail -3 console)"
grep -oE 'data-test="[^"]*"' dom > said || fail "the script did not end: $(grep CONSOLE console | head -3)"
rows=$(grep -o 'data-test="rows [0-9]*' said | grep -oE '[0-9]+$')
[ "$(cat said)" = "data-test=\"rows $rows down true up true series true\"" ] || fail "in the browser: $(cat said)"
[ "$rows" -ge 20 ] || fail "the headline has $rows rows"
if grep -E 'CONSOLE' console | grep -v DevTools; then fail "the console says that"; fi
}
in_browser $page
in_browser site/index.html
