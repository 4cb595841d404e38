"""The endpoints of the providers, to one of which each call is sent.

settings.py   the file that lists endpoints
opening.py    the clients of the endpoints
routing.py    which endpoint gets a call, and when; and the next one after a failure
"""
