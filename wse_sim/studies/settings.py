"""Converts a setting to a run: model, options, machine, silicon, and the key that identifies the run.

The key is a hash of everything on which the numbers of the run depend: all options, every constant of wafer, cluster and chip with its
range, the content of the model, the sources of the package, the version of torch, and the number of draws. Two studies that request the
same run in different spellings have the same key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

from wse_sim.errors import ConfigError, WseError
from wse_sim.files import exists, is_file, read_text, sha256_of
from wse_sim.frontend.parameters import ModelParameters, model_names, named_model, read_model_file
from wse_sim.hardware import Cluster, Wafer, load_cluster, load_wafer
from wse_sim.hardware.chip import Chip, chip_of, equal_area, load_chip
from wse_sim.modes import mode_named, mode_names
from wse_sim.modes.generation import Generation
from wse_sim.options import RunOptions
from wse_sim.serving.options import DEFAULT_CONTEXT, ServingOptions
from wse_sim.studies import serving_parameters
from wse_sim.studies.model_objects import PREFIX, kept
from wse_sim.studies.parameters import (
    CHIP,
    CLUSTER,
    MODE,
    MODEL,
    RUN,
    SERVE,
    WAFER,
    StudyParameter,
    parameters,
)
from wse_sim.studies.provenance import code_digest, torch_version
from wse_sim.studies.schema import StudySpec
from wse_sim.studies.sources import sources_digest
from wse_sim.user_code import code_of, file_of

KEY_SCHEMA = 2
KEY_LENGTH = 32
ModelSpec = str | Mapping[str, Any]
Part = TypeVar("Part", Wafer, Cluster, Chip)


@dataclass(frozen=True)
class Request:
    """One run: everything that a worker needs in addition to the graph."""

    key: str
    graph_key: str
    model: ModelSpec
    options: RunOptions
    chip: Chip
    must_fit: bool
    draws: int
    serving: ServingOptions | None = None  # of a setting that is served


class Resolver:
    """Makes requests from the settings of one study; what settings have in common is computed once."""

    def __init__(self, spec: StudySpec) -> None:
        self.spec = spec
        self._models: dict[Any, tuple[ModelSpec, str]] = {}
        self._contents: dict[str, str] = {}
        self._bases: dict[tuple[str, object], Any] = {}
        self._texts = Texts()

    def request(self, setting: Mapping[str, Any]) -> Request:
        """Return the request of a setting.

        Raises
        ------
        WseError
            If the values are inconsistent (a model without such a size, an invalid wafer).
        """
        by_owner: dict[str, dict[str, Any]] = {}
        for name, value in setting.items():
            known = parameters()[name]
            by_owner.setdefault(known.owner, {})[known.field] = value
        given = by_owner.get(RUN, {})
        serve = by_owner.get(SERVE)
        systems = given.get("systems")
        if serve is not None:
            given |= {
                "mode": Generation.name,
                "batch": 1,
                "seq": serve.get("context") or given.get("seq") or DEFAULT_CONTEXT,
            }
        wafer_base, cluster_base = (
            self._base(WAFER, given.pop("wafer", "wse2"), _wafer),
            self._base(CLUSTER, given.pop("cluster", "default"), _cluster),
        )
        chips = by_owner.get(CHIP, {})
        named = chips.pop("", None)
        if named is None:
            chip_base = self._base("chip of", wafer_base.name, lambda _: chip_of(wafer_base))
        else:
            chip_base = self._base(CHIP, str(named), lambda name: load_chip(str(name)))
        chip = _changed(chip_base, chips)
        wafer = _changed(wafer_base, by_owner.get(WAFER, {}))
        if "equal-area" in self.spec.derive:
            wafer = equal_area(wafer, wafer_base, chip)
        if str(given.get("mode")) in mode_names() and mode_named(str(given["mode"])).counts == "token":
            given.setdefault("phase", "inference")
        options = RunOptions(
            **given,
            wafer=wafer,
            cluster=_changed(cluster_base, by_owner.get(CLUSTER, {})),
            mode_options=self._mode_options(setting, str(given.get("mode", "auto"))),
        )
        if options.mode not in ("auto", *mode_names()) and ":" not in options.mode:
            raise ConfigError(
                f"mode '{options.mode}' is unknown; use one of {', '.join((*mode_names(), 'auto'))}"
            )
        model, identity = self._model(by_owner.get(MODEL, {}))
        code = [
            [name, self._code(name)] for name in sorted(code_of(setting)) if name != str(setting.get(MODEL))
        ]
        return self._named(options, model, identity, chip, code, self._serving(options, serve, systems))

    def _serving(
        self, options: RunOptions, given: Mapping[str, Any] | None, systems: int | None
    ) -> ServingOptions | None:
        """Return the serving options, on the machine of the run's options; None without any."""
        if given is None:
            return None
        if self.spec.derive:
            raise ConfigError(f"derive {', '.join(self.spec.derive)} is not for serving; leave it out")
        return ServingOptions(**{
            **serving_parameters.given(given), "context": options.seq, "wafer": options.wafer, "cluster": options.cluster, "clock": options.clock,
            "systems": systems,
        })  # fmt: skip

    def _base(self, owner: str, given: object, load: Callable[[object], Part]) -> Part:
        """Return a wafer, cluster or chip before changes; read once per study."""
        if not isinstance(given, str):
            return load(given)
        if (owner, given) not in self._bases:
            self._bases[owner, given] = load(given)
        found: Part = self._bases[owner, given]
        return found

    def _code(self, name: str) -> str:
        """Hash of the sources of a user-defined mode or placer."""
        if name not in self._contents:
            self._contents[name] = _content(name)
        return self._contents[name]

    def _mode_options(self, setting: Mapping[str, Any], mode: str) -> dict[str, Any]:
        """Return the options of the mode that runs; those of other modes have no effect."""
        own: list[StudyParameter] = [p for name in setting if (p := parameters()[name]).owner == MODE]
        return {p.field: setting[p.name] for p in own if p.mode == mode and setting[p.name] is not None}

    def _model(self, given: Mapping[str, Any]) -> tuple[ModelSpec, str]:
        """Return the model with its changed sizes, and a key that identifies it."""
        name, sizes = str(given[""]), {key: value for key, value in given.items() if key}
        known = self._models.get((name, *sorted(sizes.items())))
        if known is None:
            known = _model_of(name, sizes)
            self._models[name, *sorted(sizes.items())] = known
        return known

    def _named(
        self,
        options: RunOptions,
        model: ModelSpec,
        identity: str,
        chip: Chip,
        code: list[list[str]],
        serving: ServingOptions | None = None,
    ) -> Request:
        plain = {
            name: getattr(options, name)
            for name in RunOptions.model_fields
            if name not in ("wafer", "cluster", "cache", "mode_options", "model_options")
        }
        graph = [
            identity,
            *(plain[name] for name in ("seq", "phase", "optimizer", "precision", "train", "lora", "lora_on")),
            code_digest(),
        ]
        graph_key = _hash([*graph, torch_version()])
        key = _hash(
            {
                "schema": KEY_SCHEMA,
                "graph": graph_key,
                "options": plain,
                "mode_options": dict(options.mode_options),
                "machine": [self._texts.digest(part) for part in (options.wafer, options.cluster, chip)],
                "silicon": self.spec.silicon,
                "draws": self.spec.draws,
                "code": code,
                **({} if serving is None else {"serving": _of_serving(serving)}),
            }
        )
        must_fit = self.spec.silicon == "must-fit"
        return Request(key, graph_key, model, options, chip, must_fit, self.spec.draws, serving)


def _of_serving(options: ServingOptions) -> dict[str, object]:
    """Return the options that serving results depend on besides the machine; a trace is represented by its content."""
    plain: dict[str, object] = {
        name: getattr(options, name)
        for name in type(options).model_fields
        if name not in ("wafer", "cluster")
    }
    if options.workload is not None:
        plain["content"] = sha256_of(options.workload.partition(":")[2], "trace")
    return plain


def _hash(data: object) -> str:
    text = json.dumps(data, sort_keys=True, default=str, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_LENGTH]


class Texts:
    """Digests of parts of the machine: constants, and the ranges that draws are made from.

    Settings of a study share most constants, so the text of a field is rebuilt only if value or range is
    another object than in the previous part of the same kind.
    """

    def __init__(self) -> None:
        self._known: dict[type, dict[str, tuple[object, object, str]]] = {}
        self._last: dict[type, tuple[object, str]] = {}

    def digest(self, part: Wafer | Cluster | Chip | str) -> str:
        """Return a hash that is equal for parts with equal constants and ranges, independent of their
        names."""
        assert not isinstance(part, str)  # a request holds the machine itself
        last = self._last.get(type(part))
        if last is not None and last[0] is part:
            return last[1]
        known = self._known.setdefault(type(part), {})
        total = hashlib.sha256()
        provenance = part.provenance
        for name in type(part).model_fields:
            if name in ("name", "provenance"):
                continue
            value, stated = getattr(part, name), provenance.get(name)
            kept = known.get(name)
            if kept is None or kept[0] is not value or kept[1] is not stated:
                spread = None if stated is None else stated.range
                text = json.dumps([name, value, spread], sort_keys=True, separators=(",", ":"), default=str)
                kept = known[name] = (value, stated, text)
            total.update(kept[2].encode())
        found = total.hexdigest()[:KEY_LENGTH]
        self._last[type(part)] = part, found
        return found


def _changed(base: Part, changes: Mapping[str, Any]) -> Part:
    """`base` with changed constants; `base` itself if no value differs."""
    other = {name: value for name, value in changes.items() if value != getattr(base, name)}
    return base.derive(**other) if other else base


def _wafer(given: object) -> Wafer:
    return load_wafer(given if isinstance(given, Wafer) else str(given))


def _cluster(given: object) -> Cluster:
    return load_cluster(given if isinstance(given, Cluster) else str(given))


def _model_of(name: str, sizes: Mapping[str, Any]) -> tuple[ModelSpec, str]:
    """Return the model to load, and a hash of its content; files are sent by content, so that a worker needs no access
    to them.

    Raises
    ------
    WseError
        If the name is unknown, or a size is changed in a model that has no changeable sizes.
    """
    is_file = name.endswith((".yaml", ".yml"))
    if is_file or name in model_names():
        stated: BaseModel = (read_model_file(Path(name)) if is_file else named_model(name)).model
        if not sizes and not is_file:
            return name, _hash(stated.model_dump())
        fields = {k: v for k, v in stated.model_dump().items() if v is not None} | dict(sizes)
        changed = _sized(fields)
        return changed, _hash(ModelParameters(**changed).model_dump())
    if sizes:
        raise ConfigError(
            f"parameter 'model.{next(iter(sizes))}' changes a size of '{name}', which is not a named model; "
            "name a model of 'wse-sim show models' or a YAML file"
        )
    if name.startswith(PREFIX):
        if kept(name) is None:
            raise WseError(
                f"model '{name}' is an object of another process; run the study from Python with that object again"
            )
        return name, _hash([name])
    if ":" not in name and not exists(name, "model"):
        named_model(name)  # its sentence
    return name, _hash([name, _content(name)])


def _sized(fields: dict[str, Any]) -> dict[str, Any]:
    from wse_sim.frontend.parameters import parse_parameters

    return {k: v for k, v in parse_parameters(fields).model_dump().items() if v is not None}


def _content(name: str) -> str:
    """Return the sources of a factory or a saved program, as far as they can be found, as text to hash."""
    if name.startswith("hf:"):
        return read_text(Path(name[3:]))
    if ":" in name:
        try:
            origin = file_of(name)
        except (ImportError, ValueError) as fault:
            raise WseError(
                f"model '{name}' cannot be found ({fault}); give package.module:factory or FILE.py:factory"
            ) from None
        return sources_digest(origin) if origin is not None and is_file(origin, "model") else ""
    return sha256_of(name, "model")
