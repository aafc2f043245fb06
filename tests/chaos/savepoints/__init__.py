"""Chaos of savepoints: a stream that is killed while they are taken, and goes on from them."""
