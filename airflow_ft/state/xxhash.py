"""XXH32, the checksum that lz4-java puts before each block (https://github.com/Cyan4973/xxHash, XXH32 algorithm).

No library that this package needs has it. A block's lanes depend on each other, so blocks of one length are hashed side
by side, by numpy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

_1, _2, _3, _4, _5 = 2654435761, 2246822519, 3266489917, 668265263, 374761393
_MASK = 0xFFFFFFFF


def xxh32(blocks: Sequence[bytes], seed: int) -> list[int]:
    """Return the hash of each block, as unsigned numbers of 32 bits."""
    found = [0] * len(blocks)
    by_length: defaultdict[int, list[int]] = defaultdict(list)
    for index, block in enumerate(blocks):
        by_length[len(block)].append(index)
    for length, indexes in by_length.items():
        sums = _lanes([blocks[index] for index in indexes], length // 16, seed) if length >= 16 else None
        for place, index in enumerate(indexes):
            begun = (seed + _5) & _MASK if sums is None else sums[place]
            found[index] = _end(blocks[index], begun)
    return found


def _lanes(blocks: Sequence[bytes], stripes: int, seed: int) -> list[int]:
    """Return the sums over the first `stripes` of 16 bytes, for each of the blocks."""
    import numpy as np

    rows = [np.frombuffer(block, dtype="<u4", count=stripes * 4) for block in blocks]
    # By stripe, then block, then lane; multiplied at once.
    words = np.stack(rows).reshape(len(blocks), stripes, 4).transpose(1, 0, 2).astype(np.uint32) * np.uint32(_2)
    start = [(seed + _1 + _2) & _MASK, (seed + _2) & _MASK, seed & _MASK, (seed - _1) & _MASK]
    lanes = np.tile(np.array(start, dtype=np.uint32), (len(blocks), 1))
    first = np.uint32(_1)
    for stripe in words:
        lanes += stripe
        lanes = _rotated(lanes, 13)
        lanes *= first
    return [
        sum(_turned(int(lane), by) for lane, by in zip(each, (1, 7, 12, 18), strict=True)) & _MASK for each in lanes
    ]


def _rotated(lanes: np.ndarray, by: int) -> np.ndarray:
    import numpy as np

    return (lanes << np.uint32(by)) | (lanes >> np.uint32(32 - by))


def _turned(number: int, by: int) -> int:
    return ((number << by) | (number >> (32 - by))) & _MASK


def _end(block: bytes, begun: int) -> int:
    """The last bytes, fewer than 16, and the avalanche."""
    hashed = (begun + len(block)) & _MASK
    at = len(block) // 16 * 16
    while at + 4 <= len(block):
        word = int.from_bytes(block[at : at + 4], "little")
        hashed = _turned((hashed + word * _3) & _MASK, 17) * _4 & _MASK
        at += 4
    for byte in block[at:]:
        hashed = _turned((hashed + byte * _5) & _MASK, 11) * _1 & _MASK
    for shift, factor in ((15, _2), (13, _3), (16, 1)):
        hashed = (hashed ^ (hashed >> shift)) * factor & _MASK
    return hashed
