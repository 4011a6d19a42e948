"""Fill templates: `{slots}` from a page's focus, `[a|b]` choices at random.

Every random draw comes from the `random.Random` argument, so a page depends on its seed alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from generator.topics import read_toml

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from generator.topics import Measure, Topic

LISTS = read_toml("lists.toml")
FIRST_NAMES, SURNAMES, TOWNS, BRANDS = (LISTS[key].split() for key in ("first_names", "surnames", "towns", "brands"))
MONTHS, GERMAN_MONTHS = LISTS["months"].split(), LISTS["german_months"].split()
WEEKDAYS, SEASONS = LISTS["weekdays"].split(), LISTS["seasons"].split()

PLURALS = {
    "mitochondrion": "mitochondria", "nucleus": "nuclei", "bacterium": "bacteria", "nebula": "nebulae",
    "supernova": "supernovae", "hypothesis": "hypotheses", "knife": "knives", "loaf": "loaves",
    "scarf": "scarves", "corpus": "corpora", "fungus": "fungi", "SIM card": "SIM cards", "person": "people",
}  # fmt: skip
GERUNDS = {"cue": "cueing", "distil": "distilling", "true": "truing", "tie": "tying"}
PROPER = {"Roman", "Bayesian", "Vitamin", "Augustus", "Fresnel"}

MODERN = ("programming", "smartphones", "web_hosting", "video_games")

SLOT = re.compile(r"\{([a-z_0-9]+)\}")
CHOICE = re.compile(r"\[([^\[\]]*)\]")


def plural(noun: str) -> str:
    """Return the plural of an English noun phrase."""
    head, _, last = noun.rpartition(" ")
    if last in PLURALS:
        last = PLURALS[last]
    elif re.search(r"[^aeiou]y$", last):
        last = last[:-1] + "ies"
    elif re.search(r"(s|x|z|ch|sh)$", last):
        last += "es"
    else:
        last += "s"
    return f"{head} {last}".strip()


def gerund(act: str) -> str:
    """Turn a verb phrase in its base form into its -ing form."""
    verb, space, rest = act.partition(" ")
    if verb in GERUNDS:
        verb = GERUNDS[verb]
    elif verb.endswith("e") and not verb.endswith(("ee", "ye")):
        verb = verb[:-1] + "ing"
    elif re.fullmatch(r"[^aeiou]*[aeiou][^aeiouwxy]", verb):
        verb += verb[-1] + "ing"
    else:
        verb += "ing"
    return verb + space + rest


def article(phrase: str) -> str:
    """Put a or an before a phrase."""
    vowel = re.match(r"[aeioAEIO]|u(?!n[ai]|s|rn)|8|11|18|SIM|SM|hour|honest|X-|L\b", phrase)
    exception = re.match(r"(one|eu|European|uni|once)", phrase)
    return ("an " if vowel and not exception and not phrase.startswith("SIM") else "a ") + phrase


def capital(text: str) -> str:
    """Capitalise the first letter of a text."""
    for position, char in enumerate(text):
        if char.isalpha():
            return text[:position] + char.upper() + text[position + 1 :]
        if not (char in "\"'“(" or char.isspace()):
            break
    return text


def title_case(text: str) -> str:
    """Capitalise the words of a heading, except short particles."""
    small = {"a", "an", "and", "of", "the", "to", "in", "by", "for", "on", "with", "from"}
    words = text.split(" ")
    return " ".join(w if (w in small and i) else w[:1].upper() + w[1:] for i, w in enumerate(words))


def lower_start(sentence: str) -> str:
    """Make a sentence usable after a colon or conjunction: no capital at its start, no full stop."""
    first = sentence.split(" ", 1)[0].strip(",")
    text = sentence if first in PROPER or (first.isupper() and len(first) > 1) else sentence[0].lower() + sentence[1:]
    return text.rstrip(".")


class Draw:
    """Draws from a list without repeating an item until all have been used."""

    def __init__(self, rng: random.Random, items: Sequence[str]) -> None:
        self._rng = rng
        self._items = list(items)
        self._left: list[str] = []

    def __call__(self) -> str:
        """Return the next item."""
        if not self._left:
            self._left = self._rng.sample(self._items, len(self._items))
        return self._left.pop()


class Page:
    """The focus of one page: a topic, the part of its words this page dwells on, and its random source.

    A page uses only some of its topic's words, so that two pages on one topic differ as real ones do.
    """

    def __init__(self, topic: Topic, rng: random.Random) -> None:
        self.topic = topic
        self.rng = rng
        self.main = rng.choice(topic.things)
        self.theme = rng.choice(topic.themes)
        others = [thing for thing in topic.things if thing != self.main]
        self._pools: dict[str, Draw] = {
            "thing": Draw(rng, rng.sample(others, min(len(others), rng.randint(3, 7)))),
            "stuff": Draw(rng, rng.sample(topic.stuff, min(len(topic.stuff), rng.randint(2, 5)))),
            "adj": Draw(rng, rng.sample(topic.adjs, min(len(topic.adjs), rng.randint(3, 5)))),
            "theme": Draw(rng, [self.theme, self.theme, *rng.sample(topic.themes, rng.randint(0, 2))]),
            "act": Draw(rng, topic.acts),
            "problem": Draw(rng, topic.problems),
            "place": Draw(rng, rng.sample(topic.places, rng.randint(1, len(topic.places)))),
            "person": Draw(rng, topic.people),
            "product": Draw(rng, topic.products),
            "fact": Draw(rng, topic.facts),
        }
        self.measure: Measure = rng.choice(topic.measures)
        self.brand = rng.choice(BRANDS)
        self.town = rng.choice(TOWNS)
        self._names = Draw(rng, SURNAMES)
        self._made = self._slots()

    def _value(self) -> int:
        return self.rng.randint(self.measure.low, self.measure.high)

    def _within(self, share: float) -> str:
        """Return the value that lies at `share` of the measure's range."""
        measure = self.measure
        return f"{round(measure.low + share * (measure.high - measure.low))} {measure.unit}"

    def _role(self) -> str:
        if self.rng.random() < 0.5:
            return f"who chairs {self._organisation()}"
        return f"{article(self._pools['person']())} from {self.rng.choice(TOWNS)}"

    def _price(self, high: int = 180) -> str:
        currency = self.rng.choice("$£€")
        return f"{currency}{self.rng.randint(4, high)}.{self.rng.choice(['00', '49', '90', '95', '99'])}"

    def _name(self) -> str:
        return f"{self.rng.choice(FIRST_NAMES)} {self._names()}"

    def _organisation(self) -> str:
        pattern: str = self.rng.choice(LISTS["organisations"])
        return pattern.format(town=self.rng.choice(TOWNS), title=self.topic.title, surname=self._names())

    def _slots(self) -> dict[str, Callable[[], str]]:
        rng, pool, unit = self.rng, self._pools, self.measure.unit
        modern = self.topic.name in MODERN
        return {
            "a_adj": lambda: article(pool["adj"]()),
            "a_main": lambda: article(self.main),
            "a_mname": lambda: article(self.measure.name),
            "a_person": lambda: article(pool["person"]()),
            "a_role": self._role,
            "a_thing": lambda: article(pool["thing"]()),
            "act_cap": lambda: capital(pool["act"]()),
            "acting": lambda: gerund(pool["act"]()),
            "acting_title": lambda: capital(gerund(pool["act"]())),
            "age": lambda: str(rng.randint(52, 84)),
            "brand": lambda: self.brand,
            "day": lambda: str(rng.randint(1, 28)),
            "factmid": lambda: lower_start(self.expand(pool["fact"]())),
            "first": lambda: rng.choice(FIRST_NAMES),
            "hundreds": lambda: str(rng.randint(2, 60) * 50),
            "main": lambda: self.main,
            "main_title": lambda: capital(self.main),
            "mains": lambda: plural(self.main),
            "mhigh": lambda: self._within(0.8),
            "mlow": lambda: self._within(0.15),
            "mname": lambda: self.measure.name,
            "month": lambda: rng.choice(MONTHS),
            "month_de": lambda: rng.choice(GERMAN_MONTHS),
            "mval": lambda: f"{self._value()} {unit}",
            "n": lambda: str(rng.randint(2, 9)),
            "n05": lambda: str(rng.randint(2, 4)),
            "name": self._name,
            "nn": lambda: str(rng.randint(12, 97)),
            "org": self._organisation,
            "pct": lambda: str(rng.randint(4, 78)),
            "people": lambda: plural(pool["person"]()),
            "person_title": lambda: title_case(pool["person"]()),
            "price": self._price,
            "price_big": lambda: f"£{rng.randint(3, 940)},000",
            "product_title": lambda: title_case(pool["product"]()),
            "recent": lambda: str(rng.randint(2012, 2024)),
            "season": lambda: rng.choice(SEASONS),
            "shop": lambda: f"{self.brand} {rng.choice(['Store', 'Outlet', 'Direct', 'Shop'])}",
            "sku": lambda: f"{self.brand[:3].upper()}-{rng.randint(1000, 99999)}",
            "stuff_cap": lambda: capital(pool["stuff"]()),
            "stuff_title": lambda: title_case(pool["stuff"]()),
            "surname": self._names,
            "theme_title": lambda: capital(self.theme),
            "thing_title": lambda: capital(pool["thing"]()),
            "things": lambda: plural(pool["thing"]()),
            "title_word": self.topic.title.split(" ")[-1].capitalize,
            "topic": lambda: self.topic.title,
            "topic_lower": lambda: self.topic.title if self.topic.name in ("programming", "ancient_rome")
            else self.topic.title.lower(),
            "town": lambda: self.town,
            "town_upper": self.town.upper,
            "weekday": lambda: rng.choice(WEEKDAYS),
            "years": lambda: str(rng.randint(3, 38)),
            "year": lambda: str(rng.randint(1871, 1968) if not modern else rng.randint(1986, 2001)),
            "year2": lambda: str(rng.randint(1969, 2011) if not modern else rng.randint(2002, 2014)),
        }  # fmt: skip

    def fill(self, slot: str) -> str:
        """Return a text for one slot; a digit at the end asks for one more draw from the same slot."""
        for name in (slot, slot.rstrip("0123456789")):
            if name in self._pools:
                return self.expand(self._pools[name]())
            if name in self._made:
                return self._made[name]()
        raise KeyError(slot)

    def expand(self, template: str) -> str:
        """Resolve all choices and slots of one template and capitalise its sentences."""
        while (choice := CHOICE.search(template)) is not None:
            picked = self.rng.choice(choice[1].split("|"))
            template = template[: choice.start()] + picked + template[choice.end() :]
        text = SLOT.sub(lambda match: self.fill(match[1]), template)
        text = re.sub(r"([a-z0-9\"”)][.?!] )([a-z])", lambda match: match[1] + match[2].upper(), text)
        return re.sub(r" +", " ", text).strip()

    def sentence(self, template: str) -> str:
        """Resolve one template as a sentence that starts with a capital."""
        return capital(self.expand(template))
