"""Tokens: which are taken and as whose, where the issuer's keys come from, and that one for a single call stays one."""

import asyncio
import base64
import json
import logging
import threading
import time
from contextvars import Context
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
import httpx2
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from pydantic import ValidationError

from headrace.api.inference import inference_pb2, inference_pb2_grpc
from headrace.chassis.channel import open_channel
from headrace.chassis.config import TenantQuota, TenantsSettings, TokenSettings, TransportSettings
from headrace.core.errors import ConfigError, Overloaded, PermissionDenied, Unauthenticated, Unavailable
from headrace.gateway.tenants.callers import Callers
from headrace.gateway.tenants.jwks import KeySet
from headrace.gateway.tenants.key import digest, new_key
from headrace.gateway.tenants.replay import Replays

ISSUER, AUDIENCE = "https://issuer.example", "headrace"
KEYS = {
    "ES256": ec.generate_private_key(ec.SECP256R1()),
    "RS256": rsa.generate_private_key(65537, 2048),
    "EdDSA": ed25519.Ed25519PrivateKey.generate(),
}
FORMS = {"ES256": ECAlgorithm, "RS256": RSAAlgorithm, "EdDSA": OKPAlgorithm}
SECRET = "a shared secret that is long enough for HS256 and more"


def key_set(*names):
    public = [{**FORMS[n].to_jwk(KEYS[n].public_key(), as_dict=True), "kid": n, "alg": n, "use": "sig"} for n in names]
    return {"keys": public}


@pytest.fixture
def jwks(tmp_path):
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps(key_set(*KEYS)))
    return path


def settings(jwks, **more):
    return {"jwks": str(jwks), "issuer": ISSUER, "audience": AUDIENCE} | more


def callers(jwks, keys_file=None, **more):
    return Callers(TenantsSettings(tokens=TokenSettings(**settings(jwks, **more)), keys_file=keys_file))


def token(algorithm="ES256", key=None, headers=None, **claims):
    now = int(time.time())
    all_claims = {"iss": ISSUER, "aud": AUDIENCE, "sub": "mills", "exp": now + 60} | claims
    given = {name: value for name, value in all_claims.items() if value is not None}
    return jwt.encode(given, key or KEYS[algorithm], algorithm, {"kid": algorithm} if headers is None else headers)


def bearer(text, **more):
    return tuple({"authorization": f"Bearer {text}", **more}.items())


@pytest.mark.parametrize("algorithm", KEYS)
def test_a_sound_token_names_its_tenant(jwks, algorithm):
    known = callers(jwks)
    assert known.caller(bearer(token(algorithm))).tenant == "mills"
    assert known.caller(bearer(token(algorithm, aud=["other", AUDIENCE]), **{"x-headrace-tenant": "mills"}))
    with pytest.raises(PermissionDenied):
        known.caller(bearer(token(algorithm), **{"x-headrace-tenant": "weir"}))


NOW = int(time.time())


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: token(exp=NOW - 3600), "expired"),
        (lambda: token(nbf=NOW + 3600), "not valid yet"),
        (lambda: token(iat=NOW + 3600), "not valid yet"),
        (lambda: token(aud="other"), "audience"),
        (lambda: token(iss="https://other.example"), "issuer"),
        (lambda: token(exp=None), "lacks"),
        (lambda: token(aud=None), "lacks|audience"),
        (lambda: token(iss=None), "lacks|issuer"),
        (lambda: token(exp=NOW + 10**7), "too long"),
        (lambda: token(sub=None), "sub"),
        (lambda: token(sub="a b"), "sub"),
        (lambda: token(sub="x" * 65), "sub"),
        (lambda: token(key=ec.generate_private_key(ec.SECP256R1())), "signature"),
        (lambda: token(headers={"kid": "another"}), "key is not known"),
        (lambda: token(headers={}), "key is not known"),
        (lambda: token("HS256", SECRET, {"kid": "ES256"}), "algorithm"),
        (lambda: token("RS256", headers={"kid": "ES256"}), "algorithm|signature|sound"),
        (lambda: jwt.encode({"sub": "mills"}, None, "none", {"kid": "ES256"}), "algorithm"),
        (lambda: token()[:-4] + "AAAA", "signature"),
        (lambda: "a.b.c", "sound"),
        (lambda: base64.urlsafe_b64encode(b"[" * 5000).decode() + ".b.c", "sound"),
        (lambda: "a" * 9000 + ".b.c", "too long"),
        (lambda: "\udcff.b.c", "sound"),
    ],
)
def test_unsound_tokens_are_refused_and_not_repeated(jwks, made, said):
    text = made()
    with pytest.raises(Unauthenticated, match=said) as refused:
        callers(jwks).caller(bearer(text))
    assert refused.value.field == "authorization"
    assert text not in refused.value.message
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_the_token_does_not_choose_the_algorithm(jwks):
    only = callers(jwks, algorithms=("RS256",))
    assert only.caller(bearer(token("RS256")))
    with pytest.raises(Unauthenticated):
        only.caller(bearer(token("ES256")))
    for bad in ("HS256", "none", "HS512"):
        with pytest.raises(ValidationError):
            TokenSettings(**settings(jwks, algorithms=(bad,)))


def test_a_shared_secret_in_the_set_is_not_used(jwks):
    secret = {"kty": "oct", "kid": "s", "k": base64.urlsafe_b64encode(SECRET.encode()).decode()}
    jwks.write_text(json.dumps({"keys": [secret]}))
    with pytest.raises(ConfigError, match="no public keys"):
        callers(jwks)


def test_leeway(jwks):
    late = token(exp=int(time.time()) - 10)
    assert callers(jwks).caller(bearer(late))
    with pytest.raises(Unauthenticated):
        callers(jwks, leeway_s=0).caller(bearer(late))


def test_another_claim_may_name_the_tenant(jwks):
    assert callers(jwks, tenant_claim="org").caller(bearer(token(sub="a b", org="weir"))).tenant == "weir"


def test_keys_and_tokens_side_by_side(jwks, tmp_path):
    key, path = new_key(), tmp_path / "keys.toml"
    path.write_text(
        f'[tenant.weir]\nkey_sha256 = ["{digest(key)}"]\n[tenant.mills]\nrequests_per_minute = 7\nclasses = ["batch"]\n'
    )
    both = callers(jwks, path, known_only=True)
    assert both.caller(bearer(key)).tenant == "weir"
    mills = both.caller(bearer(token()))
    assert (mills.quota.requests_per_minute, mills.classes) == (7, ("batch",))
    with pytest.raises(PermissionDenied):
        both.caller(bearer(token(sub="stranger")))
    assert callers(jwks, path).caller(bearer(token(sub="stranger"))).quota == TenantQuota()
    with pytest.raises(Unauthenticated, match="an API key or a token"):
        both.caller(())
    with pytest.raises(ConfigError, match=r"tenant\.mills\.key_sha256"):
        Callers(TenantsSettings(keys_file=path))


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", '{"keys": []}', '{"keys": [1]}', '{"keys": [{"kty": "EC"}]}', "[" * 10**5]
)
def test_faulty_sets_are_named(jwks, content):
    jwks.write_text(content)
    with pytest.raises(ConfigError, match="no public keys"):
        callers(jwks)
    jwks.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        callers(jwks)


@pytest.mark.parametrize("url", ["http://issuer.example/keys", "ftp://issuer.example/keys", "https://u:p@issuer/k"])
def test_keys_come_over_tls_or_not_at_all(url):
    with pytest.raises(ValidationError):
        TokenSettings(**settings(url))


def test_a_changed_file_counts_and_a_faulty_one_does_not(jwks, caplog):
    keys = KeySet(TokenSettings(**settings(jwks)))
    jwks.write_text(json.dumps(key_set("RS256")) + "\n")
    keys.refresh()
    with pytest.raises(Unauthenticated):
        keys.key("ES256")
    assert keys.key("RS256")
    assert keys.key(None)
    jwks.write_text("broken")
    with caplog.at_level(logging.ERROR):
        keys.refresh()
    assert keys.key("RS256")
    assert "stay in force" in caplog.text


class Issuer(HTTPServer):
    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Answer)
        self.content, self.status, self.asked = json.dumps(key_set("ES256")).encode(), 200, 0


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked += 1
        self.send_response(self.server.status)
        if self.server.status == 302:
            self.send_header("location", "/elsewhere")
        self.end_headers()
        self.wfile.write(self.server.content)

    def log_message(self, *_):
        pass


@pytest.fixture
def issuer():
    server = Issuer()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join(10)
    server.server_close()


def test_keys_of_a_url_are_fetched_within_bounds(issuer, caplog):
    clock = [0.0]
    url = f"http://127.0.0.1:{issuer.server_port}/keys"
    given = TokenSettings(**settings(url, refresh_s=300, min_refresh_s=10, keep_s=1000))
    keys = KeySet(given, lambda: clock[0])
    with pytest.raises(Unavailable):
        keys.key("ES256")
    keys.refresh()
    keys.refresh()
    assert keys.key("ES256")
    assert issuer.asked == 1
    for _ in range(50):  # unknown ids do not make more than one request in min_refresh_s
        with pytest.raises(Unauthenticated):
            keys.key("new")
        keys.refresh()
    assert issuer.asked == 1
    clock[0] = 11
    issuer.content = json.dumps(key_set("ES256", "RS256")).encode()
    keys.refresh()
    assert issuer.asked == 2
    assert keys.key("RS256")
    clock[0] = 300
    keys.refresh()
    assert issuer.asked == 2
    for content, status in ((b"x" * (2**20 + 1), 200), (b"{}", 200), (issuer.content, 302), (issuer.content, 500)):
        clock[0] += 301
        issuer.content, issuer.status = content, status
        asked = issuer.asked
        keys.refresh()
        assert issuer.asked == asked + 1, (content[:10], status)
        if clock[0] < 1000:
            assert keys.key("RS256")
    assert caplog.text.count("stay in force") == 4
    with pytest.raises(Unavailable):  # too old by now
        keys.key("RS256")


def test_an_id_is_spent_once_and_forgotten_when_it_has_expired():
    replays = Replays(2)

    def spend(name, until, now):
        Context().run(replays.spend, name, until, now)

    spend("a", 10, 0)
    with pytest.raises(Unauthenticated, match="has been used"):
        spend("a", 10, 9.9)
    spend("b", 20, 5)
    with pytest.raises(Overloaded):
        spend("c", 20, 6)
    spend("c", 20, 10)
    with pytest.raises(Unauthenticated):
        spend("b", 20, 11)
    for bad in (None, "", 5, "x" * 257):
        with pytest.raises(Unauthenticated, match="jti"):
            spend(bad, 20, 11)


async def test_a_replayed_token_is_refused_at_every_door(world, jwks, caplog):
    caplog.set_level(logging.DEBUG)
    async with world({"http_listen": "127.0.0.1:0"}, tokens=settings(jwks, once=True)) as w:
        address = w.gateway.address
        sent = []

        def fresh():
            sent.append(token(jti=str(len(sent))))
            return sent[-1]

        async def over_grpc(text):
            try:
                client = await w.client(api_key=text)
                return (await client.generate("bytes", "x")).text
            except Unauthenticated as error:
                return error.message

        async def over_http(text):
            async with httpx2.AsyncClient(base_url=f"http://{w.gateway.http}", timeout=60) as web:
                # two prompts: the gateway's own call is made twice for one request
                body = {"model": "bytes", "prompt": ["x", "y"], "max_tokens": 1}
                got = await web.post("/v1/completions", json=body, headers={"authorization": f"Bearer {text}"})
                return got.status_code

        async def over_kserve(text):
            async with open_channel(address, TransportSettings()) as channel:
                stub = inference_pb2_grpc.GRPCInferenceServiceStub(channel)
                request = inference_pb2.ModelMetadataRequest(name="bytes")
                try:
                    await stub.ModelMetadata(request, metadata=bearer(text))
                except grpc.aio.AioRpcError as error:
                    return error.code().name
                return "OK"

        used = "this token has been used"
        first, second, third = fresh(), fresh(), fresh()
        assert [await over_grpc(first), await over_grpc(first)] == ["h", used]
        assert [await over_http(second), await over_http(second), await over_grpc(second)] == [200, 401, used]
        assert [await over_kserve(third), await over_kserve(third)] == ["OK", "UNAUTHENTICATED"]
        assert [await over_http(first), await over_kserve(first)] == [401, "UNAUTHENTICATED"]
        assert (await over_grpc(token())).startswith("this token lacks")
        assert w.scheduler.submissions[-1].tenant == "mills"
        async with asyncio.timeout(60):
            await w.idle()
        told = "".join(span.to_json() for span in w.spans.get_finished_spans()) + caplog.text
        assert not [text for text in sent if text in told or text.rpartition(".")[2] in told]
