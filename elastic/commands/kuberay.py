"""Effect. `elastic kuberay`: writes the manifests of a run for KubeRay, and judges manifests without a cluster."""

import sys
from pathlib import Path
from typing import Any

import click

from elastic.commands.style import UNSOUND, json_option, tell
from elastic.errors import ElasticError

_SUFFIXES = (".yaml", ".yml")  # of manifests, as kubectl takes them of a folder


@click.group()
def kuberay() -> None:
    """Manifests for KubeRay: written from a run's configuration, and validated."""


@kuberay.command()
@click.option("--config", "file", type=click.Path(path_type=Path), help="YAML with a section `kuberay`.")
@click.option("--set", "assignments", multiple=True, metavar="KNOB=VALUE", help="As an argument of fit; repeatable.")
@click.option("--out", type=click.Path(path_type=Path), help="A folder, for a file of each object; default: print all.")
def render(file: Path | None, assignments: tuple[str, ...], out: Path | None) -> None:
    """Write the objects of a run: a RayJob or RayCluster, its configuration, accounts, rights, budget, priority.

    In the folder, files of objects that are not rendered any more are deleted; others stay. The same settings, as they
    hold on that cluster, are what the run inside is configured with.
    """
    from elastic import __version__
    from elastic.config import assigned, load
    from elastic.knobs import merged
    from elastic.kube import manifests

    config, _ = load(file, merged(*[assigned(one) for one in assignments]))
    objects = manifests.render(config, __version__)
    _warn_of(manifests.placeholders(objects.values()))
    if out is None:
        click.echo(manifests.documents(objects), nl=False)
        return
    out.mkdir(parents=True, exist_ok=True)
    for name in sorted(manifests.FILES - set(objects)):
        path = out / f"{name}.yaml"
        # Rights would be applied again with the folder; what is no text is not ours.
        if path.exists() and manifests.is_ours(path.read_text(errors="replace")):
            path.unlink()
            click.echo(f"{path} (deleted: not rendered any more)")
    for name, one in objects.items():
        (out / f"{name}.yaml").write_text(manifests.text(one))
        click.echo(str(out / f"{name}.yaml"))


@kuberay.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--crds", type=click.Path(path_type=Path), help="Folder of KubeRay's definitions; default: a cluster's.")
@click.option("--kubeconfig", help="Of the cluster; default: KUBECONFIG, ~/.kube/config.")
@json_option
def validate(files: tuple[Path, ...], crds: Path | None, kubeconfig: str | None, as_json: bool) -> None:
    """Judge manifests as the API server and KubeRay's operator would: FILES may be folders, - is standard input.

    Exit code 3: something is wrong with them.
    """
    from elastic.kube import validate as judge

    definitions = judge.from_directory(crds) if crds is not None else judge.from_cluster(kubeconfig)
    facts = _facts([judge.validate(path, definitions) for path in _found(files)])
    objects, problems, unjudged = facts["objects"], facts["problems"], facts["unjudged"]
    for problem in problems:
        click.echo(problem, err=True)
    if unjudged:
        click.echo(f"not judged, for want of the package common-expression-language: {'; '.join(unjudged)}", err=True)
    if facts["undefined"]:
        click.echo(f"not judged, for want of their definitions: {'; '.join(facts['undefined'])}", err=True)
    _warn_of(facts["placeholders"])
    if as_json:
        tell(facts, as_json)
    if not objects:
        raise ElasticError("no object was found in these files")
    if problems:
        click.echo(f"{len(problems)} problems in {objects} objects", err=True)
        sys.exit(UNSOUND)
    if not as_json:
        click.echo(f"{objects} objects are valid" + (f"; {len(unjudged)} rules were not judged" if unjudged else ""))


def _facts(reports: list[Any]) -> dict[str, Any]:
    """How many objects were judged, what is wrong with them, and what nobody could judge here, and placeholders."""
    return {
        "objects": sum(report.objects for report in reports),
        "problems": [problem for report in reports for problem in report.problems],
        "unjudged": sorted({rule for report in reports for rule in report.unjudged}),
        "undefined": sorted({kind for report in reports for kind in report.undefined}),
        "placeholders": sorted({name for report in reports for name in report.placeholders}),
    }


def _warn_of(placeholders: list[str]) -> None:
    if placeholders:
        click.echo(f"warning: {', '.join(placeholders)} stands for a name of your own: give it", err=True)


def _found(files: tuple[Path, ...]) -> list[Any]:
    """Files, and those of folders; what only Kustomize, `fit` or Prometheus reads is left out."""
    found: list[Path] = []
    for path in files:
        if not path.is_dir():
            found.append(Path("/dev/stdin") if str(path) == "-" else path)
            continue
        found += [one for one in sorted(path.rglob("*.y*ml")) if one.suffix in _SUFFIXES and not _is_other(one)]
    return found


def _is_other(path: Path) -> bool:
    return path.stem in ("kustomization", "run", "elastic-rules") or path.stem.endswith("-patch")
