"""The paths of the door: what each takes, which of the gateway's own calls it makes, and how it answers."""

from collections.abc import Callable, Sequence
from functools import partial

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.api.gateway.v1 import gateway_pb2
from headrace.chassis.config import Settings
from headrace.core.errors import ModelNotFound, NotFound
from headrace.gateway.background import Background
from headrace.gateway.codec import model_of
from headrace.gateway.openai.chat import ChatBody, ChatForm, decode_chat
from headrace.gateway.openai.completion import CompletionBody, CompletionForm, decode_completion
from headrace.gateway.openai.encoders import (
    EmbeddingBody,
    RerankBody,
    decode_embedding,
    decode_rerank,
    encode_embedding,
    encode_rerank,
)
from headrace.gateway.openai.exchange import Endpoint, Exchange, Handler
from headrace.gateway.openai.failure import failure
from headrace.gateway.openai.form import AskedGeneration, Form
from headrace.gateway.openai.generating import Generating
from headrace.gateway.openai.headers import Asked, Call
from headrace.gateway.openai.leaving import Leaving
from headrace.gateway.openai.logprobs import TokenTexts
from headrace.gateway.openai.models import encode_model
from headrace.gateway.openai.responding import Responding
from headrace.gateway.openai.response_body import ResponseBody, decode_response
from headrace.gateway.openai.sampling import GenerationBody
from headrace.gateway.ports import TextModels
from headrace.gateway.servicer import GatewayService
from headrace.gateway.tenants.callers import Callers


class Routes:
    """The gateway's parts as requests use them. `ready` is the gateway's."""

    def __init__(
        self,
        settings: Settings,
        core: GatewayService,
        background: Background,
        texts: TextModels,
        callers: Callers,
        ready: Callable[[], bool],
        leaving: Leaving,
    ) -> None:
        self._settings = settings
        self._core = core
        self._texts = texts
        self._callers = callers
        self._ready = ready
        self._leaving = leaving
        self._generating = Generating(core, settings.sla)
        self._responding = Responding(core, background, settings.sla)

    def application(self) -> Starlette:
        gets: dict[str, Handler] = {
            "/health": self.health,
            "/v1/models": self.models,
            "/v1/models/{model:path}": self.model,
            "/v1/responses/{response_id}": self.response,
        }
        posts: dict[str, Handler] = {
            "/v1/chat/completions": self.chat,
            "/v1/completions": self.complete,
            "/v1/embeddings": self.embed,
            "/v1/rerank": self.rerank,
            "/v2/rerank": self.rerank,
            "/rerank": self.rerank,
            "/v1/responses": self.respond,
            "/v1/responses/{response_id}/cancel": self.cancel_response,
        }
        deletes: dict[str, Handler] = {"/v1/responses/{response_id}": self.delete_response}
        endpoint = partial(
            Endpoint,
            leaving=self._leaving,
            max_bytes=self._settings.transport.max_message_bytes,
            max_header_bytes=self._settings.transport.max_metadata_bytes,
            longest_wait_s=self._settings.gateway.longest_unread_s,
        )
        return Starlette(
            routes=[
                Route(path, endpoint(handler), methods=[method])
                for method, handlers in (("GET", gets), ("POST", posts), ("DELETE", deletes))
                for path, handler in handlers.items()
            ],
            exception_handlers={404: _no_such_path, 405: _no_such_path},
        )

    async def health(self, exchange: Exchange) -> None:
        """For everybody."""
        if self._ready():
            await exchange.reply({"status": "ready"})
        else:
            await exchange.reply({"status": "not ready"}, 503)

    async def models(self, exchange: Exchange) -> None:
        """Those that the caller may use."""
        models = await self._models(exchange)
        await exchange.reply({"object": "list", "data": [encode_model(each) for each in models]})

    async def model(self, exchange: Exchange) -> None:
        name = exchange.path_params["model"]
        for each in await self._models(exchange):
            if each.name == name:
                await exchange.reply(encode_model(each))
                return
        raise ModelNotFound("no model of this name", field="model")

    async def chat(self, exchange: Exchange) -> None:
        asked, call = self._opened(exchange)
        body = ChatBody.read(exchange.body)
        await self._generate([decode_chat(body, asked)], body, ChatForm, call, exchange)

    async def complete(self, exchange: Exchange) -> None:
        asked, call = self._opened(exchange)
        body = CompletionBody.read(exchange.body)
        requests = decode_completion(body, asked)

        def form(tokens: TokenTexts) -> CompletionForm:
            return CompletionForm(tokens, body.num_answers, body.echoed, partial(self._text_of, body.model))

        await self._generate(requests, body, form, call, exchange)

    def _text_of(self, model: str, token_ids: Sequence[int]) -> str:
        stream = self._texts.text_stream(model)
        return stream.push(token_ids) + stream.flush()

    async def embed(self, exchange: Exchange) -> None:
        asked, call = self._opened(exchange)
        body = EmbeddingBody.read(exchange.body)
        response = await self._core.Embed(decode_embedding(body, asked), call, call.caller)
        await exchange.reply(encode_embedding(body, response))

    async def rerank(self, exchange: Exchange) -> None:
        asked, call = self._opened(exchange)
        body = RerankBody.read(exchange.body)
        response = await self._core.Rerank(decode_rerank(body, asked), call, call.caller)
        await exchange.reply(encode_rerank(body, response))

    async def respond(self, exchange: Exchange) -> None:
        asked, call = self._opened(exchange)
        body = ResponseBody.read(exchange.body)
        await self._responding.create(body, decode_response(body, asked), call, exchange)

    async def response(self, exchange: Exchange) -> None:
        _, call = self._opened(exchange)
        await self._responding.retrieve(exchange.path_params["response_id"], call, exchange)

    async def cancel_response(self, exchange: Exchange) -> None:
        _, call = self._opened(exchange)
        await self._responding.cancel(exchange.path_params["response_id"], call, exchange)

    async def delete_response(self, exchange: Exchange) -> None:
        _, call = self._opened(exchange)
        await self._responding.delete(exchange.path_params["response_id"], call, exchange)

    async def _generate(
        self,
        requests: Sequence[gateway_pb2.GenerateRequest],
        body: GenerationBody,
        form: Callable[[TokenTexts], Form],
        call: Call,
        exchange: Exchange,
    ) -> None:
        model = model_of(body.model, self._texts, "decoder")
        token_texts = TokenTexts(partial(self._texts.token_bytes, model.name))
        wanted = AskedGeneration(
            requests, body.num_answers, form(token_texts), model.digest, body.stream, body.include_usage
        )
        await self._generating.answer(wanted, call, exchange)

    def _opened(self, exchange: Exchange) -> tuple[Asked, Call]:
        """What its headers say. Raises InvalidRequest, and what an unknown caller is refused with."""
        asked = exchange.asked()
        caller = self._callers.caller(exchange.headers.items())  # before anything is said of what it asks for
        return asked, Call(exchange.headers, caller)

    async def _models(self, exchange: Exchange) -> list[gateway_pb2.Model]:
        _, call = self._opened(exchange)
        return list((await self._core.ListModels(gateway_pb2.ListModelsRequest(), call, call.caller)).models)


async def _no_such_path(request: Request, error: Exception) -> Response:
    failed = failure(NotFound(f"nothing answers {request.method} {request.url.path[:200]}", field="path"))
    return JSONResponse(failed.body, failed.status)
