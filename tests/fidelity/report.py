"""The table of a comparison, and results/fidelity.md around it."""
from presses import NOT_COMPARED
from sets import CLOSE, CLOSE_CUT, DIFFERENT, EQUAL, ROUNDING, TIES

PAGE = """# The same positions as kvpress

Written by `tests/fidelity/run.sh --report results/fidelity.md`, but for what follows from *Benchmarks* on, which it keeps.

Random Llama models with the same weights in kvlab and in transformers read the same random tokens; every method that kvlab and
[kvpress](https://github.com/NVIDIA/kvpress) both have cuts the cache to the same size, and the positions that stay are compared per layer and kv head.

%(day)s: %(kvlab)s; %(packages)s, Python %(python)s%(old)s. Contexts of %(lengths)s tokens, of which %(ratios)s
go (kvpress' compression ratio; kvlab's budget is what is left and the current token). 32-bit floats on both sides.

| model | layers | query heads | kv heads | head_dim | width | embeddings | RoPE |
|---|---|---|---|---|---|---|---|
%(models)s

## Positions kept

A set is what a kv head of a layer keeps of one context at one ratio. *equal*: the same positions. *ties*: they differ only in tokens whose scores in kvpress
are bit for bit the same (it takes any of them, kvlab the first). *rounding*: only in tokens whose scores are within %(close)g of their size
(for `BlockPress`, which judges in rounds: a cut between scores within %(close_cut)g of the largest).
*different*: in others; *tokens* counts them. A row with a remark is known to differ; any other difference makes the script fail.

%(table)s

%(left)s

## Logits

Largest difference to transformers over all tokens and the vocabulary.

| model | tokens | difference | largest logit |
|---|---|---|---|
%(logits)s

## Again

```sh
apt-get install python3-torch python3-venv    # Debian 12; or any PyTorch that `python3 -c 'import torch'` finds
tests/fidelity/run.sh --report results/fidelity.md
```

The script makes a virtual environment with the packages of `tests/fidelity/requirements.txt` (167 MB once installed, no PyTorch, no CUDA) and builds kvlab.
`--only`, `--models`, `--lengths` and `--ratios` choose. Once the packages are there, `ctest -C fidelity -L fidelity` in a build folder runs it too.
"""

OLD = """ (older than the packages ask for: `tests/fidelity/old_torch.py` adds the names that they import)"""

LEFT = """`KVzipPress` is given kvlab's request to repeat the context, token by token, in place of its own words and chat template. *exact*: in place of a random sketch
the keys themselves, on both sides. *in place*: without moving keys, by which positions are told. Rows with `interval` decode that many tokens behind the context,
and compare what the last cut leaves of all of them; *queries at their positions* gives the press the positions of the whole text. `QFilterPress` and
`DuoAttentionPress` have random filters and gates in place of a hub's. What `KVComposePress(structured=False)` leaves of its second reading in the cache is not
looked at; with `add_v_norm` it fails.

Presses without a row:

| press | why |
|---|---|
%s"""


BY_HAND = "## Benchmarks: scores beside the official scripts\n"


def table(tallies):
    lines = ["| kvlab | kvpress | sets | equal | ties | rounding | different | tokens | remark |",
             "|---|---|---|---|---|---|---|---|---|"]
    for setting, tally in tallies:
        counts = [tally.compared] + [tally.sets[v] for v in (EQUAL, TIES, ROUNDING, DIFFERENT)]
        lines.append("| `%s` | `%s` | %s | %d | %s |" % (
            setting.policy, setting.press, " | ".join(map(str, counts)), tally.tokens[DIFFERENT],
            setting.known or ""))
    return "\n".join(lines)


def several(values, text="%s"):
    words = [text % value for value in values]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def models_table(shapes):
    return "\n".join("| %s | %d | %d | %d | %d | %d | %s | base %g%s |" % (
        name, s["layers"], s["heads"], s["kv_heads"], s["head_dim"], s["dim"],
        "tied" if s["tied"] else "apart", s["base"],
        ", positions / %g" % s["linear"] if s["linear"] != 1 else "") for name, s in shapes.items())


def written_by_hand(path):
    """What a report has that this script does not measure: from its headline on."""
    try:
        with open(path) as file:
            text = file.read()
    except FileNotFoundError:
        return ""
    at = text.find("\n" + BY_HAND)
    return text[at:] if at >= 0 else ""


def page(about, shapes, lengths, ratios, tallies, logits):
    return PAGE % dict(
        day=about["day"], kvlab=about["kvlab"], packages=several(about["packages"]),
        python=about["python"], old=OLD if about["old"] else "", lengths=several(lengths),
        ratios=several(ratios), models=models_table(shapes), table=table(tallies), left=LEFT % "\n".join("| `%s` | %s |" % item for item in NOT_COMPARED.items()),
        close=CLOSE, close_cut=CLOSE_CUT, logits="\n".join("| %s | %d | %.1e | %.1f |" % row for row in logits))
