"""Hooks that run before or after every call of a traced step."""

from __future__ import annotations

from collections.abc import Callable

from wse_sim.cstorch import hooks

__all__ = ["register_trace_fn_post_hook", "register_trace_fn_pre_hook"]


def register_trace_fn_pre_hook(function: Callable[[], None]) -> hooks.Handle:
    """Call a function before every traced step; ``.remove()`` of the returned handle ends that."""
    return hooks.Handle(hooks.before_step, function)


def register_trace_fn_post_hook(function: Callable[[], None]) -> hooks.Handle:
    """Call a function after every traced step; ``.remove()`` of the returned handle ends that."""
    return hooks.Handle(hooks.after_step, function)
