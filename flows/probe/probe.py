"""Train the same small language model on several selections and datasets, and compare them on held-out documents."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from fineweb_mask.flows.curate import prepare
from fineweb_mask.flows.display.prefect_ui import announce
from fineweb_mask.flows.pipeline.fit import fit_targets
from fineweb_mask.flows.pipeline.inputs import check_inputs
from fineweb_mask.flows.pipeline.run import Run
from fineweb_mask.flows.pipeline.selector_runs import published
from fineweb_mask.flows.pipeline.start import as_flow, start_run
from fineweb_mask.flows.recipe import change, validate, with_overrides
from fineweb_mask.flows.summary import PageSummary
from fineweb_mask.models.errors import SettingsError
from fineweb_mask.models.probe.settings import MOST_REPEATS, PRESETS, Arm, Preset, ProbeSettings
from fineweb_mask.models.settings import FIRST_IN_FORM, Overrides, PipelineSelectionSettings, PipelineSettings
from fineweb_mask.models.settings.selection import Unit
from fineweb_mask.tasks.comparison.page import check_label_column
from fineweb_mask.tasks.comparison.variants import (
    ALL,
    SelectorError,
    VariantJob,
    check_selectors,
    missing_for,
    reads_targets,
    shared_settings,
)
from fineweb_mask.tasks.dataset.output import Output
from fineweb_mask.tasks.inference.model_files import model_file
from fineweb_mask.tasks.probe.held_out import HeldOutJob
from fineweb_mask.tasks.probe.losses import VariantFiles
from fineweb_mask.tasks.probe.page import BASELINE, ProbeJob
from fineweb_mask.tasks.probe.training import AnswerJob, TokenizerJob, TokensJob, TrainJob, tokens_for_all
from fineweb_mask.tasks.selection.blocks import grouped
from fineweb_mask.tasks.source.discovery import find_files
from fineweb_mask.tasks.workspace.references import ShardFiles, StageFile, file_digest


class ProbeSummary(PageSummary):
    """What a probe found; `fineweb-mask probe --json` prints it."""

    tokens: int
    arms: dict[str, dict[str, Any]]
    bits_per_byte: dict[str, dict[str, dict[str, Any]]]
    comparisons: dict[str, list[dict[str, Any]]]


@as_flow("probe")
def probe(
    settings: PipelineSettings,
    models: ProbeSettings | None = None,
    budget_by: Unit = "tokens",
    overrides: Overrides = FIRST_IN_FORM,
) -> ProbeSummary:
    """Train models on every arm and write a page on what they learn; the pipeline's own masks stay as they are.

    Parameters
    ----------
    settings
        The recipe: its documents, budget, metrics, lamb and seed are those of all arms that change nothing.
    models
        The arms, the size of the models, and what they are measured on.
    budget_by
        What every selection gets an equal share of, `selection.select_ratio`. A recipe that sets `selection.budget`
        instead keeps its unit.
    overrides
        Settings instead of the recipe's, by section: `{"selection": {"lamb": 0.3}}`.

    Raises
    ------
    SettingsError
        If an arm, a file or a column does not exist.
    DataError
        If there is too little to hold out or to train on.
    """
    settings, models = with_overrides(settings, overrides), models or ProbeSettings()
    check(settings, models)
    with start_run(settings, keep=False) as run:
        ready = prepare(run)
        has_targets = reads_targets(selectors_of(models))
        targets = fit_targets(run, ready.documents, ready.models) if has_targets else None
        selection = shared_settings(settings.selection, budget_by)
        job = _Probe(run, ready.shards, targets, models, selection).page()
        written = run.one(job)
        table = [
            {"held-out set": name, "arm": arm, **{key: value for key, value in figures.items() if key != "seeds"}}
            for name, arms in written.details["bits_per_byte"].items()
            for arm, figures in arms.items()
        ]
        note = "Bits per byte of models trained on each arm; less is better."
        found = written.details | {"documents": sum(shard.rows for shard in ready.shards), "tokens": job.n_tokens}
        summary = published(ProbeSummary, run, job.folder, table, note, **found)
        verdict = verdict_of(next(arm.name for arm in models.arms if arm.name != BASELINE), summary.comparisons)
        payload = summary.model_dump(include={"workspace", "page", "comparisons"}) | {"verdict": verdict}
        place = Output.of(run.workspace, settings.materialize).display_path
        announce("probe.verdict", settings.workspace, payload | {"dataset": place}, verdict=verdict)
        return summary


def verdict_of(arm: str, comparisons: Mapping[str, Sequence[Mapping[str, Any]]], baseline: str = BASELINE) -> str:
    """Return what is found of an arm beside random documents: `worse` on any held-out set, `better` on one, or neither.

    >>> verdict_of("a", {"pool": [{"arm": "a", "other": "random", "verdict": "better"}], "own": []})
    'better'
    >>> verdict_of("a", {"pool": [{"arm": "random", "other": "a", "verdict": "better"}]})
    'worse'
    """
    turned = {"better": "worse", "worse": "better"}
    found = set()
    for one in (one for pairs in comparisons.values() for one in pairs):
        if (one["arm"], one["other"]) == (arm, baseline):
            found.add(one["verdict"])
        elif (one["arm"], one["other"]) == (baseline, arm):
            found.add(turned.get(one["verdict"], ""))
    return next((verdict for verdict in ("worse", "better") if verdict in found), "undecided")


def check(settings: PipelineSettings, models: ProbeSettings) -> None:
    """Check that everything that is named exists, before any work.

    Raises
    ------
    SettingsError
        With the name of what is missing.
    """
    if find_spec("accelerate") is None:
        raise SettingsError("the probe trains with accelerate: install fineweb-mask with the extra 'probe'")
    from fineweb_mask.models.witness.tokens import load_tokenizer

    if tasks := tasks_of(models):
        if find_spec("lm_eval") is None:
            raise SettingsError(
                "downstream tasks need lm-eval: install fineweb-mask with the extra 'probe-tasks', or leave them out "
                "with --tasks none"
            )
        from fineweb_mask.models.probe.downstream import check_tasks

        check_tasks(tasks, None if models.tasks_folder is None else Path(models.tasks_folder))
    check_selectors(selectors_of(models) or ["random"], missing_for(settings))
    for arm in models.arms:
        arm_settings(settings.selection, arm)
        if arm.path is not None:
            find_files(arm.path, f"arm {arm.name}")
    for name, path in models.heldout.items():
        find_files(path, f"heldout {name}")
    for path in models.benchmarks:
        find_files(path, "benchmarks")
    preset = preset_of(models)
    if preset.tokenizer is not None:
        load_tokenizer(model_file(preset.tokenizer, "tokenizer"))
    shards = check_inputs(settings).shards
    if models.by is not None:
        check_label_column(models.by, shards, settings.source)


def preset_of(models: ProbeSettings) -> Preset:
    """Return the preset, with the tokenizer of the settings if they name one."""
    preset = PRESETS[models.preset]
    if models.tokenizer is None:
        return preset
    return preset.model_copy(update={"vocabulary": None, "tokenizer": models.tokenizer})


def tasks_of(models: ProbeSettings) -> list[str]:
    """Return the downstream tasks: those of the settings, else the preset's."""
    return list(PRESETS[models.preset].tasks) if models.tasks is None else models.tasks


def arm_settings(selection: PipelineSelectionSettings, arm: Arm) -> PipelineSelectionSettings:
    """Return the settings of an arm's selection.

    Raises
    ------
    RecipeError
        If the arm changes a key that does not exist, or to a value that is not allowed.
    """
    content = selection.model_dump(exclude_unset=True)
    change(content, arm.changes.items(), f"arm {arm.name}:")
    return validate(PipelineSelectionSettings, content)


def selectors_of(models: ProbeSettings) -> list[str]:
    """Return the selectors of a probe's arms.

    Raises
    ------
    SelectorError
        If an arm is `all`.
    """
    found = [arm.selector for arm in models.arms if arm.selector is not None]
    if ALL in found:
        raise SelectorError(f"arms: {ALL} is not a selector: name each, because every arm is trained on")
    return found


START = "common-start"
"""The arm of random documents that the common start of every seed is trained on."""
OTHER_DRAW = 1_000_003
"""Added to the seed of the selection, so that these are other documents than those of the arm `random`."""


class _Probe(NamedTuple):
    """Runs the jobs of one probe, in the order of what they need."""

    run: Run
    shards: list[ShardFiles]
    targets: StageFile | None
    models: ProbeSettings
    selection: PipelineSelectionSettings

    @property
    def arms(self) -> list[Arm]:
        """The arms, and that of the common start."""
        start = Arm(name=START, selector="random", changes={"seed": self.selection.seed + OTHER_DRAW})
        return [*self.models.arms, *([] if self.models.from_scratch else [start])]

    def page(self) -> ProbeJob:
        """Return the job that writes the page, when all models are trained."""
        run, models, preset, tasks = self.run, self.models, preset_of(self.models), tasks_of(self.models)
        holding = HeldOutJob(
            root=run.root,
            shards=self.shards,
            files={name: find_files(path, f"heldout {name}") for name, path in models.heldout.items()},
            benchmarks=[file for path in models.benchmarks for file in find_files(path, "benchmarks")],
            by=models.by,
            most=preset.held_out,
            most_per_group=preset.held_out_per_group,
            share=models.held_out_share,
            threshold=run.settings.selection.near_duplicates.threshold,
        )
        held_out = run.one(holding)
        excluded = holding.excluded()
        assert excluded is not None  # noqa: S101 - it was built
        path = None if preset.tokenizer is None else model_file(preset.tokenizer, "tokenizer")
        making = TokenizerJob(
            root=run.root,
            documents=[shard.documents for shard in self.shards],
            excluded=list(excluded.values()),
            vocabulary=preset.vocabulary,
            path=None if path is None else str(path),
            path_digest=None if path is None else file_digest(path),
        )
        tokenizer = run.one(making)
        groups, masks = self._select(excluded)
        tokens = self._tokenize(masks, held_out, tokenizer)
        n_tokens = tokens_for_all(preset, models.tokens, tokens, MOST_REPEATS if models.from_scratch else 1)
        seeds = range(models.seed, models.seed + models.seeds)

        def training(arm: str, seed: int, **others: Any) -> TrainJob:  # noqa: ANN401 - fields of the job
            return TrainJob(
                root=run.root,
                arm=arm,
                seed=seed,
                preset_name=models.preset,
                preset=preset,
                n_tokens=n_tokens,
                tokens=tokens[arm],
                held_out=held_out,
                tokenizer=tokenizer,
                **others,
            )

        starts: dict[int, StageFile | None] = dict.fromkeys(seeds)
        if not models.from_scratch:
            common = [training(START, seed, keeps_model=True) for seed in seeds]
            starts = dict(zip(seeds, run.all(common, at_once=1), strict=True))
        trainings = [  # the first seed of all arms first
            training(arm.name, seed, keeps_model=bool(tasks), start=starts[seed])
            for seed in seeds
            for arm in models.arms
        ]
        trained = run.all(trainings, at_once=1)
        asking = [
            AnswerJob(
                root=run.root,
                arm=training.arm,
                seed=training.seed,
                preset_name=training.preset_name,
                context=preset.context,
                tasks=tasks,
                tasks_folder=models.tasks_folder,
                model=model,
            )
            for training, model in zip(trainings, trained, strict=True)
        ]
        answers = run.all(asking, at_once=1) if tasks else []
        return ProbeJob(
            root=run.root,
            settings=models,
            selection=self.selection,
            n_tokens=n_tokens,
            is_verdict=preset.is_verdict,
            arms={
                arm.name: VariantFiles(
                    tokens=tokens[arm.name],
                    groups=groups[arm.name],
                    models=trained[place :: len(models.arms)],
                    answers=answers[place :: len(models.arms)],
                )
                for place, arm in enumerate(models.arms)
            },
            excluded=excluded,
            held_out=held_out,
        )

    def _select(
        self, excluded: Mapping[str, StageFile]
    ) -> tuple[dict[str, list[StageFile]], dict[str, list[StageFile]]]:
        """Select from what is left of the corpus; return each arm's groups and masks, of a dataset none."""
        shards = [shard.model_copy(update={"duplicates": excluded[shard.name]}) for shard in self.shards]
        jobs = [
            VariantJob(
                root=self.run.root,
                shards=group,
                settings=settings,
                selector=arm.selector,
                arm=arm.name,
                ranges=None,
                targets=self.targets,
            )
            for arm in self.arms
            if arm.selector is not None
            for settings in [arm_settings(self.selection, arm)]
            for group in grouped(shards, settings)
        ]
        groups: dict[str, list[StageFile]] = {arm.name: [] for arm in self.arms}
        masks: dict[str, list[StageFile]] = {arm.name: [] for arm in self.arms}
        for job, file in zip(jobs, self.run.all(jobs, at_once=1), strict=True):
            groups[str(job.arm)].append(file)
            masks[str(job.arm)] += job.shard_files() or []
        return groups, masks

    def _tokenize(
        self, masks: Mapping[str, list[StageFile]], held_out: StageFile, tokenizer: StageFile
    ) -> dict[str, StageFile]:
        documents = {shard.name: shard.documents for shard in self.shards}
        jobs = [
            TokensJob(
                root=self.run.root,
                arm=arm.name,
                documents=[documents[mask.name] for mask in masks[arm.name]],
                masks=masks[arm.name],
                files=[] if arm.path is None else find_files(arm.path, f"arm {arm.name}"),
                held_out=held_out,
                tokenizer=tokenizer,
                shuffled=arm.shuffled,
            )
            for arm in self.arms
        ]
        return {job.arm: file for job, file in zip(jobs, self.run.all(jobs), strict=True)}
