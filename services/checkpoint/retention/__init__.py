"""Retention: removes ended tasks after their time, or when an operator asks for it.

pruning.py   prunes tasks: one row replaces the task row in one transaction
clearing.py  deletes the entries of pruned tasks, and offers prunings to coordinators, which tell the tool service
"""
