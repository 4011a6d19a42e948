"""Fuzz a target with Atheris, which changes the seeds and keeps what reaches new code: see `make fuzz`.

Arguments: the target, the folder for what is found, the seconds; others are libFuzzer's. An input that fails is written
into the folder as `TARGET-crash-...`: put it into the seeds with the mending, so that the tests replay it.
"""

import sys
from pathlib import Path


def main() -> None:
    import atheris  # of the extra `fuzz`

    with atheris.instrument_imports(include=["fineweb_mask.tasks.source", "json"]):
        from tests.fuzz.targets import SEEDS, TARGETS

    target, folder, seconds, *options = sys.argv[1:]
    corpus = Path(folder) / target
    corpus.mkdir(parents=True, exist_ok=True)
    folders = [str(corpus), str(SEEDS / target)]  # what reaches new code is added to the first
    given = [f"-max_total_time={seconds}", f"-artifact_prefix={folder}/{target}-", "-rss_limit_mb=4096", *options]
    atheris.Setup([sys.argv[0], *given, *folders], TARGETS[target])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
