# SPDX-License-Identifier: Apache-2.0
"""Pictures of checkpoints, where matplotlib is installed.

Each function draws into `ax`, one of matplotlib's Axes, or into a new figure, and returns the Axes.
"""
import os
from collections import Counter
from typing import Any, Dict, List, Sequence, Union

from ._results import Comparison, Inspection, Statistics
from ._verbs import Path, diff, inspect, stats

# A picture with more bars cannot be read; the rest is added up.
_MOST_BARS = 30


def _axes(ax: Any) -> Any:
    if ax is not None:
        return ax
    import matplotlib.pyplot
    return matplotlib.pyplot.subplots()[1]


def _module(key: str, depth: int) -> str:
    return ".".join(key.split(".")[:depth])


def _bars(ax: Any, sizes: Dict[str, float], unit: str) -> Any:
    ordered = sorted(sizes.items(), key=lambda one: one[1], reverse=True)
    rest = ordered[_MOST_BARS:]
    shown = ordered[:_MOST_BARS] + ([(f"{len(rest)} more", sum(size for _, size in rest))] if rest else [])
    ax.barh(range(len(shown)), [size for _, size in shown])
    ax.set_yticks(range(len(shown)), [name for name, _ in shown])
    ax.invert_yaxis()
    ax.set_xlabel(unit)
    return ax


def bytes_by_module(checkpoint: Union[Inspection, Path], *, depth: int = 2, ax: Any = None) -> Any:
    """Draws how many bytes the tensors of each module have.

    checkpoint   what inspect() returned, or a path
    depth        how many parts of a key name its module
    """
    found = checkpoint if isinstance(checkpoint, Inspection) else inspect(checkpoint)
    sizes: Dict[str, float] = Counter()
    for tensor in found.tensors:
        sizes[_module(tensor.key, depth)] += tensor.bytes
    return _bars(_axes(ax), sizes, "bytes")


def histogram(tensor: Any, *, bins: Any = 100, ax: Any = None) -> Any:
    """Draws how often the elements of a tensor have each size; NaN and Inf are left out.

    tensor   a tensor of fsdp_ckpt.open(), or anything that numpy.asarray() takes
    bins     as numpy.histogram takes them
    """
    import numpy
    elements = numpy.asarray(tensor).astype(numpy.float64).ravel()
    ax = _axes(ax)
    ax.hist(elements[numpy.isfinite(elements)], bins=bins)
    ax.set_ylabel("elements")
    return ax


def changes(before: Union[Comparison, Path], after: Union[Path, None] = None, *, ax: Any = None) -> Any:
    """Draws the norm of the change of each layer, relative to the layer's norm.

    before   what diff(..., by="layer") returned, or a path
    after    the path of the checkpoint to compare with
    """
    if isinstance(before, Comparison):
        found = before
    elif after is None:
        raise ValueError("changes() needs two paths, or what diff() returned")
    else:
        found = diff(before, after, by="layer", check=False)
    if found.groups is None:
        raise ValueError('the comparison has no groups; diff() makes them with by="layer"')
    return _bars(_axes(ax), {group.name: group.relative for group in found.groups if group.relative is not None},
                 "norm of the change / norm")


def norms(run: Sequence[Union[Statistics, Path]], *, depth: int = 2, ax: Any = None) -> Any:
    """Draws the norm of each module over the checkpoints of a run.

    run     what stats() returned for each checkpoint, or their paths, in order
    depth   how many parts of a key name its module
    """
    steps: List[Statistics] = [one if isinstance(one, Statistics) else stats(one) for one in run]
    squares: List[Dict[str, float]] = []
    for step in steps:
        squares.append(Counter())
        for tensor in step.tensors:
            count = 1
            for size in tensor.shape:
                count *= size
            count -= tensor.nan + tensor.inf
            squares[-1][_module(tensor.key, depth)] += (tensor.rms or 0.0) ** 2 * count
    ax = _axes(ax)
    for name in list(dict.fromkeys(name for one in squares for name in one))[:_MOST_BARS]:
        ax.plot(range(len(steps)), [one.get(name, 0.0) ** 0.5 for one in squares], label=name)
    ax.set_xticks(range(len(steps)), [os.path.basename(os.path.normpath(step.path)) for step in steps])
    ax.set_ylabel("norm")
    ax.legend()
    return ax
