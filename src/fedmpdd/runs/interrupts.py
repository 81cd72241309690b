"""Ctrl-C after a round, not within one: so that what was trained is on the disk when the process ends."""

import signal
import threading
from types import FrameType
from typing import Any


class Deferred:
    """While it lasts, the first Ctrl-C is only noted, in `heard`; the second raises KeyboardInterrupt at once.

    That goes for every signal that would raise it: SIGTERM too, where the caller has it handled like Ctrl-C. In other
    threads than the main one nothing is changed, since signals do not come there.
    """

    def __init__(self) -> None:
        self.heard = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "Deferred":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is signal.default_int_handler:
                    self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.heard:
            signal.default_int_handler(number, frame)
        self.heard = True
