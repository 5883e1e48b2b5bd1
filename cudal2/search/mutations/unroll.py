"""How far a loop is unrolled: a pragma before it is put in, changed or taken out."""

import random

from cudal2.search.text import another, is_loop

FACTORS = ["", " 1", " 2", " 4", " 8", " 16"]


def mutate(source: str, mate: str, rng: random.Random) -> str | None:
    lines = source.split("\n")
    # OpenMP's pragmas must stay next to their loop.
    loops = [n for n, line in enumerate(lines) if n and is_loop(line) and "omp" not in lines[n - 1]]
    if not loops:
        return None
    place = rng.choice(loops)
    # g++ has another name for the pragma, and wants a number.
    word, factors = ("#pragma unroll", FACTORS) if "cudaError_t" in source else ("#pragma GCC unroll", FACTORS[1:])
    before = lines[place - 1].strip()
    if not before.startswith(word):
        lines.insert(place, word + rng.choice(factors))
    elif rng.random() < 0.3:
        del lines[place - 1]
    else:
        lines[place - 1] = word + another(factors, before.removeprefix(word), rng)
    return "\n".join(lines)
