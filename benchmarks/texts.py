"""English text made up by a small grammar: as much of it as a benchmark wants, the same for the same seed."""

import random
from collections.abc import Iterator

SUBJECTS = (
    "the old miller", "a young engineer", "our neighbour", "the night train", "every gardener", "the river",
    "a quiet teacher", "the committee", "my brother", "the harbour pilot", "a travelling musician", "the storm",
)  # fmt: skip
VERBS = (
    "repaired", "forgot", "described", "carried", "measured", "painted", "followed", "opened", "answered", "weighed",
    "borrowed", "counted", "remembered", "lifted", "crossed", "questioned",
)  # fmt: skip
OBJECTS = (
    "the wooden wheel", "a letter from the coast", "seven copper coins", "the narrow bridge", "an unfinished map",
    "the price of salt", "a basket of early apples", "the machine in the cellar", "the second half of the story",
    "a promise made in spring", "the lights above the valley", "an argument about water",
)  # fmt: skip
PLACES = (
    "near the lock", "behind the station", "at the edge of the field", "in the back of the shop", "under the arches",
    "on the road to the mountains", "by the open window", "between two long meetings",
)  # fmt: skip
TIMES = (
    "before dawn",
    "last winter",
    "after the rain had stopped",
    "on the third day",
    "in late summer",
    "while nobody watched",
)
QUESTIONS = (
    "Explain in a few sentences what happened next.", "Why did it matter to the people of the town?",
    "Summarise the passage and name the main figures.", "Write the letter that should be sent now.",
    "What would you have done instead, and why?",
)  # fmt: skip


def sentences(seed: int) -> Iterator[str]:
    """Endless sentences."""
    random_ = random.Random(seed)
    while True:
        parts = [random_.choice(SUBJECTS), random_.choice(VERBS), random_.choice(OBJECTS)]
        if random_.random() < 0.7:
            parts.append(random_.choice(PLACES))
        if random_.random() < 0.6:
            parts.append(random_.choice(TIMES))
        if random_.random() < 0.3:
            parts.append(f"and paid {random_.randrange(2, 900)} for it")
        text = " ".join(parts)
        yield text[0].upper() + text[1:] + "."
        if random_.random() < 0.1:
            yield random_.choice(QUESTIONS)
