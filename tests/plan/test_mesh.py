"""The mesh: ranks, coordinates and groups in any order, against an enumeration that anybody can check."""

from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.errors import UserError
from simulator.plan.mesh import AXES, Mesh

MEGATRON = "tp-cp-ep-dp-pp"

meshes = st.tuples(st.permutations(AXES), st.tuples(*[st.integers(1, 4)] * 5)).map(
    lambda drawn: Mesh.of(dict(zip(AXES, drawn[1], strict=True)), "-".join(drawn[0]))
)
axis_sets = st.sets(st.sampled_from(AXES), min_size=1).map(lambda chosen: tuple(sorted(chosen)))


def enumerated(degrees: dict[str, int], order: str, axes: tuple[str, ...]) -> list[list[int]]:
    """Count ranks with the first axis of the order fastest; a group shares the coordinates along all other axes."""
    names = order.split("-")
    groups: dict[tuple[int, ...], list[int]] = {}
    slowest_first = product(*(range(degrees.get(axis, 1)) for axis in reversed(names)))
    for rank, reversed_coordinates in enumerate(slowest_first):
        at = dict(zip(reversed(names), reversed_coordinates, strict=True))
        groups.setdefault(tuple(at[axis] for axis in names if axis not in axes), []).append(rank)
    return sorted(groups.values())


def groups(mesh: Mesh, *axes: str) -> list[list[int]]:
    found: list[list[int]] = mesh.groups(axes).tolist()
    return found


def test_the_picture_of_64_gpus() -> None:
    """tp 4, pp 4, dp 4 in the order tp-pp-dp: a stage is a row of four, a replica sixteen ranks in a row."""
    mesh = Mesh.of({"tp": 4, "pp": 4, "dp": 4}, "tp-pp-dp")
    assert mesh.ranks == 64
    assert groups(mesh, "tp") == [[i, i + 1, i + 2, i + 3] for i in range(0, 64, 4)]
    assert groups(mesh, "pp")[0] == [0, 4, 8, 12]
    assert groups(mesh, "tp", "pp")[:2] == [list(range(16)), list(range(16, 32))]
    assert groups(mesh, "dp")[0] == [0, 16, 32, 48]


def test_the_picture_of_64_gpus_with_eight_stages() -> None:
    mesh = Mesh.of({"tp": 4, "pp": 8, "dp": 2}, "tp-pp-dp")
    assert groups(mesh, "tp")[:2] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert groups(mesh, "pp")[0] == [0, 4, 8, 12, 16, 20, 24, 28]
    assert groups(mesh, "tp", "pp") == [list(range(32)), list(range(32, 64))]


def test_the_example_in_megatron_lm() -> None:
    """The docstring of initialize_model_parallel: 16 GPUs, two to a tensor group, four to a pipeline group."""
    mesh = Mesh.of({"tp": 2, "pp": 4, "dp": 2}, MEGATRON)
    assert groups(mesh, "tp") == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [10, 11], [12, 13], [14, 15]]
    assert groups(mesh, "dp") == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert groups(mesh, "pp") == [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15]]


def test_context_parallel_ranks_stand_between_tensor_and_data_parallel_ones() -> None:
    mesh = Mesh.of({"tp": 2, "cp": 2, "dp": 2, "pp": 2}, MEGATRON)
    assert groups(mesh, "cp")[:2] == [[0, 2], [1, 3]]
    assert groups(mesh, "dp")[:2] == [[0, 4], [1, 5]]
    assert groups(mesh, "dp", "cp")[:2] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert groups(mesh, "pp")[0] == [0, 8]


@given(meshes, axis_sets)
def test_groups_are_those_of_the_enumeration(mesh: Mesh, axes: tuple[str, ...]) -> None:
    assert groups(mesh, *axes) == enumerated(dict(mesh.degrees), "-".join(mesh.order), axes)


@given(meshes, axis_sets)
def test_groups_partition_the_ranks(mesh: Mesh, axes: tuple[str, ...]) -> None:
    found = mesh.groups(axes)
    assert found.shape[1] == prod(mesh.degrees[axis] for axis in axes)
    assert sorted(found.ravel().tolist()) == list(range(mesh.ranks))


@given(meshes, axis_sets, st.data())
def test_groups_divide_into_smaller_ones_that_stand_apart(mesh: Mesh, axes: tuple[str, ...], data: st.DataObject) -> None:
    whole = mesh.groups(axes)
    size = data.draw(st.sampled_from([n for n in range(1, whole.shape[1] + 1) if whole.shape[1] % n == 0]))
    stride = data.draw(st.sampled_from([n for n in range(1, whole.shape[1] // size + 1) if whole.shape[1] // size % n == 0]))
    firsts = [begin + at for begin in range(0, whole.shape[1], size * stride) for at in range(stride)]
    parts = [row[at : at + size * stride : stride].tolist() for row in whole for at in firsts]
    assert mesh.groups(axes, size=size, stride=stride).tolist() == sorted(parts, key=min)


@given(meshes, axis_sets)
def test_members_differ_along_the_axes_of_their_group_and_nowhere_else(mesh: Mesh, axes: tuple[str, ...]) -> None:
    members = mesh.groups(axes)
    for axis in AXES:
        coordinates = mesh.coordinate(axis)[members]
        if axis not in axes:
            assert (coordinates == coordinates[:, :1]).all()
    inside = np.stack([mesh.coordinate(axis)[members] for axis in axes])
    for group in range(members.shape[0]):
        assert len({tuple(column) for column in inside[:, group].T.tolist()}) == members.shape[1]


@given(meshes)
def test_coordinates_and_the_grid_agree(mesh: Mesh) -> None:
    where = [mesh.coordinate(axis) for axis in reversed(mesh.order)]
    assert (mesh.grid[tuple(where)] == np.arange(mesh.ranks)).all()
    for axis in AXES:
        assert np.bincount(mesh.coordinate(axis)).tolist() == [mesh.ranks // mesh.degrees[axis]] * mesh.degrees[axis]


@given(meshes, st.data())
def test_a_group_of_chosen_stages_has_them_in_their_order(mesh: Mesh, data: st.DataObject) -> None:
    stages = tuple(data.draw(st.lists(st.integers(0, mesh.degrees["pp"] - 1), min_size=1, max_size=2, unique=True)))
    found = mesh.groups(("pp",), pipeline=stages)
    assert found.shape == (mesh.ranks // mesh.degrees["pp"], len(stages))
    assert (mesh.coordinate("pp")[found] == stages).all()
    assert len(np.unique(found)) == found.size


def test_groups_stand_in_the_order_of_their_lowest_rank() -> None:
    mesh = Mesh.of({"tp": 2, "pp": 3}, "tp-pp")
    assert mesh.groups(("tp",), pipeline=(2, 0)).tolist() == [[0, 1], [4, 5]]
    assert mesh.groups(("pp",), pipeline=(2, 0)).tolist() == [[4, 0], [5, 1]]


def test_axes_left_out_have_one_coordinate() -> None:
    mesh = Mesh.of({"tp": 2, "dp": 3}, "dp-tp")
    assert mesh.ranks == 6
    assert groups(mesh, "dp") == [[0, 1, 2], [3, 4, 5]]
    assert groups(mesh, "pp") == [[rank] for rank in range(6)]
    assert mesh.coordinate("pp").tolist() == [0] * 6


@pytest.mark.parametrize(
    "order, said, hint",
    [
        ("tp-dq-pp", "'dq' is not an axis", "dp"),
        ("tp-tp-dp", "names an axis twice", MEGATRON),
        ("tp-pp", "leaves out dp", MEGATRON),
        ("", "'' is not an axis", "tp"),
    ],
)
def test_a_wrong_order_is_refused_with_a_right_one(order: str, said: str, hint: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        Mesh.of({"tp": 2, "dp": 2}, order)
    assert hint in caught.value.hint
