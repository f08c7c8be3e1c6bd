#!/usr/bin/env python3
"""Makes the small tokenizers beside this script, and what their own libraries make of many texts.

    pip install tokenizers sentencepiece
    python3 tests/tokenizers/make.py

Each folder is one shape that users' models have.  texts.json holds the texts, cases.json of a folder the ids
that `tokenizers` (or `sentencepiece`) gives: "plain" with special tokens as text, "special" with special tokens
found (null: the same), "whole" with what the post-processor adds.
"""
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
MARK = "\u2581"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
WORDS = ("the of and to in is was he for it with as his on be at by had not are but from or have an they which "
         "one you were all her she there would their we him been has when who will no more if out so up said "
         "what its about than into them can only other time new some could these two may first then do any like "
         "my now over such our man me even most made after also did many off before must well back through years "
         "where much your way down should because long each just state people those too mr how little good world "
         "make very year still see work life men day get here old under without another never know us last might "
         "great go come since against right used take three himself few house use during home again place "
         "don't it's we're I'll you've won't she'd").split()
OTHER = ["été", "naïve", "Straße", "École", "ЖЕНЯ", "привет", "Ελλάδα", "日本語", "中文", "한국어", "हिन्दी", "ไทย", "שלום", "مرحبا",
         "e\u0301", "A\u030a", "\u1112\u1161\u11ab", "\u212b", "\u0958", "½", "Ⅷ", "١٢٣", "²", "🙂", "👩‍👩‍👧", "\u017f", "'\u017f",
         "1", "12", "1234567", "3.14", "foo_bar(x);", "a->b", "http://a.b/c?d=e#f", "...", "!!", "?!", "--", "\"q\"",
         "\u00a0", "\u0085", "\u3000", "\u2028", "\u180e", "\ufeff", "\t", "\n", "\r\n", "\n\n", "   ", MARK]
SPECIAL = ["<s>", "</s>", "<|im_end|>", "<|begin_of_text|>", "<|end_of_text|>", "<|x|>", "<|x|>y", "[u]", "wordy", " [r] ",
           "[l]", "<unk>", "<0x41>", "<bos>", "<|endoftext|>"]


def make_texts():
    rng = random.Random(7)
    out = ["", " ", "\n", "a", " a", "  a", "Hello world", "Hello  world\n", "<s>a</s> b", "a<s> b", "<s>", " <s> <s>"]
    for _ in range(90):
        text = ""
        for _ in range(rng.randrange(1, 14)):
            kind = rng.random()
            pool = WORDS if kind < .45 else OTHER if kind < .75 else SPECIAL if kind < .87 else None
            part = rng.choice(pool) if pool else chr(0) if kind > .99 else chr(rng.choice([*range(32, 127), *range(0x80, 0x250), *range(0x300, 0x320)]))
            text += (part.capitalize() if rng.random() < .2 else part) + rng.choice(["", "", " ", " ", "  ", "\n"])
        out.append(text)
    return out


def corpus():
    rng = random.Random(3)
    return [" ".join(rng.choice(WORDS if rng.random() < .9 else OTHER) for _ in range(30)) for _ in range(400)]


def added(text, special=True, **more):
    return AddedToken(text, special=special, normalized=more.pop("normalized", False), **more)


def byte_level(steps, size=420, normalizer=None, ignore_merges=False, regex=False):
    """Trained on the corpus; merges rank by what is frequent."""
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        t.normalizer = normalizer
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)
    t.pre_tokenizer = pre_tokenizers.Sequence([*steps, level]) if steps else level
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=size, show_progress=False,
                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return t


def spm_like(normalizer, pre, extra=()):
    """Bytes, the marks, letters and merges of words with the mark in front, as SentencePiece's converter writes."""
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for b in range(256):
        vocab[f"<0x{b:02X}>"] = len(vocab)
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    t.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=260, show_progress=False))
    model = json.loads(t.to_str())["model"]
    merges = [m if isinstance(m, list) else m.split(" ") for m in model["merges"]]
    for x in list(model["vocab"]) + list(extra):
        vocab.setdefault(x, len(vocab))
    merges += [[MARK, MARK]]
    vocab.setdefault(MARK * 2, len(vocab))
    out = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m) for m in merges], byte_fallback=True, unk_token="<unk>",
                               fuse_unk=True))
    if normalizer:
        out.normalizer = normalizer
    if pre:
        out.pre_tokenizer = pre
    out.add_special_tokens([added("<unk>"), added("<s>"), added("</s>")])
    out.post_processor = template(out, "<s>")
    return out


def template(t, first):
    return processors.TemplateProcessing(single=f"{first} $A", pair=f"{first} $A {first} $B",
                                         special_tokens=[(first, t.token_to_id(first))])


def llama3():
    t = byte_level([pre_tokenizers.Split(Regex(LLAMA3), "isolated")], ignore_merges=True)
    t.add_special_tokens([added("<|begin_of_text|>"), added("<|end_of_text|>")])
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template(t, "<|begin_of_text|>")])
    return t, {"tokenizer_config.json": {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>",
                                         "chat_template": "{{ messages }}"}}


def qwen2():
    t = byte_level([pre_tokenizers.Split(Regex(QWEN2), "isolated")], normalizer=normalizers.NFC())
    t.add_special_tokens([added("<|endoftext|>"), added("<|im_end|>"), added("<|x|>", rstrip=True)])
    t.add_tokens([added("[u]", False), added("[l]", False, lstrip=True), added("[r]", False, lstrip=True, rstrip=True),
                  added("\u00e9", False, normalized=True),
                  added("<|x|>y", False)])
    return t, {"tokenizer_config.json": {"bos_token": None, "eos_token": {"content": "<|im_end|>"}, "add_bos_token": False},
               "generation_config.json": {"bos_token_id": t.token_to_id("<|endoftext|>"),
                                          "eos_token_id": [t.token_to_id("<|im_end|>"), t.token_to_id("<|x|>")]}}


def gpt2():
    t = byte_level([], regex=True)
    t.add_special_tokens([added("<|endoftext|>", normalized=True)])
    return t, {"special_tokens_map.json": {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}}


def opt():
    """GPT-2's two files; </s> is BOS, EOS and unknown."""
    t = byte_level([], regex=True)
    vocab = {"<s>": 0, "<pad>": 1, "</s>": 2}
    model = json.loads(t.to_str())["model"]
    for text in model["vocab"]:
        vocab.setdefault(text, len(vocab))
    t = Tokenizer(models.BPE(vocab=vocab, merges=[tuple(m) for m in model["merges"]]))
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.add_special_tokens([added("</s>"), added("<pad>")])
    t.post_processor = template(t, "</s>")
    end = {"__type": "AddedToken", "content": "</s>", "normalized": True}
    return t, {"tokenizer_config.json": {"bos_token": end, "eos_token": end, "unk_token": end, "add_bos_token": True,
                                         "add_prefix_space": False, "tokenizer_class": "GPT2Tokenizer"},
               "special_tokens_map.json": {"bos_token": "</s>", "pad_token": "<pad>"}}


def digits():
    t = byte_level([pre_tokenizers.Digits(individual_digits=True)], regex=True)
    t.add_special_tokens([added("<|endoftext|>")])
    return t, {"config.json": {"bos_token_id": t.token_to_id("<|endoftext|>"),
                               "eos_token_id": t.token_to_id("<|endoftext|>")}}


def deepseek():
    steps = [pre_tokenizers.Split(Regex("[\r\n]"), "isolated"), pre_tokenizers.Split(Regex(r"\s?\p{L}+"), "isolated"),
             pre_tokenizers.Split(Regex(r"\s?\p{P}+"), "isolated"), pre_tokenizers.Split(Regex(r"\s+$"), "isolated"),
             pre_tokenizers.Split("->", "isolated"), pre_tokenizers.Digits(individual_digits=True)]
    return byte_level(steps), {}


def llama2():
    t = spm_like(normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)]), None)
    return t, {"tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True}}


def mistral():
    return spm_like(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False)), {
        "tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>"}}


def metaspace():
    return spm_like(None, pre_tokenizers.Metaspace(prepend_scheme="always", split=True)), {}


def gemma():
    t = spm_like(normalizers.Replace(" ", MARK), pre_tokenizers.Split(" ", "merged_with_previous"), ["<bos>"])
    t.add_special_tokens([added("<bos>")])
    t.add_tokens([added(MARK * 2, False), added("[u]", False)])
    t.post_processor = template(t, "<bos>")
    return t, {"tokenizer_config.json": {"bos_token": "<bos>", "eos_token": "</s>"}}


def write(name, data):
    with open(os.path.join(HERE, name), "w", encoding="utf-8") as f:
        json.dump(data, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


def ids(t, text, as_text, whole):
    t.encode_special_tokens = as_text
    return t.encode(text, add_special_tokens=whole).ids


def save(make, texts):
    name = make.__name__
    os.makedirs(os.path.join(HERE, name), exist_ok=True)
    t, files = make()
    data = json.loads(t.to_str())
    if name == "gpt2":  # as old files are: no type, merges in one text
        del data["model"]["type"]
        data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]
    if name == "opt":
        write("opt/vocab.json", data["model"]["vocab"])
        with open(os.path.join(HERE, "opt", "merges.txt"), "w", encoding="utf-8") as f:
            f.write("#version: 0.2\n" + "".join(" ".join(m) + "\n" for m in data["model"]["merges"]))
    else:
        write(f"{name}/tokenizer.json", data)
    for file, content in files.items():
        write(f"{name}/{file}", content)
    t = Tokenizer.from_str(json.dumps(data))
    plain = [ids(t, x, True, False) for x in texts]
    special = [ids(t, x, False, False) for x in texts]
    write(f"{name}/cases.json", {"plain": plain, "special": [b if b != a else None for a, b in zip(plain, special)],
                                 "whole": [ids(t, x, False, True) for x in texts[:12]]})


def save_spm(texts):
    import sentencepiece as spm
    folder = os.path.join(HERE, "spm")
    os.makedirs(folder, exist_ok=True)
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_prefix=os.path.relpath(os.path.join(folder, "tokenizer")), vocab_size=420, model_type="bpe",
        byte_fallback=True, normalization_rule_name="identity", remove_extra_whitespaces=False, num_threads=1,
        allow_whitespace_only_pieces=True, split_digits=True, user_defined_symbols=["[u]"], minloglevel=2)
    os.remove(os.path.join(folder, "tokenizer.vocab"))
    p = spm.SentencePieceProcessor(model_file=os.path.join(folder, "tokenizer.model"))
    # NUL ends a text there.
    write("spm/cases.json", {"plain": [p.encode(x) if "\u0000" not in x else None for x in texts]})


def main():
    texts = make_texts()
    write("texts.json", texts)
    for make in (llama3, qwen2, gpt2, opt, digits, deepseek, llama2, mistral, metaspace, gemma):
        save(make, texts)
    try:
        save_spm(texts)
    except ImportError:
        print("no sentencepiece: spm/ stays as it is", file=sys.stderr)


if __name__ == "__main__":
    main()
