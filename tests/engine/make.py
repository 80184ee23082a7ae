"""Task graphs and skeletons for the laws of the engine: small builders, and random ones from a seeded generator."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from simulator.engine.skeleton import Skeleton, Tariff
from simulator.engine.task import FULL_SPEED, RATE_BITS, UNCAPPED, WEIGHT_BITS, Array, Csr, Profile, TaskGraph
from simulator.engine.template import Template
from simulator.errors import InvariantBroken

ONE = 1 << WEIGHT_BITS


def gb_per_s(value: float) -> int:
    """A rate of the engine: 1 GB/s is one byte per nanosecond."""
    return int(value * (1 << RATE_BITS))


def steady(*values: int) -> list[Profile]:
    return [Profile.constant(value) for value in values]


@dataclass
class Build:
    """A task graph, task by task."""

    links: list[Profile] = field(default_factory=list)
    speeds: list[Profile] = field(default_factory=list)
    caps: list[Profile] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    footprints: list[list[tuple[int, int]]] = field(default_factory=list)
    streams: dict[Any, list[int]] = field(default_factory=dict)

    def task(
        self,
        ns: int = 0,
        *,
        on: Any = (),
        after: Any = (),
        work: int = 0,
        route: Any = (),
        cap: int | Profile = UNCAPPED,
        speed: int = -1,
        tail: int = 0,
    ) -> int:
        task = len(self.rows)
        footprint = -1
        if work:
            self.footprints.append([(link, ONE) if isinstance(link, int) else link for link in route])
            footprint = len(self.footprints) - 1
        row = {
            "ns": ns,
            "after": list(after),
            "footprint": footprint,
            "work": work << RATE_BITS,
            "speed": speed,
            "tail": tail,
            "changing": -1,
        }
        if isinstance(cap, Profile):
            row["changing"] = len(self.caps)
            self.caps.append(cap)
        self.rows.append(row | {"cap": cap.value[0] if isinstance(cap, Profile) else cap})
        for stream in on if isinstance(on, (tuple, list)) else (on,):
            self.streams.setdefault(stream, []).append(task)
        if on == ():
            self.streams[("own", task)] = [task]
        return task

    def graph(self) -> TaskGraph:
        profiles = tuple(self.links + self.speeds + self.caps)
        names = ("ns", "tail", "footprint", "work", "cap", "speed", "changing")
        column = {name: np.array([row[name] for row in self.rows], dtype=np.int64) for name in names}
        return check(
            TaskGraph(
                column["ns"],
                column["tail"],
                column["speed"],
                column["footprint"],
                column["work"],
                column["cap"],
                Csr.from_lists(list(self.streams.values())),
                Csr.from_lists([row["after"] for row in self.rows]),
                Csr.from_lists([[link for link, _ in footprint] for footprint in self.footprints]),
                np.array([weight for footprint in self.footprints for _, weight in footprint], dtype=np.int64),
                np.arange(len(self.links)),
                np.arange(len(self.speeds)) + len(self.links),
                profiles,
                cap_profile=np.where(column["changing"] >= 0, column["changing"] + len(self.links + self.speeds), -1),
            )
        )


def random_graph(rng: np.random.Generator, *, flows: bool, speeds: bool = False, tasks: int = 60) -> TaskGraph:
    """A random acyclic graph: streams, gangs, dependencies, tails, and flows over shared links if asked for."""
    n_streams, n_links = int(rng.integers(1, 7)), int(rng.integers(1, 5))
    b = Build(links=steady(*(int(rng.integers(1, 60)) << RATE_BITS for _ in range(n_links))))
    if speeds:
        b.speeds = [_random_profile(rng, FULL_SPEED) for _ in range(n_streams)]
    for task in range(int(rng.integers(1, tasks))):
        width = int(rng.integers(1, min(3, n_streams) + 1))
        on = sorted(rng.choice(n_streams, width, replace=False).tolist())
        after = sorted(set(rng.integers(0, task, int(rng.integers(0, 3))).tolist())) if task else []
        if flows and rng.random() < 0.5:
            crossed = sorted(rng.choice(n_links, int(rng.integers(1, n_links + 1)), replace=False).tolist())
            route = [(link, int(rng.choice([ONE, ONE // 2, 3 * ONE]))) for link in crossed]
            cap = UNCAPPED if rng.random() < 0.5 else _random_cap(rng)
            work, tail = int(rng.integers(1, 5000)), _random_tail(rng)
            b.task(int(rng.integers(0, 5)), on=on, after=after, work=work, route=route, cap=cap, tail=tail)
        else:
            speed = on[0] if speeds else -1
            b.task(int(rng.integers(0, 200)), on=on, after=after, speed=speed, tail=_random_tail(rng))
    return b.graph()


def _random_cap(rng: np.random.Generator) -> int | Profile:
    """One that stays, or one that changes, to nothing for a while too."""
    if rng.random() < 0.5:
        return int(rng.integers(1, 40)) << RATE_BITS
    since = sorted(set(rng.integers(1, 3000, int(rng.integers(1, 4))).tolist()))
    values = [int(rng.integers(1, 40)), *rng.integers(0, 40, len(since) - 1).tolist(), int(rng.integers(1, 40))]
    return Profile((0, *since), tuple(value << RATE_BITS for value in values))


def _random_tail(rng: np.random.Generator) -> int:
    """None, one that is shorter than most tasks, or one that outlasts several."""
    return int(rng.choice([0, 0, rng.integers(1, 20), rng.integers(1, 400)]))


def _random_profile(rng: np.random.Generator, top: int) -> Profile:
    changes = sorted(set(rng.integers(1, 3000, int(rng.integers(0, 3))).tolist()))
    return Profile((0, *changes), tuple(int(rng.integers(top // 4, top + 1)) for _ in range(len(changes) + 1)))


@dataclass
class Base:
    """A small network of ranks, communicators and links, to be lifted to a cover of itself."""

    templates: tuple[Template, ...]
    tariff: Tariff
    profiles: tuple[Profile, ...]
    speed: list[int]
    members: list[list[tuple[int, int]]]
    """Communicator -> (slot, rank)."""
    kind: list[int]
    routes: list[list[tuple[int, int]]]
    """Communicator -> (link, weight)."""
    link_profile: list[int]


def random_base(rng: np.random.Generator) -> Base:
    """Every rank runs a program of its own; communicators join random ranks and take random turns."""
    n_ranks, n_links, n_charges = int(rng.integers(1, 5)), int(rng.integers(1, 5)), 4
    n_comms = int(rng.integers(1, 6))
    members, routes, script = [], [], []
    slot_of: list[dict[int, int]] = [{} for _ in range(n_ranks)]
    for comm in range(n_comms):
        ranks = sorted(rng.choice(n_ranks, int(rng.integers(1, n_ranks + 1)), replace=False).tolist())
        for rank in ranks:
            slot_of[rank][comm] = len(slot_of[rank])
        members.append([(slot_of[rank][comm], rank) for rank in ranks])
        links = sorted(rng.choice(n_links, int(rng.integers(1, n_links + 1)), replace=False).tolist())
        routes.append([(link, int(rng.choice([ONE, ONE // 4, 2 * ONE]))) for link in links])
    for _ in range(int(rng.integers(5, 25))):
        script.append((int(rng.integers(0, n_comms)), int(rng.integers(0, n_charges))) if rng.random() < 0.6 else None)
    templates = tuple(_template(rng, script, slot_of[rank]) for rank in range(n_ranks))
    shape = (n_comms, n_charges)
    profiles = tuple(steady(FULL_SPEED, FULL_SPEED // 2, *(int(rng.integers(3, 70)) << RATE_BITS for _ in range(3))))
    caps = np.where(rng.random(shape) < 0.5, UNCAPPED, rng.integers(1, 50, shape) << RATE_BITS)
    falling = Profile((0, 150, 700), tuple(value << RATE_BITS for value in rng.permutation([25, 4, 31]).tolist()))
    falls = rng.random(shape) < 0.2
    tariff = Tariff(
        latency_ns=rng.integers(0, 20, shape),
        work=rng.integers(0, 4000, shape) << RATE_BITS,
        cap=np.where(falls, falling.value[0], caps),
        pattern=np.zeros(shape, dtype=np.int64),
        tail_ns=np.where(rng.random(shape) < 0.5, 0, rng.integers(1, 300, shape)),
        cap_profile=np.where(falls, len(profiles), -1),
        cores=random_part(rng, shape),
        memory=random_part(rng, shape),
    )
    return Base(
        templates,
        tariff,
        (*profiles, falling),
        rng.integers(0, 2, n_ranks).tolist(),
        members,
        list(range(n_comms)),
        routes,
        rng.integers(2, len(profiles), n_links).tolist(),
    )


def _template(rng: np.random.Generator, script: list[tuple[int, int] | None], slot_of: dict[int, int]) -> Template:
    """A rank's part in a common script of turns, with own work of its own between; one lane per communicator."""
    slot, solo, charge, lanes = [], [], [], [[] for _ in range(len(slot_of) + 1)]
    preds: list[list[int]] = []
    for turn in script:
        if turn is not None and turn[0] not in slot_of:
            continue
        row = len(slot)
        slot.append(-1 if turn is None else slot_of[turn[0]])
        solo.append(int(rng.integers(0, 100)))
        charge.append(0 if turn is None else turn[1])
        preds.append(sorted(set(rng.integers(0, row, int(rng.integers(0, 3))).tolist())) if row else [])
        lanes[slot[-1] + 1].append(row)
    columns = [np.array(c, dtype=np.int64) for c in (slot, solo, charge)]
    resource = np.where(columns[0] < 0, rng.integers(-1, 2, len(slot)), -1)
    return Template(*columns, Csr.from_lists(preds), Csr.from_lists(lanes), resource)


def random_part(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """What tasks take of a resource: nothing, a little, or, several together, more than there is."""
    part: Array = np.where(rng.random(shape) < 0.5, 0, rng.integers(1, FULL_SPEED // 2, shape))
    return part


def lift(base: Base, copies: int, rng: np.random.Generator) -> Skeleton:
    """A random cover: `copies` of everything, joined by random permutations. Folding must find the base again."""
    n_ranks, n_comms = len(base.speed), len(base.members)
    n_slots = max((slot for ranks in base.members for slot, _ in ranks), default=0) + 1
    slots = np.full((n_slots, n_ranks * copies), -1, dtype=np.int64)
    rows, links, weights = [], [], []
    for comm in range(n_comms):
        for slot, rank in base.members[comm]:
            slots[slot, rank * copies + rng.permutation(copies)] = comm * copies + np.arange(copies)
        for link, weight in base.routes[comm]:
            rows.append(comm * copies + np.arange(copies))
            links.append(link * copies + rng.permutation(copies))
            weights.append(np.full(copies, weight))
    row, link, weight = (np.concatenate(c) for c in (rows, links, weights))
    order = np.argsort(row, kind="stable")
    return Skeleton(
        base.templates,
        base.tariff,
        base.profiles,
        program=np.repeat(np.arange(n_ranks), copies),
        speed=np.repeat(np.array(base.speed), copies),
        slots=slots,
        kind=np.repeat(np.array(base.kind), copies),
        patterns=1,
        footprints=Csr.from_pairs(row, link, n_comms * copies),
        footprint_weight=weight[order],
        link_profile=np.repeat(np.array(base.link_profile), copies),
    )


def with_profile(skeleton: Skeleton, profile: Profile, *, rank: int | None = None, link: int | None = None) -> Skeleton:
    """The skeleton with one rank's speed or one link's capacity replaced: a broken symmetry."""
    changed: dict[str, Any] = {"profiles": (*skeleton.profiles, profile)}
    for name, at in (("speed", rank), ("link_profile", link)):
        if at is not None:
            column = getattr(skeleton, name).copy()
            column[at] = len(skeleton.profiles)
            changed[name] = column
    return replace(skeleton, **changed)


def check(graph: TaskGraph) -> TaskGraph:
    """Raises `InvariantBroken` unless every index points somewhere and every task is on a stream; returns the graph."""
    n = len(graph)
    on_stream, caps = np.bincount(graph.streams.idx, minlength=n), graph.changing_caps.items()
    faults = [
        ("a task is on no stream", bool((on_stream == 0).any())),
        ("a stream or predecessor names a task that does not exist", len(on_stream) > n or _beyond(graph.preds.idx, n)),
        ("a task names a speed that does not exist", _beyond(graph.speed, len(graph.speed_profile))),
        ("a task names a footprint that does not exist", _beyond(graph.footprint, len(graph.footprints))),
        ("a footprint names a link that does not exist", _beyond(graph.footprints.idx, len(graph.link_profile))),
        ("a duration, a size or a cap is negative", any(bool((c < 0).any()) for c in _sizes(graph))),
        ("a footprint has a weight that is not positive", bool((graph.footprint_weight <= 0).any())),
        ("a cap is not what its profile begins with", any((graph.cap[of] != graph.profiles[i].value[0]).any() for i, of in caps)),
        ("a task has both a speed and a footprint", bool(((graph.speed >= 0) & (graph.footprint >= 0)).any())),
        (
            "the columns differ in length",
            len({n, len(graph.speed), len(graph.footprint), len(graph.preds), *map(len, _sizes(graph))}) > 1,
        ),
    ]
    for message, wrong in faults:
        if wrong:
            raise InvariantBroken(f"task graph: {message}")
    return graph


def _sizes(graph: TaskGraph) -> tuple[Array, ...]:
    """The columns of times, work and rates."""
    return graph.solo_ns, graph.tail_ns, graph.work, graph.cap


def _beyond(column: Array, size: int) -> bool:
    return bool(len(column)) and int(column.max()) >= size
