"""Prints the tables and numbers of the model card's section Accuracy from the logs of card.sh.

    python3 datasets/model/train/card.py out/card

Scores and intervals are kvlab's own, by `kvlab export`; KVLAB=PATH takes that program instead of
build/kvlab.
"""
import argparse
import json
import math
import pathlib
import re
import subprocess
import sys

from program import KVLAB, want_kvlab

TWO_STAGE, TWO_STAGE_RANDOM = "`two_stage_retr`", "`two_stage_retr`, random keys"

# A row: what the card calls it, the task, and options that tell it from others of the task.
ROWS = [
    ("`passkey`, one key", "passkey", {"keys": "1"}),
    ("`passkey`, 8 named keys (26 from 8K on)", "passkey", {"keys": ("8", "26")}),
    ("`number_string`", "number_string", {}),
    ("`needle`, one fact", "needle", {"facts": "1", "language": "english"}),
    ("`needle`, one fact, German", "needle", {"facts": "1", "language": "german"}),
    ("`needle`, 8 facts (26 from 8K on)", "needle", {"facts": ("8", "26"), "language": "english"}),
    ("`needle`, 8 facts, German", "needle", {"facts": "8", "language": "german"}),
    ("`kv_retrieval`, 8 digits, all pairs", "kv_retrieval", {"uuid": "false"}),
    ("`kv_retrieval`, UUIDs", "kv_retrieval", {"uuid": "true"}),
    (TWO_STAGE, "two_stage_retr", {"keys": "consecutive", "answer": "cot"}),
    (TWO_STAGE_RANDOM, "two_stage_retr", {"keys": "random", "answer": "cot"}),
    ("`two_stage_retr`, direct", "two_stage_retr", {"answer": "direct"}),
]
RETRIEVAL = ["`passkey`, 8 named keys (26 from 8K on)", "`needle`, 8 facts (26 from 8K on)",
             "`kv_retrieval`, 8 digits, all pairs", "`kv_retrieval`, UUIDs"]
RULER = ["niah_multikey", "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe"]
SNAPKV = "card_snapkv.jsonl.zst"  # the log of the sweep of methods
USUAL_N = 104  # answers of a cell, which the table does not repeat
WIDE = 25  # up to so many contexts the interval of cells without a mistake is in the text, not in the table
LEAST_PERPLEXITY = 8.19  # of filler, by the choices of english.def


def export(logs, kind):
    if not logs:
        return []
    text = subprocess.run([KVLAB, "export", "--kind", kind, "--format", "jsonl", *map(str, logs)],
                          check=True, stdout=subprocess.PIPE, encoding="utf-8").stdout
    return [json.loads(line) for line in text.splitlines()]


def check_model(logs, cells):
    """A log that was gone on with after the model had changed holds cells of both."""
    models = {}
    for log in logs:
        # Of a log that an interruption cut off, what is whole counts, as for kvlab.
        text = subprocess.run(["zstdcat", str(log)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              encoding="utf-8").stdout
        for line in text.splitlines():
            if line.startswith('{"kind":"run"'):
                run = json.loads(line)
                models[run["run"]] = run["model"]["hash"]
    used = sorted({models.get(c["run"], "?") for c in cells})
    if len(used) > 1:
        sys.exit(f"card.py: logs of several models, {', '.join(used)}: card.sh --fresh begins anew")


def options_of(cell):
    return dict(part.split("=", 1) for part in cell["task_options"].split(","))


def percent(share):
    return math.floor(100 * share + 0.5)


def interval(cell, score):
    return f"{percent(cell[score + '_lo'])}-{percent(cell[score + '_hi'])}"


def right(cell):
    """Answers of a cell that are right as a whole."""
    return round(cell["n"] * cell["strict"])


def row_of(cell):
    o = options_of(cell)
    for name, task, want in ROWS:
        if cell["task"] == task and all(o[k] in v if isinstance(v, tuple) else o[k] == v for k, v in want.items()):
            return name
    return None


def placed(cells, row):
    """Cells by row and length."""
    out = {}
    for cell in cells:
        place = row(cell), int(cell["length_tok"])
        if place in out:
            sys.exit(f"card.py: {place[0]} at {place[1]} tokens is there twice: card.sh --fresh begins anew")
        out[place] = cell
    return out


def print_table(names, cells, text):
    lengths = sorted({length for _, length in cells})
    print("| task | " + " | ".join(f"{length // 1024}K" for length in lengths) + " |")
    print("|---" * (1 + len(lengths)) + "|")
    for name in names:
        row = [cells.get((name, length)) for length in lengths]
        if any(row):
            print(f"| {name} | " + " | ".join(text(cell) if cell else "" for cell in row) + " |")
    print()


def accuracy_text(cell):
    text = f"{percent(cell['strict'])}"
    # One context has no interval over contexts.
    if cell["n_contexts"] > 1 and not (right(cell) == cell["n"] and cell["n_contexts"] <= WIDE):
        text += f" ({interval(cell, 'strict')})"
    return text if cell["n"] == USUAL_N else f"{text}, n {cell['n']}"


def ruler_text(cell):
    return (f"{percent(cell['official'])} ({interval(cell, 'official')}), n {cell['n']}"
            f" [{percent(cell['strict'])}]")


def print_left_out(cells):
    """The sentence on intervals that the table leaves out."""
    out = {c["n_contexts"]: interval(c, "strict") for c in cells.values()
           if right(c) == c["n"] and 1 < c["n_contexts"] <= WIDE}
    if out:
        print("Left out where all answers are right: " +
              ", ".join(f"of {n} contexts {out[n]}" for n in sorted(out, reverse=True)) + ".\n")


def print_counts(cells):
    """How many answers are wrong: the sentence of the README in the top folder."""
    for names, what in ((RETRIEVAL, "`passkey`, `needle` and `kv_retrieval` (hexadecimal and UUIDs)"),
                        ([TWO_STAGE], TWO_STAGE)):
        usual = [c for (name, length), c in cells.items() if name in names and length <= 16384]
        if not usual:
            continue
        print(f"Of {sum(c['n'] for c in usual)} answers to {what} at 1K to 16K tokens wrong: "
              f"{sum(c['n'] - right(c) for c in usual)}", end="")
        for length in sorted({length for _, length in cells if length > 16384}):
            far = [c for (name, l), c in cells.items() if name in names and l == length]
            if far:
                print(f"; of {sum(c['n'] for c in far)} at {length // 1024}K: "
                      f"{sum(c['n'] - right(c) for c in far)}", end="")
        print(".")
    print()


def print_sums(cells):
    """First stage of two_stage_retr."""
    for name in (TWO_STAGE, TWO_STAGE_RANDOM):
        texts = []
        for (row, length), c in sorted(cells.items()):
            sums = re.search(r"\bsum=([0-9.e+-]+)", c["sub"] or "")
            if row == name and sums:
                texts.append(f"{round(c['n'] * float(sums.group(1)))} of {c['n']} at {length // 1024}K")
        if texts:
            print(f"Sums that are right, {name}: " + ", ".join(texts) + ".")
    print()


def print_wordings(cells):
    def name(cell):
        return row_of(cell), options_of(cell)["wording"]

    cells = placed(cells, name)
    rows = [row for row, _, _ in ROWS if any(key[0] == row for key, _ in cells)]
    by = {(row, wording): c for ((row, wording), _), c in cells.items()}
    wrong = sum(c["n"] - right(c) for c in by.values())
    if not rows:
        return
    print(f"The second and third wording: {wrong} of {sum(c['n'] for c in by.values())} answers wrong, "
          f"{len(rows)} tasks.")
    if wrong:
        print("\n| task | second | third |\n|---|---|---|")
        for row in rows:
            print(f"| {row} | " + " | ".join(accuracy_text(by[row, w]) if (row, w) in by else "" for w in "23") + " |")
    print()


def print_chains(samples):
    """Why chains of names (vt) are not right as a whole."""
    by = {}
    for s in samples:
        # Samples of a cell that still runs have no task yet.
        if (s["task"] or "").startswith("vt") and s["strict"] is not None and s["strict"] < 1:
            # The answer ends with its sentence; what follows is no part of it.
            gold, said = (re.findall(r"\w+", (s[k] or "").split(".")[0]) for k in ("gold", "prediction"))
            why = ("a name too many" if len(said) > len(gold) and said[:len(gold)] == gold else
                   "too early" if len(said) < len(gold) and said == gold[:len(said)] else "another name")
            count = by.setdefault(int(s["length_tok"]), {})
            count[why] = count.get(why, 0) + 1
    for length in sorted(by):
        print(f"`vt` at {length // 1024}K, answers that are not right as a whole: " +
              ", ".join(f"{k} {n}" for k, n in sorted(by[length].items())) + ".")
    if by:
        print()


def print_snapkv(cells):
    """SnapKV with and without the question, beside Quest."""
    by = {(c["task"], c["budget"], c["policy"], c["protocol"]): c for c in cells}
    columns = [("snapkv", "question_after_compress"), ("snapkv", "question_in_prefill"),
               ("quest", "question_in_prefill")]
    print("| task, budget | " + " | ".join(f"`{policy}`, `{protocol}`" for policy, protocol in columns) + " |")
    print("|---" * (1 + len(columns)) + "|")
    for task, budget in sorted({(c["task"], c["budget"]) for c in cells if c["policy"] == "snapkv"},
                               key=lambda key: (key[0], int(key[1]))):
        row = [by.get((task, budget, *column)) for column in columns]
        print(f"| `{task}`, {budget} | " + " | ".join(
            f"{percent(c['official'])} ({interval(c, 'official')})" if c else "" for c in row) + " |")
    print()


def print_perplexity(cells):
    for c in cells:
        o = options_of(c)
        print(f"Perplexity of filler (tokens={o['tokens']}, {c['n_contexts']} texts of {int(c['length_tok'])} tokens): "
              f"{c['ppl']:.2f} ({c['ppl_lo']:.2f}-{c['ppl_hi']:.2f}) per token, "
              f"{percent(c['ppl'] / LEAST_PERPLEXITY - 1)} % above {LEAST_PERPLEXITY}.")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=pathlib.Path, help="folder with the logs of card.sh")
    folder = parser.parse_args().dir
    logs = sorted(folder.glob("*.jsonl.zst"))
    if not logs:
        sys.exit(f"card.py: {folder}: no logs (*.jsonl.zst); card.sh makes them")
    want_kvlab("card.py")
    own, of_methods = ([log for log in logs if (log.name == SNAPKV) == wanted] for wanted in (False, True))
    cells, methods = export(own, "cell"), export(of_methods, "cell")
    check_model(logs, cells + methods)
    for c in cells + methods:
        if c["n_errors"]:
            print(f"card.py: {c['task']} at {c['length_tok']} tokens: {c['n_errors']} errors", file=sys.stderr)
    cells = [c for c in cells if c["strict"] is not None or c["ppl"] is not None]
    texts = [c for c in cells if c["ppl"] is not None]
    ruler = [c for c in cells if c["task"] in RULER]
    known = [c for c in cells if row_of(c)]
    worded = [c for c in known if options_of(c)["wording"] != "1"]
    plain = placed([c for c in known if options_of(c)["wording"] == "1"], row_of)

    if plain:
        print_table([name for name, _, _ in ROWS], plain, accuracy_text)
        print_left_out(plain)
        print_counts(plain)
        print_sums(plain)
    print_wordings(worded)
    if ruler:
        print_table([f"`{task}`" for task in RULER], placed(ruler, lambda c: f"`{c['task']}`"), ruler_text)
        print_chains(export(own, "sample"))
    if methods:
        print_snapkv(methods)
    print_perplexity(texts)


if __name__ == "__main__":
    main()
