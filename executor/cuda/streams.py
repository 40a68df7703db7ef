"""Work in order on a device, and marks in it that can be waited for."""

from headrace.executor.cuda.device import CudaDevice


class Event:
    """A mark in a stream. Use as a context manager."""

    def __init__(self, device: CudaDevice, *, timed: bool = False) -> None:
        """`timed` events can be measured between, and cost more."""
        flags = device.bindings.CUevent_flags
        self._device = device
        self.number = int(
            device.call(
                device.bindings.cuEventCreate,
                int(flags.CU_EVENT_DEFAULT if timed else flags.CU_EVENT_DISABLE_TIMING),
            )
        )
        self._open = True

    def fired(self) -> bool:
        """Whether the work before its last mark is done; true where there is no mark yet. Raises DriverFault where the
        device has failed."""
        return self._device.ready(self._device.bindings.cuEventQuery, self.number)

    def seconds_since(self, start: "Event") -> float:
        """Between two timed marks that have fired."""
        elapsed_ms = self._device.call(self._device.bindings.cuEventElapsedTime, start.number, self.number)
        return float(elapsed_ms) / 1000

    def close(self) -> None:
        """Harmless when repeated."""
        if self._open:
            self._open = False
            self._device.call(self._device.bindings.cuEventDestroy, self.number)

    def __enter__(self) -> "Event":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Stream:
    """Runs what is given to it one after the other, beside other streams. Use as a context manager."""

    def __init__(self, device: CudaDevice) -> None:
        self.device, self._cuda = device, device.bindings
        flags = int(self._cuda.CUstream_flags.CU_STREAM_NON_BLOCKING)  # does not wait for the default stream
        self.number = int(device.call(self._cuda.cuStreamCreate, flags))
        self._open = True

    def record(self, event: Event) -> None:
        """The event fires when all that was given to the stream so far is done."""
        self.device.call(self._cuda.cuEventRecord, event.number, self.number)

    def wait(self, event: Event) -> None:
        """What is given from now on begins after the event's last mark; the host does not wait."""
        self.device.call(self._cuda.cuStreamWaitEvent, self.number, event.number, 0)

    def to_device(self, target: int, source: int, size_bytes: int) -> None:
        """Copies from the host's address `source`, which stays as it is until an event recorded later has fired."""
        self.device.call(self._cuda.cuMemcpyHtoDAsync, target, source, size_bytes, self.number)

    def to_host(self, target: int, source: int, size_bytes: int) -> None:
        """Copies to the host's address `target`."""
        self.device.call(self._cuda.cuMemcpyDtoHAsync, target, source, size_bytes, self.number)

    def fill(self, address: int, value: int, size_bytes: int) -> None:
        """Sets bytes on the device."""
        self.device.call(self._cuda.cuMemsetD8Async, address, value, size_bytes, self.number)

    def idle(self) -> bool:
        """Whether all that was given to it is done."""
        return self.device.ready(self._cuda.cuStreamQuery, self.number)

    def synchronise(self) -> None:
        """Waits without a bound: for closing and for measurements, not for serving."""
        self.device.call(self._cuda.cuStreamSynchronize, self.number)

    def close(self) -> None:
        """Harmless when repeated."""
        if self._open:
            self._open = False
            self.device.call(self._cuda.cuStreamDestroy, self.number)

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
