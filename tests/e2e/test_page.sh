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

# ---- wrong input ---------------------------------------------------------------------------------
rc=0; "$program" report log.zst --html page.html --summary > out 2> err || rc=$?
[ $rc = 2 ] && [ "$(wc -l < err)" = 1 ] || fail "--html with --summary: exit $rc, $(cat err)"
touch file
rc=0; "$program" report log.zst --html file/page.html > out 2> err || rc=$?
[ $rc != 0 ] && [ "$(wc -l < err)" = 1 ] || fail "a folder that is a file: exit $rc, $(cat err)"

# ---- in a browser --------------------------------------------------------------------------------
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
if [ -z "$browser" ]; then
    echo "test_page: no Chromium: sorting and the console were not looked at"
    exit 0
fi
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
