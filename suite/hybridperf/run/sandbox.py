"""The sandbox of ranks and predictors: access to files, network and devices.

They read the interpreter, the libraries and the trainer's package, but neither results, nor
bytecode of trainer and harness, nor, if the harness hands samples over, the task's data; they write
folders of their own. A single rank has no TCP; several ranks have the ports that the kernel
assigns. From Landlock's ABI 6 on, signals and abstract sockets cannot leave the sandbox. Where
users may make namespaces, the run has a network and a ``/dev/shm`` of its own, files that it may
not read do not exist in it, and modes, times and attributes of the others cannot be changed; else
UDP, ``/dev/shm``, attributes and sockets in the file system are not restricted. Ranks of several
nodes have the network of their machines. Accelerators are never restricted.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hybridperf.errors import UserError
from hybridperf.run.provenance import compiled_folders, top_folder
from hybridperf.system import toolkit
from hybridperf.system.landlock import Policy, landlock_abi, why_no_landlock
from hybridperf.system.namespaces import why_no_namespaces
from hybridperf.tasks.data import data_files, in_memory
from hybridperf.tasks.data.samples import DATA_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from hybridperf.run.spec import Mode, RunSpec
    from hybridperf.tasks.task import Task

__all__ = ["clean_environment", "mode_of", "policy_of", "sandbox_facts"]

_SYSTEM: Final = (
    *("/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/opt", "/nix/store", "/gnu"),
    *("/etc", "/proc", "/sys", "/run/nvidia-persistenced", "/run/nscd", "/run/opengl-driver"),
    "/run/systemd/resolve",  # where names of hosts are resolved
)
_DEVICES: Final = (
    *("null", "zero", "full", "random", "urandom", "tty", "shm", "dri", "kfd", "infiniband"),
    *("nvidia*", "accel*", "mqueue", "hugepages"),
)
_VARIABLES: Final = {
    *("PATH", "LD_LIBRARY_PATH", "LANG", "LANGUAGE", "TZ", "CC", "CXX", "SLURM_JOB_ID"),
    *("PYTHONPYCACHEPREFIX", "ROCM_PATH", *toolkit.VARIABLES),
}
_PREFIXES: Final = (
    *("LC_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "ONEDNN_", "DNNL_", "ATEN_"),
    *("MALLOC_", "TORCH", "PYTORCH_", "TRITON_", *toolkit.VARIABLE_PREFIXES),
    *("GLOO_", "HIP_", "ROCR_", "HSA_", "MIOPEN_", "RCCL_", "HYBRIDPERF_"),
    *("RANK", "LOCAL_", "ROLE_", "GROUP_", "WORLD_SIZE", "MASTER_"),
)


def mode_of(task: Task, asked: Mode) -> Mode:
    """Return the mode of a run: ``sandboxed`` if samples reach ranks only on the clock.

    ``asked`` is the user's choice. Samples that ranks read themselves and a kernel without Landlock
    make the mode ``open``.
    """
    closed = asked == "sandboxed" and in_memory(task.data) and landlock_abi() > 0
    return "sandboxed" if closed else "open"


def sandbox_facts(asked: Mode, nodes: int) -> dict[str, object]:
    """Return the description of a run's sandbox for log and manifest."""
    if asked == "open":
        return {"kind": "none", "reason": "open mode was asked for"}
    if reason := why_no_landlock():
        return {"kind": "none", "reason": reason}
    facts: dict[str, object] = {"kind": "landlock", "abi": landlock_abi()}
    facts["namespaces"] = why_no_namespaces() or True
    if nodes > 1:  # which talk over the machines' network
        facts["ports"] = list(_assigned_ports())
    places = [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    if importlib.machinery.PathFinder.find_spec("sitecustomize", places):
        facts["sitecustomize"] = True  # code that runs before the trainer's
    return facts


def policy_of(
    spec: RunSpec, *, writable: Iterable[Path], readable: Iterable[Path] = (), ranks: int = 1
) -> Policy:
    """Return the policy for processes of the run ``spec``, of ``ranks`` ranks on this machine.

    They may write the folders ``writable``, and read the data set only if they must.
    """
    hands_over = spec.mode == "sandboxed"
    data = [path.resolve() for path in _data(spec)]
    suite = Path(__file__).parents[1]
    tops = {suite, *map(top_folder, (spec.trainer, spec.predictor))}
    compiled = [path.resolve() for top in tops for path in compiled_folders(top)]
    denied = [Path(spec.folder).resolve().parent, *compiled, *(data if hands_over else ())]
    interpreter = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    roots = {
        *(Path(each) for each in (*_SYSTEM, *interpreter, *sys.path[1:])),
        *(Path(each) for each in os.environ.get("LD_LIBRARY_PATH", "").split(":") if each),
        *tops,
        Path(sys.executable),
    }
    roots = {root for root in roots if root.is_absolute() and root.exists()}
    allowed, listed = set[Path](), {top.parent.resolve() for top in tops}
    for root in roots:
        _carve(root.resolve(), denied, allowed, listed)
    task = Path(spec.folder, spec.task_path).resolve()
    devices = (path for name in _DEVICES for path in Path("/dev").glob(name))
    own = () if hands_over else data
    visible = (*roots, Path(spec.folder, spec.task_path), *readable, *own)
    return Policy(
        readable=_texts({*allowed, task, *readable, *own}),
        listed=_texts(listed),
        writable=_texts(writable),
        devices=_texts(devices),
        ports=_assigned_ports() if ranks > 1 or spec.nodes > 1 else None,
        visible=_texts(visible) if spec.sandbox.get("namespaces") is True else None,
        network=spec.nodes > 1,
    )


def clean_environment(environment: Mapping[str, str], scratch: Path) -> dict[str, str]:
    """Return the variables of ``environment`` that reach a sandboxed process.

    Its home and all its caches are in the folder ``scratch``.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name in _VARIABLES or name.startswith(_PREFIXES)
    }
    places = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    return {**kept, **dict.fromkeys((*places, toolkit.CACHE_VARIABLE), str(scratch))}


def _carve(root: Path, denied: list[Path], allowed: set[Path], listed: set[Path]) -> None:
    """Add the content of ``root`` that is not in ``denied`` to ``allowed`` and ``listed``."""
    inside = [path for path in denied if path.is_relative_to(root)]
    if not inside:
        if not any(root.is_relative_to(path) for path in denied):
            allowed.add(root)
        return
    if root in inside:
        return
    listed.add(root)
    leading = {path.relative_to(root).parts[0] for path in inside}
    with os.scandir(root) as children:
        for child in children:
            if not child.is_symlink() and child.name not in leading:
                allowed.add(root / child.name)  # of many hundred, on the way to every run
                continue
            real = Path(child.path).resolve()
            # What a link leads to outside of the root counts only if it is a root itself.
            if real.is_relative_to(root) and real.exists():
                _carve(real, inside, allowed, listed)


def _data(spec: RunSpec) -> Iterator[Path]:
    """Yield the files and folders that hold the task's data."""
    with contextlib.suppress(UserError):  # a node to which node 0 hands the data over may lack it
        yield from data_files(spec.task().data)
    if folder := os.environ.get(DATA_VARIABLE):
        yield Path(folder)


def _assigned_ports() -> tuple[int, int]:
    """Return the first and last TCP port that the kernel assigns by itself."""
    first, last = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    return int(first), int(last)


def _texts(paths: Iterable[Path]) -> tuple[str, ...]:
    return tuple(sorted(map(str, paths)))
