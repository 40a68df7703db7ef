"""What the door says of server and models, before and after they have been asked anything."""

import grpc
import pytest

from headrace.api.inference import inference_pb2 as pb
from headrace.chassis.status import from_rpc_error
from headrace.core.errors import Unsupported
from headrace.models import reference


async def test_models_are_ready_before_anybody_has_asked_them(door):
    async with door("tiny") as there:
        assert (await there.stub.ServerLive(pb.ServerLiveRequest())).live
        assert (await there.stub.ServerReady(pb.ServerReadyRequest())).ready
        for name, version, ready in (
            (reference.NAME, "", True),
            ("tiny", "1", True),
            ("tiny", "2", False),
            ("moods", "", False),  # installed, and no executor has it
            ("nobody", "", False),
        ):
            answer = await there.stub.ModelReady(pb.ModelReadyRequest(name=name, version=version))
            assert answer.ready is ready, name
        index = await there.stub.RepositoryIndex(pb.RepositoryIndexRequest())
        served = await there.stub.RepositoryIndex(pb.RepositoryIndexRequest(ready=True))
    states = {each.name: (each.state, bool(each.reason)) for each in index.models}
    assert states == {
        reference.NAME: ("READY", False),
        "tiny": ("READY", False),
        "moods": ("UNAVAILABLE", True),
    }
    assert {each.name for each in served.models} == {reference.NAME, "tiny"}


async def test_metadata_and_configuration_say_what_a_model_takes(door):
    async with door("tiny") as there:
        server = await there.stub.ServerMetadata(pb.ServerMetadataRequest())
        decoder = await there.stub.ModelMetadata(pb.ModelMetadataRequest(name=reference.NAME))
        encoder = await there.stub.ModelMetadata(pb.ModelMetadataRequest(name="tiny"))
        moods = await there.stub.ModelMetadata(pb.ModelMetadataRequest(name="moods"))
        generates = (await there.stub.ModelConfig(pb.ModelConfigRequest(name=reference.NAME))).config
        embeds = (await there.stub.ModelConfig(pb.ModelConfigRequest(name="tiny"))).config
    assert server.name == "headrace"
    assert server.version
    assert {"parameters", "statistics"} <= set(server.extensions)
    inputs = {each.name: (each.datatype, list(each.shape)) for each in decoder.inputs}
    assert (inputs["text_input"], inputs["input_ids"]) == (("BYTES", [1]), ("INT64", [-1]))
    assert decoder.outputs[0].name == "text_output"
    assert list(decoder.versions) == ["1"]
    assert [(each.name, each.datatype, list(each.shape)) for each in encoder.inputs] == [("text", "BYTES", [-1, 1])]
    assert [(each.name, each.datatype, list(each.shape)) for each in encoder.outputs] == [
        ("embedding", "FP32", [-1, -1])
    ]
    assert [each.name for each in moods.outputs] == ["label", "score"]
    assert generates.model_transaction_policy.decoupled
    assert not embeds.model_transaction_policy.decoupled
    assert (generates.max_batch_size, embeds.max_batch_size) == (0, 1024)
    assert generates.parameters["context_tokens"].string_value == str(reference.CONTEXT_TOKENS)
    assert embeds.input[0].data_type == pb.TYPE_STRING
    assert embeds.output[0].data_type == pb.TYPE_FP32


async def test_an_unknown_model_or_version_is_not_found_by_name(door):
    async with door() as there:
        for request, field in (
            (pb.ModelMetadataRequest(name="nobody"), "model_name"),
            (pb.ModelMetadataRequest(name="n" * 5000), "model_name"),
            (pb.ModelMetadataRequest(name=reference.NAME, version="7"), "model_version"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await there.stub.ModelMetadata(request)
            assert refused.value.code() is grpc.StatusCode.NOT_FOUND
            assert from_rpc_error(refused.value).field == field
        with pytest.raises(grpc.aio.AioRpcError) as infer:
            await there.stub.ModelInfer(pb.ModelInferRequest(model_name="nobody"))
        assert infer.value.code() is grpc.StatusCode.NOT_FOUND


async def test_settings_are_shown_and_not_changed(door):
    async with door() as there:
        trace = await there.stub.TraceSetting(pb.TraceSettingRequest())
        log = await there.stub.LogSettings(pb.LogSettingsRequest())
        assert list(trace.settings["trace_mode"].value) == ["opentelemetry"]
        assert list(trace.settings["trace_level"].value) == ["OFF"]
        assert log.settings["log_error"].bool_param
        changes = (
            (there.stub.TraceSetting, pb.TraceSettingRequest(settings={"trace_rate": {"value": ["9"]}}), "telemetry"),
            (there.stub.LogSettings, pb.LogSettingsRequest(settings={"log_info": {"bool_param": True}}), "log_level"),
            (there.stub.RepositoryModelLoad, pb.RepositoryModelLoadRequest(model_name="tiny"), "executor.models"),
            (there.stub.RepositoryModelUnload, pb.RepositoryModelUnloadRequest(model_name="tiny"), "executor.models"),
            (there.stub.CudaSharedMemoryRegister, pb.CudaSharedMemoryRegisterRequest(name="x"), "GPU"),
            (
                there.stub.SystemSharedMemoryRegister,
                pb.SystemSharedMemoryRegisterRequest(name="x", key="/x", byte_size=1),
                "kserve.shared_memory_prefix",
            ),
        )
        for call, request, reason in changes:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(request)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert reason in (refused.value.details() or "")
            assert isinstance(from_rpc_error(refused.value), Unsupported)
        # what clients do before they begin is no fault
        await there.stub.SystemSharedMemoryUnregister(pb.SystemSharedMemoryUnregisterRequest())
        await there.stub.CudaSharedMemoryUnregister(pb.CudaSharedMemoryUnregisterRequest())
        assert not (await there.stub.SystemSharedMemoryStatus(pb.SystemSharedMemoryStatusRequest())).regions
        assert not (await there.stub.CudaSharedMemoryStatus(pb.CudaSharedMemoryStatusRequest())).regions


async def test_with_keys_all_but_readiness_asks_for_one_and_shows_what_it_allows(door, tmp_path):
    from headrace.gateway.tenants.key import digest

    keys = tmp_path / "keys.toml"
    keys.write_text(f'[tenant.mills]\nkey_sha256 = ["{digest("secret")}"]\nmodels = ["tiny"]\n', encoding="utf-8")
    key = (("authorization", "Bearer secret"),)
    async with door("tiny", tenants={"keys_file": keys}) as there:
        assert (await there.stub.ServerReady(pb.ServerReadyRequest())).ready
        for call, request in (
            (there.stub.ServerMetadata, pb.ServerMetadataRequest()),
            (there.stub.RepositoryIndex, pb.RepositoryIndexRequest()),
            (there.stub.ModelStatistics, pb.ModelStatisticsRequest()),
            (there.stub.ModelInfer, pb.ModelInferRequest(model_name="tiny")),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(request)
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as hidden:
            await there.stub.ModelMetadata(pb.ModelMetadataRequest(name=reference.NAME), metadata=key)
        index = await there.stub.RepositoryIndex(pb.RepositoryIndexRequest(), metadata=key)
        statistics = await there.stub.ModelStatistics(pb.ModelStatisticsRequest(), metadata=key)
    assert hidden.value.code() is grpc.StatusCode.NOT_FOUND
    assert [each.name for each in index.models] == ["tiny"]
    assert [each.name for each in statistics.model_stats] == ["tiny"]
