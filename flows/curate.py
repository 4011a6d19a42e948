"""Run the pipeline over all shards of a source: ingest, fit, score, embed, deduplicate, select, materialize, report."""

from prefect import flow

from fineweb_mask.flows.engine.choices import Refit
from fineweb_mask.flows.engine.registry import Refreshed
from fineweb_mask.flows.engine.session import Session, open_session, rebuilds_damaged, runner
from fineweb_mask.flows.summary import RunSummary
from fineweb_mask.models.settings import PipelineSettings
from fineweb_mask.tasks.workspace.counts import mean_terms


@flow(name="curate", flow_run_name="curate {settings.workspace}", cache_result_in_memory=False)
@rebuilds_damaged
def curate(
    settings: PipelineSettings, refit: list[Refit] | None = None, refresh: list[Refreshed] | None = None
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

    Raises
    ------
    BadShardError
        If no shard can be read, or one cannot and `ingest.on_bad_shard` is `fail`.
    """
    with open_session(settings, refit=refit, refresh=refresh) as session:
        plan = session.plan
        plan.ingest()  # shard by shard; the shards of the sample that is fitted on come first
        plan.fit()  # the score statistics and the built-in encoder, when their sample is ingested
        plan.score()  # each shard, when it is ingested and the statistics are fitted
        plan.embed()  # each shard, when it is ingested and the encoder is fitted
        plan.deduplicate()  # across shards, when the last one is ingested
        plan.write_early()  # each part of the dataset, when its own shards are selected from
        plan.select()  # from each block, when all shards are prepared, or its own if it depends on no others
        plan.materialize()
        plan.report()
        summary = _summary(session)
        session.ui.publish(summary, session.scheduler.workspace.reports)
        return summary


def _summary(session: Session) -> RunSummary:
    run, plan = session.scheduler, session.plan
    counts = plan.counts
    objective, terms = mean_terms(plan.groups)
    dataset = plan.output.display_path
    return RunSummary.of(
        run.workspace,
        run.quarantined,
        run.in_order,
        dataset=dataset,
        card=f"{dataset}/README.md",
        report=run.workspace.reports / "index.html",
        documents_in=counts.documents_in,
        documents_kept=counts.selected,
        not_selected=counts.not_selected,
        dropped=counts.dropped,
        counts=counts,
        busy_seconds=run.busy_seconds,
        objective=objective,
        terms=terms,
        blocks=len(plan.blocks),
    )


def run_curate(
    settings: PipelineSettings, refit: list[Refit] | None = None, refresh: list[Refreshed] | None = None
) -> RunSummary:
    """Run the pipeline in this process with the recipe's engine."""
    return curate.with_options(task_runner=runner(settings))(settings, refit, refresh)
