# Copyright 2026 The hf_vg maintainers. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""The Penn Treebank tokenization of the COCO caption evaluation, without Java.

The COCO evaluation runs Stanford's PTBTokenizer over the captions and drops punctuation. The rules here reproduce the
observed behavior of that tokenizer: the longest match at each position wins. Tokens with spaces inside are not
covered: markup with attributes, telephone numbers, and "2 1/2", which PTBTokenizer joins and BLEU and CIDEr split
again.
"""

import re
import unicodedata
from functools import lru_cache


# Tokens that the COCO evaluation drops. Brackets stay, as "-lrb-" etc.: it lists them in upper case, but the tokens
# are lower case.
PUNCTUATION = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])

# Tokens whose spelling changes.
SPELLINGS = {
    "(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-",
    '"': "''", "“": "``", "”": "''", "«": "``", "»": "''", "‘": "`", "’": "'", "‹": "`", "›": "'",
    "–": "--", "—": "--", "―": "--", "…": "...",
    "½": "1/2", "¼": "1/4", "¾": "3/4", "⅓": "1/3", "⅔": "2/3", "£": "#", "€": "$", "¢": "cents",
    "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": "''", "&apos;": "'", "&mdash;": "--", "&ndash;": "--",
}  # fmt: skip

# Words that keep a final period (some only if capitalized), words that keep it before a number, and words that start a
# sentence, before which a single letter loses its period.
ABBREVIATIONS = """
    adj adm adv al ala alex apr ariz assn assoc asst atty attys aug ave bhd bldg blvd brig bros calif capt cf cmdr
    co col colo comdr conn corp cos cpl ct dak dec dept det dr drs elec ens esq est etc ext feb fla fri ft ga gen
    gov govs hon inc ind insp intl jan jr jul jun kan kans ky lieut lt ltd maj mar md messrs mfg mich minn mlle mme
    mo mon mont mr mrs ms msgr mt natl neb nev nov oct okla penn pfc ph plc pres prof profs pte pty pvt rd rep
    reps rev rt sen sens sep sept seq sfc sgt spc sq sr st ste supt supts tel tenn thu thurs tue tues univ va vs vt
    wed wis wisc wyo
""".split()
CAPITALIZED_ABBREVIATIONS = "Ark Az Del Ill La Mass Miss Ore Pa Tex Wash".split()
NUMBERED = "art ca fig no nos op pp prop".split()
SENTENCE_STARTERS = """
    A About After An As At But Earlier He Her Here However If In It Last Many More Now Once One Other Our She Since So
    Some Such That The Their Then There These They This We What When While Yet You
""".split()

_LETTER = "[^\\W\\d_¹²³¼½¾⅓⅔⅛⅜⅝⅞]"
_ALNUM = f"(?:{_LETTER}|\\d)"
_WORD = f"{_LETTER}{_ALNUM}*(?:[.!?]{_LETTER}{_ALNUM}*)*"
_APOSTROPHE = "['’`‘]"
_CLITIC = f"['’](?i:[msd]|re|ve|ll)(?!{_LETTER})"
# o'brien, hors-d'oeuvre
_PART = f"(?:[dDlLoO]{_APOSTROPHE}(?={_LETTER}{{2}}))?{_ALNUM}+"
_COMPOUND = f"(?:\\d+(?:[.,]\\d+)+(?:-{_PART})+|{_PART}(?:[-_]{_PART})*)"
_SLASHED = "[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}"

# The token is the group. Text that a pattern matches after the group counts toward its length. If two matches have the
# same length, the first pattern wins.
_PATTERNS = [
    re.compile(pattern)
    for pattern in (
        # Contractions
        "(?i:([a-z]*[a-mo-z])n['’`]t)",
        "(?i:(n['’`]t))",
        f"({_CLITIC})",
        f"({_COMPOUND}|{_WORD}){_CLITIC}",
        "(?i:(can)not)(?!\\w)",
        "(?i:(gon|wan)na|(got)ta|(gim|lem)me)(?!\\w)",
        "(?i:('t)(?:is|was))",
        # Words with an apostrophe
        f"(?i:(['’]n['’]|['’]n(?!{_LETTER})|['’](?:em|till?|cause)))",
        "(?i:((?:c['’]mon|dunkin['’]|e['’]er|ev['’]ry|li['’]l|nat['’]l|nor['’]easter|ol['’]|s['’]mores|somethin['’])))",
        "(?i:([djly]['’]))",
        f"([A-HJ-XZn]{_APOSTROPHE}[A-Za-z]{{2,}})",
        f"(?i:([a-z]+[aeiouy]{_APOSTROPHE}[aeiou][a-z]*))",
        "(['’]\\d0s|['’]\\d\\d(?!\\S))",
        # Words with a period
        f"(?i:(ph\\.d\\.|(?:{'|'.join(ABBREVIATIONS)})\\.))",
        f"((?:{'|'.join(CAPITALIZED_ABBREVIATIONS)})\\.)",
        f"(?i:((?:{'|'.join(NUMBERED)})\\.)) ?\\d",
        f"([A-Za-z]\\.)(?! (?:{'|'.join(SENTENCE_STARTERS)})(?!\\w))",
        "((?:[A-Za-z]\\.){2,})",
        f"({_ALNUM}+\\.)[,;:]",
        # Other words and numbers
        f"({_WORD})",
        f"({_COMPOUND})",
        f"({_SLASHED}(?:\\\\?/{_SLASHED}){{1,2}}|\\d+-\\d+/\\d+)",
        f"([A-Za-z]+\\.[A-Za-z0-9.]*(?:-{_ALNUM}+)+)",
        "(anti-|pro-)",
        "([A-Z]+(?:[+&][A-Z]+)+|C\\+\\+|[A-Z]{1,2}\\$)",
        "([-+]?(?:\\d*(?:[.:,]\\d+)+|\\d+))",
        # Web and markup
        "(https?://\\S*[\\w/])",
        "((?:[\\w-]+\\.)+(?i:com|net|org|edu)(?:/\\S*\\w)?(?!\\w))",
        "([\\w.+-]+@\\w+(?:[.-]\\w+)*)",
        f"(@[A-Za-z_]\\w*|#{_LETTER}+)",
        "(</?[A-Za-z][\\w.:-]*/?>)",
        "(&(?:#\\d+|amp|lt|gt|quot|apos|[mn]dash);)",
        "(?i:(-(?:lrb|rrb|lsb|rsb|lcb|rcb)-))",
        "([:;=]['-]?[()\\[\\]DPpO](?!\\w))",
        # Marks
        "(\\.\\.\\.+|--+|[!?]{2,}|''|``|__+|\\*+|#+|@+|<<|>>)",
        "(.)",
    )
]


def ptb_tokenize(caption: str) -> list[str]:
    """
    Splits a caption into lower-case words without punctuation, as the COCO caption evaluation does.

    Args:
        caption (`str`):
            The caption.

    Returns:
        `list[str]`: The words.

    Example:

    ```python
    >>> from hf_vg.evaluation import ptb_tokenize

    >>> ptb_tokenize("A man's dog isn't wearing a T-shirt.")
    ['a', 'man', "'s", 'dog', 'is', "n't", 'wearing', 'a', 't-shirt']
    ```
    """
    chunks = caption.split()
    tokens: list[str] = []
    for index, chunk in enumerate(chunks):
        # Only a final period depends on the next chunk.
        following = chunks[index + 1] if chunk[-1] == "." and index + 1 < len(chunks) else ""
        tokens += _tokenize_chunk(chunk, following)
    return tokens


@lru_cache(maxsize=1 << 16)
def _tokenize_chunk(chunk: str, following: str) -> tuple[str, ...]:
    """Tokenizes a part of a caption without spaces."""
    text = f"{chunk} {following}"
    tokens, start = [], 0
    while start < len(chunk):
        longest = max(filter(None, (pattern.match(text, start) for pattern in _PATTERNS)), key=re.Match.end)
        token = longest[longest.lastindex or 0]
        start += len(token)
        tokens.append(_spell(token))
    return tuple(token for token in tokens if token and token not in PUNCTUATION)


def _spell(token: str) -> str:
    """Returns the final spelling of a token. It is empty if the token is dropped."""
    token = SPELLINGS.get(token, token.lower())
    if re.fullmatch(f"{_CLITIC}|n['’]t", token):
        return token.replace("’", "'")
    if re.fullmatch("--+", token):
        return "--"
    if re.fullmatch("\\.\\.\\.+", token):
        return "..."
    if re.fullmatch("[:;=]['-]?[()]", token):
        return token[:-1] + SPELLINGS[token[-1]]
    # PTBTokenizer skips emoji, hyphens that are not "-" and invisible characters.
    if len(token) == 1 and (token > "\uffff" or token in "‐‑" or unicodedata.category(token)[0] in "CZ"):
        return ""
    return token
