"""How near a pool is to refusing requests of a class: 0.0 while nothing waits, 1.0 where it begins.

It is the wait that is predicted for the next request, over the wait at which that would be refused.
The wait is that of one client, because in a class clients take turns. Whoever floods the pool waits
behind its own requests. Another client waits for the higher classes and for its turn, and has a
pressure of its own. The next request is one of an ordinary size, whatever the client sends, and it
has the patience of its class: so no single request changes what others of its queue are told.

The time that a full cache needs counts as soon as it shows in the pace. What engines have queued
does not count: a long prompt of one client would raise the pressure of all.
"""

from math import exp
from typing import Final

from penstock.balancing.admission.line import Line
from penstock.balancing.admission.prediction import before_s, size_of
from penstock.balancing.admission.ticket import Flow

# An ordinary prompt: in published traces of chats the median is about this.
NEXT_TOKENS: Final = 1_024


def pressure(line: Line, flow: Flow, rank: int, max_wait_s: float, now_s: float) -> float:
    """That of a client (a flow) in a class. `max_wait_s`: how long requests of the class wait."""
    if not line.queue.waiting:
        return 0.0
    able = [backend for backend in line.places.members if backend.can_serve]
    if not able:
        return 0.0  # nobody waits for that
    ahead = line.queue.ahead_tokens(flow, rank, NEXT_TOKENS)
    speeds = [backend.prefill_speed.work_per_s for backend in able]
    wait_s = before_s(ahead, rank, 0, 0.0, speeds, line.pace)
    wait_s *= exp(flow.errors[size_of(NEXT_TOKENS)])
    return wait_s / line.allowed_s(rank, max_wait_s, now_s)


def highest_pressure(line: Line, rank: int, max_wait_s: float, now_s: float) -> float:
    """That of the client that would wait longest, or of a new one if none waits in the class."""
    if not line.queue.waiting:
        return 0.0
    longest, until = Flow("", len(line.queue.shares)), 0.0
    for flow in line.queue.backlogs[rank]:
        last = flow.served + (flow.queued_tokens[rank] + NEXT_TOKENS) / flow.weight
        if last > until:  # whoever is served up to the highest count has the most ahead of it
            longest, until = flow, last
    return pressure(line, longest, rank, max_wait_s, now_s)
