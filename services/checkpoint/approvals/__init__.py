"""Approvals: who may answer waits, and the links by which people answer them.

groups.py    approver groups of tenants, and the members that count for one wait
issuing.py   makes the links of a message just before it is sent, and deletes old ones; the settings of links
answering.py reads what a link answers, and answers it
servicer.py  ApprovalService
"""
