"""Compares greedy answers of kvlab and llama.cpp: python3 compare_llama_cpp.py FILE.gguf

Prompts are training texts up to their first answer, or half of a text that has none; both get the
same tokens, and llama.cpp's own tokenizer must give them, too.  Wants llama-cpp-python; KVLAB=PATH
takes that program instead of build/kvlab.  Exit code 1 where anything differs.
"""
import argparse
import os
import random
import subprocess
import sys

from kinds import training_document
from program import KVLAB, want_kvlab
from tasks import VOCAB

KINDS = ("passkey", "needle", "kv", "two_stage", "mixed", "niah", "vt", "fwe", "text")
LONGEST = 16384  # tokens that fit into one argument of kvlab generate


def stop(message):
    sys.exit("compare_llama_cpp.py: " + message)


def number_from(first, last, text):
    if not text.isdecimal() or not first <= int(text) <= last:
        raise argparse.ArgumentTypeError("%r: want a number from %d to %d" % (text, first, last))
    return int(text)


def count(text):
    return number_from(1, 1000, text)


def lengths_of(text):
    return [number_from(64, LONGEST, part) for part in text.split(",")]


def kvlab_answer(model, tokens, n):
    run = subprocess.run(
        [KVLAB, "generate", "-m", model, "-n", str(n), "--threads", "1", "--ignore-end",
         "--show-ids", "--ids=" + ",".join(map(str, tokens))],
        stdout=subprocess.PIPE, encoding="utf-8")
    if run.returncode:
        stop("%s ended with code %d" % (KVLAB, run.returncode))
    return [int(token) for token in run.stdout.replace(",", " ").split()]


def llama_answer(model, tokens, n):
    model.reset()
    tokens = model.generate(tokens, temp=0.0, top_k=1, repeat_penalty=1.0)
    return [next(tokens) for _ in range(n)]


def first_difference(ours, theirs):
    return next(i for i in range(len(theirs) + 1) if ours[:i + 1] != theirs[:i + 1])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="GGUF file of export.py")
    parser.add_argument("--lengths", type=lengths_of, default="1024,4096",
                        help="tokens of the texts with all their questions")
    parser.add_argument("-n", type=count, default=2, help="prompts of each kind and length")
    parser.add_argument("--new", type=count, default=40, help="new tokens")
    arguments = parser.parse_args()
    if not os.path.isfile(arguments.model):
        stop("%s: no such file" % arguments.model)
    want_kvlab("compare_llama_cpp.py")
    try:
        from llama_cpp import Llama
    except ImportError:
        stop("no module llama_cpp, want pip install llama-cpp-python")
    try:
        llama = Llama(arguments.model, n_ctx=max(arguments.lengths) + arguments.new, n_threads=1,
                      verbose=False)
    except ValueError as error:
        stop(str(error))
    rng, same, total = random.Random(0), 0, 0
    for length in arguments.lengths:
        for kind in KINDS:
            for _ in range(arguments.n):
                doc = training_document(rng, length, {kind: 1.0})
                ids = doc.ids[:doc.answers[0].start if doc.answers else length // 2]
                tokens = [int(VOCAB.full_ids[i]) for i in ids]
                text = VOCAB.text(ids[1:]).encode()
                total += 1
                if llama.tokenize(text, add_bos=True, special=False) != tokens:
                    print("%s, %d tokens: llama.cpp has other tokens" % (kind, length))
                    continue
                theirs = llama_answer(llama, tokens, arguments.new)
                ours = kvlab_answer(arguments.model, tokens, arguments.new)
                if ours == theirs:
                    same += 1
                else:
                    print("%s, %d tokens: differ from new token %d on"
                          % (kind, length, first_difference(ours, theirs)))
    print("the same %d new tokens for %d of %d prompts" % (arguments.new, same, total))
    sys.exit(same != total)


if __name__ == "__main__":
    main()
