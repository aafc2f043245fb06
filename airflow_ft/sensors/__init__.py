"""Waiting for confirmed checkpoints."""
