"""A server in front of the SuperLink that passes only what SuperNodes need, as the nginx of docs/deploy.md does.

python -m tests.flower.fleet_only PORT SUPERLINK CA CERTIFICATE KEY
"""

import ssl
import sys

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


def main(port: str, superlink: str, authority: str, certificate: str, key: str) -> None:
    context = ssl.create_default_context(cafile=authority)
    client = httpx.AsyncClient(verify=context, base_url=f"https://{superlink}", timeout=None)

    async def fleet(request: Request) -> Response:
        headers = [(name, value) for name, value in request.headers.raw if name != b"host"]
        answer = await client.request(request.method, request.url.path, headers=headers, content=await request.body())
        return Response(answer.content, answer.status_code, dict(answer.headers))

    app = Starlette(routes=[Route("/v1/fleet/{rest:path}", fleet, methods=["GET", "POST"])])
    uvicorn.run(app, host="127.0.0.1", port=int(port), ssl_certfile=certificate, ssl_keyfile=key)


if __name__ == "__main__":
    main(*sys.argv[1:])
