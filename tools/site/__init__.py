"""The site of the documentation: Sphinx' configuration, and the table of contents. `make docs` builds it."""
