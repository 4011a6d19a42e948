"""Make texts whose fate under deduplication and filters is known: prose, pages of a template, edited copies.

All are the same for the same seed, and hold no text of anyone.
"""

import random
import re

from fineweb_mask.models.errors import DataError

NOUNS = (
    "archive bakery bridge captain choir coast committee cottage council craft crew doctor engine factory farmer "
    "festival field forest garden glacier harbour hospital hotel island journal kitchen laboratory lake lantern "
    "library lighthouse machine map market meadow mill mountain museum neighbour newspaper orchard painter path "
    "pilot plan quarry railway recipe reporter river road sailor school shepherd station storm student summer "
    "teacher theatre tower town traveller tunnel valley village violin visitor weaver window winter workshop"
).split()
VERBS = (
    "admired bought built carried changed chose crossed described designed discovered explained finished followed "
    "found improved inspected joined kept left measured mended moved noticed opened painted passed planned praised "
    "prepared protected reached remembered repaired replaced reported saved searched showed studied visited watched"
).split()
ADJECTIVES = (
    "ancient bright broken busy careful cheap cold curious distant early empty famous friendly gentle heavy hidden "
    "honest large late little local lonely modern narrow northern patient plain quiet rough sandy serious sharp "
    "simple slow small steady strange strong sunny tall tired useful warm western wide wooden young"
).split()
FRAMES = (
    "The {a} {n} {v} the {n} that had been with the {n} for {d} years.",
    "In the {n}, a {a} {n} {v} every {n}, and they have {v} it to this day.",
    "When the {n} {v} the {a} {n}, nobody of the {n} had to be told why.",
    "It is said that the {a} {n} near the {n} {v} more than {d} of them.",
    "She {v} the {n} before the {a} {n} of the {n} was {v} again.",
    "They have {v} a {a} {n} and, with the help of the {n}, a {a} {n}.",
    "Most of what the {n} {v} in that {a} year came to the {n} by the {n}.",
    "A {n} of the {n} wrote that the {a} {n} and the {n} should be {v} together.",
)
WORDS = [*NOUNS, *VERBS, *ADJECTIVES]
SPLIT = re.compile(r"(\s+)")


def prose(dice: random.Random, words: int = 300) -> str:
    """Return a clean page of at least so many words, in paragraphs: what no filter of the usual ones drops.

    >>> prose(random.Random(1), words=10)
    'In the map, a curious tunnel prepared every tower, and they have painted it to this day.'
    """
    paragraphs, so_far = list[str](), 0
    while so_far < words:
        sentences = [_sentence(dice) for _ in range(min(dice.randint(3, 6), -(-(words - so_far) // 15)))]
        paragraphs.append(" ".join(sentences))
        so_far += len(paragraphs[-1].split())
    return "\n\n".join(paragraphs)


def _sentence(dice: random.Random) -> str:
    lists = {"n": NOUNS, "v": VERBS, "a": ADJECTIVES}
    return re.sub(
        r"\{(.)\}",
        lambda found: str(dice.randint(3, 99)) if found[1] == "d" else dice.choice(lists[found[1]]),
        dice.choice(FRAMES),
    )


class Template:
    """What pages of one template share: runs of words, each followed by words of a page's own, and then four words.

    Of the runs of five words of two such pages, 0.56 are in both by Jaccard, and yet they say different things.
    """

    def __init__(self, dice: random.Random, runs: int = 5, shared: int = 40, own: int = 10) -> None:
        self.runs = [" ".join(prose(dice, shared).split()[:shared]) for _ in range(runs)]
        self.end, self.own = draw(dice, 4), own

    def page(self, dice: random.Random) -> str:
        """Return one page, with words of its own."""
        parts = [f"{run} {draw(dice, self.own)}." for run in self.runs]
        return "\n".join([*parts, f"{self.end}."])


def draw(dice: random.Random, words: int) -> str:
    """Return random words."""
    return " ".join(dice.choices(WORDS, k=words))


def edited(text: str, share: float, dice: random.Random) -> str:
    r"""Return a copy of a text with a share of its words, one at least, replaced by another; what is between stays.

    Raises
    ------
    DataError
        If the text has no words.

    Examples
    --------
    >>> edited("one two  three\nfour", 0.25, random.Random(0))
    'one two  three\nsaved'
    """
    parts = SPLIT.split(text)
    at = [place for place, part in enumerate(parts) if part and not part.isspace()]
    if not at:
        raise DataError("a text that is edited must have a word, received none: give one that is not empty")
    for place in dice.sample(at, max(1, round(share * len(at)))):
        old = parts[place]
        parts[place] = dice.choice([word for word in WORDS if word != old])
    return "".join(parts)
