"""The first tokens of a text, of which no more is read than they need."""

from collections.abc import Sequence

from tokenizers import Encoding, Tokenizer

CHARS_PER_TOKEN = 8
"""Characters read at first for each token wanted; English web text has 4 to 5."""
GROWTH = 8  # times as many characters are read where those gave too few tokens
MOST_CHARS_PER_TOKEN = 512
"""Characters read at most for each token wanted: words and blanks of thousands of characters are no text."""
LOOK_AHEAD = 16  # tokens beyond the last one wanted, that the end of what was read may have changed


def first_tokens(tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int) -> list[list[int]]:
    """Return the token ids of each text, special ones included, cut to `max_tokens`.

    The same as tokenising the whole text and cutting then, but of a text of megabytes only the start is read: as much
    as it takes for the last token wanted to lie in an earlier word than the last one read, or `MOST_CHARS_PER_TOKEN`
    characters for each token. A lone surrogate is read as "?".

    Parameters
    ----------
    tokenizer
        A tokenizer that neither cuts nor pads, and splits a text into words from left to right.
    texts
        Documents.
    max_tokens
        Most tokens per text.
    """
    wanted = max_tokens - tokenizer.num_special_tokens_to_add(is_pair=False)
    found: dict[int, list[int]] = {}
    pending = list(range(len(texts)))
    chars, most_chars = CHARS_PER_TOKEN * max_tokens, MOST_CHARS_PER_TOKEN * max_tokens
    while pending:
        starts = [texts[index][:chars].encode("utf-8", "replace").decode() for index in pending]
        encodings = tokenizer.encode_batch(starts, add_special_tokens=False)
        for index, encoding in zip(pending, encodings, strict=True):
            if chars >= min(len(texts[index]), most_chars) or _is_settled(encoding, wanted):
                encoding.truncate(wanted)
                found[index] = tokenizer.post_process(encoding).ids
        pending = [index for index in pending if index not in found]
        chars *= GROWTH
    return [found[index] for index in range(len(texts))]


def _is_settled(encoding: Encoding, wanted: int) -> bool:
    """Return whether more text would leave the first `wanted` tokens as they are."""
    read = len(encoding)
    if read < wanted + LOOK_AHEAD:
        return False
    return wanted == 0 or encoding.token_to_word(wanted - 1) != encoding.token_to_word(read - 1)
