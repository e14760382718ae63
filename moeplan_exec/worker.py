"""A thread that does one thing and tells what went wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Worker:
    """A daemon thread whose failure is raised in the thread that asks for its results.

    What `work` holds is freed when it is done.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self.error = error
        finally:
            del self.work

    def join(self) -> None:
        """Wait for the end of the thread and raise what it raised."""
        self.thread.join()
        if self.error is not None:
            raise self.error
