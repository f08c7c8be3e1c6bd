"""Reads datasets/text/english.def, the wording that the C task generators use as well."""
import os
import re

PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "text", "english.def")


def _unescape(text):
    return text.replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\")


def load(path=PATH):
    """Returns (words, sentences, phrases): {class: [word]}, [(weight, template)], {name: text}."""
    with open(path, encoding="utf-8") as file:
        source = re.sub(r"/\*.*?\*/", "", file.read(), flags=re.S)
    string = r'"((?:[^"\\]|\\.)*)"'
    words = {}
    for group, word in re.findall(r"^KVL_WORD\((\w+), " + string + r"\)", source, re.M):
        words.setdefault(group, []).append(_unescape(word))
    sentences = [(int(weight), _unescape(text)) for weight, text in
                 re.findall(r"^KVL_SENTENCE\((\d+), " + string + r"\)", source, re.M)]
    phrases = {name: _unescape(text) for name, text in
               re.findall(r"^KVL_PHRASE\((\w+), " + string + r"\)", source, re.M)}
    return words, sentences, phrases
