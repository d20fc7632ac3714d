"""A simulated vLLM server: an instance, and where its requests are answered.

    server = await SimServer(profile="instant").start()
    ...                                  # requests to server.url
    await server.stop()

It is apart from the instance, which those who answer know.
"""

from penstock.bench.sim import routes
from penstock.bench.sim.instance import Instance
from penstock.bench.sim.reply import Reply
from penstock.bench.sim.request import Request


class SimServer(Instance):
    """An instance that answers on vLLM's paths, and on `/sim/...`."""

    def dispatch(self, request: Request, reply: Reply) -> None:
        routes.dispatch(self, request, reply)
