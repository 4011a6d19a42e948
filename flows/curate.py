"""Run the pipeline over all shards of a source: ingest, fit, score, embed, deduplicate, select, materialize, report."""

from prefect import flow

from fineweb_mask.flows.display.run_names import named
from fineweb_mask.flows.engine.choices import Refit
from fineweb_mask.flows.engine.records import summarize
from fineweb_mask.flows.engine.session import open_session, rebuilds_damaged, runner
from fineweb_mask.flows.recipe import with_overrides
from fineweb_mask.flows.summary import RunSummary
from fineweb_mask.models.settings import Overrides, PipelineSettings
from fineweb_mask.tasks.registry import Refreshed


@flow(name="curate", flow_run_name=named("curate"), cache_result_in_memory=False)
@rebuilds_damaged
def curate(
    settings: PipelineSettings,
    refit: list[Refit] | None = None,
    refresh: list[Refreshed] | None = None,
    overrides: Overrides | None = None,
) -> RunSummary:
    """Turn the raw documents of a source into a selected dataset.

    Parameters
    ----------
    settings
        The recipe.
    refit
        What is fitted again on the corpus as it is now: the encoder, the quality models.
    refresh
        Stages that run again although their files are current.
    overrides
        Settings in place of the recipe's, by section: `{"selection": {"lamb": 0.3}}`.

    Raises
    ------
    BadShardError
        If no shard can be read, or one cannot and `ingest.on_bad_shard` is `fail`.
    """
    settings = with_overrides(settings, overrides)
    with open_session(settings, refit=refit, refresh=refresh) as session:
        session.plan.run_all()
        summary = summarize(session.scheduler, session.plan)
        session.ui.publish(summary, session.scheduler.workspace.reports)
        return summary


def run_curate(
    settings: PipelineSettings, refit: list[Refit] | None = None, refresh: list[Refreshed] | None = None
) -> RunSummary:
    """Run the pipeline in this process with the recipe's engine."""
    return curate.with_options(task_runner=runner(settings))(settings, refit, refresh)
