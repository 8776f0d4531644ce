"""Names of the cluster's client library that scripts import."""
