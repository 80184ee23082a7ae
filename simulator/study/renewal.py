"""Expected time of training with failures and checkpoints: a renewal model in closed form.

Failures arrive at random at a constant rate while a job trains, pauses for a checkpoint, or restarts. A failure is detected after
a fixed time; the restart after it takes a fixed time and may itself fail. Then the job continues from its last complete
checkpoint. A checkpoint pauses training, and is complete when it has been written; a synchronous one is written at the end of
its pause. The expected time between two moments at which a checkpoint becomes complete is

    (1/rate + detection) exp(rate (restart + write)) (exp(rate (interval + pause)) - 1).

Without detection time and with synchronous writing this is the complete model of Daly (A higher order estimate of the optimum
checkpoint interval for restart dumps, Future Generation Computer Systems 22, 2006), whose formula for the best interval, and that
of Young (A first order approximation to the optimum checkpoint interval, CACM 17, 1974), are shown next to the minimum
of this model.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import exp, expm1, inf, sqrt

from ..errors import Infeasible
from ..units import show_span

MOST_EXPONENT = 100.0
"""Expected failures between two checkpoints from which the job is reported as making no progress."""
HALVINGS = 200


@dataclass(frozen=True, slots=True)
class Interruptions:
    """Failures of a job, and the times of its checkpoints and restarts, in seconds."""

    rate_per_s: float
    pause_s: float
    """Time for which a checkpoint stops training."""
    write_s: float = 0.0
    """Time after the pause until a checkpoint is complete: it is written during training."""
    detection_s: float = 0.0
    restart_s: float = 0.0

    @property
    def mtbf_s(self) -> float:
        return 1 / self.rate_per_s if self.rate_per_s else inf


@dataclass(frozen=True, slots=True)
class Shares:
    """Fractions of the time, which add up to one."""

    trained: float
    """Training that is kept: the effective training time ratio (ETTR)."""
    checkpoints: float
    """Pauses for checkpoints that are kept."""
    lost: float
    """Training and pauses since the last complete checkpoint before a failure."""
    detection: float
    restart: float
    waiting: float = 0.0
    """Waiting for a node to be repaired."""

    def delayed(self, waiting: float) -> Shares:
        """The fractions where a part of all time is spent waiting for a repair."""
        return Shares(
            **{name: (1 - waiting) * share for name, share in asdict(self).items() if name != "waiting"}, waiting=waiting
        )


def shares(job: Interruptions, interval_s: float) -> Shares:
    """How a job spends its time if it trains for an interval between two checkpoints."""
    period_s, rate = interval_s + job.pause_s, job.rate_per_s
    if not rate:
        return Shares(interval_s / period_s, job.pause_s / period_s, 0.0, 0.0, 0.0)
    expected = rate * (period_s + job.write_s + job.restart_s)
    if expected > MOST_EXPONENT:
        raise Infeasible(
            f"a failure every {show_span(job.mtbf_s)}, and {show_span(expected / rate)} from a restart to a complete checkpoint: "
            "the job makes no progress",
            hint="checkpoint more often, restart faster, or use fewer GPUs",
        )
    total_s = (1 / rate + job.detection_s) * exp(rate * (job.restart_s + job.write_s)) * expm1(rate * period_s)
    failures = rate * total_s / (1 + rate * job.detection_s)
    detection_s, restart_s = failures * job.detection_s, failures * -expm1(-rate * job.restart_s) / rate
    lost_s = total_s - period_s - detection_s - restart_s
    parts = (interval_s, job.pause_s, lost_s, detection_s, restart_s)
    return Shares(*(part / total_s for part in parts))


def failures_per_s(job: Interruptions, waiting: float = 0.0) -> float:
    """Failures per second of all time: none arrive between a failure and its detection, or during a wait."""
    return (1 - waiting) * job.rate_per_s / (1 + job.rate_per_s * job.detection_s)


def best_interval_s(job: Interruptions, least_s: float = 0.0) -> float:
    """The interval, in seconds, that keeps most training; at least `least_s`, and the time of writing a checkpoint.

    The fraction is largest where rate x interval = 1 - exp(-rate (interval + pause)); detection, restart and writing do not
    matter. The difference of both sides grows with the interval.
    """
    if not job.rate_per_s:
        return inf
    low_s, high_s, rate = 0.0, job.mtbf_s, job.rate_per_s
    for _ in range(HALVINGS):
        middle_s = (low_s + high_s) / 2
        low_s, high_s = (low_s, middle_s) if rate * middle_s > -expm1(-rate * (middle_s + job.pause_s)) else (middle_s, high_s)
    return max(high_s, least_s, job.write_s - job.pause_s)


def young_s(job: Interruptions) -> float:
    """Young's interval."""
    return sqrt(2 * job.pause_s * job.mtbf_s) if job.pause_s else 0.0


def daly_s(job: Interruptions) -> float:
    """Daly's interval, of higher order."""
    if not job.pause_s or job.mtbf_s == inf:
        return young_s(job)
    ratio = job.pause_s / (2 * job.mtbf_s)
    return job.mtbf_s if ratio >= 1 else young_s(job) * (1 + sqrt(ratio) / 3 + ratio / 9) - job.pause_s


def waiting_fraction(failed_nodes: float, spares: int) -> float:
    """Fraction of the time in which more nodes are under repair than there are spares, and the job waits for one.

    `failed_nodes` is the number of nodes that would be under repair on average. Repairs take an exponentially distributed time,
    and no node fails while the job waits: Erlang's formula for one more server than there are spares.
    """
    blocked = 1.0
    for servers in range(1, spares + 2):
        blocked = failed_nodes * blocked / (servers + failed_nodes * blocked)
    return blocked
