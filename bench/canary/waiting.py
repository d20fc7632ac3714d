"""A request that waits for a plain answer, or in vain."""

from penstock.balancing.canary.ended import Ended, Ending


class Waiting:
    """One request, until `until_s`. `told`: its end tells nothing more."""

    __slots__ = ("ended", "over", "sent_s", "told", "until_s")

    def __init__(self, ended: Ended, sent_s: float, until_s: float) -> None:
        """`ended`: how it will end."""
        self.ended = ended
        self.sent_s = sent_s
        self.until_s = until_s
        self.told = False
        self.over = False

    @property
    def waits(self) -> bool:
        """Whether it has not ended."""
        return not self.over

    def waiting(self, now_s: float) -> Ended:
        """It as one that has waited in vain so far."""
        ended = self.ended
        return Ended(
            Ending.HUNG,
            canary=ended.canary,
            client=ended.client,
            key=ended.key,
            fresh=ended.fresh,
            prompt_tokens=ended.prompt_tokens,
            stream=ended.stream,
            queued_tokens=ended.queued_tokens,
            streams=ended.streams,
            waited_s=now_s - self.sent_s,
        )
