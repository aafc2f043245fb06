"""Notifiers that report pipelines that need a person."""
