"""Counting what really goes over the links: a relay between the SuperNodes and the SuperLink.

It passes the encrypted bytes on as they are, so the count holds everything: messages, HTTP, TLS, polling, heartbeats.
What TCP and IP add to it, some 3 % of full packets, is not in it.
"""

import asyncio
import threading
from types import TracebackType
from typing import NamedTuple, Self


class Count(NamedTuple):
    """Bytes from the nodes to the SuperLink and back."""

    up: int
    down: int


class Meter:
    """Listens on a free port of loopback while its context lasts, and passes everything to ``port``."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._up = self._down = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        listen = asyncio.start_server(self._relay, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(listen, self._loop).result()
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def read(self) -> Count:
        """What has gone through until now."""
        return Count(self._up, self._down)

    async def _relay(self, node: asyncio.StreamReader, to_node: asyncio.StreamWriter) -> None:
        ends = [to_node]
        try:
            link, to_link = await asyncio.open_connection("127.0.0.1", self._target)
            ends.append(to_link)
            await asyncio.gather(self._pass(node, to_link, up=True), self._pass(link, to_node, up=False))
        except OSError:
            pass  # the SuperLink is not there, or one end went away: the other one will see it
        finally:
            for end in ends:
                end.close()

    async def _pass(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, up: bool) -> None:
        while data := await source.read(1 << 16):
            if up:
                self._up += len(data)
            else:
                self._down += len(data)
            target.write(data)
            await target.drain()
        target.write_eof()

    async def _end(self) -> None:
        self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
