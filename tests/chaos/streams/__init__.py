"""Faults over one long stream: its driver, its task and its servers are killed or frozen while it goes on."""
