"""`trainsim advise`: which parallelism, and why, for training and for inference; and what makes a plan fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import UserError
from ..files import atomic
from ._advice import print_remedies, print_steps
from ._show import Count, checked_path, json_option, long_option, print_json, print_notes, progress, say, set_option, trust_option

if TYPE_CHECKING:
    from ..advise.remedies import Remedy
    from ..advise.training_advice import TrainingAdvice
    from ..config.document import Document

USUAL_TOKENS = 8192
"""Default number of tokens of a training sequence."""
MOST_GPUS, MOST_SEQUENCES, MOST_TOKENS = 2**20, 2**24, 2**27
OF_TRAINING = ("sequence_length", "global_batch", "microbatch_size")
"""Options for training only, and for inference only."""
OF_INFERENCE = ("batch", "context")


@click.command("advise", short_help="Recommend a parallelism, or changes to make a plan fit.")
@click.argument("model")
@click.option("--cluster", help="A name that `trainsim catalog clusters` lists, or a YAML file.")
@click.option("--gpus", type=Count(1, MOST_GPUS), help="Number of GPUs.  [default: all GPUs of the cluster]")
@click.option("--inference", is_flag=True, help="Advise on serving the model instead of training it.")
@click.option("--sequence-length", type=Count(1, MOST_TOKENS), help="Training: tokens of a sequence.  [default: 8192]")
@click.option("--global-batch", type=Count(1, MOST_SEQUENCES), help="Training: sequences per step.  [default: by number of GPUs]")
@click.option("--microbatch-size", type=Count(1, MOST_SEQUENCES), help="Training: sequences per microbatch.  [default: 1]")
@click.option("--batch", type=Count(1, MOST_SEQUENCES), help="Inference: sequences decoded per replica.  [default: 16]")
@click.option("--context", type=Count(1, MOST_TOKENS), help="Inference: tokens of a sequence.  [default: 8192]")
@click.option("--dtype", help="Number format: of training, or of the weights for inference.  [default: bf16]")
@click.option("--out", metavar="FILE.yaml", callback=checked_path((".yaml", ".yml")), help="Write the scenario to this file.")
@set_option
@trust_option
@long_option
@json_option
def command(
    model: str, cluster: str | None, gpus: int | None, inference: bool, out: str | None, settings: tuple[str, ...], trust: bool,
    long: bool, as_json: bool, **sizes: Any,
) -> None:  # fmt: skip
    """Recommend a parallelism for MODEL, a name or a YAML file, on GPUs of a cluster.

    The advice follows the usual order of reasoning: one GPU, tensor parallelism in a node, a pipeline across nodes, sharding,
    experts, long inputs, the bubble. Each step names the number that decided it, its proposals, and their simulated step times;
    the fastest plan is printed as a scenario for `trainsim run`. With --inference the steps are arithmetic on weights, KV
    cache and memory bandwidth, with the times of GEMMs and all-reduces; no server is simulated.

    Without --cluster, MODEL is a scenario: the advice is for its model, cluster, job and framework. If its own plan does not fit,
    the cheapest changes that make it fit come first.
    """
    from ..simulation.memory_check import notes

    _refuse_extras(cluster, inference, {**sizes, "gpus": gpus, "out": out, "set": settings or None})
    if inference:
        _serve(model, str(cluster), gpus, sizes, as_json=as_json, trust=trust)
        return
    with progress("simulating"):
        document = _document(model, cluster, gpus, sizes, settings, trust=trust)
        advice, found, lines = _train(document, Path(out or "").parent, long=long, trust=trust)
    text = "\n".join([*lines, ""])
    if out:
        with atomic(out) as file:
            file.write_text(text, encoding="utf-8")
    if as_json:
        print_json({**advice.as_dict(), "yaml": text, "remedies": [one.as_dict() for one in found]})
        return
    if found:
        print_remedies(found)
        say()
    print_steps(advice.summary)
    print_notes(notes(advice.scenario, [advice.best.candidate.memory]))
    say(f"written to {out}, which `trainsim run` takes" if out else f"\n{text}", nl=bool(out))


def _refuse_extras(cluster: str | None, inference: bool, options: dict[str, Any]) -> None:
    """Refuses options that do not apply to the kind of advice; advice on inference needs a cluster."""
    if inference and not cluster:
        raise UserError("--cluster is missing", hint="trainsim advise llama3-70b --inference --cluster dgx-h100 --gpus 8")
    of_scenario = (*OF_INFERENCE, *OF_TRAINING, "dtype", "gpus")
    useless = (*OF_TRAINING, "out", "set") if inference else OF_INFERENCE if cluster else of_scenario
    if wrong := [f"--{name.replace('_', '-')}" for name in useless if options[name] is not None]:
        kind = "inference" if inference else "training" if cluster else "a scenario, which says so itself (--set changes it)"
        raise UserError(f"{', '.join(wrong)}: not for {kind}", hint="leave it out")


def _document(
    model: str, cluster: str | None, gpus: int | None, sizes: dict[str, Any], settings: tuple[str, ...], *, trust: bool
) -> Document:
    """The document of the scenario to advise on: from a file or a name, or from a model on a cluster."""
    from ..advise.training_advice import cluster_on, usual_global_batch
    from ..config import catalog, load

    if cluster is None:
        if catalog.plain(model) in catalog.files("models"):
            raise UserError("--cluster is missing", hint=f"trainsim advise {model} --cluster dgx-h100 --gpus 64")
        return load.document_of(model, settings)
    on, count = cluster_on(cluster, gpus, trust=trust)
    job = {name: value for name, value in sizes.items() if value is not None and name not in OF_INFERENCE}
    job.setdefault("sequence_length", USUAL_TOKENS)
    job.setdefault("global_batch", usual_global_batch(count, job["sequence_length"], job.get("microbatch_size", 1)))
    return load.document_with({"model": model, "cluster": on, "job": job}, settings)


def _train(document: Document, folder: Path, *, long: bool, trust: bool) -> tuple[TrainingAdvice, tuple[Remedy, ...], list[str]]:
    """The advice on a scenario, the remedies for its own plan, and the recommended scenario as lines of a file in `folder`."""
    from ..advise.remedies import remedies
    from ..advise.training_advice import advise
    from ..config.named_parts import Trust
    from ..config.scenario import from_document
    from ..config.writer import scenario_lines
    from ..config.written_paths import plan_with_paths_from, with_paths_from

    if "jobs" in document.data:
        raise UserError("the scenario holds several jobs", hint="`trainsim run` runs them; this takes one")
    scenario = from_document(document, Trust(trust))
    advice = advise(scenario, long=long)
    found = remedies(scenario, long=long) if "plan" in document.data else ()
    plan = plan_with_paths_from(advice.best.candidate.plan, folder)
    return advice, found, scenario_lines(with_paths_from(document, folder).data, plan)


def _serve(model: str, cluster: str, gpus: int | None, sizes: dict[str, Any], *, as_json: bool, trust: bool) -> None:
    """Advice on inference."""
    from ..advise.serving_advice import advise_serving
    from ..advise.training_advice import cluster_on
    from ..config import load

    on, _ = cluster_on(cluster, gpus, trust=trust)
    options = {name: sizes[name] for name in (*OF_INFERENCE, "dtype") if sizes[name] is not None}
    advice = advise_serving(load.model(model), load.cluster(on, trust=trust), **options)
    print_json(advice.as_dict()) if as_json else print_steps(advice.summary)
