# SPDX-License-Identifier: Apache-2.0
"""Calls at the same time, on daemon threads.

The exit of a process waits for the threads of ``concurrent.futures``, also
after Ctrl-C, and one of them may wait a minute for an answer. It does not
wait for these.
"""

import queue
import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

_Key = TypeVar("_Key")
_Result = TypeVar("_Result")


def run(
    function: Callable[[_Key], _Result], keys: Iterable[_Key], threads: int
) -> list[_Result]:
    """Return the results of a function for some keys, in their order.

    After an exception no further call begins; it is raised at once.

    :param threads: most calls at the same time.
    """
    due = list(enumerate(keys))
    count = len(due)
    due.reverse()
    results: queue.SimpleQueue[tuple[int, Callable[[], _Result]]] = (
        queue.SimpleQueue()
    )

    def work() -> None:
        while due:
            try:
                index, key = due.pop()
            except IndexError:  # another thread took the last one
                return
            results.put((index, _call(function, key)))

    for _ in range(min(threads, count)):
        threading.Thread(target=work, name="parallel", daemon=True).start()
    values: dict[int, _Result] = {}
    try:
        while len(values) < count:
            index, take = results.get()
            values[index] = take()
    finally:
        due.clear()
    return [values[index] for index in range(count)]


def start(function: Callable[[], _Result]) -> Callable[[], _Result]:
    """Begin a call; return a function that waits for its result.

    It is called once, and raises the exception of the call.
    """
    results: queue.SimpleQueue[Callable[[], _Result]] = queue.SimpleQueue()

    def work() -> None:
        results.put(_call(lambda _: function(), None))

    threading.Thread(target=work, name="parallel", daemon=True).start()

    def wait() -> _Result:
        return results.get()()

    return wait


def _call(
    function: Callable[[_Key], _Result], key: _Key
) -> Callable[[], _Result]:
    """Call a function; return one that returns or raises the same."""
    try:
        result = function(key)
    except BaseException as error:
        failure = error

        def fail() -> _Result:
            raise failure

        return fail
    return lambda: result
