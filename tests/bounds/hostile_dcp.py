# SPDX-License-Identifier: Apache-2.0
"""Hostile folders of torch.distributed.checkpoint: chunks, plans, items, files."""
import random
import struct

from pickles import *
from registry import hostile


def grid(shape, cut):
    boxes = [([], [])]
    for size, count in zip(shape, cut):
        boxes = [(o + [i * size // count], s + [(i + 1) * size // count - i * size // count]) for o, s in boxes for i in range(count)]
    return boxes


@hostile("")
def crossing_slabs(path):
    """Slabs along two dimensions: each crosses each."""
    n = 1_500
    boxes = [([i, 0], [1, n]) for i in range(n)] + [([0, i], [n, 1]) for i in range(n)]
    dcp_folder(path, dcp_metadata({"a": ([n, n], boxes)}))


@hostile("")
def many_chunks_of_16_dimensions(path):
    """2^11 corners of a cube of 16 dimensions."""
    boxes = [([(i >> d) & 1 for d in range(11)] + [0] * 5, [1] * 11 + [2] * 5) for i in range(1 << 11)]
    dcp_folder(path, dcp_metadata({"a": ([2] * 16, boxes)}))


@hostile("")
def hole_in_16_dimensions(path):
    boxes = [([(i >> d) & 1 for d in range(11)] + [0] * 5, [1] * 11 + [2] * 5) for i in range(1, 1 << 11)]
    dcp_folder(path, dcp_metadata({"a": ([2] * 16, boxes)}))


@hostile("")
def random_boxes(path):
    random.seed(1)
    boxes = []
    for _ in range(4_000):
        o = [random.randrange(1 << 20) for _ in range(3)]
        boxes.append((o, [random.randrange(1, (1 << 20) - x + 1) for x in o]))
    dcp_folder(path, dcp_metadata({"a": ([1 << 20] * 3, boxes)}))


@hostile("")
def diagonal_boxes(path):
    """All begin and end at different places in both dimensions, none overlaps another, and a sweep holds half of them."""
    n = 4_000
    boxes = [([i, i], [n - i, 1]) for i in range(n)] + [([i, j], [1, 1]) for i in range(1) for j in range(1)]
    dcp_folder(path, dcp_metadata({"a": ([n, n], boxes)}))


@hostile("")
def brick_wall(path):
    """A sound tiling that is not a grid."""
    boxes = []
    for i in range(60):
        cut = sorted(random.Random(i).sample(range(1, 5_000), 60))
        for a, b in zip([0] + cut, cut + [5_000]):
            boxes.append(([i, a], [1, b - a]))
    dcp_folder(path, dcp_metadata({"a": ([60, 5_000], boxes)}))


@hostile("")
def chunks_of_one_element(path):
    n = 4_500
    dcp_folder(path, dcp_metadata({"a": ([n], [([i], [1]) for i in range(n)])}))


@hostile("")
def same_chunk(path):
    n = 4_500
    dcp_folder(path, dcp_metadata({"a": ([n], [([0], [n]) for i in range(n)])}))


@hostile("")
def scalar_chunks(path):
    dcp_folder(path, dcp_metadata({"a": ([], [([], []) for i in range(4_500)])}))


@hostile("")
def many_tensors(path):
    dcp_folder(path, dcp_metadata({f"k{i}": ([1], [([0], [1])]) for i in range(4_000)}))


@hostile("")
def values_of_one_item(path):
    """4,000 values that all name the same item, a bomb."""
    item = archive(stream(LIST + MARK + LIST * 300_000 + APPENDS), deflate=True)
    keys = [f"k{i}" for i in range(4_000)]
    dcp_folder(path, dcp_metadata({}, keys, {(k, None): ("__0_0.distcp", 0, len(item)) for k in keys}), item)


@hostile("")
def tensors_of_one_item(path):
    """Tensors that all name the same deflated item."""
    n = 1_000_000
    item = archive(stream(tensor([n], [1], n)), {"0": b"\0" * (4 * n)}, deflate=True)
    tensors = {f"k{i}": ([n], [([0], [n])]) for i in range(1_000)}
    dcp_folder(path, dcp_metadata(tensors, (), {(k, 0): ("__0_0.distcp", 0, len(item)) for k in tensors}), item)


@hostile("")
def deep_plan(path):
    """The place of a key in the nested state dict: 100,000 steps."""
    plan = DICT + MARK + text("a") + MARK + text("k") * 100_000 + TUPLE + SETITEMS
    dcp_folder(path, dcp_metadata({"a": ([1], [([0], [1])])}, plan=plan))


@hostile("")
def plan_of_large_numbers(path):
    """The position in a list is 2^40."""
    plan = DICT + MARK + text("a") + text("l") + number(1 << 40) + TUPLE2 + SETITEMS
    dcp_folder(path, dcp_metadata({"a": ([1], [([0], [1])])}, plan=plan))


@hostile("")
def huge_tensors(path):
    """2,000 tensors of 2^60 elements."""
    dcp_folder(path, dcp_metadata({f"k{i}": ([1 << 60], [([0], [1 << 60])]) for i in range(2_000)}))


@hostile("")
def many_files(path):
    tensors = {f"k{i}": ([1], [([0], [1])]) for i in range(3_500)}
    dcp_folder(path, dcp_metadata(tensors, (), {(k, 0): (f"__{i}_0.distcp", 0, 1) for i, k in enumerate(tensors)}))


@hostile("")
def zstd_item(path):
    """An item whose bytes pass through zstd: a gigabyte in 40 KB, and a window of 128 MiB.  (One frame, of blocks that repeat a byte.)"""
    block = struct.pack("<I", (128 << 10) << 3 | 1 << 1)[:3] + b"\0"
    last = struct.pack("<I", (128 << 10) << 3 | 1 << 1 | 1)[:3] + b"\0"
    frame = struct.pack("<I", 0xFD2FB528) + b"\x00" + bytes([(27 - 10) << 3]) + block * 8_000 + last
    metadata = dcp_metadata({"a": ([1 << 20], [([0], [1 << 20])])}, (), {("a", 0): ("__0_0.distcp", 0, len(frame))})
    descriptors = text("transform_descriptors") + LIST + text("stream.zstd/1") + APPEND
    length = b"".join([])
    at = metadata.rindex(b"length") + len("length")
    # The list of transforms follows the length of the only item.
    rest = metadata[at:]
    end = 5 + len(number(len(frame)))
    dcp_folder(path, metadata[:at] + rest[:end] + descriptors + rest[end:], frame)
