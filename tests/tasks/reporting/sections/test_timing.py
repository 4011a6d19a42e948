"""Time by stage: a stage without time has no rate."""

from fineweb_mask.tasks.reporting.sections.timing import StageTime, time_by_stage


def test_a_stage_without_time_has_no_rate():
    stage = StageTime(stage="ingest", files=1, documents=5)
    assert time_by_stage([stage]).tables[0].rows == [["ingest", 1, 0, 0.0, 0.0, 5, None]]
