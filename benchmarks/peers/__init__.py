"""The same work done by others, each in an environment of its own; see __main__.py."""
