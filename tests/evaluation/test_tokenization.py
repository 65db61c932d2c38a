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

import shutil
from pathlib import Path

import pytest

from hf_vg.evaluation import ptb_tokenize


FLICKR8K = Path(__file__).resolve().parents[2] / "../shared/data/flickr8k/Flickr8k.token.txt"


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("A man rides a wave.", "a man rides a wave"),
        ("Two dogs , one black , play ; they 're wet !", "two dogs one black play they 're wet"),
        ("A man's dog isn't here, and they'll wait.", "a man 's dog is n't here and they 'll wait"),
        ("The boys' toys can't move", "the boys toys ca n't move"),
        ("it’s the dog’s, don’t", "it 's the dog 's do n't"),
        ("A T-shirt, a 3-year-old, black-and-white", "a t-shirt a 3-year-old black-and-white"),
        ("black/white and/or blue", "black/white and/or blue"),
        ('a "STOP" sign with \'s and “x”', "a stop sign with 's and x"),
        ("a man (left) [right]", "a man -lrb- left -rrb- -lsb- right -rsb-"),
        ("wait... -- no - well--done …", "wait no well done"),
        ("she cannot, gonna, wanna and gimme", "she can not gon na wan na and gim me"),
        ("Mr. Smith on Main St. in the U.S. at 5 p.m.", "mr. smith on main st. in the u.s. at 5 p.m."),
        ("near a tv. It is a dog.", "near a tv it is a dog"),
        ("plan b. The end, plan b. ends", "plan b the end plan b. ends"),
        ("jersey no. 5 or no. he", "jersey no. 5 or no he"),
        ("#5 at 5:30pm for $3.50, 50% off 1,000", "# 5 at 5:30 pm for $ 3.50 50 % off 1,000"),
        ("in the '90s and 1980's at 6 o'clock", "in the '90s and 1980 's at 6 o'clock"),
        ("rock 'n' roll, y'all ma'am O'Brien", "rock 'n' roll y' all ma'am o'brien"),
        ("b&w B&W AT&T black & white", "b & w b&w at&t black & white"),
        ("end.And then?? ok!", "end.and then ?? ok"),
        ("a café, 5° and ½ cup 😀", "a café 5 ° and 1/2 cup"),
        ("", ""),
        (" . \n", ""),
    ],
)
def test_words_of_a_caption(caption, words):
    assert ptb_tokenize(caption) == words.split()


def test_long_text_without_spaces_is_quick():
    # A quadratic pattern would take minutes.
    assert ptb_tokenize("a" * 20_000) == ["a" * 20_000]
    assert len(ptb_tokenize("a-" * 5_000)) == 1
    assert ptb_tokenize("." * 20_000) == []


def java_tokenize(captions: list[str]) -> list[list[str]]:
    pytest.importorskip("pycocoevalcap", reason="pycocoevalcap, which carries the Java tokenizer, is not installed")
    if shutil.which("java") is None:
        pytest.skip("the Java tokenizer needs Java")
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    tokenized = PTBTokenizer().tokenize({index: [{"caption": text}] for index, text in enumerate(captions)})
    return [tokenized[index][0].split() for index in range(len(captions))]


def flickr8k_captions() -> list[str]:
    if not FLICKR8K.is_file():
        pytest.skip("the Flickr8k captions are not in ../shared/data/flickr8k")
    return [line.rstrip("\n").split("\t")[1] for line in FLICKR8K.read_text(encoding="utf-8").splitlines()]


def agreement(captions: list[str]) -> float:
    pairs = zip(captions, java_tokenize(captions), strict=True)
    return sum(ptb_tokenize(caption) == words for caption, words in pairs) / len(captions)


UNUSUAL_WORDS = """
    isn't DON'T won't-he wouldn't've don'ts I'd've y'all's who's-who t-shirt's-dog man's-best-friend James's
    girls'team d'you o'clock's O'Brien-smith hors-d'oeuvre l'avventura Hawai'i hallowe'en bo'sun ha'penny
    jack-o'-lantern s'mores rock'n'roll R'n'B 'n' 'em 'til 'cause 'tis 'Twas 'bout 'the' ('the') "'the'" ’em ’90s
    ‘em 'emma 'n't cannot-x cannot's Cannot. LEMME! gonnabe wanna-be gotta, '90s-style mid-'90s '90's 5'10 5'10" 6'
    1990's. 3D's #1's dog.com. www.dog.com dog.net/foo http://a.b/c foo@bar.com @home #dog #5dog #dog-cat foo.jpg
    dog.the t-shirt.the the.t-shirt dog.mp3 dog.1 1.dog dog..cat dog...cat dog., dog.; dog.) dog." dog!cat dog?!
    dog!!cat b. b.) b.x U.S.A.'s u.s.-made a.m., Ph.D. PhD. J.P.Morgan St.-Louis Ave./x etc... etc.) jr. Jr., Mt.
    mt.x vs. Inc.'s No.5 no.x fig.5 vol.5 ca.1900 Mass. mass. Wash. wash. Ill. ill. Dr. dr.' blvd. mph. 5ft. lb.
    lb., Sat. Mon. dog/cat/cow/pig dog-cat/dog 1/2 11/12/2010 w/o w/ /dog // 3/4-length 5-1/2 24/7 1/2" é/a A/C's
    -dog dog- --dog a---b dog–cat a—b -5 -5-6 5-+5 anti- mid- 7-up dog-5.5 5.5-inch 5,000-dog 1:2-dog café-bar a_b
    _a a__b A&B-C A&Bc C++ A+B A+b a+b 5+5 US$5.50 $5-10 5% £5 €10 5¢ x½ m² 90°F 4×4 3,00 .5 ,000 16:9 12:30pm
    10a.m. :) :-( ;D :P =) dog:(cat) <br/> <dog-cat> <3 <<dog>> &amp; &lt; &#39; &quot;x&quot; &dog *dog* ** == ~5
    ^ | \\ a|b (dog) ((dog)) dog(s) [dog] {dog} -LRB- «dog» “dog” „dog“ … ‐ ♥ 中文 Русский dog😀cat zero\u200bwidth
""".split()


def test_agrees_with_java_on_unusual_words():
    captions = [f"x {word} y" for word in UNUSUAL_WORDS] + [f"x {word}" for word in UNUSUAL_WORDS]
    different = [
        (caption, ours, java)
        for caption, java in zip(captions, java_tokenize(captions), strict=True)
        if (ours := ptb_tokenize(caption)) != java
    ]
    assert different == []


def test_agrees_with_java_on_some_flickr8k_captions():
    assert agreement(flickr8k_captions()[::15]) >= 0.999


@pytest.mark.slow
def test_agrees_with_java_on_all_flickr8k_captions():
    captions = flickr8k_captions()
    assert agreement(captions) >= 0.999
    # Most captions have no space before the period.
    assert (
        agreement([caption.replace(" .", ".").replace(" ,", ",").replace(" 's", "'s") for caption in captions])
        >= 0.999
    )
