"""A task of lm-eval in files of its own: questions with two answers each."""

import json
from pathlib import Path

TASK = """task: small_questions
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""
QUESTIONS = [
    {"question": f"what sat on mat {number}?", "choices": ["the cat", "a dog, or ünder"], "answer": number % 2}
    for number in range(30)
]


def write_task(folder: Path) -> Path:
    """Write the task and its questions; return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / "questions.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    (folder / "small.yaml").write_text(TASK.format(data=data))
    return folder
