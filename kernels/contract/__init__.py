"""The interface of a kernel family: its methods, costs in closed form, the arithmetic of a core, the registry."""
