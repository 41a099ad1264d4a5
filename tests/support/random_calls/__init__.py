"""Random calls of the classic functions, and of those along sequences, through C: valid and spoiled, with what is to
come of each."""

from tests.support.random_calls import contractions, elementwise, norms, sequences, sums, transforms
from tests.support.random_calls.operands import Call, Draw

FAMILIES = (
    *elementwise.FAMILIES,
    *sums.FAMILIES,
    *norms.FAMILIES,
    *contractions.FAMILIES,
    *transforms.FAMILIES,
    *sequences.FAMILIES,
)


def random_call(seed: int) -> tuple[Draw, Call]:
    """The call of a seed, of the functions in turn, and what it was drawn with."""
    draw = Draw(seed)
    return draw, FAMILIES[seed % len(FAMILIES)](draw)
