"""Pure. Sums whose bits do not depend on who computed which term: one binary tree over the numbers of the terms.

Floating-point addition is not associative, so a sum is only the same if its additions are. Here the tree is fixed by
the number of terms: the block [first, first + count), count a power of two that divides first, is the sum of its two
halves; at the right edge, where a half is missing, what is there is added from the right. Whoever holds neighbouring
terms may add up whole blocks alone, and nobody can tell from the result.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Block(Generic[T]):
    """The sum `total` of the terms [first, first + count)."""

    first: int
    count: int
    total: T

    def is_left_of(self, other: "Block[T]") -> bool:
        """Whether both are halves of one block."""
        is_next = other.first == self.first + self.count
        return is_next and self.count == other.count and self.first % (2 * self.count) == 0


def push(stack: list[Block[T]], block: Block[T], add: Callable[[T, T], T]) -> None:
    """Put the next block on the stack, and add up what has become whole. Blocks come in the order of their terms."""
    stack.append(block)
    while len(stack) > 1 and stack[-2].is_left_of(stack[-1]):
        right, left = stack.pop(), stack.pop()
        stack.append(Block(left.first, left.count + right.count, add(left.total, right.total)))


def fold(stack: list[Block[T]], add: Callable[[T, T], T]) -> T:
    """The sum of all blocks on a stack that begins with term 0; empties the stack.

    Raises:
        IndexError: there is none.
    """
    total = stack.pop().total
    while stack:
        total = add(stack.pop().total, total)
    return total


def blocks(terms: range) -> list[tuple[int, int]]:
    """(first, count) of the fewest blocks that make up neighbouring terms; at most 2 log2 of their number."""
    stack: list[Block[None]] = []
    for number in terms:
        push(stack, Block(number, 1, None), lambda left, right: None)
    return [(block.first, block.count) for block in stack]
