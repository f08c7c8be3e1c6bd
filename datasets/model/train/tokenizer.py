"""The tokenizer of the kvlab models: byte-level BPE ("gpt2", pre-tokenizer "gpt-2").

The merges are not learned but built so that every word of datasets/text/*.def and of the wording of
the tasks is one token after a space, and at a line start if a sentence begins with it.  Digits and
lower-case letters without a space before them never merge: numbers and hexadecimal strings stay one
token per character.  To that end every merge of letters starts at a space or at a capital letter.
Each word adds its prefixes (" r", " ri", " riv", ...) to the vocabulary.
"""
import re

import wording

PAD, BOS, EOS = 0, 1, 2
N_CONTROL = 3

PUNCTUATION = [' "', '":', '",', '"}', '"?', '{"', '".', " +"]

# The published GPT-2 pattern, where \p{L} is [^\W\d_], and \p{N} is \d for the texts we have.
PIECES = re.compile(
    r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")


def byte_characters():
    """GPT-2's printable stand-in for every byte value."""
    keep = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    table, spare = {}, 256
    for byte in range(256):
        if byte in keep:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(spare)
            spare += 1
    return table


class Tokenizer:
    def __init__(self):
        languages = wording.load().values()
        self.words = sorted(set().union(*(language.all_words() for language in languages)))
        self.line_starts = sorted(set().union(*(lang.line_starts() for lang in languages)))
        self._byte_char = byte_characters()
        self.tokens = ["<pad>", "<bos>", "<eos>"] + [self._byte_char[b] for b in range(256)]
        self.id = {token: i for i, token in enumerate(self.tokens)}
        self.rank = {}
        # Words after a space come first: " The" must not begin with the merge of "T" and "h".
        for word in self.words:
            self._add_word(" " + word)
        for word in self.line_starts:
            self._add_word(word)
        for text in PUNCTUATION:
            self._add_word(text)
        self.merges = sorted(self.rank, key=self.rank.get)
        self._cache = {}

    def _add_word(self, text):
        chars = [self._byte_char[b] for b in text.encode()]
        for n in range(1, len(chars)):
            left, right = "".join(chars[:n]), chars[n]
            if (left, right) not in self.rank:
                self.rank[left, right] = len(self.rank)
                self.id[left + right] = len(self.tokens)
                self.tokens.append(left + right)

    def _encode_piece(self, piece):
        parts = [self._byte_char[b] for b in piece.encode()]
        while True:
            ranks = [(self.rank[pair], i) for i, pair in enumerate(zip(parts, parts[1:]))
                     if pair in self.rank]
            if not ranks:
                return [self.id[part] for part in parts]
            i = min(ranks)[1]
            parts[i:i + 2] = [parts[i] + parts[i + 1]]

    def encode(self, text):
        """Token ids of text, without BOS."""
        ids = []
        for piece in PIECES.findall(text):
            if piece not in self._cache:
                self._cache[piece] = self._encode_piece(piece)
            ids += self._cache[piece]
        return ids

    def decode(self, ids):
        char_byte = {c: b for b, c in self._byte_char.items()}
        return bytes(char_byte[c] for i in ids if i >= N_CONTROL
                     for c in self.tokens[i]).decode("utf-8", "replace")

    def trained_ids(self):
        """The tokens that training uses: control, printable ASCII, whole words, punctuation.

        The others (prefixes of words, other bytes) never occur in our texts.  The model is
        trained on this subset, numbered densely, and widened when it is exported.
        """
        ids = set(range(N_CONTROL)) | set(self.encode("\n"))
        ids |= {self.id[self._byte_char[b]] for b in range(32, 127)}
        for word in self.words:
            ids |= set(self.encode(" " + word))
        for word in self.line_starts:
            ids |= set(self.encode(word))
        for text in PUNCTUATION:
            ids |= set(self.encode(text))
        return sorted(ids)


if __name__ == "__main__":
    tokenizer = Tokenizer()
    print(len(tokenizer.tokens), "tokens,", len(tokenizer.trained_ids()), "trained")
    for sample in ('{"3fa9": "00bc",\n "12ab": "77fe"}', "What is the pass key of Anna? 84699.",
                   "The pass key is 84699. Remember it: 84699 is the pass key.\nIn Ulm it rains.",
                   "Welche magische Zahl gehört zu Ulm? Sie ist 4711. Was ist über der Tür?",
                   "0: red, 11: teal, 1234: gray\nWhat is the color of 12 + 25? The sum is 37."):
        ids = tokenizer.encode(sample)
        print([tokenizer.tokens[i] for i in ids])
        assert tokenizer.decode(ids) == sample
