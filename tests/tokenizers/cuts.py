#!/usr/bin/env python3
"""Makes cuts.json: prompts as LongBench's script cuts them, for tests/unit/test_file_cuts.c.

    pip install tokenizers
    python3 tests/tokenizers/cuts.py

The script (LongBench/pred.py) makes tokens of the whole prompt, decodes the first and the last half of the length
without special tokens, and joins the two texts.  Prompts are those of trec, which has no chat template there.
"""
import json
import os

from tokenizers import Tokenizer, decoders

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDERS = ["llama2", "mistral", "gemma", "qwen2", "llama3"]
PROMPT = ("Please determine the type of the question below. Here are some examples of questions.\n\n{context}\n{input}")
CONTEXTS = [" ".join(f"n{i}" for i in range(100, 300)),
            "Die Straße führt  über\n\nden Fluß — naïve cafe, 中文没有空格，標點。 " * 12,
            "a  b   c\t\td\n \n e\u00a0f \U0001F600\U0001F468\u200d\U0001F469 " * 14 + "end."]
INPUTS = ["Question: Who?\nType:", "Question: 谁 ?\nType:"]
LENGTHS = [120, 131, 160, 201]


# As the files of these families have them; those here are without.
PIECES = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
DECODERS = {"llama2": decoders.Sequence(PIECES + [decoders.Strip(" ", 1, 0)]), "mistral": decoders.Sequence(PIECES + [decoders.Strip(" ", 1, 0)]),
            "gemma": decoders.Sequence(PIECES)}


def cut(tokenizer, prompt, length):
    ids = tokenizer.encode(prompt).ids
    if len(ids) <= length:
        return prompt
    half = int(length / 2)
    return tokenizer.decode(ids[:half], skip_special_tokens=True) + tokenizer.decode(ids[-half:], skip_special_tokens=True)


def main():
    rows = []
    for folder in FOLDERS:
        tokenizer = Tokenizer.from_file(os.path.join(HERE, folder, "tokenizer.json"))
        if folder in DECODERS:
            tokenizer.decoder = DECODERS[folder]
        for i, context in enumerate(CONTEXTS):
            for question in INPUTS:
                for length in LENGTHS:
                    text = cut(tokenizer, PROMPT.format(context=context, input=question), length)
                    # A letter that is cut apart: Llama's tokenizers differ, the slow one is the script's.
                    if folder in DECODERS and "\ufffd" in text:
                        continue
                    rows.append([folder, i, question, length, text])
    with open(os.path.join(HERE, "cuts.json"), "w", encoding="utf-8") as f:
        json.dump({"contexts": CONTEXTS, "cuts": rows}, f, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
