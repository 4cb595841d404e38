"""The endpoints of the providers, and the way of a call to one of them.

settings.py   the file that lists endpoints
opening.py    the clients of the endpoints
routing.py    which endpoint gets a call, and when; and the next one after a failure
"""
