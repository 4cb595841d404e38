"""Certificates, identities, signatures, secrets and the audit.

process_security.py   the security of one process, made from its settings
access_control.py     authenticates callers and applies the access rule of each method
audit.py              the audit of one server's calls, and the log of refusals
tls.py                how a client connects by TLS, and the settings of mutual TLS
certificate_files.py  a process's own certificate, which can be replaced while it runs
certificates.py       makes a certificate authority and certificates
signing.py            signatures of fencing tokens
secret_box.py         encrypts the secrets that a store keeps
"""
