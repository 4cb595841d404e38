"""Notifications of people: e-mail and Slack. See README.md."""
