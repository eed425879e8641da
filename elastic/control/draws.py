"""Pure. Chance that depends on a seed and on what it is for: the same bits on every machine and Python version."""

import hashlib
import math

_LN2 = 0.6931471805599453
_TERMS = 23  # the next one is below 1e-17
_SQRT_HALF = math.sqrt(0.5)


def draw(seed: int, *place: object) -> int:
    """64 bits that depend on nothing but the seed and what they are for."""
    text = "\0".join(map(str, (seed, *place))).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def chance(seed: int, *place: object) -> float:
    """A number between 0 and 1, neither of them, evenly spread."""
    return float(((draw(seed, *place) >> 12) + 0.5) / 2**52)


def log(x: float) -> float:
    """The natural logarithm of x > 0, of the same bits everywhere: C libraries round theirs differently.

    Of x = m * 2**e with m in [sqrt(1/2), sqrt(2)), by ln(m) = 2 * artanh((m - 1) / (m + 1)) as a series: additions,
    products and quotients alone, which IEEE 754 rounds in one way. Within 2 units of the last place of `math.log`,
    or 1e-16.
    """
    m, e = math.frexp(x)
    if m < _SQRT_HALF:
        m, e = 2.0 * m, e - 1
    z = (m - 1.0) / (m + 1.0)
    square, total = z * z, 0.0
    for k in range(_TERMS, 0, -2):
        total = total * square + 1.0 / k
    return e * _LN2 + 2.0 * z * total
