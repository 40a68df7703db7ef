"""The client for programs without asyncio; the same calls as the asyncio client's."""

from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack, overload

import grpc

from headrace.api.gateway.v1 import gateway_pb2 as pb
from headrace.api.gateway.v1.gateway_pb2_grpc import GatewayServiceStub
from headrace.chassis.channel import open_blocking_channel
from headrace.chassis.config import TlsSettings as Tls
from headrace.chassis.config import TransportSettings
from headrace.chassis.status import from_rpc_error
from headrace.client.codec import (
    answers,
    decode,
    decode_attached,
    decode_model,
    decode_result,
    encode,
    encode_attach,
    metadata,
)
from headrace.client.encoder_codec import (
    decode_classify,
    decode_embed,
    decode_rerank,
    encode_classify,
    encode_embed,
    encode_rerank,
)
from headrace.client.retries import DEFAULT_RETRIES, Retries
from headrace.client.values import (
    Answer,
    CallOptions,
    Embeddings,
    EncodeOptions,
    Labels,
    Model,
    Piece,
    PoolingName,
    Prompt,
    Ranking,
    Result,
    Texts,
)
from headrace.core.role import Role

MAX_MESSAGE_BYTES = 4 * 2**20

Given = TypeVar("Given")


class Client:
    """Calls a gateway. `with` closes it, and so does `close`.

    `api_key` says who asks; at a gateway without keys `tenant` does (default: its default tenant). A call that is
    refused for now, or finds nobody, is made again up to `retries` times, within its timeout and only while nothing of
    its answer has been delivered. With `tls` the gateway must prove that it is one; certificates are read once.
    Errors are those of headrace.core.errors.
    """

    def __init__(
        self,
        address: str,
        *,
        tenant: str | None = None,
        api_key: str | None = None,
        retries: int = DEFAULT_RETRIES,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        tls: Tls | None = None,
    ) -> None:
        self._tenant = tenant
        self._api_key = api_key
        self._retries = Retries(retries)
        transport = TransportSettings(max_message_bytes=max_message_bytes, tls=tls)
        self._channel = open_blocking_channel(address, transport, Role.GATEWAY)
        self._stub = GatewayServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._channel.close()

    def stream(
        self, model: str, prompt: Prompt, *, n: int | None = None, **options: Unpack[CallOptions]
    ) -> Iterator[Piece]:
        """The answer's pieces as they come. Closing the iterator cancels the call."""
        request = encode(model, prompt, n, options)
        for response in self._streamed(self._stub.Generate, request, options.get("timeout_s")):
            yield decode(response)

    @overload
    def generate(self, model: str, prompt: Prompt, *, n: None = None, **options: Unpack[CallOptions]) -> Answer: ...

    @overload
    def generate(self, model: str, prompt: Prompt, *, n: int, **options: Unpack[CallOptions]) -> list[Answer]: ...

    def generate(
        self, model: str, prompt: Prompt, *, n: int | None = None, **options: Unpack[CallOptions]
    ) -> Answer | list[Answer]:
        """The whole answer; with `n` a list of that many."""
        stream = self.stream(model, prompt, n=n, **options)
        whole = answers(stream)
        return whole[0] if n is None else whole

    def embed(
        self,
        model: str,
        texts: Texts,
        *,
        pooling: PoolingName | None = None,
        normalize: bool = True,
        dimensions: int = 0,
        **options: Unpack[EncodeOptions],
    ) -> Embeddings:
        """One vector a text; `pooling` None is the model's own, `dimensions` 0 the whole vector."""
        request = encode_embed(model, texts, pooling, normalize, dimensions, options)
        return decode_embed(self._unary(self._stub.Embed, request, options))

    def rerank(
        self, model: str, query: str, documents: Sequence[str], *, top_n: int = 0, **options: Unpack[EncodeOptions]
    ) -> Ranking:
        """The documents by how well they answer the query, best first; `top_n` 0 for all of them."""
        request = encode_rerank(model, query, documents, top_n, options)
        return decode_rerank(self._unary(self._stub.Rerank, request, options))

    def classify(
        self, model: str, texts: str | Sequence[str], *, top_n: int = 0, **options: Unpack[EncodeOptions]
    ) -> Labels:
        """Each text's labels, most probable first; `top_n` 0 for all of them."""
        request = encode_classify(model, texts, top_n, options)
        return decode_classify(self._unary(self._stub.Classify, request, options))

    def _unary(self, method: Callable[..., Given], request: object, options: EncodeOptions) -> Given:
        def once(left_s: float | None) -> Given:
            try:
                return method(request, timeout=left_s, metadata=metadata(self._tenant, self._api_key))
            except grpc.RpcError as error:
                raise from_rpc_error(error) from error

        return self._retries.run_blocking(once, options.get("timeout_s"))

    def _streamed(self, method: Callable[..., Any], request: object, timeout_s: float | None) -> Iterator[Any]:
        """The responses. Made again only until the first of them is here."""

        def begin(left_s: float | None) -> tuple[Any, Any]:
            call = method(request, timeout=left_s, metadata=metadata(self._tenant, self._api_key))
            try:
                return call, next(call, None)
            except grpc.RpcError as error:
                raise from_rpc_error(error) from error
            except BaseException:
                call.cancel()
                raise

        call, first = self._retries.run_blocking(begin, timeout_s)
        try:
            if first is not None:
                yield first
                yield from call
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        finally:
            call.cancel()

    def attach_result(self, handle: str, offset: int = 0, *, timeout_s: float | None = None) -> Iterator[Piece]:
        """The pieces of an answer that went on, from number `offset` on, those to come too.

        Each says where to go on after it. Raises what the answer failed with, after its pieces. Closing the iterator
        ends this call only, not the answer.
        """
        request = encode_attach(handle, offset)
        for response in self._streamed(self._stub.AttachResult, request, timeout_s):
            yield decode_attached(handle, response)

    def cancel_result(self, handle: str, *, timeout_s: float | None = None) -> None:
        """Ends an answer that goes on, and drops what is stored of it. Raises ResultNotFound."""
        self._unary(self._stub.CancelResult, pb.CancelResultRequest(handle=handle), {"timeout_s": timeout_s})

    def list_results(self, *, timeout_s: float | None = None) -> list[Result]:
        """The tenant's, newest first."""
        response = self._unary(self._stub.ListResults, pb.ListResultsRequest(), {"timeout_s": timeout_s})
        return [decode_result(result) for result in response.results]

    def models(self, *, timeout_s: float | None = None) -> list[Model]:
        """The models that the gateway can serve."""
        response = self._unary(self._stub.ListModels, pb.ListModelsRequest(), {"timeout_s": timeout_s})
        return [decode_model(model) for model in response.models]
