"""How much memory and time a training may take."""

import json
import subprocess
import sys


def test_a_search_for_settings_has_half_of_the_memory():
    script = (
        "import mmap, os\n"
        "from fineweb_mask.models.quality.fasttext.training import _limit_memory\n"
        "_limit_memory()\n"
        "whole = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')\n"
        "mmap.mmap(-1, whole // 4).close()\n"  # pages that are never written take no memory
        "try:\n"
        "    mmap.mmap(-1, whole * 6 // 10)\n"
        "except OSError:\n"
        "    print('refused')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "refused"


def test_a_search_that_does_not_end_by_itself_is_ended(tmp_path):
    """As one whose own timer ended before the search began: this one has ten minutes, and is given two seconds."""
    examples, validation, model = (tmp_path / name for name in ("examples.txt", "validation.txt", "model.bin"))
    lines = [f"__label__{number % 2} {'good' if number % 2 else 'bad'} word{number % 7}\n" for number in range(200)]
    examples.write_text("".join(lines))
    validation.write_text("".join(lines[:40]))
    options = json.dumps({"autotuneValidationFile": str(validation), "autotuneDuration": 600, "seed": 0})
    script = (
        "import sys\n"
        "from fineweb_mask.models.quality.fasttext import training\n"
        "training.GRACE_SECONDS = -598.0\n"
        "training._main(*sys.argv[1:])\n"
    )
    command = [sys.executable, "-c", script, str(examples), str(model), options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert "Aborting autotune" in done.stderr
    assert model.stat().st_size > 0
