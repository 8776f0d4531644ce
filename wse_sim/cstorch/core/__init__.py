"""Names of the elder interface's core: annotations and the model helper."""
