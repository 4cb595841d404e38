"""An HTTP client for untrusted servers.

outbound_http.py  requests to addresses that were checked, with bounds
body_decoder.py   decodes bodies within a bound
name_lookups.py   the addresses of names
h11_patterns.py   keeps the parser of HTTP/1.1 from quadratic work
"""
