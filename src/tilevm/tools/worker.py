"""An object in a process of its own: what it compiles, imports or breaks is nobody else's."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import traceback
from multiprocessing.connection import Connection
from typing import Any


class WorkerError(Exception):
    """The object raised; the message is its traceback."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.summary = text.strip().splitlines()[-1] if text.strip() else "no message"


class WorkerDied(WorkerError):
    """The process ended before it answered, or did not answer in time."""


class Worker:
    """`Worker("package.module:Class", arguments, environment).call("method", ...)`."""

    def __init__(
        self, target: str, arguments: tuple[Any, ...], environment: dict[str, str]
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, target, arguments, environment), name=target
        )
        self._process.start()
        theirs.close()

    def send(self, method: str, *arguments: Any) -> None:
        """Ask for `method(*arguments)` and go on; `receive` waits for the answer."""
        try:
            self._connection.send((method, arguments))
        except (BrokenPipeError, OSError) as error:
            raise WorkerDied(self._told()) from error

    def receive(self, limit_s: float | None = None) -> Any:
        """The answer. Raises: WorkerError, WorkerDied; None: wait as long as it takes."""
        try:
            if not self._connection.poll(limit_s):
                self._process.kill()
                raise WorkerDied(f"no answer within {limit_s:.0f} s")
            ok, answer = self._connection.recv()
        except (EOFError, ConnectionResetError) as error:
            raise WorkerDied(self._told()) from error
        if not ok:
            raise WorkerError(answer)
        return answer

    def call(self, method: str, *arguments: Any, limit_s: float | None = None) -> Any:
        """`method(*arguments)` of the object."""
        self.send(method, *arguments)
        return self.receive(limit_s)

    def close(self) -> None:
        """End the process."""
        self._connection.close()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _told(self) -> str:
        self._process.join(timeout=5)
        code = self._process.exitcode
        return f"the process was ended by signal {-code}" if code and code < 0 else f"exit {code}"


def _serve(
    connection: Connection, target: str, arguments: tuple[Any, ...], environment: dict[str, str]
) -> None:
    """Answer requests until the other end closes; the environment is set before any import."""
    os.environ.update(environment)
    module, _, name = target.partition(":")
    instance: Any = None
    while True:
        try:
            method, values = connection.recv()
        except (EOFError, OSError):
            return
        try:
            if instance is None:
                instance = getattr(importlib.import_module(module), name)(*arguments)
            answer = (True, getattr(instance, method)(*values))
        except Exception:
            answer = (False, traceback.format_exc())
        try:
            connection.send(answer)
        except (BrokenPipeError, OSError):
            return
