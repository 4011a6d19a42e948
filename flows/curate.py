"""The pipeline: ingest -> score -> embed -> select -> materialize, each stage cached, over all shards of a source."""

from prefect import flow

from fineweb_mask.flows.engine.plan import Curation
from fineweb_mask.flows.engine.scheduler import Refreshed, Run
from fineweb_mask.flows.engine.session import Refit, open_session, prepare, runner
from fineweb_mask.flows.summary import Quarantined, RunSummary
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.workspace.counts import mean_terms


@flow(name="curate", flow_run_name="curate {settings.workspace}", cache_result_in_memory=False)
def curate(
    settings: PipelineSettings, refit: list[Refit] | None = None, refresh: list[Refreshed] | None = None
) -> RunSummary:
    """Turn the raw documents of a source into a selected dataset.

    Parameters
    ----------
    settings
        The recipe.
    refit
        What was fitted on the corpus earlier and is to be fitted anew on the corpus as it is now.
    refresh
        Stages that are run again although their files are current.

    Raises
    ------
    BadShardError
        If no shard can be read, or one cannot and `ingest.on_bad_shard` is `fail`.
    """
    with open_session(settings, refit=refit, refresh=refresh) as (run, curation, shown):
        prepare(run, curation)
        curation.plan_selection()
        run.work()
        curation.plan_dataset()
        run.work()
        curation.plan_report(run.times)
        run.work()
        summary = _summary(run, curation)
        shown.publish(summary, run.workspace.reports)
        return summary


def _summary(run: Run, curation: Curation) -> RunSummary:
    counts, workspace = curation.counts, run.workspace
    objective, terms = mean_terms(curation.groups)
    dataset = curation.output.display_path
    return RunSummary(
        status="quarantined" if run.quarantined else "done",
        workspace=workspace.display_path(workspace.root),
        dataset=dataset,
        card=f"{dataset}/README.md",
        report=workspace.display_path(workspace.reports / "index.html"),
        documents_in=counts.documents_in,
        documents_kept=counts.selected,
        not_selected=counts.not_selected,
        dropped=counts.dropped,
        quarantined=[Quarantined(shard=shard, reason=reason) for shard, reason in run.quarantined.items()],
        counts=counts,
        stages=run.in_order,
        busy_seconds=run.busy_seconds,
        objective=objective,
        terms=terms,
        blocks=len(curation.blocks),
    )


def run_curate(
    settings: PipelineSettings, refit: list[Refit] | None = None, refresh: list[Refreshed] | None = None
) -> RunSummary:
    """Run the pipeline in this process with the recipe's engine."""
    return curate.with_options(task_runner=runner(settings))(settings, refit, refresh)
