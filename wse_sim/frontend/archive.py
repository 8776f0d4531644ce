"""Reads files of ``torch.export.save`` from untrusted sources without executing any of their content.

``torch.export.load`` trusts its file: it unpickles sample inputs, tensors and custom objects, evaluates
symbolic sizes as Python text, looks up functions by any name in ``torch``, imports the modules that the trees
of inputs name, and writes names from the file into Python source that it compiles. A kernel graph needs only
operators and shapes. So a copy of the archive is written in memory from an allowlist, and only that copy is
loaded:

* sample inputs are left out; pickled tensors and custom objects are refused;
* operators are those of some ``torch.ops`` namespaces and the arithmetic of Python, ``math`` and symbolic
  sizes; sizes are numbers, names are identifiers, trees are tuples, lists and dictionaries;
* values of parameters are left out (their shapes stay), so a large model costs no memory.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from collections.abc import Iterator
from typing import Any

from wse_sim.errors import ModelError

MAX_JSON_BYTES = 256 * 2**20
"""Largest description of a graph that is read, in bytes: a bound on memory, not an observed size."""

MAX_VALUES_BYTES = 2**30
"""Most bytes of buffers and constants that are copied: a bound on memory, not an observed size."""

_MARKS = ("archive_format", "archive_version", "byteorder", ".data/version", ".data/serialization_id")
_MODEL = "models/model.json"
_CONFIGS = {
    "data/weights/": "data/weights/model_weights_config.json",
    "data/constants/": "data/constants/model_constants_config.json",
}
_REMEDY = "write it with torch.export.save, with constant sizes and without custom objects"

_OPERATOR = re.compile(
    r"torch\.ops\.(aten|prims|quantized|quantized_decomposed|torchvision|_c10d_functional)\.(?!(from_file|save)\b)\w+(\.\w+)?"
    r"|torch\.ops\.higher_order\.(wrap_with_set_grad_enabled|wrap_with_autocast|cond|while_loop|scan|map_impl)"
    r"|_operator\.(add|sub|mul|floordiv|truediv|mod|pow|neg|pos|eq|ne|lt|le|gt|ge|and_|or_|not_|getitem)"
    r"|math\.(ceil|floor|trunc|sqrt)"
    r"|torch\.(sym_\w+|_sym_sqrt)",
    re.ASCII,
)
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PLAIN = re.compile(
    r"[\w.+\-]*", re.ASCII
)  # paths of modules, kinds, versions; such text cannot close a Python string
_TREES = (None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict")
_KEPT_NOTES = ("stack_trace", "nn_module_stack", "torch_fn")  # text that torch only splits; it names layers


def inert(path: str) -> io.BytesIO:
    """Return a copy of a ``.pt2`` file with operators and shapes, but no executable content.

    Raises
    ------
    ModelError
        If the file is not such an archive, or has content that could run or cannot be checked.
    zipfile.BadZipFile, OSError, ValueError, KeyError
        If the file is damaged.
    """
    made = io.BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(made, "w") as copy:
        members = _members(archive, path)
        missing = next((name for name in (_MODEL, *_CONFIGS.values()) if name not in members), None)
        if missing:
            raise ModelError(f"{path} contains no {missing}, so it is not a saved program; {_REMEDY}")
        for name in _MARKS:
            if name in members and members[name].file_size <= 4096:
                copy.writestr(f"model/{name}", archive.read(members[name]))
        graph = _document(archive, members[_MODEL], path)
        copy.writestr(f"model/{_MODEL}", json.dumps(_checked(graph, path)))
        copy.writestr("model/data/sample_inputs/model.pt", b"")
        left = MAX_VALUES_BYTES
        for folder, config in _CONFIGS.items():
            data = _document(archive, members[config], path)
            copy.writestr(f"model/{config}", json.dumps(data))
            for name, empty in _tensors(data, folder, members, path):
                left -= 0 if empty else members[name].file_size
                if left < 0:
                    raise ModelError(
                        f"{path} holds over {MAX_VALUES_BYTES:,} bytes of buffers and constants; make large tables parameters"
                    )
                copy.writestr(f"model/{name}", b"" if empty else archive.read(members[name]))
    made.seek(0)
    return made


def _members(archive: zipfile.ZipFile, path: str) -> dict[str, zipfile.ZipInfo]:
    """Return the members of the archive by their names without the top folder.

    Raises
    ------
    ModelError
        If a member is compressed or occurs twice, or if the declared sizes exceed the size of the file.
    """
    found: dict[str, zipfile.ZipInfo] = {}
    for one in archive.infolist():
        name = one.filename.partition("/")[2]
        if one.compress_type != zipfile.ZIP_STORED or name in found:
            what = "twice" if name in found else "compressed"
            raise ModelError(f"{path} holds {name[:80]!r} {what}, as torch never writes it; {_REMEDY}")
        found[name] = one
    assert archive.fp is not None
    if sum(one.file_size for one in found.values()) > archive.fp.seek(0, io.SEEK_END):
        raise ModelError(f"{path} states that its parts are larger than the file is; {_REMEDY}")
    return found


def _document(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: str) -> dict[str, Any]:
    if member.file_size > MAX_JSON_BYTES:
        raise ModelError(
            f"{path} describes its graph in {member.file_size:,} bytes; at most {MAX_JSON_BYTES:,} are read"
        )
    try:
        data = json.loads(archive.read(member))
    except RecursionError:
        raise ModelError(f"{path} is nested too deeply to be read; {_REMEDY}") from None
    if not isinstance(data, dict):
        raise ModelError(f"{path} contains no description of a graph; {_REMEDY}")
    return data


def _checked(data: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the description of a program without the parts that are not needed, after checking the rest.

    Raises
    ------
    ModelError
        If a text is not in the allowlist.
    """
    data["guards_code"] = []
    graph = data["graph_module"]
    graph["metadata"], graph["treespec_namedtuple_fields"] = {}, {}
    graph["module_call_graph"] = [entry for entry in graph["module_call_graph"] if entry["fqn"] == ""]
    try:
        for key, text in _texts(data, ""):
            fault = _fault(key, text)
            if fault:
                raise ModelError(f"{path} {fault} {text[:80]!r}, which is not read from a file; {_REMEDY}")
    except RecursionError:
        raise ModelError(f"{path} is nested too deeply to be read; {_REMEDY}") from None
    return data


def _texts(value: object, key: str) -> Iterator[tuple[str, str]]:
    """Yield every text of a document with its key; the key of a key is "key".

    Notes of nodes, except those in `_KEPT_NOTES`, are deleted in place.
    """
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one, key)
    elif isinstance(value, dict):
        if key == "metadata":  # notes of a node; torch does not look up their names
            for name in [name for name in value if name not in _KEPT_NOTES]:
                del value[name]
            return
        for name, one in value.items():
            yield "key", name
            yield from _texts(one, name)


def _fault(key: str, text: str) -> str:
    """Return the fault of a text in the description as the middle of a sentence; "" if the text is valid."""
    if key in ("as_string", "as_strings"):  # arguments, which torch uses as literals
        return ""
    if key in ("target", "as_operator"):
        return "" if _OPERATOR.fullmatch(text) else "names the operator"
    if key == "expr_str":
        return "has the symbolic size"
    if key in ("in_spec", "out_spec"):
        return "" if _is_plain_tree(json.loads(text), key == "in_spec") else "has the tree of values"
    if key in ("name", "as_name", "forward_arg_names"):
        return "" if not text or _IDENTIFIER.fullmatch(text) else "has the name"
    return "" if _PLAIN.fullmatch(text) else "holds the text"


def _is_plain_tree(tree: object, names: bool) -> bool:
    """Return whether a tree of values consists of tuples, lists and dictionaries only.

    If `names` is true, keys of dictionaries must be names of arguments.
    """
    if not isinstance(tree, list) or len(tree) != 2 or not isinstance(tree[0], int):
        return False
    left = [tree[1]]
    while left:
        node = left.pop()
        if not isinstance(node, dict) or set(node) != {"type", "context", "children_spec"}:
            return False
        context = node["context"]
        keys = json.loads(context) if isinstance(context, str) else context
        pattern = _IDENTIFIER if names else _PLAIN
        if node["type"] not in _TREES or not isinstance(keys, list | None):
            return False
        if not all(isinstance(k, int) or (isinstance(k, str) and pattern.fullmatch(k)) for k in keys or ()):
            return False
        left += node["children_spec"]
    return True


def _tensors(
    data: dict[str, Any], folder: str, members: dict[str, zipfile.ZipInfo], path: str
) -> Iterator[tuple[str, bool]]:
    """Yield each member that a list of tensors needs, and whether zeros of the same shape can replace it.

    Raises
    ------
    ModelError
        If a tensor is pickled or has a symbolic size.
    """
    uses: dict[str, list[dict[str, Any]]] = {}
    prefix = "weight_" if folder == "data/weights/" else "tensor_"
    for entry in data["config"].values():
        name = entry["path_name"]
        if entry["use_pickle"] or not re.fullmatch(prefix + r"\d+", str(name), re.ASCII):
            raise ModelError(
                f"{path} holds the object {str(name)[:80]!r}, which only code can read; {_REMEDY}"
            )
        meta = entry["tensor_meta"]
        if not all(isinstance(size.get("as_int"), int) for key in ("sizes", "strides") for size in meta[key]):
            raise ModelError(
                f"{path} holds a tensor of symbolic size, which is not read from a file; {_REMEDY}"
            )
        uses.setdefault(folder + name, []).append(entry)
    for name, entries in uses.items():
        sizes = [tuple(size["as_int"] for size in entry["tensor_meta"]["sizes"]) for entry in entries]
        count = math.prod(sizes[0])
        whole = all(
            entry["is_param"]
            and size == sizes[0]
            and not entry["tensor_meta"]["storage_offset"].get("as_int")
            for entry, size in zip(entries, sizes, strict=True)
        )
        held = members[name].file_size
        yield name, whole and count > 0 and held % count == 0 and held // count <= 16
