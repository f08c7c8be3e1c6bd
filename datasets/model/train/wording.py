"""Reads datasets/text/*.def, the words and wording that the C task generators use as well.

ruler.def keeps to words of english.def, so that it changes nothing in the vocabulary.
"""
import os
import re

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "text")
LANGUAGES = ("english", "german")
STRING = r'"((?:[^"\\]|\\.)*)"'


def _unescape(text):
    return text.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")


class Language:
    """words {class: [word]}, sentences [(weight, template)], phrases {name: text} of one file."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as file:
            source = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
        self.words = {}
        for group, word in re.findall(r"^KVL_WORD\((\w+), " + STRING + r"\)", source, re.M):
            self.words.setdefault(group, []).append(_unescape(word))
        self.sentences = [(int(weight), _unescape(text)) for weight, text in
                          re.findall(r"^KVL_SENTENCE\((\d+), " + STRING + r"\)", source, re.M)]
        self.phrases = {name: _unescape(text) for name, text in
                        re.findall(r"^KVL_PHRASE\((\w+), " + STRING + r"\)", source, re.M)}

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


def load(folder=FOLDER):
    """{language: Language}; classes that a language leaves out are those of English."""
    languages = {name: Language(os.path.join(folder, name + ".def")) for name in LANGUAGES}
    english = languages["english"]
    english.phrases.update(Language(os.path.join(folder, "ruler.def")).phrases)
    for language in languages.values():
        language.words = {**english.words, **language.words}
    return languages
