"""GRPCInferenceService on the gateway's port. Thin: each method asks the part that knows."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from importlib.metadata import version

from headrace.api.inference import inference_pb2 as pb
from headrace.api.inference import inference_pb2_grpc
from headrace.core.errors import Unsupported
from headrace.core.model import ModelInfo
from headrace.gateway.kserve import catalogue
from headrace.gateway.kserve.call import Context
from headrace.gateway.kserve.inference import Inference, model_of
from headrace.gateway.kserve.readiness import Loaded
from headrace.gateway.kserve.shared_memory import Regions
from headrace.gateway.kserve.statistics import Statistics
from headrace.gateway.kserve.streams import STRICT_KEY, Streams
from headrace.gateway.ports import TextModels
from headrace.gateway.tenants.caller import Caller
from headrace.gateway.tenants.callers import Callers

EXTENSIONS = (
    "model_repository",
    "model_configuration",
    "schedule_policy",
    "statistics",
    "system_shared_memory",
    "parameters",
    "trace",
    "logging",
)


class InferenceService(inference_pb2_grpc.GRPCInferenceServiceServicer):
    """Liveness and readiness are for everybody; all else asks for the caller's key, where keys are in use."""

    def __init__(
        self,
        inference: Inference,
        streams: Streams,
        texts: TextModels,
        callers: Callers,
        ready: Callable[[], bool],
        loaded: Loaded,
        regions: Regions,
        statistics: Statistics,
        traced: bool,
    ) -> None:
        self._inference = inference
        self._streams = streams
        self._texts = texts
        self._callers = callers
        self._ready = ready
        self._loaded = loaded
        self._regions = regions
        self._statistics = statistics
        self._traced = traced

    async def ServerLive(self, request: pb.ServerLiveRequest, context: Context) -> pb.ServerLiveResponse:
        return pb.ServerLiveResponse(live=True)

    async def ServerReady(self, request: pb.ServerReadyRequest, context: Context) -> pb.ServerReadyResponse:
        return pb.ServerReadyResponse(ready=self._ready())

    async def ModelReady(self, request: pb.ModelReadyRequest, context: Context) -> pb.ModelReadyResponse:
        """False for a model that is not known, too."""
        served = self._caller(context).may_see(request.name) and request.version in ("", catalogue.VERSION)
        return pb.ModelReadyResponse(ready=self._ready() and served and request.name in await self._loaded.models())

    async def ServerMetadata(self, request: pb.ServerMetadataRequest, context: Context) -> pb.ServerMetadataResponse:
        self._caller(context)
        return pb.ServerMetadataResponse(name="headrace", version=version("headrace"), extensions=EXTENSIONS)

    async def ModelMetadata(self, request: pb.ModelMetadataRequest, context: Context) -> pb.ModelMetadataResponse:
        return catalogue.metadata(self._model(request.name, request.version, self._caller(context)))

    async def ModelConfig(self, request: pb.ModelConfigRequest, context: Context) -> pb.ModelConfigResponse:
        return catalogue.config(self._model(request.name, request.version, self._caller(context)))

    async def ModelInfer(self, request: pb.ModelInferRequest, context: Context) -> pb.ModelInferResponse:
        answers = self._inference.answers(request, context, self._caller(context), may_stream=False)
        async with aclosing(answers):
            [answer] = [answer async for answer in answers]  # to its end: one that is broken off counts as failed
            return answer

    async def ModelStreamInfer(  # type: ignore[override]
        self, request_iterator: AsyncIterator[pb.ModelInferRequest], context: Context
    ) -> None:
        caller = self._caller(context)
        strict = (STRICT_KEY, "true") in tuple(context.invocation_metadata() or ())
        answering = partial(self._inference.answers, context=context, caller=caller, may_stream=True)
        await self._streams.serve(request_iterator, answering, context.write, strict)

    async def RepositoryIndex(self, request: pb.RepositoryIndexRequest, context: Context) -> pb.RepositoryIndexResponse:
        """The models that the caller may use."""
        caller, loaded = self._caller(context), await self._loaded.models()
        response = pb.RepositoryIndexResponse()
        for name in self._texts.names():
            if not caller.may_see(name) or (request.ready and name not in loaded):
                continue
            if name in loaded:
                response.models.add(name=name, version=catalogue.VERSION, state="READY")
            else:
                reason = "no executor has it loaded"
                response.models.add(name=name, version=catalogue.VERSION, state="UNAVAILABLE", reason=reason)
        return response

    async def RepositoryModelLoad(
        self, request: pb.RepositoryModelLoadRequest, context: Context
    ) -> pb.RepositoryModelLoadResponse:
        raise Unsupported("executors load the models that their settings name: executor.models", field="model_name")

    async def RepositoryModelUnload(
        self, request: pb.RepositoryModelUnloadRequest, context: Context
    ) -> pb.RepositoryModelUnloadResponse:
        raise Unsupported("executors keep the models that their settings name: executor.models", field="model_name")

    async def ModelStatistics(self, request: pb.ModelStatisticsRequest, context: Context) -> pb.ModelStatisticsResponse:
        """Of one model, or of all that the caller may use."""
        caller = self._caller(context)
        names = [name for name in self._texts.names() if caller.may_see(name)]
        if request.name:
            names = [self._model(request.name, request.version, caller).name]
        return pb.ModelStatisticsResponse(model_stats=[self._statistics.of(name) for name in names])

    async def SystemSharedMemoryRegister(
        self, request: pb.SystemSharedMemoryRegisterRequest, context: Context
    ) -> pb.SystemSharedMemoryRegisterResponse:
        tenant = self._caller(context).tenant
        self._regions.register(tenant, request.name, request.key, request.offset, request.byte_size)
        return pb.SystemSharedMemoryRegisterResponse()

    async def SystemSharedMemoryUnregister(
        self, request: pb.SystemSharedMemoryUnregisterRequest, context: Context
    ) -> pb.SystemSharedMemoryUnregisterResponse:
        self._regions.unregister(self._caller(context).tenant, request.name)
        return pb.SystemSharedMemoryUnregisterResponse()

    async def SystemSharedMemoryStatus(
        self, request: pb.SystemSharedMemoryStatusRequest, context: Context
    ) -> pb.SystemSharedMemoryStatusResponse:
        regions = self._regions.status(self._caller(context).tenant, request.name)
        return pb.SystemSharedMemoryStatusResponse(
            regions={
                name: pb.SystemSharedMemoryStatusResponse.RegionStatus(
                    name=name, key=each.key, offset=each.offset, byte_size=each.byte_size
                )
                for name, each in regions.items()
            }
        )

    async def CudaSharedMemoryRegister(
        self, request: pb.CudaSharedMemoryRegisterRequest, context: Context
    ) -> pb.CudaSharedMemoryRegisterResponse:
        raise Unsupported("the gateway has no GPU: register system shared memory", field="raw_handle")

    async def CudaSharedMemoryUnregister(
        self, request: pb.CudaSharedMemoryUnregisterRequest, context: Context
    ) -> pb.CudaSharedMemoryUnregisterResponse:
        """There is never one to unregister."""
        self._caller(context)
        return pb.CudaSharedMemoryUnregisterResponse()

    async def CudaSharedMemoryStatus(
        self, request: pb.CudaSharedMemoryStatusRequest, context: Context
    ) -> pb.CudaSharedMemoryStatusResponse:
        """There is never one."""
        self._caller(context)
        return pb.CudaSharedMemoryStatusResponse()

    async def TraceSetting(self, request: pb.TraceSettingRequest, context: Context) -> pb.TraceSettingResponse:
        """As it is; it is set for the whole gateway at its start."""
        self._caller(context)
        if request.settings:
            raise Unsupported("traces are set at the start: telemetry.endpoint", field="settings")
        now = {"trace_mode": "opentelemetry", "trace_level": "TIMESTAMPS" if self._traced else "OFF", "trace_rate": "1"}
        value = pb.TraceSettingResponse.SettingValue
        return pb.TraceSettingResponse(settings={name: value(value=[each]) for name, each in now.items()})

    async def LogSettings(self, request: pb.LogSettingsRequest, context: Context) -> pb.LogSettingsResponse:
        """As it is; it is set for the whole gateway at its start."""
        self._caller(context)
        if request.settings:
            raise Unsupported("the log is set at the start: telemetry.log_level", field="settings")
        level = logging.getLogger().getEffectiveLevel()
        value = pb.LogSettingsResponse.SettingValue
        return pb.LogSettingsResponse(
            settings={
                "log_info": value(bool_param=level <= logging.INFO),
                "log_warning": value(bool_param=level <= logging.WARNING),
                "log_error": value(bool_param=level <= logging.ERROR),
                "log_verbose_level": value(uint32_param=int(level <= logging.DEBUG)),
            }
        )

    def _caller(self, context: Context) -> Caller:
        return self._callers.caller(tuple(context.invocation_metadata() or ()))

    def _model(self, name: str, model_version: str, caller: Caller) -> ModelInfo:
        return model_of(name, model_version, self._texts, caller)
