"""Fits the polynomials of core/activation_tail.h and prints them as hexadecimal f32 constants.

Usage: fit_polynomials.py. Minimax fits by Remez' exchange on a dense grid, in f64. Coefficients are
then rounded to f32 one after the other, the rest being fitted again, so that what is printed is
near the best that f32 coefficients can do. Needs numpy and scipy (tests/requirements.txt).
"""

from collections.abc import Callable

import numpy as np
from scipy.special import expit, ndtr

Function = Callable[[np.ndarray], np.ndarray]
GRID = 20001


def chebyshev_grid(end: float) -> np.ndarray:
    return end / 2 * (1 - np.cos(np.linspace(0, np.pi, GRID)))


def extrema(error: np.ndarray, count: int) -> np.ndarray | None:
    """Indices of `count` extrema of alternating sign, the largest ones; None if there are fewer."""
    runs = np.split(np.arange(len(error)), np.flatnonzero(np.diff(np.sign(error))) + 1)
    found = [run[np.argmax(np.abs(error[run]))] for run in runs]
    while len(found) > count:
        found.pop(0 if abs(error[found[0]]) < abs(error[found[-1]]) else -1)
    return np.array(found) if len(found) == count else None


def minimax(x: np.ndarray, target: np.ndarray, powers: list[int], weight: np.ndarray) -> np.ndarray:
    """Coefficients of x^powers that minimise max |target - polynomial| / weight."""
    matrix = np.stack([x**power for power in powers], axis=1) / weight[:, None]
    y = target / weight
    count = len(powers) + 1
    signs = (-1.0) ** np.arange(count)
    at = np.linspace(0, len(x) - 1, count).astype(int)
    best, best_error = np.zeros(len(powers)), np.inf
    for _ in range(100):
        coefficients = np.linalg.solve(np.column_stack([matrix[at], signs]), y[at])[:-1]
        error = y - matrix @ coefficients
        if np.max(np.abs(error)) < best_error:
            best, best_error = coefficients, np.max(np.abs(error))
        following = extrema(error, count)
        if following is None or np.array_equal(following, at):
            break
        at = following
    return best


def fit(function: Function, end: float, degree: int, weight: Function) -> list[float]:
    """Coefficients of degree 0 to `degree`, each an f32, on [0, end]."""
    x = chebyshev_grid(end)
    rest, w = function(x), weight(x)
    coefficients: list[float] = []
    for power in range(degree + 1):
        best = minimax(x, rest, list(range(power, degree + 1)), w)
        coefficients.append(float(np.float32(best[0])))
        rest = rest - coefficients[-1] * x**power
    return coefficients


def hexadecimal(value: float) -> str:
    """`value`, an f32, as a C++ constant."""
    mantissa, exponent = float(value).hex().split("p")
    return f"{mantissa.rstrip('0').rstrip('.')}p{int(exponent)}f"


def fit_tail(name: str, tail: Function, end: float, degree: int, share: float) -> None:
    """The eighth root of an activation's tail on [0, end], such that its eighth power may be off by
    `share` of what docs/numerics.md allows: of 2^-12 of the tail, or of 2^-22 where that is more.
    From `end` on the tail counts as it is there."""

    def allowed(x: np.ndarray) -> np.ndarray:
        return 2.0**-12 * np.maximum(tail(x), 2.0**-10)

    def middle(x: np.ndarray) -> np.ndarray:
        return sum(roots(x)) / 2

    def weight(x: np.ndarray) -> np.ndarray:
        return (roots(x)[1] - roots(x)[0]) / 2

    def roots(x: np.ndarray) -> list[np.ndarray]:
        error = share * allowed(x)
        return [np.maximum(tail(x) - error, 0) ** 0.125, (tail(x) + error) ** 0.125]

    coefficients = fit(middle, end, degree, weight)
    x = np.concatenate([chebyshev_grid(end), np.linspace(end, 3 * end, GRID)])
    magnitude = np.minimum(x, end)
    root = sum(value * magnitude**power for power, value in enumerate(coefficients))
    error = np.abs(magnitude / np.maximum(x, 1e-300) * root**8 - tail(x))[1:] / allowed(x)[1:]
    print(f"{name} up to {end}: largest error {np.max(error):.3f} of what is allowed")
    print("  " + ", ".join(hexadecimal(c) for c in coefficients))


def fit_tails() -> None:
    """The ends and shares are those with the smallest errors, of a few dozen that were tried."""

    def tanh_tail(x: np.ndarray) -> np.ndarray:
        return expit(-2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))

    fit_tail("gelu_tanh", tanh_tail, 5.0, 6, 0.5)
    fit_tail("gelu_erf", lambda x: ndtr(-x), 5.4, 6, 0.25)
    fit_tail("silu", lambda x: expit(-x), 15.8, 10, 0.6)


if __name__ == "__main__":
    fit_tails()
