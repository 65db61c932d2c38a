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
"""Word-level tokenizers, trained from captions and stored as a plain `tokenizer.json`."""

from collections import Counter
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast


EOS_TOKEN, UNK_TOKEN, PAD_TOKEN = "<eos>", "<unk>", "<pad>"  # ids 0, 1 and 2
# A word is letters, marks and digits of any script, with apostrophes and hyphens inside; all else separates words.
NOT_A_WORD = r"[^\p{L}\p{M}\p{N}'’-]+|(?<![\p{L}\p{M}\p{N}])['’-]+|['’-]+(?![\p{L}\p{M}\p{N}])"


def train_word_tokenizer(
    captions: Iterable[str], vocab_size: int = 10000, min_frequency: int = 1, max_length: int = 100
) -> PreTrainedTokenizerFast:
    r"""
    Makes a tokenizer of the words in `captions`: lower case, no punctuation, an end token after each caption.

    Args:
        captions (`Iterable[str]`):
            The training captions.
        vocab_size (`int`, *optional*, defaults to 10000):
            The most words to keep, the three special tokens included. The most frequent are kept.
        min_frequency (`int`, *optional*, defaults to 1):
            Words seen less often are unknown words.
        max_length (`int`, *optional*, defaults to 100):
            Longer captions are cut to this many tokens, the end token included.

    Returns:
        [`PreTrainedTokenizerFast`]: Loadable by `AutoTokenizer` with no code of this package.
    """
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNK_TOKEN))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(NOT_A_WORD), behavior="removed")

    counts = Counter()
    for index, caption in enumerate(captions):
        if not isinstance(caption, str):
            raise TypeError(f"Caption {index} must be a string, got {type(caption).__name__}: {caption!r}.")
        words = tokenizer.pre_tokenizer.pre_tokenize_str(tokenizer.normalizer.normalize_str(caption))
        counts.update(word for word, _ in words)
    special_tokens = [EOS_TOKEN, UNK_TOKEN, PAD_TOKEN]
    # Ties are broken by the alphabet, so that the same captions in any order give the same vocabulary.
    words = sorted((word for word, count in counts.items() if count >= min_frequency), key=lambda w: (-counts[w], w))
    if not words:
        raise ValueError(f"There is no word that `captions` hold `min_frequency={min_frequency}` times or more.")
    vocabulary = {word: id for id, word in enumerate((special_tokens + words)[:vocab_size])}

    tokenizer.model = models.WordLevel(vocabulary, unk_token=UNK_TOKEN)
    tokenizer.add_special_tokens(special_tokens)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS_TOKEN}", special_tokens=[(EOS_TOKEN, vocabulary[EOS_TOKEN])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=EOS_TOKEN,
        unk_token=UNK_TOKEN,
        pad_token=PAD_TOKEN,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )


def special_token_fields(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The fields of a config that a word tokenizer decides: the size of the vocabulary and the special tokens."""
    return {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "unk_token_id": tokenizer.unk_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "decoder_start_token_id": tokenizer.eos_token_id,
    }


def train_wordpiece_tokenizer(texts: Iterable[str], vocab_size: int = 1000, max_length: int = 128) -> BertTokenizer:
    r"""
    Makes a BERT tokenizer of the words in `texts`, for models that are trained from scratch.

    Args:
        texts (`Iterable[str]`):
            The training texts.
        vocab_size (`int`, *optional*, defaults to 1000):
            The most word pieces, the five special tokens included.
        max_length (`int`, *optional*, defaults to 128):
            Longer texts are cut to this many tokens.
    """
    special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    untrained = BertTokenizer(vocab={token: id for id, token in enumerate(special_tokens)})
    tokenizer = untrained.train_new_from_iterator(texts, vocab_size)
    tokenizer.model_max_length = max_length
    return tokenizer
