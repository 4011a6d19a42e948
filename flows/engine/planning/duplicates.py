"""Plan which jobs find the duplicates across shards: exact ones by their hashes, then near ones."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from fineweb_mask.flows.engine.planning.state import State
from fineweb_mask.flows.engine.scheduler import add_all
from fineweb_mask.tasks.dedup.arrivals import in_order_of_arrival, remember_arrivals
from fineweb_mask.tasks.dedup.buckets import bucket_jobs
from fineweb_mask.tasks.dedup.duplicates import DedupJob, no_duplicates
from fineweb_mask.tasks.dedup.k_means import CentresJob
from fineweb_mask.tasks.dedup.near_duplicates import NearDedupJob
from fineweb_mask.tasks.dedup.sort import SortJob
from fineweb_mask.tasks.workspace.job import StageJob
from fineweb_mask.tasks.workspace.references import StageFile


class Duplicates:
    """Finds the duplicates across the shards of a run, and enters them in its state.

    Parameters
    ----------
    state
        What is known of the shards.
    model_of_vectors
        Returns a digest of what made a shard's vectors.
    """

    def __init__(self, state: State, model_of_vectors: Callable[[StageFile], str]) -> None:
        self._state, self._model_of_vectors = state, model_of_vectors
        self._hashed: set[str] = set()
        self._sketched: set[str] = set()
        self._dedup_job: DedupJob | None = None  # once every shard is ingested
        self._near_job: NearDedupJob | None = None  # once exact duplicates are known, too
        self._centres: StageFile | None = None  # of cells of vectors
        self._begun: set[str] = set()
        is_near = state.settings.ingest.near_dedup != "off"
        self._exact: dict[str, StageFile] = {} if is_near else state.duplicates  # by shard

    def find(self) -> None:
        """Sort the hashes of every shard when it is ingested, and compare all shards when the last one's are sorted.

        Where duplicates are not looked for across shards, a shard waits for no other.
        """
        state = self._state
        self.sort_hashes()
        if state.settings.ingest.exact_dedup == "corpus":
            state.jobs.expect("dedup", 1)
            state.ask(self._compare)
        else:
            state.ask(self._keep_all)
        if state.settings.ingest.near_dedup != "off":
            state.jobs.expect("dedup", 1)
            state.ask(self._compare_near)

    def sort_hashes(self) -> None:
        """Sort the hashes of every shard when it is ingested, and sketch its texts, if shards are to be compared."""
        state = self._state
        if state.settings.ingest.exact_dedup == "corpus":
            state.ask_per_shard("dedup", self._hash_job, self._on_hashed)
        if state.settings.ingest.near_dedup != "off":
            state.ask_per_shard("dedup", self._signature_job, self._on_sketched)

    def compare_vectors(self, shard: str) -> None:
        """Go on with near-duplicates that are found by vectors, those of one more shard being there."""
        state = self._state
        if state.settings.ingest.near_dedup != "semantic":
            return
        sample = [name for name in state.sample if name in state.documents and name not in state.jobs.quarantined]
        is_sampled = state.ingested.issuperset(state.sample) and all(name in state.embeddings for name in sample)
        if is_sampled and sample and "centres" not in self._begun:
            self._begun.add("centres")
            state.jobs.expect("dedup", 1)
            job = CentresJob(
                root=state.root,
                embeddings=[state.embeddings[name] for name in sample],
                model=self._model_of_vectors(state.documents[sample[0]]),
                settings=state.settings.ingest.semantic,
            )
            state.jobs.add(job, self._on_centres)
        state.changed(shard)

    def _on_centres(self, file: StageFile | None) -> None:
        self._centres = file
        self._state.changed()

    def _keep_all(self, shard: str | None) -> None:
        for name in self._state.documents if shard is None else [shard]:
            if name in self._state.documents:
                self._exact[name] = no_duplicates(name)

    def _hash_job(self, documents: StageFile) -> SortJob:
        return SortJob(root=self._state.root, by="hash", file=documents)

    def _on_hashed(self, job: StageJob, file: StageFile | None) -> None:
        if file is not None:
            self._hashed.add(job.name)
            self._compare(None)

    def _compare(self, _shard: str | None) -> None:
        """Compare all shards, bucket by bucket, unless an earlier run listed the duplicates of every shard."""
        state = self._state
        if "dedup" in self._begun or len(state.ingested) < len(state.shards) or not state.documents:
            return
        if self._dedup_job is None:
            self._dedup_job = self._in_order_of_arrival()
            is_again = DedupJob.stage.name in state.refresh
            if not is_again and self._dedup_job.current(state.listing) is not None:  # hashes that are lost do not count
                self._begun.add("dedup")
                state.jobs.add(self._dedup_job, partial(self._on_deduplicated, self._dedup_job))
                return
        if len(self._hashed) == len(state.documents):
            self._begun.add("dedup")
            memory_limit = state.settings.materialize.memory_limit
            buckets = bucket_jobs(state.root, "repeats", self._dedup_job.sorted_rows, memory_limit)
            add_all(state.jobs, buckets, partial(self._on_compared, self._dedup_job))

    def _in_order_of_arrival(self) -> DedupJob:
        hashes = [self._hash_job(shard).reference(shard.rows) for shard in self._arrived()]
        return DedupJob(root=self._state.root, sorted_rows=hashes)

    def _arrived(self) -> list[StageFile]:
        """Return the documents of all shards in the order in which they came, which is remembered."""
        state = self._state
        with state.workspace.alone() if state.remembers else nullcontext():
            names = in_order_of_arrival(state.workspace, state.documents)
            if state.remembers:
                remember_arrivals(state.workspace, names)
        return [state.documents[name] for name in names]

    def _on_compared(self, job: DedupJob, buckets: list[StageFile]) -> None:
        self._state.jobs.add(job.model_copy(update={"buckets": tuple(buckets)}), partial(self._on_deduplicated, job))

    def _on_deduplicated(self, job: DedupJob, file: StageFile | None) -> None:
        if file is not None:
            self._exact.update(self._state.files_of_job(job))
            self._compare_near(None)

    def _signature_job(self, documents: StageFile) -> SortJob | None:
        """Return what makes a shard's documents comparable with those of others, if what it reads is there."""
        settings = self._state.settings.ingest
        if settings.near_dedup == "minhash":
            return SortJob(root=self._state.root, by="signatures", file=documents, minhash=settings.minhash)
        if self._centres is None or documents.name not in self._state.embeddings:
            return None
        embeddings = self._state.embeddings[documents.name]
        return SortJob(
            root=self._state.root, by="cells", file=embeddings, semantic=settings.semantic, centres=self._centres
        )

    def _on_sketched(self, job: StageJob, file: StageFile | None) -> None:
        if file is not None:
            self._sketched.add(job.name)
            self._compare_near(None)

    def _compare_near(self, _shard: str | None) -> None:
        """Compare the signatures of all shards, unless an earlier run listed the near-duplicates of every shard."""
        state = self._state
        settings = state.settings.ingest
        if settings.near_dedup == "off" or "near_dedup" in self._begun or not state.documents:
            return
        if len(state.ingested) < len(state.shards) or len(self._exact) < len(state.documents):
            return
        if self._near_job is None:
            waiting = state.documents.keys() - state.embeddings.keys() - state.jobs.quarantined.keys()
            if settings.near_dedup == "semantic" and (self._centres is None or waiting):
                return
            keys = settings.minhash.bands if settings.near_dedup == "minhash" else 1
            shards = [(shard, job) for shard in self._arrived() if (job := self._signature_job(shard)) is not None]
            self._near_job = NearDedupJob(
                root=state.root,
                sorted_rows=[job.reference(keys * shard.rows) for shard, job in shards],
                exact=[self._exact[shard.name] for shard, _ in shards],
            )
            is_again = NearDedupJob.stage.name in state.refresh
            if not is_again and self._near_job.current(state.listing) is not None:
                self._begun.add("near_dedup")
                state.jobs.add(self._near_job, partial(self._on_near_deduplicated, self._near_job))
                return
        if self._sketched.issuperset(self._near_job.shard_names):
            self._begun.add("near_dedup")
            rows, memory_limit = self._near_job.sorted_rows, state.settings.materialize.memory_limit
            if settings.near_dedup == "minhash":
                buckets = bucket_jobs(state.root, "pairs", rows, memory_limit)
            else:
                dimensions = max(int(file.details["dimensions"]) for file in state.embeddings.values())
                threshold = settings.semantic.threshold
                buckets = bucket_jobs(
                    state.root, "similar", rows, memory_limit, threshold=threshold, dimensions=dimensions
                )
            add_all(state.jobs, buckets, partial(self._on_paired, self._near_job))

    def _on_paired(self, job: NearDedupJob, buckets: list[StageFile]) -> None:
        self._state.jobs.add(
            job.model_copy(update={"buckets": tuple(buckets)}), partial(self._on_near_deduplicated, job)
        )

    def _on_near_deduplicated(self, job: NearDedupJob, file: StageFile | None) -> None:
        if file is not None:
            self._state.duplicates.update(self._state.files_of_job(job))
