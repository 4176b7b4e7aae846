"""Calls wait for a replica's places by priority."""

import asyncio

import pytest

from kohaku_ray.models.places import Places


async def ordered(n_places: int, priorities: list[int], cancelled: set[int] = frozenset()) -> list[int]:
    """The order in which calls get a place, named by their number; all ask before the first gives its own back."""
    places, began, tasks = Places(n_places), [], []

    async def call(number: int, priority: int) -> None:
        async with places.hold_place(priority):
            began.append(number)
            await asyncio.sleep(0.001)

    tasks = [asyncio.create_task(call(number, priority)) for number, priority in enumerate(priorities)]
    await asyncio.sleep(0)
    for number in cancelled:
        tasks[number].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return began


@pytest.mark.parametrize(
    ("n_places", "priorities", "cancelled", "expected"),
    [
        (1, [5, 3, 3, 1], set(), [0, 3, 1, 2]),
        (2, [5, 5, 3, 1], set(), [0, 1, 3, 2]),
        (1, [5, 3, 2, 1], {3, 1}, [0, 2]),
    ],
)
def test_a_free_place_goes_to_the_lowest_priority_the_first_of_equal_ones(n_places, priorities, cancelled, expected):
    assert asyncio.run(ordered(n_places, priorities, cancelled)) == expected


async def test_a_place_given_to_a_call_that_is_cancelled_goes_to_the_next():
    places = Places(1)
    holding = places.hold_place(0)
    await holding.__aenter__()
    first, second = (asyncio.create_task(places.hold_place(number).__aenter__()) for number in (1, 2))
    await asyncio.sleep(0)
    await holding.__aexit__(None, None, None)
    first.cancel()
    await asyncio.wait_for(second, 1.0)
