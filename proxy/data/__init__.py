"""The data plane: from a client's connection to an answer."""
