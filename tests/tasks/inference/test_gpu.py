"""One task at a time uses the GPU; others do not wait for it."""

import threading

from fineweb_mask.tasks.inference.gpu import gpu_slot


def test_a_gpu_is_one_task_s_at_a_time_and_the_processor_everybody_s():
    entered = threading.Event()

    def second():
        with gpu_slot("cuda:0"):
            entered.set()

    waiting = threading.Thread(target=second)
    with gpu_slot("cuda:0"), gpu_slot("cpu"), gpu_slot("cpu"):
        waiting.start()
        assert not entered.wait(0.1)
    waiting.join(10)
    assert entered.is_set()
