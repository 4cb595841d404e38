"""The HTTP server of the gateway: JSON and server-sent events, for callers without gRPC.

Each request becomes a call of the gateway's own gRPC server, in process, with the caller's credentials and through the
same interceptor. So authentication, access, limits, validation and audit exist once. The answer is the public JSON
(docs/json.md).

settings.py      the settings
server.py        the server: uvicorn in the event loop of the gateway, its TLS, its bounds for slow clients
connections.py   accepts connections, within limits
forwarded.py     the client's address behind trusted proxies
app.py           the application: routes, the checks of every request, errors
origins.py       which web pages may call
api_route.py     the description of a route; openapi.py makes /openapi.json of all routes
routes.py        the table of the routes; operator_routes.py: the rows of operators, with operator_requests.py
requests.py      what requests have; answers.py: what answers have, besides the public dataclasses
shapes.py        dataclasses from JSON and from query strings, and as JSON Schema
field_names.py   what requests call the fields of the contract, for refusals
call.py          one request as a caller of the gRPC server
translation.py   handlers that only translate: path, query and body to one method, and its answer back
tasks.py         handlers for tasks that do more; operations.py: for everything else
event_stream.py  server-sent events; streams.py: those of a task, and those of the changes of all tasks
edge.py          what an edge adds: routes (see edges/)
body.py          the JSON of requests; json_text.py: of answers
problems.py      errors as application/problem+json
sessions.py      the session of a browser: an API key in a cookie

What to touch when:
- a method that needs no more than its fields: its row in routes.py with the name "WebhookService.PauseWebhook", and the
  dataclasses of its body or query and of its answer
"""
