"""How much memory a training may take."""

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
