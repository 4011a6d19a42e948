"""Damage pages in ways after which a page is worse to anyone, so that a score can be asked which it prefers."""

import random
import re

BOILERPLATE = (
    "Home | About us | Products | Contact | Sitemap\n"
    "We use cookies to give you the best experience. By using this site you agree to our use of cookies.\n"
    "Share this: Facebook | Twitter | Pinterest | Email. Subscribe to our newsletter and never miss a post!\n"
    "Copyright. All rights reserved. Terms of use | Privacy policy"
)
SENTENCE = re.compile(r"(?<=[.!?])\s+")


def damaged(text: str, dice: random.Random) -> dict[str, str]:
    r"""Return the damaged copies of a text, by what was done.

    `lines shuffled` takes sentences where there are few lines, `boilerplate` puts what surrounds pages twice around
    the text, `cut off` ends it within a word, and `words shuffled` leaves its words in any order.

    Examples
    --------
    >>> found = damaged("One two. Three four. Five six.", random.Random(0))
    >>> found["lines shuffled"], found["cut off"]
    ('Three four.\nFive six.\nOne two.', 'One two. Three')
    """
    lines = [line for line in text.split("\n") if line.strip()]
    parts = lines if len(lines) > 3 else SENTENCE.split(text.strip())
    words = text.split()
    return {
        "lines shuffled": "\n".join(dice.sample(parts, len(parts))),
        "boilerplate": f"{BOILERPLATE}\n{BOILERPLATE}\n{text}\n{BOILERPLATE}\n{BOILERPLATE}",
        "cut off": text[: len(text) // 2 - 1].rstrip(),
        "words shuffled": " ".join(dice.sample(words, len(words))),
    }
