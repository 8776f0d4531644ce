"""What a kernel family is: its methods, costs in closed form, the arithmetic of a core, the registry."""
