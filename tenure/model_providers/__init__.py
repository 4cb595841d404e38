"""The model providers: one client for the models of Anthropic and of OpenAI-compatible endpoints.

The worker calls models with it directly, and the model runner for the workers that use it.

client.py            the client and the port to a provider
stream.py            the provider's event stream, folded into an answer and its usage
anthropic_models.py  the provider Anthropic, on three platforms; platforms.py what each needs
openai_models.py     the provider OpenAI, and compatible endpoints
endpoint.py          what is known of an endpoint: its settings, and what its refusals taught
vendor_calls.py      requests of the vendors' own libraries, passed on as they are; vendor_stream.py their usage
dialects.py          what chat servers demand that others refuse or ignore
chat_messages.py     conversations in the form of OpenAI; chat_stream.py their answers
message_texts.py     messages as JSON, written once
http.py              the HTTP client
hidden_secrets.py    hides keys and headers in texts that the owners of tasks read
proxies.py           SOCKS proxies, with which a process does not start
rate_limit_headers.py  the limits that a response states
settings.py          the settings of the providers
"""
