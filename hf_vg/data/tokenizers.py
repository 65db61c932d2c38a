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
"""Trains word-level and WordPiece tokenizers on captions."""

from collections import Counter
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast


EOS_TOKEN, UNK_TOKEN, PAD_TOKEN = "<eos>", "<unk>", "<pad>"  # ids 0, 1 and 2
# A word has letters, marks and digits of any script, and apostrophes and hyphens inside. All other characters
# separate words.
NOT_A_WORD = r"[^\p{L}\p{M}\p{N}'’-]+|(?<![\p{L}\p{M}\p{N}])['’-]+|['’-]+(?![\p{L}\p{M}\p{N}])"


def train_word_tokenizer(
    captions: Iterable[str], vocab_size: int = 10000, min_frequency: int = 1, max_length: int = 100
) -> PreTrainedTokenizerFast:
    r"""
    Trains a word-level tokenizer on captions. It makes text lower case, removes punctuation, and adds an end token.

    Args:
        captions (`Iterable[str]`):
            The training captions.
        vocab_size (`int`, *optional*, defaults to 10000):
            Maximum size of the vocabulary, including three special tokens. The most frequent words are kept.
        min_frequency (`int`, *optional*, defaults to 1):
            Words that appear less often become the unknown token.
        max_length (`int`, *optional*, defaults to 100):
            Longer captions are cut to this many tokens, including the end token.

    Returns:
        [`PreTrainedTokenizerFast`]: A tokenizer that `AutoTokenizer` loads without hf_vg.

    Example:

    ```python
    >>> from hf_vg.data import train_word_tokenizer

    >>> tokenizer = train_word_tokenizer(["A dog runs.", "A brown dog!"])
    >>> tokenizer.tokenize("a brown cat", add_special_tokens=True)
    ['a', 'brown', '<unk>', '<eos>']
    ```
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
    # Ties are sorted alphabetically, so that the vocabulary does not depend on the order of the captions.
    words = sorted((word for word, count in counts.items() if count >= min_frequency), key=lambda w: (-counts[w], w))
    if not words:
        raise ValueError(f"No word in `captions` appears at least `min_frequency={min_frequency}` times.")
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
    """
    Collects the config fields that depend on a word-level tokenizer: the vocabulary size and the special tokens.

    Args:
        tokenizer ([`PreTrainedTokenizerBase`]):
            A tokenizer of [`train_word_tokenizer`].

    Returns:
        `dict[str, int]`: Fields to pass to a config.

    Example:

    ```python
    >>> from hf_vg.data import special_token_fields, train_word_tokenizer

    >>> special_token_fields(train_word_tokenizer(["a dog runs"]))
    {'vocab_size': 6, 'eos_token_id': 0, 'unk_token_id': 1, 'pad_token_id': 2, 'decoder_start_token_id': 0}
    ```
    """
    return {
        "vocab_size": len(tokenizer),
        "eos_token_id": tokenizer.eos_token_id,
        "unk_token_id": tokenizer.unk_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "decoder_start_token_id": tokenizer.eos_token_id,
    }


def train_wordpiece_tokenizer(texts: Iterable[str], vocab_size: int = 1000, max_length: int = 128) -> BertTokenizer:
    r"""
    Trains a BERT tokenizer on texts, for models that are trained from scratch.

    Args:
        texts (`Iterable[str]`):
            The training texts.
        vocab_size (`int`, *optional*, defaults to 1000):
            Maximum number of word pieces, including five special tokens.
        max_length (`int`, *optional*, defaults to 128):
            Longer texts are cut to this many tokens.

    Returns:
        [`BertTokenizer`]: The tokenizer.

    Example:

    ```python
    >>> from hf_vg.data import train_wordpiece_tokenizer

    >>> tokenizer = train_wordpiece_tokenizer(["a dog runs", "a dog sleeps"])
    >>> tokenizer.tokenize("a dog", add_special_tokens=True)
    ['[CLS]', 'a', 'dog', '[SEP]']
    ```
    """
    special_tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    untrained = BertTokenizer(vocab={token: id for id, token in enumerate(special_tokens)})
    tokenizer = untrained.train_new_from_iterator(texts, vocab_size)
    tokenizer.model_max_length = max_length
    return tokenizer
