"""Effect. What others have written, as the state that a run begins with: safetensors, or torch's DCP directories.

Nothing that is read may run code: of a `.metadata`, which is a pickle, only the classes that describe tensors are
accepted, and what else a checkpoint pickles is read by torch's restricted unpickler.
"""

import io
import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from numpy.typing import NDArray
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from elastic.checkpoint.manifest import Manifest, checked_name
from elastic.checkpoint.records import opened
from elastic.checkpoint.store import MissingError
from elastic.checkpoint.vault import Vault
from elastic.control.values import CommitId, Fork
from elastic.errors import CorruptError, SettingError
from elastic.interchange.exporting import STATE_FILE, VERSION, alone
from elastic.interchange.packing import pack_shard
from elastic.interchange.safetensors import read_file
from elastic.train import tree

_WRITER = "elastic import "  # what lives of this kind are registered as
_METADATA = "torch.distributed.checkpoint.metadata"
# All that a checkpoint of torch 2.13 names, beside dtypes. Whole classes only: what they lead to is not described here.
_ALLOWED = {
    (_METADATA, "BytesStorageMetadata"),
    (_METADATA, "ChunkStorageMetadata"),
    (_METADATA, "Metadata"),
    (_METADATA, "MetadataIndex"),
    (_METADATA, "StorageMeta"),
    (_METADATA, "TensorProperties"),
    (_METADATA, "TensorStorageMetadata"),
    (_METADATA, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
}


def import_checkpoint(path: Path, run: str, into: str = "model") -> tuple[Manifest, NDArray[np.uint8]]:
    """Read foreign state as the one shard of a commit that a run begins with: step 0, incarnation 0.

    Args:
        path: a .safetensors file, a directory of such, or a directory of a distributed checkpoint. What
            `elastic export` wrote comes back as it was.
        into: the tracked object that bare tensors belong to.

    Returns:
        The manifest, and (nbytes,) uint8, the payload.

    Raises:
        SettingError: it is none of these. CorruptError: it is, and damaged, or would run code.
    """
    checked_name(run, "the run")
    state = _read(path, into)
    start = CommitId(incarnation=0, generation=0, attempt=0, step=0, lineage="")
    return pack_shard(tree.flatten(state), run, start)


def begin(vault: Vault, manifest: Manifest, payload: NDArray[np.uint8], path: Path) -> None:
    """Make what was read durable, as what its run begins with. One that failed, or was killed, can be done again.

    Args:
        payload: (nbytes,) uint8. path: where it was read, for people.

    Raises:
        SettingError: the run has begun. StoreError: see `Vault.upload` and `Vault.commit`.
    """
    _refuse_begun(vault)
    digest = vault.upload(manifest, lambda begin, end: payload[begin:end])
    _refuse_begun(vault)  # it may have taken long
    life = vault.register(f"{_WRITER}{path}")
    vault.fork(Fork(incarnation=life, generation=0, step=manifest.commit.step))
    if vault.commit(manifest.commit, [digest]).manifests != (digest,):
        raise _begun(vault)  # by another import, at the same time


def _refuse_begun(vault: Vault) -> None:
    """Imports that have come to nothing leave no more than a number."""
    has_steps = any(vault.store.list(vault.keys.folder("commits")))
    if has_steps or not all(_is_of_import(vault, life) for life in vault.incarnations()):
        raise _begun(vault)


def _is_of_import(vault: Vault, life: int) -> bool:
    try:
        record = opened("incarnation", vault.store.read(vault.keys.incarnation(life)))
        return str(record["writer"]).startswith(_WRITER)
    except (CorruptError, MissingError, KeyError):
        return False  # it may be a driver's


def _begun(vault: Vault) -> SettingError:
    return SettingError(f"{vault.where} holds a run already: import under another name (--run)")


def _read(path: Path, into: str) -> Any:
    if path.is_file() and path.suffix == ".safetensors":
        return {into: read_file(path)}
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else []
    is_dcp = (path / ".metadata").is_file()
    if not files and not is_dcp:
        raise SettingError(f"{path} holds neither *.safetensors nor a .metadata of a distributed checkpoint")
    if (path / STATE_FILE).is_file():
        return _read_exported(path, files)
    if is_dcp:
        return _named_objects(_read_dcp(path), into)
    return {into: _together(files)}


def _together(files: list[Path]) -> dict[str, Any]:
    """The tensors of all files of a model.

    Raises:
        SettingError: two files have one of the same name.
    """
    held: dict[str, Any] = {}
    of: dict[str, Path] = {}
    for file in files:
        for name, tensor in read_file(file).items():
            if name in held:
                raise SettingError(
                    f"{of[name].name} and {file.name} both hold {name}, so they are not parts of one model: name the "
                    "file that is to be imported, instead of its directory"
                )
            held[name], of[name] = tensor, file
    return held


def _read_exported(path: Path, files: list[Path]) -> Any:
    """What `elastic export` wrote: the tree is in its file."""
    try:
        body = json.loads((path / STATE_FILE).read_text())
        version, trees = body["version"], body["trees"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{path / STATE_FILE} cannot be read: {type(error).__name__}: {error}") from error
    if version != VERSION or list(trees) != [""]:
        raise SettingError(
            f"{path} was exported by another release, or as shards cut by hand, which cannot be put together"
        )
    skeleton = json.dumps(trees[""]).encode()
    held = {(file.stem, name): one for file in files for name, one in read_file(file).items()}
    if not files:
        held = {("", name): one for name, one in _tensors_of_dcp(path, _metadata(path)).items()}
    tensors = []
    for slot in tree.slots(skeleton):
        tensor = held.pop(_name_in(files, slot.keys), None)  # each is of one place in the tree
        if tensor is None or (tuple(tensor.shape), str(tensor.dtype)) != (slot.shape, f"torch.{slot.dtype}"):
            raise CorruptError(f"{path}: there is no such tensor as {STATE_FILE} tells of at {slot.path}")
        tensors.append(tensor)
    return tree.unflatten(skeleton, tensors)


def _name_in(files: list[Path], keys: Sequence[str]) -> tuple[str, str]:
    """The tracked object, which has a file of its own, and what that calls the tensor; in a DCP directory the latter.

    Objects may have dots in their names: `b.weight` of `a` is not `weight` of `a.b`.
    """
    return (keys[0], ".".join(keys[1:])) if files else ("", ".".join(keys))


class _Names(pickle.Unpickler):
    """Builds descriptions of tensors, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _ALLOWED:
            return super().find_class(module, name)
        if module == "torch" and isinstance(dtype := vars(torch).get(name), torch.dtype):
            return dtype
        raise CorruptError(f"a .metadata names {module}.{name}, which describes no tensor: it is not read")


def _metadata(path: Path) -> Metadata:
    try:
        found = _Names(io.BytesIO((path / ".metadata").read_bytes())).load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        raise CorruptError(f"{path}/.metadata cannot be read: {type(error).__name__}: {error}") from error
    if not isinstance(found, Metadata):
        raise CorruptError(f"{path}/.metadata describes no checkpoint")
    return found


class _DataPlanner(dcp.DefaultLoadPlanner):
    """Reads what is no tensor as data."""

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


def _tensors_of_dcp(path: Path, metadata: Metadata) -> dict[str, Any]:
    tensors: dict[str, Any] = {
        name: torch.empty(tuple(kept.size), dtype=kept.properties.dtype)
        for name, kept in metadata.state_dict_metadata.items()
        if isinstance(kept, TensorStorageMetadata)
    }
    _load(tensors, path)
    return tensors


def _load(state: dict[str, Any], path: Path) -> None:
    planner = _DataPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    with alone():
        dcp.load(state, storage_reader=dcp.FileSystemReader(path), planner=planner, no_dist=True)


def _read_dcp(path: Path) -> dict[str, Any]:
    """The nested dict that was saved; what is no tensor too."""
    metadata = _metadata(path)
    flat = _tensors_of_dcp(path, metadata)
    others = {name: b"" for name in metadata.state_dict_metadata if name not in flat}
    try:
        _load(others, path)
    except (pickle.UnpicklingError, dcp.CheckpointException) as error:
        raise CorruptError(f"{path}: what is no tensor cannot be read without running code: {error}") from error
    places = metadata.planner_data if isinstance(metadata.planner_data, Mapping) else {}
    root: dict[Any, Any] = {}
    for name, value in (flat | others).items():
        at = root
        *way, last = places.get(name, (name,))
        for key in way:
            at = at.setdefault(key, {})
        at[last] = value
    return _listed(root)


def _listed(node: Any) -> Any:
    """Dicts that stand for lists become lists; an optimizer's parameters are numbers, in its state and its groups."""
    if not isinstance(node, dict):
        return node
    made = {key: _listed(value) for key, value in node.items()}
    if made and all(isinstance(key, int) for key in made):
        return [made[key] for key in sorted(made)]
    state, groups = made.get("state"), made.get("param_groups")
    if isinstance(groups, list) and isinstance(state, dict):
        made |= _numbered(groups, state)
    return made


def _numbered(groups: list[Any], state: dict[Any, Any]) -> dict[str, Any]:
    """torch's `get_state_dict` calls parameters by name; an optimizer numbers them in the order of its groups."""
    params = [param for group in groups for param in group.get("params", ())]
    if all(str(key).isdecimal() for key in (*params, *state)):
        return {"state": {int(key): value for key, value in state.items()}}
    numbers = {name: number for number, name in enumerate(params)}
    if not state.keys() <= numbers.keys():
        return {}
    return {
        "state": {numbers[name]: value for name, value in state.items()},
        "param_groups": [{**one, "params": [numbers[name] for name in one.get("params", ())]} for one in groups],
    }


def _named_objects(state: dict[str, Any], into: str) -> dict[str, Any]:
    """Tracked objects by name, if that is what was saved; else all of it belongs to one."""
    return state if state and all(isinstance(value, dict) for value in state.values()) else {into: state}
