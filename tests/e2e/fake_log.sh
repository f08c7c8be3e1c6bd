# fake_log.sh - a log as a sweep would write it, made without the program: JSON lines by jq, frames
# by zstd.  Sourced by the tests of report, export and plot, whose numbers they can so check.
#
# fake_log [JQ EXPRESSION]     prints the lines of the log; the expression (default .) edits each record
# fake_cells [JQ EXPRESSION]   the same without its samples, of which there are many
#
# 2 tasks x 2 protocols x 3 lengths, 7 policies, 4 budgets, $fake_contexts contexts of 2 questions; with
# $fake_group (TASK-PROTOCOL-LENGTH) of that group alone.  Accuracy rises with log2(budget / length) at a rate
# that depends on the policy; which questions are right follows from a fixed sequence, so that every run gives
# the same file.
fake_contexts=5
fake_group=
fake_log() {
    # Made once per folder: that takes longer than an edit.
    [ -s .fake_log ] || fake_log_make > .fake_log
    jq -c "${1:-.}" .fake_log
}

fake_cells() {
    [ -s .fake_cells ] || fake_log 'select(.kind != "sample")' > .fake_cells
    jq -c "${1:-.}" .fake_cells
}

fake_log_make() {
    jq -nc --argjson n_contexts "$fake_contexts" --arg group "$fake_group" '
      def policies: [["full",9,0],["quest",4.6,1],["snapkv",3.4,1],["h2o",2.2,1],
                     ["streaming_llm",1,1],["random",0.2,1],["oracle",7.5,1]];
      def lengths: [1024,4096,16384];
      def budgets: [64,128,256,512];
      def n_questions: 2 * $n_contexts;
      # A number in 0 .. 1 that depends on its arguments alone.
      def noise($a;$b;$c): (($a*7919 + $b*104729 + $c*1299709 + 12345) * 16807 % 2147483647 / 2147483647);
      def logistic: 1 / (1 + (-.|exp));
      def share($p;$len;$budget;$task): if $p[2] == 0 then 0.98 else
          ((($budget/$len)|log2) + $p[1] + (if $task == "kv_retrieval" then -1 else 0 end)) | logistic end;
      def wilson($k;$n): 1.959963984540054 as $z | ($k/$n) as $p | ($z*$z/$n) as $q
          | (($p+$q/2)/(1+$q)) as $mid | ($z/(1+$q)*(($p*(1-$p)/$n + $q/(4*$n))|sqrt)) as $half
          | {k:$k, p:$p, lo:([0,$mid-$half]|max), hi:([1,$mid+$half]|min), n_eff:$n};
      def base: {schema:"kvlab/1", run:"5eed"};
      def point($p;$budget): {policy:$p[0], policy_version:1,
          options:(if $p[0]=="quest" then "page=16,dense_layers=2" elif $p[0]=="snapkv" then "window=\([16,$budget/4]|min)" else "" end),
          budget:(if $p[2]==0 then "-" else ($budget|tostring) end),
          budget_tok:(if $p[2]==0 then null else $budget end), exec:"real", prefill:"shared", device:"cpu"};
      def cost($p;$budget;$len): (if $p[2]==0 then $len else $budget end) as $b
          | {attended_tok:($b*1.0), dense_tok:(if $p[0]=="quest" then $len else null end),
             kv_read_bytes_per_tok:($b*4096), index_read_bytes_per_tok:(if $p[0]=="quest" then $len/16*2048 else 0 end)};
      def held($p;$budget;$len): (if $p[2]==0 or $p[0]=="quest" or $p[0]=="oracle" then $len else $budget end) as $b
          | {kv_logical_bytes:($b*4096), kv_physical_bytes:((($b+15)/16|floor)*16*4096),
             kv_own_bytes:(if $b==$len then 65536 else $b*4096 end), meta_bytes:(if $p[0]=="quest" then $len*256 else 0 end)};
      (base + {kind:"run", t_start:"2026-01-02T03:04:05Z", argv:["kvlab","sweep"],
        kvlab:{version:"0.1.0",git:"abc123def456",build:"Release",compiler:"GNU 12",sanitizers:""},
        machine:{host:"node1",cpu:"some cpu",cores:2,threads:2,isa:"avx2",ram_bytes:8589934592,os:"Linux"},
        model:{name:"tiny-8L",file:"tiny.gguf",hash:"00ff",bytes:1000000,n_layers:8,n_heads:8,n_kv_heads:4,head_dim:32,n_embd:256,n_vocab:512,context_tok:32768,tokenizer:"bpe",tokenizer_hash:"0f0f"},
        store:{kv_type:"f16",block_tok:16,chunk_tok:256,raw_keys:false},
        sweep:{name:"fake",file:"fake.yaml",hash:"aa",text:"..."}}),
      (policies[] as $p | lengths[] as $len | (if $p[2]==0 then [0] else budgets end)[] as $budget
       | (["passkey","kv_retrieval"][] as $task | ["question_after_compress","question_in_prefill"][] as $proto
          | "\($task)-\($proto)-\($len)-\($p[0])-\($budget)" as $id
          | select($group == "" or ($id | startswith($group + "-")))
          | ([range($n_contexts) as $c | range(2) as $q
              | {c:$c,q:$q,right:(noise($c;$q;$len) * 0.5 + noise($c;0;$budget+7) * 0.5 < (share($p;$len;$budget;$task)
                     + (if $proto=="question_in_prefill" then 0.05 else 0 end)))}]) as $answers
          | ($answers|map(select(.right))|length) as $k
          | ($answers[] | base + {kind:"sample", cell:$id, context:.c, question:.q, seed:"0x\(.c)", context_tok:$len,
              question_tok:12, joint:true, depth:0.5, gold:"4711", prediction:(if .right then "4711" else "12, \"x\"\nno" end), ids:[1,2],
              stop:"length", official:(if .right then 1 else 0 end), strict:(if .right and .c != 3 then 1 else 0 end),
              recall:(share($p;$len;$budget;$task)), lane_recall:[[(0.5 + share($p;$len;$budget;$task) / 2), share($p;$len;$budget;$task)]], n_new_tok:2, wall_ns:1.5e6, prefill_ns:1000000, error:null}
              + cost($p;$budget;$len) + held($p;$budget;$len)),
            (base + {kind:"cell", cell:$id, key:("key of "+$id), code:"abc123def456", task:$task, task_options:"", task_version:1,
              length_tok:$len, depth:null, protocol:$proto} + point($p;$budget) + {n:n_questions, n_contexts:$n_contexts, n_errors:0,
              official:wilson($k;n_questions), strict:wilson([$k-2,0]|max;n_questions),
              recall:{mean:share($p;$len;$budget;$task), lo:(share($p;$len;$budget;$task)*0.9), hi:([1,share($p;$len;$budget;$task)*1.1]|min)}}
              + cost($p;$budget;$len) + held($p;$budget;$len) + {chance:0.0001, prefill_tok_per_s:900.5, decode_tok_per_s:null,
              wall_s:1.5, t_end:"2026-01-02T03:05:05Z"})),
         (select(($group == "" or ($group | endswith("-\($len)"))) and ($p[0]|IN("random","oracle")|not) and ($p[2]==0 or $budget==256))
          | range(3) as $rep | (2e6 + (if $p[2]==0 then $len else $budget end)*300 + noise($rep;$len;1)*2e5 + (if $p[0]=="quest" then $len*20 else 0 end)|floor) as $step
          | base + {kind:"speed", cell:"speed-\($len)-\($p[0])-\($budget)-\($rep)", key:"k", code:"abc123def456"} + point($p;$budget)
            + {length_tok:$len, task:"passkey", task_options:"", task_version:1, repeat:$rep, threads:2, host:"node1", warmup_steps:4,
               step_ns:[$step,$step,$step+1000], prefill_ns:1000000000, attach_ns:1000, ttft_ns:(1000001000+$step), meta_ns:10, select_ns:20, attend_ns:30, evict_ns:40, rest_ns:50,
               decode_tok_per_s:(3/((3*$step+1000)/1e9)), prefill_tok_per_s:($len*1.0)} + cost($p;$budget;$len) + held($p;$budget;$len)
            + {weight_bytes_per_tok:2000000, rss_peak_bytes:123456789}))
    '
}
