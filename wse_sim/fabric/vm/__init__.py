"""The bytecode core: a register machine per core on the routers of the fabric."""
