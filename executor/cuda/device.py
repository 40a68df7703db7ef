"""One CUDA device: its primary context, current in each thread that uses it, and its calls with their results read."""

from collections.abc import Callable
from typing import Any

from headrace.core.errors import EngineNotReady
from headrace.executor.cuda.bindings import Answer, Bindings
from headrace.executor.memory.driver import DriverFault, OutOfDeviceMemory

SUCCESS, NOT_READY, OUT_OF_MEMORY = "CUDA_SUCCESS", "CUDA_ERROR_NOT_READY", "CUDA_ERROR_OUT_OF_MEMORY"


class CudaDevice:
    """Device number `ordinal`. Use as a context manager; whatever was made on it is returned before."""

    def __init__(self, bindings: Bindings, ordinal: int = 0) -> None:
        """Raises EngineNotReady, in one line, where there is no driver or no such device."""
        self.bindings = bindings
        self.ordinal = ordinal
        try:
            _read(bindings.cuInit, bindings.cuInit(0))
            self.device = int(_read(bindings.cuDeviceGet, bindings.cuDeviceGet(ordinal)))
            self.context = int(_read(bindings.cuDevicePrimaryCtxRetain, bindings.cuDevicePrimaryCtxRetain(self.device)))
        except (DriverFault, RuntimeError) as error:  # the bindings' own where the driver's library is not there
            raise EngineNotReady(f"no CUDA device {ordinal}: {' '.join(str(error).split())}") from error
        self._open = True

    def call(self, function: Callable[..., Answer], *arguments: Any) -> Any:
        """What the driver's function answers, beside its result: nothing, a value, or a tuple of several.

        Makes the context current in this thread first, where another device's or none is. Raises OutOfDeviceMemory, and
        DriverFault for any other result that is not success.
        """
        if not self._open:
            raise ValueError(f"CUDA device {self.ordinal} is closed")
        if int(_read(self.bindings.cuCtxGetCurrent, self.bindings.cuCtxGetCurrent())) != self.context:
            _read(self.bindings.cuCtxSetCurrent, self.bindings.cuCtxSetCurrent(self.context))
        return _read(function, function(*arguments))

    def ready(self, function: Callable[..., Answer], *arguments: Any) -> bool:
        """For a query: whether it is done. Raises as `call` does."""
        try:
            self.call(function, *arguments)
        except DriverFault as fault:
            if fault.result == NOT_READY:
                return False
            raise
        return True

    @property
    def name(self) -> str:
        raw: bytes = self.call(self.bindings.cuDeviceGetName, 128, self.device)
        return raw.split(b"\0")[0].decode(errors="replace")

    def memory_bytes(self) -> tuple[int, int]:
        """(free, total) of the device, as it stands now."""
        free, total = self.call(self.bindings.cuMemGetInfo)
        return int(free), int(total)

    def close(self) -> None:
        """Harmless when repeated."""
        if self._open:
            self._open = False
            answer = self.bindings.cuDevicePrimaryCtxRelease(self.device)
            _read(self.bindings.cuDevicePrimaryCtxRelease, answer)

    def __enter__(self) -> "CudaDevice":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read(function: Callable[..., Answer], answer: Answer) -> Any:
    result, *values = answer
    name = getattr(result, "name", str(result))
    if name == OUT_OF_MEMORY:
        raise OutOfDeviceMemory(f"{function.__name__}: {name}")
    if name != SUCCESS:
        raise DriverFault(function.__name__, name)
    return values[0] if len(values) == 1 else tuple(values)
