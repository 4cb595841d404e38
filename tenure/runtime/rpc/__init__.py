"""gRPC, from the caller to the handler and back.

client.py        channels whose calls raise domain errors and carry the tenant and the trace
channels.py      renews their connections when certificates change, and refuses them after a fork
options.py       keepalive, message sizes, connection age and reconnects, for clients and servers
server.py        the server: health, reflection, drain
in_process.py    calls of a server in its own process, through the same interceptor
interceptor.py   around each handler: access, tenant, trace, validation, errors, metrics
call_limiter.py  limits the calls of each client, tenant or worker
frame_server.py  the server side of a stream of frames
stream_rules.py  refusals and requests in flight of a stream
status.py        domain errors as gRPC statuses, and back
"""
