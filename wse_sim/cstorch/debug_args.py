"""Debug arguments: an object whose attributes, at any depth, exist and take values."""

from __future__ import annotations

from collections.abc import Iterator


class DebugArgs:
    """Attributes are created when they are read; assigned values are stored."""

    def __getattr__(self, name: str) -> DebugArgs:
        if name.startswith("__"):
            raise AttributeError(name)
        made = DebugArgs()
        self.__dict__[name] = made
        return made

    def __getitem__(self, key: object) -> object:
        return self.__dict__.setdefault(str(key), DebugArgs())

    def __setitem__(self, key: object, value: object) -> None:
        self.__dict__[str(key)] = value

    def __str__(self) -> str:
        return ", ".join(f"{k}: {v}" for k, v in self.__dict__.items())

    def __bool__(self) -> bool:
        return bool(self.__dict__)

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __call__(self, *_: object, **__: object) -> None:
        """Accept methods of the real object (CopyFrom, append, ...), without effect on the simulation."""

    def CopyFrom(self, other: object) -> None:  # noqa: N802  (the public name)
        """Take over the attributes of another one."""
        self.__dict__.update(vars(other))

    def MergeFrom(self, other: object) -> None:  # noqa: N802  (the public name)
        """Take over the attributes of another one, at any depth."""
        for name, value in vars(other).items():
            mine = self.__dict__.get(name)
            if isinstance(mine, DebugArgs) and isinstance(value, DebugArgs):
                mine.MergeFrom(value)
            else:
                self.__dict__[name] = value
