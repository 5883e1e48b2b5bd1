"""What people type as KEY=VALUE, spelled as Hydra's grammar of overrides wants it.

That grammar gives characters a meaning that paths and names have as well: it reads 64_64_64 as a number and `demo (1)`
as an error. Which values are text, the schema knows. So these are quoted here, unless the user quoted them; numbers,
choices and groups stay as they are. With -m a comma divides the values of a sweep, as for Hydra's users; without it,
the items of a list, or it is part of a path.
"""

import os
import re
from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import OmegaConf

from cudal2.config.base import Schema
from cudal2.files import asset

_WORD = re.compile(r"(?P<mark>\+\+|\+|~)?(?P<key>[A-Za-z_][\w-]*(?:[./@:][\w-]+)*)(?:=(?P<value>.*))?", re.DOTALL)
_CALL = re.compile(r"(choice|range|interval|glob|sort|shuffle|tag|extend_list|str|int|float|bool|json_str)\(.*\)", re.S)
_FOLDERS = ("hydra.sweep.dir", "hydra.sweep.subdir")


def spelled(words: Iterable[str], schema: type[Schema], sweep: bool = False) -> list[str]:
    """The overrides for Hydra. With `sweep` they are those of several runs.

    Raises ValueError for a word that is no KEY=VALUE, for `~key`, and for a `run=` without a folder.
    """
    return [_spelled(word, schema, sweep) for word in words]


def key(word: str) -> str:
    """The key of KEY=VALUE, without Hydra's `+`, `++` and `~`; "" where the word is none."""
    match = _WORD.fullmatch(word)
    given = match and (match["value"] is not None or match["mark"] == "~")
    return match["key"] if match and given else ""


def quoted(text: str) -> str:
    """The text in Hydra's quotes, with a leading ~ for the user's home spelled out."""
    home = os.path.expanduser(text)  # noqa: PTH111 - pathlib's raises for a user who is not there
    return QuotedString(text=home, quote=Quote.single).with_quotes()


def parts(value: str) -> list[str]:
    """The parts of `value` between commas that are in no quotes and no brackets, without blanks around them."""
    pieces, depth, quote = [""], 0, ""
    for before, letter in zip(" " + value, value):
        if quote:
            quote = "" if letter == quote and before != "\\" else quote
        elif letter in "'\"" and not pieces[-1].strip():
            quote = letter
        elif letter == "," and not depth:
            pieces.append("")
            continue
        else:
            depth = max(0, depth + (letter in "[{(") - (letter in "]})"))
        pieces[-1] += letter
    return [part.strip() for part in pieces]


def refused(error: msgspec.ValidationError, schema: type[msgspec.Struct]) -> str:
    """What msgspec says of a value of the schema, and the right ones where it is none of a few."""
    said = " ".join(str(error).split())
    key = re.match(r"Invalid enum value .*`\$\.([\w.]+)", said)
    return f"{said}; use one of {', '.join(_values(_hint(schema, key[1])))}" if key else said


def _values(kind: Any) -> list[str]:
    """Those of a Literal, also of one within a tuple."""
    parts = get_args(kind)
    return [*map(str, parts)] if get_origin(kind) is Literal else [value for part in parts for value in _values(part)]


def _spelled(word: str, schema: type[Schema], sweep: bool) -> str:
    match = _WORD.fullmatch(word)
    if not match or not key(word):
        raise ValueError(f"{word} is no KEY=VALUE; several values are one word, with commas: 64_64_64,128_64_64")
    mark, name, value = match["mark"] or "", match["key"], match["value"]
    if mark == "~":
        if name not in _groups():
            raise ValueError(f"{word}: a key cannot be taken away; {name}=VALUE sets it, without it the default holds")
        return word
    if name == "run" and not all(map(_plain, parts(value) if sweep else [value])):
        raise ValueError("run= names no folder (a shell variable that is not set is empty): run=FOLDER")
    if dict in (get_origin(_hint(schema, key)) for key in (name, name.rpartition(".")[0])):
        mark = "++"  # whose keys only its reader knows; a key that Hydra does not know must be added to the others
    kind = str if name in _FOLDERS else _kind(schema, name)
    start = f"{mark}{name}="
    if kind is None:
        return start + value
    if name == "shapes":
        return mark + _shapes(value, sweep)
    if _whole(value) or (sweep and _CALL.fullmatch(value)):
        return start + value
    if kind is str:
        return start + ",".join(map(_text, parts(value) if sweep else [value]))
    item = _text if get_args(kind)[0] is str else str
    if value.startswith("${") or _CALL.fullmatch(value) or (value.startswith("[") and not value.endswith("]")):
        return start + value
    if sweep:
        return start + ",".join(_list(part, item) for part in parts(value))
    return start + _list(value, item)


def _kind(schema: type[Schema], name: str) -> Any:
    """`str` or a type of tuple, or None where the key's value is neither, or there is no such key."""
    kind = _hint(schema, name)
    return kind if kind is str or get_origin(kind) is tuple or name == "shapes" else None


def _hint(schema: type[msgspec.Struct], name: str) -> Any:
    """The type of the key's value, None where there is no such key."""
    kind: Any = schema
    for part in name.split("."):
        kind = get_type_hints(kind).get(part) if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None
    return kind


def _whole(value: str) -> bool:
    """Whether all of the value is in one pair of quotes."""
    return re.fullmatch(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", value, re.DOTALL) is not None


def _plain(value: str) -> str:
    return value.strip().strip("'\"").strip()


def _text(value: str) -> str:
    return value if _whole(value) else quoted(value)


def _list(value: str, item: Callable[[str], str]) -> str:
    inner = value.strip()
    inner = inner[1:-1] if inner.startswith("[") and inner.endswith("]") else inner
    return f"[{','.join(item(part) for part in parts(inner))}]" if inner.strip() else "[]"


def _shapes(value: str, sweep: bool) -> str:
    """`shapes=` names files in conf/shapes and problems, several of both for one list: `shapes=demo,8_16_24,llm`."""

    def together(part: str) -> str:
        words = parts(part[1:-1] if part.startswith("[") and part.endswith("]") else part)
        return f"[{','.join(quoted(name) for word in words for name in listed(_plain(word)))}]"

    value = value[1:-1] if _whole(value) else value
    choices = parts(value) if sweep else [value.strip()]
    if all(re.fullmatch(r"[A-Za-z][\w-]*|\$\{.*|\{.*|.+\(.*\)", choice) for choice in choices):
        return f"shapes={','.join(choices)}"  # files, also of the user's own
    return f"shapes.names={','.join(map(together, choices))}"


def listed(word: str) -> list[str]:
    """The names in a file of conf/shapes; a word that names none is itself."""
    lists = {path.stem: path for path in asset("conf", "shapes").glob("*.yaml")}
    return list(OmegaConf.load(lists[word]).names) if word in lists else [word]


def _groups() -> set[str]:
    return {path.name for path in asset("conf").iterdir() if path.is_dir()}
