"""What `Offload` asks of a device: copies on a stream of their own, and events between it and the
stream that works. Tests put their own in its place."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Streams(Protocol):
    @property
    def work(self) -> Any:
        """The stream that blocks run on now."""

    @property
    def copies(self) -> Any:
        """The stream of copies to the device."""

    def event(self, blocking: bool = False) -> Any:
        """One to record again and again; a thread that waits for it sleeps if it is blocking."""

    def record(self, event: Any, stream: Any) -> None:
        """The event is there once all is done that the stream has now."""

    def wait(self, stream: Any, event: Any) -> None:
        """The stream goes on once the event is there, as it was recorded last; at once, where it
        never was."""

    def finish(self, event: Any) -> None:
        """The calling thread waits."""

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        """On the stream of copies."""

    def keep(self, memory: torch.Tensor, stream: Any) -> None:
        """Memory that is let go is given to nobody before the stream has done what it has then."""


class CudaStreams:
    """Of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.copies = torch.cuda.Stream(device)

    @property
    def work(self) -> torch.cuda.Stream:
        return torch.cuda.current_stream(self._device)

    def event(self, blocking: bool = False) -> torch.cuda.Event:
        return torch.cuda.Event(blocking=blocking)

    def record(self, event: torch.cuda.Event, stream: torch.cuda.Stream) -> None:
        event.record(stream)

    def wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
        stream.wait_event(event)

    def finish(self, event: torch.cuda.Event) -> None:
        event.synchronize()

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self.copies):
            destination.copy_(source, non_blocking=True)

    def keep(self, memory: torch.Tensor, stream: torch.cuda.Stream) -> None:
        memory.record_stream(stream)


class CpuStreams:
    """Of the CPU, which does all at once."""

    work = copies = None

    def event(self, blocking: bool = False) -> None:  # noqa: ARG002
        return None

    def record(self, event: None, stream: None) -> None:
        pass

    def wait(self, stream: None, event: None) -> None:
        pass

    def finish(self, event: None) -> None:
        pass

    def copy(self, destination: torch.Tensor, source: torch.Tensor) -> None:
        destination.copy_(source)

    def keep(self, memory: torch.Tensor, stream: None) -> None:
        pass


def streams_of(device: torch.device) -> Streams:
    """Those of a device."""
    return CudaStreams(device) if device.type == "cuda" else CpuStreams()
