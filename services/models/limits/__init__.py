"""Waits for the rate limits of the providers' keys.

key_queue.py     the calls that wait for one key and model, in fair order
"""
