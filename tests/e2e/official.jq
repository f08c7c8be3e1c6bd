# official.jq - what the scorers of benchmarks make of a file of predictions, by the rules of their scripts: which fields
# they read, of which types, and what they give for each.  Input: rows (jq -s); $form: the benchmark, $task: its task.
# What such a script would end with an error for is an error here, but for what counts as 0 in kvlab (`dies`).
# ROUGE and how alike code is are told of equal texts and of those that have no word in common.

def dies: 0;
def strip: sub("^\\s+"; "") | sub("\\s+$"; "");
def words: [splits("\\s+")] | map(select(. != ""));
def letters: explode | map([.] | implode);
def truth: if . then 1 else 0 end;
def mean: add / length;
# for x in label
def each: if type == "array" then . elif type == "string" then letters else error("\(type) is gone through") end;
def texts: each | if all(type == "string") then . else error("no text in \(.)") end;
def marks($chars): reduce ($chars | letters[]) as $c (.; split($c) | join(" "));
def squeeze: gsub("  +"; " ");
def bag: reduce .[] as $w ({}; .[$w] += 1);
def f1($p; $g): ($p | bag) as $x | ($g | bag) as $y
    | ([$x | keys[] | [$x[.], ($y[.] // 0)] | min] | add // 0) as $n
    | if $n == 0 then 0 else ($n / ($p | length)) as $a | ($n / ($g | length)) as $b | 2 * $a * $b / ($a + $b) end;
def best(f): map(f) | max // 0;
def squad: ascii_downcase | gsub("[!-/:-@\\[-`{-~]"; "") | gsub("\\b(a|an|the)\\b"; " ") | words;
def chinese: ascii_downcase | gsub("[!-/:-@\\[-`{-~！？。，、；：（）《》「」“”]"; "") | words | join("") | letters;
def alike($p; $g): ($p | ascii_downcase | [scan("[a-z0-9]+")]) as $a | ($g | ascii_downcase | [scan("[a-z0-9]+")]) as $b
    | if $p == $g and $a != [] then 1
      elif [$a[] | select(. as $w | $b | index([$w]))] == [] then 0
      else error("not told: \($p) beside \($g)") end;
def numbers: [scan("[0-9]+")];

# ---- InfiniteBench, and SCBench, which has its scorers ------------------------------------------------------------
def first_of: if type == "array" then .[0] else . end;
def first_int($p; $l): (($p | numbers)[0] // "") == ($l | first_of) | truth;
def kv_words($p; $l): $p | marks("\n:\"'.,?!{}") | words | index([$l]) != null | truth;
def dialogue($p; $l): ($l | each | .[0]) as $w
    | $p | marks("\n:\"'.,?!{}") | words | map(ascii_upcase) | index([$w]) != null | truth;
def is_in($l): . as $x | if ($l | type) == "array" then $l | index([$x]) != null else $l | contains($x) end;
def choice_behind($p; $l): [["answer is:", "answer:", "answer is", "option is"][] | . as $x | ($p | index($x)) as $at
        | select($at != null) | $p[$at + ($x | length) + 1:]] as $found
    | if $found == [] then [$p | words[] | select(. as $w | "ABCD" | contains($w))] | .[0] as $w
          | if $w then $w | is_in($l) | truth else 0 end
      else $found[0] as $behind | [$l | texts[] | select(. as $s | $behind | startswith($s))] != [] | truth end;
def choice($p; $l): ($p | strip) as $s
    | if $s == "" then 0 elif "ABCD" | contains($s[0:1]) then $s[0:1] | is_in($l) | truth
      elif $s | is_in($l) then 1 else choice_behind($s | marks("\n\"'.,?!{}") | squeeze; $l) end;
def whole_text: test("^[+-]?[0-9]+(_[0-9]+)*$");
def code_run($p; $l): ($p | strip | marks("\n.`'\":") | words | last // "x") as $w
    | if $w | whole_text then ($w | gsub("_|^[+]"; "") | tonumber) == ($l | first_of) | truth else 0 end;
def code_debug($p; $l): ($p | strip) as $s
    | if $s[0:2] == $l[1] + "." or $s[0:2] == $l[1] + ":" then 1
      else ($s | marks("\n`'\"-*") | gsub("[Oo]ption"; " ") | squeeze) as $c
          | [["answer is:", "is:", "answer:", "correct option is:"][] | . as $x | ($c | index($x)) as $at
              | select($at != null) | $c[$at + ($x | length) + 1:]]
          | .[0] // "" | (startswith($l[1]) or startswith($l[0])) | truth end;
def find_number: [scan("[0-9]+\\.[0-9]+|[0-9]+")][0];
def math_find($p; $l; $cut): ($l | first_of) as $g | ($p | find_number) as $x
    | if ($g | type) != "number" then dies elif $x == null then 0
      elif ($g | floor) != $g then ($x | tonumber) == $g | truth
      elif ($x | contains(".")) and ($cut | not) then dies
      else ($x | tonumber | floor) == $g | truth end;
def math_calc($p; $l): (if $l[0] | type == "array" then $l[0] else $l end) as $g | ($p | numbers | map(tonumber)) as $n
    | [range($g | length) | select($g[0:. + 1] == $n[0:. + 1])] | length / ($g | length);
def match_all($p; $l): [$l | texts[] | . as $r | $p | ascii_downcase | contains($r | ascii_downcase) | truth] | mean;
def in_upper($p; $l): [$l | texts[] | . as $r | $p | ascii_upcase | contains($r | ascii_upcase)] | any | truth;
def kv_in($p; $l): if $l | type == "string" then $p | contains($l) | truth else dies end;
def summary($p; $l): $l | if type == "array" then . else [.] end | best(alike($p; .));

def infinitebench($task): .prediction as $p | .ground_truth as $l
    | if .id | type != "number" then error("id \(.id)") else . end
    | if $task == "passkey" or $task == "number_string" then first_int($p; $l)
      elif $task == "kv_retrieval" then kv_words($p; $l)
      elif $task == "longdialogue_qa_eng" then dialogue($p; $l)
      elif $task == "longbook_choice_eng" then choice($p; $l)
      elif $task == "longbook_qa_eng" then $l | texts | best(f1($p | squad; . | squad))
      elif $task == "longbook_qa_chn" then $l | texts | best(f1($p | chinese; . | chinese))
      elif $task == "longbook_sum_eng" then summary($p; $l)
      elif $task == "code_run" then code_run($p; $l)
      elif $task == "code_debug" then code_debug($p; $l)
      elif $task == "math_find" then math_find($p; $l; false)
      elif $task == "math_calc" then math_calc($p; $l)
      else error("no task \($task)") end;

def scbench_one($task; $p; $l):
    if $task == "scbench_kv" or $task == "scbench_prefix_suffix" then kv_in($p; $l)
    elif $task == "scbench_vt" then match_all($p; $l) * 100 | round / 100
    elif $task == "scbench_qa_eng" or $task == "scbench_many_shot" then in_upper($p; $l)
    elif $task == "scbench_qa_chn" then $l | texts | best(f1($p | chinese; . | chinese))
    elif $task == "scbench_choice_eng" then choice($p; $l)
    elif $task == "scbench_mf" then math_find($p; $l; true)
    elif $task == "scbench_summary" then summary($p; $l)
    elif $task == "scbench_passkey" then first_int($p; $l)
    else error("no task \($task)") end;
# Rows with a task must have the file's; the script leaves others out.
def scbench($task): if .turn_idx | type != "number" then error("turn_idx") else . end
    | if $task == "repoqa" and ([.lang, .repo, .func_name, .ground_truth] | all(type == "string") | not)
      then error("repoqa without lang, repo, func_name") else . end
    | if .task and $task != "summary_with_needles" and $task != "repoqa_and_kv"
      then error("No prediction found for \($task)") else . end
    | scbench_one(.task // "scbench_" + $task; .prediction; .ground_truth);

# ---- RULER -----------------------------------------------------------------------------------------------------------
def ruler($task): if (.others | type) != "object" then error("others has no get") else . end
    | if has("index") | not then error("index") else . end
    | (.pred | strip | gsub("[\u0001-\u001f]"; "\n") | strip) as $p | .outputs as $l
    | if $task | startswith("qa_") then
          [$l | texts[] | . as $r | $p | ascii_downcase | contains($r | ascii_downcase)] | any | truth
      else match_all($p; $l) end;

# ---- LongBench -------------------------------------------------------------------------------------------------------
def share($p; $want): ($p | numbers) as $n
    | if $n == [] then 0 else ([$n[] | select(. == $want)] | length) / ($n | length) end;
def classification($p; $g; $classes): [$classes[] | select(. as $c | $p | contains($c))] as $named
    | ([range($named | length)] | reduce .[] as $i ({list: $named, at: 0};
          if .at >= (.list | length) then . else .list[.at] as $c
          | if ($g | contains($c)) and $c != $g then .list = (.list | del(.[index([$c])])) else . end
          | .at += 1 end) | .list) as $left
    | if $left | index([$g]) then 1 / ($left | length) else 0 end;
def longbench($task):
    (if ["trec", "triviaqa", "samsum", "lsht"] | index([$task]) then .pred | sub("^\n+"; "") | split("\n")[0] // "" else .pred end) as $p
    | .all_classes as $classes
    | .answers | if $task == "passage_count" then each else texts end
    | if $task == "passage_count" then best(share($p; tostring))
      elif $task == "passage_retrieval_en" then best(share($p; [scan("Paragraph ([0-9]+)")][0][0]))
      elif $task == "passage_retrieval_zh" then best(share($p; [scan("段落([0-9]+)")][0][0]))
      elif $task == "trec" or $task == "lsht" then best(classification($p; .; $classes))
      elif ["gov_report", "qmsum", "multi_news", "samsum", "lcc", "repobench-p"] | index([$task]) then best(alike($p; .))
      else best(f1($p | squad; squad)) end;

def score: if $form == "infinitebench" then infinitebench($task) elif $form == "scbench" then scbench($task)
    elif $form == "ruler" then ruler($task) elif $form == "longbench" then longbench($task) else error("form \($form)") end;
map(score) | mean * 1000000 | round / 10000
