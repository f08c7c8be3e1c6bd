"""Reads what the C task generators say: datasets/text/*.def has words and filler sentences, and a
task's own file has its wording, in lines that begin with KVL_PHRASE.

Only the tasks that training shows are read: the vocabulary is made of their words, and a task that
somebody adds must not change it.
"""
import os
import re

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
TAUGHT = ("passkey", "number_string", "needle", "kv_retrieval", "two_stage_retr", "niah",
          "niah_multikey", "vt", "cwe", "fwe")  # files of datasets/
LANGUAGES = ("english", "german")
STRING = r'"((?:[^"\\]|\\.)*)"'


def _unescape(text):
    return text.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")


class Language:
    """words {class: [word]}, sentences [(weight, template)], phrases {name: text} of one
    language."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            source = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
        self.words = {}
        for group, word in re.findall(r"^KVL_WORD\((\w+), " + STRING + r"\)", source, re.M):
            self.words.setdefault(group, []).append(_unescape(word))
        self.sentences = [(int(weight), _unescape(text)) for weight, text in
                          re.findall(r"^KVL_SENTENCE\((\d+), " + STRING + r"\)", source, re.M)]
        self.phrases = {}

    def all_words(self):
        """Every word of the file, fields of templates left out."""
        texts = [text for _, text in self.sentences] + list(self.phrases.values())
        words = {word for group in self.words.values() for word in group}
        return words | {word for text in texts
                        for word in re.findall(r"[^\W\d_]+", re.sub(r"\{\w+\}", "", text))}

    def line_starts(self):
        """The words with which a sentence or a wording may begin."""
        starts = set()
        for text in [text for _, text in self.sentences] + list(self.phrases.values()):
            field = re.match(r"\{(\w+)\}", text)
            if field:
                starts |= set(self.words.get(field.group(1), []))
            else:
                starts |= set(re.findall(r"^[^\W\d_]+", text))
        return starts


def _phrases(path):
    """[(name, text)] of a task's file; a long text is several strings, which C puts together."""
    with open(path, encoding="utf-8") as file:
        source = file.read()
    phrase = r"^KVL_PHRASE\(\s*(\w+),\s*((?:" + STRING + r"\s*)+)\);"
    found = re.findall(phrase, source, re.M)
    if len(found) != source.count("KVL_PHRASE("):
        raise ValueError(f"{path}: a KVL_PHRASE that cannot be read")
    return [(name, "".join(_unescape(part) for part in re.findall(STRING, text)))
            for name, text, _ in found]


def load(folder=FOLDER):
    """{language: Language}; classes that a language leaves out are those of English."""
    languages = {name: Language(os.path.join(folder, "text", name + ".def")) for name in LANGUAGES}
    english = languages["english"]
    for task in TAUGHT:
        for name, text in _phrases(os.path.join(folder, task + ".c")):
            first, _, rest = name.partition("_")
            phrases = languages[first].phrases if first in languages else english.phrases
            key = rest if first in languages else name
            if key in phrases:
                raise ValueError(f"datasets/{task}.c: {name} stands in another file, too")
            phrases[key] = text
    for language in languages.values():
        language.words = {**english.words, **language.words}
    return languages
