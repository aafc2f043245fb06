"""Notifiers: what tells a person that a pipeline needs one."""
