"""Build one page of each kind. `grade` is how well it was made: 0 poor, 1 ordinary, 2 good."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from generator.grammar import LISTS, Draw, Page, capital, title_case
from generator.topics import lines, read_toml

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

TEMPLATES: dict[str, dict[str, list[str]]] = {
    kind: {pool: lines(text) for pool, text in pools.items()} for kind, pools in read_toml("templates.toml").items()
}
FARMS: dict[str, Any] = read_toml("farms.toml")
LANGUAGES: dict[str, dict[str, list[str]]] = {
    code: {pool: lines(text) for pool, text in pools.items()} for code, pools in read_toml("languages.toml").items()
}

MEDIAN_WORDS = {
    "reference": 330, "tutorial": 300, "essay": 380, "news": 220, "forum": 210, "blog": 240, "listing": 80,
    "marketing": 150, "boilerplate": 80, "keyword_spam": 90,
}  # fmt: skip
SEQUENCE = re.compile(
    r"^(First|To begin with|Start as follows|Next|Then|After that|Now|At this point|Finally|As a last step|"
    r"To finish)[:,]? "
)
JOINABLE = {"The", "A", "An", "In", "If", "Two", "There", "Most", "It", "This", "Since", "Because"}
USER_WORDS = LISTS["user_words"].split()
CODE_TOPICS = {"programming": 0.9, "statistics": 0.3, "web_hosting": 0.3, "electric_circuits": 0.08}


def length(rng: random.Random, kind: str) -> int:
    """Draw a page length in words: log-normal around the kind's median, between 20 and 2,700."""
    return int(min(2700, max(20, MEDIAN_WORDS[kind] * rng.lognormvariate(0.0, 0.68))))


def paragraphs(page: Page, draw: Callable[[], str], words: int, connect: float = 0.0) -> list[str]:
    """Write sentences from a pool until there are `words` words, broken into paragraphs of uneven length."""
    written = 0
    out: list[str] = []
    current: list[str] = []
    limit = page.rng.randint(40, 120)
    while written < words:
        sentence = page.sentence(draw())
        if current and page.rng.random() < connect:
            joint = page.rng.choice(TEMPLATES["connectives"]["words"])
            start = sentence.split(" ", 1)[0]
            if start in JOINABLE:
                sentence = f"{joint} {sentence[0].lower()}{sentence[1:]}"
        current.append(sentence if sentence[-1] in '.?!"):' else f"{sentence}.")
        written += len(sentence.split())
        if sum(len(s.split()) for s in current) >= limit:
            out.append(" ".join(current))
            current, limit = [], page.rng.randint(40, 120)
    if current:
        out.append(" ".join(current))
    return out


def reference(page: Page, grade: int, words: int) -> str:
    """Write an encyclopedic page: lead, sections with headings, references; a stub if it is poor."""
    pools, rng = TEMPLATES["reference"], page.rng
    out = [page.expand(rng.choice(pools["titles"]))]
    if grade == 0:
        body = Draw(rng, pools["poor"] + rng.sample(pools["sentences"], 3))
        return "\n".join(out + paragraphs(page, body, min(words, rng.randint(30, 130))))
    out.append(page.sentence(rng.choice(pools["leads"])))
    extra = pools["poor"][:2] * (2 - grade) + TEMPLATES["essay"]["sentences"][2:6] * (2 - grade)
    body = Draw(rng, pools["sentences"] + extra)
    heading = Draw(rng, pools["headings"])
    left = words - len(out[-1].split())
    sectioned = rng.random() < 0.7
    while left > 0:
        part = min(left, rng.randint(70, 260))
        if sectioned and len(out) > 2:
            out.append(capital(page.expand(heading())))
        out += paragraphs(page, body, part, connect=0.15)
        left -= part
    out += [page.sentence(line) for line in rng.sample(pools["ends"], rng.randint(0, 2))]
    return "\n".join(out)


def code_block(page: Page) -> str:
    """Return a few lines of program text with the page's own names."""
    rng = page.rng
    word = page.fill("thing").lower().replace(" ", "_").replace("-", "_")
    verb = page.fill("act").split(" ")[0]
    values = {
        "f": f"{verb}_{word}", "x": page.main.lower().replace(" ", "_").replace("-", "_"),
        "c": title_case(word.replace("_", " ")).replace(" ", ""),
        "m": rng.choice(["csv", "json", "math", "itertools"]),
        "n": rng.randint(2, 90), "k": rng.randint(2, 90), "j": rng.randint(2, 90), "z": rng.randint(0, 2),
    }  # fmt: skip
    template: str = rng.choice(LISTS["code"])
    return template.format(**values)


def tutorial(page: Page, grade: int, words: int) -> str:
    """Write numbered steps with explanations; a poor one has steps without content."""
    pools, rng = TEMPLATES["tutorial"], page.rng
    out = [page.expand(rng.choice(pools["titles"]))]
    if grade == 0:
        body = Draw(rng, pools["poor"] + TEMPLATES["blog"]["sentences"][:5])
        return "\n".join(out + paragraphs(page, body, min(words, rng.randint(40, 160))))
    out.append(page.sentence(rng.choice(pools["leads"])))
    if rng.random() < 0.5:
        needs = {page.fill("thing") for _ in range(4)} | {page.fill("stuff")}
        out.append("You will need:\n" + "\n".join(f"- {item}" for item in sorted(needs)))
    steps, explain = (
        Draw(rng, pools["steps"]),
        Draw(rng, pools["explain"] + pools["explain"][:3] * (grade - 1)),
    )
    style = rng.choice(["{}. ", "Step {}: ", "{}) ", ""])
    written, number = 0, 1
    while written < words:
        step = page.sentence(steps())
        if style:
            step = capital(SEQUENCE.sub("", step))
        more = [
            page.sentence(explain()) for _ in range(rng.choice([0, 1, 1, 2, 3]) if grade == 2 else rng.randint(0, 1))
        ]
        out.append(style.format(number) + " ".join([step, *more]))
        written += len(out[-1].split())
        if rng.random() < CODE_TOPICS.get(page.topic.name, 0.0) * 0.7:
            out.append(code_block(page))
        number += 1
    out += [page.sentence(line) for line in rng.sample(pools["ends"], rng.randint(0, 2))]
    return "\n".join(out)


def essay(page: Page, grade: int, words: int) -> str:
    """Write a reasoned piece; a poor one drifts into phrases."""
    rng = page.rng
    pool = TEMPLATES["essay"]["sentences"]
    if grade == 2:
        pool = pool + TEMPLATES["reference"]["sentences"][:8]
    if grade == 0:
        pool = pool[2:8] + TEMPLATES["marketing"]["sentences"] + TEMPLATES["blog"]["sentences"][:4]
    title = page.expand(rng.choice(TEMPLATES["essay"]["titles"]))
    return "\n".join([title, f"By {page.fill('name')}", *paragraphs(page, Draw(rng, pool), words, connect=0.08)])


def news(page: Page, grade: int, words: int) -> str:
    """Write a report with a lead and quotes."""
    pools, rng = TEMPLATES["news"], page.rng
    pool = pools["sentences"] + TEMPLATES["reference"]["sentences"][:3] * (grade // 2)
    head = [page.sentence(rng.choice(pools["titles"]))]
    if rng.random() < 0.5:
        head.append(f"By {page.fill('name')}, {page.fill('month')} {page.fill('day')}, {page.fill('recent')}")
    head.append(page.sentence(rng.choice(pools["leads"])))
    body = paragraphs(page, Draw(rng, pool), words)
    if rng.random() < 0.25:
        body = [sentence.strip() for block in body for sentence in block.replace('." ', '."\n').split("\n")]
    return "\n".join(head + body)


def forum(page: Page, grade: int, words: int) -> str:
    """Write a thread: a question, replies that quote one another, and replies that say nothing."""
    pools, rng = TEMPLATES["forum"], page.rng
    users = [
        rng.choice(USER_WORDS) + rng.choice(USER_WORDS) + str(rng.randint(1, 99)) for _ in range(rng.randint(2, 6))
    ]
    weights = {0: (0, 2, 6), 1: (2, 5, 2), 2: (6, 3, 0.5)}[grade]
    draws = [Draw(rng, pools[name]) for name in ("good", "mid", "junk")]
    out = [page.sentence(rng.choice(pools["titles"]))]
    posts = [page.sentence(rng.choice(pools["questions"]))]
    header = rng.choice(["{} wrote:", "Re: {title}\nby {}", "{} - {date}", "Posted by {}"])
    for number in range(1, 60):
        if sum(len(post.split()) for post in posts) >= words and number > 2:
            break
        draw = rng.choices(draws, weights)[0]
        text = " ".join(page.expand(draw()) for _ in range(rng.choice([1, 1, 2, 3])))
        if rng.random() < 0.3:
            quoted = rng.choice(posts).split("\n")[-1]
            text = f"> {quoted[: rng.randint(60, 220)].rsplit(' ', 1)[0]}\n{text}"
        posts.append(text)
    for number, post in enumerate(posts):
        user = users[0] if number == 0 else rng.choice(users)
        date = f"{page.fill('day')} {page.fill('month')} {page.fill('recent')}"
        out.append(header.format(user, title=out[0], date=date) + "\n" + post)
    return "\n".join(out)


def blog(page: Page, grade: int, words: int) -> str:
    """Write a personal page; a good one holds some knowledge, a poor one none."""
    rng = page.rng
    pool = list(TEMPLATES["blog"]["sentences"])
    if grade == 2:
        pool += TEMPLATES["tutorial"]["explain"][:4] + TEMPLATES["essay"]["sentences"][:4]
    if grade == 0:
        pool = pool[:5] + pool[9:] + TEMPLATES["forum"]["junk"][7:]
    date = f"Posted on {page.fill('month')} {page.fill('day')}, {page.fill('recent')} by {page.fill('first')}"
    return "\n".join(
        [
            page.expand(rng.choice(TEMPLATES["blog"]["titles"])),
            date,
            *paragraphs(page, Draw(rng, pool), words),
        ]
    )


def listing(page: Page, grade: int, words: int) -> str:
    """Write a product page: specification lines, prices, a few sentences."""
    pools, rng = TEMPLATES["listing"], page.rng
    out = [page.expand(rng.choice(pools["titles"]))]
    out += [page.expand(line) for line in rng.sample(pools["specs"], rng.randint(4, len(pools["specs"])))]
    draw = Draw(rng, pools["sentences"] + TEMPLATES["tutorial"]["explain"][:2] * (grade // 2))
    while sum(len(line.split()) for line in out) < words:
        out.append(page.sentence(draw()))
    return "\n".join(out)


def marketing(page: Page, grade: int, words: int) -> str:
    """Write elevated prose that says nothing."""
    rng = page.rng
    pool = TEMPLATES["marketing"]["sentences"] + TEMPLATES["essay"]["sentences"][2:5] * (grade // 2)
    title = title_case(page.expand(rng.choice(TEMPLATES["marketing"]["titles"])))
    return "\n".join([title, *paragraphs(page, Draw(rng, pool), words)])


def boilerplate(page: Page, grade: int, words: int) -> str:
    """Write navigation, notices and empty shells."""
    rng = page.rng
    draw = Draw(rng, TEMPLATES["boilerplate"]["lines"])
    out: list[str] = []
    while len(out) < 3 or sum(len(line.split()) for line in out) < words:
        out.append(page.expand(draw()))
        if grade and rng.random() < 0.08:
            out.append(page.sentence(rng.choice(TEMPLATES["reference"]["poor"])))
    return "\n".join(out)


def keyword_spam(page: Page, grade: int, words: int) -> str:
    """Write a page stuffed with commercial keywords; grade 1 and 2 carry a few other sentences."""
    pools, rng = TEMPLATES["keyword_spam"], page.rng
    out = [page.expand(rng.choice(pools["titles"]))]
    draw = Draw(rng, pools["lines"])
    while sum(len(line.split()) for line in out) < words:
        out.append(page.expand(draw()))
        if rng.random() < 0.12 * grade:
            out.append(page.sentence(rng.choice(TEMPLATES["reference"]["sentences"])))
    return "\n".join(out)


BUILDERS: dict[str, Callable[[Page, int, int], str]] = {
    "reference": reference, "tutorial": tutorial, "essay": essay, "news": news, "forum": forum, "blog": blog,
    "listing": listing, "marketing": marketing, "boilerplate": boilerplate, "keyword_spam": keyword_spam,
}  # fmt: skip


def surround(page: Page, text: str) -> str:
    """Put a few lines of navigation and notices around a page, as extraction often leaves them."""
    pool, rng = TEMPLATES["boilerplate"]["lines"], page.rng
    head = [page.expand(line) for line in rng.sample(pool, rng.randint(0, 2))]
    tail = [page.expand(line) for line in rng.sample(pool, rng.randint(1, 3))]
    return "\n".join([*head, text, *tail])


def scraped_spam(page: Page, source: str, farm: dict[str, Any]) -> str:
    """Write a spam farm's page: paragraphs of somebody's good page inside the farm's own text."""
    rng = page.rng
    blocks = [block for block in source.split("\n")[1:] if len(block.split()) > 12]
    rng.shuffle(blocks)
    kept, words = [], 0
    wanted = rng.randint(50, 130)
    for block in blocks:
        if words >= wanted:
            break
        kept.append(block)
        words += len(block.split())
    before, after = ([page.sentence(line) for line in lines(farm[part])] for part in ("before", "after"))
    title = page.expand(rng.choice(lines(farm["titles"])))
    return "\n".join([title, *before, *kept, *after])


def network_links(operator: str) -> str:
    """Return the text that ends every page of one spam operator."""
    return "\n".join(lines(FARMS["network"][operator]))


def other_language(page: Page, code: str, words: int) -> str:
    """Write a page in another language, about a topic for which that language has nouns."""
    rng = page.rng
    nouns = {}
    for line in LANGUAGES[code]["nouns"]:
        topic, _, listed = line.partition(": ")
        nouns[topic] = listed.split("; ")
    draw, sentence = Draw(rng, nouns[page.topic.name]), Draw(rng, LANGUAGES[code]["sentences"])
    out: list[str] = [capital(draw())]
    while sum(len(line.split()) for line in out) < words:
        block = []
        for _ in range(rng.randint(2, 5)):
            template = sentence()
            for slot in ("noun2", "noun_cap", "noun"):
                while "{" + slot + "}" in template or "{noun2_cap}" in template:
                    template = template.replace("{noun2_cap}", capital(draw()), 1)
                    noun = draw()
                    template = template.replace("{" + slot + "}", capital(noun) if slot == "noun_cap" else noun, 1)
            block.append(page.expand(template))
        out.append(" ".join(block))
    return "\n".join(out)


def language_topics() -> dict[str, list[str]]:
    """Return, per language code, the topics it has nouns for."""
    return {code: [line.partition(":")[0] for line in pools["nouns"]] for code, pools in LANGUAGES.items()}
